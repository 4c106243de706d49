"""OSA, One-Step Anti-noise: the table's weights on any per-sample loss.

    s_i  = cos(image i, text i)                            Eq. 3   by `noisegate annotate`; table_inputs: `label_weights`
    β    = the cosine of pairs that do not match           Eq. 4   pipeline.pairs.beta: `estimate_beta`
    w_i  = x² (1 - x) where x = s_i - β > 0, else 0        Eq. 5   pipeline.pairs.osa: `osa_weight`
    L_re = w_i L_i                                         Eq. 6   `Osa.network_loss`

Tables hold the weight of image-caption pairs; weights of labels are made from the embeddings beside them (`table_inputs.py`).

If a loss compares the images of a class (image retrieval), L_i is a mean over the other images of the class, weighted by their
own weights: the paper does not say so, but otherwise a wrong label would enter the losses of all images with that label.
"""

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.pairs import osa_weight
from noisegate.pipeline.runs import read_metadata
from noisegate.pipeline.settings import check_beta_mode
from noisegate.trainers.data import Batch
from noisegate.trainers.losses import weighted

from .base import Array, MethodConfig, Run, StepLoss
from .separate_networks import SeparateNetworks, SeparateNetworksConfig
from .table_inputs import LABEL_WEIGHT, describe_missing, label_weights, open_finished_run, require_columns

FEW_WEIGHTED = 0.1
"""share of samples with a weight, below which a note warns that β may be too high; chosen"""
AUTO = {"retrieval": "osa_weight", **LABEL_WEIGHT}


class OsaConfig(SeparateNetworksConfig):
    """Which weights to use, and how they enter the loss."""

    name: Literal["osa"] = "osa"
    weight: str = "auto"
    """a column such as clean_probability; prompts or images: Eq. 5 of the labels, from the kept embeddings; auto: osa_weight
    for retrieval, prompts for classification, images for image_retrieval"""
    mode: Literal["mean1", "raw", "batch_sum", "max1", "reference"] = "mean1"
    monotone: bool | None = None
    """hold Eq. 5 at its largest beyond x = 2/3; None: for image-image pairs only, whose cosines reach so far"""
    beta: str = "intersection"
    """of labels, where weight is prompts or images: intersection, fixed:VALUE, and for prompts random_inputs (the paper's) or
    auto, which takes random_inputs where that lies clearly between shuffled and given labels"""
    drop_negatives: bool = False
    """samples without weight are no negatives for the others either"""


class Osa(SeparateNetworks):
    """L_re = w_i L_i (Eq. 6), scaled by `mode` so that the learning rate keeps its meaning."""

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
            problem = f"is about image-text pairs, and the weight is {self.source}; use method.mode=mean1"
            raise ConfigError.of("method.mode", "reference", problem)
        if self.source in ("prompts", "images"):
            check_beta_mode(self.config.beta)
        if self.source == "images" and self.config.beta == "random_inputs":
            problem = "compares random pictures with random texts, and the weight is images; use intersection"
            raise ConfigError.of("method.beta", self.config.beta, problem)

    def columns(self) -> tuple[str, ...]:
        if self.source in ("prompts", "images"):
            return ()
        return ("similarity",) if self._from_similarity else (self.source,)

    @property
    def _from_similarity(self) -> bool:
        """Whether weights are computed from cosine and β: for the published code's margins, and a monotone Eq. 5."""
        return self.source == "osa_weight" and (self.config.mode == "reference" or bool(self.config.monotone))

    def check(self, table: Path | None) -> None:
        setting = f"method.weight={self.config.weight}"
        if self.source in ("prompts", "images"):
            run = open_finished_run(table, setting)
            missing = describe_missing(run.path, self.source)
            if missing:
                problem = f"{setting} ({self.source}): {missing}, or use method.weight=label_quality"
                raise ConfigError(problem, "method.weight", self.config.weight)
        else:
            require_columns(table, self.columns(), setting)

    def start(self, run: Run) -> None:
        """Ignore `method.weights` if this method weighs by the same source: a loss must not be weighed twice by one column."""
        if self.config.weights is None or self.weights_source(run.table) != self.source:
            super().start(run)
            return
        run.note(f"osa weighs by {self.source} already; method.weights adds nothing")
        self.prepare(run)

    def prepare(self, run: Run) -> None:
        assert run.table is not None
        if self.source in ("prompts", "images"):
            asked = (self.config.beta, self.config.monotone, run.seed)
            of_labels = label_weights(run.table, run.stems, self.source, *asked)
            run.note(f"weights of labels by {self.source}: β {of_labels.beta}")
            self.by_row, values = torch.from_numpy(of_labels.weights), of_labels.weights
        elif self._from_similarity:
            tables = open_finished_run(run.table, "method")
            self.beta = float(read_metadata(tables.table(next(tables.stems())))["beta"]["value"])
            values = self._weight(torch.from_numpy(run.column("similarity"))).numpy()
        else:
            values = self._weight(torch.from_numpy(run.column(self.source))).numpy()
        self.mean_weight, share = run.row_mean(values), run.row_mean(values > 0)
        if self.mean_weight > 0:
            effective = self.mean_weight**2 / run.row_mean(
                values.astype(np.float64) ** 2
            )  # Kish: 1 where all are equal
            run.note(f"the weights by {self.source} leave an effective sample size of {effective:.0%} of the data")
        if share == 1:
            run.note(f"every sample has a weight by {self.source}: nothing is taken for wrong")
        elif share < FEW_WEIGHTED:
            run.note(f"only {share:.1%} of the samples have a weight by {self.source}: β may be too high")
        if not self.mean_weight > 0:
            problem = (
                f"is 0 for all samples; see the cut by: noisegate show {run.table}, or rescore with a smaller --beta"
            )
            raise ConfigError.of("method.weight", self.config.weight, problem)

    def network_loss(self, batch: Batch, network: int, run: Run) -> StepLoss:
        weight = run.gather(self.weights(batch))
        held = int((weight > 0).sum())
        if held == 0:
            return StepLoss(None)
        seen = run.forward(batch, network)
        weight = weight.to(seen.rows.device, non_blocking=True)
        each = self.losses(seen, negatives=weight > 0 if self.config.drop_negatives else None, trust=weight)
        total = weighted(self.weigh(each, seen.rows), weight, mode=self.config.mode, mean_weight=self.mean_weight)
        return StepLoss(total, {"weighted_share": held / len(weight)})

    def weights(self, batch: Batch) -> Tensor:
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
