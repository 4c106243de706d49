"""Read and decode shards while the encoder works: one reading thread, and decode workers."""

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from noisegate.pipeline.errors import ShardError

from .locate import Shard
from .read import RawSample, ShardReader
from .workers import Decoded, DecodePool

CHUNK_SAMPLES = 16
CHUNK_BYTES = 32_000_000
AHEAD_BYTES = 256_000_000  # of raw samples read ahead of decoding; the last chunk may exceed it; chosen
Selector = Callable[[Shard, RawSample], bool]


def chunks_ahead(workers: int, batch_size: int) -> int:
    """How many chunks to hold: two for each worker, and a batch, so that decoding goes on while the encoder is busy.

    >>> chunks_ahead(workers=1, batch_size=64)
    8
    """
    return 2 * max(1, workers) + 2 + -(-batch_size // CHUNK_SAMPLES)


@dataclass
class Chunk:
    """Decoded samples of a shard, in order; `position` counts the shard's bytes read so far."""

    shard: Shard
    samples: list[Decoded]
    position: int


@dataclass
class ShardEnd:
    """A shard was read to its end, or as far as possible (`damage`); `cut` if its end is missing."""

    shard: Shard
    sha256: str
    size: int
    damage: str | None
    cut: bool = False


@dataclass
class ShardFailed:
    """A shard could not be read at all."""

    shard: Shard
    error: str


@dataclass
class _Pending:
    shard: Shard
    raw: list[RawSample]
    future: "Future[list[Decoded]]"
    position: int
    size: int


_Item = _Pending | ShardEnd | ShardFailed | BaseException | None


def stream(
    shards: Iterable[Shard], pool: DecodePool, ahead: int, select: Selector | None = None
) -> Generator[Chunk | ShardEnd | ShardFailed, None, None]:
    """Read, decode and yield samples in the order of the shards, with at most `ahead` chunks and AHEAD_BYTES waiting.

    `select` skips samples.
    """
    budget = _Budget(AHEAD_BYTES)
    waiting: queue.Queue[_Item] = queue.Queue(max(1, ahead))
    stop = threading.Event()

    def put(item: _Item) -> None:
        while not stop.is_set():
            try:
                waiting.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def read() -> None:
        try:
            for shard in shards:
                if stop.is_set():
                    return
                try:
                    reader = ShardReader(shard, limits=pool.limits)
                    for raw, size in _chunks(reader, select):
                        budget.take(size, stop)
                        if stop.is_set():
                            return
                        put(_Pending(shard, raw, pool.submit(raw), reader.position, size))
                    put(ShardEnd(shard, reader.sha256, reader.size, reader.damage, reader.cut))
                except ShardError as error:
                    put(ShardFailed(shard, str(error)))
            put(None)
        except BaseException as error:  # raised again in the consuming thread
            put(error)

    thread = threading.Thread(target=read, name="noisegate-read", daemon=True)
    thread.start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            if not isinstance(item, _Pending):
                yield item
                continue
            chunk = Chunk(item.shard, pool.collect(item.raw, item.future), item.position)
            budget.give(item.size)
            yield chunk
    finally:
        stop.set()
        thread.join()


class _Budget:
    """A number of bytes to take from; a request for more than all of them is granted when nothing else is taken."""

    def __init__(self, most: int) -> None:
        self._most, self._used = most, 0
        self._given = threading.Condition()

    def take(self, size: int, stop: threading.Event) -> None:
        """Wait until `size` bytes are free, or until `stop` is set."""
        with self._given:
            while self._used and self._used + size > self._most and not stop.is_set():
                self._given.wait(0.1)
            self._used += size

    def give(self, size: int) -> None:
        with self._given:
            self._used -= size
            self._given.notify()


def _chunks(reader: ShardReader, select: Selector | None) -> Iterator[tuple[list[RawSample], int]]:
    """Yield samples to decode together, and their bytes."""
    chunk: list[RawSample] = []
    size = 0
    for raw in reader:
        if select is not None and not select(reader.shard, raw):
            continue
        chunk.append(raw)
        size += sum(len(data) for data in raw.parts.values())
        if len(chunk) >= CHUNK_SAMPLES or size >= CHUNK_BYTES:
            yield chunk, size
            chunk, size = [], 0
    if chunk:
        yield chunk, size
