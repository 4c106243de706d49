"""Check a configuration against files, tables and devices, before a shard is read or a network built."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import torch

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs import RunFolder, parse_where
from noisegate.pipeline.shards import Shard, find_shards
from noisegate.pipeline.system import counted

from .config import TrainConfig, build_method
from .data.sample_reader import CaptionSource
from .methods import Method
from .methods.table_inputs import open_finished_run, require_columns
from .targets import TargetConfig, target_config
from .tasks import check_task

_M_PER_CLASS = re.compile(r"m_per_class:([1-9][0-9]*)")
_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)


@dataclass(frozen=True)
class CheckedConfig:
    """Objects built by the checks; `notes` are messages for the user."""

    method: Method
    target: TargetConfig
    shards: list[Shard]
    eval_shards: list[Shard]
    sampler: str
    where: str | None
    notes: list[str]


def check_config(config: TrainConfig) -> CheckedConfig:
    """Raise ConfigError for the first setting that cannot work."""
    data = config.data
    _check_folder("out", config.out, "runs")
    if data.cache is not None:
        _check_folder("data.cache", data.cache, "cache")
    _check_device(config)
    check_task(config.task.name, config.task.options, config.task.monitor)
    CaptionSource.parse(data.captions, "data.captions")
    method = build_method(config)
    method.epochs(config.loop.epochs)
    target = method.target_settings(_check_target(config))
    sampler = _check_sampler(config)
    if data.table is None and data.where is not None:
        problem = "is a rule over a table's columns, and data.table is not given; give data.table=tables"
        raise ConfigError.of("data.where", data.where, problem)
    _check_label_column(config)
    run = None
    if method.needs_table or data.table is not None:
        run = open_finished_run(data.table, f"method.name={config.method['name']}")
    if data.where is not None:
        require_columns(data.table, parse_where(data.where).columns, f"data.where={data.where!r}")
    method.check_weights(data.table)
    method.check(data.table)
    where = join_rules(data.where, method.where())
    if run is not None:
        _check_size(config, run, where)
        _check_labels(config, run, target)
    shards = _check_shards(config, run)
    eval_shards = _check_evaluation(config)
    seen = {shard.url for shard in shards} & {shard.url for shard in eval_shards}
    notes = [f"{min(seen)} is trained on and evaluated on: figures will flatter"] if seen else []
    return CheckedConfig(method, target, shards, eval_shards, sampler, where, notes)


def join_rules(first: str | None, second: str | None) -> str | None:
    """Join two rules by `and`; None is no rule.

    >>> join_rules("similarity > 0.2", "clean")
    '(similarity > 0.2) and (clean)'
    """
    return f"({first}) and ({second})" if first and second else first or second


def _check_folder(setting: str, folder: Path, example: str) -> None:
    """Check that no parent of the folder is a file; the folder need not exist."""
    if _URL.match(str(folder)):
        raise ConfigError.of(setting, folder, f"is a URL; give a local folder, such as {setting}={example}")
    nearest = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if nearest is not None and not nearest.is_dir():
        problem = f"{setting}={folder}: {nearest} is a file; give a folder, such as {setting}={example}"
        raise ConfigError(problem, setting, folder)


def _check_device(config: TrainConfig) -> None:
    loop = config.loop
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not found.get(loop.device, True):
        raise ConfigError.of("loop.device", loop.device, "is no GPU that torch finds; use loop.device=cpu or auto")
    gpu = loop.device != "cpu" and torch.cuda.is_available()
    if gpu and loop.devices > torch.cuda.device_count():
        problem = f"is more than the {torch.cuda.device_count()} that torch finds here; use as many or fewer"
        raise ConfigError.of("loop.devices", loop.devices, problem)
    if loop.precision == "16-mixed" and not gpu:
        raise ConfigError.of("loop.precision", loop.precision, "needs a GPU; use loop.precision=32-true")
    if loop.precision == "bf16-mixed" and gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
        problem = "is not what this GPU computes in; use loop.precision=16-mixed"
        raise ConfigError.of("loop.precision", loop.precision, problem)
    world, batch_size = loop.devices * loop.nodes, config.data.batch_size
    if batch_size % world:
        even = max(world, batch_size // world * world)
        problem = f"is that of all {world} devices and cannot be shared evenly; use data.batch_size={even}"
        raise ConfigError.of("data.batch_size", batch_size, problem)
    if config.optimizer.nesterov and config.optimizer.momentum == 0:
        problem = "optimizer.nesterov=true needs momentum; use optimizer.momentum=0.9"
        raise ConfigError(problem, "optimizer.momentum", 0.0)


def _check_target(config: TrainConfig) -> TargetConfig:
    if not config.target:
        problem = "target.name is not given; use for example target.name=clip with target.model=ViT-B-32, on the command line "
        raise ConfigError(problem + "--target ViT-B-32 --pretrained openai", "target.name")
    target = target_config(config.target)
    if config.task.name == "classification" and not target.classes:
        problem = "task.name=classification needs the classes' names; give for example target.classes=classes.txt, one per line"
        raise ConfigError(problem, "target.classes", target.classes)
    if target.reads_features and config.data.image_part is None:
        other = ", or target.backbone=resnet50 for pictures" if target.name == "dual" else ""
        problem = f"is for pictures, and target.name={target.name} reads features; use data.image_part=npy{other}"
        raise ConfigError.of("data.image_part", None, problem)
    if config.data.image_part is not None and not target.reads_features:
        problem = f"gives features, and target.name={target.name} reads pictures; use data.image_part=null"
        raise ConfigError.of("data.image_part", config.data.image_part, problem)
    return target


def _check_sampler(config: TrainConfig) -> str:
    """Return the sampler, with `auto` resolved."""
    sampler, batch_size = config.data.sampler, config.data.batch_size
    if sampler == "auto":
        sampler = "m_per_class:4" if config.task.name == "image_retrieval" else "window"
        if sampler != "window" and batch_size % 4:
            problem = f"does not hold four samples of each class; use data.batch_size={max(8, batch_size // 4 * 4)}"
            raise ConfigError.of("data.batch_size", batch_size, problem)
    match = _M_PER_CLASS.fullmatch(sampler)
    if match is None:
        if sampler not in ("window", "sequential"):
            raise ConfigError.of("data.sampler", sampler, "is unknown; use window, sequential or m_per_class:4")
        return sampler
    per_class = int(match[1])
    if per_class < 2:
        problem = "has one sample per class, and each needs another; use data.sampler=m_per_class:4"
        raise ConfigError.of("data.sampler", sampler, problem)
    if batch_size % per_class:
        whole = max(2, batch_size // per_class) * per_class
        problem = f"is no multiple of the {per_class} samples per class of data.sampler={sampler}; use data.batch_size={whole}"
        raise ConfigError.of("data.batch_size", batch_size, problem)
    if config.task.name == "retrieval":
        raise ConfigError.of("data.sampler", sampler, "draws by class, and task.name=retrieval has none; use window")
    return sampler


def _check_size(config: TrainConfig, run: RunFolder, where: str | None) -> None:
    """Check that there are enough rows for one batch; tables are read only until there are."""
    rule = parse_where(where) if where else None
    count = 0
    for stem in run.stems():
        ok = pc.equal(run.read(stem, ["status"])["status"], "ok").to_numpy(zero_copy_only=False)
        count += int((ok & rule.rows(run, stem)).sum() if rule else ok.sum())
        if count >= config.data.batch_size:
            return
    condition = f" for which {where} holds" if where else ""
    if count < 2:
        advice = "use a wider rule, for example similarity > 0.2" if where else "look at it with: noisegate show"
        problem = f"data.table={run.path} has {counted(count, 'good sample')}{condition}: nothing to train on; {advice}"
        raise ConfigError(problem, "data.where" if where else "data.table", where or run.path)
    problem = f"is more than the {count:,} good samples{condition} of data.table={run.path}; use for example "
    raise ConfigError.of("data.batch_size", config.data.batch_size, f"{problem}data.batch_size={max(2, count // 4)}")


def _check_label_column(config: TrainConfig) -> None:
    """Check that the labels to learn can come from the table."""
    data = config.data
    if data.label_column is None:
        return
    problem = None
    if config.task.name == "retrieval":
        problem = "is a class, and retrieval learns captions; give task.name=classification"
    elif data.label_field is not None:
        problem = f"and data.label_field={data.label_field} both name the label; give one of them"
    elif data.table is None:
        problem = "is a column of the table, and data.table is not given; give data.table=tables"
    if problem:
        raise ConfigError.of("data.label_column", data.label_column, problem)
    require_columns(data.table, [data.label_column], f"data.label_column={data.label_column}")


def _check_labels(config: TrainConfig, run: RunFolder, target: TargetConfig) -> None:
    """Check that every label has a class name."""
    classes = target.class_set() if config.task.name == "classification" else None
    if classes is None or config.data.label_field is not None:
        return
    column = config.data.label_column or "label"
    largest = max((pc.max(run.read(stem, [column])[column]).as_py() or 0 for stem in run.stems()), default=0)
    if largest >= len(classes):
        problem = f"has {counted(len(classes), 'name')}, and data.table={run.path} has the label {largest}; give more"
        raise ConfigError(f"target.classes {problem}", "target.classes", len(classes))


def _check_shards(config: TrainConfig, run: RunFolder | None) -> list[Shard]:
    if config.data.shards:
        return _find_shards("data.shards", config.data.shards)
    if run is None:
        problem = "data.shards is empty; give for example data.shards=['data/{000000..000099}.tar'], or data.table"
        raise ConfigError(problem, "data.shards", ())
    return [Shard(entry["url"]) for entry in (run.read_run() or {"shards": []})["shards"]]


def _check_evaluation(config: TrainConfig) -> list[Shard]:
    if config.loop.evaluate_every == 0:
        if config.loop.patience is not None:
            problem = "waits for better figures, and loop.evaluate_every=0 makes none; use loop.evaluate_every=1"
            raise ConfigError.of("loop.patience", config.loop.patience, problem)
        return []
    if not config.data.eval_shards:
        problem = "data.eval_shards is empty: nothing to measure on; give held-out shards, or loop.evaluate_every=0: "
        advice = "on the command line --eval-shards 'held-out/*.tar', or --set loop.evaluate_every=0"
        raise ConfigError(problem + advice, "data.eval_shards", ())
    return _find_shards("data.eval_shards", config.data.eval_shards)


def _find_shards(setting: str, patterns: Sequence[str]) -> list[Shard]:
    try:
        return find_shards(patterns)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}", setting, error.value or patterns) from error
