"""LNC, Learning with Noisy Correspondence (two networks, A and B). NCR, its predecessor, is at the end.

    ℓ_i  = Σ_t̂ [α - S_ii + S(v_i, t̂)]_+ + Σ_v̂ [α - S_ii + S(v̂, t_i)]_+      Eq. 1-2   pipeline.methods.losses: `triplet`
    w_i  = p(clean | ℓ_i), posterior of the small-mean Gaussian              Eq. 3     pipeline.methods.mixtures: `gmm_split`
    L_mr = mean_i (P_i - γ_i)²                                               Eq. 4     `momentum_loss`
    γ_i ← β γ_i + (1 - β) P_i, at first 1                                    Eq. 5     `update_gamma`
    L_w  = L_tri + λ L_mr                                                    Eq. 6     `Lnc.warm_up`
    leave a random half of {w^A < ½ and w^B < ½} out of a warm-up epoch      Eq. 7     `abandon_noisy`
    ŷ_i  = w_i + (1 - w_i) P^k_i if clean, (P^A_i + P^B_i) / 2 if noisy      Eq. 8     `rectify`
    P_i  = clip(s_i / τ, 0, 1)                                               Eq. 9     pipeline.methods.lnc: `predict_match`
    L_soft = [α̂_i - S_ii + S(v_i, t_h)]_+ + [α̂_i - S_ii + S(v_h, t_i)]_+     Eq. 10    `CoTeaching.soft_loss`
    α̂_i = Ψ(ŷ_i)                                                             Eq. 11    `soft_margin`

v_i, t_i: image and text of pair i. S: their similarity. α: margin. t_h, v_h: the hardest negatives in the batch. P_i: a
network's probability that a pair matches. A learns by B's w and B by A's (`co_teaching.py`). Eq. 1-2 are means over the batch.
β and λ are nowhere public; .9 and 1 are this project's choice.

The paper's ablations (Tables 8 and 11) are switches: `warmup: 0`, `momentum_weight: 0`, `abandon: 0`, `division: none`,
`rectify: false`, `division: table` for the true w. DivideMix's division (Table 4) is the plain warm-up with `rectify: false`.
"""

import math
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.methods import Split, gmm_split, predict_match, predict_match_by_hinges
from noisegate.pipeline.system import Float32, Mask
from noisegate.trainers.losses import triplet

from .base import Array, MethodConfig, Run, Seen
from .co_teaching import CoTeaching, CoTeachingConfig, NetworkStep, PartnerView, mean_of_known
from .table_inputs import require_columns

Recast = Literal["linear", "exponential", "sine", "sigmoid"]


# --- the equations ---------------------------------------------------------------------------------------------------------


def momentum_loss(prediction: Tensor, gamma: Tensor) -> Tensor:
    """LNC Eq. 4: (B,) (P_i - γ_i)², whose mean is L_mr; γ, the past predictions, is a constant."""
    return (prediction - gamma.detach()).square()


def update_gamma(gamma: Tensor, prediction: Tensor, momentum: float) -> Tensor:
    """LNC Eq. 5: β γ_i + (1 - β) P_i, without gradient.

    >>> update_gamma(torch.ones(1), torch.zeros(1), 0.75).tolist()
    [0.75]
    """
    return momentum * gamma + (1 - momentum) * prediction.detach()


def abandon_noisy(confidence: Float32, threshold: float, share: float, rng: np.random.Generator) -> Mask:
    """LNC Eq. 7: (N,) a random `share`, floor(share n), of the n samples that both networks' w (2, N) call noisy.

    At least two of all known samples are kept: enough for a batch.
    """
    with np.errstate(invalid="ignore"):
        noisy = np.flatnonzero((confidence < threshold).all(axis=0))
    known = int((~np.isnan(confidence)).any(axis=0).sum())
    count = max(0, min(int(share * len(noisy)), known - 2))
    dropped = np.zeros(confidence.shape[1], bool)
    dropped[rng.choice(noisy, count, replace=False)] = True
    return dropped


def rectify(partner: PartnerView, prediction: Tensor) -> Tensor:
    """LNC Eq. 8: ŷ (B,), of clean pairs w_i + (1 - w_i) P^k_i, of noisy ones the mean of both networks' predictions.

    prediction: (B,) P^k of the network that learns; used alone where its partner has none yet.
    """
    clean = partner.confidence + (1 - partner.confidence) * prediction
    others = torch.where(partner.prediction.isnan(), prediction, partner.prediction)
    return torch.where(partner.clean, clean, (prediction + others) / 2)


def soft_margin(
    label: Tensor, margin: float = 0.2, recast: str = "exponential", *, base: float = 10.0, boundary: float = 0.5
) -> Tensor:
    """LNC Eq. 11: α̂_i = Ψ(ŷ_i) of labels (B,) in [0, 1], one margin for each pair, in [0, α].

    linear       Ψ1 = ŷ α
    exponential  Ψ2 = (m^ŷ - 1) / (m - 1) α with the base m; m = 1 is its limit Ψ1
    sine         Ψ3 = (sin(π ŷ - π/2) / 2 + 1/2) α
    sigmoid      Ψ4 = sigmoid((10 + 100 (div - ½)) (ŷ - div)) α with the boundary div between clean and noisy labels; its
                 slope turns negative for div < .4, so it is held at 1 or more; reaches neither 0 nor α

    >>> [round(float(margin), 4) for margin in soft_margin(torch.tensor([0.0, 0.5, 1.0]))]
    [0.0, 0.0481, 0.2]
    """
    y = label.clamp(0.0, 1.0)
    if recast == "linear":
        share = y
    elif recast == "exponential":
        share = y if abs(base - 1) < 1e-6 else torch.expm1(y * math.log(base)) / (base - 1)
    elif recast == "sine":
        share = torch.sin(math.pi * y - math.pi / 2) / 2 + 0.5
    elif recast == "sigmoid":
        share = torch.sigmoid(max(1.0, 10 + 100 * (boundary - 0.5)) * (y - boundary))
    else:
        raise ConfigError.of("recast", recast, "is unknown; use linear, exponential, sine or sigmoid")
    return share * margin


# --- the method ------------------------------------------------------------------------------------------------------------


class RectifierConfig(CoTeachingConfig):
    """Settings of LNC and NCR."""

    warmup: int = Field(default=3, ge=0)
    """epochs, of loop.epochs, in which all samples count as given; 0: none, an ablation"""
    division: Literal["losses", "table", "none"] = "losses"
    """losses: Eq. 3; table: w is 1 where `clean` of data.table holds, else 0; none: no halves, all learn by mean predictions"""
    rectify: bool = True
    """false: clean pairs have the label 1, and noisy ones do not learn"""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """β of Eq. 5"""
    momentum_weight: float = Field(default=1.0, ge=0)
    """λ of Eq. 6; 0 leaves the momentum regularisation out"""
    abandon: float = Field(default=0.5, ge=0, le=1)
    """share of the doubly noisy samples that a warm-up epoch leaves out (Eq. 7)"""
    prediction: Literal["similarity", "clamped", "hinges"] = "similarity"
    """similarity: Eq. 9, τ of s as it is; clamped: τ of s within [0, α]; hinges: as NCR's published code"""
    recast: Recast = "exponential"
    """Ψ1 linear, Ψ2 exponential, Ψ3 sine, Ψ4 sigmoid"""
    recast_base: float = Field(default=10.0, gt=0)
    """m of Ψ2"""


class LncConfig(RectifierConfig):
    """LNC's settings; the paper uses 3 (Flickr30K), 10 (MS-COCO) and 5 (CC152K) epochs of warm-up."""

    name: Literal["lnc"] = "lnc"


class Lnc(CoTeaching):
    """Learn by the partner's confidences, with margins that follow the rectified correspondence."""

    Config: ClassVar[type[MethodConfig]] = LncConfig
    config: RectifierConfig
    remembers: ClassVar[tuple[str, ...]] = (*CoTeaching.remembers, "gamma", "boundary")
    column: ClassVar[str] = "lnc"

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        if self.config.division == "none" and not self.config.rectify:
            problem = "leaves nothing to learn from with method.division=none; use method.division=losses"
            raise ConfigError.of("method.rectify", False, problem)
        self.gamma = np.ones((2, 0), np.float32)
        self.boundary = np.full(2, 0.5, np.float32)
        self._table_clean = np.zeros(0, np.float32)  # w of division=table

    def prepare(self, run: Run) -> None:
        super().prepare(run)
        self.gamma = np.ones((2, run.total_rows), np.float32)
        self.boundary = np.full(2, 0.5, np.float32)
        if self.config.division == "table":
            self._table_clean = np.nan_to_num(run.column("clean").astype(np.float32), nan=0.0)

    def table_columns(self) -> tuple[str, ...]:
        return ("clean", *super().table_columns()) if self.config.division == "table" else super().table_columns()

    def check(self, table: Path | None) -> None:
        if self.config.division == "table":
            require_columns(table, ["clean"], "method.division=table")

    def split(self, losses: Float32) -> Split:
        """Eq. 3."""
        return gmm_split(losses)

    def measure_batch(self, seen: Seen, network: int, run: Run) -> tuple[Tensor, Tensor]:
        """ℓ_i (Eq. 1-2) and P_i (Eq. 9)."""
        assert seen.similarity is not None
        same = self.same(seen)
        loss = triplet(seen.similarity, self.config.margin, same=same)
        if self.config.prediction == "hinges":
            return loss, predict_match_by_hinges(seen.similarity, self.config.margin, same)
        clamp = self.config.margin if self.config.prediction == "clamped" else None
        return loss, predict_match(seen.similarity, same, clamp=clamp)

    def warm_up(self, seen: Seen, network: int, run: Run) -> NetworkStep:
        """Eq. 4-6."""
        each, prediction = self.measure_batch(seen, network, run)
        loss = self.plain_loss(seen) if self.loss_name == "info_nce" else each
        if self.config.momentum_weight > 0:
            rows = seen.rows.cpu().numpy()
            gamma = torch.from_numpy(self.gamma[network, rows]).to(each)
            loss = loss + self.config.momentum_weight * momentum_loss(prediction, gamma)
            self.gamma[network, rows] = update_gamma(gamma, prediction, self.config.momentum).cpu().numpy()
        return NetworkStep(loss, each, prediction)

    def divides_in_warm_up(self) -> bool:
        return self.config.abandon > 0 and self.config.division != "none"

    def after_division(self, run: Run) -> None:
        """Eq. 7."""
        threshold, share = self.config.threshold, self.config.abandon
        self.kept = ~abandon_noisy(self.confidence, threshold, share, run.random("abandon"))

    def divide(self, run: Run) -> None:
        """Find the halves, and div of Ψ4, which is half-way between the mean labels of the two halves."""
        if self.config.division == "losses":
            super().divide(run)
        else:
            self.confidence[:] = self._table_clean if self.config.division == "table" else 0.0
            self.clean = self.confidence > 0
        for network in (0, 1):
            labels = self.rectified(network, self.confidence, self.clean)
            self.boundary[network] = halfway(labels, self.clean[1 - network])

    def holds_noisy_back(self, run: Run) -> bool:
        if not self.config.rectify:
            return True
        return self.config.division != "none" and super().holds_noisy_back(run)

    def train(self, seen: Seen, network: int, partner: PartnerView, run: Run) -> NetworkStep:
        """Eq. 8-11."""
        with torch.no_grad():
            each, prediction = self.measure_batch(seen, network, run)
            if partner.own_prediction is not None:
                prediction = partner.own_prediction
            label = rectify(partner, prediction) if self.config.rectify else partner.clean.to(prediction)
            margin = soft_margin(
                label,
                self.config.margin,
                self.config.recast,
                base=self.config.recast_base,
                boundary=float(self.boundary[network]),
            )
        loss = self.soft_loss(seen, label, margin)
        if self.holds_noisy_back(run):
            loss = loss * partner.clean
        logs = {"clean_share": partner.clean.float().mean(), "label": label.mean()}
        return NetworkStep(loss, each, prediction, logs)

    def rectified(self, network: int, confidence: Float32, clean: Mask) -> Float32:
        """Compute ŷ of all rows for one network, (N,), from remembered values; NaN for rows it has not seen."""
        partner = 1 - network
        w = torch.from_numpy(confidence[partner]).nan_to_num(1.0)
        own, others = (torch.from_numpy(self.prediction[k]) for k in (network, partner))
        if not self.config.rectify:
            return np.asarray(clean[partner], np.float32)
        labels: Float32 = rectify(PartnerView(torch.from_numpy(clean[partner]), w, others), own).numpy()
        return labels

    def final_division(self) -> tuple[Float32, Mask]:
        return super().final_division() if self.config.division == "losses" else (self.confidence, self.clean)

    def sample_columns(self) -> dict[str, Array]:
        """Return confidence w, prediction P and rectified correspondence ŷ, means over both networks."""
        confidence, clean = self.final_division()
        labels = np.stack([self.rectified(network, confidence, clean) for network in (0, 1)])
        return {
            f"{self.column}_confidence": mean_of_known(confidence),
            f"{self.column}_prediction": mean_of_known(self.prediction),
            f"{self.column}_label": mean_of_known(labels),
        }


def halfway(labels: Float32, clean: Mask) -> float:
    """div of Ψ4: half-way between the mean labels (N,) of the clean and of the noisy half; ½ where there is only one half.

    >>> halfway(np.float32([1.0, 0.5, 0.25, np.nan]), np.array([True, True, False, False]))
    0.5
    """
    halves = [labels[half & ~np.isnan(labels)] for half in (clean, ~clean)]
    if not all(len(half) for half in halves):
        return 0.5
    return float(np.mean([half.mean(dtype=np.float64) for half in halves]))


# --- NCR, as a yardstick -------------------------------------------------------------------------------------------------


class NcrConfig(RectifierConfig):
    """NCR, Noisy Correspondence Rectifier (Huang et al., NeurIPS 2021), with the settings of its published code.

    LNC without momentum regularisation (Eq. 4-6) and random abandon (Eq. 7); P by `predict_match_by_hinges` in place of
    Eq. 9. Where that code crosses margins, this does not.
    """

    name: Literal["ncr"] = "ncr"
    momentum_weight: float = Field(default=0.0, ge=0)
    abandon: float = Field(default=0.0, ge=0, le=1)
    prediction: Literal["similarity", "clamped", "hinges"] = "hinges"


class Ncr(Lnc):
    """Plain warm-up, GMM co-divide, co-rectify with α - ½ (mean hinges), soft margins."""

    Config: ClassVar[type[MethodConfig]] = NcrConfig
    column: ClassVar[str] = "ncr"
