"""CRCL, Cross-modal Robust Complementary Learning (Qin et al., NeurIPS 2023).

    p°_ij = softmax_j(S_ij / τ), p◇_ij = softmax_i(S_ij / τ)     Eq. 3       pipeline.methods.crcl: `log_matching_probabilities`
    L_r(q) = Σ_{j≠i} tan p_ij / (Σ_k tan p_ik)^q, both ways       Eq. 6       `complementary_loss`
    L_d    = -ŷ_i (log p°_ii + log p◇_ii)
    L_acl  = L_d + λ L_r(1 - ŷ_i); a batch's loss is the mean     Eq. 8-9     `active_complementary_loss`
    p̂_i   = (p°_ii + p◇_ii) / 2                                  Eq. 10      pipeline.methods.crcl: `matching_probability`
    y_i ← β y_i + (1 - β) p̂_i                                    Eq. 10-11   `correct_labels`
    ŷ_i = 0 where y_i < ε, else y_i                               Eq. 12      `truncate_labels`

A pretrained target with low probabilities has p̂ near 0 for all pairs, and would refuse all of them. For such a target p̂_i is
relative to the strongest candidate, unlike in the paper (`label: relative`): ½ (p°_ii / max_j p°_ij + p◇_ii / max_j p◇_ij)
`relative_match`

y_i is the soft label of pair i, 1 at first. The network is trained in pieces: each begins with new weights and keeps the
labels, which the piece's first e_f epochs leave alone. S: (B, B) similarities, images against texts.
"""

from collections.abc import Mapping
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.methods import log_matching_probabilities, matching_probability
from noisegate.pipeline.system import Float32, Index
from noisegate.trainers.data import Batch

from .base import ALL, Array, Method, MethodConfig, Run, StepLoss

FROM_SCRATCH = 0.05
"""τ of a network that was not pretrained"""


def _numbers(value: Any) -> Any:
    """Parse numbers of a command line: 5,5,5,30."""
    return value.split(",") if isinstance(value, str) else value


class CrclConfig(MethodConfig):
    """Constants of the paper and its code."""

    name: Literal["crcl"] = "crcl"
    preset: Literal["paper", "code"] = "paper"
    """code: the labels move with the current batch's p̂ instead of the last epoch's, p̂ is taken over in the first piece's last
    frozen epoch and mixed from then on, ŷ is what is remembered, and a piece lasts e_f epochs longer than `pieces` says"""
    pieces: Annotated[tuple[int, ...], BeforeValidator(_numbers)] | None = Field(default=None, examples=[[5, 5, 5, 30]])
    """epochs e_j of each piece, such as 5,5,5,30 as published; None: loop.epochs is split like that (see split_epochs)"""
    freeze: int = Field(default=2, ge=0)
    """e_f: epochs at the start of each piece that do not change the labels"""
    momentum: float = Field(default=0.8, ge=0, lt=1)
    """β"""
    complementary: float = Field(default=5.0, ge=0)
    """λ"""
    label: Literal["auto", "probability", "relative"] = "auto"
    """what labels move to: probability: p̂ as published; relative: p̂ over that of the strongest candidate. auto: relative for
    a pretrained target"""
    truncate: float = Field(default=0.1, ge=0, lt=1)
    """ε"""
    direct: bool = True
    """false: L_r alone, without L_d (Table 4)"""
    q: float | None = Field(default=None, ge=0, le=1)
    """a fixed q of L_r in place of 1 - ŷ (Table 4)"""
    correct: bool = True
    """false: without SCC, all labels stay 1 (Table 4)"""
    temperature: float | None = Field(default=None, gt=0)
    """τ; None: the network's own where it is a pretrained CLIP, else 0.05"""


class Crcl(Method):
    """Direct learning of believed pairs, complementary learning of the others; labels by momentum, in pieces."""

    Config: ClassVar[type[MethodConfig]] = CrclConfig
    tasks: ClassVar[tuple[str, ...]] = ("retrieval",)
    remembers: ClassVar[tuple[str, ...]] = ("labels", "probabilities")
    config: CrclConfig

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        if self.config.loss != "auto":
            problem = "is not for crcl, which has a loss of its own; use method.loss=auto"
            raise ConfigError.of("method.loss", self.config.loss, problem)
        self.loss_name = "active_complementary"
        self.lengths: tuple[int, ...] = ()
        self.pretrained = self.relative = False
        self.labels: Float32 = np.ones(0, np.float32)  # y
        self.probabilities: Float32 = np.ones(0, np.float32)  # p̂ of this epoch, NaN where not seen yet

    def epochs(self, wanted: int) -> int:
        given, freeze = self.config.pieces, self.config.freeze
        if given is not None and (not given or min(given) < 1):
            raise ConfigError.of("method.pieces", given, "are no numbers of epochs; use for example [5, 5, 5, 30]")
        if given is None:
            self.lengths = split_epochs(wanted, freeze)
        else:
            self.lengths = tuple(length + freeze * (self.config.preset == "code") for length in given)
        return sum(self.lengths)

    def prepare(self, run: Run) -> None:
        self.pretrained = not run.network().config.from_scratch
        self.relative = self.config.label == "relative" or (self.config.label == "auto" and self.pretrained)
        if self.relative and self.config.label == "auto":
            run.note(
                "crcl: the target is pretrained, so labels follow probabilities relative to the strongest candidate; "
                "the paper's own are method.label=probability"
            )
        self.labels = np.ones(run.total_rows, np.float32)
        self.probabilities = np.full(run.total_rows, np.nan, np.float32)

    # --- Algorithm 1 -----------------------------------------------------------------------------------------------------

    def locate(self, epoch: int) -> tuple[int, int]:
        """Return piece j and its epoch t, both counted from 1."""
        starts = [0, *accumulate(self.lengths)]
        piece = max(j for j, start in enumerate(starts[:-1]) if start <= epoch)
        return piece + 1, epoch - starts[piece] + 1

    def begin_epoch(self, run: Run) -> None:
        """Draw new weights at the start of a piece; apply Eq. 11 with the last epoch's predictions."""
        j, t = self.locate(run.epoch)
        if run.epoch == 0:
            lengths = ", ".join(map(str, self.lengths))
            run.note(f"crcl: epochs of each piece: {lengths}; labels are frozen in the first {self.config.freeze}")
            if self.config.correct and self.config.freeze >= max(self.lengths):
                run.note("crcl: no piece has more epochs than method.freeze, so all pairs are believed to the end")
        if t == 1:
            self.probabilities[:] = np.nan
            if len(self.lengths) > 1:  # the first piece too: otherwise its schedule would span all pieces
                run.restart(None if j == len(self.lengths) else self.lengths[j - 1])
        if self.config.preset == "code":
            return
        if t > self.config.freeze and self.config.correct:
            first = j == 1 and t == self.config.freeze + 1
            self.labels = correct_labels(self.labels, self.probabilities, 0.0 if first else self.config.momentum)
        self.probabilities[:] = np.nan

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        seen = run.forward(batches[ALL])
        assert seen.similarity is not None
        if len(seen.rows) < 2:
            return StepLoss(None)  # p = 1 whatever the network does
        temperature = self.config.temperature or (seen.temperature.detach() if self.pretrained else FROM_SCRATCH)
        same = seen.same if self.config.mask_same else None
        images, texts = log_matching_probabilities(seen.similarity, temperature, same)
        match = relative_match if self.relative else matching_probability
        matched = match(images, texts).detach()  # p̂
        y = self._labels_of(seen.rows.cpu().numpy(), matched.float().cpu().numpy(), run.epoch)
        labels = torch.from_numpy(y).to(matched)
        each = active_complementary_loss(
            images, texts, labels, self.config.complementary, direct=self.config.direct, q=self.config.q
        )
        return StepLoss(
            self.weigh(each, seen.rows).mean(),
            {"matched": matched.mean(), "label": float(y.mean()), "refused": float((y == 0).mean())},
        )

    def _labels_of(self, rows: Index, matched: Float32, epoch: int) -> Float32:
        """Compute ŷ of a batch, and remember its predictions."""
        if self.config.preset == "paper" or not self.config.correct:
            self.probabilities[rows] = matched
            return truncate_labels(self.labels[rows], self.config.truncate)
        j, t = self.locate(epoch)
        y = self.labels[rows]
        if t > self.config.freeze:
            y = correct_labels(y, matched, self.config.momentum)
        y = truncate_labels(y, self.config.truncate)
        self.labels[rows] = matched if j == 1 and t == self.config.freeze else y
        return y

    # --- what it remembers -------------------------------------------------------------------------------------------------

    def sample_columns(self) -> dict[str, Array]:
        """Return `crcl_label` (y) and `clean` (pairs that Eq. 12 does not set to 0)."""
        return {"crcl_label": self.labels, "clean": self.labels >= self.config.truncate}


def split_epochs(epochs: int, freeze: int = 2) -> tuple[int, ...]:
    """Split epochs like the published 5,5,5,30: up to three short pieces, 1/9 each but longer than `freeze`, then the rest.

    The short pieces never take more than half, so few epochs make fewer pieces.

    >>> split_epochs(45), split_epochs(20), split_epochs(5)
    ((5, 5, 5, 30), (3, 3, 3, 11), (5,))
    """
    short = max(freeze + 1, epochs // 9)
    count = min(3, epochs // 2 // short)
    return (*[short] * count, epochs - count * short)


def complementary_loss(probabilities: Tensor, q: Tensor) -> Tensor:
    """(B,) L_r of one direction (Eq. 6): rows (B, N) that sum to 1, the given match of row i in column i; q (B,) in [0, 1].

    q = 0 is the plain complementary loss; with q = 1 the losses over all N possible matches of a row sum to N - 1 for any
    network, which makes it noise tolerant (Lemma 1). The denominator is at least 1.

    >>> p = torch.tensor([[0.5, 0.5], [0.2, 0.8]])
    >>> complementary_loss(p, torch.tensor([1.0, 0.0]))  # one half; tan .2
    tensor([0.5000, 0.2027])
    """
    tangents = probabilities.clamp(max=1.0).tan()  # rounding may exceed 1; tan is harmless there, but not near π/2
    own = torch.eye(len(tangents), tangents.shape[1], dtype=torch.bool, device=tangents.device)
    return tangents.masked_fill(own, 0).sum(dim=1) / tangents.sum(dim=1) ** q


def active_complementary_loss(
    images: Tensor,
    texts: Tensor,
    labels: Tensor,
    weight: float = 5.0,
    *,
    direct: bool = True,
    q: float | None = None,
) -> Tensor:
    """(B,) L_acl = L_d + λ L_r(1 - ŷ) (Eq. 8) of the two logarithms of `log_matching_probabilities` and ŷ (B,) in [0, 1].

    Without `direct` L_d is left out; `q` replaces 1 - ŷ.
    """
    exponent = 1 - labels if q is None else torch.full_like(labels, q)
    complementary = weight * (complementary_loss(images.exp(), exponent) + complementary_loss(texts.exp(), exponent))
    return complementary - labels * (images.diagonal() + texts.diagonal()) if direct else complementary


def relative_match(images: Tensor, texts: Tensor) -> Tensor:
    """(B,) p of the given match over the largest of its row, mean of both ways, of two logarithms (B, B).

    >>> p = torch.tensor([[0.5, 0.5], [0.8, 0.2]]).log()
    >>> relative_match(p, p).tolist()
    [1.0, 0.25]
    """
    return ((images.diagonal() - images.amax(dim=1)).exp() + (texts.diagonal() - texts.amax(dim=1)).exp()) / 2


def correct_labels(labels: Float32, probabilities: Float32, momentum: float) -> Float32:
    """β y + (1 - β) p̂ (Eq. 10); a pair without a prediction (NaN) keeps its label.

    >>> correct_labels(np.float32([1, 1]), np.float32([0, np.nan]), 0.75).tolist()
    [0.75, 1.0]
    """
    moved = momentum * labels + (1 - momentum) * probabilities
    return np.where(np.isnan(probabilities), labels, moved).astype(np.float32)


def truncate_labels(labels: Float32, threshold: float) -> Float32:
    """ŷ: 0 below ε (Eq. 12)."""
    return np.where(labels < threshold, 0, labels).astype(np.float32)
