"""DECL, Deep Evidential Cross-modal Learning (Qin et al., ACM MM 2022).

    e_ij = exp(s_ij / τ): evidence that image i and text j belong together                `evidence`
    α_ij = e_ij + 1, strengths S_i = Σ_j α_ij of a Dirichlet law over the K texts         `evidential_loss`
    u_i  = K / S_i: uncertainty; the same with images for each text                       `uncertainty`
    y'_i = 1 where the pair has the largest e_ij + e_ji of its row, else 0                `predict_clean`
    L_e,i = Σ_j (y_ij - α_ij / S_i)² + α_ij (S_i - α_ij) / (S_i² (S_i + 1))
            + λ2 KL(D(α̃_i), D(1)), α̃_ij = (1 - y_ij) e_ij + 1, y_ii = y'_i, y_ij = 0      `evidential_loss`
    L_h,i = mean over the n hardest negatives of [m - s_ii + s_ij]_+, both ways           `dynamic_hinge`
    n    = from all negatives of a batch down to μ as training goes on                    `Decl.hardness`
    L    = mean_i L_e,i (both ways) + λ1 Σ_i y'_i L_h,i                                   `Decl.loss`

For a pretrained target, not the paper's (`loss: info_nce`):
    ỹ_i  = 2 e_ii / max_j (e_ij + e_ji): 1 where y'_i is 1, and less the more another pair is preferred   `soft_belief`
    L    = mean_i ỹ_i InfoNCE_i                                                           `Decl.loss`

s: similarity in [-1, 1]. m: margin. y' is found anew before each epoch after the warm-up, in which all pairs count as given. A
pair that is not believed is a negative (its evidence is pushed down) and has no hinge. The hinges are added up over the batch,
as published: without them the divergence pushes all cosines apart, and a network of cosines collapses.

Hinges ruin a pretrained network of cosines, and a weak one believes so few pairs that with y' it would learn from almost
nothing; therefore ỹ is used there.

The published code squashes SGRAF's last number by tanh; here s is the cosine, or 2 S - 1 of a target whose S is a sigmoid.
There n falls by η = .025 with each update, from 128 to 5 in the first tenth of the training on Flickr30K; here the tenth is the
setting, whatever the number of updates.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from noisegate.trainers.data import Batch
from noisegate.trainers.losses import hinges, info_nce
from noisegate.trainers.targets import TargetConfig

from .base import ALL, Array, Method, MethodConfig, Run, Seen, StepLoss, check_warmup

PAPER_LOSS, PRETRAINED_LOSS = "evidential", "info_nce"
"""of `loss: auto`: for a network from scratch, and for a pretrained one"""


class DeclConfig(MethodConfig):
    """Constants of the published code."""

    name: Literal["decl"] = "decl"
    loss: Literal["auto", "evidential", "info_nce"] = "auto"
    """evidential: as published; info_nce: not the paper's, weighed by ỹ, for targets that learnt by it. auto: info_nce for a
    pretrained target, else evidential"""
    warmup: int | None = Field(default=None, ge=0)
    """epochs in which all pairs count as given; None: none for a pretrained network, else a ninth of all, at least one"""
    temperature: float | None = Field(default=0.1, ge=0.07)
    """τ of the evidence; below .07 the divergence is beyond float32: at .05 its gradient is off by two thirds"""
    hinge: float = Field(default=0.8, ge=0)
    """λ1; near 0 a network of cosines collapses"""
    divergence: float = Field(default=0.1, ge=0)
    """λ2"""
    hardest: int = Field(default=5, ge=1)
    """μ: negatives of each pair at the end"""
    anneal: float = Field(default=0.1, ge=0, le=1)
    """share of the training until the number of negatives is down at μ; 0: μ from the start"""


class Decl(Method):
    """Evidential learning of the matches in a batch; hinges of believed pairs against increasingly hard negatives."""

    Config: ClassVar[type[MethodConfig]] = DeclConfig
    tasks: ClassVar[tuple[str, ...]] = ("retrieval",)
    remembers: ClassVar[tuple[str, ...]] = ("clean", "belief", "doubt")
    config: DeclConfig

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        self.total_epochs, self.warmup = 1, 0
        self.clean = np.ones(0, bool)  # y'
        self.belief = np.ones(0, np.float32)  # ỹ
        self.doubt = np.zeros(0, np.float32)  # mean of both u

    def _loss_for(self, task: str) -> str:
        return PAPER_LOSS if self.config.loss == "auto" else self.config.loss

    def target_settings(self, config: TargetConfig) -> TargetConfig:
        """Choose `loss: auto` by whether the target is pretrained; its settings stay as they are."""
        if self.config.loss == "auto" and not config.from_scratch:
            self.loss_name = PRETRAINED_LOSS
        return config

    def epochs(self, wanted: int) -> int:
        check_warmup(self.config.warmup, wanted, wanted // 9)
        self.total_epochs = wanted
        return wanted

    def prepare(self, run: Run) -> None:
        usual = max(1, self.total_epochs // 9) if run.network().config.from_scratch else 0
        self.warmup = usual if self.config.warmup is None else self.config.warmup
        if self.config.loss == "auto" and self.loss_name == PRETRAINED_LOSS:
            run.note(
                f"decl: the target is pretrained, so pairs learn by {PRETRAINED_LOSS} weighed by their evidence; "
                f"the paper's own loss is method.loss={PAPER_LOSS}"
            )
        self.clean, self.belief = np.ones(run.total_rows, bool), np.ones(run.total_rows, np.float32)
        self.doubt = np.full(run.total_rows, np.nan, np.float32)

    def begin_epoch(self, run: Run) -> None:
        """Compute y' and ỹ of all pairs."""
        if run.epoch < self.warmup:
            return

        def measure(seen: Seen) -> Mapping[str, Tensor]:
            found = self._evidence(seen, run)
            doubt = (uncertainty(found) + uncertainty(found.T)) / 2
            return {"clean": predict_clean(found).float(), "belief": soft_belief(found), "doubt": doubt}

        measured = run.measure(measure)
        self.clean, self.doubt = np.nan_to_num(measured["clean"], nan=1.0) > 0, measured["doubt"]
        self.belief = np.nan_to_num(measured["belief"], nan=1.0).astype(np.float32)
        known = np.isfinite(self.doubt)
        run.note(f"decl: {int(self.clean[known].sum()):,} of {int(known.sum()):,} pairs are believed")

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        seen = run.forward(batches[ALL])
        if len(seen.rows) < 2:
            return StepLoss(None)
        rows = seen.rows.cpu().numpy()
        if self.loss_name == PRETRAINED_LOSS:
            assert seen.similarity is not None
            belief = torch.from_numpy(self.belief[rows]).to(seen.rows.device)
            pulled = belief * info_nce(seen.similarity, seen.temperature, self._same(seen))
            return StepLoss(self.weigh(pulled, seen.rows).mean(), {"belief": belief.mean()})
        believed = torch.from_numpy(self.clean[rows]).to(seen.rows.device)
        found = self._evidence(seen, run)
        each = sum(evidential_loss(side, believed, self.config.divergence) for side in (found, found.T))
        negatives = self.hardness(len(seen.rows), run)
        hinge = believed * dynamic_hinge(self._scores(seen, run), negatives, self.config.margin, self._same(seen))
        each = each + self.config.hinge * len(hinge) * hinge  # the mean of these is the sum of the hinges
        logs: dict[str, float | Tensor] = {"believed": believed.float().mean(), "negatives": negatives}
        logs["doubt"] = uncertainty(found.detach()).mean()
        return StepLoss(self.weigh(each, seen.rows).mean(), logs)

    def hardness(self, size: int, run: Run) -> int:
        """Return n for a batch of `size` pairs."""
        done = min(1.0, run.done / self.config.anneal) if self.config.anneal else 1.0
        least = min(self.config.hardest, size - 1)
        return max(least, int((size - 1) - done * (size - 1 - least)))

    def _scores(self, seen: Seen, run: Run) -> Tensor:
        """s (B, B) in [-1, 1]."""
        assert seen.similarity is not None
        return 2 * seen.similarity - 1 if run.network().config.name == "sgraf" else seen.similarity

    def _same(self, seen: Seen) -> Tensor | None:
        return seen.same if self.config.mask_same else None

    def _evidence(self, seen: Seen, run: Run) -> Tensor:
        return evidence(self._scores(seen, run).float(), self.config.temperature or 0.1, self._same(seen))

    def sample_columns(self) -> dict[str, Array]:
        """Return the values at the start of the last epoch; nothing after a warm-up alone."""
        if np.isnan(self.doubt).all():
            return {}
        return {"clean": self.clean, "decl_uncertainty": self.doubt}


def evidence(scores: Tensor, tau: float, same: Tensor | None = None) -> Tensor:
    """e (B, B) of scores in [-1, 1]; there is none between different samples that show the same picture or text.

    >>> evidence(torch.tensor([[0.5, -0.5]]), 0.5).log().tolist()
    [[1.0, -1.0]]
    """
    found = (scores / tau).exp()
    if same is None:
        return found
    return found.masked_fill(same & ~torch.eye(len(scores), dtype=torch.bool, device=scores.device), 0)


def uncertainty(found: Tensor) -> Tensor:
    """u (B,) = K / Σ_j (e_ij + 1), in (0, 1]: 1 where there is no evidence for anything.

    >>> uncertainty(torch.tensor([[2.0, 0.0], [0.0, 0.0]])).tolist()
    [0.5, 1.0]
    """
    return found.shape[1] / (found + 1).sum(dim=1)


def predict_clean(found: Tensor) -> Tensor:
    """y' (B,) bool: whether e_ij + e_ji is largest for the given pair, j = i.

    >>> predict_clean(torch.tensor([[2.0, 1.0, 0.0], [4.0, 2.0, 0.0], [0.0, 0.0, 1.0]])).tolist()
    [False, False, True]
    """
    total = found + found.T
    return total.argmax(dim=1) == torch.arange(len(total), device=total.device)


def soft_belief(found: Tensor) -> Tensor:
    """ỹ (B,) in [0, 1]: evidence (B, B) of the given pair, both ways, over the largest of any pair of its row.

    >>> soft_belief(torch.tensor([[2.0, 1.0, 0.0], [4.0, 2.0, 0.0], [0.0, 0.0, 1.0]])).tolist()  # 4 of 5, 4 of 5, 2 of 2
    [0.800000011920929, 0.800000011920929, 1.0]
    """
    total = found + found.T
    return total.diagonal() / total.max(dim=1).values


def evidential_loss(found: Tensor, believed: Tensor, divergence: float = 0.1) -> Tensor:
    """L_e (B,) of evidence (B, K) with the given match of row i in column i, and y' (B,) bool.

    >>> round(float(evidential_loss(torch.tensor([[3.0, 0.0]]), torch.tensor([True]), 0.0)[0]), 4)  # α 4, 1: .04 + .04 + .0533
    0.1333
    """
    alpha = found + 1
    strength = alpha.sum(dim=1, keepdim=True)
    y = torch.eye(len(found), found.shape[1], device=found.device, dtype=found.dtype) * believed[:, None]
    p = alpha / strength
    error = (y - p).square().sum(dim=1)
    variance = (p * (1 - p) / (strength + 1)).sum(dim=1)
    return error + variance + divergence * divergence_from_uniform((1 - y) * found + 1)


def divergence_from_uniform(alpha: Tensor) -> Tensor:
    """(B,) KL(D(α), D(1)) of Dirichlet laws with parameters (B, K).

    >>> divergence_from_uniform(torch.ones(1, 3)).tolist()
    [0.0]
    """
    total = alpha.sum(dim=1)
    classes = torch.full_like(total, alpha.shape[1])
    spread = ((alpha - 1) * (alpha.digamma() - total.digamma()[:, None])).sum(dim=1)
    return total.lgamma() - alpha.lgamma().sum(dim=1) - classes.lgamma() + spread


def dynamic_hinge(scores: Tensor, negatives: int, margin: float = 0.2, same: Tensor | None = None) -> Tensor:
    """L_h (B,): mean of the largest `negatives` hinges of each pair, both ways added.

    >>> scores = torch.tensor([[0.5, 0.4, 0.0], [0.1, 0.5, 0.0], [0.0, 0.0, 0.5]])
    >>> [round(float(loss), 4) for loss in dynamic_hinge(scores, 2)]  # .1 of two, and none
    [0.05, 0.05, 0.0]
    """
    rows, columns = hinges(scores, margin, same)
    return (
        rows.topk(negatives, dim=1).values.sum(dim=1) + columns.topk(negatives, dim=0).values.sum(dim=0)
    ) / negatives
