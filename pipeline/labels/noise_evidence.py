"""Whether labels that disagree with predictions are wrong labels, or the predictions are.

The given labels alone cannot tell: classes that overlap in the embeddings and labels that were confused look the same.
So noise is taken for shown, and labels are repaired, only under one of two signs that overlap does not give.

- Sure predictions. The pool, fitted as if all disagreement were noise, doubts far less than that noise: a sixth of it
  or so. And its surest predictions, which are hardly ever wrong, disagree with their labels as often as all do. Where
  that is in more than half of the rows, no other label may come near the predicted one among them.
- Likelihood. Noise explains the given labels better than none does, and well beyond chance; the surest predictions
  disagree less than all do, as they must where noise and doubt come together; and most labels are right.

Anything less leaves every label as it is: a repair that is not made costs a gain, one made in error costs right labels.
Even then a change may be withheld (`noisegate.pipeline.labels.doubtful_names`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from noisegate.pipeline.system.array_types import Float64, Index

from .pool import Pool

__all__ = ["NoiseEvidence", "gather_evidence"]

ASSURED = 0.1  # of every class: the rows whose predictions are hardly ever wrong
ALIKE = 0.01  # probabilities that differ by less are equally sure
MEMBERS = 20  # labels per class below which two of them are no assured rows to speak of
DOUBT = 0.18  # most doubt of the predictions, relative to the noise that they claim
EVEN = 0.7, 1.3  # noise among the assured rows relative to all of it, where noise is the same everywhere
APART = 0.5  # most of the commonest other label, relative to the predicted one, where most labels are wrong
SHOWN = 0.1  # least share of the claimed noise that the assured rows must surely show
BEYOND, WHOLE, PLAIN, HINT = 8.0, 2.0, 8.0, 3.0  # standard errors of the gain, by some or all of the claimed noise
MANY = 100, 200  # labels per class, which T learns from, below which more is asked for, by all or some of the noise
MOST_WRONG = 0.45  # claimed noise above this is no matter for likelihoods: overlap does it as easily
CHANCE = 2.0  # standard errors granted to what the few assured rows show


class NoiseEvidence(NamedTuple):
    claimed: float  # share of wrong labels, if all confident disagreement is noise
    least: float  # share of disagreement among the assured rows
    assured: int  # how many those are
    members: float  # labels per class
    doubt: float  # 1 - mean largest probability of the predictions, fitted as if all disagreement were noise
    whole: float  # gain in log-likelihood of the given labels by all of the claimed noise, in standard errors
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
        """λ: how much of the claimed noise is believed; less than all where there is but a hint, too faint to repair."""
        if self.shown:
            return 1.0
        hint = 0 < self.claimed < 0.5 and self.least <= self.claimed and self.beyond >= HINT and self.whole > 0
        return self.likeliest if hint else 0.0


def gather_evidence(
    claimed: float, blind: Pool, pools: Mapping[float, Pool], votes: Float64, y: Index
) -> NoiseEvidence:
    """`pools` by belief, among them 1; `blind` was fitted without any noise, on the same votes (V, n, C)."""
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
    """Of the rows most surely of a class: share of labels that differ, share of the commonest of these, and how many rows.

    Rows about as sure as the last one share its place: among copies the wrongly labelled are ahead by a hair, because
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
