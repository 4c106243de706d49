"""Batches as they come from this process or from workers, in the order that was asked for."""

import multiprocessing
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from noisegate.pipeline.errors import NoisegateError

from .loading import BatchLoader, BatchRef, start_worker

__all__ = ["Refs", "living", "make_loader"]


class Refs(Sampler[BatchRef]):
    """What DataLoader asks for the batches to load; it lives in this process, also where workers do the loading."""

    def __init__(self, refs: Callable[[], Iterator[BatchRef]]) -> None:
        self._refs = weakref.WeakMethod(refs)  # a circle would keep the workers and the temporary folder alive

    def __iter__(self) -> Iterator[BatchRef]:
        refs = self._refs()
        return refs() if refs is not None else iter(())


def make_loader(source: BatchLoader, refs: Refs, workers: int, pin_memory: bool) -> DataLoader[Any]:
    """Loads what `refs` asks for, in this process or in workers."""
    context = None
    if workers:
        # forkserver: this process may already run torch's threads, which do not survive a fork, and torch is imported once
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["noisegate.trainers.data.loading"])
    return DataLoader(
        source,
        batch_size=None,
        sampler=refs,
        num_workers=workers,
        collate_fn=_as_it_is,
        worker_init_fn=start_worker if workers else None,
        multiprocessing_context=context,
        persistent_workers=workers > 0,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # of its own, so that iterating draws nothing from the training's generator
    )


def living(loader: DataLoader[Any]) -> Iterator[Any]:
    """What the workers send; one that dies becomes an error that says what to do."""
    results = iter(loader)
    while True:
        try:
            result = next(results)
        except StopIteration:
            return
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker"):
                raise
            raise NoisegateError(
                "a data worker died, perhaps for want of memory: use fewer workers; in a script of your own, iterate under "
                "`if __name__ == '__main__':`, or use workers=0"
            ) from error
        yield result


def _as_it_is(batch: Any) -> Any:
    return batch
