"""Fit models of label noise, and estimate the noise rate of a run.

A model is a pool π(true c | x) with a transition matrix T[c, y] = P(given y | true c); Σ_c π(c | x) T[c, y] must explain the
given labels. Three are fitted:

- `none`: T = I, every label is right and all disagreement is overlap of classes.
- `simple`: T = (1 - ε - η) I + ε U + η N, where U goes to any other class and N to the class that looks most alike. Two
  numbers, by maximum likelihood. It is exact for symmetric noise and for noise towards the nearest class, however few the
  labels.
- `detailed`: T class by class, by confident joint (Northcutt et al. 2021, "Confident learning", Eq. 1-3), drawn towards
  `simple` where classes have few rows: their sources err more, which confident joint counts as noise. People confuse some
  classes more than others, and more on hard pictures, which no two numbers describe.

Each is judged by the likelihood of labels that it was not fitted to. `detailed` is used unless `simple` is clearly better,
and counts by the chance that noise explains these labels better than `none` does; for the rest of it every label is right.
Noise is shown where one of the two is clearly better than `none`, the interval of the noise rate does not reach 0, and the
sources know the classes well enough that changed labels gain much. Sources that hardly tell classes apart find noise in every
run, and take right labels for it.

What cannot be known: pictures that lie between two classes and labels that were confused look the same in the given labels.
`simple` believes in overlap, `detailed` more in confusion.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, stdtrit

from noisegate.pipeline.system.array_types import Float64, Index

from .pool import Pool, fit_pool, given_true
from .repair import RepairPolicy

LEAST = 0.001  # floor of the share of random labels, and of the chance of noise: labels are ranked where none is found
LIKELIER = 1e-5  # nats per label that another choice of nearest classes must gain
STARTS = (0.05, 0.3)  # noise rates from which the simple model is fitted; the likelier result counts


class NoiseModels(NamedTuple):
    """The three pools."""

    none: Pool
    simple: Pool
    detailed: Pool


class NoiseEstimate(NamedTuple):
    """The model that is used, and what the labels say about noise in the whole run."""

    model: Pool
    name: str  # "simple" or "detailed"
    chance: float  # that noise explains held-out labels better than no noise does
    shown: bool  # whether it does so clearly, and the sources know the classes
    interval: tuple[float, float]  # of the noise rate, 95 %

    def true_given(self, prediction: Float64, label: Index) -> Float64:
        """P(true c | x, given y) (n, C) of predictions π (n, C); with the chance of no noise the given label is right."""
        posterior = self.chance * given_true(prediction, label, self.model.transition)
        posterior[np.arange(len(label)), label] += 1 - self.chance
        return posterior


def estimate_noise(votes: Float64, y: Index, policy: RepairPolicy, rng: np.random.Generator) -> NoiseEstimate:
    """Fit the models to log votes (S, n, C) and labels y (n,), and choose between them by cross-validation over the rows.

    The interval has the error of leaving out one fold of the rows at a time (jackknife), that of both models with noise added
    in squares. Its upper end spans the share of confident disagreement too, and what so few labels cannot exclude; its lower
    end is 0 where noise is not shown.
    """
    models = fit_models(votes, y, policy)
    fold = rng.permutation(len(y)) % policy.folds
    held_out = np.zeros((len(models), len(y)))
    rates = []
    for number in range(policy.folds):
        inside, outside = fold != number, fold == number
        parts = fit_models(votes[:, inside], y[inside], policy, models)
        held_out[:, outside] = [pool.log_likelihood(votes[:, outside], y[outside]) for pool in parts]
        rates.append([_rate(pool, votes[:, inside], y[inside]) for pool in parts[1:]])
        del parts
    none, simple, detailed = held_out
    name = "simple" if _gain(simple, detailed) > policy.shown else "detailed"
    model: Pool = getattr(models, name)
    rate, spread = _rate(model, votes, y), np.sqrt(policy.folds - 1) * np.linalg.norm(np.std(rates, axis=0))
    chance = 1.96 * np.sqrt(rate * (1 - rate) / len(y))  # of the labels drawn
    error = max(stdtrit(policy.folds - 1, 0.975) * spread, chance)
    joint = confident_joint(models.detailed.predict(votes), y)
    unseen = 1 - 0.025 ** (1 / len(y))  # a rate at which all len(y) labels may be right by chance
    low, high = rate - error, max(rate + error, 1 - np.trace(joint) / joint.sum() + chance, unseen)
    likelier = max(_gain(simple, none), _gain(detailed, none))
    shown = low > 0 and likelier > policy.shown and policy.gains_enough(model.true_given(votes, y), y)
    return NoiseEstimate(
        model._replace(transition=(1 - LEAST) * model.transition + LEAST / votes.shape[2]),
        name,
        max(LEAST, float(ndtr(likelier))),
        bool(shown),
        (float(low) if shown else 0.0, min(1.0, float(high))),
    )


def fit_models(votes: Float64, y: Index, policy: RepairPolicy, near: NoiseModels | None = None) -> NoiseModels:
    """Fit the three pools, starting from those of `near` if given."""
    count, _, classes = votes.shape
    same = np.eye(classes)[None]
    even = Pool(np.full(count, 1 / count), np.zeros(classes), np.ones(1), same[0], np.inf)
    none = fit_pool(votes, y, same, near.none if near else even)
    del same  # frees memory: with thousands of classes, (C, C) matrices take most of it
    simple = _fit_simple(votes, y, none, near.simple if near else None)
    transition = policy.pseudo_rows * classes * (classes / len(y)) * simple.transition
    transition += confident_joint(none.predict(votes), y).T
    transition /= transition.sum(axis=1, keepdims=True)
    return NoiseModels(none, simple, fit_pool(votes, y, transition[None], near.detailed if near else none))


def _fit_simple(votes: Float64, y: Index, none: Pool, near: Pool | None) -> Pool:
    """Fit `simple`, starting from `near` if given.

    The nearest classes depend on the predicted classes of the pictures, and the predictions on the nearest classes: the two are
    fitted in turn as long as the likelihood of the labels rises.
    """
    given = none.predict(votes)
    if near:
        return fit_pool(votes, y, noise_parts(near.predict(votes), given), near)
    parts = noise_parts(given, given)
    simple = min(
        (fit_pool(votes, y, parts, _noisy_start(none, rate, len(parts))) for rate in STARTS), key=lambda pool: pool.loss
    )
    del parts
    while True:
        again = fit_pool(votes, y, noise_parts(simple.predict(votes), given), simple)
        if again.loss > simple.loss - LIKELIER:
            return simple
        simple = again


def noise_parts(prediction: Float64, given: Float64) -> Float64:
    """Make parts of T (3, C, C): no noise, to any other class, to the nearest other class (left out for two classes).

    The nearest class is the other class with the largest sum of `given` (n, C) over the pictures that `prediction` (n, C)
    assigns to a class.

    >>> votes = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.0, 0.3, 0.7]])
    >>> noise_parts(votes, votes)[2]
    array([[0., 1., 0.],
           [0., 0., 1.],
           [0., 1., 0.]])
    """
    classes = prediction.shape[1]
    alike = np.zeros((classes, classes))
    np.add.at(alike, prediction.argmax(axis=1), given)
    np.fill_diagonal(alike, -1)
    nearest = alike.argmax(axis=1)
    del alike
    parts = np.zeros((min(classes, 3), classes, classes))
    np.fill_diagonal(parts[0], 1)
    parts[1] = 1 / (classes - 1)
    np.fill_diagonal(parts[1], 0)
    if classes > 2:
        parts[2, np.arange(classes), nearest] = 1
    return parts


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
    joint /= joint.sum(axis=1, keepdims=True)
    joint *= sizes[:, None]
    return joint


def _noisy_start(none: Pool, rate: float, parts: int) -> Pool:
    """Make a start for `simple`: the weights of `none`, made sharper by the assumed noise rate."""
    shares = np.array([1 - rate, *[rate / (parts - 1)] * (parts - 1)])
    return none._replace(weights=none.weights / (1 - rate), shares=shares)


def _rate(pool: Pool, votes: Float64, y: Index) -> float:
    """The noise rate by a model."""
    return 1 - float(pool.true_given(votes, y)[np.arange(len(y)), y].mean())


def _gain(log_likelihood: Float64, other: Float64) -> float:
    """Compute by how many standard errors the labels are likelier than under the other model."""
    gain = log_likelihood - other
    return float(gain.sum() / max(gain.std() * np.sqrt(len(gain)), 1e-9))
