"""The shard task: tar in, embeddings and unscored table out. One function for every engine, near or far.

Whoever runs it reads the shard and writes the files by itself; what it reports is small.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError, MismatchError
from noisegate.pipeline.estimators.base import Estimator, Identity
from noisegate.pipeline.runs.embeddings import embeddings_match, write_embeddings
from noisegate.pipeline.runs.resume import failed_rows
from noisegate.pipeline.runs.table import VERSION, RunFolder, read_metadata, table_from
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.read import RawSample
from noisegate.pipeline.shards.stream import Chunk, ShardEnd, ShardFailed, stream
from noisegate.pipeline.shards.workers import DecodeOptions, DecodePool, default_workers

from .encode_shard import EncodedShard

__all__ = ["Advanced", "Event", "Said", "ShardTask", "Unreadable", "Written", "encode_shards", "reading_of"]


@dataclass(frozen=True)
class ShardTask:
    """All that is to be known besides the model and the shards. So many `workers` decode: 0 none beside the encoder, and
    None as many as the engine thinks right. Labels are below `classes`, where their names are given.
    """

    out: Path
    options: DecodeOptions
    workers: int | None
    retry_failed: bool = False
    classes: int | None = None


@dataclass(frozen=True)
class Advanced:
    """Some more samples of a shard are read; `position` is how many of its bytes that took so far."""

    shard: Shard
    samples: int
    position: int


@dataclass(frozen=True)
class Written:
    """A shard's files are there: `rows` in its table, `failed` of them; `encoded` were read this time."""

    shard: Shard
    rows: int
    failed: int
    encoded: int


@dataclass(frozen=True)
class Unreadable:
    """A shard could not be read at all."""

    shard: Shard
    error: str


@dataclass(frozen=True)
class Said:
    """Something the user should see; what is `kept` the run records too."""

    text: str
    kept: bool = False


Event = Advanced | Written | Unreadable | Said
Report = Callable[[Event], None]


def encode_shards(
    task: ShardTask,
    model: Estimator,
    shards: Iterable[Shard],
    report: Report,
    no_more: Callable[[], None] = lambda: None,
) -> None:
    """Encode each shard into the run's folder. The next is taken while the last one is still being encoded.

    `shards` are asked for in a thread, which may wait for the next; `no_more` must end its waiting. Raises ConfigError at
    the first label that has no name, before more is encoded for nothing.
    """
    run = RunFolder(task.out)
    workers = default_workers() if task.workers is None else task.workers
    retry: dict[str, set[int]] = {}
    for line in getattr(model, "notes", ()):
        report(Said(line, kept=True))

    def taken() -> Iterator[Shard]:  # runs in the reading thread
        for shard in shards:
            if task.retry_failed and (rows := _retryable(run, shard)):
                retry[shard.url] = rows
            yield shard

    def select(shard: Shard, raw: RawSample) -> bool:
        return shard.url not in retry or raw.index in retry[shard.url]

    with (
        DecodePool(workers, model.preprocess, task.options) as pool,
        closing(stream(taken(), pool, 2 * max(1, workers) + 2, select if task.retry_failed else None)) as items,
    ):
        part = EncodedShard(model)
        try:
            for item in items:
                if isinstance(item, Chunk):
                    _refuse_unnamed(item, task.classes)
                    report(Advanced(item.shard, len(item.samples), item.position))
                    part.add(item)
                    continue
                if isinstance(item, ShardFailed):
                    report(Unreadable(item.shard, item.error))
                else:
                    part.finish()
                    encoded = len(part.samples)
                    if retry.pop(item.shard.url, None):
                        _merge(run, part, item)
                    _write(run, part, item, model.identity, task.options)
                    if item.damage:
                        report(Said(f"{item.shard.url}: {item.damage}; its {len(part.samples):,} samples are kept"))
                    failed = sum(sample.status != "ok" for sample in part.samples)
                    report(Written(item.shard, len(part.samples), failed, encoded))
                part = EncodedShard(model)
        finally:
            no_more()


def reading_of(options: DecodeOptions) -> dict[str, Any]:
    """How samples are read, as JSON values: tables record it."""
    return asdict(options) | {"tasks": list(options.tasks)}


def _refuse_unnamed(chunk: Chunk, classes: int | None) -> None:
    for sample in chunk.samples:
        if classes is not None and sample.status == "ok" and sample.label is not None and sample.label >= classes:
            raise ConfigError(
                f"classes: {classes} are named, but sample {sample.key} of {chunk.shard.url} has label {sample.label}; add "
                "the missing names and run the same command again: finished shards stay"
            )


def _retryable(run: RunFolder, shard: Shard) -> set[int]:
    """Rows to read again; none where there is no whole table to put them into."""
    table = run.table(shard.stem)
    if not table.exists():
        return set()
    known = read_metadata(table)["shard"]
    whole = embeddings_match(run.embeddings(shard.stem), known["rows"], known["sha256"])
    return failed_rows(table) if whole else set()


def _merge(run: RunFolder, part: EncodedShard, end: ShardEnd) -> None:
    """Put retried samples among the rows that the table already has."""
    table = run.table(end.shard.stem)
    if read_metadata(table)["shard"]["sha256"] != end.sha256:
        raise MismatchError(f"{end.shard.url} was changed while it was read; run the same command again")
    part.put_into(table, run.embeddings(end.shard.stem))


def _write(run: RunFolder, part: EncodedShard, end: ShardEnd, identity: Identity, options: DecodeOptions) -> None:
    """Embeddings first: the table's presence says that all of the shard is done."""
    shard = {"name": Path(end.shard.url).name, "sha256": end.sha256, "size": end.size, "rows": len(part.samples)}
    metadata = {
        "table_version": VERSION,
        "scorer": identity.to_dict(),
        "shard": {**shard, "damage": end.damage},
        "reading": reading_of(options),
    }
    write_embeddings(run.embeddings(end.shard.stem), part.images, part.texts, {"shard": shard})
    run.write_table(end.shard.stem, table_from(part.columns(), metadata))
