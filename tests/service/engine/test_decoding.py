"""Decoding for many clients: a crash or a hang costs one picture, turns are fair, and memory has a limit."""

import asyncio
import os
import signal

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from noisegate.pipeline.settings import Limits
from noisegate.service.engine.decoding import Decoder
from tests.fakes import picture
from tests.pipeline.shards.crashing import HANGS, KILLED, preprocess

GOOD = picture("blue")


def test_a_picture_that_kills_or_hangs_its_worker_is_a_bad_image_and_the_others_are_fine() -> None:
    async def run() -> list[str | None]:
        decoder = Decoder(2, Limits(), seconds=1.0)
        await decoder.start(preprocess)
        try:
            pictures = [GOOD, picture((KILLED, 0, 0)), GOOD, picture((HANGS, 0, 0)), GOOD]
            found = await asyncio.gather(*(decoder.decode(data, str(i)) for i, data in enumerate(pictures)))
            for pid in decoder.pids:  # as a debugger, or a disk that does not answer
                os.kill(pid, signal.SIGSTOP)
            found += await asyncio.gather(*(decoder.decode(GOOD) for _ in range(4)))
            asyncio.get_running_loop().create_task(decoder.decode(picture((HANGS, 0, 0))))
            assert {d.status for d in found if d.pixels is None} == {"bad_image"}
            return [None if d.pixels is not None else d.error for d in found]
        finally:
            await decoder.stop()  # returns although a worker hangs

    crashed = "the decoder was killed again and again on this image, perhaps for want of memory"
    hung = "the decoder did not finish this image in time"
    assert asyncio.run(run()) == [None, crashed, None, hung, None, *[None] * 4]


def test_nothing_is_decoded_without_room_and_clients_take_turns() -> None:
    async def run() -> list[str]:
        full: set[str] = set()  # clients that the encoders have no room for
        decoder = Decoder(0, Limits(), has_room=lambda client: client not in full)
        await decoder.start(np.asarray)
        full |= {"bulk", "one", "two"}
        order: list[str] = []

        async def decode(client: str) -> None:
            found = await decoder.decode(picture("red"), client)
            assert found.pixels is not None
            assert found.pixels.shape == (16, 20, 3)
            order.append(client)

        work = [asyncio.create_task(decode(client)) for client in ["bulk"] * 12 + ["one", "two"]]
        for _ in range(20):
            await asyncio.sleep(0)
        assert order == []
        full.clear()
        decoder.begin_turns()
        await asyncio.gather(*work)
        await decoder.stop()
        return order

    assert asyncio.run(run())[:4] == ["bulk", "one", "two", "bulk"]


def test_files_of_many_bytes_and_few_pixels_have_fewer_turns() -> None:
    async def run() -> list[str]:
        full: set[str] = set()
        decoder = Decoder(0, Limits(), has_room=lambda client: client not in full)
        await decoder.start(np.asarray)
        full |= {"plain", "padded"}
        order: list[str] = []

        async def decode(client: str) -> None:
            await decoder.decode(GOOD + bytes(100_000 if client == "padded" else 0), client)
            order.append(client)

        work = [asyncio.create_task(decode(client)) for client in ["padded"] * 4 + ["plain"] * 12]
        for _ in range(20):
            await asyncio.sleep(0)
        full.clear()
        decoder.begin_turns()
        await asyncio.gather(*work)
        await decoder.stop()
        return order

    assert asyncio.run(run()) == ["padded", *["plain"] * 12, *["padded"] * 3]


def test_large_pictures_leave_a_worker_for_others_and_share_the_memory() -> None:
    large = picture(0, (5000, 2000), "GIF", mode="L")  # 10 MP, which may take 200 MB

    async def run(memory: int) -> tuple[int, int, list[str]]:
        decoder = Decoder(4, Limits(), memory=memory)
        begun: list[int] = []
        loop = asyncio.get_running_loop()
        decoder._pool = object()  # type: ignore[assignment]  # nothing is decoded
        work = [loop.create_task(decoder.decode(large, "a")) for _ in range(8)]
        await asyncio.sleep(0)
        begun.append(len(decoder._running))
        work += [loop.create_task(decoder.decode(GOOD, "b"))]
        await asyncio.sleep(0)
        begun.append(len(decoder._running) - begun[0])
        statuses = [task.result().status for task in work if task.done() and not task.exception()]
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        return begun[0], begun[1], statuses

    assert asyncio.run(run(2_000_000_000)) == (3, 1, [])
    assert asyncio.run(run(410_000_000)) == (2, 1, [])
    assert asyncio.run(run(399_000_000)) == (0, 1, ["too_large"] * 8)


def test_a_picture_that_takes_more_memory_than_its_header_says_fails_alone() -> None:
    async def run() -> list[tuple[str, str | None]]:
        decoder = Decoder(1, Limits(), memory=100_000_000)
        await decoder.start(_double_up)
        try:
            found = await asyncio.gather(*(decoder.decode(picture("red", size)) for size in ((8, 8), (2000, 900))))
            return [(d.status, d.error) for d in found]
        finally:
            await decoder.stop()

    (good, _), (bad, error) = asyncio.run(run())
    assert (good, bad) == ("no_text", "bad_image")
    assert "MemoryError" in (error or "")


def _double_up(image: Image.Image) -> NDArray[np.uint8]:
    """Take a hundred times the picture's size."""
    pixels = np.asarray(image)
    return np.repeat(pixels, 100, axis=0)[:8, :8] + 1


@pytest.mark.parametrize("scans", [1, 12])
def test_scans_count_for_a_progressive_jpeg(scans: int) -> None:
    async def run() -> str:
        decoder = Decoder(0, Limits(), pixels=500_000)
        await decoder.start(np.asarray)
        data = picture("red", (400, 300), "JPEG", progressive=scans > 1)
        status = (await decoder.decode(data)).status
        await decoder.stop()
        return status

    assert asyncio.run(run()) == ("no_text" if scans == 1 else "too_large")
