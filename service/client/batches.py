"""Cut pairs into request bodies within the server's limits, and collect the answers in the order of the pairs."""

import base64
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError

from .answers import Embedding, Score, Scores, ServiceError, as_list, as_object

URLS = ("http://", "https://")
PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


@dataclass(frozen=True)
class Pair:
    """A picture (path, URL, bytes of an image file, or PIL image) and a text; optionally a class label."""

    image: Any
    text: str | None = None
    label: int | str | None = None
    key: str | None = None


AnyPair = Pair | tuple[Any, str | None]
Progress = Callable[[int, int | None], object]  # (pairs done, pairs in all or None)


@dataclass(frozen=True)
class BatchSizes:
    """Size of a request: at most `items` items and about `aim_bytes` bytes; one large item may take up to `most_bytes`."""

    items: int = 64
    aim_bytes: int = 8 << 20
    most_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.items < 1:
            raise ConfigError.of("batch_items", self.items, "is too small; use 64")

    def limit_to(self, limits: Mapping[str, Any]) -> "BatchSizes":
        """Lower the sizes to the limits that a server reports."""
        items = int(limits.get("max_items") or self.items)
        most = int(limits.get("max_body_bytes") or self.most_bytes)
        return BatchSizes(min(self.items, items), min(self.aim_bytes, most), most)


@dataclass(frozen=True)
class RequestBatch:
    """One request: its body and the position of each item among all pairs; `failed` items are not sent."""

    body: bytes
    places: tuple[int, ...]
    failed: Mapping[int, Score]


def image_bytes(image: Any) -> bytes:
    """Return the image file's bytes; a PIL image becomes a lossless PNG."""
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | os.PathLike):
        return Path(image).read_bytes()
    if hasattr(image, "save") and hasattr(image, "mode"):
        packed = io.BytesIO()
        (image if image.mode in PNG_MODES else image.convert("RGB")).save(packed, "PNG")
        return packed.getvalue()
    kind = type(image).__name__
    raise ConfigError(f"an image of type {kind} cannot be sent; give a path, bytes or a PIL image", "image", kind)


def item_json(pair: AnyPair) -> bytes:
    """Make an item of /v1/score as JSON; raise OSError if the picture's file cannot be read."""
    pair = pair if isinstance(pair, Pair) else Pair(*pair)
    item: dict[str, Any] = {}
    if isinstance(pair.image, str) and pair.image.lower().startswith(URLS):
        item["image_url"] = pair.image
    elif pair.image is not None:
        item["image"] = _base64(pair.image)
    extra = {"text": pair.text, "label": pair.label, "key": pair.key}
    return json.dumps(item | {name: value for name, value in extra.items() if value is not None}).encode("ascii")


def pair_batches(pairs: Iterable[AnyPair], sizes: BatchSizes, settings: Mapping[str, Any]) -> Iterator[RequestBatch]:
    """Make requests to /v1/score; each contains `settings`."""
    end = "]" + "".join(f", {json.dumps(name)}: {json.dumps(value)}" for name, value in settings.items()) + "}"
    return pack(map(_catch_os_errors(item_json), pairs), sizes, b'{"pairs": [', end.encode())


def image_batches(images: Iterable[Any], sizes: BatchSizes) -> Iterator[RequestBatch]:
    """Make requests to /v1/embed for pictures."""
    items = map(_catch_os_errors(lambda image: json.dumps(_base64(image)).encode("ascii")), images)
    return pack(items, sizes, b'{"encoding": "base64", "images": [', b"]}")


def text_batches(texts: Iterable[str], sizes: BatchSizes) -> Iterator[RequestBatch]:
    """Make requests to /v1/embed for texts."""
    return pack(
        (json.dumps(text).encode("ascii") for text in texts), sizes, b'{"encoding": "base64", "texts": [', b"]}"
    )


def pack(items: Iterable[bytes | Score], sizes: BatchSizes, start: bytes, end: bytes) -> Iterator[RequestBatch]:
    """Cut items into request bodies lazily, so that only a few requests are in memory.

    Items that have failed already, or are too large for any request, are listed in `failed` and not sent.
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
            yield RequestBatch(start + b",".join(bodies) + end, tuple(places), failed)
            bodies, places, failed, size = [], [], {}, frame
        bodies.append(item)
        places.append(place)
        size += len(item) + 1
    if bodies or failed:
        yield RequestBatch(start + b",".join(bodies) + end, tuple(places), failed)


def _base64(image: Any) -> str:
    return base64.b64encode(image_bytes(image)).decode("ascii")


def _catch_os_errors(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes | Score]:
    def encode_or_fail(value: Any) -> bytes | Score:
        try:
            return encode(value)
        except OSError as error:
            return Score("no_image", f"{error.filename}: {error.strerror}" if error.filename else str(error))

    return encode_or_fail


class ScoreGatherer:
    """Collect the answers of /v1/score in the order of the pairs; raise ServiceError if the scorer changes between two."""

    def __init__(self, pairs: Iterable[Any], progress: Progress | None) -> None:
        self._total = len(pairs) if isinstance(pairs, Sized) else None
        self._progress = progress
        self._scores: dict[int, Score] = {}
        self._beta: Any = None
        self._scorer: str | None = None

    def add(self, batch: RequestBatch, answer: dict[str, Any]) -> None:
        """Add the answer to one request."""
        if batch.places:
            scorer = answer.get("scorer")
            if self._scorer is not None and scorer != self._scorer:
                reason = f"the service's scorer changed from {self._scorer} to {scorer} on the way; score again"
                raise ServiceError("scorer_changed", reason, answer.get("request_id"))
            self._scorer, self._beta = scorer, answer.get("beta")
            results = _results(batch, answer, "results")
            self._scores.update((place, Score.from_dict(r)) for place, r in zip(batch.places, results, strict=True))
        self._scores.update(batch.failed)
        if self._progress is not None:
            self._progress(len(self._scores), self._total)

    def scores(self) -> Scores:
        return Scores(tuple(self._scores[place] for place in sorted(self._scores)), self._beta, self._scorer)


def gather_embeddings(answers: Iterable[tuple[RequestBatch, dict[str, Any]]], part: str) -> tuple[Embedding, ...]:
    """Collect embeddings in order from answers of /v1/embed; `part` is "images" or "texts"."""
    rows_by_place: dict[int, Embedding] = {}
    for batch, answer in answers:
        if batch.places:
            rows = _results(batch, answer, part)
            rows_by_place.update(
                (place, Embedding.from_dict(row)) for place, row in zip(batch.places, rows, strict=True)
            )
        rows_by_place.update((place, Embedding(score.status, score.error)) for place, score in batch.failed.items())
    return tuple(rows_by_place[place] for place in sorted(rows_by_place))


def _results(batch: RequestBatch, answer: dict[str, Any], name: str) -> Sequence[dict[str, Any]]:
    results = [as_object(result, "a result") for result in as_list(answer.get(name), name)]
    if len(results) != len(batch.places):
        reason = f"{len(results)} {name} came for {len(batch.places)} items"
        raise ServiceError("bad_answer", reason, answer.get("request_id"))
    return results
