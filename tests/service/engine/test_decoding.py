"""Decoding for many requests: a crash costs one picture, and the encoder's queue holds decoding back."""

import asyncio

import numpy as np

from noisegate.pipeline.settings import Limits
from noisegate.service.engine.decoding import Decoder
from tests.fakes import picture
from tests.pipeline.shards.crashing import KILLED, preprocess


def test_a_picture_that_kills_its_worker_is_a_bad_image_and_the_others_are_fine() -> None:
    async def run() -> list[tuple[str, bool, str | None]]:
        decoder = Decoder(2, Limits())
        await decoder.start(preprocess)
        try:
            bad, good = picture((KILLED, 0, 0)), picture("blue")
            first, second = await asyncio.gather(decoder.decode([good, bad, good]), decoder.decode([good]))
            return [(d.status, d.pixels is not None, d.error) for d in (*first, *second)]
        finally:
            await decoder.stop()

    found = asyncio.run(run())
    assert [pixels for _, pixels, _ in found] == [True, False, True, True]
    assert found[1][0] == "bad_image"
    assert "crashed" in (found[1][2] or "")


def test_nothing_is_decoded_while_there_is_no_room() -> None:
    async def run() -> None:
        decoder = Decoder(0, Limits())
        await decoder.start(np.asarray)
        decoder.room.clear()
        waiting = asyncio.create_task(decoder.decode([picture("red")]))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        decoder.room.set()
        (found,) = await waiting
        assert found.pixels is not None
        assert found.pixels.shape == (16, 20, 3)
        await decoder.stop()

    asyncio.run(run())
