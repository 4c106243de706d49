"""Read one sample: find it in its shard, check it against its table row, decode and transform it."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.shards import IMAGE_PARTS, BadSample, decode_image, decode_label, decode_text

from .join import JoinedShard

IMAGE_DIGEST = "image_sha256"
"""a field that needs no json: equal for equal pictures or features"""
ERROR_LENGTH = 300  # most characters of a dropped sample's error; chosen


@dataclass(frozen=True)
class CaptionSource:
    """The source of captions: the text that `DecodeOptions` names, or a list in json."""

    field: str | None = None
    every: bool = False  # all captions of the list, not a random one

    @classmethod
    def parse(cls, text: str, setting: str = "captions") -> CaptionSource:
        """Parse `one`, `read`, `json:FIELD` or `json:FIELD:all`."""
        kind, _, rest = text.partition(":")
        name, _, every = rest.partition(":")
        if text in ("one", "read"):
            return cls()
        if kind != "json" or not name or every not in ("", "all"):
            raise ConfigError.of(setting, text, "is unknown; use 'one', 'read', 'json:captions' or 'json:captions:all'")
        return cls(name, bool(every))


@dataclass(frozen=True)
class ArrayTensor:
    """Transform an array of features to a tensor; floats become float32."""

    deterministic: ClassVar[bool] = True

    def __call__(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.float() if tensor.is_floating_point() else tensor


@dataclass
class LoadedSample:
    """One sample of a batch."""

    key: str
    image: Tensor | None = None
    captions: Sequence[str] = ()
    label: int = -1
    fields: Sequence[Any] = ()


class SampleReader:
    """Read samples with the given transforms. `image_part` is npy, or None for pictures; `label`: read the class."""

    def __init__(
        self,
        image: Callable[..., Tensor] | None,
        image_part: str | None,
        captions: CaptionSource | None,
        label: bool,
        fields: tuple[str, ...],
        seed: int,
    ) -> None:
        self._image, self._image_part, self._captions, self._label = image, image_part, captions, label
        self._fields, self._seed = fields, seed
        self._image_parts: Sequence[str] = (image_part,) if image_part else IMAGE_PARTS
        self._takes_rng = image is not None and _takes_rng(image)

    def read(self, shard: JoinedShard, row: int, number: int, epoch: int) -> LoadedSample:
        """Read the sample of a table row whose global number is `number`; raise BadSample if it must be dropped."""
        options, proof = shard.options, shard.proof
        position = shard.sample_of(row)
        if position < 0:
            raise BadSample("mismatch", "in the table, but not in the shard")
        parts = shard.samples.read(position, self._part_names(shard))
        sample = LoadedSample(shard.key_of(row))
        problem: str | None = None
        if self._image is not None and proof is not None and self._image_part == proof.image_part:
            problem = proof.check_image(row, parts)
        if self._captions is not None:
            sample.captions = self._read_captions(self._captions, parts, options, number, epoch)
            if proof is not None and self._captions.field is None:
                scored = sample.captions[0] if options.text_field == proof.scored.text_field else None
                problem = problem or proof.check_text(row, parts, scored)
        if self._label:
            sample.label = decode_label(parts, options.label_field)
            if proof is not None and options.label_field == proof.scored.label_field:
                problem = problem or proof.check_label(row, sample.label)
        if problem:
            raise BadSample("mismatch", problem)
        if self._fields:
            digest = proof.image_digest(row) if proof is not None and self._image_part is None else None
            sample.fields = _read_fields(parts, self._fields, digest, self._image_parts)
        if self._image is not None:
            sample.image = self._read_image(self._image, parts, options.limits, number, epoch)
        return sample

    def _part_names(self, shard: JoinedShard) -> list[str]:
        """List the parts of the tar that this sample needs."""
        names: list[str] = []
        if self._image is not None:
            names += self._image_parts
        if self._captions is not None:
            names += ["json"] if self._captions.field else ["txt", "json"]
        if self._label:
            names += ["cls", "json"]
        if self._fields:
            unknown = shard.proof is None or self._image_part is not None
            names += [*self._image_parts, "json"] if IMAGE_DIGEST in self._fields and unknown else ["json"]
        return list(dict.fromkeys(names))

    def _read_captions(
        self, source: CaptionSource, parts: dict[str, bytes], options: DecodeOptions, number: int, epoch: int
    ) -> list[str]:
        if source.field is None:
            return [decode_text(parts, options.text_field, options.limits)]
        texts = _read_caption_list(parts, source.field, options.limits)
        if source.every:
            return texts
        rng = np.random.default_rng([self._seed, epoch, number, 1])
        return [texts[int(rng.integers(len(texts)))]]

    def _read_image(
        self, transform: Callable[..., Tensor], parts: dict[str, bytes], limits: Limits, number: int, epoch: int
    ) -> Tensor:
        """Decode and transform; random transforms draw from generators seeded by (seed, epoch, number)."""
        if self._image_part is not None:
            picture: Any = _read_array(parts.get(self._image_part), self._image_part)
        else:
            data = next((parts[name] for name in self._image_parts if name in parts), None)
            if data is None:
                raise BadSample("no_image", "no part jpg, jpeg, png or webp")
            decode = getattr(transform, "decode", None)  # noisegate's own transforms can decode the file themselves
            if decode is not None:
                image: Tensor = decode(data, limits, rng=np.random.default_rng([self._seed, epoch, number, 0]))
                return image
            picture = decode_image(data, limits)
        if self._takes_rng:
            return transform(picture, rng=np.random.default_rng([self._seed, epoch, number, 0]))
        if not getattr(transform, "deterministic", False):
            _seed_generators((self._seed, epoch, number))
        return transform(picture)


def _takes_rng(transform: Callable[..., Tensor]) -> bool:
    try:
        return "rng" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        return False


def _seed_generators(seeds: tuple[int, int, int]) -> None:
    state = [int(word) for word in np.random.SeedSequence(seeds).generate_state(2)]
    torch.default_generator.manual_seed(state[0] << 32 | state[1])  # torch.manual_seed would queue calls for CUDA
    random.seed(state[0])
    np.random.seed(state[1])  # noqa: NPY002 - a user's transform may draw from it


def _read_array(data: bytes | None, part: str) -> NDArray[Any]:
    if data is None:
        raise BadSample("no_image", f"no part {part}")
    try:
        array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise BadSample("bad_image", _one_line(f"part {part} is not a NumPy array: {error}")) from error
    return array


def _read_fields(
    parts: dict[str, bytes], names: Sequence[str], digest: str | None, image_parts: Sequence[str]
) -> list[Any]:
    """Read values of json fields, None if missing; `image_sha256` is `digest`, or computed from the picture."""
    record: dict[str, Any] = {}
    if "json" in parts:
        try:
            loaded = json.loads(parts["json"])
        except (ValueError, RecursionError) as error:
            raise BadSample("bad_text", _one_line(f"json cannot be read: {error}")) from error
        record = loaded if isinstance(loaded, dict) else {}
    if IMAGE_DIGEST in names:
        image = next((parts[name] for name in image_parts if name in parts), None)
        if digest is None and image is not None:
            digest = hashlib.sha256(image).hexdigest()
        record = record | {IMAGE_DIGEST: digest}
    return [record.get(name) for name in names]


def _read_caption_list(parts: dict[str, bytes], name: str, limits: Limits) -> list[str]:
    """Read the captions of a json field that is a list of strings, each checked by `decode_text`."""
    try:
        values = json.loads(parts["json"]).get(name)
    except KeyError as error:
        raise BadSample("no_text", "no part json") from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise BadSample("bad_text", _one_line(f"json cannot be read: {error}")) from error
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise BadSample("no_text", f"json field {name!r} is not a list of captions")
    return [decode_text({"txt": value.encode("utf-8", "surrogatepass")}, None, limits) for value in values]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:ERROR_LENGTH]
