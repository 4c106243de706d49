"""From row numbers to a Batch: read, prove, decode, augment. Runs in the workers, or in this process without any."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import random
import signal
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from noisegate.pipeline.errors import ConfigError, NoisegateError
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.shards.decode import BadSample, Limits, decode_image, decode_label, decode_text
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.read import IMAGE_PARTS
from noisegate.pipeline.shards.workers import DecodeOptions

from .batch import Batch, Dropped
from .join import JoinedShard, Reading, join
from .shard_cache import ShardCache

__all__ = ["BatchLoader", "BatchRef", "CaptionSource", "Failure", "Source", "start_worker"]

IMAGE_DIGEST = "image_sha256"  # a field that needs no json: equal pictures, or features, have the same


@dataclass(frozen=True)
class CaptionSource:
    """Which captions come with a sample: the one that `DecodeOptions` names, or those of a list in json."""

    field: str | None = None
    every: bool = False  # all of the list, not a random one

    @classmethod
    def of(cls, text: str) -> CaptionSource:
        """From `one`, `json:FIELD` or `json:FIELD:all`; raises ConfigError for anything else."""
        kind, _, rest = text.partition(":")
        name, _, every = rest.partition(":")
        if text in ("one", "read"):
            return cls()
        if kind != "json" or not name or every not in ("", "all"):
            raise ConfigError(
                f"captions {text!r} is unknown; use 'one', 'read', 'json:captions' or 'json:captions:all'"
            )
        return cls(name, bool(every))


@dataclass(frozen=True)
class Source:
    """All that a worker needs to know; the same for every batch."""

    shards: list[Shard]
    offsets: NDArray[np.int64]
    run: RunFolder | None
    cache: ShardCache
    open_shards: int
    columns: tuple[str, ...]
    image: Callable[..., Tensor] | None
    image_part: str | None  # npy, or None for a picture
    text: Callable[[list[str]], Any] | None
    captions: CaptionSource | None
    label: bool | str
    reading: Reading
    strict: bool
    seed: int
    fields: tuple[str, ...] = ()
    keep: bool = False  # hold decoded samples: each is read and proven once


@dataclass(frozen=True)
class BatchRef:
    """A rank's part of one batch of the plan; `empty` where it has none, and `rows` is then one row to learn shapes from."""

    epoch: int
    number: int
    rows: NDArray[np.int64]
    empty: bool = False


@dataclass(frozen=True)
class Failure:
    """An error on its way from a worker: torch would wrap it in a traceback, and its text is meant for the user."""

    error: NoisegateError


def start_worker(_: int) -> None:
    """In each worker, once: one thread, and Ctrl-C is the main process's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


@dataclass
class _Sample:
    key: str
    image: Tensor | None = None
    captions: Sequence[str] = ()
    label: int = -1
    fields: Sequence[Any] = ()


class BatchLoader(Dataset[Batch | Failure]):
    """`loader[ref]` is the batch; a few shards stay open, those used last."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._open: OrderedDict[int, JoinedShard] = OrderedDict()
        self._takes_rng = source.image is not None and _takes_rng(source.image)
        self._kept: dict[int, _Sample] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "_takes_rng": self._takes_rng, "_open": OrderedDict(), "_kept": {}}

    def __getitem__(self, ref: BatchRef) -> Batch | Failure:
        try:
            with _generators_kept():
                batch = self._load(ref)
            return batch.emptied() if ref.empty else batch
        except NoisegateError as error:
            return Failure(error)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _load(self, ref: BatchRef) -> Batch:
        source = self.source
        places = np.searchsorted(source.offsets, ref.rows, side="right") - 1
        within = ref.rows - source.offsets[places]
        found: dict[int, _Sample] = {}
        values: dict[str, NDArray[Any]] = {}
        dropped: list[Dropped] = []
        for place in np.unique(places):  # shard by shard, so that each is opened once
            shard = self._shard(int(place))
            for at in np.flatnonzero(places == place):
                number = int(ref.rows[at])
                try:
                    sample = self._kept.get(number) or self._sample(shard, int(within[at]), number, ref.epoch)
                except BadSample as problem:
                    name = PurePosixPath(source.shards[place].url).name
                    dropped.append(Dropped(number, name, shard.key_of(int(within[at])), str(problem), problem.status))
                    continue
                found[int(at)] = sample
                if source.keep:
                    self._kept[number] = sample
            for name, column in shard.columns.items():
                here = places == place
                values.setdefault(name, np.zeros(len(places), column.dtype))[here] = column[within[here]]
        kept = np.array(sorted(found), np.int64)
        columns = {name: torch.from_numpy(array[kept]) for name, array in values.items()}
        return self._collate(ref, [found[int(at)] for at in kept], columns, kept, dropped)

    def _collate(
        self,
        ref: BatchRef,
        samples: list[_Sample],
        columns: dict[str, Tensor],
        kept: NDArray[np.int64],
        dropped: list[Dropped],
    ) -> Batch:
        source = self.source
        batch = Batch(
            rows=torch.from_numpy(ref.rows[kept]),
            keys=[sample.key for sample in samples],
            captions=[caption for sample in samples for caption in sample.captions],
            columns={name: columns[name] for name in source.columns},
            fields={name: [sample.fields[at] for sample in samples] for at, name in enumerate(source.fields)},
            epoch=ref.epoch,
            number=ref.number,
            dropped=dropped,
        )
        if source.image is not None:
            batch.images = _stack([sample.image for sample in samples if sample.image is not None])
        if source.captions is not None and source.captions.every:
            counts = torch.tensor([len(sample.captions) for sample in samples], dtype=torch.int64)
            batch.caption_of = torch.repeat_interleave(torch.arange(len(samples)), counts)
        if source.text is not None and batch.captions:
            batch.texts = source.text(batch.captions)
        if isinstance(source.label, str):
            batch.labels = columns[source.label].to(torch.int64)
        elif source.label:
            batch.labels = torch.tensor([sample.label for sample in samples], dtype=torch.int64)
        return batch

    def _shard(self, place: int) -> JoinedShard:
        source = self.source
        if place in self._open:
            self._open.move_to_end(place)
            return self._open[place]
        while len(self._open) >= source.open_shards:
            self._open.popitem(last=False)[1].close()
        shard = source.shards[place]
        samples = source.cache.open(shard)
        try:
            wanted = dict.fromkeys((*source.columns, *((source.label,) if isinstance(source.label, str) else ())))
            joined = join(samples, source.run, shard.stem, tuple(wanted), source.reading, source.strict)
        except NoisegateError:
            samples.close()
            raise
        self._open[place] = joined
        return joined

    def _sample(self, shard: JoinedShard, row: int, number: int, epoch: int) -> _Sample:
        """Read and prove one sample, then decode it; raises BadSample with the reason why it is dropped."""
        source, options, proof = self.source, shard.options, shard.proof
        place = shard.sample_of(row)
        if place < 0:
            raise BadSample("mismatch", "in the table, but not in the shard")
        parts = shard.samples.read(place, self._parts(shard))
        sample = _Sample(shard.key_of(row))
        wrong: str | None = None
        if source.image is not None and source.image_part is None and proof is not None:
            wrong = proof.image(row, parts)
        if source.captions is not None:
            sample.captions = self._captions(parts, options, number, epoch)
            if proof is not None and source.captions.field is None:
                same = sample.captions[0] if proof.same_text(options) else None
                wrong = wrong or proof.text(row, parts, same)
        if source.label is True:
            sample.label = decode_label(parts, options.label_field)
            if proof is not None and proof.same_label(options):
                wrong = wrong or proof.label(row, sample.label)
        if wrong:
            raise BadSample("mismatch", wrong)
        if source.fields:
            known = proof.image_digest(row) if proof is not None and source.image_part is None else None
            sample.fields = _fields_of(parts, source.fields, known, self._image_parts)
        if source.image is not None:
            sample.image = self._image(source.image, parts, options.limits, number, epoch)
        return sample

    def _parts(self, shard: JoinedShard) -> list[str]:
        source = self.source
        names: list[str] = []
        if source.image is not None:
            names += self._image_parts
        if source.captions is not None:
            names += ["json"] if source.captions.field else ["txt", "json"]
        if source.label is True:
            names += ["cls", "json"]
        if source.fields:
            unknown = shard.proof is None or source.image_part is not None
            names += [*self._image_parts, "json"] if IMAGE_DIGEST in source.fields and unknown else ["json"]
        return list(dict.fromkeys(names))

    @property
    def _image_parts(self) -> Sequence[str]:
        return (self.source.image_part,) if self.source.image_part else IMAGE_PARTS

    def _captions(self, parts: dict[str, bytes], options: DecodeOptions, number: int, epoch: int) -> list[str]:
        source = self.source.captions
        if source is None or source.field is None:
            return [decode_text(parts, options.text_field, options.limits)]
        texts = _list_of(parts, source.field, options.limits)
        if source.every:
            return texts
        rng = np.random.default_rng([self.source.seed, epoch, number, 1])
        return [texts[int(rng.integers(len(texts)))]]

    def _image(
        self, image: Callable[..., Tensor], parts: dict[str, bytes], limits: Limits, number: int, epoch: int
    ) -> Tensor:
        seeds = (self.source.seed, epoch, number)
        if self.source.image_part is not None:
            picture: Any = _array(parts.get(self.source.image_part), self.source.image_part)
        else:
            data = next((parts[name] for name in self._image_parts if name in parts), None)
            if data is None:
                raise BadSample("no_image", "no part jpg, jpeg, png or webp")
            picture = decode_image(data, limits)
        if self._takes_rng:
            return image(picture, rng=np.random.default_rng([*seeds, 0]))
        if not getattr(image, "deterministic", False):
            _seed_generators(seeds)
        return image(picture)


def _takes_rng(image: Callable[..., Tensor]) -> bool:
    try:
        return "rng" in inspect.signature(image).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        return False


def _seed_generators(seeds: tuple[int, int, int]) -> None:
    state = [int(word) for word in np.random.SeedSequence(seeds).generate_state(2)]
    torch.default_generator.manual_seed(state[0] << 32 | state[1])  # torch.manual_seed would queue calls for CUDA
    random.seed(state[0])
    np.random.seed(state[1])  # noqa: NPY002 - transforms of others may use it


@contextmanager
def _generators_kept() -> Iterator[None]:
    """The global generators are afterwards as before: without workers they are those of the training itself."""
    before = torch.default_generator.get_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])  # noqa: NPY002


def _stack(images: list[Tensor]) -> Tensor:
    if not images:
        return torch.empty(0)
    shapes = {tuple(image.shape) for image in images}
    if len(shapes) > 1:
        raise ConfigError(
            f"image gives tensors of different shapes in a batch, {sorted(shapes)[:3]}; resize or pad to one"
        )
    return torch.stack(images)


def _array(data: bytes | None, part: str) -> NDArray[Any]:
    if data is None:
        raise BadSample("no_image", f"no part {part}")
    try:
        found: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise BadSample(
            "bad_image", f"part {part} is not a NumPy array: {' '.join(str(error).split())}"[:300]
        ) from error
    return found


def _fields_of(
    parts: dict[str, bytes], names: Sequence[str], digest: str | None, image_parts: Sequence[str]
) -> list[Any]:
    """Values of the json part, None where it has none; `image_sha256` is the picture's digest, `digest` where known."""
    record: dict[str, Any] = {}
    if "json" in parts:
        try:
            loaded = json.loads(parts["json"])
        except (ValueError, RecursionError) as error:
            raise BadSample("bad_text", f"json cannot be read: {' '.join(str(error).split())}"[:300]) from error
        record = loaded if isinstance(loaded, dict) else {}
    if IMAGE_DIGEST in names:
        image = next((parts[name] for name in image_parts if name in parts), None)
        if digest is None and image is not None:
            digest = hashlib.sha256(image).hexdigest()
        record = record | {IMAGE_DIGEST: digest}
    return [record.get(name) for name in names]


def _list_of(parts: dict[str, bytes], name: str, limits: Limits) -> list[str]:
    """The captions of a json field that is a list of strings, each as `decode_text` accepts it."""
    try:
        values = json.loads(parts["json"]).get(name)
    except KeyError as error:
        raise BadSample("no_text", "no part json") from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise BadSample("bad_text", f"json cannot be read: {' '.join(str(error).split())}"[:300]) from error
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise BadSample("no_text", f"json field {name!r} is not a list of captions")
    return [decode_text({"txt": value.encode("utf-8", "surrogatepass")}, None, limits) for value in values]
