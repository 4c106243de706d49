"""Plain training, on everything as given (`baseline`) or on the rows that a rule selects (`select`)."""

from pathlib import Path
from typing import ClassVar, Literal

from noisegate.pipeline.runs import parse_where
from noisegate.trainers.data import Batch

from .base import MethodConfig, Run, StepLoss
from .separate_networks import SeparateNetworks, SeparateNetworksConfig
from .table_inputs import require_columns


class BaselineConfig(SeparateNetworksConfig):
    """InfoNCE, triplet or cross-entropy, every sample alike."""

    name: Literal["baseline"] = "baseline"


class Baseline(SeparateNetworks):
    """L = mean_i L_i (OSA Eq. 1 for image-text pairs)."""

    Config: ClassVar[type[MethodConfig]] = BaselineConfig

    def network_loss(self, batch: Batch, network: int, run: Run) -> StepLoss:
        seen = run.forward(batch, network)
        return StepLoss(self.weigh(self.losses(seen), seen.rows).mean())


class SelectConfig(SeparateNetworksConfig):
    """The plain loss over the rows for which `rule` holds."""

    name: Literal["select"] = "select"
    rule: str = "clean"
    """over the table's columns, as in `noisegate export --where`; for example clean_probability > 0.9"""


class Select(Baseline):
    """L = mean of L_i over the selected samples; the others are never read."""

    Config: ClassVar[type[MethodConfig]] = SelectConfig
    needs_table: ClassVar[bool] = True
    config: SelectConfig

    def where(self) -> str | None:
        return self.config.rule

    def check(self, table: Path | None) -> None:
        require_columns(table, parse_where(self.config.rule).columns, f"method.rule={self.config.rule!r}")
