"""BiCro, Bidirectional Cross-modal similarity consistency (Yang et al., CVPR 2023). Two networks, A and B.

    ℓ_i  = mean hinges of pair i, both ways                                          pipeline.methods.losses: `triplet`
    warm-up: learn from the κ of the batch with the smallest ℓ                       `BiCro.warm_up`
    p_i  = clean posterior of a Beta mixture over ℓ; clean where p_i > δ             pipeline.methods.mixtures: `bmm_split`
    anchors: the share a of the batch's clean pairs with the largest prediction      `choose_anchors`
    S_I2T,i = min(r, 1/r), r = S(I_i, I_c) / S(T_i, T_c), c: anchor nearest to I_i   `consistency`
    S_T2I,i: the same with the anchor nearest to T_i                                 `consistency`
    ỹ_i  = (S_I2T,i + S_T2I,i) / 2 of noisy pairs, 0 where it is not above ε         `soft_labels`
    ỹ_i  = ½ + (S_I2T,i + S_T2I,i) / 4 of clean pairs, 1 of anchors                  `soft_labels`
    L_soft with the margin α̂_i = (m^ỹ_i - 1) / (m - 1) α, the hardest negatives      `CoTeaching.soft_loss`, `soft_margin`

Similar images should have similar texts: a pair that is as near to its anchor in one modality as in the other belongs
together. S(I, I), S(T, T): cosines of whole images and whole texts, none below 0. A learns by B's division and B by A's
(`co_teaching.py`); with procedure=paper the partner's vectors make the labels as well, with lean those of the network itself.

What the paper leaves open is taken from its published code: κ, a, ε, labels of clean pairs, and noisy pairs from the middle of
the epochs on. There a margin may be that of another pair of the batch; here it is the pair's own.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from noisegate.pipeline.methods import Split, bmm_split, gmm_split, predict_match_by_hinges
from noisegate.pipeline.system import Float32, Index, Mask
from noisegate.trainers.data import Batch
from noisegate.trainers.losses import triplet
from noisegate.trainers.targets import full_precision

from .base import Array, MethodConfig, Run, Seen, StepLoss
from .co_teaching import CoTeaching, CoTeachingConfig, NetworkStep, PartnerView, clean_rows, mean_of_known
from .lnc import Recast, soft_margin

Vectors = tuple[Tensor, Tensor]
"""unit rows (n, d) of images, and of texts"""
SMALLEST = 1e-6
"""for cosines that are divided"""


class BiCroConfig(CoTeachingConfig):
    """Constants of the published scripts, which warm up for 10 of 50 epochs."""

    name: Literal["bicro"] = "bicro"
    warmup_share: float = Field(default=0.5, gt=0, le=1)
    """κ: share of each batch of the warm-up that is learnt from, that of the smallest losses; published: .3 to .5"""
    anchors: float = Field(default=0.1, gt=0, le=1)
    """a: share of the clean pairs of a batch that are anchors; 1: all"""
    label_threshold: float = Field(default=0.5, ge=0, lt=1)
    """ε: a noisy pair with a label up to this has the label 0"""
    mixture: Literal["beta", "gauss"] = "beta"
    recast: Recast = "exponential"
    """of labels to margins: LNC's Ψ1 linear, Ψ2 exponential, Ψ3 sine, Ψ4 sigmoid"""
    recast_base: float = Field(default=10.0, gt=0)
    """m of Ψ2"""


class BiCro(CoTeaching):
    """Learn by the partner's halves; soft labels by how alike images and texts see a pair's place among clean ones."""

    Config: ClassVar[type[MethodConfig]] = BiCroConfig
    config: BiCroConfig
    asks_partner: ClassVar[bool] = False

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        self._anchors: dict[int, Vectors] = {}  # anchors of each network in this step, for its batch of noisy pairs

    def split(self, losses: Float32) -> Split:
        return bmm_split(losses) if self.config.mixture == "beta" else gmm_split(losses)

    def choose_clean(self, confidence: Float32) -> Mask:
        return clean_rows(confidence, self.config.threshold, inclusive=False, one_percent=self.config.one_percent)

    def measure_batch(self, seen: Seen, network: int, run: Run) -> tuple[Tensor, Tensor]:
        """Compute ℓ, and the prediction by which anchors are chosen."""
        assert seen.similarity is not None
        same = self.same(seen)
        loss = triplet(seen.similarity, self.config.margin, same=same)
        return loss, predict_match_by_hinges(seen.similarity, self.config.margin, same)

    def warm_up(self, seen: Seen, network: int, run: Run) -> NetworkStep:
        division, _ = self.measure_batch(seen, network, run)
        each = self.plain_loss(seen) if self.loss_name == "info_nce" else division
        count = max(1, int(self.config.warmup_share * len(each)))
        chosen = torch.zeros_like(each).index_fill(
            0, each.detach().topk(count, largest=False).indices, len(each) / count
        )
        return NetworkStep(each * chosen, division, torch.full_like(division, torch.nan))

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        self._anchors = {}
        return super().loss(batches, run)

    def ask_partner(self, batch: Batch, rows: Index, network: int, run: Run) -> PartnerView:
        """With procedure=paper, also return the partner's view of this batch, whose vectors make the labels."""
        view = super().ask_partner(batch, rows, network, run)
        if self.config.procedure == "lean":
            return view
        seen = run.observe(batch, 1 - network)
        return replace(view, seen=seen, prediction=self.measure_batch(seen, 1 - network, run)[1])

    def train(self, seen: Seen, network: int, partner: PartnerView, run: Run) -> NetworkStep:
        with torch.no_grad():
            division, prediction = self.measure_batch(seen, network, run)
            view = seen if partner.seen is None else partner.seen
            label = self._label(view, network, partner, prediction if partner.seen is None else partner.prediction)
            margin = soft_margin(label, self.config.margin, self.config.recast, base=self.config.recast_base)
        loss = self.soft_loss(seen, label, margin)
        if self.holds_noisy_back(run):
            loss = loss * partner.clean
        logs = {"clean_share": partner.clean.float().mean(), "label": label.mean()}
        return NetworkStep(loss, division, label, logs)

    def _label(self, view: Seen, network: int, partner: PartnerView, prediction: Tensor) -> Tensor:
        """Compute ỹ (B,); all 0 in a step without any clean pair."""
        assert view.texts is not None
        sides = (view.images, view.texts)
        images, texts = (F.normalize(side["vectors"].detach().float(), dim=-1) for side in sides)
        anchors = choose_anchors(prediction, partner.clean, self.config.anchors)
        if bool(anchors.any()):
            self._anchors[network] = images[anchors], texts[anchors]
        if network not in self._anchors:
            return torch.zeros_like(prediction)
        agreement = consistency(images, texts, *self._anchors[network])
        return soft_labels(agreement, partner.clean, anchors, self.config.label_threshold)

    def sample_columns(self) -> dict[str, Array]:
        """Return p and ỹ, means over both networks."""
        confidence, _ = self.final_division()
        return {"bicro_probability": mean_of_known(confidence), "bicro_label": mean_of_known(self.prediction)}


def choose_anchors(prediction: Tensor, clean: Tensor, share: float) -> Tensor:
    """Choose of n clean pairs the floor(share n) + 1 with the largest prediction (all if share is 1), (B,) bool.

    >>> choose_anchors(torch.tensor([0.9, 0.2, 0.8, 1.0]), torch.tensor([True, True, True, False]), 0.4).tolist()
    [True, False, True, False]
    """
    rows = clean.nonzero()[:, 0]
    count = min(len(rows), int(share * len(rows)) + 1)
    anchors = torch.zeros_like(clean)
    anchors[rows[prediction[rows].topk(count).indices]] = True
    return anchors


def consistency(images: Tensor, texts: Tensor, anchor_images: Tensor, anchor_texts: Tensor) -> Tensor:
    """(B,) (S_I2T + S_T2I) / 2 in [0, 1], of unit rows (B, d) and those of the anchors (n, d).

    >>> images, texts = torch.tensor([[0.6, 0.8]]), torch.tensor([[0.0, 1.0]])
    >>> consistency(images, texts, torch.eye(2), torch.tensor([[0.8, 0.6], [0.6, 0.8]]))  # anchor 2 both times: .8 and .8
    tensor([1.])
    """
    with full_precision(images):
        by_image, by_text = (
            (own @ of.T).clamp(min=SMALLEST) for own, of in ((images, anchor_images), (texts, anchor_texts))
        )
    agreements = []
    for nearest in (by_image.argmax(dim=1, keepdim=True), by_text.argmax(dim=1, keepdim=True)):
        ratio = by_image.gather(1, nearest)[:, 0] / by_text.gather(1, nearest)[:, 0]
        agreements.append(torch.minimum(ratio, 1 / ratio))
    return (agreements[0] + agreements[1]) / 2


def soft_labels(agreement: Tensor, clean: Tensor, anchors: Tensor, threshold: float = 0.5) -> Tensor:
    """ỹ (B,): agreement of noisy pairs, 0 up to the threshold; ½ + agreement / 2 of clean ones; 1 of anchors.

    >>> clean, anchors = torch.tensor([False, False, True, True]), torch.tensor([False, False, False, True])
    >>> soft_labels(torch.tensor([0.5, 0.7, 0.6, 0.6]), clean, anchors).tolist()
    [0.0, 0.699999988079071, 0.800000011920929, 1.0]
    """
    noisy = torch.where(agreement > threshold, agreement, 0.0)
    return torch.where(anchors, 1.0, torch.where(clean, 0.5 + agreement / 2, noisy))
