"""The training loop: epochs of batches, updates, evaluations and checkpoints, the same for every method."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from noisegate.pipeline.errors import ConfigError, NoisegateError
from noisegate.pipeline.system.progress import Progress, counted
from noisegate.trainers.config import TrainConfig
from noisegate.trainers.data import Batch
from noisegate.trainers.methods import Method
from noisegate.trainers.targets import Target, gather_tensor, save_target

from .average import Average
from .checkpoint import State, load_optimizer, optimizer_state, random_states, save_state, set_random_states
from .logs import Log
from .run_folder import TrainFolder
from .running import Running, StepModule, Work, trimmed
from .schedule import Course, build_optimizer
from .signals import StopRequest
from .streams import Streams

__all__ = ["Loop", "Place"]

Metrics = dict[str, float]


@dataclass
class Place:
    """How far a run is. What a checkpoint keeps beside tensors."""

    epoch: int = 0
    batch: int = 0
    """batches done of this epoch"""
    batches: int = 0
    """batches done of all epochs"""
    step: int = 0
    """updates"""
    skipped: int = 0
    """batches without any weight"""
    not_finite: int = 0
    """batches whose loss or gradient was no number"""
    best: Metrics = field(default_factory=dict)
    best_epoch: int = 0
    last: Metrics = field(default_factory=dict)
    waited: int = 0
    """evaluations since the best"""
    course: tuple[int, int, float] | None = None
    """start, epochs and warm-up in epochs of the learning rate's course"""
    restarts: int = 0
    seconds: float = 0.0
    """of training, without evaluation and set-up"""
    over: str = ""
    """why there is nothing more to do"""
    measuring: bool = False
    """trained as far as this, and an evaluation is still due"""


class Loop:
    """Trains `networks` by `method`. `evaluate` gives the figures of the networks as they are, on the first rank."""

    def __init__(
        self,
        config: TrainConfig,
        fabric: Fabric,
        method: Method,
        networks: Sequence[Target],
        running: Running,
        streams: Streams,
        folder: TrainFolder,
        log: Log | None,
        display: Progress,
        evaluate: Callable[[], Metrics] | None,
        monitor: str,
    ) -> None:
        self.config, self.fabric, self.method, self.networks = config, fabric, method, networks
        self.running, self.streams, self.folder = running, streams, folder
        self._log, self._display, self._evaluate, self._monitor = log, display, evaluate, monitor
        self.place = Place()
        self.epochs = method.epochs(config.loop.epochs)
        optimizer = build_optimizer(config.optimizer, networks)
        self._module, self._optimizer = fabric.setup(StepModule(networks, method, running), optimizer)
        self._average = Average(networks, config.loop.ema) if config.loop.ema is not None else None
        self._scaled = config.loop.precision == "16-mixed"
        running.on_restart = self._restart

    # --- epochs -----------------------------------------------------------------------------------------------------------

    def run(self, stop: StopRequest) -> Place:
        """Until all epochs are done, the figures stop getting better, or somebody asks to stop."""
        place = self.place
        if place.measuring:  # it was killed meanwhile
            self._finish_epoch()
        while not place.over and not self._asked(stop):
            self.running.epoch, self.running.batch, self.running.step = place.epoch, place.batches, place.step
            if place.batch == 0:
                self.method.begin_epoch(self.running)
            self.streams.begin(place.epoch, self.method.streams(self.running))
            if len(self.streams) == 0:
                raise NoisegateError(
                    f"epoch {place.epoch + 1}: the method selects no sample; nothing is left to train on"
                )
            whole = self._train_epoch(stop)
            if whole:
                self.method.end_epoch(self.running)
                place.epoch, place.batch = place.epoch + 1, 0
            elif not place.over:
                break
            self._finish_epoch()
        return place

    def _train_epoch(self, stop: StopRequest) -> bool:
        """Train the rest of the epoch; False when it was left before its end, after a checkpoint."""
        place, loop = self.place, self.config.loop
        length = len(self.streams)
        updates = math.ceil(length / loop.accumulate)
        course = self._course(updates)
        self._display.epoch(place.epoch + 1, self.epochs, length, place.batch)
        for network in self.networks:
            network.train()
        pending, began, ready = False, time.monotonic(), 0
        for batches in self.streams.batches(place.batch):
            rate = self._set_rate(course.factor(place.epoch + place.batch // loop.accumulate / updates))
            place.batch, place.batches = place.batch + 1, place.batches + 1
            self.running.batch, self.running.step = place.batches, place.step
            due = place.batch % loop.accumulate == 0 or place.batch == length
            together = min(loop.accumulate, length - (place.batch - 1) // loop.accumulate * loop.accumulate)
            loss, logs = self.backward(batches, together)
            pending = pending or loss is not None
            updated = due and pending
            if updated:
                norm = self.update()
                pending = False
                if place.step % self.config.logging.every == 0 or place.step == 1:
                    values = {"loss": loss, "lr": rate, "grad_norm": norm, **_numbers(logs)}
                    self._write("train", values, place.epoch + 1)
            ready += sum(len(batch) for batch in batches.values()) * self.fabric.world_size
            self._display.batch(loss, ready / max(time.monotonic() - began, 1e-9))
            if not due:
                continue
            enough = loop.max_steps is not None and place.step >= loop.max_steps
            left = place.batch < length and (enough or self._asked(stop))
            saving = (
                updated and loop.save_every is not None and place.step % loop.save_every == 0 and place.batch < length
            )
            if left or saving:
                place.seconds += time.monotonic() - began
                began, ready = time.monotonic(), 0
                place.over = self._enough() if enough else ""
                if not enough:  # else after its evaluation is known to be due
                    self.save()
            if left:
                return False
        place.seconds += time.monotonic() - began
        return True

    def _finish_epoch(self) -> None:
        """Save, evaluate, keep what is best, see whether all is done, and save that.

        An evaluation may take long; whoever is killed in it goes on with it, and not with the epoch before.
        """
        place, loop = self.place, self.config.loop
        if loop.max_steps is not None and place.step >= loop.max_steps:
            place.over = self._enough()
        elif place.epoch >= self.epochs:
            place.over = counted(self.epochs, "epoch")
        self._save_weights("last")
        if self._evaluate is None:
            self._save_weights("best")
        elif place.epoch % loop.evaluate_every == 0 or place.over:
            if not place.measuring:
                place.measuring = True
                self.save()
            self._measure()
        place.measuring = False
        self.save()

    def _enough(self) -> str:
        most = self.config.loop.max_steps
        return f"max_steps={most} update{'' if most == 1 else 's'}"

    def _measure(self) -> None:
        place = self.place
        place.last = self._figures()
        number = place.epoch + (place.batch > 0)  # max_steps may end a run within an epoch
        self._write("eval", place.last, number)
        counts = ("images", "captions", "samples")
        shown = ", ".join(f"{name} {value:.2f}" for name, value in place.last.items() if name not in counts)
        self._display.note(f"epoch {number}: {shown}")
        if not place.best or place.last[self._monitor] > place.best[self._monitor]:
            place.best, place.best_epoch, place.waited = place.last, number, 0
            self._save_weights("best")
            return
        place.waited += 1
        if self._tired() and not place.over:
            place.over = f"no better {self._monitor} for {counted(place.waited, 'evaluation')}"

    def _tired(self) -> bool:
        """Whether patience is at its end; never before the last piece of a method that begins again."""
        place, patience = self.place, self.config.loop.patience
        start, epochs, _ = place.course or (0, self.epochs, 0.0)
        return patience is not None and place.waited >= patience and start + epochs >= self.epochs

    def _figures(self) -> Metrics:
        found: Metrics = {}
        if self.fabric.is_global_zero and self._evaluate is not None:
            with self._average.applied() if self._average is not None else nullcontext():
                found = self._evaluate()
        everywhere: Metrics = self.fabric.broadcast(found)
        return everywhere

    # --- a step -----------------------------------------------------------------------------------------------------------

    def backward(
        self, batches: Mapping[str, Batch], together: int = 1
    ) -> tuple[float | None, Mapping[str, float | Tensor]]:
        """Add a batch's gradients, averaged over the ranks each time, because the next batch may be skipped.

        No loss where the batch was skipped. `together`: how many batches make the update; each counts as one of so many.
        """
        batches = self._even(batches)
        loss, logs = self._module(Work(batches)) if batches else (None, {})
        if loss is None:
            self.place.skipped += 1
            return None, logs
        value = float(loss.detach())
        if not math.isfinite(value):
            self._not_a_number(f"the loss is {value}")
            return None, logs
        self.fabric.backward(loss / together)
        return value, logs

    def update(self) -> float:
        """Clip, step, average; the largest norm of a network's gradient before clipping."""
        optimizer = self._optimizer
        self.fabric.strategy.precision.unscale_gradients(getattr(optimizer, "optimizer", optimizer))
        largest = self.config.loop.clip if self.config.loop.clip is not None else math.inf
        norms = [torch.nn.utils.clip_grad_norm_(network.parameters(), largest) for network in self.networks]
        norm = float(torch.stack(norms).max())
        if not math.isfinite(norm) and not self._scaled:  # a scaler tries large scales and steps back by itself
            self._not_a_number(f"the gradient's norm is {norm}")
            optimizer.zero_grad()
            return norm
        optimizer.step()
        optimizer.zero_grad()
        for network in self.networks:
            network.after_step()
        self.place.step += 1
        if self._average is not None:
            self._average.update()
        return norm

    def _not_a_number(self, what: str) -> None:
        place, limit = self.place, self.config.loop.nan_limit
        place.not_finite += 1
        rate = self.config.optimizer.lr
        if place.not_finite > limit:
            raise NoisegateError(
                f"{what} in batch {place.batch} of epoch {place.epoch + 1}; try optimizer.lr={rate / 10:g} (now {rate:g}), or "
                f"loop.nan_limit={max(10, 2 * limit)} to skip some such batches (now {limit})"
            )
        self._display.note(f"{what} in batch {place.batch} of epoch {place.epoch + 1}: skipped")

    def _even(self, batches: Mapping[str, Batch]) -> dict[str, Batch]:
        """The same number of samples on every rank; a stream of which a rank has none is left out."""
        if self.fabric.world_size == 1:
            return {name: batch for name, batch in batches.items() if len(batch)}
        sizes = gather_tensor(torch.tensor([[len(batch) for batch in batches.values()]], device=self.fabric.device))
        least = sizes.amin(dim=0).tolist()
        return {name: trimmed(b, n) for (name, b), n in zip(batches.items(), least, strict=True) if n}

    # --- learning rate and restarts -----------------------------------------------------------------------------------------

    def _course(self, updates: int) -> Course:
        place = self.place
        if place.course is None:
            place.course = (0, self.epochs, self.config.schedule.warmup / updates)
            if self.config.schedule.warmup >= updates * self.epochs:
                self._display.note(
                    f"schedule.warmup={self.config.schedule.warmup} updates, and there will be {updates * self.epochs}: the "
                    "learning rate will hardly reach optimizer.lr"
                )
        start, epochs, warmup = place.course
        if warmup < 0:  # a restart, whose first epoch's length is known only now
            warmup = self.config.schedule.warmup / updates
            place.course = (start, epochs, warmup)
        return Course(self.config.schedule, epochs, warmup, start)

    def _set_rate(self, factor: float) -> float:
        rate = self.config.optimizer.lr * factor
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _restart(self, epochs: int) -> None:
        place = self.place
        getattr(self._optimizer, "optimizer", self._optimizer).state.clear()
        place.course, place.best, place.waited = (place.epoch, epochs, -1.0), {}, 0
        place.restarts = self.running.restarts
        if self._average is not None:
            self._average.restart()

    # --- what is kept -------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """A checkpoint from which a run goes on as if it had never stopped."""
        tensors, groups = optimizer_state(self._optimizer)
        rng = random_states(self.fabric)
        if not self.fabric.is_global_zero:
            return
        contents: dict[str, Mapping[str, Any]] = {
            **{f"network{i}": network.state_dict() for i, network in enumerate(self.networks)},
            "optimizer": tensors,
            "rng": rng,
            "method": self.method.state_dict(),
            "average": {} if self._average is None else self._average.weights,
        }
        facts = {
            "place": asdict(self.place),
            "optimizer": groups,
            "precision": self.fabric.strategy.precision.state_dict(),
            "averaged": 0 if self._average is None else self._average.updates,
            "data": self.running.data_digest,
            "epochs": self.epochs,
        }
        save_state(self.folder.state_file, contents, facts)

    def load(self, state: State) -> None:
        """Go on from a checkpoint; raises ConfigError where the tables are others than they were."""
        if state.facts.get("data", self.running.data_digest) != self.running.data_digest:
            raise ConfigError(
                f"data.table={self.config.data.table}: its rows, or the columns that the method reads, have changed since "
                f"{self.folder.path} began; bring the old tables back, or start a new run"
            )
        values = dict(state.facts["place"])
        values["course"] = None if values["course"] is None else tuple(values["course"])
        self.place = Place(**values)
        self._look_further(state.facts.get("epochs", self.epochs))
        self.running.restarts = self.place.restarts
        for i, network in enumerate(self.networks):
            network.load_state_dict(state.group(f"network{i}"))
        load_optimizer(self._optimizer, state.group("optimizer"), state.facts["optimizer"])
        self.fabric.strategy.precision.load_state_dict(state.facts["precision"])
        self.method.load_state_dict({name: tensor.numpy() for name, tensor in state.group("method").items()})
        if self._average is not None:
            self._average.load(state.group("average"), state.facts["averaged"])
        set_random_states(state.group("rng"), self.fabric)

    def _look_further(self, epochs: int) -> None:
        """There may be more to do now than there was then: more than `epochs`, more updates, more patience."""
        place, loop = self.place, self.config.loop
        if place.course is not None and sum(place.course[:2]) == epochs:  # all epochs, or the last piece of them
            start, _, warmup = place.course
            place.course = (start, self.epochs - start, warmup)
        if place.epoch < self.epochs and place.step < (loop.max_steps or math.inf) and not self._tired():
            place.over = ""

    def _save_weights(self, which: str) -> None:
        if not self.fabric.is_global_zero:
            return
        averaged = self._average.applied() if self._average is not None and which == "best" else nullcontext()
        with averaged:
            for i, network in enumerate(self.networks):
                save_target(network, self.folder.weights(which, i))

    def _write(self, kind: str, values: Mapping[str, Any], epoch: int) -> None:
        place = self.place
        facts = {"epoch": epoch, "step": place.step, "skipped": place.skipped}
        if self._log is not None:
            self._log.write(kind, place.batches, {**facts, **{k: v for k, v in values.items() if v is not None}})

    def _asked(self, stop: StopRequest) -> bool:
        """Whether any rank was asked to stop."""
        if self.fabric.world_size == 1:
            return stop.asked
        return bool(gather_tensor(torch.tensor([int(stop.asked)], device=self.fabric.device)).any())


def _numbers(logs: Mapping[str, float | Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in logs.items()}
