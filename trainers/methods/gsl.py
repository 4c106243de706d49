"""GSL, Geometric-Semantic Learning (Liu et al., CVPR 2026). A RECONSTRUCTION from the supplement and reading notes.

    z(x) = [|F(x)|; arg F(x)], centred                                       Eq. 7      pipeline.methods.gsl: `polar_spectrum`
    y*  = (min(r, 1/r) by image anchors + the same by text anchors) / 2      Eq. 8-11   pipeline.methods.gsl: `anchor_labels`
    L_intra,i = mean_j (S(I_i, I_j) - S(T_i, T_j))²                          Eq. 13     pipeline.methods.gsl: `intra_loss`
    L_inter,i = - mean_j (S(I_i, T_j) - S(I_j, T_i))²                        Eq. 15     pipeline.methods.gsl: `inter_loss`
    L_SCT = L_w + ζ L_intra + η L_inter                                      Eq. 16     `Gsl.train`
    L_w  = [α̂_i - S_ii + S(I_i, T_h)]_+ + [α̂_i - S_ii + S(I_h, T_i)]_+       Eq. 17     `CoTeaching.soft_loss`
    p_i  = clean posterior of a Beta mixture over L_SCT; clean where p_i > δ            pipeline.methods.mixtures: `bmm_split`

I, T: images and texts. S: similarity. α̂_i = Ψ2(y_i): margin of a pair with label y_i (LNC Eq. 11), 1 for clean pairs and y*
for noisy ones. A warm-up with L_w alone comes first; then, each epoch, the halves of either network teach the other
(Algorithm 1, `co_teaching.py`).

What the public sources leave open is a switch: the sign of L_inter (the notes stress the minus, their nearest relative SPS
has a plus), means or sums, what z is centred by, anchors in the frequency or the spatial domain.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from noisegate.pipeline.methods import RECONSTRUCTION, Split, anchor_labels, bmm_split, inter_loss, intra_loss
from noisegate.pipeline.system import Float32, Index, Mask
from noisegate.trainers.data import Batch
from noisegate.trainers.losses import triplet

from .base import Array, MethodConfig, Run, Seen, StepLoss
from .co_teaching import CoTeaching, CoTeachingConfig, NetworkStep, PartnerView, clean_rows, mean_of_known
from .lnc import soft_margin

UNKNOWN_LABEL = 0.5
"""of a noisy pair that never had two anchors"""


class GslConfig(CoTeachingConfig):
    """A reconstruction from the supplement and reading notes: what these leave open is a switch."""

    name: Literal["gsl"] = "gsl"
    zeta: float = Field(default=1.0, ge=0)
    """ζ of Eq. 16"""
    eta: float = Field(default=0.1, ge=0)
    """η of Eq. 16"""
    inter_sign: Literal[-1, 1] = -1
    """of L_inter: -1 as the notes have it, 1 as SPS"""
    reduction: Literal["mean", "sum"] = "mean"
    """over the other samples of the batch in L_intra and L_inter; the sums drown L_w"""
    domain: Literal["fourier", "spatial"] = "fourier"
    """where anchors are compared"""
    centring: Literal["bank", "per_vector", "none"] = "bank"
    """of what anchors are compared by: minus the batch's mean, minus each vector's own mean, or none"""
    negative: Literal["floor", "shift"] = "floor"
    """negative cosines before they are divided: max(s, 1e-6), or (1 + s) / 2, which makes all labels large"""
    warmup_negatives: Literal["hardest", "mean"] = "hardest"
    """in the warm-up: Eq. 17 to the letter, or all negatives alike as the NCR family does"""


class Gsl(CoTeaching):
    """A reconstruction. Learn by the partner's halves; labels of noisy pairs from two clean anchors of the batch."""

    Config: ClassVar[type[MethodConfig]] = GslConfig
    config: GslConfig
    asks_partner: ClassVar[bool] = False
    provenance: ClassVar[str] = RECONSTRUCTION

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        self._clean_half: dict[int, tuple[Array, Array]] = {}  # of each network in this step: images and texts

    def prepare(self, run: Run) -> None:
        super().prepare(run)
        run.note(RECONSTRUCTION)

    def split(self, losses: Float32) -> Split:
        return bmm_split(losses)

    def choose_clean(self, confidence: Float32) -> Mask:
        return clean_rows(confidence, self.config.threshold, inclusive=False, one_percent=self.config.one_percent)

    def measure_batch(self, seen: Seen, network: int, run: Run) -> tuple[Tensor, Tensor]:
        """Compute L_SCT with all labels 1, and return the present labels."""
        constraint = self._constraint(seen, network, run)
        return self._hardest(seen) + constraint, self._labels(seen, network)

    def warm_up(self, seen: Seen, network: int, run: Run) -> NetworkStep:
        """L_w alone, all labels 1."""
        hardest = self.config.warmup_negatives == "hardest" and self.loss_name != "triplet"
        each = self.plain_loss(seen, hardest)
        with torch.no_grad():
            division, _ = self.measure_batch(seen, network, run)
        return NetworkStep(each, division, torch.full_like(division, torch.nan))

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        self._clean_half = {}
        return super().loss(batches, run)

    def ask_partner(self, batch: Batch, rows: Index, network: int, run: Run) -> PartnerView:
        """With procedure=paper, also return the network's own view of the batch in evaluation mode, which makes the labels."""
        view = super().ask_partner(batch, rows, network, run)
        return view if self.config.procedure == "lean" else replace(view, seen=run.observe(batch, network))

    def train(self, seen: Seen, network: int, partner: PartnerView, run: Run) -> NetworkStep:
        label = self._correct(seen if partner.seen is None else partner.seen, network, partner.clean)
        constraint = self._constraint(seen, network, run)
        loss = self.soft_loss(seen, label, soft_margin(label, self.config.margin)) + constraint
        if self.holds_noisy_back(run):
            loss = loss * partner.clean
        with torch.no_grad():
            division = self._hardest(seen) + constraint
        logs = {"clean_share": partner.clean.float().mean(), "label": label.mean()}
        return NetworkStep(loss, division, label, logs)

    def _hardest(self, seen: Seen) -> Tensor:
        """L_w with all labels 1."""
        assert seen.similarity is not None
        return triplet(seen.similarity, self.config.margin, hardest=True, same=self.same(seen))

    def _constraint(self, seen: Seen, network: int, run: Run) -> Tensor:
        """(B,) ζ L_intra + η L_inter."""
        assert seen.similarity is not None and seen.texts is not None
        target = run.network(network)
        images, texts = (target.vector_similarity(side, side) for side in (seen.images, seen.texts))
        total = self.config.zeta * intra_loss(images, texts) + self.config.eta * inter_loss(
            seen.similarity, self.config.inter_sign
        )
        return total * len(total) if self.config.reduction == "sum" else total

    def _correct(self, seen: Seen, network: int, clean: Tensor) -> Tensor:
        """Return labels (B,): 1 for clean pairs, y* for noisy ones; a noisy pair without two anchors keeps its label.

        With procedure=paper the noisy batch of a step finds its anchors in the clean batch (Algorithm 1, lines 12-13), which
        comes first.
        """
        assert seen.texts is not None
        images, texts = (side["vectors"].detach().float().cpu().numpy() for side in (seen.images, seen.texts))
        is_clean, same = clean.cpu().numpy(), None if seen.same is None else seen.same.cpu().numpy()
        if is_clean.any():
            self._clean_half[network] = images[is_clean], texts[is_clean]
        elif network in self._clean_half:
            half = self._clean_half[network]
            images, texts = (np.concatenate(both) for both in zip((images, texts), half, strict=True))
            is_clean = np.arange(len(images)) >= len(clean)
            same = (
                None if same is None else np.pad(same, (0, len(half[0])))
            )  # pairs of the other batch are identified by their rows
        stars = anchor_labels(
            images,
            texts,
            is_clean,
            same,
            domain=self.config.domain,
            centring=self.config.centring,
            negative=self.config.negative,
        )
        corrected = torch.from_numpy(stars[: len(clean)]).to(clean.device)
        before = self._labels(seen, network).nan_to_num(UNKNOWN_LABEL)
        return torch.where(clean, 1.0, torch.where(corrected.isnan(), before, corrected))

    def _labels(self, seen: Seen, network: int) -> Tensor:
        return torch.from_numpy(self.prediction[network, seen.rows.cpu().numpy()]).to(seen.rows.device)

    def sample_columns(self) -> dict[str, Array]:
        """Return p and y, means over both networks."""
        confidence, _ = self.final_division()
        return {"gsl_probability": mean_of_known(confidence), "gsl_label": mean_of_known(self.prediction)}
