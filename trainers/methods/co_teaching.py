"""Two networks that divide the data for one another (METHODS 1.6): what LNC, NCR and GSL share.

Networks A and B (numbers 0 and 1) start from other weights and see the data in another order. Each epoch the per-sample
losses of each are split into clean and noisy by a mixture; A learns by B's split and B by A's, so that the mistakes of one
are not confirmed by itself. Evaluation averages the similarities of both.

Two procedures are known:

lean   each network sees each sample once in an epoch, clean and noisy ones mixed as the data has them. Losses and
       predictions are those of the training steps themselves, levelled batch by batch (`division.levelled`), so that
       there is no pass over all data: twice a plain epoch, no more.
paper  before each epoch both networks pass over all data without learning; a step takes one clean and one noisy batch of
       each network, the shorter half starting over, and asks both networks about the noisy one. Three to four plain epochs.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.methods.mixtures import Split
from noisegate.trainers.losses import info_nce, triplet

from .base import Array, Method, MethodConfig, Run, Seen, StepLoss, Stream
from .division import clean_rows, levelled

if TYPE_CHECKING:
    from noisegate.trainers.data import Batch

__all__ = ["CoTeaching", "CoTeachingConfig", "Halves", "Look"]

NAMES = ("a", "b")


class CoTeachingConfig(MethodConfig):
    """What all methods of two networks can be told."""

    loss: Literal["auto", "hardest_triplet", "triplet", "info_nce"] = "auto"
    """auto: hardest_triplet with soft margins, as the papers have it, which small networks from scratch do not survive;
    triplet: all negatives alike; info_nce: not the papers', weighed by the soft label, for targets that learn by it"""
    warmup: int = Field(default=3, ge=1)
    """epochs, of loop.epochs, in which all samples count as given"""
    threshold: float = Field(default=0.5, gt=0, lt=1)
    """of the clean confidence"""
    procedure: Literal["lean", "paper"] = "lean"
    """lean: losses noted while learning, about twice a plain epoch; paper: passes over all data, separate batches of halves"""
    one_percent: bool = False
    """where a network finds everything clean, the least sure hundredth counts as noisy, as in NCR's code"""


@dataclass(frozen=True)
class Halves:
    """What the partner thinks of a batch: (B,) each. prediction is NaN where it has not seen the sample yet."""

    clean: Tensor
    confidence: Tensor
    prediction: Tensor


@dataclass(frozen=True)
class Look:
    """One network's step on one batch: a loss to learn by, and (B,) each, what to note down of the samples."""

    loss: Tensor
    division: Tensor
    """the loss that decides about clean and noisy"""
    prediction: Tensor
    logs: Mapping[str, Tensor] = field(default_factory=dict)


class CoTeaching(Method):
    """Notes losses and predictions by row, divides by them at the start of an epoch, and swaps the halves."""

    networks: ClassVar[int] = 2
    asks_partner: ClassVar[bool] = True
    """whether `train` wants the partner's prediction"""
    config: CoTeachingConfig

    def __init__(self, config: MethodConfig, task: str) -> None:
        if task != "retrieval":
            raise ConfigError(
                f"method.name={config.name} learns from pairs of images and texts; use task.name=retrieval (now {task}), or "
                "method.name=dividemix for classes"
            )
        super().__init__(config, task)
        self.loss_name = "hardest_triplet" if config.loss == "auto" else config.loss
        self.division = self.prediction = self.confidence = np.zeros((2, 0), np.float32)
        self.clean = np.zeros((2, 0), bool)
        self.kept = np.zeros(0, bool)

    # --- what each method has of its own ---------------------------------------------------------------------------------

    @abstractmethod
    def split(self, losses: NDArray[np.float32]) -> Split:
        """(N,) losses of one network into clean and noisy."""

    @abstractmethod
    def warm_up(self, seen: Seen, network: int, run: Run) -> Look:
        """A step of the warm-up."""

    @abstractmethod
    def train(self, seen: Seen, network: int, halves: Halves, run: Run) -> Look:
        """A step of network `network` with what its partner thinks of the batch."""

    @abstractmethod
    def look(self, seen: Seen, network: int, run: Run) -> tuple[Tensor, Tensor]:
        """(B,) division loss and prediction, nothing learnt."""

    def divides_in_warm_up(self) -> bool:
        """Whether the warm-up needs the halves too."""
        return False

    def after_division(self, run: Run) -> None:
        """Called in the warm-up where `divides_in_warm_up`."""

    # --- an epoch ----------------------------------------------------------------------------------------------------------

    def epochs(self, wanted: int) -> int:
        if wanted <= self.config.warmup:
            raise ConfigError(
                f"method.warmup={self.config.warmup} leaves nothing of loop.epochs={wanted} to learn from; use "
                f"method.warmup={max(1, wanted // 4)} or loop.epochs={self.config.warmup + max(2, wanted)}"
            )
        return wanted

    def prepare(self, run: Run) -> None:
        shape = (2, run.total_rows)
        self.division, self.prediction = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
        self.confidence, self.clean = np.full(shape, np.nan, np.float32), np.ones(shape, bool)
        self.kept = np.ones(run.total_rows, bool)

    def warming(self, run: Run) -> bool:
        return run.epoch < self.config.warmup

    def begin_epoch(self, run: Run) -> None:
        self.kept = np.ones(run.total_rows, bool)
        if run.epoch == 0 or (self.warming(run) and not self.divides_in_warm_up()):
            return
        if self.config.procedure == "paper":
            self._pass(run)
        self.divide(run)
        if self.warming(run):
            self.after_division(run)

    def divide(self, run: Run) -> None:
        """Each network's halves, by its own losses; they are swapped when they are used."""
        for network, name in enumerate(NAMES):
            split = self.split(self.division[network])
            self.confidence[network] = split.clean_probability
            self.clean[network] = self.chosen(self.confidence[network])
            if split.degenerate:
                reasons = "; ".join(split.fallbacks)
                run.note(
                    f"epoch {run.epoch + 1}: network {name} cannot tell clean from noisy ({split.kind}: {reasons})"
                )
            elif not (self.clean[network] & ~np.isnan(self.confidence[network])).any():
                run.note(f"epoch {run.epoch + 1}: network {name} finds nothing clean")

    def chosen(self, confidence: NDArray[np.float32]) -> NDArray[np.bool_]:
        """(N,) which rows are clean."""
        return clean_rows(confidence, self.config.threshold, one_percent=self.config.one_percent)

    def _pass(self, run: Run) -> None:
        def function(seen: Seen, network: int) -> dict[str, Tensor]:
            if len(seen.rows) < 2:  # no negatives, no loss
                return {name: torch.full(seen.rows.shape, torch.nan) for name in ("division", "prediction")}
            division, prediction = self.look(seen, network, run)
            return {"division": division, "prediction": prediction}

        for network, found in enumerate(run.measure_each(function)):
            self.division[network], self.prediction[network] = found["division"], found["prediction"]

    def streams(self, run: Run) -> dict[str, Stream]:
        streams = {}
        for network, name in enumerate(NAMES):
            if self.config.procedure == "lean" or self.warming(run):
                streams[name] = Stream(None if self.kept.all() else self.kept, order=network)
            else:
                clean = self.clean[1 - network]
                streams[f"{name}_clean"] = Stream(clean, order=network)
                streams[f"{name}_noisy"] = Stream(~clean, order=network)
        return streams

    # --- a step ------------------------------------------------------------------------------------------------------------

    def loss(self, batches: Mapping[str, "Batch"], run: Run) -> StepLoss:
        losses: list[Tensor] = []
        logs: dict[str, float | Tensor] = {}
        for network, name, batch in _of_networks(batches):
            seen = run.forward(batch, network)
            if len(seen.rows) < 2:
                continue
            rows = seen.rows.cpu().numpy()
            if self.warming(run):
                look = self.warm_up(seen, network, run)
            else:
                look = self.train(seen, network, self._halves(batch, rows, network, run), run)
            losses.append(look.loss)
            logs |= {f"{name}/{key}": value.detach() for key, value in look.logs.items()}
            self.prediction[network, rows] = look.prediction.detach().float().cpu().numpy()
            if self.config.procedure == "lean":
                self.division[network, rows] = levelled(look.division.detach().float()).cpu().numpy()
        return StepLoss(torch.stack(losses).sum() if losses else None, logs)

    def _halves(self, batch: "Batch", rows: NDArray[np.int64], network: int, run: Run) -> Halves:
        """By the partner's division: the swap of co-teaching."""
        partner = 1 - network

        def on_device(values: Array) -> Tensor:
            return torch.from_numpy(values[rows]).to(run.device)

        prediction = on_device(self.prediction[partner])
        clean = on_device(self.clean[partner])
        if self.config.procedure == "paper" and self.asks_partner and not bool(clean.all()):
            with torch.no_grad():
                prediction = self.look(run.forward(batch, partner), partner, run)[1]
        return Halves(clean, on_device(self.confidence[partner]).nan_to_num(1.0), prediction)

    def plain(self, seen: Seen, hardest: bool = False) -> Tensor:
        """(B,) the loss of the warm-up, in which all pairs count as given."""
        assert seen.similarity is not None
        if self.loss_name == "info_nce":
            return info_nce(seen.similarity, self.config.temperature or seen.temperature, self.same(seen))
        return triplet(seen.similarity, self.config.margin, hardest=hardest, same=self.same(seen))

    def soft(self, seen: Seen, label: Tensor, margin: Tensor) -> Tensor:
        """(B,) L_soft of pairs with soft labels (B,), or the margins that follow from them."""
        assert seen.similarity is not None
        if self.loss_name == "info_nce":
            return label * self.plain(seen)
        return triplet(seen.similarity, margin, hardest=self.loss_name == "hardest_triplet", same=self.same(seen))

    def same(self, seen: Seen) -> Tensor | None:
        """(B, B) bool of pairs that are no negatives."""
        return seen.same if self.config.mask_same else None

    # --- what it remembers -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        return {name: getattr(self, name) for name in ("division", "prediction", "confidence", "clean", "kept")}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        for name in self.state_dict():
            setattr(self, name, np.array(state[name]))

    def final_halves(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Confidence and clean, (2, N) each by the network that judged, from all that was noted until now."""
        if self.config.procedure == "paper" or np.isnan(self.division).all():
            return self.confidence, self.clean
        found = [self.split(losses).clean_probability.astype(np.float32) for losses in self.division]
        return np.stack(found), np.stack([self.chosen(confidence) for confidence in found])


def mean_of_known(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """(N,) mean over the networks (2, N), of one where the other knows nothing, NaN where both know nothing."""
    known = ~np.isnan(values)
    total = np.where(known, values, 0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan).astype(np.float32)


def _of_networks(batches: Mapping[str, "Batch"]) -> Iterator[tuple[int, str, "Batch"]]:
    """Number, name and batch, of every stream."""
    for name, batch in batches.items():
        yield NAMES.index(name.partition("_")[0]), name, batch
