"""LNC, Learning with Noisy Correspondence (two networks, A and B): METHODS 3. NCR is its predecessor (`ncr.py`).

    ℓ_i  = Σ_t̂ [α - S_ii + S(v_i, t̂)]_+ + Σ_v̂ [α - S_ii + S(v̂, t_i)]_+      Eq. 1-2, as means over the batch: `triplet`
    w_i  = p(clean | ℓ_i), posterior of the small-mean Gaussian              Eq. 3    `gmm_split`; A takes B's, B takes A's
    L_mr = mean_i (P_i - γ_i)²                                               Eq. 4    `momentum_loss`
    γ_i ← β γ_i + (1 - β) P_i, at first 1                                    Eq. 5    `moved`
    L_w  = L_tri + λ L_mr                                                    Eq. 6    `Lnc.warm_up`
    random half of {w^A < ½ and w^B < ½} is left out of a warm-up epoch      Eq. 7    `division.abandoned`
    ŷ_i  = w_i + (1 - w_i) P^k_i if clean, (P^A_i + P^B_i) / 2 if noisy      Eq. 8    `rectified`
    P_i  = clip(s_i, 0, α) / τ                                               Eq. 9    `correspondence.similarity_prediction`
    L_soft = [α̂_i - S_ii + S(v_i, t_h)]_+ + [α̂_i - S_ii + S(v_h, t_i)]_+     Eq. 10   `CoTeaching.soft`
    α̂_i = Ψ(ŷ_i)                                                             Eq. 11   `margins.soft_margin`

v_i, t_i: image and text of pair i. S: their similarity. α: margin. t_h, v_h: the hardest negatives in the batch. P_i: how
sure a network is that a pair belongs together. β and λ are nowhere public; .9 and 1 are this project's choice.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from noisegate.pipeline.methods.mixtures import Split, gmm_split
from noisegate.trainers.losses import triplet

from .base import Array, MethodConfig, Run, Seen
from .co_teaching import CoTeaching, CoTeachingConfig, Halves, Look, mean_of_known
from .correspondence import hinge_prediction, similarity_prediction
from .division import abandoned
from .margins import Recast, soft_margin

__all__ = ["Lnc", "LncConfig", "RectifierConfig", "momentum_loss", "moved", "rectified"]


class RectifierConfig(CoTeachingConfig):
    """What LNC and NCR can be told."""

    momentum: float = Field(default=0.9, ge=0, lt=1)
    """β of Eq. 5"""
    momentum_weight: float = Field(default=1.0, ge=0)
    """λ of Eq. 6; 0 leaves the momentum regularisation out"""
    abandon: float = Field(default=0.5, ge=0, le=1)
    """share of the doubly noisy samples that a warm-up epoch leaves out (Eq. 7)"""
    prediction: Literal["similarity", "hinges"] = "similarity"
    """similarity: Eq. 9; hinges: as NCR's published code"""
    recast: Recast = "exponential"
    """Ψ1 linear, Ψ2 exponential, Ψ3 sine, Ψ4 sigmoid"""
    recast_base: float = Field(default=10.0, gt=0)
    """m of Ψ2"""
    noisy_from: float = Field(default=0.0, ge=0, le=1)
    """share of the epochs after which noisy pairs contribute too"""


class LncConfig(RectifierConfig):
    """LNC's settings; the paper's data sets take 3 (Flickr30K), 10 (MS-COCO) and 5 (CC152K) epochs of warm-up."""

    name: Literal["lnc"] = "lnc"


class Lnc(CoTeaching):
    """Learn by the partner's confidences, with margins that follow the rectified correspondence."""

    Config: ClassVar[type[MethodConfig]] = LncConfig
    config: RectifierConfig
    column: ClassVar[str] = "lnc"

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        self.gamma = np.ones((2, 0), np.float32)
        self.total_epochs = 1

    def epochs(self, wanted: int) -> int:
        self.total_epochs = super().epochs(wanted)
        return self.total_epochs

    def prepare(self, run: Run) -> None:
        super().prepare(run)
        self.gamma = np.ones((2, run.total_rows), np.float32)

    # --- warm-up ------------------------------------------------------------------------------------------------------------

    def warm_up(self, seen: Seen, network: int, run: Run) -> Look:
        each, prediction = self._looked(seen)
        loss = (self.plain(seen) if self.loss_name == "info_nce" else each).mean()
        if self.config.momentum_weight > 0:
            rows = seen.rows.cpu().numpy()
            gamma = torch.from_numpy(self.gamma[network, rows]).to(each)
            loss = loss + self.config.momentum_weight * momentum_loss(prediction, gamma)
            self.gamma[network, rows] = moved(gamma, prediction, self.config.momentum).cpu().numpy()
        return Look(loss, each, prediction)

    def divides_in_warm_up(self) -> bool:
        return self.config.abandon > 0

    def after_division(self, run: Run) -> None:
        """Random noise abandon."""
        self.kept = ~abandoned(self.confidence, self.config.threshold, self.config.abandon, run.random("abandon"))

    # --- training ------------------------------------------------------------------------------------------------------------

    def split(self, losses: NDArray[np.float32]) -> Split:
        return gmm_split(losses)

    def look(self, seen: Seen, network: int, run: Run) -> tuple[Tensor, Tensor]:
        return self._looked(seen)

    def train(self, seen: Seen, network: int, halves: Halves, run: Run) -> Look:
        with torch.no_grad():
            each, prediction = self._looked(seen)
            label = rectified(halves, prediction)
            margin = soft_margin(
                label,
                self.config.margin,
                self.config.recast,
                base=self.config.recast_base,
                boundary=_between(label, halves.clean),
            )
        loss = self.soft(seen, label, margin)
        if run.epoch < self.config.noisy_from * self.total_epochs:
            loss = loss * halves.clean
        logs = {"clean_share": halves.clean.float().mean(), "label": label.mean()}
        return Look(loss.mean(), each, prediction, logs)

    def _looked(self, seen: Seen) -> tuple[Tensor, Tensor]:
        """ℓ_i and P_i of a batch."""
        assert seen.similarity is not None
        same = self.same(seen)
        each = triplet(seen.similarity, self.config.margin, same=same)
        predict = similarity_prediction if self.config.prediction == "similarity" else hinge_prediction
        return each, predict(seen.similarity, self.config.margin, same)

    # --- what it remembers -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        return super().state_dict() | {"gamma": self.gamma}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        self.gamma = np.array(state["gamma"])

    def sample_columns(self) -> dict[str, Array]:
        """Confidence w, prediction P and rectified correspondence ŷ, means over both networks."""
        confidence, clean = self.final_halves()
        predictions = [torch.from_numpy(one) for one in self.prediction]
        labels = [
            rectified(
                Halves(
                    torch.from_numpy(clean[1 - k]),
                    torch.from_numpy(confidence[1 - k]).nan_to_num(1.0),
                    predictions[1 - k],
                ),
                predictions[k],
            ).numpy()
            for k in (0, 1)
        ]
        return {
            f"{self.column}_confidence": mean_of_known(confidence),
            f"{self.column}_prediction": mean_of_known(self.prediction),
            f"{self.column}_label": mean_of_known(np.stack(labels)),
        }


def momentum_loss(prediction: Tensor, gamma: Tensor) -> Tensor:
    """L_mr = mean_i (P_i - γ_i)² (Eq. 4): γ stands for what was predicted until now, and is a constant."""
    return (prediction - gamma.detach()).square().mean()


def moved(gamma: Tensor, prediction: Tensor, momentum: float) -> Tensor:
    """γ_i ← β γ_i + (1 - β) P_i (Eq. 5), without gradient.

    >>> moved(torch.ones(1), torch.zeros(1), 0.75).tolist()
    [0.75]
    """
    return momentum * gamma + (1 - momentum) * prediction.detach()


def rectified(halves: Halves, prediction: Tensor) -> Tensor:
    """ŷ (B,) of Eq. 8: of clean pairs w_i + (1 - w_i) P^k_i, of noisy ones the mean of both networks' predictions.

    prediction: (B,) P^k of the network that learns, which stands alone where its partner has none yet.
    """
    clean = halves.confidence + (1 - halves.confidence) * prediction
    partner = torch.where(halves.prediction.isnan(), prediction, halves.prediction)
    return torch.where(halves.clean, clean, (prediction + partner) / 2)


def _between(label: Tensor, clean: Tensor) -> float:
    """div of Ψ4: half-way between the mean labels of the two halves, or the mean where there is one half only."""
    if bool(clean.all()) or not bool(clean.any()):
        return float(label.mean())
    return float(label[clean].mean() + label[~clean].mean()) / 2
