"""The engine with a real encoder process: bounded, fair to those who leave, and alive after a death."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from noisegate.pipeline.estimators import ModelSpec
from noisegate.service.engine.embedder import LocalEmbedder
from noisegate.service.engine.encoder_pool import specs_for
from noisegate.service.engine.items import Item
from noisegate.service.errors import ApiError, Overloaded, TimedOut, Unavailable
from tests.errors import refused
from tests.fakes import picture
from tests.service.models import GATE, LOUD, POISON
from tests.service.serving import COLOURS, settings

GATED, FRAGILE = "python:tests.service.models:Gated", "python:tests.service.models:Fragile"


def pair(i: int, colour: str = "red") -> Item:
    return Item(picture(colour, (20 + i, 16)), f"number {i} is {colour}")


def only_picture(i: int) -> Item:
    return Item(picture("red", (20 + i, 16)))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def with_engine(work: Callable[[LocalEmbedder], Awaitable[None]], **given: Any) -> None:
    """Run `work` with an engine that is ready; pictures are decoded in a thread, which starts quickly."""

    async def run() -> None:
        chosen = settings(**{"decode_workers": 0, **given})
        engine = LocalEmbedder(chosen, ModelSpec(chosen.model or "embedded", batch_size=chosen.batch_size))
        await engine.start()
        try:
            await until(lambda: not engine.ready())
            await work(engine)
        finally:
            await engine.stop()

    asyncio.run(run())


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A closed gate; `unlink` opens it."""
    path = tmp_path / "gate"
    path.touch()
    monkeypatch.setenv(GATE, str(path))
    return path


def observed(engine: LocalEmbedder, name: str, kind: str) -> float:
    return engine.metrics.registry.get_sample_value(f"noisegate_{name}", {"kind": kind}) or 0.0


def test_equal_pictures_and_captions_are_encoded_once_and_order_is_kept() -> None:
    async def work(engine: LocalEmbedder) -> None:
        red, blue = picture("red"), picture("blue")
        items = [Item(red, "a red thing"), Item(blue, "a red thing"), Item(red, "a blue thing"), Item(blue, None)]
        found = await engine.embed(items)
        assert [e.status for e in found] == ["ok", "ok", "ok", "no_text"]
        cosines = [e.similarity or 0.0 for e in found[:3]]
        assert cosines[0] > 0.5 > max(cosines[1:])
        assert observed(engine, "batch_items_sum", "images") == 2
        assert observed(engine, "batch_items_sum", "texts") == 2
        await engine.embed([Item(None, "a red thing")])
        assert observed(engine, "batch_items_sum", "texts") == 2, "remembered from the request before"
        rows = await engine.embed_texts(["a red thing", "a blue thing"])
        assert rows.shape == (2, engine.dimensions)
        assert found[0].text is not None
        assert rows[0].tolist() == found[0].text.tolist()

    with_engine(work)


def test_beyond_the_queue_is_refused_at_once_and_a_cancelled_request_gives_its_place_back(gate: Path) -> None:
    async def work(engine: LocalEmbedder) -> None:
        first = asyncio.create_task(engine.embed([only_picture(0)]))
        await until(lambda: observed(engine, "batch_items_count", "images") == 1)
        second = asyncio.create_task(engine.embed([only_picture(1)]))  # the batch that is ready
        await until(lambda: observed(engine, "batch_items_count", "images") == 2)
        third = asyncio.create_task(engine.embed([only_picture(i) for i in (2, 3)]))
        await until(lambda: engine._encoders.waiting("images") == 2)
        with pytest.raises(Overloaded) as refused:
            await engine.embed([only_picture(4)])
        assert refused.value.retry_after is not None
        assert engine.ready() == ["the queue holds 4 of 4 items"]
        third.cancel()
        await asyncio.gather(third, return_exceptions=True)
        assert engine._encoders.waiting("images") == 0
        assert engine._encoders.waiting_bytes == 0
        fourth = asyncio.create_task(engine.embed([only_picture(i) for i in (4, 5)]))
        await until(lambda: engine._encoders.waiting("images") == 2)
        gate.unlink()
        found = [e.image_status for answers in await asyncio.gather(first, second, fourth) for e in answers]
        assert found == ["ok"] * 4
        assert engine.ready() == []

    with_engine(work, model=GATED, queue_items=4, max_items=4, batch_wait_ms=0)


def test_too_late_is_an_error_and_stopping_waits_for_what_was_admitted(gate: Path) -> None:
    async def work(engine: LocalEmbedder) -> None:
        with pytest.raises(TimedOut):
            await engine.embed([only_picture(0)])
        gate.unlink()
        await until(lambda: observed(engine, "encode_seconds_count", "images") == 1)
        gate.touch()
        waiting = asyncio.create_task(engine.embed([only_picture(1)]))
        await until(lambda: observed(engine, "batch_items_count", "images") == 2)
        stopping = asyncio.create_task(engine.stop())
        await until(lambda: engine.ready() != [])
        with pytest.raises(Unavailable) as refused:
            await engine.embed([only_picture(2)])
        assert refused.value.code == "draining"
        gate.unlink()
        assert [e.image_status for e in await waiting] == ["ok"]
        await stopping
        assert engine.encoder_pids == [] or all(not alive(pid) for pid in engine.encoder_pids)

    with_engine(work, model=GATED, request_timeout=0.3)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_encoder_fails_what_it_had_and_comes_back(gate: Path) -> None:
    async def work(engine: LocalEmbedder) -> None:
        identity = engine.identity
        waiting = [asyncio.create_task(engine.embed([pair(i), pair(i + 10)])) for i in range(4)]
        await until(lambda: observed(engine, "batch_items_count", "images") >= 1)
        os.kill(engine.encoder_pids[0], signal.SIGKILL)
        lost = await asyncio.gather(*waiting, return_exceptions=True)
        assert [getattr(e, "code", e) for e in lost] == ["worker_lost"] * 4
        assert engine.ready(), "not ready before the new process is warm"
        with pytest.raises(Unavailable) as refused:
            await engine.embed([pair(5)])
        assert refused.value.code == "not_ready"
        gate.unlink()
        await until(lambda: not engine.ready())
        assert [e.status for e in await engine.embed([pair(5)])] == ["ok"]
        assert engine.identity == identity

    with_engine(work, model=GATED)


def test_a_hung_encoder_is_found_by_the_time_its_batches_take(gate: Path) -> None:
    async def work(engine: LocalEmbedder) -> None:
        gate.unlink()
        assert [e.image_status for e in await engine.embed([only_picture(0)])] == ["ok"]
        gate.touch()
        first = engine.encoder_pids
        with pytest.raises(Unavailable) as lost:
            await engine.embed([only_picture(1)])
        assert lost.value.code == "worker_lost"
        await until(lambda: not first or engine.encoder_pids != first)
        gate.unlink()
        await until(lambda: not engine.ready())
        os.kill(engine.encoder_pids[0], signal.SIGSTOP)
        with pytest.raises(Unavailable):
            await engine.embed([only_picture(2)])
        assert "did not answer" in (await _reason(engine))
        await until(lambda: not engine.ready())
        assert [e.image_status for e in await engine.embed([only_picture(2)])] == ["ok"]

    with_engine(work, model=GATED, hang_seconds=0.3)


async def _reason(engine: LocalEmbedder) -> str:
    await until(lambda: any("restarting" in reason for reason in engine.ready()))
    return engine.ready()[0]


def test_pictures_that_would_keep_the_decoders_busy_are_refused_in_one_request_and_fine_in_several() -> None:
    async def work(engine: LocalEmbedder) -> None:
        bombs = [picture("red", (500 + i, 400), "PNG") for i in range(6)]
        with pytest.raises(ApiError) as refused:
            await engine.embed([Item(bomb) for bomb in bombs])
        assert (refused.value.status, refused.value.code) == (413, "too_many_pixels")
        assert engine._admission.items == 0
        for some in (bombs[:4], bombs[:4] * 2):  # equal pictures are decoded once
            assert {e.image_status for e in await engine.embed([Item(bomb) for bomb in some])} == {"ok"}
        many_scans = Item(picture("red", (501, 400), "JPEG", progressive=True))
        found = await engine.embed([many_scans, *map(Item, bombs[:4])])
        assert [e.image_status for e in found] == ["too_large", *["ok"] * 4]

    with_engine(work, max_request_pixels=1_000_000)


def test_one_text_the_model_cannot_stand_and_one_that_kills_it() -> None:
    async def work(engine: LocalEmbedder) -> None:
        red = picture("red")
        good, bad = await engine.embed([Item(red, "red"), Item(red, POISON)])
        assert (good.status, bad.status) == ("ok", "invalid")
        assert bad.error == "the model failed: ValueError: no such word"
        with pytest.raises(ApiError) as lost:
            await engine.embed([Item(red, LOUD)])
        assert lost.value.code == "worker_lost"
        await until(lambda: not engine.ready())
        assert [e.status for e in await engine.embed([Item(red, "blue")])] == ["ok"]

    with_engine(work, model=FRAGILE)


def test_a_model_that_is_not_there_is_fatal_and_says_why() -> None:
    async def run() -> str:
        engine = LocalEmbedder(settings(decode_workers=0), ModelSpec("python:tests.service.models:Absent"))
        await engine.start()
        try:
            await until(lambda: engine.fatal is not None)
            assert engine.ready() == [engine.fatal]
            with pytest.raises(Unavailable):
                _ = engine.identity
            return engine.fatal or ""
        finally:
            await engine.stop()

    assert "has no 'Absent'" in asyncio.run(run())


def test_decode_workers_give_the_same_as_a_thread() -> None:
    items = [pair(i) for i in range(20)] + [Item(b"broken", "red")]
    found: list[list[tuple[str, float | None]]] = []

    async def work(engine: LocalEmbedder) -> None:
        found.append([(e.status, e.similarity) for e in await engine.embed(items)])

    for workers in (0, 2):
        with_engine(work, decode_workers=workers)
    assert found[0] == found[1]
    assert found[0][-1] == ("bad_image", None)


def test_one_process_per_device() -> None:
    assert [spec.device for spec in specs_for(ModelSpec(COLOURS), "auto")] == ["auto"]
    for wrong in ("", ",", "cuda:0,cuda:0"):
        with refused("device", wrong):
            specs_for(ModelSpec(COLOURS), wrong)
