"""Batches of shards joined with their weight tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .batch import Batch

__all__ = ["WeightedShards"]

ImageTransform = Callable[..., Tensor]  # of a PIL picture, or of the array of an npy part; may take `rng` too
TextTransform = Callable[[list[str]], Any]


class WeightedShards:
    """An epoch's batches, over and over: iterate, and the next epoch follows.

    `shards`: as `noisegate annotate` takes them (pattern, folder, list); None takes those that the run names.
    `table`: the folder of a finished run, or None to train from the shards alone (their rows are counted by one scan).
    `columns`: table columns that come with each batch. `where`: a rule over the table's columns; only rows for which it
    holds, and only rows with the status ok, are seen.
    `batch_size` is that of all ranks together; each rank gets its slice, so `world` must divide it.
    `image`: PIL → tensor, called in the workers; one that has a parameter `rng` gets the sample's own numpy Generator,
    and for any other the global generators of torch, Python and numpy are seeded for the call: by (seed, epoch, row), so
    that the number of workers changes nothing. "npy" delivers the part npy as it is; `image_part="npy"` hands its array
    to `image`. None reads no pictures.
    `text`: list of captions → anything made of tensors whose first axis is the caption, called in the workers.
    `captions`: "one" as the table was made from (reads captions only where `text` is given, or with `captions="read"`),
    "json:FIELD" a random one of that list for each epoch, "json:FIELD:all" each of them.
    `label`: True for the class of part cls or json, or the name of a column such as "refined_label"; rows without one are
    left out.
    `sampler`: "window" shuffles shards, then the rows of `window_shards` of them; "m_per_class:4" fills a batch with four
    samples each of classes drawn in turn; "sequential" gives every row once, in order, the short last batch included.
    `max_mismatch`: the share of an epoch's samples that may differ from their row, or fail to decode: these are dropped
    and counted; one more is a MismatchError. Without a table, samples that cannot be decoded are dropped and counted.
    `cache`: a folder for member indexes and for copies of remote or compressed shards (bounded), default a temporary one.
    """

    def __init__(
        self,
        shards: str | Path | Iterable[str | Path] | None,
        table: str | Path | None,
        *,
        batch_size: int,
        seed: int = 0,
        columns: Sequence[str] = (),
        where: str | None = None,
        image: ImageTransform | Literal["npy"] | None = None,
        text: TextTransform | None = None,
        label: bool | str = False,
        captions: str = "one",
        image_part: str | None = None,
        text_field: str | None = None,
        label_field: str | None = None,
        sampler: str = "window",
        window_shards: int = 8,
        drop_last: bool | None = None,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
        max_mismatch: float = 0.0,
        cache: str | Path | None = None,
        pin_memory: bool = False,
    ) -> None:
        raise NotImplementedError

    total_rows: int  # of all tables (or shards), failed rows included: the length of arrays by global row number
    selected_rows: int  # that an epoch draws from
    epoch: int
    notes: list[str]  # what a user should know about the data, one line each

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Batch]:
        """The batches of this epoch that are still to come; at its end the next epoch begins."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`; where it is the current one, the place in it is kept (after a resume)."""
        raise NotImplementedError

    def set_selection(self, mask: NDArray[np.bool_] | None) -> None:
        """From the next iteration on see only rows that are also true in `mask`, (total_rows,) bool; None: all again.

        Not part of the state: a method that selects by its own state calls this again before a resumed epoch.
        """
        raise NotImplementedError

    def ok_rows(self) -> NDArray[np.int64]:
        """Global numbers of all rows that `where` and the table's status allow, in order, whatever `set_selection` says."""
        raise NotImplementedError

    def column(self, name: str) -> NDArray[Any]:
        """A whole column by global row number, (total_rows,): float32 with nan, int64 with -1, or bool with false."""
        raise NotImplementedError

    def view(self, **changes: Any) -> WeightedShards:
        """The same data under other settings, such as `sampler="sequential", image=…`, without looking at tables again."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, int]:
        """{"epoch", "batch"}: the batch that comes next."""
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """End the workers and remove the temporary folder."""
        raise NotImplementedError
