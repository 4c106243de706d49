"""Read batches of shards joined with their weight tables."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from noisegate.pipeline.errors import ConfigError, MismatchError, ShardError
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards import IMAGE_PARTS
from noisegate.pipeline.system import Index, Mask

from .batch import Batch, Dropped
from .batch_loader import BatchFailure, BatchLoader, BatchRef, LoaderSettings, iterate_loader, make_loader
from .catalogue import Catalogue, RowNeeds, make_catalogue, read_labels
from .epoch_order import EpochOrder, LastBatch, MPerClassOrder, RowMask, make_order, rank_rows
from .join import EXAMPLES, ReadOverrides, check_columns, column_values, format_share
from .sample_reader import ArrayTensor, CaptionSource
from .shard_cache import ScratchFolder, ShardCache

ImageTransform = Callable[..., Tensor]  # takes a PIL picture, or the array of an npy part; may take `rng` too
TextTransform = Callable[[list[str]], Any]
OPEN_SHARDS = 128  # most open shards, for samplers that draw each batch from all shards


class WeightedShards:
    """An iterable of batches: each iteration is one epoch, and the next iteration is the next epoch.

    `shards`: as for `noisegate annotate` (pattern, folder, list); None takes the shards of the run.
    `table`: the folder of a finished run, or None to train from the shards alone (one scan counts their rows).
    `columns`: table columns that come with each batch. `where`: a rule over the table's columns; only rows for which it
    holds and whose status is ok are used.
    `batch_size` counts all ranks together; each rank gets a slice, so `world` must divide it.
    `image`: PIL → tensor, called in the workers; a function with a parameter `rng` gets the sample's own numpy Generator; for
    any other function the global generators of torch, Python and numpy are seeded for the call. Seeds depend on (seed, epoch,
    row), not on the number of workers. "npy" delivers the part npy as it is; `image_part="npy"` hands its array to `image`.
    None reads no pictures. `text`: list of captions → anything made of tensors whose first axis is the caption, called in the
    workers. `captions`: "one" is the caption that was scored (read only if `text` is given, or with `captions="read"`),
    "json:FIELD" a random caption of that list in each epoch, "json:FIELD:all" all of them. `fields`: fields of part json that
    come as lists, such as "image_id"; "image_sha256" is the digest of the picture, or of the part npy, in hex, and None if
    there is neither. `label`: True for the class of part cls or json, or the name of a column such as "refined_label"; rows
    without a class are left out. `sampler`: "window" shuffles shards, then the rows of `window_shards` of them; "m_per_class:4"
    fills a batch with four samples of each of several classes; "sequential" gives every row once, in order, the short last
    batch included. `drop_last` leaves out rows that fill no batch; with `fill_last` they come in a batch filled up with rows
    of the one before, so that losses among the samples of a batch can be compared. Rows are joined by key, and the delivered
    parts are verified: pictures and captions by digest, labels by value. Lists of captions have no digest in the table, and
    npy features only in tables of `score_embeddings`; otherwise only keys are compared. `max_mismatch`: the share of an
    epoch's samples that may differ from their row, or fail to decode: these are dropped and counted; one more raises
    MismatchError. Without a table, samples that cannot be decoded are dropped and counted. `keep_decoded`: keep transformed
    samples in memory, so that each is read, verified and decoded once: for small data sets and transforms that are not
    random. `cache`: a folder for member indexes and for copies of remote or compressed shards (bounded), default a temporary
    one.
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
        fields: Sequence[str] = (),
        image_part: str | None = None,
        text_field: str | None = None,
        label_field: str | None = None,
        sampler: str = "window",
        window_shards: int = 8,
        drop_last: bool | None = None,
        fill_last: bool = False,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
        max_mismatch: float = 0.0,
        cache: str | Path | None = None,
        pin_memory: bool = False,
        keep_decoded: bool = False,
        limits: Limits | None = None,
        _shared: _Shared | None = None,
    ) -> None:
        if shards is not None and not isinstance(shards, str | Path):
            shards = list(shards)
        self._settings = {name: value for name, value in locals().items() if name not in ("self", "_shared")}
        _check_numbers(batch_size, world, rank, workers, window_shards, max_mismatch)
        check_columns(columns)
        if isinstance(label, str):
            check_columns([label])
        if table is None and (columns or isinstance(label, str)):
            name = label if isinstance(label, str) else columns[0]
            raise ConfigError(f"column {name!r} needs a table; give the folder of a run as table", "table", None)
        if image_part not in (None, "npy"):
            raise ConfigError.of("image_part", image_part, "is unknown; use 'npy', or None for jpg, jpeg, png and webp")
        if image == "npy":
            image, image_part = ArrayTensor(), "npy"
        if keep_decoded and image is not None and not getattr(image, "deterministic", False):
            problem = "needs an image transform that is not random, such as a target's with augment: {crop: null}; or use False"
            raise ConfigError.of("keep_decoded", True, problem)
        if keep_decoded and captions.startswith("json:") and not captions.endswith(":all"):
            problem = "draws another caption in each epoch, and keep_decoded=True keeps one; use keep_decoded=False"
            raise ConfigError.of("captions", captions, problem)
        self.batch_size, self.rank, self.world, self.seed = batch_size, rank, world, seed
        self._overrides = ReadOverrides(text_field, label_field, limits)
        self._captions = CaptionSource.parse(captions) if text is not None or captions != "one" else None
        self._sampler, self._window = sampler, window_shards
        self._last: LastBatch = "fill" if fill_last else "short" if drop_last is False else "drop"
        self._label, self._max_mismatch = label, max_mismatch
        self._folder = _shared.folder if _shared else _CacheFolder(cache)
        self._cache = ShardCache(self._folder.path, copies=2 * window_shards + 2)
        image_parts: Sequence[str] = () if image is None else (image_part,) if image_part else IMAGE_PARTS
        needs = RowNeeds.of(where, table is not None, image_parts, self._captions, label, self._overrides)
        if _shared is not None and _shared.needs == needs:
            self._catalogue = _shared.catalogue
        else:
            self._catalogue = make_catalogue(shards, table, needs, self._cache)
        self._shared = _Shared(self._catalogue, needs, self._folder)
        self.notes = list(self._catalogue.notes)
        self.total_rows = self._catalogue.ok.total
        self.epoch = 0
        self._batch = 0
        self.read_samples = self.dropped_samples = 0  # counts of this epoch
        self._examples: list[Dropped] = []
        loader_settings = LoaderSettings(
            shards=self._catalogue.shards,
            offsets=self._catalogue.ok.offsets,
            run=self._catalogue.run,
            cache=self._cache,
            open_shards=OPEN_SHARDS if sampler.startswith("m_per_class") else 2 * window_shards,
            columns=tuple(columns),
            image=image,
            image_part=image_part,
            text=text,
            captions=self._captions,
            label=label,
            overrides=self._overrides,
            strict=max_mismatch == 0,
            seed=seed,
            fields=tuple(fields),
            keep=keep_decoded,
        )
        self._batch_loader = BatchLoader(loader_settings)
        self._loader = make_loader(self._batch_loader, self._refs, workers, pin_memory)
        self._classes: NDArray[Any] | None = None  # classes by global row number, read when an order needs them
        self._rows = self._catalogue.ok
        self._order = self._make_order(self._rows)

    # --- the rows of an epoch ---------------------------------------------------------------------------------------------
    def __len__(self) -> int:
        """Number of batches of an epoch, the same on every rank."""
        return len(self._order)

    @property
    def selected_rows(self) -> int:
        """Number of rows that an epoch draws from."""
        return int(self._rows.kept.sum())

    def set_selection(self, mask: Mask | None) -> None:
        """Use only rows that are true in `mask`, (total_rows,) bool, from the next iteration on; None: all rows again.

        A selection is not part of the state; set it again before a resumed epoch.
        """
        if mask is None:
            rows = self._catalogue.ok
        else:
            mask = np.asarray(mask)
            if mask.shape != (self.total_rows,) or mask.dtype != bool:
                problem = f"of {mask.dtype} does not fit; it must be bool of shape ({self.total_rows},)"
                raise ConfigError.of("mask", mask.shape, problem)
            rows = self._catalogue.ok.where(mask)
        self._order, self._rows = self._make_order(rows), rows

    def ok_rows(self) -> Index:
        """Return global numbers of all rows that `where` and the table's status allow, in order; ignores `set_selection`."""
        return np.flatnonzero(self._catalogue.ok.to_array())

    def column(self, name: str) -> NDArray[Any]:
        """Return a whole column by global row number, (total_rows,): float32 with nan, int64 with -1, or bool with false."""
        check_columns([name])
        return self._catalogue.column(name)

    def mean(self, name: str) -> float:
        """Compute a column's mean over the rows that `where` and the status allow, nan as 0: `mean_weight` of `weighted`."""
        values = self.column(name)[self.ok_rows()]
        return float(np.nan_to_num(values.astype(np.float64), nan=0.0).mean())

    def digest(self) -> str:
        """Compute a digest of the rows that `where` and the status allow, and of `columns`; it changes with the tables."""
        digest = hashlib.blake2b(self._catalogue.ok.digest(), digest_size=16)
        run, columns = self._catalogue.run, list(self._settings["columns"])
        for shard in self._catalogue.shards:
            digest.update(shard.stem.encode("utf-8", "surrogateescape"))
            if run is not None and columns:
                table = run.read(shard.stem, columns)
                digest.update(b"".join(column_values(table[name]).tobytes() for name in columns))
        return digest.hexdigest()

    def row_keys(self) -> Iterator[tuple[str, Index]]:
        """Yield each shard's stem with the global numbers of its rows, in order; to write per-row arrays as tables."""
        offsets = self._catalogue.ok.offsets
        for number, shard in enumerate(self._catalogue.shards):
            yield shard.stem, np.arange(offsets[number], offsets[number + 1])

    def view(self, **changes: Any) -> WeightedShards:
        """Return the same data with other settings, such as `sampler="sequential", image=…`, without the selection.

        Tables are read again only if the change needs it.
        """
        shared = None if {"shards", "table"} & set(changes) else self._shared
        return WeightedShards(**(self._settings | changes), _shared=shared)

    # --- iteration ------------------------------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[Batch]:
        """Yield the rest of this epoch's batches; then the next epoch begins."""
        if self._batch == 0:
            self.read_samples, self.dropped_samples, self._examples = 0, 0, []
        for batch in iterate_loader(self._loader):
            self._count_dropped(batch)
            self._batch = batch.number + 1
            yield batch
        self.epoch, self._batch = self.epoch + 1, 0

    def read(self, rows: Index, epoch: int = 0) -> Batch:
        """Read the batch of these rows by global number, in this order and maybe repeated, in this process.

        Raise the error of the first row that cannot be read.
        """
        batch = self._batch_loader[BatchRef(epoch, 0, rows)]
        if isinstance(batch, BatchFailure):
            raise batch.error
        if batch.dropped:
            raise MismatchError(f"cannot be read: {batch.dropped[0]}", "max_mismatch", self._max_mismatch)
        return batch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`; if it is the current one, keep the position in it (after a resume)."""
        if epoch != self.epoch:
            self.epoch, self._batch = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """{"epoch", "batch"} of the next batch."""
        return {"epoch": self.epoch, "batch": self._batch}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue with the batch of `state`; raise ConfigError if this data has no such batch."""
        if not 0 <= state["batch"] <= len(self):
            problem = (
                f"is none of the {len(self)} of an epoch; resume with the same shards, table, where and batch_size"
            )
            raise ConfigError.of("batch", state["batch"], problem)
        self.epoch, self._batch = state["epoch"], state["batch"]

    def close(self) -> None:
        """Stop the workers and close all files; a temporary folder is deleted with its last view."""
        self._loader = make_loader(self._batch_loader, self._refs)
        self._batch_loader.close()

    def _refs(self) -> Iterator[BatchRef]:
        epoch, start = self.epoch, self._batch
        for number, batch in enumerate(self._order.batches(epoch, start), start):
            rows = rank_rows(batch, self.rank, self.world)
            yield BatchRef(epoch, number, rows if len(rows) else batch[:1], empty=not len(rows))

    def _count_dropped(self, batch: Batch) -> None:
        """Count dropped samples; raise an error if there are more than `max_mismatch` allows."""
        self.read_samples += len(batch) + len(batch.dropped)
        self.dropped_samples += len(batch.dropped)
        self._examples = [*self._examples, *batch.dropped][:EXAMPLES]
        if not batch.dropped:
            return
        share = format_share(self.dropped_samples, self.read_samples)
        rate = f"{self.dropped_samples:,} of the {self.read_samples:,} samples read so far ({share})"
        examples = "; ".join(str(example) for example in self._examples)
        if self._catalogue.run is None:
            if self.dropped_samples == self.read_samples:
                raise ShardError(f"{rate} cannot be used: {examples}", "shards", self._settings["shards"])
        elif self.dropped_samples > self._max_mismatch * self.selected_rows / self.world:
            problem, advice = "cannot be read as asked", "check captions, text_field and label_field"
            if any(example.status == "mismatch" for example in self._examples):
                problem = f"are not what their rows in table {self._catalogue.run.path} say"
                advice = "annotate these shards again"
            advice += f", or allow a share of an epoch's samples with max_mismatch (now {self._max_mismatch:g})"
            raise MismatchError(f"{rate} {problem}: {examples}; {advice}", "max_mismatch", self._max_mismatch)

    # --- preparation ----------------------------------------------------------------------------------------------------
    def _make_order(self, rows: RowMask) -> EpochOrder:
        """Make the order over these rows; raise ConfigError if it has no batch."""
        selected = int(rows.kept.sum())
        if not selected:
            where = self._settings["where"]
            if self._catalogue.run is None:
                needs = " and ".join("/".join(parts) for parts in self._shared.needs.parts) or "sample"
                problem = f"none of the {rows.total:,} samples has what is needed ({needs}); use other shards"
                raise ConfigError(problem, "shards", self._settings["shards"])
            why = f"where {where!r} and the selection leave" if where else "the table's status and the selection leave"
            raise ConfigError(f"{why} none of {rows.total:,} rows to train on; use a wider rule", "where", where)
        order = make_order(
            self._sampler,
            rows,
            self._labels,
            batch_size=self.batch_size,
            seed=self.seed,
            window_shards=self._window,
            last=self._last,
        )
        if isinstance(order, MPerClassOrder) and order.left_out:
            few = "1 class has" if order.left_out == 1 else f"{order.left_out:,} classes have"
            note = f"{few} too few samples for sampler {self._sampler!r}: left out"
            self.notes += [note] if note not in self.notes else []
        if not len(order):
            problem = f"is larger than the {selected:,} samples to train on; use {selected} or less"
            raise ConfigError.of("batch_size", self.batch_size, problem)
        return order

    def _labels(self, rows: Index) -> Index:
        if not self._label:
            problem = f"gives no classes for sampler {self._sampler!r}; use True, or a column such as 'refined_label'"
            raise ConfigError.of("label", self._label, problem)
        if self._classes is None:
            catalogue, own = self._catalogue, self._label is True and self._overrides.label_field is not None
            if catalogue.run is None or own:
                self._classes = read_labels(catalogue, self._cache, self._overrides.label_field)
            else:
                self._classes = catalogue.column(self._label if isinstance(self._label, str) else "label")
        return self._classes[rows].astype(np.int64)


class _CacheFolder:
    """The cache folder: the user's, or a temporary folder that is deleted with its last view."""

    def __init__(self, path: str | Path | None) -> None:
        self._temporary = ScratchFolder() if path is None else None
        self.path = self._temporary.path if self._temporary else Path(str(path))


class _Shared:
    """State shared by views: the catalogue, its needs, and the cache folder."""

    def __init__(self, catalogue: Catalogue, needs: RowNeeds, folder: _CacheFolder) -> None:
        self.catalogue, self.needs, self.folder = catalogue, needs, folder


def _check_numbers(
    batch_size: int, world: int, rank: int, workers: int, window_shards: int, max_mismatch: float
) -> None:
    if batch_size < 1:
        raise ConfigError.of("batch_size", batch_size, "is not a number of samples; use 64")
    if world < 1 or not 0 <= rank < world:
        raise ConfigError.of("rank", rank, f"of world {world} does not exist; ranks go from 0 to world - 1")
    if batch_size % world:
        problem = f"is no multiple of world {world}, which shares it; use {max(1, batch_size // world) * world}"
        raise ConfigError.of("batch_size", batch_size, problem)
    if workers < 0:
        raise ConfigError.of("workers", workers, "is not a number of processes; use 0 (none) or more")
    if window_shards < 1:
        raise ConfigError.of("window_shards", window_shards, "is not a number of shards; use 8")
    if not 0 <= max_mismatch < 1:
        raise ConfigError.of("max_mismatch", max_mismatch, "is not a share of samples; use 0.01")
