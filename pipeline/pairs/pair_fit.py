"""Pair scores of a whole run: β and calibration from a sample of all its shards."""

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from noisegate.pipeline.errors import MismatchError
from noisegate.pipeline.estimators.base import paired_cosines
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import RunFolder, read_metadata

from .beta import PAIRS, Beta, PairSample, estimate_beta, mismatch_pairs
from .calibration import PairCalibration
from .scorer import PairScores

__all__ = ["PairScoring", "learn_pair_scoring", "recorded_pair_scoring", "sample_run"]


@dataclass(frozen=True)
class PairScoring:
    """How cosines become weights in one run, and the sample of given pairs that it was learned from."""

    beta: Beta
    calibration: PairCalibration | None
    sample: PairSample


def learn_pair_scoring(
    run: RunFolder, stems: Sequence[str], mode: str, random_inputs: Callable[[], Beta] | None, seed: int
) -> PairScoring:
    """β and calibration of a run whose shards are all encoded."""
    sample = sample_run(run, stems, PAIRS, seed)
    beta = estimate_beta(pairs=sample, mode=mode, random_inputs=random_inputs, seed=seed)
    return PairScoring(beta, sample.calibration, sample)


def recorded_pair_scoring(run: RunFolder, stems: Sequence[str], seed: int) -> PairScoring:
    """What the tables of a finished run say about their scores, for one whose embeddings were dropped."""
    found = {_text(_recorded(run, stem)) for stem in stems}
    if len(found) > 1 or not stems:
        raise MismatchError(f"{run.path}: embeddings are missing and the tables are not scored alike; use --overwrite")
    beta, calibration = recorded_scoring(run, stems[0])
    places, rows = _draw(run, stems, PAIRS, seed)
    given = _similarities(run, stems, places, rows)
    return PairScoring(beta, calibration, PairSample(given, np.zeros(0, np.float32)))


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


def _draw(run: RunFolder, stems: Sequence[str], count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places in `stems` and rows of up to `count` scored pairs, in order.

    Each row draws a number from a generator seeded by its shard's name, and the smallest win: memory stays at `count`
    rows, and the sample does not depend on the order of the shards.
    """
    draws, places, rows = np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64)
    for place, stem in enumerate(stems):
        table = run.read(stem, ["status", "similarity"])
        usable = pc.and_(pc.equal(table["status"], "ok"), pc.is_valid(table["similarity"])).to_numpy()
        found = np.flatnonzero(usable)
        rng = np.random.default_rng([seed, zlib.crc32(stem.encode())])
        draws = np.concatenate([draws, rng.random(len(usable))[found]])
        places = np.concatenate([places, np.full(len(found), place)])
        rows = np.concatenate([rows, found])
        if len(draws) > count:
            keep = np.argpartition(draws, count)[:count]
            draws, places, rows = draws[keep], places[keep], rows[keep]
    order = np.lexsort((rows, places))
    return places[order], rows[order]


def _similarities(
    run: RunFolder, stems: Sequence[str], places: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    given = [np.zeros(0, np.float32)]
    for place in np.unique(places):
        similarity = run.read(stems[int(place)], ["similarity"])["similarity"].to_numpy()
        given.append(similarity[rows[places == place]])
    return np.concatenate(given)


def _recorded(run: RunFolder, stem: str) -> dict[str, Any]:
    metadata = read_metadata(run.table(stem))
    return {name: metadata.get(name) for name in ("beta", "calibration")}


def _text(values: dict[str, Any]) -> str:
    """For comparing: a tuple and the list it was stored as read the same, and so do two NaN."""
    return json.dumps(values, sort_keys=True)


def pair_columns(table: pa.Table, scores: PairScores) -> dict[str, Any]:
    """The columns of `scores`, null where the sample failed."""
    ok = pc.equal(table["status"], "ok").to_numpy()
    weight = np.where(ok, scores.osa_weight, np.nan)
    probability = np.full(len(ok), np.nan) if scores.clean_probability is None else scores.clean_probability
    return {
        "osa_weight": weight,
        "clean": pa.array(scores.clean, mask=np.isnan(weight)),
        "clean_probability": np.where(ok, probability, np.nan),
    }


def recorded_scoring(run: RunFolder, stem: str) -> tuple[Beta, PairCalibration | None]:
    """β and calibration as a finished table records them."""
    metadata = read_metadata(run.table(stem))
    if not metadata.get("beta"):
        raise MismatchError(f"{run.table(stem)} has no scores yet; finish the run with the same annotate command")
    calibration = metadata.get("calibration")
    return Beta.from_dict(metadata["beta"]), PairCalibration.from_dict(calibration) if calibration else None
