"""The embedder of one machine: admit items, decode and encode them in batches of all requests, answer in order."""

import asyncio
import contextlib
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import MismatchError
from noisegate.pipeline.estimators import Identity, ModelSpec, invalid_embedding, row_cosines
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards import BadSample, decode_text, default_workers
from noisegate.pipeline.system import count_processors
from noisegate.service.errors import ApiError, TimedOut, Unavailable
from noisegate.service.metrics import Metrics
from noisegate.service.settings import Settings

from .admission import Admission
from .decoding import Decoder
from .encoder_pool import EncodedRow, EncoderPool, EncodeTask, specs_for
from .encoder_process import Kind, ModelReady
from .items import Embedded, Item
from .picture_cost import PictureCost, picture_cost

Row = NDArray[np.float32]
FULL_SHARE = 0.9  # of queue_items: above it /readyz is not ready, so that new clients go elsewhere
AHEAD_BATCHES = 4  # batches of decoded pictures that may wait, per encoder
LARGE = 1 << 20  # bytes of pictures from which reading their headers moves to a thread
KNOWN_TEXTS = 4096  # cached embeddings of texts, by digest: a few MB however long the texts are


@dataclass(frozen=True)
class _Part:
    """One picture or one text: its unit row, or the reason why it has none."""

    row: Row | None
    status: str = "ok"
    error: str | None = None
    sha256: bytes | None = None
    truncated: bool = False  # the text is longer than the model's context


@dataclass
class _Work:
    """The distinct parts of a request: pictures with their costs, and texts with their digests.

    `fresh` texts were not in the cache at admission; `left` counts the parts still to be done.
    """

    client: str
    captions: "list[str | _Part]"
    images: dict[bytes, PictureCost]
    texts: dict[str, bytes]
    fresh: int = 0
    left: int = 0

    @classmethod
    def of(cls, items: Sequence[Item], images: dict[bytes, PictureCost], client: str, limits: Limits) -> "_Work":
        captions = [_caption(item, limits) for item in items]
        texts = {text: hashlib.sha256(text.encode()).digest() for text in captions if isinstance(text, str)}
        return cls(client, captions, images, texts)


class LocalEmbedder:
    """Decode workers and an encoder process per device, behind one bounded queue.

    `queue_items` limits the items that are admitted and not answered yet; more are refused at once. `on_ready` is called
    once, when the first model is loaded; an error that it raises ends the service.
    """

    def __init__(
        self,
        settings: Settings,
        spec: ModelSpec,
        *,
        measure: bool = False,
        metrics: Metrics | None = None,
        on_ready: Callable[[ModelReady], None] = lambda ready: None,
    ) -> None:
        self._settings, self._on_ready = settings, on_ready
        self._limits: Limits = settings.limits
        workers = default_workers() if settings.decode_workers is None else settings.decode_workers
        self._decoder = Decoder(
            workers,
            self._limits,
            settings.decode_bytes,
            settings.hang_seconds,
            settings.max_request_pixels,
            self._has_room,
        )
        self.metrics = metrics or Metrics()
        specs = specs_for(spec, settings.device)
        self._encoders = EncoderPool(
            specs,
            measure=measure,
            threads=settings.encoder_threads or max(1, count_processors() - 1),
            wait=settings.batch_wait_ms / 1000,
            metrics=self.metrics,
            on_ready=self._accept_model,
            on_change=self._decoder.begin_turns,
            hang_seconds=settings.hang_seconds,
        )
        self._devices = len(specs)
        self._ready: ModelReady | None = None
        self._first = asyncio.Lock()
        self._admission = Admission(settings.queue_items, settings.max_wait, settings.request_timeout / 2)
        self._empty = asyncio.Event()
        self._empty.set()
        self._known: OrderedDict[bytes, EncodedRow] = OrderedDict()
        self._draining = False
        self.metrics.gauge("queue_items", "Items admitted and not answered yet.", lambda: self._admission.items)
        self.metrics.gauge("queue_limit", "Items that may be admitted.", lambda: settings.queue_items)
        self.metrics.gauge(
            "waiting_images", "Pictures that wait for a batch.", lambda: self._encoders.waiting("images")
        )
        self.metrics.gauge("waiting_texts", "Texts that wait for a batch.", lambda: self._encoders.waiting("texts"))

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._encoders.start()

    async def stop(self) -> None:
        self._draining = True
        with contextlib.suppress(TimeoutError):  # the rest is answered with worker_lost
            await asyncio.wait_for(self._empty.wait(), self._settings.drain_seconds)
        await self._encoders.stop()
        await self._decoder.stop()

    @property
    def fatal(self) -> str | None:
        """The reason why the service can never work, if known."""
        return self._encoders.fatal

    @property
    def encoder_pids(self) -> list[int]:
        return self._encoders.pids

    @property
    def decoder_pids(self) -> list[int]:
        return self._decoder.pids

    @property
    def identity(self) -> Identity:
        return self._loaded().identity

    @property
    def dimensions(self) -> int:
        return self._loaded().dimensions

    def ready(self) -> list[str]:
        reasons = ["shutting down"] if self._draining else []
        reasons += self._blockers()
        if (items := self._admission.items) >= FULL_SHARE * self._settings.queue_items:
            reasons.append(f"the queue holds {items} of {self._settings.queue_items} items")
        return reasons

    def _blockers(self) -> list[str]:
        return self._encoders.reasons() or self._decoder.reasons()

    def _loaded(self) -> ModelReady:
        if self._ready is None:
            raise Unavailable("not_ready", "; ".join(self._blockers()), 2)
        return self._ready

    async def _accept_model(self, ready: ModelReady) -> None:
        """Start the decoders with the preprocessing of the first encoder; check that the others have the same model."""
        async with self._first:
            if self._ready is None:
                self._on_ready(ready)
                await self._decoder.start(ready.preprocess)
                self._ready = ready
            elif differences := self._ready.identity.differences(ready.identity):
                problem = f"is not the model this service began with: {'; '.join(differences)}"
                raise MismatchError.of("model", ready.identity.model, problem)

    def _has_room(self, client: str) -> bool:
        """Return whether a picture of the client may be decoded: few wait for the encoders, or none of this client."""
        few = AHEAD_BATCHES * self._devices * (self._ready.batch_size if self._ready else 1)
        is_free = self._encoders.waiting("images") < few or not self._encoders.has_picture(client)
        return is_free and self._encoders.waiting_bytes < self._settings.ahead_bytes

    # --- requests ---------------------------------------------------------------------------------------------------

    async def embed(self, items: Sequence[Item], client: str = "") -> list[Embedded]:
        work = _Work.of(items, await self._find_costs(items), client, self._limits)
        self._check_ready()
        work.fresh = sum(digest not in self._known for digest in work.texts.values())
        work.left = len(work.images) + work.fresh
        self._admission.admit(client, len(items), work.left)
        self._empty.clear()
        try:
            async with asyncio.timeout(self._settings.request_timeout):
                return await self._embed(items, work)
        except TimeoutError as error:
            raise TimedOut(f"not done in {self._settings.request_timeout:g} s; send fewer items at once") from error
        finally:
            self._admission.leave(client, len(items), work.left)
            if not self._admission.items:
                self._empty.set()

    async def embed_texts(self, texts: Sequence[str]) -> Row:
        width = self.dimensions
        rows: list[Row] = []
        for start in range(0, len(texts), 256):
            rows += [encoded.row for encoded in await self._encode("texts", texts[start : start + 256], "")]
        return np.stack(rows) if rows else np.zeros((0, width), np.float32)

    async def _find_costs(self, items: Sequence[Item]) -> dict[bytes, PictureCost]:
        """Return the pictures and their costs; raise ApiError 413 if they would keep the decoders busy for too long."""
        images = list({item.image: None for item in items if item.image is not None})
        most = self._settings.max_request_pixels

        def find_all() -> dict[bytes, PictureCost]:
            return {image: picture_cost(image, self._limits.max_pixels) for image in images}

        large = sum(map(len, images)) > LARGE
        costs = await asyncio.to_thread(find_all) if large else find_all()
        # a single picture over the limit is too_large
        pixels = sum(cost.pixels for cost in costs.values() if cost.pixels <= most)
        if pixels > most:
            problem = f"pictures of {pixels:,} pixels in one request; max_request_pixels={most}: send fewer at once"
            raise ApiError(413, "too_many_pixels", problem)
        return costs

    def _check_ready(self) -> None:
        if self._draining:
            raise Unavailable("draining", "the service is shutting down", 5)
        if reasons := self._blockers():
            raise Unavailable("not_ready", "; ".join(reasons), 2)

    async def _embed(self, items: Sequence[Item], work: "_Work") -> list[Embedded]:
        """Embed items; equal pictures and equal captions are decoded and encoded once."""
        *parts, embedded_texts = await _run_all(
            *(self._embed_picture(image, work) for image in work.images), self._embed_captions(work)
        )
        pictures = dict(zip(work.images, parts, strict=True))
        return _join(
            (_picture_of(item, pictures), embedded_texts[text] if isinstance(text, str) else text)
            for item, text in zip(items, work.captions, strict=True)
        )

    async def _embed_picture(self, image: bytes, work: "_Work") -> _Part:
        sample = await self._decoder.decode(image, work.client, work.images[image])
        if sample.pixels is None:
            self._complete(work, 1)
            return _Part(None, sample.status, sample.error, sample.image_sha256)
        (encoded,) = await self._encode("images", [sample.pixels], work.client)
        self._complete(work, 1)
        return _part("image", encoded, sample.image_sha256)

    async def _embed_captions(self, work: "_Work") -> dict[str, _Part]:
        """Embed texts; recent texts come from the cache."""
        encoded = {text: self._known[digest] for text, digest in work.texts.items() if digest in self._known}
        fresh = [text for text in work.texts if text not in encoded]
        encoded |= zip(fresh, await self._encode("texts", fresh, work.client), strict=True)
        self._complete(work, work.fresh)
        for text, digest in work.texts.items():
            if encoded[text].error is None:  # do not cache a failure: the model may succeed the next time
                self._known[digest] = encoded[text]
                self._known.move_to_end(digest)
        while len(self._known) > KNOWN_TEXTS:
            self._known.popitem(last=False)
        return {text: _part("text", encoded[text], digest) for text, digest in work.texts.items()}

    def _complete(self, work: "_Work", parts: int) -> None:
        work.left -= parts
        self._admission.complete(work.client, parts)

    async def _encode(self, kind: Kind, payloads: Sequence[Any], client: str) -> list[EncodedRow]:
        """Encode each payload to a row; if the request is cancelled, its tasks leave the queue."""
        loop = asyncio.get_running_loop()
        tasks = [
            EncodeTask(kind, payload, loop.create_future(), client, size=getattr(payload, "nbytes", 0))
            for payload in payloads
        ]
        for task in tasks:
            self._encoders.put(task)
        try:
            return await asyncio.gather(*(task.done for task in tasks))
        finally:
            for task in tasks:
                self._encoders.discard(task)


async def _run_all(*jobs: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run all jobs; if one fails or the caller is cancelled, the others are stopped first."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _caption(item: Item, limits: Limits) -> str | _Part:
    """Return the caption, with the rules for a shard's json, or the reason why it cannot be used."""
    try:
        if item.text_problem is not None:
            raise BadSample(*item.text_problem)
        if item.text is None:
            raise BadSample("no_text", "no text")
        return decode_text({"json": json.dumps({"caption": item.text}).encode()}, None, limits)
    except BadSample as error:
        return _Part(None, error.status, str(error))


def _part(name: str, encoded: EncodedRow, sha256: bytes | None) -> _Part:
    if encoded.row.any():
        return _Part(encoded.row, sha256=sha256, truncated=encoded.truncated)
    return _Part(None, "invalid", encoded.error or invalid_embedding(name), sha256, encoded.truncated)


def _picture_of(item: Item, pictures: dict[bytes, _Part]) -> _Part:
    if item.problem is not None:
        return _Part(None, *item.problem)
    return pictures[item.image] if item.image is not None else _Part(None, "no_image", "no image")


def _join(pairs: Iterable[tuple[_Part, _Part]]) -> list[Embedded]:
    """Join each picture with its text, by the rules of the table.

    An error of reading is reported before an error of embedding, the picture's before the text's.
    """
    results = []
    for image, text in pairs:
        failed = sorted((part for part in (image, text) if part.status != "ok"), key=lambda p: p.status == "invalid")
        results.append(
            Embedded(
                status=failed[0].status if failed else "ok",
                error=failed[0].error if failed else None,
                image=image.row,
                text=text.row,
                image_sha256=image.sha256,
                text_sha256=text.sha256,
                image_status=image.status,
                image_error=image.error,
                text_status=text.status,
                text_error=text.error,
                text_truncated=text.truncated,
            )
        )
    rows = [(result, result.image, result.text) for result in results]
    whole = [(result, image, text) for result, image, text in rows if image is not None and text is not None]
    if whole:
        cosines = row_cosines(np.stack([image for _, image, _ in whole]), np.stack([text for _, _, text in whole]))
        for (result, _, _), cosine in zip(whole, cosines, strict=True):
            result.similarity = float(cosine)
    return results
