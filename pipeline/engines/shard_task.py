"""The shard task: tar in, embeddings and unscored table out. All engines run this, in any process.

The process that runs it reads the shard and writes the files itself; only small events are sent back.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from noisegate.pipeline.errors import AllFailedError, ConfigError, MismatchError
from noisegate.pipeline.estimators.base import Estimator, own_temperature
from noisegate.pipeline.estimators.light_import import leave_out_pandas
from noisegate.pipeline.pairs.scorer import encode_samples
from noisegate.pipeline.runs.embeddings import embeddings_match, read_embeddings, write_embeddings
from noisegate.pipeline.runs.resume import failed_rows
from noisegate.pipeline.runs.table import VERSION, RunFolder, read_metadata, table_from
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.read import RawSample
from noisegate.pipeline.shards.stream import Chunk, ShardEnd, ShardFailed, chunks_ahead, stream
from noisegate.pipeline.shards.workers import Decoded, DecodePool, default_workers
from noisegate.pipeline.system.mirror import Mirror
from noisegate.pipeline.system.progress import Progress
from noisegate.pipeline.system.stores import Store

Rows = NDArray[np.float32]
_READ_COLUMNS = ("key", "index", "status", "error", "label", "image_sha256", "text_sha256", "flags")


FIRST_SAMPLES = 200  # chosen; a job stops if this many samples at its start all fail alike
_REMEDIES = {  # the setting that is most likely wrong, and what to do, by status
    "no_text": ("text_field", "name the caption's JSON field with --text-field, or score labels with --task labels"),
    "bad_text": ("text_field", "name the JSON field of a caption with --text-field"),
    "no_label": ("label_field", "name the label's JSON field with --label-field"),
    "bad_label": ("label_field", "name the JSON field of a class number with --label-field"),
    "too_large": ("max_pixels", "raise the limit that it names, such as --max-pixels"),
}


@dataclass(frozen=True)
class Advanced:
    """Progress within a shard: `samples` more were read; `position` is the number of bytes read so far.

    `failure` is (status, first reason) if all these samples have the same status other than `ok`.
    """

    shard: Shard
    samples: int
    position: int
    failure: tuple[str, str] | None = None


@dataclass(frozen=True)
class Written:
    """A shard's files are written: its table has `rows` rows, `failed` of them bad; `encoded` samples were read this time."""

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
class Note:
    """A line for the user; with `recorded` it goes into `_run.json` too."""

    text: str
    recorded: bool = False


Event = Advanced | Written | Unreadable | Note


class ProgressTotals:
    """Sum up all events. `sizes` are the shards' bytes, None if unknown; `failed` has the reason by url.

    `notes` are the recorded notes without repeats. With `fail_fast`, `add` raises AllFailedError if the first samples all fail
    alike. `first_shard` is called with the stem of the first shard that is written, `each_shard` after each.
    """

    def __init__(
        self,
        progress: Progress,
        sizes: Mapping[str, int | None],
        fail_fast: bool = False,
        first_shard: Callable[[str], None] | None = None,
        each_shard: Callable[[], None] = lambda: None,
    ) -> None:
        self._first_shard, self._each_shard = first_shard, each_shard
        self._progress, self._sizes, self._fail_fast = progress, sizes, fail_fast
        self._first: tuple[str, str] | None = None  # status and reason of all samples so far
        self._failed_samples = 0
        self._open: dict[str, tuple[int, int]] = {}  # samples and bytes read of unfinished shards
        self.failed: dict[str, str] = {}
        self.encoded = 0
        self.notes: list[str] = []

    def add(self, event: Event) -> None:
        """Add an event and show it."""
        match event:
            case Note(text, recorded):
                self._progress.note(text)
                if recorded and text not in self.notes:
                    self.notes.append(text)
            case Advanced(shard, samples, position, failure):
                self._check_first(samples, failure)
                before, reached = self._open.get(shard.url, (0, 0))
                self._open[shard.url] = before + samples, position
                self._progress.advance(samples, position - reached)
            case Unreadable(shard, error):
                self._end(shard)
                self.failed[shard.url] = error
                self._progress.note(error)
            case Written(shard, rows, failed, encoded):
                self._end(shard)
                self.encoded += encoded
                self._progress.shard(shard.stem, rows, failed)
                if self._first_shard:
                    self._first_shard(shard.stem)
                    self._first_shard = None
                self._each_shard()

    def discard(self, shard: Shard) -> None:
        """The worker died; discard its partial progress on this shard."""
        samples, reached = self._open.pop(shard.url, (0, 0))
        if samples or reached:
            self._progress.advance(-samples, -reached)

    def _check_first(self, samples: int, failure: tuple[str, str] | None) -> None:
        if not self._fail_fast:
            return
        if failure is None or (self._first and failure[0] != self._first[0]):
            self._fail_fast = False
            return
        self._first = self._first or failure
        self._failed_samples += samples
        if self._failed_samples >= FIRST_SAMPLES:
            status, reason = self._first
            setting, remedy = _REMEDIES.get(status, ("shards", "look at one of these samples"))
            raise AllFailedError(
                f"the first {self._failed_samples:,} samples all have the status {status} ({reason}), so nothing is scored; "
                f"{remedy}, or insist with --keep-going",
                setting,
                status,
            )

    def _end(self, shard: Shard) -> None:
        _, reached = self._open.pop(shard.url, (0, 0))
        self._progress.advance(0, (self._sizes.get(shard.url) or 0) - reached)


@dataclass(frozen=True)
class ShardTask:
    """Settings of an encoder, besides the model and the shards.

    `workers` is the number of decoding processes: 0 decodes in the encoder's process, None lets the engine choose.
    `classes` is the number of named classes, None if labels have no names. `store` is the URL of a run in a store: `out` is
    then a local copy of the run, or with `scratch` an empty folder of this encoder alone, from which files are deleted once
    they are uploaded.
    """

    out: Path
    options: DecodeOptions
    workers: int | None
    retry_failed: bool = False
    classes: int | None = None
    store: str | None = None
    scratch: bool = False


def encode_shards(
    task: ShardTask,
    model: Estimator,
    shards: Iterable[Shard],
    report: Callable[[Event], None],
    no_more: Callable[[], None] = lambda: None,
) -> None:
    """Encode each shard into the run's folder; the next shard is read while one is still being encoded.

    A thread iterates over `shards`, which may block; `no_more` must unblock it. Raises ConfigError at the first label
    without a class name.
    """
    leave_out_pandas()
    run = RunFolder(task.out, Mirror(Store(task.store), task.out) if task.store else None)
    workers = default_workers() if task.workers is None else task.workers
    retry: dict[str, set[int]] = {}
    for line in getattr(model, "notes", ()):
        report(Note(line, recorded=True))

    def with_retries() -> Iterator[Shard]:  # runs in the reading thread
        for shard in shards:
            if task.retry_failed and run.mirror and task.scratch:
                run.mirror.get_shard(shard.stem)
            if task.retry_failed and (rows := _retryable(run, shard)):
                retry[shard.url] = rows
            yield shard

    def select(shard: Shard, raw: RawSample) -> bool:
        return shard.url not in retry or raw.index in retry[shard.url]

    ahead = chunks_ahead(workers, model.batch_size)
    with (
        DecodePool(workers, model.preprocess, task.options) as pool,
        closing(stream(with_retries(), pool, ahead, select if task.retry_failed else None)) as items,
    ):
        part = EncodedShard(model)
        try:
            for item in items:
                if isinstance(item, Chunk):
                    _check_labels(item, task.classes)
                    report(Advanced(item.shard, len(item.samples), item.position, _common_failure(item.samples)))
                    part.add(item)
                    continue
                if isinstance(item, ShardFailed):
                    report(Unreadable(item.shard, item.error))
                else:
                    part.finish()
                    encoded = len(part.samples)
                    if retry.pop(item.shard.url, None):
                        _merge(run, part, item)
                    _write(run, part, item, model, task.options)
                    if run.mirror:
                        run.mirror.put_shard(item.shard.stem, keep=not task.scratch)
                    if item.damage:
                        report(Note(f"{item.shard.url}: {item.damage}; its {len(part.samples):,} samples are kept"))
                    failed = sum(sample.status != "ok" for sample in part.samples)
                    report(Written(item.shard, len(part.samples), failed, encoded))
                part = EncodedShard(model)
        finally:
            no_more()


def _common_failure(samples: Sequence[Decoded]) -> tuple[str, str] | None:
    """Return the common status and the first reason; None if the statuses differ or one is `ok`."""
    statuses = {sample.status for sample in samples}
    if len(statuses) != 1 or "ok" in statuses:
        return None
    return samples[0].status, _printable(samples[0].error) or ""


def _check_labels(chunk: Chunk, classes: int | None) -> None:
    """Raise ConfigError for a label without a class name."""
    for sample in chunk.samples:
        if classes is not None and sample.status == "ok" and sample.label is not None and sample.label >= classes:
            raise ConfigError.of(
                "classes",
                classes,
                f"are named, but {sample.key} of {chunk.shard.url} has label {sample.label}; add names and run again",
            )


def _retryable(run: RunFolder, shard: Shard) -> set[int]:
    """Return the rows to read again; none if there is no complete table to merge them into."""
    table = run.table(shard.stem)
    if not table.exists():
        return set()
    known = read_metadata(table)["shard"]
    whole = embeddings_match(run.embeddings(shard.stem), known["rows"], known["sha256"])
    return failed_rows(table) if whole else set()


def _merge(run: RunFolder, part: "EncodedShard", end: ShardEnd) -> None:
    """Merge retried samples with the rows that the table already has."""
    table = run.table(end.shard.stem)
    if read_metadata(table)["shard"]["sha256"] != end.sha256:
        raise MismatchError.of("shards", end.shard.url, "was changed while it was read; run the same command again")
    part.merge_into(table, run.embeddings(end.shard.stem))


def _write(run: RunFolder, part: "EncodedShard", end: ShardEnd, model: Estimator, options: DecodeOptions) -> None:
    """Write the embeddings first: a table that exists marks its shard as done."""
    shard = {"name": Path(end.shard.url).name, "sha256": end.sha256, "size": end.size, "rows": len(part.samples)}
    digest = write_embeddings(run.embeddings(end.shard.stem), part.images, part.texts, {"shard": shard})
    metadata = {
        "table_version": VERSION,
        "scorer": model.identity.to_dict(),
        "temperature": own_temperature(model),
        "shard": {**shard, "damage": end.damage, **({"cut": True} if end.cut else {})},
        "reading": options.to_dict(),
        "embeddings": digest,
    }
    run.write_table(end.shard.stem, table_from(part.columns(), metadata))


class EncodedShard:
    """Encode one shard: batches in, columns and embeddings out. Batches never cross shards."""

    def __init__(self, model: Estimator) -> None:
        self._model = model
        self._texts_seen: dict[str, Rows] = {}
        self._waiting: list[Decoded] = []
        self._images: list[Rows] = []
        self._texts: list[Rows] = []
        self._similarity: list[Rows] = []
        self.samples: list[Decoded] = []

    def add(self, chunk: Chunk) -> None:
        """Add samples, and encode each full batch."""
        for sample in chunk.samples:
            self._waiting.append(sample)
            if len(self._waiting) == self._model.batch_size:
                self._encode()

    def finish(self) -> None:
        """Encode the last batch."""
        if self._waiting:
            self._encode()

    def _encode(self) -> None:
        batch, self._waiting = self._waiting, []
        encoded = encode_samples(self._model, batch, self._texts_seen)
        self._images.append(encoded.images)
        self._texts.append(encoded.texts)
        self._similarity.append(encoded.similarity)
        for sample in batch:
            sample.pixels = sample.text = None
        self.samples += batch

    @property
    def images(self) -> Rows:
        """(N, d), zeros for samples without a picture."""
        return _stack(self._images)

    @property
    def texts(self) -> Rows:
        """(N, d), zeros for samples without a text."""
        return _stack(self._texts)

    @property
    def similarity(self) -> Rows:
        """(N,) cosines, NaN for samples without a pair."""
        return np.concatenate(self._similarity or [np.zeros(0, np.float32)])

    def merge_into(self, table: Path, embeddings: Path) -> None:
        """Merge with an earlier encoding of the same shard; the new samples replace their old rows."""
        old = pq.read_table(table)
        again = {sample.index: i for i, sample in enumerate(self.samples)}
        rows, retried = list(again), self.samples
        images = _replace(read_embeddings(embeddings, "image"), rows, self.images)
        texts = _replace(read_embeddings(embeddings, "text"), rows, self.texts)
        similarity = old["similarity"].to_numpy().astype(np.float32)
        similarity[rows] = self.similarity
        self.samples = [
            retried[again[row]] if row in again else Decoded(**{**values, "flags": tuple(values["flags"] or ())})
            for row, values in enumerate(old.select(_READ_COLUMNS).to_pylist())
        ]
        self._images, self._texts, self._similarity = [images], [texts], [similarity]

    def columns(self) -> dict[str, Any]:
        """Return the table's columns that do not depend on β; only samples with status `ok` have a similarity."""
        ok = np.array([sample.status == "ok" for sample in self.samples], dtype=bool)
        return {
            **{name: [getattr(sample, name) for sample in self.samples] for name in _READ_COLUMNS},
            "error": [_printable(sample.error) for sample in self.samples],
            "flags": [list(sample.flags) for sample in self.samples],
            "similarity": np.where(ok, self.similarity, np.float32(np.nan)),
        }


def _replace(old: Rows, rows: Sequence[int], new: Rows) -> Rows:
    if new.shape[1]:
        old = old if old.shape[1] else np.zeros((len(old), new.shape[1]), np.float32)
        old[rows] = new
    return old


def _stack(parts: Sequence[Rows]) -> Rows:
    """Stack batches into one matrix; a batch without any embedding (width 0) gets the width of the others."""
    widths = {part.shape[1] for part in parts} - {0}
    if len(widths) > 1:
        raise ConfigError("model: its embeddings have several widths; use a model with one", "model", sorted(widths))
    width = max(widths, default=0)
    whole = [part if part.shape[1] == width else np.zeros((len(part), width), np.float32) for part in parts]
    return np.concatenate(whole) if whole else np.zeros((0, 0), np.float32)


def _printable(error: str | None) -> str | None:
    """Replace bytes that are not UTF-8: names inside a tar may have such bytes, and a table cannot store them."""
    return None if error is None else error.encode("utf-8", "replace").decode()
