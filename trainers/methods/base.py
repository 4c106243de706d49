"""The protocol of methods, and of the run that drives them. docs/contributing/method.md writes a method step by step.

A method decides which samples an epoch shows, what their loss is, and what is remembered about each; the loop does the rest
(devices, precision, ranks, optimiser, checkpoints, evaluation). A method sees similarities and logits, never a network's
internals.

    epochs(wanted)       how many epochs, where the method itself knows
    begin_epoch(run)     before each epoch; run.measure(…) passes over all data with the current networks
    streams(run)         which rows this epoch shows, in how many streams; a step gets one batch of each
    loss(batches, run)   one step; run.forward(batch, network) gives the similarities of the whole batch of all ranks
    end_epoch(run)
    state_dict()         everything that begin_epoch and loss change, arrays by global row number above all
    sample_columns()     what was learnt about the samples, by row, for a weight table

A step's loss may sum the losses of several networks, because these share no parameters: one backward serves all. A run resumed
in the middle of an epoch loads the state and does not call begin_epoch again, so `streams` must follow from the state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs import READ_BY_NAME
from noisegate.pipeline.system import Index
from noisegate.trainers import losses
from noisegate.trainers.data import Batch
from noisegate.trainers.targets import Encoded, Target, TargetConfig

from .table_inputs import LABEL_WEIGHT, describe_missing, has_values, label_weights, open_finished_run, require_columns

# ruff: noqa: B027 - most methods leave most hooks as they are

ALL = "all"
AGREEING_VIEWS = 2 / 3
"""share of samples, see `knows_classes`; chosen: at one half SSR began to overrule labels too early on pretrained weights that
knew the colours of scenes and not their shapes (`bench --preset scenes-pretrained`, 40 %: 29.6, plain training 39.9)"""
NO_WEIGHTS = ("index", "label", "refined_label", "predicted_label", "review_label")
"""columns of numbers that count or name something"""
Array = NDArray[Any]
LossName = Literal["auto", "info_nce", "triplet", "hardest_triplet", "evidential", "cross_entropy", "contrastive"]
LOSSES: Mapping[str, tuple[str, ...]] = {  # losses of each task, the default first
    "retrieval": ("info_nce", "triplet", "hardest_triplet"),
    "classification": ("cross_entropy",),
    "image_retrieval": ("contrastive",),
}


class MethodConfig(BaseModel):
    """Settings of all methods; each method adds its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    loss: LossName = "auto"
    """auto: info_nce for retrieval, cross_entropy for classification, contrastive for image_retrieval"""
    margin: float = Field(default=0.2, gt=0)
    temperature: float | None = Field(default=None, gt=0)
    """None: the target's own, which CLIP learns"""
    mask_same: bool = True
    """two samples with the same picture or the same caption are no negatives of each other"""
    weights: str | None = Field(default=None, examples=["osa_weight"])
    """a numeric column of data.table that multiplies each sample's loss before the mean; docs/methods.md: of each method.
    osa_weight of labels, where the table has none of captions: as `osa` weighs labels"""
    weights_scale: Literal["mean1", "raw"] = "mean1"
    """mean1: `weights` divided by their mean over the data, so that the learning rate keeps its meaning; raw: as they are"""


@dataclass(frozen=True)
class Stream:
    """Rows to train on, (total_rows,) bool; None for all rows that data.where allows. `order` seeds the shuffle.

    full: start over until the epoch has as many steps as an epoch over all rows.
    """

    rows: NDArray[np.bool_] | None = None
    order: int = 0
    full: bool = False


@dataclass(frozen=True)
class Seen:
    """One network's view of a batch, of all ranks together; B samples in the order of the plan.

    similarity: (B, B), images against texts, or against images for image_retrieval. logits: (B, C) for classification,
    already scaled. same: (B, B) bool, pairs with the same picture or caption. Each may be None.
    """

    rows: Tensor
    images: Encoded
    temperature: Tensor
    texts: Encoded | None = None
    similarity: Tensor | None = None
    logits: Tensor | None = None
    labels: Tensor | None = None
    columns: dict[str, Tensor] = field(default_factory=dict)
    same: Tensor | None = None


@dataclass(frozen=True)
class StepLoss:
    """The loss of a step; `loss` is None if there is nothing to learn from the batch: it is skipped and counted."""

    loss: Tensor | None
    logs: Mapping[str, float | Tensor] = field(default_factory=dict)


class Run(Protocol):
    """The loop's services for a method. All values are the same on all ranks."""

    task: str
    seed: int
    epoch: int
    done: float
    """share of all batches of all epochs that came before this one, in [0, 1)"""
    total_rows: int
    stems: list[str]
    """names of the tables or shards, in the order of the global row numbers"""
    device: torch.device
    table: Path | None

    def forward(self, batch: Batch, network: int = 0) -> Seen:
        """Encode a batch, gather it over the ranks, and compare."""
        ...

    def observe(self, batch: Batch, network: int = 0, weights: Mapping[str, Tensor] | None = None) -> Seen:
        """Like `forward`, in evaluation mode and without gradients; `weights` by name replace the network's own."""
        ...

    def encode_images(self, images: Tensor, network: int = 0) -> Encoded:
        """Encode this rank's images only, for example mixed images."""
        ...

    def read(self, rows: Array) -> Batch:
        """Read these rows, (B,), possibly repeated, in this process."""
        ...

    def try_update(self, loss: Tensor, network: int = 0) -> dict[str, Tensor]:
        """Return weights by name after a trial update by the gradient of `loss`; network and optimiser do not change."""
        ...

    def gather(self, rows: Tensor) -> Tensor:
        """Gather the rows of all ranks, in rank order, with gradients."""
        ...

    def network(self, network: int = 0) -> Target: ...

    def measure(
        self, function: Callable[[Seen], Mapping[str, Tensor]], network: int = 0, *, texts: bool = True
    ) -> dict[str, Array]:
        """Pass over all data in shuffled batches, without augmentation and gradients; return (total_rows, …), NaN if unseen."""
        ...

    def measure_each(
        self, function: Callable[[Seen, int], Mapping[str, Tensor]], *, texts: bool = True
    ) -> list[dict[str, Array]]:
        """Like `measure`, for every network, reading the data only once."""
        ...

    def on_device(self, batch: Batch) -> Batch:
        """Move a batch to the device; `forward` does this by itself."""
        ...

    def column(self, name: str) -> Array:
        """Return a whole column of the table, (total_rows,)."""
        ...

    def row_mean(self, values: Array) -> float:
        """Compute the mean of (total_rows,) values over the rows trained on, NaN as 0."""
        ...

    def random(self, purpose: str) -> np.random.Generator:
        """Return a separate generator for each purpose, epoch and step, so that a resumed run draws the same numbers."""
        ...

    def restart(self, epochs: int | None = None) -> None:
        """Initialise the networks again, forget optimiser and best figure, restart the schedule for `epochs` or all left."""
        ...

    def note(self, text: str) -> None:
        """Tell the user once."""
        ...


class Method(ABC):
    """The base of all methods: training over all rows. A method defines its loss, and overrides other steps if needed."""

    Config: ClassVar[type[MethodConfig]] = MethodConfig
    tasks: ClassVar[tuple[str, ...]] = ("retrieval", "classification", "image_retrieval")
    networks: int = 1
    same_start: bool = False
    """whether all networks start from the same weights"""
    needs_table: ClassVar[bool] = False
    remembers: ClassVar[tuple[str, ...]] = ()
    """names of the attributes, all arrays, that a checkpoint must hold"""
    provenance: ClassVar[str] = ""
    """a note for readers of its results, such as that it is a reconstruction"""

    def __init__(self, config: MethodConfig, task: str) -> None:
        """Raise ConfigError if the configuration does not fit the task."""
        if task not in self.tasks:
            problem = f"is not for method.name={config.name}; use task.name={' or '.join(self.tasks)}"
            raise ConfigError.of("task.name", task, problem)
        self.config = config
        self.task = task
        self.loss_name = self._loss_for(task)
        self._weights: Tensor | None = None  # (total_rows,), the column method.weights

    # --- what it needs ---------------------------------------------------------------------------------------------------

    def modules(self, networks: Sequence[Target]) -> nn.ModuleList:
        """Make the modules that the method learns beside the networks, for `loss` to call.

        They are optimised, clipped and saved like the networks, but `Run.restart` does not initialise them again.
        """
        return nn.ModuleList()

    def columns(self) -> tuple[str, ...]:
        """Columns of the table that come with every batch."""
        return ()

    def table_columns(self) -> tuple[str, ...]:
        """`columns` and `method.weights`: a resumed run refuses a table in which these have changed."""
        own = self.columns() if self.config.weights is None else (*self.columns(), self.config.weights)
        return tuple(dict.fromkeys(own))

    def where(self) -> str | None:
        """A rule over the table's columns that narrows the data for the whole run."""
        return None

    def target_settings(self, config: TargetConfig) -> TargetConfig:
        """Return the target's settings, with some defaults replaced by the method."""
        return config

    def check(self, table: Path | None) -> None:
        """Raise ConfigError, before anything is loaded, if the table lacks what the method needs."""

    def check_weights(self, table: Path | None) -> None:
        """Raise ConfigError if the table has no numbers in the column `method.weights`."""
        name = self.config.weights
        if name is None:
            return
        source = self.weights_source(table)
        if source != name:
            missing = describe_missing(open_finished_run(table, f"method.weights={name}").path, source)
            if missing:
                raise ConfigError(f"method.weights={name} ({source}): {missing}", "method.weights", name)
            return
        require_columns(table, [name], f"method.weights={name}")
        if not pa.types.is_primitive(READ_BY_NAME[name][0]) or name in NO_WEIGHTS:
            problem = "is no weight; use a column of numbers such as osa_weight, clean_probability or label_quality"
            raise ConfigError.of("method.weights", name, problem)

    def start(self, run: Run) -> None:
        """Load `method.weights`, then `prepare`; the loop calls it before the first step and after every resume."""
        name = self.config.weights
        if name is not None:
            source = self.weights_source(run.table)
            if source == name:
                column = run.column(name)
            else:
                assert run.table is not None
                of_labels = label_weights(run.table, run.stems, source, seed=run.seed)
                run.note(f"method.weights={name}: weights of labels by {source}, β {of_labels.beta}")
                column = of_labels.weights
            values = np.nan_to_num(column.astype(np.float32), nan=0.0).clip(min=0)
            mean = run.row_mean(values)
            if not mean > 0:
                problem = "is 0 for all samples; see the table by: noisegate show, or use another column"
                raise ConfigError.of("method.weights", name, problem)
            self.set_weights(values / np.float32(mean) if self.config.weights_scale == "mean1" else values)
        self.prepare(run)

    def weights_source(self, table: Path | None) -> str:
        """Return the source of `method.weights`: its column, or `prompts` or `images` for OSA's weight of labels.

        The latter if the task is about labels and the table has no weights of captions.
        """
        name = self.config.weights or ""
        if name != "osa_weight" or self.task not in LABEL_WEIGHT or table is None:
            return name
        return name if has_values(open_finished_run(table, f"method.weights={name}"), name) else LABEL_WEIGHT[self.task]

    def set_weights(self, weights: Array) -> None:
        """Multiply the loss of row i by weights[i] from now on; (total_rows,), none negative."""
        self._weights = torch.from_numpy(np.asarray(weights, np.float32))

    def prepare(self, run: Run) -> None:
        """Compute, before the first step and after every resume, what need not be saved in checkpoints."""

    def uses_all_parameters(self) -> bool:
        """Return whether every step's loss depends on all weights of a retrieval network, its learnt scale included.

        Training on several devices needs this; False is always safe, and a little slower.
        """
        return False

    def epochs(self, wanted: int) -> int:
        """Return the number of epochs, given loop.epochs as `wanted`: what it was when the run began, also if it is resumed."""
        return wanted

    def finding_epochs(self) -> int:
        """First epochs that only find the clean samples, for new weights to learn from: loop.patience does not end them."""
        return 0

    # --- an epoch ----------------------------------------------------------------------------------------------------------

    def begin_epoch(self, run: Run) -> None: ...

    def streams(self, run: Run) -> dict[str, Stream]:
        """Return the streams by name; a step gets one batch of each, and shorter streams start over until the longest ends."""
        return {ALL: Stream()}

    @abstractmethod
    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        """Compute the loss of one step, from one batch of each stream."""

    def end_epoch(self, run: Run) -> None: ...

    # --- what it remembers -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        """Return the arrays that a checkpoint must contain."""
        return {name: getattr(self, name) for name in self.remembers}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state_dict`."""
        for name in self.remembers:
            setattr(self, name, np.array(state[name]))

    def sample_columns(self) -> dict[str, Array]:
        """Return what was learnt about the samples, (total_rows,) each."""
        return {}

    # --- what several share ------------------------------------------------------------------------------------------------

    def weights_of(self, rows: Tensor) -> Tensor | None:
        """Return `method.weights` of these rows, (B,), on their device; None if there are none."""
        return None if self._weights is None else self._weights[rows.cpu()].to(rows.device)

    def weigh(self, each: Tensor, rows: Tensor) -> Tensor:
        """Multiply losses (B,), or soft labels (B, C), by `method.weights`; return them unchanged if there are no weights."""
        weights = self.weights_of(rows)
        return each if weights is None else each * weights.to(each).view(-1, *[1] * (each.ndim - 1))

    def losses(self, seen: Seen, negatives: Tensor | None = None, trust: Tensor | None = None) -> Tensor:
        """Compute losses (B,) by `config.loss` and the task; `negatives` (B,) bool may exclude samples from others' negatives.

        trust: (B,) weight of each image in the losses of the others of its class, if the loss compares images of a class; None:
        `method.weights`.
        """
        temperature = self.config.temperature or seen.temperature
        same = seen.same if self.config.mask_same else None
        if self.loss_name == "cross_entropy":
            assert seen.logits is not None and seen.labels is not None
            return losses.cross_entropy(seen.logits, seen.labels)
        assert seen.similarity is not None
        if self.loss_name == "contrastive":
            assert seen.labels is not None
            if trust is None:
                trust = self.weights_of(seen.rows)
            return losses.contrastive(seen.similarity, seen.labels, temperature, negatives, trust)
        if self.loss_name == "info_nce":
            return losses.info_nce(seen.similarity, temperature, same, negatives)
        hardest = self.loss_name == "hardest_triplet"
        return losses.triplet(seen.similarity, self.config.margin, hardest=hardest, same=same, negatives=negatives)

    def _loss_for(self, task: str) -> str:
        fitting = LOSSES[task]
        if self.config.loss == "auto":
            return fitting[0]
        if self.config.loss not in fitting:
            problem = f"does not fit task.name={task}; use {' or '.join(fitting)}, or auto"
            raise ConfigError.of("method.loss", self.config.loss, problem)
        return self.config.loss


def check_warmup(warmup: int | None, epochs: int, usual: int) -> None:
    """Raise ConfigError if the warm-up takes all `epochs`; `usual` is a value that works."""
    if warmup is not None and warmup >= epochs:
        problem = f"leaves nothing of loop.epochs={epochs}; use {usual} or loop.epochs={warmup + max(2, epochs)}"
        raise ConfigError.of("method.warmup", warmup, problem)


def knows_classes(predicted: Index, voted: Index) -> bool:
    """Return whether predicted classes (N,) agree with the neighbours' votes (N,) for at least 2/3 of the samples.

    These are two views of a sample, and right labels win the vote of many neighbours whatever the share of wrong ones. If the
    views differ for most samples, neither may overrule a given label.

    >>> knows_classes(np.array([0, 1, 2, 2]), np.array([0, 1, 2, 0]))
    True
    >>> knows_classes(np.array([0, 1, 2, 2]), np.array([0, 1, 1, 0]))
    False
    """
    return bool(np.mean(predicted == voted) >= AGREEING_VIEWS) if len(voted) else False
