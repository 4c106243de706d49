"""Log-linear pool of several class predictions, and the transition matrix from true to given labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from noisegate.pipeline.system.array_types import Float64, Index

FLOOR = 0.01  # share of a uniform vote mixed into every source, because a vote share of 0 does not exclude a class


class Pool(NamedTuple):
    """Weights and biases of the pool π, and the transition matrix under which they were fitted."""

    weights: Float64  # (V,)
    bias: Float64  # (C,)
    transition: Float64  # (C, C)
    loss: float  # mean negative log-likelihood of the given labels, with the weak regularisation

    def predict(self, votes: Float64) -> Float64:
        """π (n, C) of votes (V, n, C)."""
        logits = np.tensordot(self.weights, votes, axes=1) + self.bias
        prediction = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        return np.asarray(prediction / prediction.sum(axis=1, keepdims=True))

    def log_likelihood(self, votes: Float64, y: Index) -> Float64:
        """(n,) logarithm of P(given y | x)."""
        joint = self.predict(votes) * self.transition[:, y].T
        return np.asarray(np.log(np.maximum(joint.sum(axis=1), 1e-300)))


def fit_pool(votes: Float64, y: Index, transition: Float64, near: Pool | None = None) -> Pool:
    """Fit weights and biases by maximum likelihood of the given labels, with weak L2 regularisation."""
    count, rows, classes = votes.shape
    reach = transition[:, y].T

    def loss(theta: Float64) -> tuple[float, Float64]:
        prediction = Pool(theta[:count], theta[count:], transition, 0.0).predict(votes)
        joint = prediction * reach
        likelihood = np.maximum(joint.sum(axis=1), 1e-300)
        excess = prediction - joint / likelihood[:, None]
        slope = np.concatenate([np.tensordot(votes, excess, axes=([1, 2], [0, 1])), excess.sum(axis=0)])
        return float(-np.log(likelihood).sum() + theta @ theta / 2) / rows, (slope + theta) / rows

    start = np.concatenate([np.full(count, 1 / count), np.zeros(classes)])
    if near is not None:
        start = np.concatenate([near.weights, near.bias])
    bounds = [(0.0, None)] * count + [(None, None)] * classes
    fit = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 100, "ftol": 1e-7})
    return Pool(np.asarray(fit.x[:count]), np.asarray(fit.x[count:]), transition, float(fit.fun))


def log_votes(posterior: NDArray[Any], present: NDArray[Any]) -> Float64:
    """Logarithms of a source's votes for the present classes, (n, C); 0 everywhere for a row that abstains."""
    votes = np.maximum(np.asarray(posterior[:, present], dtype=np.float64), 0)
    total = votes.sum(axis=1, keepdims=True)
    voted = np.isfinite(total) & (total > 0)
    share = np.where(voted, votes, 1) / np.where(voted, total, len(present))
    logs = np.log((1 - FLOOR) * share + FLOOR / len(present))
    return np.asarray(np.where(voted, logs, 0.0))


def readings(votes: Float64, learned: Sequence[int], transition: Float64) -> Float64:
    """The votes (S, n, C), then those of the sources in `learned` once more as true classes explain them.

    A source trained on given labels predicts given labels: around a picture of class c its shares are T[c].
    Σ_y p(y | x) log T[c, y] is how well class c explains all of them, not only the share of c itself. Noise that turns
    one class into one other needs it: with 40 % of class a called b, and b called c, the shares of a and b show what
    the larger of the two hides. 0 where the source abstains.
    """
    shares = np.exp(votes[list(learned)])
    voted = np.ptp(votes[list(learned)], axis=2, keepdims=True) > 0
    explained = shares / shares.sum(axis=2, keepdims=True) @ np.log(transition).T
    return np.concatenate([votes, np.where(voted, explained, 0.0)])


def confident_joint(probability: Float64, labels: Index) -> Float64:
    """(C, C) counts of (given y, true c), rows scaled to the number of labels y (Northcutt et al. 2021, Eq. 1-2).

    A row counts for the likeliest class whose probability reaches the mean that class has among its own labels; rows
    that reach none do not count. A row without a label (outside 0..C-1), or with NaN, is left out.

    >>> confident_joint(np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.1, 0.9]]), np.array([0, 0, 0, 1]))
    array([[2., 1.],
           [0., 1.]])
    """
    classes = probability.shape[1]
    known = (labels >= 0) & (labels < classes) & ~np.isnan(probability).any(axis=1)
    probability, labels = probability[known], labels[known]
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


def transition_matrix(joint: Float64) -> Float64:
    """T[c, y] > 0, smoothed with five pseudo-rows per class of the overall noise rate, spread evenly."""
    classes, claimed = len(joint), float(1 - np.trace(joint) / joint.sum())
    even = np.full((classes, classes), claimed / (classes - 1))
    np.fill_diagonal(even, 1 - claimed)
    counts = joint.T + 5 * (0.999 * even + 0.001 / classes)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def given_true(prediction: Float64, label: Index, transition: Float64) -> Float64:
    """P(true c | x, given y) ∝ π(c | x) T[c, y], (n, C)."""
    joint = prediction * transition[:, label].T
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))
