"""An engine without processes, for tests of what stands in front of it."""

import asyncio
import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.estimators.base import Identity, normalise
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards.decode import BadSample, decode_image, decode_text
from noisegate.service.engine.items import Embedded, Item
from tests.fakes import ColourModel, estimator


class FakeEngine:
    """Embeds in this process with the fake model; `refuse` is raised instead, `reasons` make it not ready.

    `gate`, where it is set, holds every request until it opens.
    """

    dimensions = 24

    def __init__(self, kind: type[ColourModel] = ColourModel) -> None:
        self._model = estimator(kind=kind)
        self.limits = Limits()
        self.refuse: Exception | None = None
        self.reasons: list[str] = []
        self.gate: asyncio.Event | None = None
        self.started = self.stopped = False
        self.requests: list[list[Item]] = []

    @property
    def identity(self) -> Identity:
        return self._model.identity

    async def start(self) -> None:
        self.started = True

    async def stop(self) -> None:
        self.stopped = True

    def ready(self) -> list[str]:
        return self.reasons

    async def embed(self, items: Sequence[Item], client: str = "") -> list[Embedded]:
        self.requests.append(list(items))
        if self.gate is not None:
            await self.gate.wait()
        if self.refuse is not None:
            raise self.refuse
        return [self._one(item) for item in items]

    async def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return normalise(self._model.encode_texts(list(texts)))

    def _one(self, item: Item) -> Embedded:
        found = Embedded()
        try:
            if item.problem is not None:
                raise BadSample(*item.problem)
            if item.image is None:
                raise BadSample("no_image", "no image")
            found.image_sha256 = hashlib.sha256(item.image).digest()
            found.image = normalise(self._model.encode_images([decode_image(item.image, self.limits)]))[0]
        except BadSample as error:
            found.image_status = found.status = error.status
            found.image_error = found.error = str(error)
        try:
            text = decode_text({} if item.text is None else {"txt": item.text.encode()}, None, self.limits)
            found.text_sha256 = hashlib.sha256(text.encode()).digest()
            found.text = normalise(self._model.encode_texts([text]))[0]
        except BadSample as error:
            found.text_status, found.text_error = error.status, str(error)
            if found.status == "ok":
                found.status, found.error = error.status, str(error)
        if found.status == "ok":
            assert found.image is not None
            assert found.text is not None
            found.similarity = float(found.image @ found.text)
        return found
