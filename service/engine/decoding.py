"""Decode image files in worker processes, no faster than the encoders can take the pixels."""

import asyncio
import io
from collections.abc import Sequence

from PIL import Image

from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.shards import Decoded, DecodePool, Preprocessor, RawSample
from noisegate.pipeline.system import WorkerLost

CHUNK = 8  # pictures per task: few enough to spread one request over the workers


class Decoder:
    """Decodes as the batch job does; a picture that kills its worker becomes a `bad_image`.

    The workers have at most `2 * workers + 2` chunks, and none is started while `room` is not set.
    """

    def __init__(self, workers: int, limits: Limits) -> None:
        self._workers, self._options = workers, DecodeOptions(limits=limits)
        self._free = asyncio.Semaphore(2 * max(1, workers) + 2)
        self._pool: DecodePool | None = None
        self.room = asyncio.Event()
        self.room.set()

    async def start(self, preprocess: Preprocessor) -> None:
        """Start the processes and let each decode a dot, so that the first request does not wait for imports."""
        self._pool = await asyncio.to_thread(DecodePool, self._workers, preprocess, self._options)
        await asyncio.gather(*(self.decode([_dot()]) for _ in range(self._workers)))

    async def stop(self) -> None:
        if self._pool is not None:
            await asyncio.to_thread(self._pool.__exit__)
            self._pool = None

    async def decode(self, images: Sequence[bytes]) -> list[Decoded]:
        """One result per picture: `pixels`, or the status and error of the table."""
        assert self._pool is not None, "start() comes first"
        chunk = [RawSample(str(i), i, {"jpg": data}, ["jpg"]) for i, data in enumerate(images)]
        async with self._free:
            await self.room.wait()
            if not self._workers:
                return await asyncio.to_thread(lambda pool: pool.submit(chunk).result(), self._pool)
            future = self._pool.submit(chunk)
            try:
                return await asyncio.wrap_future(future)
            except WorkerLost:
                return await asyncio.to_thread(self._pool.collect, chunk, future)


def _dot() -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "PNG")
    return data.getvalue()
