"""One opinion on every label from several: neighbours, probe, anchors, each weighted by how well it does on this data.

1. Pool the sources log-linearly, log π(c | x) = Σ_s w_s log p_s(c | x) + b_c + const, w_s >= 0, with the weights and
   biases under which the *given* labels are likeliest. No source has seen the label it is judged by, so a useless one
   earns weight 0 without any truth.
2. Estimate how labels go wrong, T[c, y] = P(given y | true c), by confident joint (Northcutt et al. 2021, "Confident
   learning", Eq. 1-3) of the pool with the given labels.
3. Fit the pool again so that Σ_c π(c | x) T[c, y] explains the given labels: now π speaks of the true class.
4. Weigh prediction against label: P(true c | x, given y) ∝ π(c | x) T[c, y]. Its value at y is the label's quality, its
   maximum the repaired label.

Confident joint takes wrong predictions for wrong labels, the more so the weaker the embeddings. T is therefore believed
only in part, T' = λ T + (1 - λ) I, as far as the given labels bear it out: because noise makes them likelier than no
noise does, or because predictions that are hardly ever wrong disagree with their labels as often as the rest. Clean
data keeps every label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize

from pipeline.calibration import Expected
from pipeline.errors import ConfigError

__all__ = ["Fused", "confident_joint", "fuse"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

ENTRIES = 10_000_000  # of all sources together that are looked at in one go
FLOOR = 0.01  # share of a uniform vote mixed into every source, because a vote share of 0 is no certainty
BELIEFS = (0.25, 0.5, 0.75, 1.0)  # values tried for λ
TELLING = 0.01  # gain in log-likelihood, relative to the loss without noise, that counts in full; half of it not at all
ASSURED = 0.1  # of every class: the rows whose predictions are hardly ever wrong
MODEL = 0.15  # relative error allowed at both ends of the noise rate, beyond chance
SHOWN = 0.1  # of the noise that T claims: if the assured rows do not surely show this much, T is believed less


@dataclass(frozen=True)
class Fused:
    """Per sample (N,): nan, False and -1 where there is nothing to say; and what was learned on the way."""

    label_quality: NDArray[np.float32]  # ranks labels, P(true = given) if all disagreement were noise
    clean_probability: NDArray[np.float32]  # P(true = given), with noise believed as far as the labels bear it out
    clean: NDArray[np.bool_]  # clean_probability >= 1/2
    refined_label: NDArray[np.int32]  # likeliest true class; for rows without a label the prediction
    refined_confidence: NDArray[np.float32]
    noise_rate: float  # mean of 1 - clean_probability
    noise_interval: tuple[float, float]  # from what the assured rows show to what confident joint claims, 95 % each
    weights: dict[str, float]  # of the sources
    expected: Expected  # precision and recall of `clean`, if clean_probability is right
    ece: float  # of the predicted probability of the given label; needs no truth, says nothing about T

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
            "ece": round(self.ece, 6),
        }


def fuse(
    sources: Mapping[str, ArrayLike], labels: ArrayLike, classes: int, *, seed: int = 0, entries: int = ENTRIES
) -> Fused:
    """Fuse posteriors (N, C) of the given label, none of which may have seen that row's own label.

    labels: (N,), anything outside 0..classes-1 is no label. A row of a source that is not finite or sums to 0 abstains.
    A class that no label names is never the repaired one. At most `entries` numbers are held at a time: the fit samples
    rows with `seed` where there are more, and scoring goes in chunks. The noise rate cannot see label errors that the
    sources make as well: noise that follows the embeddings in every detail passes as clean.

    >>> rng = np.random.default_rng(0)
    >>> truth = rng.integers(0, 3, 900)
    >>> given = np.where(rng.random(900) < 0.3, (truth + 1) % 3, truth)
    >>> soft = lambda: np.eye(3)[truth] * 3 + rng.random((900, 3))
    >>> fused = fuse({"neighbours": soft(), "probe": soft(), "chance": rng.random((900, 3))}, given, classes=3)
    >>> bool((fused.refined_label == truth).mean() > 0.99), round(fused.noise_rate, 1), fused.weights["chance"] < 0.1
    (True, 0.3, True)
    """
    given, names = np.asarray(labels), list(sources)
    posteriors = [np.asarray(sources[name]) for name in names]
    _check(posteriors, names, given, classes)
    known = np.flatnonzero((given >= 0) & (given < classes))
    present, y = np.unique(given[known], return_inverse=True)
    if len(present) < 2:
        return _unanimous(names, given, known)
    rng = np.random.default_rng(seed)
    rows = max(1, entries // (len(names) * len(present)))
    fit_rows = _sample(len(known), rows, rng)
    logs = np.stack([_log_votes(p, known[fit_rows], present) for p in posteriors])
    learned = _learn(logs, y[fit_rows])
    return _score(learned, posteriors, names, given, known, present, y, step=max(1, rows // 4))


def confident_joint(probability: Array, labels: Index) -> Array:
    """(C, C) counts of (given y, true c), rows scaled to the number of labels y (Northcutt et al. 2021, Eq. 1-2).

    A row counts for the likeliest class whose probability reaches the mean that class has among its own labels; rows
    that reach none do not count.

    >>> confident_joint(np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.1, 0.9]]), np.array([0, 0, 0, 1]))
    array([[2., 1.],
           [0., 1.]])
    """
    classes = probability.shape[1]
    sizes = np.bincount(labels, minlength=classes)
    own = np.bincount(labels, probability[np.arange(len(labels)), labels], classes)
    threshold = np.where(sizes > 0, own / np.maximum(sizes, 1), np.inf)
    reached = np.where(probability >= threshold - 1e-6, probability, -1.0)
    likeliest, counts = reached.argmax(axis=1), reached.max(axis=1) >= 0
    joint = np.bincount(labels[counts] * classes + likeliest[counts], minlength=classes**2).astype(np.float64)
    joint = joint.reshape(classes, classes)
    empty = joint.sum(axis=1) == 0
    joint[empty, empty] = 1
    return np.asarray(joint / joint.sum(axis=1, keepdims=True) * sizes[:, None])


class _Pool(NamedTuple):
    """π through (weights, bias), and the transition under which it was fitted."""

    weights: Array  # (S,)
    bias: Array  # (C,)
    transition: Array  # (C, C)
    loss: float  # mean negative log-likelihood of the given labels

    def predict(self, logs: Array) -> Array:
        """π (n, C) of the log votes (S, n, C)."""
        logits = np.tensordot(self.weights, logs, axes=1) + self.bias
        prediction = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        return np.asarray(prediction / prediction.sum(axis=1, keepdims=True))


class _Learned(NamedTuple):
    noisy: _Pool  # all disagreement is noise
    believed: _Pool  # as much of it as the labels bear out
    lowest: float
    highest: float


def _learn(logs: Array, y: Index) -> _Learned:
    """Steps 1 to 3 on log votes (S, n, C) and labels (n,)."""
    rows, same = len(y), np.eye(logs.shape[2])
    blind = _fit_pool(logs, y, same)
    joint = confident_joint(blind.predict(logs), y)
    claimed = float(1 - np.trace(joint) / joint.sum())
    transition = _transition(joint, claimed)
    pools, latest = {}, blind
    for belief in BELIEFS:
        pools[belief] = latest = _fit_pool(logs, y, belief * transition + (1 - belief) * same, latest)
    noisy = pools[max(BELIEFS)]
    prediction = noisy.predict(logs)
    least, assured = _assured_disagreement(prediction, y)
    gains = {belief: blind.loss - pool.loss for belief, pool in pools.items()}
    surely = max(least - 1.64 * np.sqrt(least / assured), 0.0)
    belief = max(_likely_belief(gains, blind.loss, rows), _even_belief(least, claimed, blind.loss, y))
    belief *= min(1.0, surely / max(SHOWN * claimed, 1e-12))
    believed = _fit_pool(logs, y, belief * transition + (1 - belief) * same, blind)
    sharp = confident_joint(prediction, y)
    most = max(claimed, float(1 - np.trace(sharp) / sharp.sum()))
    return _Learned(
        noisy,
        believed,
        lowest=belief * ((1 - MODEL) * least - 1.96 * float(np.sqrt(least * (1 - least) / assured))),
        highest=(1 + MODEL) * most + 1.96 * float(np.sqrt(most * (1 - most) / rows)) + 3 / rows,
    )


def _likely_belief(gains: Mapping[float, float], loss: float, rows: int) -> float:
    """The largest λ with half the best gain in log-likelihood per row, less where that gain is slight."""
    best = max(gains.values())
    if best <= 0:
        return 0.0
    telling = (best - np.log(rows) / (2 * rows)) / (TELLING * max(loss, 1e-9))
    return max(belief for belief, gain in gains.items() if gain >= best / 2) * float(np.clip(2 * telling - 1, 0, 1))


def _even_belief(least: float, claimed: float, loss: float, y: Index) -> float:
    """1 where assured predictions disagree with their labels as often as all do: errors of prediction would not.

    That is how pairwise noise is found, which sources reproduce so well that no gain in likelihood shows it. It says
    nothing where the sources know nothing, or where more labels are wrong than right.
    """
    share = np.bincount(y) / len(y)
    known = 1 + loss / float(share @ np.log(np.maximum(share, 1e-12)))  # share of the labels' entropy that is explained
    if claimed <= 0 or claimed >= 0.5:
        return 0.0
    return float(np.clip(5 * (least / claimed - 0.7), 0, 1) * np.clip((known - 0.04) / 0.04, 0, 1))


def _fit_pool(logs: Array, y: Index, transition: Array, near: _Pool | None = None) -> _Pool:
    """Weights and biases that make the given labels likeliest, with a faint pull to no opinion at all."""
    sources, rows, classes = logs.shape
    reach = transition[:, y].T

    def loss(theta: Array) -> tuple[float, Array]:
        prediction = _Pool(theta[:sources], theta[sources:], transition, 0.0).predict(logs)
        joint = prediction * reach
        likelihood = np.maximum(joint.sum(axis=1), 1e-300)
        excess = prediction - joint / likelihood[:, None]
        slope = np.concatenate([np.tensordot(logs, excess, axes=([1, 2], [0, 1])), excess.sum(axis=0)])
        return float(-np.log(likelihood).sum() + theta @ theta / 2) / rows, (slope + theta) / rows

    start = np.concatenate([np.full(sources, 1 / sources), np.zeros(classes)])
    if near is not None:
        start = np.concatenate([near.weights, near.bias])
    bounds = [(0.0, None)] * sources + [(None, None)] * classes
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 100, "ftol": 1e-7})
    return _Pool(np.asarray(found.x[:sources]), np.asarray(found.x[sources:]), transition, float(found.fun))


def _transition(joint: Array, claimed: float) -> Array:
    """T[c, y], drawn towards the overall rate and an even spread by as much as five rows would."""
    classes = len(joint)
    even = np.full((classes, classes), claimed / (classes - 1))
    np.fill_diagonal(even, 1 - claimed)
    counts = joint.T + 5 * (0.999 * even + 0.001 / classes)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def _assured_disagreement(prediction: Array, y: Index) -> tuple[float, int]:
    """Share of labels that differ from the class among the rows most surely of it, and how many rows that were."""
    wrong, rows = 0.0, 0
    sizes = np.bincount(y, minlength=prediction.shape[1])
    for label, size in enumerate(sizes):
        top = min(max(int(ASSURED * size), 1), len(y) - 1)
        chosen = np.argpartition(-prediction[:, label], top)[:top]
        wrong += np.mean(y[chosen] != label) * size
        rows += top
    return float(wrong / len(y)), rows


def _score(
    learned: _Learned,
    posteriors: list[NDArray[Any]],
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
        logs = np.stack([_log_votes(p, rows, present) for p in posteriors])
        rows = rows[(np.ptp(logs, axis=2) > 0).any(axis=0)]  # where every source abstains there is nothing to say
        logs = logs[:, rows - start]
        prediction = learned.believed.predict(logs)
        refined[rows], confidence[rows] = present[prediction.argmax(axis=1)], prediction.max(axis=1)
        has_label = place[rows] >= 0
        rows, logs, prediction = rows[has_label], logs[:, has_label], prediction[has_label]
        label = place[rows]
        at = np.arange(len(rows)), label
        quality[rows] = _given_true(learned.noisy.predict(logs), label, learned.noisy.transition)[at]
        true = _given_true(prediction, label, learned.believed.transition)
        clean[rows] = true[at]
        best = np.where(true[at] >= true.max(axis=1, initial=0), label, true.argmax(axis=1))
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
        weights=dict(zip(names, learned.noisy.weights.tolist(), strict=True)),
        expected=_expected(scored),
        ece=float(np.abs(reliability[0] - reliability[1]).sum() / max(len(scored), 1)),
    )


def _given_true(prediction: Array, label: Index, transition: Array) -> Array:
    """P(true c | x, given y) ∝ π(c | x) T[c, y], (n, C)."""
    joint = prediction * transition[:, label].T
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))


def _reliability(prediction: Array, label: Index) -> Array:
    """Per decile of the likeliest label's probability: the probabilities and the hits, summed; (2, 10)."""
    assurance, hit = prediction.max(axis=1, initial=0), prediction.argmax(axis=1) == label
    decile = np.minimum((assurance * 10).astype(int), 9)
    return np.stack([np.bincount(decile, assurance, 10), np.bincount(decile, hit.astype(np.float64), 10)])


def _expected(clean: Array) -> Expected:
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
    """One class or none among the labels: nothing can be told apart, and every label stands."""
    sure = np.full(len(given), np.nan, dtype=np.float32)
    sure[known] = 1
    refined = np.full(len(given), -1, dtype=np.int32)
    refined[known] = given[known]
    weights = dict.fromkeys(names, 0.0)
    rate, expected = 0.0, _expected(np.ones(len(known)))
    return Fused(sure, sure.copy(), np.isfinite(sure), refined, sure.copy(), rate, (0.0, 1.0), weights, expected, 0.0)


def _log_votes(posterior: NDArray[Any], rows: Index, present: NDArray[Any]) -> Array:
    """Logarithms of a source's votes for the present classes, (n, C); 0 everywhere for a row that abstains."""
    votes = np.maximum(np.asarray(posterior[rows][:, present], dtype=np.float64), 0)
    total = votes.sum(axis=1, keepdims=True)
    says = np.isfinite(total) & (total > 0)
    share = np.where(says, votes, 1) / np.where(says, total, len(present))
    logs = np.log((1 - FLOOR) * share + FLOOR / len(present))
    return np.asarray(np.where(says, logs, 0.0))


def _sample(rows: int, most: int, rng: np.random.Generator) -> Index:
    return np.arange(rows) if rows <= most else np.sort(rng.choice(rows, max(most, 1), replace=False))


def _check(posteriors: list[NDArray[Any]], names: list[str], given: NDArray[Any], classes: int) -> None:
    if not names:
        raise ConfigError("fuse: sources is empty; give at least one (N, C) posterior, such as visual_consistency(...)")
    if given.ndim != 1:
        raise ConfigError(f"fuse: labels has shape {given.shape}; give (N,)")
    for name, posterior in zip(names, posteriors, strict=True):
        if posterior.shape != (len(given), classes):
            raise ConfigError(f"fuse: source {name} has shape {posterior.shape}; {len(given), classes} is needed")
