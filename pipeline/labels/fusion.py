"""Fuse neighbours, probe and anchors into one probability per label, each weighted by how well it predicts this data.

1. Pool the sources log-linearly, log π(c | x) = Σ_s w_s log p_s(c | x) + b_c + const, w_s >= 0, with the weights and
   biases under which the *given* labels are likeliest. No source has seen the label it is judged by, so a useless one
   earns weight 0 without any truth.
2. Estimate how labels go wrong, T[c, y] = P(given y | true c), by confident joint (Northcutt et al. 2021, "Confident
   learning", Eq. 1-3) of the pool with the given labels.
3. Fit the pool again so that Σ_c π(c | x) T[c, y] explains the given labels: now π predicts the true class. Sources
   that learned from given labels vote a second time, through T (`pool.readings`). Where noise is shown,
   steps 2 and 3 are done twice more with this better pool.
4. Weigh prediction against label: P(true c | x, given y) ∝ π(c | x) T[c, y]. Its value at y is the label's quality, its
   maximum the repaired label.

Confident joint takes wrong predictions for wrong labels, the more so the weaker the embeddings. So T is believed, and
labels are repaired, only where `repair` finds noise shown; a mere hint of it is believed in part,
T' = λ T + (1 - λ) I, and repairs nothing. Else every label stands.

Even then no label is changed where nothing tells which of two names is the right one (`repair`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.pairs.calibration import Expected
from noisegate.pipeline.system.array_types import Float32, Float64, Index, Mask

from .pool import Pool, confident_joint, fit_pool, given_true, log_votes, readings, transition_matrix
from .repair import gather_evidence, repair_labels, withheld_changes

Posterior: TypeAlias = Callable[[Index], NDArray[Any]]
"""Function of ascending row numbers that returns (R, C) posteriors, so that (N, C) need not be in memory."""

ENTRIES = 10_000_000  # of all sources together that are looked at in one go
BELIEFS = (0.1, 0.25, 0.5, 0.75, 1.0)  # values tried for λ
AGAIN = 2  # times T is estimated anew, from predictions of the true class, where noise is shown
MODEL = 0.15  # relative error allowed at both ends of the noise rate, beyond chance

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fused:
    """Columns (N,), with nan, False and -1 for rows that cannot be judged; and what was learned about the whole run."""

    label_quality: Float32  # ranks labels, P(true = given) if all disagreement were noise
    clean_probability: Float32  # P(true = given), with noise believed as far as the labels bear it out
    clean: Mask  # clean_probability >= 1/2
    refined_label: NDArray[
        np.int32
    ]  # likeliest true class, the given one unless `repairs`; without a label the prediction
    refined_confidence: Float32
    noise_rate: float  # mean of 1 - clean_probability
    noise_interval: tuple[float, float]  # from what the assured rows show to what confident joint claims, 95 % each
    weights: dict[str, float]  # of the sources
    expected: Expected  # precision and recall of `clean`, if clean_probability is right
    repairs: bool  # whether noise is shown surely enough to change labels
    ece: float  # of the predicted probability of the given label; needs no truth, does not measure T

    def facts(self) -> dict[str, Any]:
        """What a table records about these columns, in plain JSON."""
        expected = {
            name: round(value, 6) if np.isfinite(value) else None for name, value in self.expected._asdict().items()
        }
        return {
            "noise_rate": round(self.noise_rate, 6),
            "noise_interval": [round(end, 6) for end in self.noise_interval],
            "source_weights": {name: round(weight, 6) for name, weight in self.weights.items()},
            "expected": expected,
            "repairs": self.repairs,
            "ece": round(self.ece, 6),
        }


def fuse(
    sources: Mapping[str, ArrayLike | Posterior],
    labels: ArrayLike,
    classes: int,
    *,
    label_free: Collection[str] = (),
    seed: int = 0,
    entries: int = ENTRIES,
) -> Fused:
    """Fuse posteriors (N, C) of the given label, none of which may have seen that row's own label, or functions of rows.

    label_free: the sources that learned from no label at all, such as text anchors, and so predict the true class.
    labels: (N,), anything outside 0..classes-1 is no label. A row of a source that is not finite or sums to 0 abstains.
    A class that no label names is never the repaired one. At most `entries` numbers are held at a time: the fit samples
    rows with `seed` where there are more, and scoring goes in chunks. The noise rate cannot see label errors that the
    sources make as well: noise that follows the embeddings in every detail passes as clean. A change that is withheld
    leaves the label, but `clean_probability` and the noise rate still count it as wrong.

    >>> rng = np.random.default_rng(0)
    >>> truth = rng.integers(0, 3, 900)
    >>> given = np.where(rng.random(900) < 0.2, (truth + 1) % 3, truth)
    >>> soft = lambda: np.eye(3)[truth] * 3 + rng.random((900, 3))
    >>> fused = fuse({"neighbours": soft(), "probe": soft(), "chance": rng.random((900, 3))}, given, classes=3)
    >>> bool((fused.refined_label == truth).mean() > 0.99), round(fused.noise_rate, 1), fused.weights["chance"] < 0.1
    (True, 0.2, True)
    """
    given, names = np.asarray(labels), list(sources)
    if not names:
        raise ConfigError(
            "sources is empty; give at least one (N, C) array, such as visual_consistency(...)", "sources"
        )
    if given.ndim != 1:
        raise ConfigError(f"labels has shape {given.shape}; give (N,)", "labels", given.shape)
    if given.size and given.dtype.kind not in "iu":
        raise ConfigError(f"labels is {given.dtype}; give class numbers, -1 for none", "labels", str(given.dtype))
    posteriors = [_rows_function(sources[name], name, len(given), classes) for name in names]
    known = np.flatnonzero((given >= 0) & (given < classes))
    present, y = np.unique(given[known], return_inverse=True)
    if len(present) < 2:
        return _unanimous(names, given, known)
    rng = np.random.default_rng(seed)
    rows = max(1, entries // (2 * len(names) * len(present)))
    fit_rows = _sample(len(known), rows, rng)
    votes = np.stack([log_votes(of(known[fit_rows]), present) for of in posteriors])
    learned = _learn(votes, y[fit_rows], [place for place, name in enumerate(names) if name not in label_free])
    if not learned.repairs:
        log.info("labels: noise is not shown surely enough to change labels, so every given label stands")
    elif learned.withheld.any():
        open_names = int(learned.withheld.any(axis=1).sum())
        log.info("labels: in %d classes some stand, because nothing tells which of two names is right", open_names)
    return _score(learned, posteriors, names, given, known, present, y, step=max(1, rows // 4))


class _Learned(NamedTuple):
    noisy: Pool  # all disagreement is noise
    believed: Pool  # as much of it as the labels bear out
    taught: list[int]  # places of the sources that learned from given labels
    transition: Float64  # T
    repairs: bool
    withheld: Mask  # (C, C) changes [from, to] that are not made
    lowest: float
    highest: float

    def votes(self, plain: Float64) -> Float64:
        """What the pools take, from log votes (S, n, C)."""
        return readings(plain, self.taught, self.transition)

    def counts(self) -> Float64:
        """(S,) weight of each source, its second vote included."""
        total = self.noisy.weights[: len(self.noisy.weights) - len(self.taught)].copy()
        total[self.taught] += self.noisy.weights[len(total) :]
        return total


def _learn(plain: Float64, y: Index, taught: list[int]) -> _Learned:
    """Steps 1 to 3 on log votes (S, n, C) and labels (n,)."""
    rows, same = len(y), np.eye(plain.shape[2])
    joint = confident_joint(fit_pool(plain, y, same).predict(plain), y)
    claimed, transition = float(1 - np.trace(joint) / joint.sum()), transition_matrix(joint)
    votes = readings(plain, taught, transition)
    pools, latest = {}, fit_pool(votes, y, same)
    blind = latest
    for belief in BELIEFS:
        pools[belief] = latest = fit_pool(votes, y, belief * transition + (1 - belief) * same, latest)
    noisy = pools[1.0]
    evidence = gather_evidence(claimed, blind, pools, votes, y)
    believed = pools.get(evidence.belief, blind)
    sharp = confident_joint(noisy.predict(votes), y)
    for _ in range(AGAIN if evidence.shown else 0):
        transition = transition_matrix(sharp)
        votes = readings(plain, taught, transition)
        believed = noisy = fit_pool(votes, y, transition, noisy)
        sharp = confident_joint(noisy.predict(votes), y)
    untaught = [place for place in range(len(plain)) if place not in taught]
    repaired = given_true(believed.predict(votes), y, believed.transition).argmax(axis=1)
    most = max(claimed, float(1 - np.trace(sharp) / sharp.sum()))
    least, error = evidence.least, float(np.sqrt(evidence.least * (1 - evidence.least) / evidence.assured))
    return _Learned(
        noisy,
        believed,
        taught,
        transition,
        evidence.shown,
        withheld_changes(plain[untaught], y, repaired),
        lowest=evidence.belief * ((1 - MODEL) * least - 1.96 * error),
        highest=(1 + MODEL) * most + 1.96 * float(np.sqrt(most * (1 - most) / rows)) + 3 / rows,
    )


def _score(
    learned: _Learned,
    posteriors: list[Posterior],
    names: list[str],
    given: NDArray[Any],
    known: Index,
    present: NDArray[Any],
    y: Index,
    step: int,
) -> Fused:
    """Step 4 for every row, `step` rows at a time."""
    total = len(given)
    quality, clean, confidence = (np.full(total, np.nan, dtype=np.float32) for _ in range(3))
    place = np.full(total, -1)
    place[known] = y
    refined = np.full(total, -1, dtype=np.int32)
    refined[known] = given[known]
    reliability = np.zeros((2, 10))
    for start in range(0, total, step):
        rows = np.arange(start, min(start + step, total))
        plain = np.stack([log_votes(of(rows), present) for of in posteriors])
        rows = rows[plain.any(axis=(0, 2))]  # leave out rows on which every source abstains
        votes = learned.votes(plain[:, rows - start])
        prediction = learned.believed.predict(votes)
        refined[rows], confidence[rows] = present[prediction.argmax(axis=1)], prediction.max(axis=1)
        has_label = place[rows] >= 0
        rows, votes, prediction = rows[has_label], votes[:, has_label], prediction[has_label]
        label = place[rows]
        at = np.arange(len(rows)), label
        quality[rows] = given_true(learned.noisy.predict(votes), label, learned.noisy.transition)[at]
        true = given_true(prediction, label, learned.believed.transition)
        clean[rows] = true[at]
        best = repair_labels(true, label, learned.withheld) if learned.repairs else label
        refined[rows], confidence[rows] = present[best], true[np.arange(len(rows)), best]
        reliability += _reliability(prediction @ learned.believed.transition, label)
    scored = clean[np.isfinite(clean)].astype(np.float64)
    rate = float(1 - scored.mean()) if len(scored) else 0.0
    error = 1.96 * float(np.sqrt(rate * (1 - rate) / max(len(scored), 1)))
    return Fused(
        label_quality=quality,
        clean_probability=clean,
        clean=np.nan_to_num(clean, nan=0.0) >= 0.5,
        refined_label=refined,
        refined_confidence=confidence,
        noise_rate=rate,
        noise_interval=(max(0.0, min(learned.lowest, rate - error)), min(1.0, max(learned.highest, rate + error))),
        weights=dict(zip(names, learned.counts().tolist(), strict=True)),
        expected=_expected(scored),
        repairs=learned.repairs,
        ece=float(np.abs(reliability[0] - reliability[1]).sum() / max(len(scored), 1)),
    )


def _reliability(prediction: Float64, label: Index) -> Float64:
    """Per decile of the likeliest label's probability: the probabilities and the hits, summed; (2, 10)."""
    assurance, hit = prediction.max(axis=1, initial=0), prediction.argmax(axis=1) == label
    decile = np.minimum((assurance * 10).astype(int), 9)
    return np.stack([np.bincount(decile, assurance, 10), np.bincount(decile, hit.astype(np.float64), 10)])


def _expected(clean: Float64) -> Expected:
    """What P(clean) (n,) promises for the rows at 1/2 and above."""
    kept = clean >= 0.5
    share = kept.mean() if len(clean) else 1.0

    def ratio(part: float, whole: float) -> float:
        return float(part / whole) if whole > 1e-9 else float("nan")

    return Expected(
        kept=float(share),
        clean_precision=ratio(clean[kept].sum(), kept.sum()),
        clean_recall=ratio(clean[kept].sum(), clean.sum()),
        noise_precision=ratio((1 - clean[~kept]).sum(), (~kept).sum()),
        noise_recall=ratio((1 - clean[~kept]).sum(), (1 - clean).sum()),
    )


def _unanimous(names: list[str], given: NDArray[Any], known: Index) -> Fused:
    """Result for labels of fewer than two classes: every label stands."""
    sure = np.full(len(given), np.nan, dtype=np.float32)
    sure[known] = 1
    refined = np.full(len(given), -1, dtype=np.int32)
    refined[known] = given[known]
    weights, expected = dict.fromkeys(names, 0.0), _expected(np.ones(len(known)))
    return Fused(
        sure, sure.copy(), np.isfinite(sure), refined, sure.copy(), 0.0, (0.0, 1.0), weights, expected, False, 0.0
    )


def _sample(rows: int, most: int, rng: np.random.Generator) -> Index:
    return np.arange(rows) if rows <= most else np.sort(rng.choice(rows, max(most, 1), replace=False))


def _rows_function(source: ArrayLike | Posterior, name: str, rows: int, classes: int) -> Posterior:
    """Return a source, given as an (N, C) array or as a function of row numbers, as such a function."""
    if callable(source):
        return source
    posterior = np.asarray(source)
    if posterior.shape != (rows, classes):
        raise ConfigError(
            f"source {name} has shape {posterior.shape}; give {rows, classes}", "sources", posterior.shape
        )
    return posterior.__getitem__
