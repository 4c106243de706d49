"""Score a pair by its neighbourhood: do similar pictures have similar captions, and similar captions similar pictures?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators.base import paired_cosines
from noisegate.pipeline.neighbours import Neighbours
from noisegate.pipeline.runs.rows import Embeddings, Rows, as_rows, gather, unit_rows
from noisegate.pipeline.system.array_types import Float32, Float64, Floats, Index, Integers, Mask

from .beta import mismatch_pairs
from .calibration import PairCalibration
from .calibration_fit import MIN_PAIRS, Intersection, calibrate_pairs, intersection

GATHERED = 1 << 24  # floats of neighbours held at a time
NEIGHBOURS = 20  # of each picture and each text; 10 to 30 work equally well
MISMATCHED = 10_000  # pairs mismatched on purpose, at most
FOLDS = 5  # of the cross-validation that decides on the weight
LARGEST_WEIGHT = 100.0  # largest weight of the agreement, relative to the cosine
ROWS_READ = 16_384  # at a time


def neighbourhood_agreement(
    image_neighbours: Integers, text_neighbours: Integers, image_embeddings: Embeddings, text_embeddings: Embeddings
) -> Float32:
    """Compute how far a pair agrees with its neighbours' partners, (N,), in standard deviations of a random pair (random: 0).

        a_i = ½ [ z_text(i, N_image(i)) + z_image(i, N_text(i)) ],
        z_s(i, J) = ( mean_{j in J} cos(e_i, e_j) - mean_j cos(e_i, e_j) ) / sd_j cos(e_i, e_j),

    with e the embeddings of side s, centred; mean and sd over all valid j. The two sides may come from unrelated models of
    different dimensions, because cosines are taken within one side only. Neighbour lists are (N, k), -1 for none. If one
    side has no neighbour, the other counts alone; nan if neither has.

    >>> image = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1], [1, 0.2]])  # two kinds of photos
    >>> text = np.array([[1, 0, 0], [1, 0, 0.1], [0, 1, 0], [0, 1, 0.1], [0, 1, 0.2]])  # the last caption is wrong
    >>> near_image, near_text = np.array([[1], [0], [3], [2], [1]]), np.array([[1], [0], [3], [2], [3]])
    >>> [round(float(agreement), 1) for agreement in neighbourhood_agreement(near_image, near_text, image, text)]
    [1.0, 1.0, 1.0, 1.0, -1.2]
    """
    images, texts = as_rows(image_embeddings), as_rows(text_embeddings)
    if len({len(image_neighbours), len(text_neighbours), len(images), len(texts)}) != 1:
        raise ConfigError("neighbourhood: images, texts and neighbour lists need one row per pair", "neighbourhood")
    rows = np.arange(len(images))
    by_text = Side.of(texts).agreement(rows, image_neighbours)
    return average_sides(by_text, Side.of(images).agreement(rows, text_neighbours))


def agreement_of_new_pairs(
    images: Side,
    texts: Side,
    new_images: Float32,
    new_texts: Float32,
    image_neighbours: Integers,
    text_neighbours: Integers,
) -> Float64:
    """Compute `neighbourhood_agreement` of new pairs, (N,), with lists (N, k) of rows of the data; nan if a part is missing."""
    agreement = average_sides(
        texts.agreement_of(new_texts, image_neighbours, np.float64),
        images.agreement_of(new_images, text_neighbours, np.float64),
    )
    agreement[~(new_images.any(axis=1) & new_texts.any(axis=1))] = np.nan
    return agreement


def average_sides(by_text: NDArray[Any], by_image: NDArray[Any]) -> NDArray[Any]:
    """Average both sides; if one is nan, return the other."""
    both = (by_text + by_image) / 2
    return np.where(np.isnan(by_text), by_image, np.where(np.isnan(by_image), by_text, both))


@dataclass(frozen=True)
class Side:
    """The embeddings e of images or of texts (unit rows, centred, scaled to unit length again) and their moments."""

    rows: Rows
    centre: Float32  # (d,) mean of the unit rows
    mean: Float64  # (d,) of e
    spread: Float64  # (d, d) covariance of e

    @classmethod
    def of(cls, rows: Rows) -> Side:
        """Compute the moments in two passes over the rows."""
        step, width = max(1, GATHERED // max(1, rows.width)), rows.width
        centre, count = np.zeros(width), 0
        for _, block in rows.chunks(step):
            unit, valid = unit_rows(block)
            centre, count = centre + unit.sum(axis=0, dtype=np.float64), count + int(valid.sum())
        nothing = np.zeros(width)
        side = cls(rows, (centre / max(1, count)).astype(np.float32), nothing, np.outer(nothing, nothing))
        total, squares, count = np.zeros(width), np.zeros((width, width)), 0
        for _, block in rows.chunks(step):
            unit, valid = side._directions(block)  # rows that are not valid are 0
            total, count = total + unit.sum(axis=0, dtype=np.float64), count + int(valid.sum())
            squares += unit.T @ unit
        mean = total / max(1, count)
        spread = squares / max(1, count) - np.outer(mean, mean)
        return replace(side, mean=mean, spread=spread)

    def agreement(self, own: Index, neighbours: Integers) -> Float32:
        """(R,) z_s of the rows `own` with neighbour lists (R, k); nan for invalid rows and lists without a valid row."""
        result = np.full(len(own), np.nan, dtype=np.float32)
        step = max(1, GATHERED // max(1, neighbours.shape[1] * self.rows.width))
        for start in range(0, len(own), step):
            some = slice(start, start + step)
            taken, place = gather(self.rows, own[some])
            result[some] = self.agreement_of(taken[place], np.asarray(neighbours[some]), np.float32)
        return result

    def agreement_of(self, embeddings: Float32, neighbours: Integers, dtype: type[np.floating[Any]]) -> NDArray[Any]:
        """`agreement` of embeddings (R, d) that need not be among the rows; float32 is fast, float64 precise."""
        result = np.full(len(neighbours), np.nan, dtype)
        unit, valid = self._directions(embeddings)
        known = np.flatnonzero(valid)
        own, listed = unit[known], neighbours[known]
        taken, place = gather(self.rows, np.maximum(listed, 0))
        unit, valid = self._directions(taken)
        if dtype is np.float32:
            cosine = np.matmul(unit[place], own[:, :, None])[:, :, 0]
        else:
            cosine = np.einsum("nkd,nd->nk", unit[place], own, dtype=dtype)
        counts = (listed >= 0) & valid[place]
        near = np.sum(cosine * counts, axis=1) / np.maximum(counts.sum(axis=1), 1)
        # cos(e_i, e_j) over all j is a linear form of e_j, so its mean and variance need no pass over the pairs
        mean, spread = self.mean.astype(dtype), self.spread.astype(dtype)
        deviation = np.sqrt(np.maximum(np.sum((own @ spread) * own, axis=1), 1e-12))
        result[known] = np.where(counts.any(axis=1), (near - own @ mean) / deviation, np.nan)
        return result

    def _directions(self, block: Floats) -> tuple[Float32, Mask]:
        """e of some rows, 0 for invalid ones, and which are valid; a row that equals the centre is not."""
        unit, valid = unit_rows(block)
        centred, apart = unit_rows(unit - self.centre)
        valid &= apart
        centred[~valid] = 0
        return centred, valid


@dataclass(frozen=True)
class NeighbourhoodScores:
    """Agreement (N,) of each pair, NaN for none, and the calibration learned from it.

    `score` (N,), the input of `calibration`, is cosine + `weight` · agreement, both in standard deviations of mismatched pairs;
    without a cosine it is the agreement. `weight` is 0 unless the agreement helps to separate given from mismatched pairs in a
    held-out fold. `alone`: the agreement decides which pairs are clean.
    """

    agreement: Float32
    score: Float32
    k: int
    weight: float
    calibration: PairCalibration | None
    cut: Intersection | None
    alone: bool

    def facts(self) -> dict[str, Any]:
        """Return the facts that the tables record."""
        facts: dict[str, Any] = {"k": self.k, "weight": self.weight, "alone": self.alone, "cut": None}
        facts["calibration"] = self.calibration.to_dict() if self.calibration else None
        if self.calibration and self.cut and self.alone:
            expected = self.calibration.expected(self.cut.beta)._asdict()
            facts["cut"], facts["cut_reason"] = self.cut.beta, self.cut.reason
            facts["expected"] = {name: round(v, 6) if np.isfinite(v) else None for name, v in expected.items()}
        return facts

    def table_columns(self, rows: slice, ok: Mask, probability: Float32) -> dict[str, Any]:
        """Make column `neighbourhood`; `clean_probability` if `weight` > 0 or `alone`; `clean` if `alone`.

        `probability` is P(clean) by the cosine alone; pairs without neighbours keep it.
        """
        agreement = np.where(ok, self.agreement[rows], np.nan)
        columns: dict[str, Any] = {"neighbourhood": agreement}
        if self.calibration and (self.alone or self.weight):
            learned = self.calibration.clean_probability(self.score[rows])
            columns["clean_probability"] = np.where(np.isnan(agreement), probability, learned)
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
    """Score all pairs by their `k` nearest images (`graph`) and texts (`text_graph`, None if no text could be embedded).

    `similarity` (N,) are the cosines if both sides share a space, NaN for failed pairs; without them, and with `decides`,
    the agreement decides which pairs are clean. The calibration is learned as for cosines, from pairs mismatched on purpose
    and judged by the same neighbours. Raises ConfigError if there are pictures but no texts.
    """
    left, right = as_rows(images), as_rows(texts)
    pictures, captions = _has_embedding(left), _has_embedding(right)
    if text_graph is None or (pictures.any() and not captions.any()):
        raise ConfigError("neighbourhood: no sample has a text embedding; leave it out", "neighbourhood", True)
    near_images, near_texts = graph.indices[:, :k], text_graph.indices[:, :k]
    valid = pictures & captions
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(np.flatnonzero(valid))[:MISMATCHED]
    some_left, some_right = (taken[place] for taken, place in (gather(rows, chosen) for rows in (left, right)))
    first, second = mismatch_pairs(some_left, some_right, rng, rounds=1)
    picture, caption = chosen[first], chosen[second]
    text_side, image_side, every = Side.of(right), Side.of(left), np.arange(len(left))
    given = average_sides(text_side.agreement(every, near_images), image_side.agreement(every, near_texts))
    given[~valid] = np.nan
    # leave out the original pair of a mismatched pair's caption, or picture
    wrong = average_sides(
        text_side.agreement(caption, _remove_rows(near_images[picture], caption)),
        image_side.agreement(picture, _remove_rows(near_texts[caption], picture)),
    )
    if similarity is None or not len(wrong):
        return _calibrate(given, given, wrong, k, 0.0, alone=similarity is None and decides, seed=seed)
    cosine_wrong = paired_cosines(some_left, some_right, first, second)
    centre, spread = float(cosine_wrong.mean()), max(float(cosine_wrong.std()), 1e-9)
    first_given, first_wrong = (similarity - centre) / spread, (cosine_wrong - centre) / spread
    weight = _learn_weight(np.stack([first_given, given], axis=1), np.stack([first_wrong, wrong], axis=1), rng)
    both = first_given + weight * given, first_wrong + weight * wrong
    return _calibrate(given, *both, k, weight, alone=False, seed=seed)


def _has_embedding(rows: Rows) -> Mask:
    """Return which rows are not zeros, (N,)."""
    return np.concatenate([np.zeros(0, np.bool_), *(block.any(axis=1) for _, block in rows.chunks(ROWS_READ))])


def _remove_rows(lists: Integers, rows: Index) -> Integers:
    """Remove rows[i] from neighbour list i of (M, k)."""
    return np.where(lists == rows[:, None], -1, lists)


def _calibrate(
    agreement: Float32, score: Floats, wrong: Floats, k: int, weight: float, *, alone: bool, seed: int
) -> NeighbourhoodScores:
    enough = min(np.isfinite(score).sum(), np.isfinite(wrong).sum()) >= MIN_PAIRS
    calibration = calibrate_pairs(score, wrong, seed) if enough else None
    # even_if_clean: mean + 2 sd would drop most pairs of clean data, because agreement separates less than cosines
    cut = intersection(score, wrong, seed, calibration, even_if_clean=True) if enough else None
    return NeighbourhoodScores(agreement, score.astype(np.float32), k, weight, calibration, cut, alone)


def _learn_weight(given: Floats, wrong: Floats, rng: np.random.Generator) -> float:
    """Learn the weight of the agreement (column 1) relative to the cosine (column 0) to separate given from mismatched pairs.

    0 unless the agreement lowers the held-out log-loss by more than two standard errors; at most LARGEST_WEIGHT.
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
    return float(agreement / max(cosine, agreement / LARGEST_WEIGHT)) if agreement > 0 else 0.0
