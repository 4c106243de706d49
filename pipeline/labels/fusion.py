"""Fuse neighbours, probe and anchors into one opinion on every label, each weighted by how well it predicts this data.

1. Pool the sources log-linearly, log π(c | x) = Σ_s w_s log p_s(c | x) + b_c + const, w_s >= 0. No source has seen the label
   it is judged by, so a useless one earns weight 0 without any truth.
2. Fit the pool together with a model of how labels go wrong, T[c, y] = P(given y | true c), to the given labels (`noise`).
   Then π predicts the true class: its maximum is the predicted label.
3. Weigh prediction against label: P(true c | x, given y) ∝ π(c | x) T[c, y], or y itself if there is no noise, each by its
   chance. The value at y is the chance that the label is right.
4. If noise is shown, change labels where another class is likelier (`repair`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.pairs.calibration import Expected
from noisegate.pipeline.system.array_types import Float32, Float64, Index, Mask
from noisegate.pipeline.system.blas import one_blas_thread

from .noise import NoiseEstimate, estimate_noise
from .pool import log_votes
from .repair import RepairPolicy

Posterior: TypeAlias = Callable[[Index], NDArray[Any]]
"""Function of ascending row numbers that returns (R, C) posteriors, so that (N, C) need not be in memory."""

ENTRIES = 10_000_000  # most numbers of all sources together in memory at once

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fused:
    """Fused columns (N,), with nan, False and -1 for rows that cannot be judged; and facts about the whole run."""

    predicted_label: NDArray[np.int32]  # likeliest class by all sources, apart from the given label
    predicted_confidence: Float32  # its probability
    label_quality: Float32  # P(true = given)
    clean: Mask  # label_quality >= 1/2
    refined_label: NDArray[np.int32]  # the given label, or what it was changed to; without a label the predicted one
    refined_confidence: Float32
    noise_rate: float  # mean of 1 - label_quality
    noise_interval: tuple[float, float]  # 95 %
    noise_model: str  # "simple" or "detailed", see `noise`
    weights: dict[str, float]  # of the sources
    expected: Expected  # precision and recall of `clean`, if label_quality is right
    repair: str  # never, sure or likely
    repairs: bool  # whether noise is shown, so that `sure` may change labels
    changed: int  # labels that were changed
    changed_wrong: float  # how many of these are expected to be wrong
    ece: float  # of the predicted probability of the given label; needs no truth, does not measure T

    def facts(self) -> dict[str, Any]:
        """Return the facts that a table records about these columns, in plain JSON."""
        expected = {
            name: round(value, 6) if np.isfinite(value) else None for name, value in self.expected._asdict().items()
        }
        return {
            "noise_rate": round(self.noise_rate, 6),
            "noise_interval": [round(end, 6) for end in self.noise_interval],
            "noise_model": self.noise_model,
            "source_weights": {name: round(weight, 6) for name, weight in self.weights.items()},
            "expected": expected,
            "repair": self.repair,
            "repairs": self.repairs,
            "changed": self.changed,
            "changed_wrong": round(self.changed_wrong, 2),
            "ece": round(self.ece, 6),
        }


def fuse(
    sources: Mapping[str, ArrayLike | Posterior],
    labels: ArrayLike,
    classes: int,
    *,
    policy: RepairPolicy | None = None,
    seed: int = 0,
    entries: int = ENTRIES,
) -> Fused:
    """Fuse posteriors (N, C) of the given label, none of which may have seen that row's own label, or functions of rows.

    labels: (N,), anything outside 0..classes-1 is no label. A row of a source that is not finite or sums to 0 abstains.
    A class that no label names is never predicted. At most `entries` numbers of the sources are looked at in one go: the fit
    samples rows with `seed` where there are more, and scoring goes in chunks. Matrices of classes by classes come on top,
    about ten: 1.3 GB for 4,000 classes. The noise rate cannot see label errors that the sources make as well: noise that
    follows the embeddings in every detail passes as clean.

    >>> rng = np.random.default_rng(0)
    >>> truth = rng.integers(0, 3, 900)
    >>> given = np.where(rng.random(900) < 0.2, (truth + 1) % 3, truth)
    >>> soft = lambda: np.eye(3)[truth] * 3 + rng.random((900, 3))
    >>> fused = fuse({"neighbours": soft(), "probe": soft(), "chance": rng.random((900, 3))}, given, classes=3)
    >>> bool((fused.refined_label == truth).mean() > 0.99), round(fused.noise_rate, 1), fused.weights["chance"] < 0.1
    (True, 0.2, True)
    """
    given, names, policy = np.asarray(labels), list(sources), policy or RepairPolicy()
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
        return _unanimous(names, given, known, policy)
    rng = np.random.default_rng(seed)
    rows = max(2, entries // (2 * len(names) * len(present)))  # at least one row to fit and one to hold out
    fit_rows = _sample(len(known), rows, rng)
    votes = np.stack([log_votes(of(known[fit_rows]), present) for of in posteriors])
    with one_blas_thread():  # the products are small; one thread is several times faster
        noise = estimate_noise(votes, y[fit_rows], policy, rng)
    if not noise.shown and policy.repair == "sure":
        log.info("labels: noise is not shown, so every given label stands")
    return _score(noise, policy, posteriors, names, given, known, present, y, step=max(1, rows // 4))


def _score(
    noise: NoiseEstimate,
    policy: RepairPolicy,
    posteriors: list[Posterior],
    names: list[str],
    given: NDArray[Any],
    known: Index,
    present: NDArray[Any],
    y: Index,
    step: int,
) -> Fused:
    """Steps 3 and 4 for every row, `step` rows at a time."""
    total, model = len(given), noise.model
    quality, confidence, refined_confidence = (np.full(total, np.nan, dtype=np.float32) for _ in range(3))
    predicted, refined = (np.full(total, -1, dtype=np.int32) for _ in range(2))
    place = np.full(total, -1)
    place[known] = y
    refined[known] = given[known]
    reliability, changed, changed_wrong = np.zeros((2, 10)), 0, 0.0
    for start in range(0, total, step):
        rows = np.arange(start, min(start + step, total))
        votes = np.stack([log_votes(of(rows), present) for of in posteriors])
        rows = rows[votes.any(axis=(0, 2))]  # leave out rows on which every source abstains
        prediction = model.predict(votes[:, rows - start])
        predicted[rows], confidence[rows] = present[prediction.argmax(axis=1)], prediction.max(axis=1)
        refined[rows], refined_confidence[rows] = predicted[rows], confidence[rows]
        has_label = place[rows] >= 0
        rows, prediction = rows[has_label], prediction[has_label]
        label, at = place[rows], np.arange(len(rows))
        posterior = noise.true_given(prediction, label)
        quality[rows] = posterior[at, label]
        best = policy.repair_labels(posterior, label, noise.shown)
        refined[rows], refined_confidence[rows] = present[best], posterior[at, best]
        changed += int((best != label).sum())
        changed_wrong += float((1 - posterior[at, best])[best != label].sum())
        reliability += _reliability(prediction @ model.transition, label)
    scored = quality[np.isfinite(quality)].astype(np.float64)
    rate = float(1 - scored.mean()) if len(scored) else 0.0
    return Fused(
        predicted_label=predicted,
        predicted_confidence=confidence,
        label_quality=quality,
        clean=np.nan_to_num(quality, nan=0.0) >= 0.5,
        refined_label=refined,
        refined_confidence=refined_confidence,
        noise_rate=rate,
        noise_interval=(min(noise.interval[0], rate), max(noise.interval[1], rate)),
        noise_model=noise.name,
        weights=dict(zip(names, model.weights.tolist(), strict=True)),
        expected=_expected(scored),
        repair=policy.repair,
        repairs=noise.shown,
        changed=changed,
        changed_wrong=changed_wrong,
        ece=float(np.abs(reliability[0] - reliability[1]).sum() / max(len(scored), 1)),
    )


def _reliability(prediction: Float64, label: Index) -> Float64:
    """Sum probabilities and hits per decile of the likeliest label's probability; (2, 10)."""
    assurance, hit = prediction.max(axis=1, initial=0), prediction.argmax(axis=1) == label
    decile = np.minimum((assurance * 10).astype(int), 9)
    return np.stack([np.bincount(decile, assurance, 10), np.bincount(decile, hit.astype(np.float64), 10)])


def _expected(clean: Float64) -> Expected:
    """Compute precision and recall that P(clean) (n,) predicts for keeping the rows at 1/2 and above."""
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


def _unanimous(names: list[str], given: NDArray[Any], known: Index, policy: RepairPolicy) -> Fused:
    """Return the result for labels of fewer than two classes: no label changes."""
    sure = np.full(len(given), np.nan, dtype=np.float32)
    sure[known] = 1
    refined = np.full(len(given), -1, dtype=np.int32)
    refined[known] = given[known]
    return Fused(
        predicted_label=refined.copy(),
        predicted_confidence=sure.copy(),
        label_quality=sure.copy(),
        clean=np.isfinite(sure),
        refined_label=refined,
        refined_confidence=sure,
        noise_rate=0.0,
        noise_interval=(0.0, 1.0),
        noise_model="simple",
        weights=dict.fromkeys(names, 0.0),
        expected=_expected(np.ones(len(known))),
        repair=policy.repair,
        repairs=False,
        changed=0,
        changed_wrong=0.0,
        ece=0.0,
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
