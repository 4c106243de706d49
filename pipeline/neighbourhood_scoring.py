"""The neighbourhood score of a run: what it says alone, and what it adds to the cosine where there is one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .calibration import LEAST, Intersection, PairCalibration, calibrate_pairs, intersection
from .estimators.base import paired_cosines
from .neighbourhood import neighbourhood_agreement
from .neighbours import Neighbours, find_neighbours

__all__ = ["NeighbourhoodScores", "score_neighbourhood"]

NEIGHBOURS = 20
MISMATCHED = 10_000
FOLDS = 5

Blocks = Sequence[NDArray[np.float32]]
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class NeighbourhoodScores:
    """Agreement (N,) of each pair with its neighbours' partners, NaN for none, and what it means on this data.

    `weight` is what the agreement counts beside the cosine (both in deviations of mismatched pairs): 0 unless it helps to
    tell given from mismatched pairs that were held out. `score` (N,) is what `calibration` reads: the agreement itself
    where there is no cosine.
    """

    agreement: NDArray[np.float32]
    score: NDArray[np.float32]
    weight: float
    calibration: PairCalibration | None
    cut: Intersection | None
    alone: bool

    def facts(self) -> dict[str, Any]:
        """What the tables record."""
        cut = self.cut.beta if self.cut and self.alone else None
        calibration = self.calibration.to_dict() if self.calibration else None
        return {"k": NEIGHBOURS, "weight": self.weight, "alone": self.alone, "cut": cut, "calibration": calibration}

    def table_columns(self, rows: slice, ok: NDArray[np.bool_]) -> dict[str, Any]:
        """`neighbourhood`; without a cosine also `clean` and `clean_probability`, with one only the latter, if it gains."""
        agreement = np.where(ok, self.agreement[rows], np.nan)
        columns: dict[str, Any] = {"neighbourhood": agreement}
        if self.calibration and (self.alone or self.weight):
            columns["clean_probability"] = np.where(ok, self.calibration.clean_probability(self.score[rows]), np.nan)
        if self.cut and self.alone:
            columns["clean"] = pa.array(agreement > self.cut.beta, mask=np.isnan(agreement))
        return columns


def score_neighbourhood(
    images: Blocks, texts: Blocks, graph: Neighbours, seed: int, similarity: NDArray[np.float32] | None
) -> NeighbourhoodScores:
    """Score all pairs; `similarity` (N,) is their cosine where both sides share a space, NaN for failed pairs.

    What the score means is learned as for cosines: from pairs that are mismatched on purpose and judged by the same
    neighbours.
    """
    left, right = np.concatenate(images), np.concatenate(texts)
    near_images = graph.indices[:, :NEIGHBOURS]
    near_texts = find_neighbours(texts, NEIGHBOURS).indices
    valid = np.flatnonzero(left.any(axis=1) & right.any(axis=1))
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(valid)[:MISMATCHED]
    partner = np.roll(chosen, 1) if len(chosen) > 1 else chosen[:0]
    chosen = chosen[: len(partner)]
    # mismatched pairs are rows behind the given ones: their lists name given rows only
    found = neighbourhood_agreement(
        np.concatenate([near_images, near_images[chosen]]),
        np.concatenate([near_texts, near_texts[partner]]),
        np.concatenate([left, left[chosen]]),
        np.concatenate([right, right[partner]]),
    )
    given, wrong = found[: len(left)], found[len(left) :]
    given[~np.isin(np.arange(len(left)), valid)] = np.nan
    if similarity is None:
        return _finish(given, given, wrong, 0.0, alone=True, seed=seed)
    cosine_wrong = paired_cosines(left, right, chosen, partner)
    centre, spread = float(cosine_wrong.mean()), max(float(cosine_wrong.std()), 1e-9)
    first, second = (similarity - centre) / spread, (cosine_wrong - centre) / spread
    weight = _earned_weight(np.stack([first, given], axis=1), np.stack([second, wrong], axis=1), rng)
    return _finish(given, first + weight * given, second + weight * wrong, weight, alone=False, seed=seed)


def _finish(
    agreement: NDArray[np.float32], score: Floats, wrong: Floats, weight: float, *, alone: bool, seed: int
) -> NeighbourhoodScores:
    enough = min(np.isfinite(score).sum(), np.isfinite(wrong).sum()) >= LEAST
    calibration = calibrate_pairs(score, wrong, seed) if enough else None
    cut = intersection(score, wrong, seed, calibration) if enough else None
    return NeighbourhoodScores(agreement, score.astype(np.float32), weight, calibration, cut, alone)


def _earned_weight(given: Floats, wrong: Floats, rng: np.random.Generator) -> float:
    """How much agreement (column 1) adds to the cosine (column 0) in telling given from mismatched pairs, out of fold.

    0 unless the held-out log-loss falls by more than two standard errors.
    """
    from sklearn.linear_model import LogisticRegression

    given, wrong = given[np.isfinite(given).all(axis=1)], wrong[np.isfinite(wrong).all(axis=1)]
    given = given[rng.permutation(len(given))[: len(wrong)]]
    if min(len(given), len(wrong)) < 10 * LEAST:
        return 0.0
    rows, truth = np.concatenate([given, wrong]), np.repeat([1, 0], [len(given), len(wrong)])
    fold = rng.permutation(len(rows)) % FOLDS
    gains = np.empty(len(rows))
    for i in range(FOLDS):
        train, test = fold != i, fold == i
        losses = []
        for columns in ([0], [0, 1]):
            model = LogisticRegression().fit(rows[train][:, columns], truth[train])
            chance = model.predict_proba(rows[test][:, columns])[np.arange(test.sum()), truth[test]]
            losses.append(-np.log(np.maximum(chance, 1e-12)))
        gains[test] = losses[0] - losses[1]
    if gains.mean() <= 2 * gains.std() / np.sqrt(len(gains)):
        return 0.0
    cosine, agreement = LogisticRegression().fit(rows, truth).coef_[0]
    return float(max(0.0, agreement) / cosine) if cosine > 0 else 0.0
