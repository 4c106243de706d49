"""The neighbourhood score of a run: what it says alone, and what it adds to the cosine where there is one."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators.base import paired_cosines
from noisegate.pipeline.neighbours import Neighbours
from noisegate.pipeline.runs.rows import Embeddings, Rows, as_rows, gather
from noisegate.pipeline.system.array_types import Float32, Floats, Index, Integers, Mask

from .beta import mismatch_pairs
from .calibration import MIN_PAIRS, Intersection, PairCalibration, calibrate_pairs, intersection
from .neighbourhood import Side, either_side

NEIGHBOURS = 20
MISMATCHED = 10_000
FOLDS = 5
MOST = 100.0  # weight of the agreement where the cosine has none
READ = 16_384  # rows looked at in one go


@dataclass(frozen=True)
class NeighbourhoodScores:
    """Agreement (N,) of each pair with its neighbours' partners, NaN for none, and what it means on this data.

    `weight` is what the agreement counts beside the cosine (both in deviations of mismatched pairs): 0 unless it helps to
    tell given from mismatched pairs that were held out. `score` (N,) is what `calibration` reads: the agreement itself
    where there is no cosine. `alone` says that it decides which pairs are clean.
    """

    agreement: Float32
    score: Float32
    k: int
    weight: float
    calibration: PairCalibration | None
    cut: Intersection | None
    alone: bool

    def facts(self) -> dict[str, Any]:
        """What the tables record."""
        facts: dict[str, Any] = {"k": self.k, "weight": self.weight, "alone": self.alone, "cut": None}
        facts["calibration"] = self.calibration.to_dict() if self.calibration else None
        if self.calibration and self.cut and self.alone:
            promised = self.calibration.expected(self.cut.beta)._asdict()
            facts["cut"], facts["cut_reason"] = self.cut.beta, self.cut.reason
            facts["expected"] = {name: round(v, 6) if np.isfinite(v) else None for name, v in promised.items()}
        return facts

    def table_columns(self, rows: slice, ok: Mask, probability: Float32) -> dict[str, Any]:
        """`neighbourhood`; without a cosine also `clean` and `clean_probability`, with one only the latter, if it gains.

        `probability` is what the cosine alone says; it stays where a pair has no neighbours.
        """
        agreement = np.where(ok, self.agreement[rows], np.nan)
        columns: dict[str, Any] = {"neighbourhood": agreement}
        if self.calibration and (self.alone or self.weight):
            found = self.calibration.clean_probability(self.score[rows])
            columns["clean_probability"] = np.where(np.isnan(agreement), probability, found)
        if self.cut and self.alone:
            columns["clean"] = pa.array(agreement > self.cut.beta, mask=np.isnan(agreement))
        return columns


def score_neighbourhood(
    images: Embeddings,
    texts: Embeddings,
    graph: Neighbours,
    text_graph: Neighbours | None,
    k: int,
    seed: int,
    similarity: Float32 | None,
    *,
    decides: bool = True,
) -> NeighbourhoodScores:
    """Score all pairs by the `k` nearest on either side; `graph` has those of the images, and may list more.

    `text_graph` has those of the texts, None where no text could be embedded.

    `similarity` (N,) is their cosine where both sides share a space, NaN for failed pairs; without it the agreement
    decides what is clean, if `decides`. What the score means is learned as for cosines: from pairs that are mismatched
    on purpose and judged by the same neighbours. Raises ConfigError where there are pictures but no texts.
    """
    left, right = as_rows(images), as_rows(texts)
    pictures, captions = _embedded(left), _embedded(right)
    if text_graph is None or (pictures.any() and not captions.any()):
        raise ConfigError("neighbourhood: no sample has a text embedding to compare; leave --neighbourhood out")
    near_images, near_texts = graph.indices[:, :k], text_graph.indices[:, :k]
    valid = pictures & captions
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(np.flatnonzero(valid))[:MISMATCHED]
    some_left, some_right = (found[place] for found, place in (gather(rows, chosen) for rows in (left, right)))
    first, second = mismatch_pairs(some_left, some_right, rng, rounds=1)
    picture, caption = chosen[first], chosen[second]
    of_texts, of_images, every = Side.of(right), Side.of(left), np.arange(len(left))
    given = either_side(of_texts.agreement(every, near_images), of_images.agreement(every, near_texts))
    given[~valid] = np.nan
    # the pair that a mismatched one's caption, or picture, came from is no neighbour of it
    wrong = either_side(
        of_texts.agreement(caption, _without(near_images[picture], caption)),
        of_images.agreement(picture, _without(near_texts[caption], picture)),
    )
    if similarity is None or not len(wrong):
        return _finish(given, given, wrong, k, 0.0, alone=similarity is None and decides, seed=seed)
    cosine_wrong = paired_cosines(some_left, some_right, first, second)
    centre, spread = float(cosine_wrong.mean()), max(float(cosine_wrong.std()), 1e-9)
    first_given, first_wrong = (similarity - centre) / spread, (cosine_wrong - centre) / spread
    weight = _earned_weight(np.stack([first_given, given], axis=1), np.stack([first_wrong, wrong], axis=1), rng)
    both = first_given + weight * given, first_wrong + weight * wrong
    return _finish(given, *both, k, weight, alone=False, seed=seed)


def _embedded(rows: Rows) -> Mask:
    """(N,) which rows are not zeros."""
    return np.concatenate([np.zeros(0, np.bool_), *(block.any(axis=1) for _, block in rows.chunks(READ))])


def _without(lists: Integers, rows: Index) -> Integers:
    """Neighbour lists (M, k) in which row i does not name rows[i]."""
    return np.where(lists == rows[:, None], -1, lists)


def _finish(
    agreement: Float32, score: Floats, wrong: Floats, k: int, weight: float, *, alone: bool, seed: int
) -> NeighbourhoodScores:
    enough = min(np.isfinite(score).sum(), np.isfinite(wrong).sum()) >= MIN_PAIRS
    calibration = calibrate_pairs(score, wrong, seed) if enough else None
    # mean + 2 sd loses most pairs of clean data: agreement parts right from wrong less than cosines do
    cut = intersection(score, wrong, seed, calibration, even_if_clean=True) if enough else None
    return NeighbourhoodScores(agreement, score.astype(np.float32), k, weight, calibration, cut, alone)


def _earned_weight(given: Floats, wrong: Floats, rng: np.random.Generator) -> float:
    """How much agreement (column 1) adds to the cosine (column 0) in telling given from mismatched pairs, out of fold.

    0 unless the held-out log-loss falls by more than two standard errors; at most 100, where the cosine says nothing.
    """
    from sklearn.linear_model import LogisticRegression

    given, wrong = given[np.isfinite(given).all(axis=1)], wrong[np.isfinite(wrong).all(axis=1)]
    given = given[rng.permutation(len(given))[: len(wrong)]]
    if min(len(given), len(wrong)) < 10 * MIN_PAIRS:
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
    return float(agreement / max(cosine, agreement / MOST)) if agreement > 0 else 0.0
