"""Log-linear pool of several class predictions, fitted to the given labels through a model of how labels go wrong."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import softmax

from noisegate.pipeline.system.array_types import Float64, Index

FLOOR = 0.01  # share of a uniform vote mixed into every source: a vote of 0 must not exclude a class
LOG_SHARE = 12.0  # largest log ratio between the shares of two kinds of noise: beyond it a share is 0 or 1


class Pool(NamedTuple):
    """The prediction π of the true class, and the transition matrix T from true to given labels it was fitted with."""

    weights: Float64  # (S,) of the sources
    bias: Float64  # (C,)
    shares: Float64  # (K,) of the parts of T
    transition: Float64  # (C, C), T[c, y] = P(given y | true c)
    loss: float  # mean negative log-likelihood of the given labels, with the weak regularisation

    def predict(self, votes: Float64) -> Float64:
        """Predict π (n, C) from log votes (S, n, C)."""
        return np.asarray(softmax(np.tensordot(self.weights, votes, axes=1) + self.bias, axis=1))

    def log_likelihood(self, votes: Float64, y: Index) -> Float64:
        """(n,) logarithm of P(given y | x)."""
        return np.asarray(np.log(np.maximum((self.predict(votes) * self.transition[:, y].T).sum(axis=1), 1e-300)))

    def true_given(self, votes: Float64, y: Index) -> Float64:
        """P(true c | x, given y) ∝ π(c | x) T[c, y], (n, C)."""
        return given_true(self.predict(votes), y, self.transition)


def fit_pool(votes: Float64, y: Index, parts: Float64, near: Pool) -> Pool:
    """Fit weights (at least 0), biases and the shares of T = Σ_k share_k parts[k] by maximum likelihood, starting from `near`.

    votes: (S, n, C) log votes.  y: (n,) given labels.  parts: (K, C, C).  Weak L2 regularisation of weights and biases.
    """
    count, rows, classes = votes.shape
    reach = parts[:, :, y].transpose(0, 2, 1)

    def split(theta: Float64) -> tuple[Float64, Float64, Float64]:
        return theta[:count], theta[count : count + classes], softmax(np.append(0.0, theta[count + classes :]))

    def loss(theta: Float64) -> tuple[float, Float64]:
        weights, bias, shares = split(theta)
        prediction = softmax(np.tensordot(weights, votes, axes=1) + bias, axis=1)
        joint = prediction * np.tensordot(shares, reach, axes=1)
        likelihood = np.maximum(joint.sum(axis=1), 1e-300)
        excess = prediction - joint / likelihood[:, None]
        slope = np.concatenate([np.tensordot(votes, excess, axes=([1, 2], [0, 1])), excess.sum(axis=0)])
        rises = np.einsum("nc,knc,n->k", prediction, reach, 1 / likelihood)
        by_share = -(shares * (rises - shares @ rises))[1:]
        plain = theta[: count + classes]
        total = float(-np.log(likelihood).sum() + plain @ plain / 2)
        return total / rows, np.concatenate([slope + plain, by_share]) / rows

    ratios = np.log(np.maximum(near.shares[1:], 1e-9) / np.maximum(near.shares[0], 1e-9))
    bounds = [(0.0, None)] * count + [(None, None)] * classes + [(-LOG_SHARE, LOG_SHARE)] * (len(parts) - 1)
    start = np.concatenate([near.weights, near.bias, np.clip(ratios, -LOG_SHARE, LOG_SHARE)])
    fit = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 150, "ftol": 1e-8})
    weights, bias, shares = split(np.asarray(fit.x))
    return Pool(weights, bias, shares, np.tensordot(shares, parts, axes=1), float(fit.fun))


def log_votes(posterior: NDArray[Any], present: NDArray[Any]) -> Float64:
    """Compute log votes of a source for the present classes, (n, C); a row that abstains is 0 everywhere."""
    votes = np.maximum(np.asarray(posterior[:, present], dtype=np.float64), 0)
    total = votes.sum(axis=1, keepdims=True)
    voted = np.isfinite(total) & (total > 0)
    share = np.where(voted, votes, 1) / np.where(voted, total, len(present))
    logs = np.log((1 - FLOOR) * share + FLOOR / len(present))
    return np.asarray(np.where(voted, logs, 0.0))


def given_true(prediction: Float64, label: Index, transition: Float64) -> Float64:
    """P(true c | x, given y) ∝ π(c | x) T[c, y], (n, C)."""
    joint = prediction * transition[:, label].T
    return np.asarray(joint / np.maximum(joint.sum(axis=1, keepdims=True), 1e-300))
