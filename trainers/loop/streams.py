"""The batches of an epoch: a step gets one batch of each stream that the method asks for."""

from collections.abc import Iterator, Mapping

import numpy as np

from noisegate.pipeline.system import Mask
from noisegate.trainers.data import Batch, WeightedShards
from noisegate.trainers.methods import Stream

REPEAT_OFFSET = 1_000_000
"""added to the epoch's number when a short stream starts over, so that its order changes"""
ORDER_OFFSET = 7_919
"""added to the seed for each further `Stream.order`"""


class Streams:
    """Views of the training data, one per stream; they and their workers live as long as the run."""

    def __init__(self, data: WeightedShards, seed: int) -> None:
        self._data, self._seed = data, seed
        self._views: dict[tuple[str, int, bool], WeightedShards] = {}
        self._allowed: Mask | None = None
        self._current: dict[str, WeightedShards] = {}
        self._epoch = 0

    def begin(self, epoch: int, streams: Mapping[str, Stream]) -> None:
        """Select the rows of an epoch; a stream without rows is left out."""
        self._epoch, self._current = epoch, {}
        for name, stream in streams.items():
            count = self._data.selected_rows if stream.rows is None else self._count_rows(stream.rows)
            if count == 0:
                continue
            view = self._view(name, stream.order, count < self._data.batch_size)
            view.set_selection(stream.rows)
            self._current[name] = view

    def __len__(self) -> int:
        """Steps of the epoch: batches of the longest stream."""
        return max((len(view) for view in self._current.values()), default=0)

    def batches(self, start: int) -> Iterator[dict[str, Batch]]:
        """One batch of each stream, from step `start` of the epoch on; shorter streams start over."""
        sources = {name: self._repeat(view, start) for name, view in self._current.items()}
        for _ in range(start, len(self)):
            yield {name: next(source) for name, source in sources.items()}

    def close(self) -> None:
        """Stop the data workers."""
        for view in self._views.values():
            view.close()

    def _repeat(self, view: WeightedShards, start: int) -> Iterator[Batch]:
        turn, batch = divmod(start, len(view))
        while True:
            view.load_state_dict({"epoch": self._epoch + turn * REPEAT_OFFSET, "batch": batch})
            yield from view
            turn, batch = turn + 1, 0

    def _count_rows(self, rows: Mask) -> int:
        if self._allowed is None:
            self._allowed = np.zeros(self._data.total_rows, bool)
            self._allowed[self._data.ok_rows()] = True
        return int((rows & self._allowed).sum())

    def _view(self, name: str, order: int, short: bool) -> WeightedShards:
        key = (name, order, short)
        if key not in self._views:
            self._views[key] = self._data.view(seed=self._seed + ORDER_OFFSET * order, drop_last=not short)
        return self._views[key]
