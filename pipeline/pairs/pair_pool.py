"""The pool of pairs for a run's `pair_quality`: draw it, choose τ, and read it again to judge new pairs."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow.compute as pc

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.estimators.base import array_digest, paired_cosines
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.system.array_types import Float32, Floats, Index

from .beta import mismatch_pairs
from .pair_quality import Pool

POOL = 32_768  # most pairs of the pool
TEMPERATURES = (0.01, 0.005, 0.02, 0.05)  # τ to try; the first is CLIP's own
TRIED = 1_000  # pairs of the pool used to choose the temperature
MISTAKEN = 0.01  # scores are compared at the value that this share of mismatched pairs exceeds
RECORD = "pair_quality"  # key of the tables' metadata


@dataclass(frozen=True)
class RunPool:
    """The pool of a run with its temperature τ; `facts` is the tables' record."""

    pool: Pool
    facts: dict[str, Any]

    def quality(self, images: Floats, texts: Floats, cosines: Floats) -> Float32:
        """Compute `pair_quality` (N,) of unit rows (N, d) with these cosines (N,); NaN if there is no pair."""
        return self.pool.quality(images, texts, (self.facts["temperature"],), cosines).reshape(-1)

    def quality_of(self, images: Floats, texts: Floats, first: Index, second: Index, cosines: Floats) -> Float32:
        """Compute `pair_quality` (P,) of the pairs of rows `first` of `images` and `second` of `texts`, with cosines (P,)."""
        return self.pool.quality_of(images, texts, first, second, (self.facts["temperature"],), cosines).reshape(-1)


def draw_pairs(run: RunFolder, stems: Sequence[str], count: int, seed: int) -> tuple[Index, Index]:
    """Draw up to `count` scored pairs; return positions in `stems` and rows, in order.

    Each row draws a number from a generator seeded by its shard's name, and the rows with the smallest numbers are taken:
    memory stays at `count` rows, and the sample does not depend on the order of the shards.
    """
    draws, places, rows = np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64)
    for place, stem in enumerate(stems):
        table = run.read(stem, ["status", "similarity"])
        usable = pc.and_(pc.equal(table["status"], "ok"), pc.is_valid(table["similarity"])).to_numpy()
        scored = np.flatnonzero(usable)
        rng = np.random.default_rng([seed, zlib.crc32(stem.encode())])
        draws = np.concatenate([draws, rng.random(len(usable))[scored]])
        places = np.concatenate([places, np.full(len(scored), place)])
        rows = np.concatenate([rows, scored])
        if len(draws) > count:
            keep = np.argpartition(draws, count)[:count]
            draws, places, rows = draws[keep], places[keep], rows[keep]
    order = np.lexsort((rows, places))
    return places[order], rows[order]


def read_pairs_of_run(run: RunFolder, stems: Sequence[str], places: Index, rows: Index) -> tuple[Float32, Float32]:
    """Read kept embeddings (M, d) of pictures and captions of the rows from `draw_pairs`."""
    sides = []
    for part in ("image", "text"):
        side = np.zeros((0, 0), np.float32)
        for place in np.unique(places):
            here = places == place
            read = read_embeddings(run.embeddings(stems[int(place)]), part, rows[here])
            if not len(side):  # one array from the start: joining parts would take twice the memory
                side = np.empty((len(rows), read.shape[1]), np.float32)
            side[here] = read
        sides.append(side)
    return sides[0], sides[1]


def fit_pool(run: RunFolder, stems: Sequence[str], seed: int, device: str = "auto", size: int = POOL) -> RunPool | None:
    """Draw the pool of a run whose shards are all encoded; None if fewer than two pairs could be encoded."""
    images, texts = read_pairs_of_run(run, stems, *draw_pairs(run, stems, size, seed))
    own = read_metadata(run.table(stems[0])).get("temperature")
    return make_pool(images, texts, seed, own, device, size)


def make_pool(
    images: Floats, texts: Floats, seed: int, own: float | None, device: str = "auto", size: int = POOL
) -> RunPool | None:
    """Make a pool of at most `size` of these pairs, unit rows (M, d); None if there are fewer than two.

    τ is the model's `own`, else the one of TEMPERATURES at which most pairs are above the mismatched pairs.
    """
    if len(images) < 2:
        return None
    pool = Pool(images, texts, choose_device(device) if len(images) == size else "cpu")
    tried = TEMPERATURES if own is None else (own,)
    shares = try_temperatures(pool, images, texts, seed, tried)
    best = max(tried, key=lambda temperature: shares.get(f"{temperature:g}", 0.0))
    facts = {"pairs": len(images), "size": size, "seed": seed, "digest": _digest(images, texts), "temperature": best}
    source = "chosen on the data" if own is None else "the model's own"
    return RunPool(pool, {**facts, "temperature_source": source, "above_mismatched": shares})


def read_pool(run: RunFolder, device: str = "cpu") -> RunPool | None:
    """Read the pool of a finished run to judge new pairs; None if there is no pool or no embeddings.

    Raises TableError if the embeddings have changed.
    """
    stems = sorted(run.stems())
    facts = read_metadata(run.table(stems[0])).get(RECORD) if stems else None
    if not facts or not all(run.embeddings(stem).exists() for stem in stems):
        return None
    images, texts = read_pairs_of_run(run, stems, *draw_pairs(run, stems, facts["size"], facts["seed"]))
    if _digest(images, texts) != facts["digest"]:
        raise TableError.of(
            "run", str(run.name), "has other embeddings than pair_quality was computed with; rescore it"
        )
    return RunPool(Pool(images, texts, device), facts)


def try_temperatures(
    pool: Pool, images: Floats, texts: Floats, seed: int, temperatures: tuple[float, ...] = TEMPERATURES
) -> dict[str, float]:
    """Compute the share of given pairs above 99 % of the mismatched, by cosine and by `pair_quality` at each temperature.

    With noise rate ρ this is (1 - ρ) · the share of right pairs + ρ · the share of wrong pairs, which is about 1 % at most: so
    the better score has the larger share at any ρ. An AUROC would mislead: wrong pairs whose right caption is in the pool are
    below mismatched pairs, and further below for smaller τ. Empty if no pair can be mismatched.
    """
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(images))[:TRIED])
    left, right = images[chosen], texts[chosen]
    first, second = mismatch_pairs(left, right, rng)
    if not len(first):
        return {}
    rows = np.arange(len(left))
    scores = {"cosine": (paired_cosines(left, right, rows, rows), paired_cosines(left, right, first, second))}
    both = pool.quality_of(left, right, np.append(rows, first), np.append(rows, second), temperatures)
    scores |= {f"{t:g}": (q[: len(rows)], q[len(rows) :]) for t, q in zip(temperatures, both, strict=True)}
    return {name: share_above(given, wrong) for name, (given, wrong) in scores.items()}


def share_above(given: Floats, wrong: Floats) -> float:
    """Compute the share of `given` above all but MISTAKEN of `wrong`, without NaN; 0 if there is nothing to compare.

    >>> share_above(np.array([0.5, 2.0, np.nan]), np.linspace(0, 1, 101))
    0.5
    """
    given, wrong = given[np.isfinite(given)], wrong[np.isfinite(wrong)]
    if not len(given) or not len(wrong):
        return 0.0
    return round(float(np.mean(given > np.quantile(wrong, 1 - MISTAKEN))), 6)


def choose_device(device: str) -> str:
    """Check the device; `auto` is the first GPU. Imports torch, so call it only if a run is as large as the pool."""
    if device == "auto" and version("torch").endswith("+cpu"):  # no GPU; importing it to ask takes a second
        return "cpu"
    from noisegate.pipeline.estimators.device import Device

    return Device.choose(device).name


def _digest(images: Floats, texts: Floats) -> str:
    return array_digest({"image": images, "text": texts})[:16]
