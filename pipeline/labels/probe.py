"""Out-of-fold linear probe: a shrunk linear discriminant on the embeddings, which predicts rows it was not trained on.

Class means and one covariance within the classes (Fisher's discriminant, shrunk as by Friedman 1989, "Regularized discriminant
analysis"). Wrong labels shift a class mean only a little, but bend the border of a logistic regression; Lee et al. 2019,
"Robust inference via generative classifiers for handling noisy labels", use it for the same reason. It has a closed form: one
pass over the rows, and one eigendecomposition per fold for all shrinkages.

Rows may be on disk. If they have at most `TRAINED` numbers, all are held in memory for training, else a sample of the labelled
rows; the other rows are read a few at a time for prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.rows import Embeddings, Rows, as_rows
from noisegate.pipeline.system.array_types import Float32, Index, Mask

STRENGTHS = (0.03, 0.1, 0.3, 0.5, 0.7, 0.9)  # tried shares of the identity in the covariance
LEAST_VARIANCE = 1e-3  # of a direction within a class, where features have a mean square of 1
LOG_SHARPNESS = (-5.0, 2.0)  # range of the logarithm of the factor that calibrates the scores
JUDGED = 2**22  # numbers (rows x classes) that shrinkage and sharpness are chosen with, of 2,000 rows at least
TRAINED = 2**29  # most numbers to train on: a million rows of 512; two copies are in memory for a moment
READ = 2**24  # numbers read at a time


def probe_probabilities(
    embeddings: Embeddings,
    labels: ArrayLike,
    classes: int,
    folds: int = 5,
    seed: int = 0,
    device: str = "cpu",
    strengths: tuple[float, ...] = STRENGTHS,
) -> Float32:
    """P(given label | embedding) from probes that were not trained on the row: (N, d), (N,) -> (N, classes) float32.

    The probe of `fit_probe`, applied to every row.

    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat([0, 1], 50)
    >>> embeddings = rng.normal(size=(100, 8)) + 3 * np.eye(8)[labels]
    >>> probability = probe_probabilities(embeddings, labels, classes=2)
    >>> probability.shape, bool((probability.argmax(axis=1) == labels).mean() > 0.9)
    ((100, 2), True)
    """
    probe = fit_probe(embeddings, labels, classes, folds, seed, device, strengths)
    return probe(np.arange(len(probe.rows)))


def fit_probe(
    embeddings: Embeddings,
    labels: ArrayLike,
    classes: int,
    folds: int = 5,
    seed: int = 0,
    device: str = "cpu",
    strengths: tuple[float, ...] = STRENGTHS,
    most: int = TRAINED,
) -> Probe:
    """Fit one probe for each fold of the rows.

    Works on unit-length, centred rows scaled to mean square 1 per dimension, over stratified folds. The covariance is
    (1 - s) S + s tr(S)/d I; s is the value in `strengths` with the least held-out loss, and all scores are multiplied by the
    number with which that loss is least. A row's own label can influence its prediction only through these two numbers. Rows
    whose label is outside 0..classes-1 are not trained on. Where the rows have more than `most` numbers, a sample of the
    labelled rows of that size is trained on.
    """
    rows, given = as_rows(embeddings), np.asarray(labels)
    if given.shape != (len(rows),):
        raise ConfigError(
            f"embeddings {len(rows), rows.width} and labels {given.shape} do not fit; give (N, d) and (N,)",
            "labels",
            given.shape,
        )
    if given.size and given.dtype.kind not in "iu":
        raise ConfigError(f"labels is {given.dtype}; give class numbers, -1 for none", "labels", str(given.dtype))
    if folds < 2:
        raise ConfigError(f"folds={folds}: at least 2 are needed; use 5", "folds", folds)
    if not strengths or not 0 < min(strengths) <= max(strengths) <= 1:
        raise ConfigError(
            f"strengths={strengths}: give shares above 0, at most 1; use {STRENGTHS}", "strengths", strengths
        )
    rng, place = np.random.default_rng(seed), torch.device(device)
    known = (given >= 0) & (given < classes)
    chosen = np.arange(len(rows))
    if len(rows) * rows.width > most:
        chosen = np.flatnonzero(known)
        chosen = np.sort(rng.choice(chosen, min(len(chosen), max(folds, most // rows.width)), replace=False))
    x, valid = _unit(rows, chosen, place)
    chosen = chosen[valid]
    mean, scale = x.new_zeros(rows.width), x.new_ones(())
    if len(x):
        mean = x.mean(dim=0)
        x -= mean
        scale = 1 / x.square().mean().sqrt().clamp_min(1e-12)
        x *= scale
    y = np.where(known, given, -1)[chosen].astype(np.int64)
    present, fold, weights = np.unique(y[y >= 0]), np.full(len(rows), -1, np.min_scalar_type(-folds)), None
    if len(present) > 1:
        fold[chosen] = _stratified_folds(y, folds, rng)
        weights = _solve(
            x, torch.from_numpy(np.searchsorted(present, y)), torch.from_numpy(fold[chosen]), folds, strengths
        )
    return Probe(rows, classes, present, fold, weights, mean, scale)


@dataclass(frozen=True)
class Probe:
    """Fitted probes of one run; call it with row numbers to predict these rows."""

    rows: Rows
    classes: int
    present: Index
    """classes that were learned from"""
    fold: NDArray[np.signedinteger[Any]]
    """(N,) the fold that holds a row out, -1 for rows that none was trained on"""
    weights: Tensor | None
    """(F, present classes, d + 1), the bias last; None where there were fewer than two classes"""
    mean: Tensor
    scale: Tensor

    def __call__(self, rows: Index) -> Float32:
        """(R, classes) by the fold that held the row out; the mean over the folds for rows that none was trained on.

        The numbers of the rows must ascend. nan for a row with nan, inf or no length. With a single class that class has
        probability 1, with none all are alike.
        """
        probabilities = np.full((len(rows), self.classes), np.nan, np.float32)
        classes = self.present if len(self.present) else np.arange(self.classes)
        step = max(1, READ // max(1, self.rows.width))
        for start in range(0, len(rows), step):
            x, valid = _unit(self.rows, rows[start : start + step], self.mean.device)
            shares = np.full((len(x), len(classes)), 1 / len(classes), np.float32)
            if self.weights is not None:
                fold = torch.from_numpy(self.fold[rows[start : start + step][valid]]).to(x.device)
                shares = _predict((x - self.mean) * self.scale, fold, self.weights).cpu().numpy()
            wide = np.zeros((len(x), self.classes), np.float32)
            wide[:, classes] = shares
            probabilities[start : start + step][valid] = wide
        return probabilities


def _unit(rows: Rows, numbers: Index, device: torch.device) -> tuple[Tensor, Mask]:
    """The valid ones of the numbered rows at unit length, float32 on the device; and a mask of the valid ones."""
    x, valid = torch.empty(len(numbers), rows.width, device=device), np.zeros(len(numbers), np.bool_)
    filled, step = 0, max(1, READ // max(1, rows.width))
    for start in range(0, len(numbers), step):
        part = torch.from_numpy(rows.take(numbers[start : start + step])).to(device)
        length = torch.linalg.vector_norm(part, dim=1, keepdim=True)
        over = torch.isinf(length[:, 0])  # the squares overflow, the numbers may be finite
        if over.any():
            part = part.clone()
            part[over] /= part[over].abs().amax(dim=1, keepdim=True)
            length[over] = torch.linalg.vector_norm(part[over], dim=1, keepdim=True)
        good = torch.isfinite(length[:, 0]) & (length[:, 0] > 1e-12)
        part = part[good] / length[good]
        x[filled : filled + len(part)] = part
        valid[start : start + step], filled = good.cpu().numpy(), filled + len(part)
    return x[:filled], valid


def _stratified_folds(y: Index, folds: int, rng: np.random.Generator) -> Index:
    """A fold for every labelled row, each class spread evenly; -1 for rows without a label."""
    fold = np.full(len(y), -1, dtype=np.int64)
    first = 0
    for label in np.unique(y[y >= 0]):
        members = rng.permutation(np.flatnonzero(y == label))
        fold[members] = (first + np.arange(len(members))) % folds
        first += len(members)  # the next class continues at the next fold, so that all folds have the same size
    return fold


class _Discriminant(NamedTuple):
    """The discriminant of one fold: class means and the covariance within classes, which is diagonal in `basis`."""

    basis: Tensor  # (d, d)
    variance: Tensor  # (d,)
    means: Tensor  # (C, d), in the basis
    log_prior: Tensor  # (C,)

    def weights(self, strength: float) -> Tensor:
        """(C, d + 1) of linear scores in the basis, the bias last."""
        shrunk = (1 - strength) * self.variance + strength * self.variance.mean()
        slopes = self.means / shrunk.clamp_min(LEAST_VARIANCE)
        bias = self.log_prior - (slopes * self.means).sum(dim=1) / 2
        return torch.cat([slopes, bias[:, None]], dim=1)


def _solve(x: Tensor, y: Tensor, fold: Tensor, folds: int, strengths: tuple[float, ...]) -> Tensor:
    """(F, C, d + 1): the discriminants of all folds at the shrinkage with the least held-out loss, calibrated."""
    parts = _discriminants(x, y, fold, folds)
    classes = len(parts[0].means)
    judged = torch.arange(len(x))[fold >= 0]
    judged = judged[:: max(1, len(judged) // max(2000, JUDGED // classes))]
    scores = torch.empty(len(strengths), len(judged), classes)
    for number, part in enumerate(parts):
        held_out = fold[judged] == number
        rotated = x[judged[held_out].to(x.device)] @ part.basis
        for strength, score in zip(strengths, scores, strict=True):
            weights = part.weights(strength)
            score[held_out] = torch.addmm(weights[:, -1], rotated, weights[:, :-1].T).cpu()
    fits = [_calibrate(score.numpy(), y[judged].numpy()) for score in scores]
    best = min(range(len(fits)), key=lambda number: fits[number].loss)
    weights = torch.stack([part.weights(strengths[best]) for part in parts]) * fits[best].sharpness
    for of_fold, part in zip(weights, parts, strict=True):
        of_fold[:, :-1] = of_fold[:, :-1] @ part.basis.T
    return weights


def _discriminants(x: Tensor, y: Tensor, fold: Tensor, folds: int) -> list[_Discriminant]:
    """Fit one discriminant per fold, from the labelled rows of the other folds."""
    classes, width = int(y.max()) + 1, x.shape[1]
    counts, sums, squares = torch.zeros(folds, classes), torch.zeros(folds, classes, width), []
    for number in range(folds):
        held_out = fold == number
        rows, label = x[held_out.to(x.device)], y[held_out]
        counts[number] = torch.bincount(label, minlength=classes)
        sums[number].index_add_(0, label, rows.cpu())  # on the CPU, where the order of addition is fixed
        squares.append(rows.T @ rows)
    parts = []
    for number in range(folds):
        others = [other for other in range(folds) if other != number]
        size = counts[others].sum(dim=0)
        share = (size / size.sum()).to(x.device)
        means = (sums[others].sum(dim=0) / size.clamp_min(1)[:, None]).to(x.device)
        total = torch.stack([squares[other] for other in others]).sum(dim=0) / float(size.sum())
        variance, basis = torch.linalg.eigh(total - (means.T * share) @ means)
        log_prior = torch.log(size.clamp_min(0.5) / size.sum()).to(x.device)
        parts.append(_Discriminant(basis, variance.clamp_min(0), means @ basis, log_prior))
    return parts


class _Calibration(NamedTuple):
    """The factor with which scores predict labels best, and the mean cross-entropy with it."""

    sharpness: float
    loss: float


def _calibrate(scores: Float32, y: Index) -> _Calibration:
    """Fit the factor of scores (n, C) to labels (n,)."""

    def loss(log_sharpness: float) -> float:
        return float(-log_softmax(scores * np.exp(log_sharpness), axis=1)[np.arange(len(y)), y].mean())

    fit = minimize_scalar(loss, bounds=LOG_SHARPNESS, method="bounded", options={"xatol": 0.02})
    return _Calibration(float(np.exp(fit.x)), float(fit.fun))


def _predict(x: Tensor, fold: Tensor, weights: Tensor) -> Tensor:
    """(n, C): each row by the fold that held it out, rows without one by the mean over the folds."""
    folds, classes, _ = weights.shape
    held_out = fold[:, None] == torch.arange(folds, device=x.device)
    share = torch.where((fold >= 0)[:, None], held_out.float(), 1 / folds)
    flat = weights.view(folds * classes, -1)
    probabilities, rows = x.new_empty(len(x), classes), _rows_per_product(x)
    for part in range(0, len(x), rows):
        logits = torch.addmm(flat[:, -1], x[part : part + rows], flat[:, :-1].T).view(-1, folds, classes)
        probabilities[part : part + rows] = (torch.softmax(logits, dim=2) * share[part : part + rows, :, None]).sum(
            dim=1
        )
    return probabilities


def _rows_per_product(x: Tensor) -> int:
    """Rows per matrix product: on a CPU few enough that the second product finds them in the cache."""
    return 512 if x.device.type == "cpu" else 65536
