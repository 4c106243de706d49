"""Pairs to request bodies: pictures become bytes, items become JSON once, and bodies stay within the server's limits."""

import base64
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError

from .answers import Score

__all__ = [
    "AnyPair",
    "Batch",
    "Pair",
    "Sizes",
    "image_batches",
    "image_bytes",
    "item_json",
    "pair_batches",
    "text_batches",
]

URLS = ("http://", "https://")
PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


@dataclass(frozen=True)
class Pair:
    """A picture (path, URL, bytes of an image file, or PIL image) and a text; a class label where there is one."""

    image: Any
    text: str | None = None
    label: int | str | None = None
    key: str | None = None


AnyPair = Pair | tuple[Any, str | None]


@dataclass(frozen=True)
class Sizes:
    """How much goes into a request: at most `items` and, unless one alone is larger, `aim_bytes`; `most_bytes` is the end."""

    items: int = 64
    aim_bytes: int = 8 << 20
    most_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.items < 1:
            raise ConfigError(f"batch_items {self.items} is no batch; use 64")

    def within(self, limits: Mapping[str, Any]) -> "Sizes":
        """The same, cut to what a server says it takes."""
        items = int(limits.get("max_items") or self.items)
        most = int(limits.get("max_body_bytes") or self.most_bytes)
        return Sizes(min(self.items, items), min(self.aim_bytes, most), most)


@dataclass(frozen=True)
class Batch:
    """One request: its body, and the place of each of its items among all pairs. `failed` never leave this machine."""

    body: bytes
    places: tuple[int, ...]
    failed: Mapping[int, Score]


def image_bytes(image: Any) -> bytes:
    """The image file's bytes; a PIL image becomes a PNG, which loses nothing."""
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | os.PathLike):
        return Path(image).read_bytes()
    if hasattr(image, "save") and hasattr(image, "mode"):
        packed = io.BytesIO()
        (image if image.mode in PNG_MODES else image.convert("RGB")).save(packed, "PNG")
        return packed.getvalue()
    raise ConfigError(f"an image of type {type(image).__name__} is none; give a path, bytes or a PIL image")


def item_json(pair: AnyPair) -> bytes:
    """An item of /v1/score; OSError where the picture's file cannot be read."""
    pair = pair if isinstance(pair, Pair) else Pair(*pair)
    item: dict[str, Any] = {}
    if isinstance(pair.image, str) and pair.image.lower().startswith(URLS):
        item["image_url"] = pair.image
    elif pair.image is not None:
        item["image"] = _base64(pair.image)
    extra = {"text": pair.text, "label": pair.label, "key": pair.key}
    return json.dumps(item | {name: value for name, value in extra.items() if value is not None}).encode("ascii")


def pair_batches(pairs: Iterable[AnyPair], sizes: Sizes, settings: Mapping[str, Any]) -> Iterator[Batch]:
    """Requests to /v1/score; `settings` go into each of them."""
    end = "]" + "".join(f", {json.dumps(name)}: {json.dumps(value)}" for name, value in settings.items()) + "}"
    return pack(map(_or_failure(item_json), pairs), sizes, b'{"pairs": [', end.encode())


def image_batches(images: Iterable[Any], sizes: Sizes) -> Iterator[Batch]:
    """Requests to /v1/embed for pictures."""
    items = map(_or_failure(lambda image: json.dumps(_base64(image)).encode("ascii")), images)
    return pack(items, sizes, b'{"encoding": "base64", "images": [', b"]}")


def text_batches(texts: Iterable[str], sizes: Sizes) -> Iterator[Batch]:
    """Requests to /v1/embed for texts."""
    return pack(
        (json.dumps(text).encode("ascii") for text in texts), sizes, b'{"encoding": "base64", "texts": [', b"]}"
    )


def pack(items: Iterable[bytes | Score], sizes: Sizes, start: bytes, end: bytes) -> Iterator[Batch]:
    """Cut items into bodies, taking each when its turn comes, so that memory holds a few requests only.

    An item that failed already, or that no request could hold, goes along without being sent.
    """
    frame = len(start) + len(end)
    bodies: list[bytes] = []
    places: list[int] = []
    failed: dict[int, Score] = {}
    size = frame
    for place, item in enumerate(items):
        if isinstance(item, Score):
            failed[place] = item
            continue
        if frame + len(item) > sizes.most_bytes:
            failed[place] = Score("too_large", f"{len(item):,} bytes; a request holds {sizes.most_bytes:,}")
            continue
        if bodies and (len(bodies) >= sizes.items or size + len(item) + 1 > sizes.aim_bytes):
            yield Batch(start + b",".join(bodies) + end, tuple(places), failed)
            bodies, places, failed, size = [], [], {}, frame
        bodies.append(item)
        places.append(place)
        size += len(item) + 1
    if bodies or failed:
        yield Batch(start + b",".join(bodies) + end, tuple(places), failed)


def _base64(image: Any) -> str:
    return base64.b64encode(image_bytes(image)).decode("ascii")


def _or_failure(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes | Score]:
    def encoded(value: Any) -> bytes | Score:
        try:
            return encode(value)
        except OSError as error:
            return Score("no_image", f"{error.filename}: {error.strerror}" if error.filename else str(error))

    return encoded
