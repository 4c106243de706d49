"""Decide which given labels are changed.

Classes that overlap in the embeddings and labels that were confused look the same in the given labels. So labels are
repaired only where the data shows one of two signs that overlap does not give (`NoiseEvidence`):

- Sure predictions. The pool, fitted as if all disagreement were noise, doubts far less than that noise, and its surest
  predictions disagree with their labels as often as all do. Where that is in more than half of the rows, no other label
  may come near the predicted one among them.
- Likelihood. Noise explains the given labels better than no noise does, well beyond chance; the surest predictions
  disagree less than all do; and most labels are right.

Even then single changes are withheld (`withheld_changes`). Labels and pictures show which pictures are of one kind, never
what the kind is called, so a repair takes the commonest name of a kind for the right one. It is left undone where

- the given label is nearly as common in that kind as the one it would be changed to;
- so is one of a ring of names, each of which often stands for the next: all of them may have moved by one;
- more labels of a name would go to one other name than stay.

Class texts stop a change where they favour the given label, and stop all changes where they stop many. Where they agree with
the commonest names of many classes, they support changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy.sparse.csgraph import connected_components

from noisegate.pipeline.system.array_types import Float64, Index, Mask

from .pool import Pool

# All thresholds were chosen by benchmarks/repair.py on simulated classes and by CIFAR-10N.
ASSURED = 0.1  # share of every class that counts as its surest predictions
ALIKE = 0.01  # probabilities closer than this are equally sure
MEMBERS = 20  # minimum labels per class for the estimate from the surest predictions
DOUBT = 0.18  # largest mean doubt of the predictions, relative to the noise they claim
EVEN = 0.7, 1.3  # noise among the surest predictions relative to all noise, if noise is the same everywhere
APART = 0.5  # largest share of the commonest other label, relative to the predicted one, where most labels are wrong
SHOWN = 0.1  # smallest share of the claimed noise that the surest predictions must show
BEYOND, WHOLE, PLAIN, HINT = 8.0, 2.0, 8.0, 3.0  # likelihood gain, in standard errors
MANY = 100, 200  # labels per class below which the likelihood test asks for more, by all or some of the noise
MOST_WRONG = 0.45  # above this noise rate the likelihood test cannot separate noise from class overlap
CHANCE = 2.0  # standard errors
RIVAL = 0.375  # share among two names from which either may be right; the wrong names of CIFAR-10N reach 0.25
COMMON = 0.25  # smallest count of a label, relative to the one it would be changed to, that forms a ring
FOR = 2.0  # ratio of rows with texts for the given label over rows with texts for the other that stops a change
STOPPED = 1 / 3  # share of all changes from which the texts stop every one
NAMES = 20  # classes that texts and repair must name alike before the texts support changes


def repair_labels(true: Float64, label: Index, withheld: Mask) -> Index:
    """(n,) repaired labels: the likeliest class of P(true | x, given) (n, C), unless that change is withheld.

    >>> repair_labels(np.array([[0.1, 0.9], [0.1, 0.9], [0.6, 0.4]]), np.array([0, 1, 0]), np.zeros((2, 2), dtype=bool))
    array([1, 1, 0])
    """
    likeliest = true.argmax(axis=1)
    stands = (true[np.arange(len(label)), label] >= true.max(axis=1, initial=0)) | withheld[label, likeliest]
    return np.asarray(np.where(stands, label, likeliest))


class NoiseEvidence(NamedTuple):
    """Evidence for label noise in the whole run, from the given labels and the fitted pools."""

    claimed: float  # share of wrong labels, if all confident disagreement is noise
    least: float  # share of disagreement among the assured rows
    assured: int  # number of assured rows
    members: float  # labels per class
    doubt: float  # 1 - mean largest probability of the predictions, fitted as if all disagreement were noise
    whole: float  # log-likelihood gain of the given labels by all of the claimed noise, in standard errors
    beyond: float  # the same for the belief with the largest ratio
    likeliest: float  # belief with the largest likelihood
    rival: float  # share of the commonest other label among the assured rows of a class, the mean over classes

    @property
    def chance(self) -> float:
        """Standard error of `least`, if the assured rows are as noisy as all."""
        return float(np.sqrt(self.claimed * (1 - self.claimed) / max(self.assured, 1)))

    @property
    def sure_predictions(self) -> bool:
        """The first sign."""
        slack = CHANCE * self.chance
        surely = self.least - 1.64 * float(np.sqrt(self.least * (1 - self.least) / max(self.assured, 1)))
        return (
            (self.least < 0.5 or self.rival <= APART * (1 - self.least))
            and self.members >= MEMBERS
            and self.doubt <= DOUBT * self.claimed
            and EVEN[0] * self.claimed - slack <= self.least <= EVEN[1] * self.claimed + slack
            and surely > SHOWN * self.claimed
        )

    @property
    def likelihood(self) -> bool:
        """The second sign."""
        for_all, for_some = (max(1.0, many / self.members) for many in MANY)
        plain = self.whole >= PLAIN * np.sqrt(for_all) and self.least <= self.claimed + CHANCE * self.chance
        some = self.whole >= WHOLE and self.beyond >= BEYOND * for_some and self.least <= self.claimed
        return bool(0 < self.claimed < MOST_WRONG and (plain or some))

    @property
    def shown(self) -> bool:
        """Whether labels may be repaired."""
        return self.sure_predictions or self.likelihood

    @property
    def belief(self) -> float:
        """λ, the share of the claimed noise that is believed; below 1 for a hint that is too faint to repair by."""
        if self.shown:
            return 1.0
        hint = 0 < self.claimed < 0.5 and self.least <= self.claimed and self.beyond >= HINT and self.whole > 0
        return self.likeliest if hint else 0.0


def gather_evidence(
    claimed: float, blind: Pool, pools: Mapping[float, Pool], votes: Float64, y: Index
) -> NoiseEvidence:
    """Collect the evidence: `pools` by belief, 1 among them; `blind` was fitted without noise, on the same votes (V, n, C)."""
    prediction = pools[1.0].predict(votes)
    least, rival, assured = _assured_disagreement(prediction, y)
    without = blind.log_likelihood(votes, y)
    gains, ratios = {}, {}
    for belief, pool in pools.items():
        gain = pool.log_likelihood(votes, y) - without
        gains[belief] = float(gain.mean())
        ratios[belief] = float(gain.mean() / max(gain.std() / np.sqrt(len(y)), 1e-9))
    return NoiseEvidence(
        claimed=claimed,
        least=least,
        assured=assured,
        members=len(y) / prediction.shape[1],
        doubt=float(1 - prediction.max(axis=1).mean()),
        whole=ratios[1.0],
        beyond=max(ratios.values()),
        likeliest=max(gains, key=lambda belief: gains[belief]),
        rival=rival,
    )


def _assured_disagreement(prediction: Float64, y: Index) -> tuple[float, float, int]:
    """Of the surest rows of every class: share of labels that differ, share of the commonest of these, number of rows.

    Rows about as sure as the last one share its place: among copies the wrongly labelled lead by a hair, because
    their neighbours and probes miss one right label less.
    """
    wrong, rival, rows = 0.0, 0.0, 0
    sizes = np.bincount(y, minlength=prediction.shape[1])
    for label, size in enumerate(sizes):
        top = min(max(int(ASSURED * size), 1), len(y) - 1)
        sure = prediction[:, label]
        last = -np.partition(-sure, top - 1)[top - 1]
        ahead, level = sure > last + ALIKE, np.abs(sure - last) <= ALIKE
        differs = y != label
        share = (top - ahead.sum()) / level.sum()
        wrong += (differs[ahead].sum() + share * differs[level].sum()) / top * size
        others = np.bincount(y[(ahead | level) & differs], minlength=len(sizes))
        rival += others.max() / (ahead | level).sum() * size
        rows += top
    return float(wrong / len(y)), float(rival / len(y)), rows


def withheld_changes(votes: Float64, y: Index, repaired: Index) -> Mask:
    """(C, C) changes [from, to] of labels y (n,) to `repaired` (n,) that are not made.

    votes: (F, n, C) log votes of sources that learned from no label, such as texts; F may be 0.
    """
    disputed, changes = disputed_changes(votes, y, repaired), _pairs(y, repaired, votes.shape[2])
    if changes[disputed].sum() > STOPPED * (changes.sum() - np.trace(changes)):
        return np.ones_like(disputed)
    return np.asarray(disputed | (open_names(y, repaired, votes.shape[2]) & ~vouched_changes(votes, y, repaired)))


def open_names(y: Index, repaired: Index, classes: int) -> Mask:
    """(C, C) changes [from, to] where, by the labels alone, the given name may be the right one.

    >>> y = np.repeat([0, 1, 1, 2], [60, 40, 50, 90])
    >>> open_names(y, np.repeat([0, 0, 1, 2], [60, 40, 50, 90]), 3).astype(int)
    array([[0, 0, 0],
           [1, 0, 0],
           [0, 0, 0]])
    """
    changes = _pairs(y, repaired, classes)
    stay, made = np.diag(changes), (changes > 0) & ~np.eye(classes, dtype=bool)
    both = np.maximum(changes + stay, 1)
    share = made * changes / both
    rival = made & (share + CHANCE * np.sqrt(share * (1 - share) / both) >= RIVAL)
    _, ring = connected_components(rival | (share * both > COMMON * stay), directed=True, connection="strong")
    within = ring[:, None] == ring
    moved = np.isin(ring, ring[(rival & within).any(axis=1)])
    return np.asarray(made & (rival | (within & moved) | (changes > stay[:, None])))


def vouched_changes(votes: Float64, y: Index, repaired: Index) -> Mask:
    """(C, C) changes [from, to] that the texts favour, if they name most and many classes as the repair does."""
    classes, opinion = votes.shape[2], votes.sum(axis=0)
    voted = np.ptp(opinion, axis=1) > 0
    called = _pairs(repaired[voted], opinion[voted].argmax(axis=1), classes)
    agreed = (called.argmax(axis=1) == np.arange(classes)) & called.any(axis=1)
    if agreed.sum() < NAMES or agreed.mean() <= 0.5:
        return np.zeros((classes, classes), dtype=bool)
    given, other = _favoured(opinion, y, repaired)
    return np.asarray(other > given)


def disputed_changes(votes: Float64, y: Index, repaired: Index) -> Mask:
    """(C, C) changes [from, to] that the texts contradict, by a clear majority beyond chance.

    If the texts are wrong, a label stays that could have been mended: that costs a gain, never a right label.
    """
    given, other = _favoured(votes.sum(axis=0), y, repaired)
    return np.asarray((given > FOR * other) & (given - other > CHANCE * np.sqrt(given + other)))


def _favoured(opinion: Float64, y: Index, repaired: Index) -> tuple[Float64, Float64]:
    """(C, C) counts of rows of each change whose texts favour the given label, and the other."""
    rows, classes = np.arange(len(y)), opinion.shape[1]
    lead = opinion[rows, y] - opinion[rows, repaired]
    given, other = (_pairs(y[which], repaired[which], classes) for which in (lead > 0, lead < 0))
    return given, other


def _pairs(first: Index, second: Index, classes: int) -> Float64:
    """(C, C) counts of each combination."""
    counts = np.bincount(first * classes + second, minlength=classes**2)
    return np.asarray(counts.reshape(classes, classes), dtype=np.float64)
