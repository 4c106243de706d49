"""Load batches by row numbers: open shards, read samples, collate; in worker processes, or in this one."""

from __future__ import annotations

import random
import signal
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from noisegate.pipeline.errors import ConfigError, NoisegateError
from noisegate.pipeline.runs import RunFolder
from noisegate.pipeline.shards import BadSample, Shard
from noisegate.pipeline.system import Index, forkserver_context

from .batch import Batch, Dropped
from .join import JoinedShard, ReadOverrides, join
from .sample_reader import CaptionSource, LoadedSample, SampleReader
from .shard_cache import ShardCache


@dataclass(frozen=True)
class LoaderSettings:
    """Everything a worker needs to load batches."""

    shards: list[Shard]
    offsets: Index
    run: RunFolder | None
    cache: ShardCache
    open_shards: int
    columns: tuple[str, ...]
    image: Callable[..., Tensor] | None
    image_part: str | None  # npy for features, None for a picture
    text: Callable[[list[str]], Any] | None
    captions: CaptionSource | None
    label: bool | str
    overrides: ReadOverrides
    strict: bool
    seed: int
    fields: tuple[str, ...] = ()
    keep: bool = False  # keep decoded samples: each is read and checked only once


@dataclass(frozen=True)
class BatchRef:
    """This rank's rows of one batch. If `empty`, one row is read only for the shapes, and the batch has no samples."""

    epoch: int
    number: int
    rows: Index
    empty: bool = False


@dataclass(frozen=True)
class BatchFailure:
    """An error from a worker, sent as a value: DataLoader would wrap an exception in a traceback."""

    error: NoisegateError


class BatchLoader(Dataset[Batch | BatchFailure]):
    """`loader[ref]` is the batch. The shards used last stay open."""

    def __init__(self, settings: LoaderSettings) -> None:
        self.settings = settings
        self._reader = SampleReader(
            settings.image,
            settings.image_part,
            settings.captions,
            settings.label is True,
            settings.fields,
            settings.seed,
        )
        self._open: OrderedDict[int, JoinedShard] = OrderedDict()
        self._kept: dict[int, LoadedSample] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings, "_reader": self._reader, "_open": OrderedDict(), "_kept": {}}

    def __getitem__(self, ref: BatchRef) -> Batch | BatchFailure:
        try:
            with _preserve_generators():
                batch = self._load(ref)
            return batch.without_samples() if ref.empty else batch
        except NoisegateError as error:
            return BatchFailure(error)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _load(self, ref: BatchRef) -> Batch:
        settings = self.settings
        shard_numbers = np.searchsorted(settings.offsets, ref.rows, side="right") - 1
        rows = ref.rows - settings.offsets[shard_numbers]  # row numbers within their shards
        samples: dict[int, LoadedSample] = {}  # samples by position in the batch
        values: dict[str, NDArray[Any]] = {}
        dropped: list[Dropped] = []
        for shard_number in np.unique(shard_numbers):  # shard by shard, so that each is opened only once
            shard = self._open_shard(int(shard_number))
            for at in np.flatnonzero(shard_numbers == shard_number):
                number, row = int(ref.rows[at]), int(rows[at])
                try:
                    sample = self._kept.get(number) or self._reader.read(shard, row, number, ref.epoch)
                except BadSample as problem:
                    name = PurePosixPath(settings.shards[shard_number].url).name
                    dropped.append(Dropped(number, name, shard.key_of(row), str(problem), problem.status))
                    continue
                samples[int(at)] = sample
                if settings.keep:
                    self._kept[number] = sample
            for name, column in shard.columns.items():
                here = shard_numbers == shard_number
                values.setdefault(name, np.zeros(len(rows), column.dtype))[here] = column[rows[here]]
        kept = np.array(sorted(samples), np.int64)
        columns = {name: torch.from_numpy(array[kept]) for name, array in values.items()}
        return self._collate(ref, [samples[int(at)] for at in kept], columns, kept, dropped)

    def _collate(
        self,
        ref: BatchRef,
        samples: list[LoadedSample],
        columns: dict[str, Tensor],
        kept: Index,
        dropped: list[Dropped],
    ) -> Batch:
        settings = self.settings
        batch = Batch(
            rows=torch.from_numpy(ref.rows[kept]),
            keys=[sample.key for sample in samples],
            captions=[caption for sample in samples for caption in sample.captions],
            columns={name: columns[name] for name in settings.columns},
            fields={name: [sample.fields[at] for sample in samples] for at, name in enumerate(settings.fields)},
            epoch=ref.epoch,
            number=ref.number,
            dropped=dropped,
        )
        if settings.image is not None:
            batch.images = _stack([sample.image for sample in samples if sample.image is not None])
        if settings.captions is not None and settings.captions.every:
            counts = torch.tensor([len(sample.captions) for sample in samples], dtype=torch.int64)
            batch.caption_of = torch.repeat_interleave(torch.arange(len(samples)), counts)
        if settings.text is not None and batch.captions:
            batch.texts = settings.text(batch.captions)
        if isinstance(settings.label, str):
            batch.labels = columns[settings.label].to(torch.int64)
        elif settings.label:
            batch.labels = torch.tensor([sample.label for sample in samples], dtype=torch.int64)
        return batch

    def _open_shard(self, number: int) -> JoinedShard:
        settings = self.settings
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        while len(self._open) >= settings.open_shards:
            self._open.popitem(last=False)[1].close()
        shard = settings.shards[number]
        samples = settings.cache.open(shard)
        try:
            label = (settings.label,) if isinstance(settings.label, str) else ()
            columns = tuple(dict.fromkeys((*settings.columns, *label)))
            joined = join(samples, settings.run, shard.stem, columns, settings.overrides, settings.strict)
        except NoisegateError:
            samples.close()
            raise
        self._open[number] = joined
        return joined


def _stack(images: list[Tensor]) -> Tensor:
    if not images:
        return torch.empty(0)
    shapes = {tuple(image.shape) for image in images}
    if len(shapes) > 1:
        problem = f"image gives tensors of different shapes in a batch, {sorted(shapes)[:3]}; resize or pad to one"
        raise ConfigError(problem, "image")
    return torch.stack(images)


@contextmanager
def _preserve_generators() -> Iterator[None]:
    """Restore the global random generators afterwards: without workers the training uses the same generators."""
    before = torch.default_generator.get_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])  # noqa: NPY002


# --- torch's DataLoader ------------------------------------------------------------------------------------------------


class _RefSampler(Sampler[BatchRef]):
    """The batches to load, in order; lives in the main process."""

    def __init__(self, refs: Callable[[], Iterator[BatchRef]]) -> None:
        self._refs = weakref.WeakMethod(refs)  # weak: a reference cycle would keep workers and temporary folder alive

    def __iter__(self) -> Iterator[BatchRef]:
        refs = self._refs()
        return refs() if refs is not None else iter(())


def make_loader(
    source: BatchLoader, refs: Callable[[], Iterator[BatchRef]], workers: int = 0, pin_memory: bool = False
) -> DataLoader[Any]:
    """Make a DataLoader of the batches that the bound method `refs` yields, in this process or in workers."""
    context = None
    if workers:
        # forkserver: torch's threads in this process do not survive a fork, and the server imports torch only once
        context = forkserver_context(source, ["noisegate.trainers.data.batch_loader"])
    return DataLoader(
        source,
        batch_size=None,
        sampler=_RefSampler(refs),
        num_workers=workers,
        collate_fn=_identity,
        worker_init_fn=_start_worker if workers else None,
        multiprocessing_context=context,
        persistent_workers=workers > 0,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # a separate one, so that iterating does not draw from the training's generator
    )


def iterate_loader(loader: DataLoader[Any]) -> Iterator[Batch]:
    """Yield the batches; raise a worker's error, or NoisegateError if a worker died."""
    results = iter(loader)
    while True:
        try:
            result = next(results)
        except StopIteration:
            return
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker"):
                raise
            problem = (
                "a data worker died, perhaps for want of memory: use fewer workers; in a script of your own, iterate under "
                "`if __name__ == '__main__':`, or use workers=0"
            )
            raise NoisegateError(problem, "workers", loader.num_workers) from error
        if isinstance(result, BatchFailure):
            raise result.error
        yield result


def _start_worker(_: int) -> None:
    """Set up a worker: one thread, and Ctrl-C left to the main process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def _identity(batch: Any) -> Any:
    return batch
