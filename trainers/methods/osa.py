"""OSA, One-Step Anti-noise: the table's weights on any per-sample loss. Nothing is computed that training would not.

w_i = x² (1 - x) where x = s_i - β > 0, else 0      Eq. 5, by `noisegate annotate`, once
L_re = w_i L_i                                      Eq. 6, here

Where a loss puts the images of a class together (image retrieval), L_i is a mean over the others of the class, in which each
counts by its own weight: the paper does not say so, but a wrong label would else enter the losses of all that share it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.pairs.osa import osa_weight
from noisegate.pipeline.runs.table import read_metadata
from noisegate.pipeline.settings import check_beta_mode
from noisegate.trainers.losses import weighted

from . import label_weights
from .base import ALL, Array, Method, MethodConfig, Run, StepLoss
from .table_columns import finished_run, require_columns

if TYPE_CHECKING:
    from noisegate.trainers.data import Batch

__all__ = ["Osa", "OsaConfig"]

FEW = 0.1
"""share of samples with a weight below which a note is due"""
AUTO = {"retrieval": "osa_weight", "classification": "prompts", "image_retrieval": "images"}


class OsaConfig(MethodConfig):
    """Weights and how they enter the loss."""

    name: Literal["osa"] = "osa"
    weight: str = "auto"
    """a column such as clean_probability; prompts or images: Eq. 5 of the labels, from the kept embeddings; auto: osa_weight
    for retrieval, prompts for classification, images for image_retrieval"""
    mode: Literal["mean1", "raw", "batch_sum", "max1", "reference"] = "mean1"
    monotone: bool | None = None
    """hold Eq. 5 at its largest beyond x = 2/3; None: for image-image pairs only, whose cosines reach so far"""
    beta: str = "intersection"
    """of labels, where weight is prompts or images: intersection or fixed:VALUE"""
    drop_negatives: bool = False
    """samples without weight are no negatives for the others either"""


class Osa(Method):
    """L_re = w_i L_i (Eq. 6), scaled by `mode` so that the learning rate keeps its meaning (METHODS 2, 10)."""

    Config: ClassVar[type[MethodConfig]] = OsaConfig
    needs_table: ClassVar[bool] = True
    config: OsaConfig

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        weight = self.config.weight
        self.source = AUTO[task] if weight == "auto" else weight
        self.by_row: Tensor | None = None
        """(total_rows,) weights that no column holds"""
        self.beta = 0.0
        self.mean_weight: float | None = None
        if self.config.mode == "reference" and self.source != "osa_weight":
            raise ConfigError(
                f"method.mode=reference is about image-text pairs, and the weight is {self.source}; use method.mode=mean1"
            )
        if self.source in ("prompts", "images"):
            check_beta_mode(self.config.beta)

    def columns(self) -> tuple[str, ...]:
        if self.source in ("prompts", "images"):
            return ()
        return ("similarity",) if self._from_similarity else (self.source,)

    @property
    def _from_similarity(self) -> bool:
        """The published code's margins, and a monotone Eq. 5, are computed from cosine and β."""
        return self.source == "osa_weight" and (self.config.mode == "reference" or bool(self.config.monotone))

    def check(self, table: Path | None) -> None:
        setting = f"method.weight={self.config.weight}"
        if self.source in ("prompts", "images"):
            run = finished_run(table, setting)
            lost = label_weights.missing_for(run.path, self.source == "prompts")
            if lost:
                raise ConfigError(f"{setting} ({self.source}): {lost}, or use method.weight=label_quality")
        else:
            require_columns(table, self.columns(), setting)

    def prepare(self, run: Run) -> None:
        assert run.table is not None
        if self.source in ("prompts", "images"):
            monotone = self.config.monotone if self.config.monotone is not None else self.source == "images"
            found = (
                label_weights.prompt_weights(run.table, run.stems, self.config.beta, run.seed)
                if self.source == "prompts"
                else label_weights.image_weights(run.table, run.stems, self.config.beta, monotone, run.seed)
            )
            run.note(f"weights of labels by {self.source}: β {found.beta}")
            self.by_row, values = torch.from_numpy(found.weights), found.weights
        elif self._from_similarity:
            tables = finished_run(run.table, "method")
            self.beta = float(read_metadata(tables.table(next(tables.stems())))["beta"]["value"])
            values = self._weight(torch.from_numpy(run.column("similarity"))).numpy()
        else:
            values = self._weight(torch.from_numpy(run.column(self.source))).numpy()
        self.mean_weight, share = run.row_mean(values), run.row_mean(values > 0)
        if self.mean_weight > 0:
            effective = self.mean_weight**2 / run.row_mean(
                values.astype(np.float64) ** 2
            )  # Kish: 1 where all weigh alike
            run.note(f"weights by {self.source} are worth {effective:.0%} of as many samples of equal weight")
        if share == 1:
            run.note(f"every sample has a weight by {self.source}: nothing is taken for wrong")
        elif share < FEW:
            run.note(f"only {share:.1%} of the samples have a weight by {self.source}: β may be too high")
        if not self.mean_weight > 0:
            raise ConfigError(
                f"method.weight={self.config.weight}: no sample has any weight; look at the cut with: noisegate show "
                f"{run.table}, or rescore with a smaller --beta"
            )

    def uses_all_parameters(self) -> bool:
        return self.loss_name == "info_nce" and self.config.temperature is None

    def loss(self, batches: Mapping[str, "Batch"], run: Run) -> StepLoss:
        batch = batches[ALL]
        weight = run.gather(self.weights(batch))
        held = int((weight > 0).sum())
        if held == 0:
            return StepLoss(None)
        seen = run.forward(batch)
        weight = weight.to(seen.rows.device, non_blocking=True)
        each = self.losses(seen, negatives=weight > 0 if self.config.drop_negatives else None, trust=weight)
        total = weighted(each, weight, mode=self.config.mode, mean_weight=self.mean_weight)
        return StepLoss(total, {"weighted_share": held / len(weight)})

    def weights(self, batch: "Batch") -> Tensor:
        """(B,) of this rank's samples, never negative; the margins s - β for the mode reference."""
        if self.by_row is not None:
            return self.by_row[batch.rows.cpu()]
        return self._weight(batch.columns[self.columns()[0]])

    def _weight(self, values: Tensor) -> Tensor:
        if not self._from_similarity:
            return values.float().nan_to_num(0.0).clamp(min=0)
        if self.config.mode == "reference":
            return (values - self.beta).nan_to_num(0.0).clamp(min=0)
        return osa_weight(values, self.beta, monotone=True)

    def sample_columns(self) -> dict[str, Array]:
        return {} if self.by_row is None else {"osa_weight": self.by_row.numpy()}
