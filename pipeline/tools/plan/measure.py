"""Time every stage of annotate on some of the shards for a few seconds (`noisegate plan`). Writes nothing."""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save

from noisegate.pipeline.engines.shard_task import EncodedShard
from noisegate.pipeline.errors import ConfigError, ShardError
from noisegate.pipeline.estimators.base import Estimator, normalise
from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.pairs.pair_pool import POOL, choose_device
from noisegate.pipeline.pairs.pair_quality import ROWS, TEMPERATURE, Pool
from noisegate.pipeline.pairs.scorer import pair_columns
from noisegate.pipeline.runs.table import VERSION, replace_columns, table_from
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.read import RawSample, ShardReader
from noisegate.pipeline.shards.stream import Chunk
from noisegate.pipeline.shards.workers import Decoded, decode_sample
from noisegate.pipeline.system.array_types import Float32
from noisegate.pipeline.system.machine import count_threads

SHARDS = 8  # most shards to read from
SIZES_ASKED = 64  # most remote shards to ask for their size; local files are all looked up
LEAST = 2  # least batches to time, however long they take: one batch alone has no spread
WARM_UP = 4  # samples to encode before timing starts
REPEATS = 3  # repeats of the stages that are timed on all rows at once
Clock = Callable[[], float]


@dataclass(frozen=True)
class BatchTimes:
    """Seconds per stage of one batch of a shard.

    `read` leaves out the shard's opening, `read_samples` its first sample; `tokens` is the tokenising part of `encode`, which
    runs on the CPU.
    """

    samples: int
    read_samples: int
    read: float
    decode: float
    encode: float
    tokens: float = 0.0


@dataclass
class ReadShard:
    """One shard as far as it was read."""

    shard: Shard
    samples: int = 0
    bytes: int = 0
    opening: float = 0.0
    whole: bool = False


@dataclass
class Measurements:
    """Measured times. `write` and `score` are seconds per repeat for all `rows` at once, `*_start` seconds for no rows."""

    sizes: list[int]  # bytes of the shards whose size is known
    shards_read: list[ReadShard]
    batches: list[BatchTimes]
    failed: int
    reason: str | None  # error of the first failed sample
    notes: list[str]
    seconds: float
    width: int
    gflops: float | None = None  # 10^9 operations of the model for one sample; None if torch does not count them
    rows: int = 0
    write: list[float] = field(default_factory=list)
    write_start: float = 0.0
    score: list[float] = field(default_factory=list)
    score_start: float = 0.0
    table_bytes: int = 0
    quality: float = 0.0  # seconds to compare one row with a full pool, for `pair_quality`
    table_start: int = 0


def measure(
    shards: Sequence[Shard], estimator: Estimator, options: DecodeOptions, seconds: float, clock: Clock
) -> Measurements:
    """Read, decode and encode batches of a few shards in turn for about `seconds`, then write and score in memory.

    Everything is done once before timing, to warm up. Raises ConfigError or ShardError if nothing can be read.
    """
    began = clock()
    chosen = pick_evenly(shards, SHARDS)
    sizes = _sizes(shards, notes := [])
    readers = {shard.url: _TimedReader(shard, estimator.batch_size, clock) for shard in chosen}
    encoded = {shard.url: EncodedShard(estimator) for shard in chosen}
    batches: list[BatchTimes] = []
    failed, reason, gflops = 0, None, None
    waiting = list(chosen)
    while waiting and (len(batches) < LEAST or clock() - began < seconds):
        shard = waiting.pop(0)
        reader = readers[shard.url]
        try:
            raw, took = reader.next()
        except ShardError as error:
            notes.append(str(error))
            continue
        if not raw:
            continue
        if not batches:
            decode_sample(raw[0], estimator.preprocess, options)
        before = clock()
        samples = [decode_sample(sample, estimator.preprocess, options) for sample in raw]
        decoded = clock()
        bad = [sample for sample in samples if sample.status != "ok"]
        failed, reason = failed + len(bad), reason or next((sample.error for sample in bad), None)
        chunk = Chunk(shard, samples, reader.progress.bytes)
        if not batches:
            _encode(EncodedShard(estimator), Chunk(shard, [replace(sample) for sample in samples[:WARM_UP]], 0))
            gflops = gflops_per_sample(estimator, samples)
        tokens = _tokenise(estimator, samples, clock)
        start = clock()
        _encode(encoded[shard.url], chunk)
        first = reader.progress.samples == len(raw)
        batches.append(BatchTimes(len(raw), len(raw) - first, took, decoded - before, clock() - start, tokens))
        waiting.append(shard)
    for reader in readers.values():
        reader.close()
    shards_read = [reader.progress for reader in readers.values() if reader.progress.samples or reader.progress.whole]
    if not batches and notes:
        raise ShardError(notes[0], "shards", chosen[0].url)
    if not batches:
        more = f"and {len(chosen) - 1:,} more hold" if len(chosen) > 1 else "holds"
        raise ConfigError.of("shards", chosen[0].url, f"{more} no sample; name shards that hold some")
    parts = [part for part in encoded.values() if part.samples]
    if failed == sum(batch.samples for batch in batches):
        raise ConfigError(f"none of the {failed:,} samples looked at can be used: {reason}", "shards", chosen[0].url)
    sizes = sizes or [shard.bytes for shard in shards_read if shard.whole]
    if not sizes:
        problem = "is too short to read a shard to its end, and the store does not tell how large shards are; use more"
        raise ConfigError.of("seconds", seconds, problem)
    width = max(part.images.shape[1] for part in parts)
    measured = Measurements(sizes, shards_read, batches, failed, reason, notes, 0.0, width, gflops)
    _write_in_memory(measured, parts, estimator, options, clock)
    measured.seconds = clock() - began
    return measured


def pick_evenly(shards: Sequence[Shard], count: int) -> list[Shard]:
    """Pick at most `count` shards, evenly spaced in the list.

    >>> [shard.url for shard in pick_evenly([Shard(f"{i}.tar") for i in range(10)], 3)]
    ['1.tar', '5.tar', '8.tar']
    """
    count = min(count, len(shards))
    return [shards[int((2 * i + 1) * len(shards) / (2 * count))] for i in range(count)]


def _sizes(shards: Sequence[Shard], notes: list[str]) -> list[int]:
    """Return the bytes of all local shards, or of some remote shards; unreachable shards are noted."""
    asked = list(shards) if all(shard.is_local for shard in shards) else pick_evenly(shards, SIZES_ASKED)

    def size(shard: Shard) -> int | ShardError | None:
        try:
            return shard.estimated_size()
        except ShardError as error:
            return error

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(size, asked))
    errors = [answer for answer in answers if isinstance(answer, ShardError)]
    if errors:
        notes.append(str(errors[0]) + (f" (and {len(errors) - 1:,} more)" if len(errors) > 1 else ""))
    if len(errors) == len(asked):
        raise errors[0]
    return [answer for answer in answers if isinstance(answer, int)]


class _TimedReader:
    """Reads one shard batch by batch and times it."""

    def __init__(self, shard: Shard, size: int, clock: Clock) -> None:
        self.progress = ReadShard(shard)
        self._reader, self._size, self._clock = ShardReader(shard), size, clock
        self._samples: Iterator[RawSample] = iter(self._reader)

    def next(self) -> tuple[list[RawSample], float]:
        """Read a batch; return it and its seconds, without the time to the shard's first sample; empty at the shard's end."""
        start = self._clock()
        raw: list[RawSample] = []
        if not self.progress.samples:
            raw = list(islice(self._samples, 1))
            self.progress.opening = self._clock() - start
            start = self._clock()
        raw += islice(self._samples, self._size - len(raw))
        took = self._clock() - start
        self.progress.samples += len(raw)
        self.progress.bytes = min(self._reader.passed, self._reader.position)  # the second for compressed tars
        self.progress.whole = len(raw) < self._size
        return raw, took

    def close(self) -> None:
        self._samples.close()  # type: ignore[attr-defined]


def _encode(part: EncodedShard, chunk: Chunk) -> None:
    part.add(chunk)
    part.finish()


def _tokenise(estimator: Estimator, samples: Sequence[Decoded], clock: Clock) -> float:
    """Time tokenising of the texts in seconds; 0 for a model that has no `tokenize`."""
    tokenize = getattr(estimator, "tokenize", None)
    texts = [sample.text for sample in samples if sample.status == "ok" and sample.text is not None]
    start = clock()
    if tokenize is not None and texts:
        tokenize(texts)
    return clock() - start


def gflops_per_sample(estimator: Estimator, samples: Sequence[Decoded], count: int = 4) -> float | None:
    """Count 10^9 operations of one sample by torch; each is encoded alone, because texts of a batch are padded."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    from torch.utils.flop_counter import FlopCounterMode

    some = [sample for sample in samples if sample.status == "ok"][:count]
    whole_layers = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # a fused operation would not be counted
    try:
        with FlopCounterMode(display=False) as counter:
            for sample in some:
                if sample.pixels is not None:
                    estimator.encode_pixels([sample.pixels])
                if sample.text is not None:
                    estimator.encode_texts([sample.text])
    finally:
        torch.backends.mha.set_fastpath_enabled(whole_layers)
    return counter.get_total_flops() / 1e9 / max(1, len(some)) or None


def _write_in_memory(
    measured: Measurements, parts: Sequence[EncodedShard], estimator: Estimator, options: DecodeOptions, clock: Clock
) -> None:
    """Write tables and embeddings into buffers as the job would; record sizes and seconds for all rows and for none."""
    metadata = {"table_version": VERSION, "scorer": estimator.identity.to_dict(), "tasks": list(options.tasks)}
    images = [part.images for part in parts if part.images.shape[1]]
    texts = [part.texts for part in parts if part.texts.shape[1]]
    columns: dict[str, list[Any]] = {}
    for part in parts:
        for name, values in part.columns().items():
            columns.setdefault(name, []).extend(values)
    measured.rows = len(columns["key"])

    def write(rows: int) -> pa.Buffer:
        save(
            {name: np.concatenate(m)[:rows].astype(np.float16) for name, m in (("image", images), ("text", texts)) if m}
        )
        return _pack(table_from({name: values[:rows] for name, values in columns.items()}, metadata))

    def score(written: pa.Buffer) -> pa.Buffer:
        table = pq.read_table(pa.BufferReader(written))
        return _pack(replace_columns(table, pair_columns(table, Beta(0.2, "fixed"), None), metadata))

    def time_both(rows: int) -> tuple[float, float, int]:
        start = clock()
        written = write(rows)
        middle = clock()
        scored = score(written)
        return middle - start, clock() - middle, scored.size

    if images and texts:
        measured.quality = _time_quality(np.concatenate(images), np.concatenate(texts), clock)
    time_both(0)
    for _ in range(REPEATS):
        took_write, took_score, measured.table_bytes = time_both(measured.rows)
        measured.write.append(took_write)
        measured.score.append(took_score)
    measured.write_start, measured.score_start, measured.table_start = time_both(0)


def _time_quality(left: Float32, right: Float32, clock: Clock) -> float:
    """Time one row against a full pool in seconds, on all threads as in the job.

    The pool is random and these rows are repeated, because the cost does not depend on their values.
    """
    rng = np.random.default_rng(0)
    drawn = (normalise(rng.standard_normal((POOL, left.shape[1]), dtype=np.float32)) for _ in range(2))
    pool = Pool(next(drawn), next(drawn), choose_device("auto") if "torch" in sys.modules else "cpu")
    pool.quality(left[:WARM_UP], right[:WARM_UP], (TEMPERATURE,))
    rows = ROWS * count_threads()
    left, right = (np.resize(some, (rows, some.shape[1])) for some in (left, right))
    start = clock()
    pool.quality(left, right, (TEMPERATURE,))
    return (clock() - start) / rows


def _pack(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_statistics=True, store_schema=True)
    return sink.getvalue()
