"""Out-of-fold linear probe: multinomial logistic regression on the embeddings, which predicts rows it was not trained on.

All folds are solved together, so that one pass over the embeddings serves every fold, and each L2 strength that is
tried starts from where the one before ended. The solver is L-BFGS in coordinates in which Böhning's bound on the
Hessian, ½ Cov(x) + λ I (Böhning 1992, "Multinomial logistic regression algorithm"), is the identity: a handful of
steps per strength, and a full step from the start never overshoots.

Rows may be on disk. All of them are held to train on where they have at most `TRAINED` numbers together, else a sample of
the labelled ones; all the others are read a few at a time when they are predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.rows import Embeddings, Rows, as_rows
from noisegate.pipeline.system.array_types import Float32, Index, Mask

STRENGTHS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
ROUGH, FINE = 1e-3, 3e-4  # a step that gains less (nats per row) ends the search for λ, and the fit at the chosen λ
FIRST = 0.3  # first λ to try
MEMORY = 6  # L-BFGS pairs
STEPS = 40  # most L-BFGS steps per λ
TRAINED = 2**29  # numbers of the rows trained on: a million rows of 512; they are in memory twice for a moment
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

    Minimises mean cross-entropy + λ/2 |W|² on unit-length, centred rows scaled to mean square 1 per dimension, over
    stratified folds; λ is the value in `strengths` with the least held-out loss, sought from 0.3 on in the direction in
    which that loss falls. Rows whose label is outside 0..classes-1 are not trained on. Where the rows have more than
    `most` numbers, a sample of the labelled rows of that size is trained on.
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
    if not strengths or min(strengths) <= 0:
        raise ConfigError(f"strengths={strengths}: all must be above 0; use {STRENGTHS}", "strengths", strengths)
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
        over = torch.isinf(length[:, 0])  # of rows whose squares only are too large, among others
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
        first += len(members)  # the next class goes on where this one ended, so that all folds are of one size
    return fold


class _Problem(NamedTuple):
    """Data of the optimisation; F folds, C classes, n rows, d dimensions."""

    x: Tensor  # (n, d)
    y: Tensor  # (n,); 0 for rows without a label, which weigh nothing
    weight: Tensor  # (n, F): 1 / size of the training part where the fold trains on the row, else 0
    held_out: Tensor  # (n, F) bool
    basis: Tensor  # (d, d): eigenvectors of the covariance
    spectrum: Tensor  # (d,)

    def first(self, folds: int) -> _Problem:
        return self._replace(weight=self.weight[:, :folds], held_out=self.held_out[:, :folds])


class _Probes(NamedTuple):
    """One probe per fold, with its cross-entropy and the gradient."""

    weights: Tensor  # (F, C, d + 1), the bias last
    loss: Tensor  # (F,)
    gradient: Tensor  # (F, C, d + 1)
    held_out: float  # mean cross-entropy of the rows at the fold that holds them out


def _solve(x: Tensor, y: Tensor, fold: Tensor, folds: int, strengths: tuple[float, ...]) -> Tensor:
    """(F, C, d + 1): λ by the held-out loss of the first two folds, then all folds at that λ."""
    y, fold = y.to(x.device), fold.to(x.device, torch.int64)
    held_out = fold[:, None] == torch.arange(folds, device=x.device)
    trains = ((fold >= 0)[:, None] & ~held_out).float()
    classes = int(y.max()) + 1
    members = torch.bincount((fold * classes + y)[fold >= 0], minlength=folds * classes).view(folds, classes)
    counts = (members.sum(dim=0) - members).float()
    some = x[:: max(1, len(x) // (4 * x.shape[1]))]  # the coordinates need not be exact
    spectrum, basis = torch.linalg.eigh(some.T @ some / len(some))
    problem = _Problem(x, y, trains / trains.sum(dim=0).clamp_min(1), held_out, basis, spectrum.clamp_min(0))
    start = x.new_zeros(folds, counts.shape[1], x.shape[1] + 1)
    start[:, :, -1] = torch.log((counts + 0.5) / (counts + 0.5).sum(dim=1, keepdim=True))
    chosen = _choose_strength(problem.first(2), start[:2], sorted(strengths, reverse=True))
    # All folds start afresh: the two that were searched with have seen the rows that the others hold out.
    return _minimise(problem, _evaluate(problem, start), chosen, FINE).weights


def _choose_strength(problem: _Problem, start: Tensor, strengths: list[float]) -> float:
    """Lower λ step by step from the value nearest to `FIRST` while the held-out loss falls; if it rises at once, raise λ."""
    first = int(np.argmin(np.abs(np.log(strengths) - np.log(FIRST))))
    best, chosen = _minimise(problem, _evaluate(problem, start), strengths[first], ROUGH), first
    for way in (1, -1):
        while 0 <= chosen + way < len(strengths):
            probes = _minimise(problem, best, strengths[chosen + way], ROUGH)
            if probes.held_out >= best.held_out:
                break
            best, chosen = probes, chosen + way
        if chosen != first:
            break
    return strengths[chosen]


def _minimise(problem: _Problem, start: _Probes, strength: float, tolerance: float) -> _Probes:
    """Batched L-BFGS; each fold has its own step length and memory, and stays where it is once a step gains too little.

    So folds do not affect each other: the prediction of a row does not depend on its label, not even through the number
    of steps.
    """
    scale = torch.rsqrt(0.5 * problem.spectrum + strength)

    def whiten(gradient: Tensor) -> Tensor:
        return torch.cat([(gradient[:, :, :-1] @ problem.basis) * scale, gradient[:, :, -1:]], dim=2)

    def unwhiten(step: Tensor) -> Tensor:
        return torch.cat([(step[:, :, :-1] * scale) @ problem.basis.T, step[:, :, -1:]], dim=2)

    def penalise(probes: _Probes) -> tuple[Tensor, Tensor]:
        pull = strength * probes.weights
        pull[:, :, -1] = 0
        return probes.loss + 0.5 * _dot(pull, probes.weights), whiten(probes.gradient + pull)

    now = start
    loss, gradient = penalise(now)
    changes: list[tuple[Tensor, Tensor, Tensor]] = []
    moving = torch.ones_like(loss, dtype=torch.bool)
    for _ in range(STEPS):
        direction = torch.where(moving[:, None, None], -_two_loop(gradient, changes), 0)
        slope = _dot(direction, gradient)
        length = torch.ones_like(slope)
        for _ in range(8):
            step = length[:, None, None] * direction
            moved = _evaluate(problem, now.weights + unwhiten(step))
            moved_loss, moved_gradient = penalise(moved)
            worse = moved_loss > loss + 1e-4 * length * slope + 1e-6
            if not worse.any():
                break
            length = torch.where(worse, length / 4, length)
        moving = moving & (loss - moved_loss >= tolerance)
        turn = moved_gradient - gradient
        curvature = _dot(step, turn)
        changes = [*changes, (step, turn, torch.where(curvature > 1e-12, 1 / curvature, 0))][-MEMORY:]
        now, loss, gradient = moved, moved_loss, moved_gradient
        if not moving.any():
            break
    return now


def _evaluate(problem: _Problem, weights: Tensor) -> _Probes:
    folds, classes, _ = weights.shape
    flat = weights.view(folds * classes, -1)
    slopes, bias = flat[:, :-1].contiguous(), flat[:, -1]
    loss, held_out, gradient = weights.new_zeros(folds), weights.new_zeros(()), torch.zeros_like(flat)
    rows = _rows_per_product(problem.x)
    for part in range(0, len(problem.x), rows):
        x, y = problem.x[part : part + rows], problem.y[part : part + rows]
        weight, outside = problem.weight[part : part + rows], problem.held_out[part : part + rows]
        log_p = torch.log_softmax(torch.addmm(bias, x, slopes.T).view(-1, folds, classes), dim=2)
        index = y[:, None, None].expand(-1, folds, 1)
        entropy = -log_p.gather(2, index)[:, :, 0]
        loss += (entropy * weight).sum(dim=0)
        held_out += (entropy * outside).sum()
        residual = log_p.exp_()
        residual.scatter_add_(2, index, residual.new_full((1, 1, 1), -1.0).expand_as(index))
        residual = (residual * weight[:, :, None]).view(-1, folds * classes)
        gradient[:, :-1] += residual.T @ x
        gradient[:, -1] += residual.sum(dim=0)
    return _Probes(weights, loss, gradient.view_as(weights), float(held_out / problem.held_out.sum().clamp_min(1)))


def _two_loop(gradient: Tensor, changes: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """The inverse Hessian's action, estimated from the latest steps (F, C, d + 1) and changes of the gradient."""
    direction, shares = gradient, []
    for step, turn, inverse in reversed(changes):
        share = inverse * _dot(step, direction)
        direction = direction - share[:, None, None] * turn
        shares.append(share)
    if changes:
        step, turn, inverse = changes[-1]
        size = torch.where(inverse > 0, 1 / (inverse * _dot(turn, turn)).clamp_min(1e-12), 1)
        direction = direction * size[:, None, None]
    for (step, turn, inverse), share in zip(changes, reversed(shares), strict=True):
        direction = direction + (share - inverse * _dot(turn, direction))[:, None, None] * step
    return direction


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


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=(1, 2))
