"""The training loop: epochs of batches, updates, evaluations and checkpoints, the same for every method."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from noisegate.pipeline.errors import ConfigError, NoisegateError
from noisegate.pipeline.system import Progress, counted
from noisegate.trainers.config import TrainConfig
from noisegate.trainers.data import Batch
from noisegate.trainers.methods import Method
from noisegate.trainers.targets import Target, gather_tensor, save_target

from .checkpoint import (
    Checkpoint,
    LoopState,
    load_optimizer,
    optimizer_state,
    random_states,
    set_random_states,
    write_checkpoint,
)
from .log import TrainLog
from .optimizer import LearningRate, WeightAverage, build_optimizer
from .run_context import RunContext, StepInput, StepModule, Streams, trim_batch
from .run_folder import StopRequest, TrainFolder

Metrics = dict[str, float]


class Loop:
    """Train `networks` by `method`. `evaluate` returns the figures of the present networks, on the first rank.

    planned: `loop.epochs` when the run began; None: as now.
    """

    def __init__(
        self,
        config: TrainConfig,
        fabric: Fabric,
        method: Method,
        networks: Sequence[Target],
        context: RunContext,
        streams: Streams,
        folder: TrainFolder,
        log: TrainLog | None,
        progress: Progress,
        evaluate: Callable[[], Metrics] | None,
        monitor: str,
        planned: int | None = None,
    ) -> None:
        self.config, self.fabric, self.method, self.networks = config, fabric, method, networks
        self.context, self.streams, self.folder = context, streams, folder
        self._log, self._progress, self._evaluate, self._monitor = log, progress, evaluate, monitor
        self.state = LoopState()
        wanted = config.loop.epochs
        self.planned = wanted if planned is None else planned
        self.epochs = method.epochs(self.planned)
        if wanted != self.planned:  # more epochs make the method's last phase longer, and begin no earlier one again
            self.epochs = wanted
        self._method_modules = method.modules(networks).to(fabric.device)
        optimizer = build_optimizer(config.optimizer, [*networks, self._method_modules])
        self._module, self._optimizer = fabric.setup(
            StepModule(networks, self._method_modules, method, context), optimizer
        )
        self._average = WeightAverage(networks, config.loop.ema) if config.loop.ema is not None else None
        context.on_restart, context.on_trial = self._restart, self._try_update

    # --- epochs -----------------------------------------------------------------------------------------------------------

    def run(self, stop: StopRequest) -> LoopState:
        """Train until all epochs are done, patience or max_steps ends the run, or the user asks to stop."""
        state = self.state
        if state.measuring:  # the run was killed during this evaluation
            self._finish_epoch()
        while not state.over and not self._is_stop_asked(stop):
            self.context.epoch, self.context.batch = state.epoch, state.batches
            self.context.done = state.epoch / self.epochs
            if state.batch == 0:
                self.method.begin_epoch(self.context)
            self.streams.begin(state.epoch, self.method.streams(self.context))
            if len(self.streams) == 0:
                problem = f"epoch {state.epoch + 1}: the method selects no sample; nothing is left to train on"
                raise NoisegateError(problem, "method")
            if self._train_epoch(stop):
                self.method.end_epoch(self.context)
                state.epoch, state.batch = state.epoch + 1, 0
            elif not state.over:
                break
            self._finish_epoch()
        return state

    def _train_epoch(self, stop: StopRequest) -> bool:
        """Train the rest of the epoch; return False if it was interrupted after a checkpoint."""
        state, loop = self.state, self.config.loop
        length = len(self.streams)
        updates = math.ceil(length / loop.accumulate)
        schedule = self._schedule(updates)
        self._progress.epoch(state.epoch + 1, self.epochs, length, state.batch)
        for network in self.networks:
            network.train()
        pending, began, samples = False, time.monotonic(), 0
        for batches in self.streams.batches(state.batch):
            rate = self._set_rate(schedule.factor(state.epoch + state.batch // loop.accumulate / updates))
            state.batch, state.batches = state.batch + 1, state.batches + 1
            self.context.batch, self.context.done = (
                state.batches,
                (state.epoch + (state.batch - 1) / length) / self.epochs,
            )
            due = state.batch % loop.accumulate == 0 or state.batch == length
            together = min(loop.accumulate, length - (state.batch - 1) // loop.accumulate * loop.accumulate)
            loss, logs = self.backward(batches, together)
            pending = pending or loss is not None
            updated = due and pending
            if updated:
                norm = self.update()
                pending = False
                if state.step % self.config.logging.every == 0 or state.step == 1:
                    numbers = {name: float(value) for name, value in logs.items()}
                    self._write("train", {"loss": loss, "lr": rate, "grad_norm": norm, **numbers}, state.epoch + 1)
            samples += sum(len(batch) for batch in batches.values()) * self.fabric.world_size
            self._progress.batch(loss, samples / max(time.monotonic() - began, 1e-9))
            if not due:
                continue
            enough = self._reached_max_steps()
            leaving = state.batch < length and (enough or self._is_stop_asked(stop))
            saving = updated and loop.save_every and state.step % loop.save_every == 0 and state.batch < length
            if leaving or saving:
                state.seconds += time.monotonic() - began
                began, samples = time.monotonic(), 0
                state.over = self._max_steps_text() if enough else ""
                if not enough:  # at max_steps, _finish_epoch saves a checkpoint that marks the evaluation as due
                    self.save()
            if leaving:
                return False
        state.seconds += time.monotonic() - began
        return True

    def _finish_epoch(self) -> None:
        """Save, evaluate, keep the best weights, decide whether the run is over, and save again.

        The checkpoint before the evaluation lets a run that is killed during it resume with the evaluation.
        """
        state, loop = self.state, self.config.loop
        if self._reached_max_steps():
            state.over = self._max_steps_text()
        elif state.epoch >= self.epochs:
            state.over = counted(self.epochs, "epoch")
        self._save_weights("last")
        if self._evaluate is None:
            self._save_weights("best")
        elif state.epoch % loop.evaluate_every == 0 or state.over:
            if not state.measuring:
                state.measuring = True
                self.save()
            self._measure()
        state.measuring = False
        self.save()

    def _measure(self) -> None:
        """Evaluate, log the figures, and keep the weights if they are the best so far."""
        state = self.state
        state.last = self._figures()
        epoch = state.epoch + (state.batch > 0)  # max_steps may end a run within an epoch
        self._write("eval", state.last, epoch)
        counts = ("images", "captions", "samples")
        shown = ", ".join(f"{name} {value:.2f}" for name, value in state.last.items() if name not in counts)
        self._progress.note(f"epoch {epoch}: {shown}")
        if not state.best or state.last[self._monitor] > state.best[self._monitor]:
            state.best, state.best_epoch, state.waited = state.last, epoch, 0
            self._save_weights("best")
            return
        state.waited += 1
        if self._is_out_of_patience() and not state.over:
            state.over = f"no better {self._monitor} for {counted(state.waited, 'evaluation')}"

    def _figures(self) -> Metrics:
        """Measure the networks, or their weight average; the figures are the same on every rank."""
        figures: Metrics = {}
        if self.fabric.is_global_zero and self._evaluate is not None:
            with self._average.applied() if self._average is not None else nullcontext():
                figures = self._evaluate()
        broadcast: Metrics = self.fabric.broadcast(figures)
        return broadcast

    def _is_out_of_patience(self) -> bool:
        """Return whether loop.patience is used up; never before the last piece of a method that restarts."""
        state, patience = self.state, self.config.loop.patience
        start, epochs, _ = state.course or (0, self.epochs, 0.0)
        is_last = start + epochs >= self.epochs and state.epoch > self.method.finding_epochs()
        return patience is not None and state.waited >= patience and is_last

    def _reached_max_steps(self) -> bool:
        most = self.config.loop.max_steps
        return most is not None and self.state.step >= most

    def _max_steps_text(self) -> str:
        most = self.config.loop.max_steps
        return f"max_steps={most} update{'' if most == 1 else 's'}"

    def _is_stop_asked(self, stop: StopRequest) -> bool:
        """Return whether any rank was asked to stop."""
        if self.fabric.world_size == 1:
            return stop.asked
        return bool(gather_tensor(torch.tensor([int(stop.asked)], device=self.fabric.device)).any())

    # --- a step -----------------------------------------------------------------------------------------------------------

    def backward(
        self, batches: Mapping[str, Batch], together: int = 1
    ) -> tuple[float | None, Mapping[str, float | Tensor]]:
        """Add the gradients of a batch that is one of `together` in its update; return its loss, None if it was skipped.

        Gradients are averaged over the ranks for each batch, because the next one may be skipped.
        """
        batches = self._equalise(batches)
        loss, logs = self._module(StepInput(batches)) if batches else (None, {})
        if loss is None:
            self.state.skipped += 1
            return None, logs
        value = float(loss.detach())
        if not math.isfinite(value):
            self._count_not_finite(f"the loss is {value}")
            return None, logs
        self.fabric.backward(loss / together)
        return value, logs

    def update(self) -> float:
        """Clip, step and average; return the largest gradient norm of a network, or a module of the method, before clipping."""
        optimizer = self._optimizer
        self.fabric.strategy.precision.unscale_gradients(getattr(optimizer, "optimizer", optimizer))
        largest = self.config.loop.clip if self.config.loop.clip is not None else math.inf
        parts = (*self.networks, *self._method_modules)
        norms = [torch.nn.utils.clip_grad_norm_(part.parameters(), largest) for part in parts]
        norm = float(
            torch.stack([norm.to(self.fabric.device) for norm in norms]).max()
        )  # without gradients: on the CPU
        # the gradient scaler of 16-mixed tries large scales and lowers them by itself
        if not math.isfinite(norm) and self.config.loop.precision != "16-mixed":
            self._count_not_finite(f"the gradient's norm is {norm}")
            optimizer.zero_grad()
            return norm
        optimizer.step()
        optimizer.zero_grad()
        for network in self.networks:
            network.after_step()
        self.state.step += 1
        if self._average is not None:
            self._average.update()
        return norm

    def _try_update(self, network: int, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a network's weights after a trial update by these gradients, with a copy of the optimiser."""
        optimizer = getattr(self._optimizer, "optimizer", self._optimizer)
        own = dict(self.networks[network].named_parameters())
        copies = {own[name]: own[name].detach().clone() for name in gradients}
        for name, gradient in gradients.items():
            copies[own[name]].grad = gradient
        if self.config.loop.clip is not None:
            torch.nn.utils.clip_grad_norm_(copies.values(), self.config.loop.clip)
        groups = [{**g, "params": [copies[p] for p in g["params"] if p in copies]} for g in optimizer.param_groups]
        trial = type(optimizer)([group for group in groups if group["params"]])
        for parameter, copy in copies.items():
            state = optimizer.state.get(parameter, {})
            trial.state[copy] = {key: v.clone() if isinstance(v, Tensor) else v for key, v in state.items()}
        trial.step()
        return {name: copies[own[name]] for name in gradients}

    def _count_not_finite(self, problem: str) -> None:
        """Skip a batch with a nan or infinite loss or gradient; raise NoisegateError after loop.nan_limit of them."""
        state, limit = self.state, self.config.loop.nan_limit
        state.not_finite += 1
        problem = f"{problem} in batch {state.batch} of epoch {state.epoch + 1}"
        rate = self.config.optimizer.lr
        if state.not_finite > limit:
            advice = (
                f"try optimizer.lr={rate / 10:g} (now {rate:g}), or loop.nan_limit={max(10, 2 * limit)} (now {limit})"
            )
            raise NoisegateError(f"{problem}; {advice}", "loop.nan_limit", limit)
        self._progress.note(f"{problem}: skipped")

    def _equalise(self, batches: Mapping[str, Batch]) -> dict[str, Batch]:
        """Trim batches to the same number of samples on every rank; drop a stream if a rank has no samples of it."""
        if self.fabric.world_size == 1:
            return {name: batch for name, batch in batches.items() if len(batch)}
        sizes = gather_tensor(torch.tensor([[len(batch) for batch in batches.values()]], device=self.fabric.device))
        least = sizes.amin(dim=0).tolist()
        return {name: trim_batch(b, n) for (name, b), n in zip(batches.items(), least, strict=True) if n}

    # --- learning rate and restarts -----------------------------------------------------------------------------------------

    def _schedule(self, updates: int) -> LearningRate:
        """The learning-rate schedule for an epoch of `updates` updates."""
        state, warmup = self.state, self.config.schedule.warmup
        if state.course is None:
            state.course = (0, self.epochs, warmup / updates)
            if warmup >= updates * self.epochs:
                self._progress.note(
                    f"schedule.warmup={warmup} updates, and there will be {updates * self.epochs}: the learning rate will "
                    "hardly reach optimizer.lr"
                )
        start, epochs, warmup_epochs = state.course
        if warmup_epochs < 0:  # after a restart: the length of its first epoch is known only now
            warmup_epochs = warmup / updates
            state.course = (start, epochs, warmup_epochs)
        return LearningRate(self.config.schedule, epochs, warmup_epochs, start)

    def _set_rate(self, factor: float) -> float:
        rate = self.config.optimizer.lr * factor
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _restart(self, epochs: int | None) -> None:
        """Forget the optimiser's state, the best figure and the average; begin a schedule of `epochs` epochs, or all left."""
        state = self.state
        epochs = self.epochs - state.epoch if epochs is None else epochs
        getattr(self._optimizer, "optimizer", self._optimizer).state.clear()
        state.course, state.best, state.waited = (state.epoch, epochs, -1.0), {}, 0
        state.restarts = self.context.restarts
        if self._average is not None:
            self._average.restart()

    # --- files --------------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint; a run resumed from it gives the same weights as an uninterrupted run."""
        tensors, groups = optimizer_state(self._optimizer)
        rng = random_states(self.fabric)
        if not self.fabric.is_global_zero:
            return
        contents: dict[str, Mapping[str, Any]] = {
            **{f"network{i}": network.state_dict() for i, network in enumerate(self.networks)},
            "optimizer": tensors,
            "rng": rng,
            "method": self.method.state_dict(),
            "method_modules": self._method_modules.state_dict(),
            "average": {} if self._average is None else self._average.weights,
        }
        facts = {
            "place": asdict(self.state),
            "optimizer": groups,
            "precision": self.fabric.strategy.precision.state_dict(),
            "averaged": 0 if self._average is None else self._average.updates,
            "data": self.context.data_digest,
            "epochs": self.epochs,
            "planned": self.planned,
        }
        write_checkpoint(self.folder.state_file, contents, facts)

    def load(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint; raise ConfigError if the tables have changed since."""
        facts = checkpoint.facts
        if facts.get("data", self.context.data_digest) != self.context.data_digest:
            problem = f"has changed since {self.folder.path} began; bring the old tables back, or start a new run"
            raise ConfigError.of("data.table", self.config.data.table, problem)
        values = dict(facts["place"])
        values["course"] = None if values["course"] is None else tuple(values["course"])
        self.state = LoopState(**values)
        self._extend(facts.get("epochs", self.epochs))
        self.context.restarts = self.state.restarts
        for i, network in enumerate(self.networks):
            network.load_state_dict(checkpoint.group(f"network{i}"))
        self._method_modules.load_state_dict(checkpoint.group("method_modules"))
        load_optimizer(self._optimizer, checkpoint.group("optimizer"), facts["optimizer"])
        self.fabric.strategy.precision.load_state_dict(facts["precision"])
        self.method.load_state_dict({name: tensor.numpy() for name, tensor in checkpoint.group("method").items()})
        if self._average is not None:
            self._average.load(checkpoint.group("average"), facts["averaged"])
        set_random_states(checkpoint.group("rng"), self.fabric)

    def _extend(self, epochs: int) -> None:
        """Continue a run that was over, if the settings now allow more epochs, updates or patience."""
        state, loop = self.state, self.config.loop
        if state.course is not None and sum(state.course[:2]) == epochs:  # all epochs, or the last piece of them
            start, _, warmup = state.course
            state.course = (start, self.epochs - start, warmup)
        if state.epoch < self.epochs and state.step < (loop.max_steps or math.inf) and not self._is_out_of_patience():
            state.over = ""

    def _save_weights(self, which: str) -> None:
        if not self.fabric.is_global_zero:
            return
        averaged = self._average.applied() if self._average is not None and which == "best" else nullcontext()
        with averaged:
            for i, network in enumerate(self.networks):
                save_target(network, self.folder.weights(which, i))

    def _write(self, kind: str, values: Mapping[str, Any], epoch: int) -> None:
        if self._log is not None:
            facts = {"epoch": epoch, "step": self.state.step, "skipped": self.state.skipped}
            given = {name: value for name, value in values.items() if value is not None}
            self._log.write(kind, self.state.batches, {**facts, **given})
