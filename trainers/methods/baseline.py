"""Plain training on everything as it is given: what all the others are measured against."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from .base import ALL, Method, MethodConfig, Run, StepLoss

if TYPE_CHECKING:
    from noisegate.trainers.data import Batch

__all__ = ["Baseline", "BaselineConfig"]


class BaselineConfig(MethodConfig):
    """InfoNCE, triplet or cross-entropy, every sample alike."""

    name: Literal["baseline"] = "baseline"


class Baseline(Method):
    """L = mean_i L_i (OSA Eq. 1 for image-text pairs)."""

    Config: ClassVar[type[MethodConfig]] = BaselineConfig

    def uses_all_parameters(self) -> bool:
        return self.loss_name == "info_nce" and self.config.temperature is None

    def loss(self, batches: Mapping[str, "Batch"], run: Run) -> StepLoss:
        return StepLoss(self.losses(run.forward(batches[ALL])).mean())
