"""The batches of an epoch, one of each stream that a method asks for, from any place in the epoch on."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from noisegate.trainers.data import Batch, WeightedShards
from noisegate.trainers.methods import Stream

__all__ = ["Streams"]

AGAIN = 1_000_000
"""Added to the epoch's number when a short stream starts over, so that it comes in another order."""
OTHER_ORDER = 7_919
"""Added to the seed for each further order."""


class Streams:
    """Views of the training data by name, order and whether a short batch is wanted; they and their workers stay alive."""

    def __init__(self, data: WeightedShards, seed: int) -> None:
        self._data, self._seed = data, seed
        self._views: dict[tuple[str, int, bool], WeightedShards] = {}
        self._allowed: NDArray[np.bool_] | None = None
        self._chosen: dict[str, WeightedShards] = {}
        self._epoch = 0

    def begin(self, epoch: int, streams: Mapping[str, Stream]) -> None:
        """Choose the rows of an epoch. A stream without any rows is left out of its steps."""
        self._epoch, self._chosen = epoch, {}
        for name, stream in streams.items():
            count = self._data.selected_rows if stream.rows is None else self._count(stream.rows)
            if count == 0:
                continue
            view = self._view(name, stream.order, count < self._data.batch_size)
            view.set_selection(stream.rows)
            self._chosen[name] = view

    def __len__(self) -> int:
        """Steps of the epoch: the longest stream's batches."""
        return max((len(view) for view in self._chosen.values()), default=0)

    def batches(self, start: int) -> Iterator[dict[str, Batch]]:
        """One batch of each stream, from step `start` of the epoch on; shorter streams start over."""
        sources = {name: self._endless(view, start) for name, view in self._chosen.items()}
        for _ in range(start, len(self)):
            yield {name: next(source) for name, source in sources.items()}

    def close(self) -> None:
        """End the workers."""
        for view in self._views.values():
            view.close()

    def _endless(self, view: WeightedShards, start: int) -> Iterator[Batch]:
        turn, place = divmod(start, len(view))
        while True:
            view.load_state_dict({"epoch": self._epoch + turn * AGAIN, "batch": place})
            yield from view
            turn, place = turn + 1, 0

    def _count(self, rows: NDArray[np.bool_]) -> int:
        if self._allowed is None:
            self._allowed = np.zeros(self._data.total_rows, bool)
            self._allowed[self._data.ok_rows()] = True
        return int((rows & self._allowed).sum())

    def _view(self, name: str, order: int, short: bool) -> WeightedShards:
        key = (name, order, short)
        if key not in self._views:
            self._views[key] = self._data.view(seed=self._seed + OTHER_ORDER * order, drop_last=not short)
        return self._views[key]
