"""β and calibration of a whole run, learned from a sample of all its shards."""

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from noisegate.pipeline.errors import MismatchError
from noisegate.pipeline.estimators.base import paired_cosines
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.system.array_types import Float32, Index

from .beta import PAIRS, Beta, PairSample, estimate_beta, mismatch_pairs
from .calibration import PairCalibration
from .scorer import read_scoring


@dataclass(frozen=True)
class PairFit:
    """β and calibration of one run, and the sample of given pairs that they were learned from."""

    beta: Beta
    calibration: PairCalibration | None
    sample: PairSample


def fit_pairs(
    run: RunFolder, stems: Sequence[str], mode: str, random_inputs: Callable[[], Beta] | None, seed: int
) -> PairFit:
    """Learn β and calibration of a run whose shards are all encoded."""
    sample = sample_run(run, stems, PAIRS, seed)
    beta = estimate_beta(pairs=sample, mode=mode, random_inputs=random_inputs, seed=seed)
    return PairFit(beta, sample.calibration, sample)


def read_pair_fit(run: RunFolder, stems: Sequence[str], seed: int) -> PairFit:
    """Read β and calibration from the tables of a finished run whose embeddings were dropped."""
    if len({_scoring_text(run, stem) for stem in stems}) != 1:
        raise MismatchError(
            f"{run.path}: embeddings are missing and the tables are not scored alike; use --overwrite",
            "out",
            str(run.path),
        )
    beta, calibration = read_scoring(run, stems[0])
    if beta is None:
        raise MismatchError(
            f"{run.table(stems[0])} has no scores yet; finish the run with the same annotate command",
            "out",
            str(run.path),
        )
    places, rows = _draw(run, stems, PAIRS, seed)
    given = _similarities(run, stems, places, rows)
    return PairFit(beta, calibration, PairSample(given, np.zeros(0, np.float32)))


def _scoring_text(run: RunFolder, stem: str) -> str:
    """β and calibration as JSON, in which tuples equal lists and NaN equals NaN."""
    metadata = read_metadata(run.table(stem))
    return json.dumps([metadata.get("beta"), metadata.get("calibration")], sort_keys=True)


def sample_run(run: RunFolder, stems: Sequence[str], count: int, seed: int) -> PairSample:
    """Cosines of up to `count` given pairs, drawn evenly from all shards, and of mismatched ones made from them."""
    places, rows = _draw(run, stems, count, seed)
    images, texts = [], []
    for place in np.unique(places):
        stem, chosen = stems[int(place)], rows[places == place]
        images.append(read_embeddings(run.embeddings(stem), "image", chosen))
        texts.append(read_embeddings(run.embeddings(stem), "text", chosen))
    given = _similarities(run, stems, places, rows)
    if not images:
        return PairSample(given, given)
    left, right = np.concatenate(images), np.concatenate(texts)
    first, second = mismatch_pairs(left, right, np.random.default_rng(seed))
    return PairSample(given, paired_cosines(left, right, first, second))


def _draw(run: RunFolder, stems: Sequence[str], count: int, seed: int) -> tuple[Index, Index]:
    """Positions in `stems` and rows of up to `count` scored pairs, in order.

    Each row draws a number from a generator seeded by its shard's name, and the smallest win: memory stays at `count`
    rows, and the sample does not depend on the order of the shards.
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


def _similarities(run: RunFolder, stems: Sequence[str], places: Index, rows: Index) -> Float32:
    given = [np.zeros(0, np.float32)]
    for place in np.unique(places):
        similarity = run.read(stems[int(place)], ["similarity"])["similarity"].to_numpy()
        given.append(similarity[rows[places == place]])
    return np.concatenate(given)
