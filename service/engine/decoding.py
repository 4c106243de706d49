"""Decode pictures in worker processes: fair to all clients, within a memory limit, and no faster than the encoders."""

import asyncio
import hashlib
import io
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from PIL import Image

from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.shards import Decoded, DecodePool, Preprocessor, RawSample, lost_sample
from noisegate.pipeline.system import WorkerLost, WorkerNotStarted, format_size
from noisegate.service.errors import Unavailable

from .fair_queue import FairQueue
from .picture_cost import PictureCost, picture_cost

TRIES = 2  # the first worker may have been killed for another reason than its picture
LARGE_PIXELS = 8_000_000  # larger pictures never take all workers at once
PIXELS_PER_BYTE = 4  # of the file: long headers take as much time as pixels, up to 0.8 s for 2 MB
SLOWEST = 5e6  # pixels per second; a sixth of the rate of the slowest format measured


@dataclass(eq=False)
class _Turn:
    """A picture that waits for a worker, or is being decoded."""

    cost: PictureCost
    client: str
    begin: "asyncio.Future[None]"

    @property
    def is_large(self) -> bool:
        return self.cost.pixels > LARGE_PIXELS


class Decoder:
    """Decode as the batch job does, one picture per task; the client with the fewest pixels so far comes first.

    A picture whose worker dies or does not finish in `seconds` (more for a large one) is tried once more, and then becomes a
    `bad_image`. Pictures decoded at the same time take at most `memory` bytes; a picture that needs over half of it, or has
    more than `pixels` in all its scans, is `too_large`. A picture waits while the encoders have no room for its client; call
    `begin_turns` when they have.
    """

    def __init__(
        self,
        workers: int,
        limits: Limits,
        memory: int = 2 << 30,
        seconds: float = 3.0,
        pixels: int = 1_000_000_000,
        has_room: Callable[[str], bool] = lambda client: True,
    ) -> None:
        self._workers, self._options, self._has_room = workers, DecodeOptions(limits=limits), has_room
        self._memory, self._seconds, self._pixels = memory, seconds, pixels
        self._waiting: FairQueue[_Turn] = FairQueue()
        self._running: set[_Turn] = set()
        self._thread = ThreadPoolExecutor(1)  # decodes if there are no workers
        self._pool: DecodePool | None = None

    async def start(self, preprocess: Preprocessor) -> None:
        """Start the processes and let each decode a dot, so that the first request does not wait for imports."""
        self._pool = await asyncio.to_thread(DecodePool, self._workers, preprocess, self._options, self._memory)
        await asyncio.gather(*(self.decode(_dot()) for _ in range(self._workers)))

    async def stop(self) -> None:
        """End all processes at once."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._pool is not None:
            await asyncio.to_thread(self._pool.__exit__)
            self._pool = None

    @property
    def pids(self) -> list[int]:
        return [] if self._pool is None else self._pool.pids

    def reasons(self) -> list[str]:
        """Reasons why nothing can be decoded; empty if at least one worker is ready."""
        if self._pool is None:
            return ["the decoders are starting"]
        return [] if self.pids or not self._workers else ["the decoders are restarting"]

    async def decode(self, image: bytes, client: str = "", cost: PictureCost | None = None) -> Decoded:
        """Return `pixels`, or the table's status and error. Pass the `cost` of a large picture, which takes time to find."""
        cost = cost or picture_cost(image, self._options.limits.max_pixels)
        sample = RawSample("", 0, {"jpg": image}, ["jpg"])
        if problem := self._find_problem(cost):
            return Decoded("", 0, "too_large", problem, image_sha256=hashlib.sha256(image).digest())
        for left in reversed(range(TRIES)):
            try:
                return (await self._decode(sample, cost, client))[0]
            except WorkerLost as lost:
                if not left:
                    return lost_sample(sample, lost)
            except WorkerNotStarted as error:
                raise Unavailable("not_ready", "the decoders cannot be started", 5) from error
        raise AssertionError("TRIES is at least 1")

    def _find_problem(self, cost: PictureCost) -> str | None:
        if cost.memory > self._memory // 2:
            needs, most = format_size(cost.memory), format_size(self._memory // 2)
            return f"image that needs {needs} to decode; the limit is {most}"
        if cost.pixels > self._pixels:
            return f"image of {cost.pixels:,} pixels in all its scans; the limit is {self._pixels:,}"
        return None

    async def _decode(self, sample: RawSample, cost: PictureCost, client: str) -> list[Decoded]:
        pool = self._pool
        assert pool is not None, "start() comes first"
        loop = asyncio.get_running_loop()
        turn = _Turn(cost, client, loop.create_future())
        size = len(sample.image or b"")
        self._waiting.put(turn, client, 1 + max(cost.pixels, PIXELS_PER_BYTE * size))
        self.begin_turns()
        try:
            await turn.begin
        except asyncio.CancelledError:
            self._waiting.discard(turn)
            self._end_turn(turn)
            raise
        seconds = self._seconds + cost.pixels / SLOWEST
        future: Future[list[Decoded]] = (
            pool.submit([sample], seconds)
            if self._workers
            else self._thread.submit(lambda: pool.submit([sample]).result())
        )
        # not when the request ends: the worker may go on after that
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._end_turn, turn))
        return await asyncio.wrap_future(future)

    def begin_turns(self) -> None:
        """Give free workers the next pictures, and one more, so that no worker waits for this loop."""
        while len(self._running) < self._workers + 1:
            turn = self._waiting.take(self._fits)
            if turn is None:
                return
            self._running.add(turn)
            turn.begin.set_result(None)

    def _fits(self, turn: _Turn) -> bool:
        if not self._has_room(turn.client):
            return False
        if not self._running:
            return True
        if turn.is_large and sum(other.is_large for other in self._running) >= max(1, self._workers - 1):
            return False
        return turn.cost.memory + sum(other.cost.memory for other in self._running) <= self._memory

    def _end_turn(self, turn: _Turn) -> None:
        self._running.discard(turn)
        self.begin_turns()


def _dot() -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "PNG")
    return data.getvalue()
