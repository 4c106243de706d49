"""`train`: train a network from a configuration, or resume a run."""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs import folder_lock
from noisegate.pipeline.system import Progress, counted, progress_for, reuse_memory

from .checks import CheckedConfig, check_config
from .config import TrainConfig, parse_settings, read_config
from .data import WeightedShards
from .evaluate import evaluation_data, measure
from .loop.checkpoint import Checkpoint, LoopState, read_checkpoint
from .loop.log import TrainLog
from .loop.loop import Loop
from .loop.run_context import PICTURE, RunContext, Streams, build_network
from .loop.run_folder import TrainFolder, explain_interrupts, make_run_folder, stop_on_signals
from .methods import Method
from .targets import Target, TargetConfig, as_one, load_target, resolve_target
from .tasks import TASKS

CHANGEABLE = (
    "data.workers", "data.cache", "data.eval_shards", "data.eval_table", "data.eval_batch_size", "loop.epochs",
    "loop.max_steps", "data.keep_decoded", "loop.patience", "loop.save_every", "loop.evaluate_every", "loop.nan_limit",
    "loop.device", "loop.devices", "loop.nodes",
)  # fmt: skip
"""settings that may change when a run is resumed, beside those of logging and task.options"""


@dataclass(frozen=True)
class TrainResult:
    """The result of a training. `best` and `last` are figures in percent; `over` says why it ended, empty if stopped."""

    folder: Path
    method: str
    task: str
    monitor: str
    best: dict[str, float]
    best_epoch: int
    last: dict[str, float]
    epochs: int
    steps: int
    skipped: int
    seconds: float
    """of training, without evaluation"""
    over: str
    stopped: bool
    rank: int
    sample_columns: dict[str, NDArray[Any]]
    """what the method learnt about each sample, (total_rows,) by column"""

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        hidden = ("folder", "stopped", "rank", "sample_columns")
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in hidden}
        return {"folder": str(self.folder), **values}


def train(
    config: TrainConfig | Mapping[str, Any] | str | Path | None = None,
    *,
    settings: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    quiet: bool = False,
    display: Progress | None = None,
) -> TrainResult:
    """Train by a configuration (an object, a tree of values, or a YAML file), or resume the run in `resume`.

    `settings` are words such as `optimizer.lr=1e-4`, `flags` the same as names with values. Mistakes in the configuration are
    reported before data or network is loaded. SIGINT and SIGTERM stop the training after a checkpoint; the result is then
    `stopped`.
    """
    checkpoint: Checkpoint | None = None
    folder: TrainFolder | None = None
    if resume is not None:
        if config is not None:
            problem = "brings its own configuration; leave config out, and change single settings"
            raise ConfigError.of("resume", str(resume), problem)
        folder = TrainFolder(resume)
        parsed = _read_resumed_config(folder, {**(flags or {}), **parse_settings(settings)})
        checkpoint = read_checkpoint(folder.state_file)
    else:
        source = config.model_dump() if isinstance(config, TrainConfig) else config
        parsed = TrainConfig.parse(read_config(source, settings, flags))
    checked = check_config(parsed)
    fabric = _make_fabric(parsed, checked.method)
    fabric.launch()
    if not fabric.is_global_zero:
        display = Progress()
    progress = display or progress_for(quiet)
    if fabric.device.type == "cpu":
        reuse_memory()
    torch.manual_seed(parsed.seed + fabric.global_rank)
    if parsed.loop.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
    with contextlib.ExitStack() as stack:
        stack.callback(progress.stop)
        data = _training_data(parsed, checked, fabric)
        stack.callback(data.close)
        for note in (*checked.notes, *data.notes):
            progress.note(note)
        described = _resolve_target(checked, data)
        networks = [
            build_network(described, parsed.seed, 0 if checked.method.same_start else i, weights=checkpoint is None)
            for i in range(checked.method.networks)
        ]
        resolved = {"target": networks[0].config, "method": checked.method.config}
        parsed = parsed.model_copy(update={name: part.model_dump(mode="json") for name, part in resolved.items()})
        return _run_loop(parsed, checked.method, networks, fabric, data, folder, checkpoint, progress, stack)


def _run_loop(
    config: TrainConfig,
    method: Method,
    networks: Sequence[Target],
    fabric: Fabric,
    data: WeightedShards,
    resumed: TrainFolder | None,
    checkpoint: Checkpoint | None,
    progress: Progress,
    stack: contextlib.ExitStack,
) -> TrainResult:
    data = _with_transforms(config, data, networks[0], method.config.mask_same)
    streams = Streams(data, config.seed)
    stack.callback(streams.close)
    context = RunContext(config, networks, data, fabric.device, fabric.world_size, progress.note)
    stack.callback(context.close)
    evaluate = None
    if config.loop.evaluate_every:
        held_out = evaluation_data(config.data, config.task.name, networks[0])
        stack.callback(held_out.close)
        evaluate = functools.partial(measure, as_one(networks), held_out, config.task)
    planned = config.loop.epochs if checkpoint is None else checkpoint.facts.get("planned", config.loop.epochs)
    method.epochs(planned)  # `start` reads the lengths of its phases
    method.start(context)
    folder = resumed or _make_folder(config, fabric)
    if fabric.is_global_zero:
        stack.enter_context(folder_lock(folder.path))
        if resumed is None:
            folder.write_config(config)
    batches = counted(len(data), "batch", "batches")
    progress.note(f"run {folder.path}: {data.selected_rows:,} of {data.total_rows:,} rows, {batches} an epoch")
    log = None
    if fabric.is_global_zero:
        done = {} if checkpoint is None else checkpoint.facts["place"]
        log = TrainLog(
            folder.log_file,
            folder.tensorboard if config.logging.tensorboard else None,
            done.get("batches", 0),
            measured=not done.get("measuring", False),
        )
        stack.callback(log.close)
    monitor = TASKS[config.task.name][1] if config.task.monitor == "auto" else config.task.monitor
    loop = Loop(config, fabric, method, networks, context, streams, folder, log, progress, evaluate, monitor, planned)
    if checkpoint is not None:
        loop.load(checkpoint)
        progress.note(_describe_resume(loop))
        if fabric.is_global_zero:
            folder.write_config(config)  # the next resume keeps the changed settings
    with explain_interrupts(folder), stop_on_signals(quiet=type(progress) is Progress) as stop:
        state = loop.run(stop)
    result = _result(config, method, folder, state, monitor, fabric.global_rank)
    if fabric.is_global_zero and not result.stopped:
        folder.write_result(result.to_dict())
        _export_best(folder)
    return result


def _describe_resume(loop: Loop) -> str:
    """Describe where a resumed run continues."""
    state, wanted = loop.state, loop.config.loop
    if state.over:
        more = f"loop.epochs={2 * loop.epochs}"
        if wanted.max_steps is not None and state.step >= wanted.max_steps:
            more = f"loop.max_steps={2 * wanted.max_steps}"
        elif state.epoch < loop.epochs and wanted.patience is not None:
            more = f"loop.patience={2 * wanted.patience}"
        still = ", once it is measured" if state.measuring else ""
        return f"this run is over after {state.over}{still}; make it longer with, for example, --set {more}"
    if state.measuring:
        return f"going on with the evaluation after epoch {state.epoch}"
    return f"going on in epoch {state.epoch + 1} after {state.batch} of its batches"


def _read_resumed_config(folder: TrainFolder, changes: Mapping[str, Any]) -> TrainConfig:
    values = folder.read_config()
    for name, value in changes.items():
        if name not in CHANGEABLE and not name.startswith(("logging.", "task.options.")):
            problem = (
                f"is fixed in a run that goes on; start a new one, or change {', '.join(CHANGEABLE)}, task.options"
            )
            raise ConfigError.of(name, value, problem)
    return TrainConfig.parse(read_config(values, flags=changes))


def _make_fabric(config: TrainConfig, method: Method) -> Fabric:
    loop = config.loop
    world = loop.devices * loop.nodes
    accelerator = {"auto": "auto", "cpu": "cpu", "cuda": "gpu", "mps": "mps"}[loop.device]
    strategy: Any = "auto"
    if world > 1:
        on_cpu = loop.device == "cpu" or not torch.cuda.is_available()
        strategy = DDPStrategy(
            process_group_backend="gloo" if on_cpu else "nccl",
            find_unused_parameters=not (config.task.name == "retrieval" and method.uses_all_parameters()),
        )
    places = {"accelerator": accelerator, "devices": loop.devices, "num_nodes": loop.nodes}
    return Fabric(**places, strategy=strategy, precision=loop.precision)


def _training_data(config: TrainConfig, checked: CheckedConfig, fabric: Fabric) -> WeightedShards:
    """Open the training data without transforms, which come from the target."""
    d = config.data
    return WeightedShards(
        d.shards or None,
        d.table,
        **d.training_options(config.task.name),
        batch_size=d.batch_size,
        seed=config.seed,
        columns=checked.method.table_columns(),
        where=checked.where,
        sampler=checked.sampler,
        window_shards=d.window_shards,
        rank=fabric.global_rank,
        world=fabric.world_size,
        workers=d.workers,
        max_mismatch=d.max_mismatch,
        keep_decoded=d.keep_decoded,
        pin_memory=fabric.device.type == "cuda",
    )


def _with_transforms(config: TrainConfig, data: WeightedShards, target: Target, mask_same: bool) -> WeightedShards:
    wants_text = config.task.name == "retrieval"
    return data.view(
        image=target.image_transform(True),
        text=target.tokenizer if wants_text else None,
        captions=config.data.captions if wants_text else "one",
        fields=(PICTURE,) if wants_text and mask_same else (),
    )


def _resolve_target(checked: CheckedConfig, data: WeightedShards) -> TargetConfig:
    """Return the target's settings with the values that depend on the data, such as its vocabulary."""

    def captions() -> Iterator[str]:
        view = data.view(sampler="sequential", rank=0, world=1)
        for batch in view:
            yield from batch.captions
        view.close()

    return resolve_target(checked.target, captions)


def _make_folder(config: TrainConfig, fabric: Fabric) -> TrainFolder:
    """Make a folder on the first rank and tell the others."""
    path = ""
    if fabric.is_global_zero:
        path = str(make_run_folder(config.out, str(config.method["name"])).path)
    return TrainFolder(fabric.broadcast(path))


def _result(
    config: TrainConfig, method: Method, folder: TrainFolder, state: LoopState, monitor: str, rank: int
) -> TrainResult:
    return TrainResult(
        folder=folder.path,
        method=str(config.method["name"]),
        task=config.task.name,
        monitor=monitor,
        best=state.best,
        best_epoch=state.best_epoch,
        last=state.last,
        epochs=state.epoch,
        steps=state.step,
        skipped=state.skipped,
        seconds=state.seconds,
        over=state.over,
        stopped=not state.over,
        rank=rank,
        sample_columns={name: np.asarray(values) for name, values in method.sample_columns().items()},
    )


def _export_best(folder: TrainFolder) -> None:
    """Write the best weights in the format of open_clip or transformers, if the target is one of their models."""
    files = folder.networks("best")
    if len(files) == 1:
        target = load_target(files[0])
        export = getattr(target, "export", None)
        if export is not None:
            export(folder.open_clip if target.config.name == "clip" else folder.path / target.config.name)
