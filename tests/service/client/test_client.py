"""Both clients against the contract; each test runs with `Client` and with `AsyncClient`."""

import asyncio
import base64
import io
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from noisegate.service.client import AsyncClient, Client, Embedding, Event, Pair, Retry, Score, ServiceError
from noisegate.service.client.batches import BatchSizes, image_bytes, pair_batches
from noisegate.service.client.job_events import EventReader
from noisegate.service.client.requests import Answers, Flow, retry_after, send_until_answered
from tests.errors import failed, refused
from tests.fakes import picture
from tests.service.contract import BETA, Contract, Fault, refusal

URL = "http://service.example:8765"
Caller = Callable[..., Any]
PICTURE = b"picture"


def numbered(count: int) -> list[tuple[bytes, str]]:
    return [(PICTURE, f"number {i}") for i in range(count)]


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Caller:
    """call(contract, method, *arguments): what the client's method gives; `slept` collects the waits."""

    def run(contract: Contract, method: str, *arguments: Any, how: Any = None, slept: Any = None, **named: Any) -> Any:
        waits = [] if slept is None else slept
        how = {"draw": lambda: 0.0, "transport": httpx.MockTransport(contract), **(how or {})}
        if request.param == "sync":
            with Client(URL, sleep=waits.append, **how) as client:
                return getattr(client, method)(*arguments, **named)

        async def sleep(seconds: float) -> None:
            waits.append(seconds)

        async def asynchronous() -> Any:
            async with AsyncClient(URL, sleep=sleep, **how) as client:
                return await getattr(client, method)(*arguments, **named)

        return asyncio.run(asynchronous())

    return run


# --- batches ---------------------------------------------------------------------------------------------------------


def test_results_come_in_order_from_batches_within_the_servers_limits(call: Caller) -> None:
    contract = Contract(max_items=7)
    done: list[tuple[int, int | None]] = []
    scores = call(contract, "score", numbered(40), progress=lambda n, total: done.append((n, total)))
    assert [score.similarity for score in scores] == [i / 1000 for i in range(40)]
    assert sorted(len(body["pairs"]) for body in contract.bodies()) == [5, 7, 7, 7, 7, 7]
    assert done == [(7, 40), (14, 40), (21, 40), (28, 40), (35, 40), (40, 40)]
    assert (len(scores), scores.beta, scores.scorer) == (40, BETA, "d1")
    assert scores[3].similarity == 0.003
    assert scores[3].ok


def test_limits_are_asked_for_once_and_none_is_sent_for_nothing(call: Caller) -> None:
    contract = Contract()
    assert list(call(contract, "score", [])) == []
    assert [request.url.path for request in contract.requests] == ["/v1/scorer"]


def test_bodies_stay_within_the_servers_bytes(call: Caller) -> None:
    contract = Contract(max_body_bytes=4096)
    pairs = [(PICTURE + b"x" * (200 * (i % 9)), f"n {i}") for i in range(50)]
    scores = call(contract, "score", pairs)
    assert [score.similarity for score in scores] == [i / 1000 for i in range(50)]
    posted = [r for r in contract.requests if r.method == "POST"]
    assert max(len(r.content) for r in posted) <= 4096
    assert len(posted) > 10


def test_what_cannot_be_sent_fails_alone(call: Caller, tmp_path: Path) -> None:
    contract = Contract(max_body_bytes=4096)
    good, absent = tmp_path / "a.png", tmp_path / "absent.png"
    good.write_bytes(picture())
    pairs = [
        (absent, "n 0"),
        (good, "n 1"),
        (PICTURE * 2000, "n 2"),
        (str(good), "n 3"),
        (b"no", "n 4"),
        (tmp_path, "n 5"),
    ]
    scores = call(contract, "score", pairs)
    assert [s.status for s in scores] == ["no_image", "ok", "too_large", "ok", "bad_image", "no_image"]
    assert "absent.png: No such file" in scores[0].error
    assert "a request holds 4,096" in scores[2].error
    assert [s.similarity for s in scores] == [None, 0.001, None, 0.003, None, None]


def test_only_failures_need_no_request(call: Caller, tmp_path: Path) -> None:
    contract = Contract()
    scores = call(contract, "score", [(tmp_path / "x.png", "n 1")] * 3)
    assert [s.status for s in scores] == ["no_image"] * 3
    assert contract.bodies() == []


def test_what_goes_out(call: Caller) -> None:
    contract = Contract()
    pairs = [
        Pair(PICTURE, "n 1", label=3, key="k"),
        Pair("https://pictures.example/a.png", "n 2", label="cat"),
        Pair(None, "ü \ud800 3"),
        (Image.new("RGB", (3, 2), (9, 8, 7)), "n 4"),
    ]
    scores = call(contract, "score", iter(pairs), "animals", "run1", how={"api_key": "secret"})
    assert [s.similarity for s in scores] == [0.001, 0.002, 0.003, 0.004]
    (body,) = contract.bodies()
    assert (body["classes"], body["against"]) == ("animals", "run1")
    sent = body["pairs"]
    assert sent[0] == {"image": base64.b64encode(PICTURE).decode(), "text": "n 1", "label": 3, "key": "k"}
    assert sent[1] == {"image_url": "https://pictures.example/a.png", "text": "n 2", "label": "cat"}
    assert sent[2] == {"text": "ü \ud800 3"}
    assert np.asarray(Image.open(io.BytesIO(base64.b64decode(sent[3]["image"])))).tolist() == [[[9, 8, 7]] * 3] * 2
    assert {r.headers["authorization"] for r in contract.requests} == {"Bearer secret"}
    call(contract, "score", numbered(1))
    assert set(contract.bodies()[1]) == {"pairs"}


def test_an_iterator_has_no_total(call: Caller) -> None:
    done: list[Any] = []
    call(Contract(), "score", iter(numbered(3)), progress=lambda n, total: done.append((n, total)))
    assert done == [(3, None)]


@given(st.lists(st.integers(0, 300), max_size=30), st.integers(1, 7), st.integers(100, 900), st.integers(100, 900))
def test_batches_hold_every_pair_once(sizes: list[int], items: int, aim: int, most: int) -> None:
    pairs = [(b"x" * size, f"n {i}") for i, size in enumerate(sizes)]
    made = list(pair_batches(pairs, BatchSizes(items, min(aim, most), most), {"classes": "c"}))
    places = [place for batch in made for place in (*batch.places, *batch.failed)]
    assert sorted(places) == list(range(len(sizes)))
    assert all(len(batch.body) <= most for batch in made if batch.places)
    assert all(len(batch.places) <= items for batch in made)
    assert all(len(batch.body) <= aim or len(batch.places) == 1 for batch in made if batch.places)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "F"])
def test_every_kind_of_pil_image_becomes_a_png(mode: str) -> None:
    image = Image.new("RGB", (4, 3), (200, 30, 90)).convert(mode)
    back = Image.open(io.BytesIO(image_bytes(image)))
    assert (back.format, back.size) == ("PNG", (4, 3))
    if mode in ("RGB", "RGBA", "L", "CMYK"):
        assert np.array_equal(np.asarray(back.convert("RGB")), np.asarray(image.convert("RGB")))


def test_other_images_are_refused(call: Caller) -> None:
    with refused("image", "int"):
        call(Contract(), "score", [(7, "n 1")])


def test_no_more_than_in_flight_are_under_way() -> None:
    contract = Contract(max_items=1)
    under_way = most = 0

    async def run() -> list[float | None]:
        full = asyncio.Event()

        async def handler(request: httpx.Request) -> httpx.Response:
            nonlocal under_way, most
            if request.url.path == "/v1/score":
                under_way += 1
                most = max(most, under_way)
                if under_way == 3:
                    full.set()
                await full.wait()  # so the first ones are under way together, however slow the machine is
                under_way -= 1
            return contract(request)

        async with asyncio.timeout(60), AsyncClient(URL, in_flight=3, transport=httpx.MockTransport(handler)) as client:
            return [score.similarity for score in await client.score(numbered(12))]

    assert asyncio.run(run()) == [i / 1000 for i in range(12)]
    assert most == 3


# --- again -----------------------------------------------------------------------------------------------------------

LOST = [
    httpx.ConnectError("refused"),
    httpx.ConnectTimeout("slow"),
    httpx.ReadError("reset"),
    httpx.RemoteProtocolError("closed"),
]


@pytest.mark.parametrize("fault", [429, 503, *LOST], ids=str)
def test_what_may_pass_is_tried_again_without_doubling_results(call: Caller, fault: Fault) -> None:
    contract, slept = Contract(), []
    contract.faults = [fault, fault, fault]
    scores = call(contract, "score", numbered(5), slept=slept)
    assert [score.similarity for score in scores] == [i / 1000 for i in range(5)]
    assert slept == [0.125, 0.25, 0.5]
    assert len(contract.bodies()) == 4


def test_the_service_says_how_long_to_wait(call: Caller) -> None:
    contract, slept = Contract(), []
    contract.faults = [
        refusal(429, "overloaded", **{"Retry-After": "3"}),
        refusal(503, "draining", **{"Retry-After": "0"}),
    ]
    assert len(call(contract, "score", numbered(2), slept=slept)) == 2
    assert slept == [3.0, 0.25]


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 500, 504])
def test_what_will_not_pass_is_not_tried_again(call: Caller, status: int) -> None:
    contract, slept = Contract(), []
    contract.faults = [status]
    with pytest.raises(ServiceError) as caught:
        call(contract, "score", numbered(2), slept=slept)
    error = caught.value
    assert (error.code, error.status, error.request_id) == (f"code_{status}", status, "r-7")
    assert str(error) == f"code_{status}: code_{status} it is (request r-7)"
    assert slept == []


def test_tries_end(call: Caller) -> None:
    contract, slept = Contract(), []
    contract.faults = [429] * 10
    with failed("code_429", ServiceError):
        call(contract, "score", numbered(1), how={"retries": 2}, slept=slept)
    assert (slept, len(contract.bodies())) == ([0.125, 0.25], 3)


def test_tries_are_counted_from_the_latest_answer_to_the_client() -> None:
    """A service that is busy with the client's other requests refuses this one again and again, and is not dead."""
    post, answers = httpx.Request("POST", "http://h/v1/score"), Answers()

    def start() -> Flow:
        flow = send_until_answered(post, Retry(retries=2), lambda: 0.5, answers)
        assert next(flow) is post
        return flow

    def refuse(flow: Flow) -> None:
        assert isinstance(flow.send(refusal(429, "overloaded")), float)
        assert flow.send(None) is post

    refused_flow = start()
    for _ in range(10):
        refuse(refused_flow)
        refuse(refused_flow)
        with pytest.raises(StopIteration):
            start().send(httpx.Response(200, json={}))
    refuse(refused_flow)
    refuse(refused_flow)
    with failed("overloaded", ServiceError):
        refused_flow.send(refusal(429, "overloaded"))


def test_nobody_there_is_said_with_the_address(call: Caller) -> None:
    contract = Contract()
    contract.faults = [httpx.ConnectError("All connection attempts failed")]
    with pytest.raises(ServiceError, match=r"unreachable: http://service\.example:8765: .*`noisegate serve` running"):
        call(contract, "score", numbered(1), how={"retries": 0})


def test_a_timeout_is_final(call: Caller) -> None:
    contract, slept = Contract(), []
    contract.faults = [httpx.ReadTimeout("")]
    with failed("timeout", ServiceError):
        call(contract, "score", numbered(1), slept=slept)
    assert slept == []


def test_after_an_error_nothing_more_is_sent(call: Caller) -> None:
    contract = Contract(max_items=1)
    contract.faults = [422]
    with pytest.raises(ServiceError):
        call(contract, "score", numbered(100), how={"in_flight": 2})
    assert len(contract.bodies()) <= 4


def test_an_error_in_another_shape_keeps_its_status(call: Caller) -> None:
    contract = Contract()
    contract.faults = [httpx.Response(502, text="<html>", headers={"X-Request-Id": "r-9"})]
    with failed("http_502", ServiceError) as caught:
        call(contract, "score", numbered(1))
    assert caught.value.request_id == "r-9"


@pytest.mark.parametrize(
    "answer",
    [
        {"results": [], "scorer": "d1"},
        {"results": [{"status": "ok"}] * 3, "scorer": "d1"},
        {"results": [{"similarity": 1.0}, {}]},
        {"results": {"0": 1}},
        {"results": [1, 2]},
        {},
        [],
        "text",
    ],
)
def test_an_answer_that_does_not_fit_is_an_error(call: Caller, answer: Any) -> None:
    contract = Contract()
    contract.faults = [httpx.Response(200, json=answer)]
    with failed("bad_answer", ServiceError):
        call(contract, "score", numbered(2))


def test_no_json_is_an_error(call: Caller) -> None:
    contract = Contract()
    contract.faults = [httpx.Response(200, text="<html>")]
    with failed("bad_answer", ServiceError):
        call(contract, "score", numbered(2))


def test_results_of_two_scorers_are_not_mixed(call: Caller) -> None:
    contract = Contract(max_items=1)
    contract.digests = ["d1", "d1", "d2"]
    with failed("scorer_changed", ServiceError):
        call(contract, "score", numbered(4), how={"in_flight": 1})


def test_waits_grow_and_are_spread() -> None:
    busy, retry = httpx.Response(429), Retry(retries=9, first=1.0, longest=10.0, patience=30.0)
    assert [retry.wait(tries, busy, 0.0) for tries in (1, 2, 3, 4, 5, 9, 10)] == [0.5, 1, 2, 4, 5, 5, None]
    assert [retry.wait(2, busy, draw) for draw in (0.0, 0.5, 1.0)] == [1.0, 1.5, 2.0]
    assert retry.wait(1, httpx.Response(429, headers={"Retry-After": "30"}), 0.0) == 30
    assert retry.wait(1, httpx.Response(429, headers={"Retry-After": "31"}), 0.0) is None


def test_retry_after_as_number_date_or_nonsense() -> None:
    now = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)

    def read(text: str) -> float | None:
        return retry_after(httpx.Response(429, headers={"Retry-After": text}), now)

    assert read("5") == 5
    assert read("Thu, 01 Jan 2026 12:00:07 GMT") == 7
    assert read("Thu, 01 Jan 2026 11:00:00 GMT") == 0
    assert [read(text) for text in ("", "soon", "-1", "1.5")] == [None] * 4
    assert retry_after(httpx.Response(429), now) is None


@pytest.mark.parametrize(
    ("url", "how"),
    [
        ("127.0.0.1:8765", {}),
        ("ftp://x", {}),
        (URL, {"retries": -1}),
        (URL, {"batch_items": 0}),
        (URL, {"in_flight": 0}),
    ],
)
def test_settings_that_cannot_work(url: str, how: dict[str, Any]) -> None:
    for kind in (Client, AsyncClient):
        with refused(*next(iter(how.items()), ("url", url))):
            kind(url, **how)


# --- the rest of the service -----------------------------------------------------------------------------------------


def test_results_have_names_and_take_no_harm_from_newer_ones(call: Caller) -> None:
    (score,) = call(Contract(), "score", [(PICTURE, "n 7")])
    assert score == Score(status="ok", similarity=0.007, neighbours=score.neighbours, flags=("f",))
    (near,) = score.neighbours
    assert (near.key, near.shard, near.similarity, near.label) == ("k", "s", 0.5, None)


def test_embeddings_in_order(call: Caller, tmp_path: Path) -> None:
    contract = Contract(max_items=2)
    found = call(contract, "embed", [b"abc", tmp_path / "no.png", b"abcdef", b"a"], ["x", "xy", "xyz"])
    assert [one.status for one in found.images] == ["ok", "no_image", "ok", "ok"]
    rows = [None if one.embedding is None else one.embedding.tolist() for one in found.images]
    assert rows == [[4.0, 1.0], None, [8.0, 1.0], [4.0, 1.0]]
    assert [one.embedding.tolist() for one in found.texts] == [[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]
    assert found.texts[0].embedding.dtype == np.float32


def test_numbers_are_read_as_well_as_base64() -> None:
    assert Embedding.from_dict({"status": "ok", "embedding": [0.5, 2]}).embedding.tolist() == [0.5, 2.0]


def test_scorer_and_jobs(call: Caller) -> None:
    contract = Contract()
    contract.jobs = {"j1": [{"id": "j1", "state": "queued"}], "j2": [{"id": "j2", "state": "done"}]}
    assert call(contract, "scorer")["beta"] == BETA
    assert [job["id"] for job in call(contract, "jobs")] == ["j1", "j2"]
    assert call(contract, "job", "j2")["state"] == "done"
    with failed("unknown_job", ServiceError):
        call(contract, "job", "../scorer")
    assert contract.requests[-1].url.raw_path == b"/v1/jobs/..%2Fscorer"


def test_a_job_is_forgotten(call: Caller) -> None:
    contract = Contract()
    contract.jobs = {"j1": [{"id": "j1", "state": "done"}], "j2": [{"id": "j2", "state": "done"}]}
    assert call(contract, "forget_job", "j1") is None
    assert (contract.requests[-1].method, contract.requests[-1].url.path) == ("DELETE", "/v1/jobs/j1")
    assert [job["id"] for job in call(contract, "jobs")] == ["j2"]
    with failed("unknown_job", ServiceError):
        call(contract, "forget_job", "j1")


def test_a_job_is_forgotten_though_the_first_answer_was_lost(call: Caller) -> None:
    contract = Contract()
    contract.jobs = {"j1": [{"id": "j1", "state": "done"}]}
    contract.lost = [httpx.ReadError("reset")]
    assert call(contract, "forget_job", "j1") is None
    assert [request.method for request in contract.requests] == ["DELETE", "DELETE"]
    assert contract.jobs == {}


def test_a_job_that_never_was_is_unknown_after_a_refused_connection() -> None:
    delete = httpx.Request("DELETE", "http://h/v1/jobs/j1")
    flow = send_until_answered(delete, Retry(), lambda: 0.5, Answers(), "unknown_job")
    request = next(flow)
    assert isinstance(flow.send(httpx.ConnectError("refused")), float)
    assert flow.send(None) is request
    with failed("unknown_job", ServiceError):
        flow.send(refusal(404, "unknown_job"))


def test_a_job_is_started(call: Caller) -> None:
    contract = Contract()
    started = call(contract, "start_job", "data/*.tar", "first", beta="auto", k=5)
    assert contract.bodies("/v1/jobs") == [{"shards": ["data/*.tar"], "name": "first", "beta": "auto", "k": 5}]
    assert started["id"] == "j1"
    contract.faults = [503, httpx.ConnectError("refused")]
    assert call(contract, "start_job", ["a.tar", "b.tar"], "second")["shards"] == ["a.tar", "b.tar"]
    assert len(contract.bodies("/v1/jobs")) == 4


STREAM = (
    b': hello\n\nid: 1\nevent: progress\ndata: {"done": 1}\n\n'
    b'id: 2\nevent: note\ndata: {"text": "half"}\n\nid: 3\nevent: progr'
)
REST = b'event: progress\ndata: {"done": 2}\nid: 3\n\nevent: done\ndata: {"state": "done"}\nid: 4\n\nevent: late\ndata: {}\n\n'


def test_a_job_is_followed_to_its_end(call: Caller) -> None:
    contract = Contract()
    contract.jobs, contract.streams = {"j1": [{"id": "j1", "state": "done", "samples": 2}]}, [REST]
    heard: list[Event] = []
    job = call(contract, "wait_job", "j1", heard.append)
    assert job["samples"] == 2
    assert [event.kind for event in heard] == ["progress", "done"]
    assert heard[0] == Event("progress", {"done": 2}, "3")


def test_a_broken_stream_goes_on_where_it_was(call: Caller) -> None:
    contract, slept = Contract(), []
    contract.jobs = {"j1": [{"state": "running"}, {"state": "running"}, {"state": "running"}, {"state": "done"}]}
    contract.streams = [STREAM, 503, httpx.ReadError("reset"), REST]
    heard: list[Event] = []
    assert call(contract, "wait_job", "j1", heard.append, slept=slept) == {"state": "done"}
    assert [event.kind for event in heard] == ["progress", "note", "progress", "done"]
    asked = [r.headers.get("last-event-id") for r in contract.requests if r.url.path.endswith("/events")]
    assert asked == [None, "2", "2", "2"], "half an event was not heard"
    assert slept == [0.125, 0.25, 0.5]


def test_a_job_that_ended_while_nobody_listened(call: Caller) -> None:
    contract = Contract()
    contract.jobs, contract.streams = {"j1": [{"state": "failed"}]}, [b""]
    assert call(contract, "wait_job", "j1") == {"state": "failed"}


def test_following_ends_when_the_service_is_gone_for_good(call: Caller) -> None:
    contract, slept = Contract(), []
    contract.jobs = {"j1": [{"state": "running"}]}
    contract.streams = [httpx.ConnectError("refused")] * 9
    with failed("unreachable", ServiceError):
        call(contract, "wait_job", "j1", how={"retries": 2}, slept=slept)
    assert slept == [0.125, 0.25]
    with failed("unknown_job", ServiceError):
        call(contract, "wait_job", "j2")


def test_events_as_the_standard_has_them() -> None:
    reader = EventReader()
    lines = ["data: a", "data: b", "", "event: x", "", "data:1", "retry: 5", ":c", "id: 9", "", "data: {}", ""]
    found = [event for line in lines if (event := reader.feed(line))]
    assert found == [
        Event("message", {"text": "a\nb"}, None),
        Event("message", {"text": "1"}, "9"),
        Event("message", {}, "9"),
    ]
