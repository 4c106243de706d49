"""Which changes of labels are not made, because the data cannot tell which of two names is the right one.

Labels and pictures show which pictures are of a kind, never what the kind is called: "40 % of the cats are called dog, and
40 % of the dogs cat" and "60 % are, and the names are exchanged" are the same data. A repair takes the commonest name of a
kind for its right one. It is left undone where that is not plain:

- The given label is nearly as common, in what would be of one kind, as the one it would be changed to.
- So is one of a ring of names, each of which often stands for the next: all of them may have moved by one.
- More labels of a name would go to one other than stay: nothing would be left that the name stands for.

Texts name the classes themselves. Where they favour the given label they stop a change; where they stop many, they say that
the commonest name is no guide here, and stop all. Where they agree with the commonest names of many classes, they vouch for
changes; they may be wrong themselves, so that few agreements do not count.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse.csgraph import connected_components

from noisegate.pipeline.system.array_types import Float64, Index, Mask

__all__ = ["disputed_changes", "open_names", "vouched_changes", "withheld_changes"]

RIVAL = 0.375  # share among two names from which either may be right; the wrong ones of CIFAR-10N have up to 0.25
COMMON = (
    0.25  # a label that is rarer than so, relative to the one it would be changed to, does not stand for that one often
)
CHANCE = 2.0  # standard errors
FOR = 2.0  # times as many rows with texts for the given label as for the other stop a change
STOPPED = 1 / 3  # of all changes, from which the texts stop every one
NAMES = 20  # names that have all moved by the same number of places agree with a chance of one in so many


def withheld_changes(votes: Float64, y: Index, repaired: Index) -> Mask:
    """(C, C) changes [from, to] that are not made, of labels y (n,) to `repaired` (n,).

    votes: (F, n, C) logarithms of what sources say that learned from no label, such as texts; there may be none.
    """
    disputed, changes = disputed_changes(votes, y, repaired), _pairs(y, repaired, votes.shape[2])
    if changes[disputed].sum() > STOPPED * (changes.sum() - np.trace(changes)):
        return np.ones_like(disputed)
    return np.asarray(disputed | (open_names(y, repaired, votes.shape[2]) & ~vouched_changes(votes, y, repaired)))


def open_names(y: Index, repaired: Index, classes: int) -> Mask:
    """(C, C) changes [from, to] where the given name may be the right one after all, as far as the labels say.

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
    """(C, C) changes [from, to] that the texts favour, if they call most classes what the repair does, and many of them."""
    classes, opinion = votes.shape[2], votes.sum(axis=0)
    says = np.ptp(opinion, axis=1) > 0
    called = _pairs(repaired[says], opinion[says].argmax(axis=1), classes)
    agreed = (called.argmax(axis=1) == np.arange(classes)) & called.any(axis=1)
    if agreed.sum() < NAMES or agreed.mean() <= 0.5:
        return np.zeros((classes, classes), dtype=bool)
    given, other = _favoured(opinion, y, repaired)
    return np.asarray(other > given)


def disputed_changes(votes: Float64, y: Index, repaired: Index) -> Mask:
    """(C, C) changes [from, to] against which the texts speak: a clear majority beyond chance.

    Texts may be wrong; then a label stays that could have been mended, which costs a gain and never a right label.
    """
    given, other = _favoured(votes.sum(axis=0), y, repaired)
    return np.asarray((given > FOR * other) & (given - other > CHANCE * np.sqrt(given + other)))


def _favoured(opinion: Float64, y: Index, repaired: Index) -> tuple[Float64, Float64]:
    """(C, C) how many rows of each change have texts for the given label, and for the other."""
    rows, classes = np.arange(len(y)), opinion.shape[1]
    lead = opinion[rows, y] - opinion[rows, repaired]
    given, other = (_pairs(y[which], repaired[which], classes) for which in (lead > 0, lead < 0))
    return given, other


def _pairs(first: Index, second: Index, classes: int) -> Float64:
    """(C, C) how often the two come together."""
    found = np.bincount(first * classes + second, minlength=classes**2)
    return np.asarray(found.reshape(classes, classes), dtype=np.float64)
