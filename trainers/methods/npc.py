"""NPC, Negative Pre-aware Cross-modal matching (Zhang, Li and Ye, AAAI 2024).

    ℓ_i  = loss of pair i in its batch, both ways                                     `Method.losses`, InfoNCE as published
    D_c  = {i: p(clean | ℓ_i) > δ}, posterior of the small-mean Gaussian              pipeline.methods.mixtures: `gmm_split`
    m^I_i, m^T_i: the pairs of D_c whose image (text) is nearest to that of i         the memory bank: `nearest_clean`
    A'   = the network A after one trial update on the batch, all pairs alike         `Run.try_update`
    r_i  = ½ (ℓ(m^I_i; A) / ℓ(m^I_i; A') + ℓ(m^T_i; A) / ℓ(m^T_i; A'))                the negative impact: `loss_ratio`
    w_i  = tanh r_i where r_i < 1, else 1                                             `confidence_weight`
    L    = mean_i w_i ℓ_i + λ mean_i (ℓ(m^I_i) + ℓ(m^T_i))                            `Npc.loss`

If an update on a sample makes known good pairs near it worse, the sample is bad. The bank is built by the network as it is
after the warm-up: once for a pretrained network, as published, else again before every epoch (`rebuild`). The losses of bank
pairs are taken among the bank pairs of the batch.

Two things of the published code are not copied, because they contradict the paper: there the batch's losses are averaged before
the weights are applied, so that all pairs share one weight, and the bank's loss sends no gradient (here λ = 0).
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from noisegate.pipeline.methods import gmm_split
from noisegate.pipeline.neighbours import RowQuery
from noisegate.pipeline.runs import RowBlocks
from noisegate.pipeline.system import Float32, Index, Mask
from noisegate.trainers.data import Batch

from .base import ALL, Array, Method, MethodConfig, Run, Seen, StepLoss, check_warmup

QUERIES = 4096
"""rows searched at a time"""
TINY = 1e-8
"""added to both losses of a ratio: a triplet loss may be 0"""


class NpcConfig(MethodConfig):
    """Constants of the paper and its code. Its optimiser: AdamW, lr 2e-7, batch 256, 5 epochs of a pretrained CLIP."""

    name: Literal["npc"] = "npc"
    warmup: int | None = Field(default=None, ge=0)
    """epochs of plain training before the bank is built; None: none for a pretrained network, else a third of all"""
    threshold: float = Field(default=0.9, gt=0, lt=1)
    """δ of the clean posterior, strict on purpose"""
    bank_loss: float = Field(default=1.0, ge=0)
    """λ; 0: the bank only judges, which saves a forward and backward pass of two batches, as the published code has it"""
    rebuild: int | None = Field(default=None, ge=0)
    """epochs after which the bank is built again; 0: never, as published; None: never for a pretrained network, else 1, because
    a network from scratch finds few clean pairs after its warm-up"""


class Npc(Method):
    """Weigh each pair by the effect of a trial update on similar clean pairs, and learn from these as well."""

    Config: ClassVar[type[MethodConfig]] = NpcConfig
    tasks: ClassVar[tuple[str, ...]] = ("retrieval",)
    remembers: ClassVar[tuple[str, ...]] = ("image_bank", "text_bank", "probability", "weight")
    config: NpcConfig

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        self.total_epochs, self.warmup, self.rebuild = 1, 0, 0
        self.image_bank = self.text_bank = np.zeros(0, np.int64)  # m^I and m^T by row; -1: none
        self.probability = self.weight = np.zeros(0, np.float32)  # probability of being clean; w when last seen

    def epochs(self, wanted: int) -> int:
        check_warmup(self.config.warmup, wanted, wanted // 3)
        self.total_epochs = wanted
        return wanted

    def prepare(self, run: Run) -> None:
        scratch = run.network().config.from_scratch
        usual = (self.total_epochs // 3, 1) if scratch else (0, 0)
        given = (self.config.warmup, self.config.rebuild)
        self.warmup, self.rebuild = (own if value is None else value for value, own in zip(given, usual, strict=True))
        self.image_bank, self.text_bank = np.full(run.total_rows, -1), np.full(run.total_rows, -1)
        self.probability = np.full(run.total_rows, np.nan, np.float32)
        self.weight = np.full(run.total_rows, np.nan, np.float32)

    # --- the memory bank ---------------------------------------------------------------------------------------------------

    def begin_epoch(self, run: Run) -> None:
        since = run.epoch - self.warmup
        if since == 0 or (since > 0 and self.rebuild and since % self.rebuild == 0):
            self._build_bank(run)

    def _build_bank(self, run: Run) -> None:
        def measure(seen: Seen) -> Mapping[str, Tensor]:
            assert seen.texts is not None
            loss = self.losses(seen) if len(seen.rows) > 1 else torch.full(seen.rows.shape, torch.nan)
            return {"loss": loss, "images": seen.images["vectors"], "texts": seen.texts["vectors"]}

        measured = run.measure(measure)
        split = gmm_split(measured["loss"])
        self.probability = split.clean_probability.astype(np.float32)
        clean = np.nan_to_num(self.probability, nan=0.0) > self.config.threshold
        self.image_bank = nearest_clean(measured["images"], clean)
        self.text_bank = nearest_clean(measured["texts"], clean)
        run.note(
            f"npc: {int(clean.sum()):,} of {int(np.isfinite(measured['loss']).sum()):,} pairs are in the memory bank"
        )
        if split.degenerate:
            run.note(f"npc: the losses do not come apart ({split.kind}: {'; '.join(split.fallbacks)})")

    # --- a step ------------------------------------------------------------------------------------------------------------

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        batch = batches[ALL]
        seen = run.forward(batch)
        if len(seen.rows) < 2:
            return StepLoss(None)
        each = self.losses(seen)
        rows = batch.rows.cpu().numpy()
        entries = [bank[rows] for bank in (self.image_bank, self.text_bank)]
        if run.epoch < self.warmup or any((bank < 0).any() for bank in entries):
            return StepLoss(self.weigh(each, seen.rows).mean())
        banks = [run.read(bank) for bank in entries]
        before = [self.losses(run.observe(bank)) for bank in banks]
        siamese = run.try_update(each.mean())
        after = [self.losses(run.observe(bank, weights=siamese)) for bank in banks]
        weight = confidence_weight(loss_ratio(torch.stack(before), torch.stack(after)))
        self.weight[seen.rows.cpu().numpy()] = weight.cpu().numpy()
        loss = self.weigh(weight * each, seen.rows).mean()
        if self.config.bank_loss > 0:
            views = [run.forward(bank) for bank in banks]
            of_banks = [self.weigh(self.losses(view), view.rows).mean() for view in views]
            loss = loss + self.config.bank_loss * torch.stack(of_banks).sum()
        return StepLoss(loss, {"weight": weight.mean(), "harmful": (weight < 1).float().mean()})

    def sample_columns(self) -> dict[str, Array]:
        """Return w when a pair was last seen, and its clean posterior; nothing after a warm-up alone."""
        if np.isnan(self.probability).all():
            return {}
        return {"npc_weight": self.weight, "npc_probability": self.probability}


def nearest_clean(vectors: Float32, clean: Mask) -> Index:
    """Find the clean row nearest to each row by cosine, (N,); a clean row finds itself; -1 without a vector or any clean row.

    >>> vectors = np.float32([[1, 0], [0.9, 0.1], [0, 1], [np.nan, 0]])
    >>> nearest_clean(vectors, np.array([True, False, True, False])).tolist()
    [0, 0, 2, -1]
    """
    rows = np.flatnonzero(clean)
    nearest = np.full(len(vectors), -1)
    known = np.flatnonzero(np.isfinite(vectors).all(axis=1))
    if not len(rows):
        return nearest
    query = RowQuery(RowBlocks([vectors[rows]]))
    for start in range(0, len(known), QUERIES):
        some = known[start : start + QUERIES]
        place = query.nearest(vectors[some], 1)[0][:, 0]
        nearest[some] = np.where(place >= 0, rows[place], -1)
    nearest[rows] = rows
    return nearest


def loss_ratio(before: Tensor, after: Tensor) -> Tensor:
    """(B,) r: losses of the bank pairs before over after the trial update, (2, B) each, averaged over both banks.

    >>> loss_ratio(torch.tensor([[1.0, 2.0], [3.0, 1.0]]), torch.tensor([[2.0, 2.0], [4.0, 0.5]])).tolist()
    [0.625, 1.5]
    """
    return ((before + TINY) / (after + TINY)).mean(dim=0)


def confidence_weight(ratio: Tensor) -> Tensor:
    """w (B,): tanh r where the update made the bank pairs worse (r < 1), else 1; no gradient passes.

    >>> [round(weight, 4) for weight in confidence_weight(torch.tensor([0.5, 0.999, 1.0, 3.0])).tolist()]
    [0.4621, 0.7612, 1.0, 1.0]
    """
    return torch.where(ratio < 1, ratio.tanh(), 1.0).detach()
