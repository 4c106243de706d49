"""POST /v1/score, /v1/embed and GET /v1/scorer: shapes, order, bad items, bad bodies."""

import asyncio
import base64
import gzip
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisegate.pipeline.pairs.osa import osa_weight
from noisegate.service.api.bodies import decode_base64, parse
from noisegate.service.api.schemas import DOT, EmbedAnswer, ScoreAnswer, ScorerAnswer, ScoreRequest
from noisegate.service.api.state import Service
from noisegate.service.errors import ApiError, Overloaded, TimedOut, Unavailable
from noisegate.service.settings import load_settings
from tests.fakes import pairs, picture, write_tar
from tests.jobs import score as annotated
from tests.service.fakes import FakeEngine
from tests.service.serving import ask, base64_of

SETTINGS = load_settings(None)

RED = base64_of(picture("red"))


def post(body: Any, path: str = "/v1/score", engine: FakeEngine | None = None, **given: Any) -> httpx.Response:
    """The answer to a JSON body, or to raw bytes that say they are one."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask_with(content, path, {"Content-Type": "application/json"}, engine, **given)


def ask_with(
    content: bytes, path: str, headers: dict[str, str], engine: FakeEngine | None, **given: Any
) -> httpx.Response:
    async def work(client: httpx.AsyncClient, service: Service) -> httpx.Response:
        return await client.post(path, content=content, headers=headers)

    return ask(work, engine, **given)


def problem(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of an error, which has the one shape that all have."""
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "request_id"}
    assert error["request_id"] == answer.headers["x-request-id"]
    return answer.status_code, error["code"]


# --- answers --------------------------------------------------------------------------------------------------------


def test_results_come_in_order_with_their_keys_and_bad_ones_fail_alone() -> None:
    pairs = [
        {"image": RED, "text": "a red thing", "key": "a"},
        {"image": "%%%", "text": "a red thing", "key": "b"},
        {"image": f"data:image/png;base64,{RED}", "text": "a blue thing"},
        {"text": "no picture"},
        {"image": RED},
        {"image": base64_of(b"nothing"), "text": "x", "key": None},
        {"image": "data:text/html,hello", "text": "x"},
    ]
    answer = post({"pairs": pairs})
    found = ScoreAnswer.model_validate(answer.json(), strict=False)
    assert [r.status for r in found.results] == [
        "ok",
        "bad_image",
        "ok",
        "no_image",
        "no_text",
        "bad_image",
        "bad_image",
    ]
    assert [r.key for r in found.results] == ["a", "b", None, None, None, None, None]
    first = found.results[0]
    assert first.similarity is not None
    assert first.osa_weight == pytest.approx(osa_weight(first.similarity, 0.4), abs=1e-7)
    assert (first.clean, found.results[2].clean, found.results[2].osa_weight) == (True, False, 0.0)
    assert all(r.similarity is None and r.osa_weight is None and r.error for r in found.results if r.status != "ok")
    assert found.results[1].error is not None
    assert "not base64" in found.results[1].error
    assert found.beta is not None
    assert found.beta.value == 0.4
    assert found.request_id == answer.headers["x-request-id"]


def test_a_label_that_nobody_judges_is_flagged() -> None:
    pairs = [{"image": RED, "text": "a red thing", "label": 3}, {"image": RED, "text": "a red thing"}]
    first, second = post({"pairs": pairs}).json()["results"]
    assert (first["status"], first["label"], first["flags"]) == ("ok", None, ["label_not_judged"])
    assert second["flags"] == []


def test_no_pairs_are_no_results() -> None:
    assert post({"pairs": []}).json()["results"] == []


def test_the_schemas_own_examples_are_answered() -> None:
    for example in ScoreRequest.model_config["json_schema_extra"]["examples"]:  # type: ignore[index,call-overload,union-attr]
        found = post(example).json()["results"]
        assert [r["status"] for r in found] == ["ok"]
    assert decode_base64(DOT).startswith(b"\x89PNG")


def test_labels_are_judged_by_a_registered_class_set(tmp_path: Path) -> None:
    classes = tmp_path / "colours.txt"
    classes.write_text("red\nblue\n", encoding="utf-8")
    pairs = [
        {"image": RED, "label": 0},
        {"image": RED, "label": "blue", "text": "a red thing"},
        {"image": RED, "label": "pink"},
        {"image": "%%%", "label": 0},
    ]
    async_settings = {"classes": {"colours": str(classes)}}

    async def work(client: httpx.AsyncClient, service: Service) -> list[Any]:
        while not service.class_sets.ready():
            await asyncio.sleep(0)
        first = await client.post("/v1/score", json={"pairs": pairs, "classes": "colours"})
        return [first.json()["results"], await client.post("/v1/score", json={"pairs": [], "classes": "shapes"})]

    results, unknown = ask(work, **async_settings)
    assert [r["status"] for r in results] == ["ok", "ok", "bad_label", "bad_image"]
    assert not any("label_not_judged" in r["flags"] for r in results)
    assert [r["flags"] for r in results[:2]] == [["no_text"], []]
    assert [r["clean_tango"] for r in results[:2]] == [True, False]
    assert [r["refined_name"] for r in results[:2]] == ["red", "red"]
    assert results[0]["predicted"][0]["name"] == "red"
    assert results[1]["similarity"] > 0.5
    assert problem(unknown) == (404, "unknown_classes")


def test_a_finished_run_names_the_neighbours_of_a_new_sample_and_knows_its_own(tmp_path: Path) -> None:
    made = pairs(20)
    write_tar(tmp_path / "shards" / "x.tar", made)
    annotated(tmp_path / "shards", tmp_path / "run")
    new, own = picture("blue", (21, 17)), dict(made)["00004.png"]

    async def work(client: httpx.AsyncClient, service: Service) -> httpx.Response:
        wanted = [
            {"image": base64_of(new), "text": "a blue thing"},
            {"image": base64_of(own), "text": "x", "key": "00004"},
        ]
        return await client.post("/v1/score", json={"pairs": wanted, "against": "run"})

    answer = ask(work, runs={"run": tmp_path / "run"})
    found = ScoreAnswer.model_validate(answer.json(), strict=False)
    first, second = found.results
    assert first.neighbours is not None
    assert {first.neighbours[0].key, first.neighbours[1].key} == {"00004", "00014"}, "the blue ones"
    assert first.neighbours[0].shard == "x"
    assert "in_run:00004" in second.flags
    assert second.neighbours is not None
    assert "00004" not in [n.key for n in second.neighbours]


def test_labels_are_judged_by_the_class_set_where_the_run_has_none(tmp_path: Path) -> None:
    write_tar(tmp_path / "shards" / "x.tar", pairs(20))
    annotated(tmp_path / "shards", tmp_path / "run")
    (tmp_path / "colours.txt").write_text("red\nblue\n", encoding="utf-8")
    wanted = {"pairs": [{"image": RED, "label": "blue"}, {"image": RED, "label": 7}], "classes": "colours"}

    async def work(client: httpx.AsyncClient, service: Service) -> list[Any]:
        while not service.class_sets.ready():
            await asyncio.sleep(0)
        return [
            (await client.post("/v1/score", json={**wanted, **more})).json()["results"]
            for more in ({}, {"against": "run"})
        ]

    alone, with_run = ask(work, runs={"run": tmp_path / "run"}, classes={"colours": str(tmp_path / "colours.txt")})
    assert [r["status"] for r in with_run] == ["ok", "bad_label"]
    assert with_run[0]["refined_name"] == "red"
    near = ("neighbours", "neighbourhood", "flags")
    assert [{**r, **dict.fromkeys(near)} for r in with_run] == [{**r, **dict.fromkeys(near)} for r in alone]
    assert all(len(r["neighbours"]) == 10 for r in with_run)


def test_an_unknown_run_is_404_and_nothing_is_embedded() -> None:
    engine = FakeEngine()
    assert problem(post({"pairs": [{"image": RED, "text": "a"}], "against": "none"}, engine=engine)) == (
        404,
        "unknown_run",
    )
    assert engine.requests == []


def test_embeddings_as_numbers_and_as_bytes_are_the_same() -> None:
    body = {"images": [RED, "%%%"], "texts": ["a red thing", " "]}
    plain = EmbedAnswer.model_validate(post(body, "/v1/embed").json(), strict=False)
    packed = EmbedAnswer.model_validate(post({**body, "encoding": "base64"}, "/v1/embed").json(), strict=False)
    assert [r.status for r in plain.images + plain.texts] == ["ok", "bad_image", "ok", "no_text"]
    for one, other in ((plain.images[0], packed.images[0]), (plain.texts[0], packed.texts[0])):
        assert isinstance(other.embedding, str)
        row = np.frombuffer(base64.b64decode(other.embedding), "<f4")
        assert len(row) == plain.dimensions == 24
        np.testing.assert_array_equal(np.array(one.embedding, np.float32), row)
        assert np.linalg.norm(row) == pytest.approx(1, abs=1e-6)
    assert plain.images[1].embedding is None


def test_the_scorer_says_what_it_is() -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> dict[str, Any]:
        found: dict[str, Any] = (await client.get("/v1/scorer")).json()
        assert found["identity"] == service.engine.identity.to_dict()
        assert found["scorer"] == service.engine.identity.digest
        return found

    found = ScorerAnswer.model_validate(ask(work, max_items=7))
    assert (found.limits["max_items"], found.dimensions, found.run, found.calibration) == (7, 24, None, None)


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", (400, "bad_request")),
        (b"nonsense", (400, "bad_request")),
        (b"\xff\xfe\x00", (400, "bad_request")),
        (b'{"pairs": [{"label": NaN}]}', (400, "bad_request")),
        (b'{"pairs": [{"label": -Infinity}]}', (400, "bad_request")),
        (b'{"pairs": [], "pairs": []}', (400, "bad_request")),
        (b'{"pairs": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", (400, "bad_request")),
        (b'{"pairs": ' + b"[" * 100_001 + b"}", (422, "invalid_request")),
        (b'{"pairs": [{"label": ' + b"9" * 5000 + b"}]}", (400, "bad_request")),
        (b'{"pairs": [{"label": 1e999}]}', (422, "invalid_request")),
        (b'{"pairs": [{"label": true}]}', (422, "invalid_request")),
        (b"[]", (422, "invalid_request")),
        (b"null", (422, "invalid_request")),
        (b"{}", (422, "invalid_request")),
        (b'{"pairs": {}}', (422, "invalid_request")),
        (b'{"pairs": [5]}', (422, "invalid_request")),
        (b'{"pairs": [{"image": 5}]}', (422, "invalid_request")),
        (b'{"pairs": [{"img": "x"}]}', (422, "invalid_request")),
        (b'{"pairs": [{}, {}, {}]}', (413, "too_many_items")),
        (b'{"pairs": [0, 0, 0]}', (413, "too_many_items")),  # counted before a million of them are looked at
        (b'{"pairs": [{' + b",".join(b'"%d": 0' % i for i in range(101)) + b"}]}", (400, "bad_request")),
    ],
)
def test_bodies_that_do_not_fit(body: bytes, expected: tuple[int, str]) -> None:
    assert problem(post(body, max_items=2)) == expected


def test_a_key_that_cannot_come_back_is_refused() -> None:
    assert problem(post(b'{"pairs": [{"key": "\\ud800"}]}')) == (422, "invalid_request")
    assert problem(post(b'{"pairs": [{"key": "' + b"x" * 1025 + b'"}]}')) == (422, "invalid_request")


def test_refusals_name_the_place_in_the_bodys_own_words() -> None:
    label = post({"pairs": [{"label": 1.5}]}).json()["error"]["message"]
    assert label == "pairs.0.label: should be the number or the name of a class"
    assert len(post({"pairs": [], "x" * 100_000: 1}).content) < 300
    digits = post(b'{"pairs": [{"label": ' + b"9" * 5000 + b"}]}").json()["error"]["message"]
    assert digits == "the body is no JSON: a number has thousands of digits"


@pytest.mark.parametrize("path", ["/v1/score", "/v1/embed"])
def test_compressed_bodies_are_refused(path: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = ask_with(gzip.compress(b'{"pairs": []}'), path, headers, None)
    assert problem(answer) == (415, "unsupported_media_type")


def test_lone_surrogates_are_the_items_problem() -> None:
    engine = FakeEngine()
    post(b'{"pairs": [{"text": "\\ud800 cat"}]}', engine=engine)
    assert parse(b'{"pairs": [{"text": "\\ud800 cat"}]}', ScoreRequest, SETTINGS).pairs[0].text == "\ud800 cat"


@pytest.mark.parametrize("kind", ["text/plain", "", "application/x-www-form-urlencoded"])
def test_other_kinds_of_bodies(kind: str) -> None:
    assert problem(ask_with(b"{}", "/v1/score", {"Content-Type": kind}, None)) == (415, "unsupported_media_type")
    assert problem(ask_with(b"{}", "/v1/embed", {"Content-Type": kind}, None)) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("content", "boundary"),
    [
        (b"", "x"),
        (b"--x\r\n", "x"),
        (b"hello", "x"),
        (b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\nhalf a pict', "x"),
        (b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--", "x"),
        (b"a", ""),
    ],
)
def test_forms_that_are_none(content: bytes, boundary: str) -> None:
    kind = f"multipart/form-data; boundary={boundary}" if boundary else "multipart/form-data"
    assert problem(ask_with(content, "/v1/score", {"Content-Type": kind}, None)) == (400, "bad_request")


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ([("image", ("x", b"a")), ("text", (None, "a")), ("text", (None, "b"))], 422),
        ([("picture", ("x", b"a"))], 422),
        ([("request", (None, "{}")), ("request", (None, "{}"))], 422),
        ([("request", (None, "no json"))], 400),
        ([("classes", (None, "a")), ("classes", (None, "b"))], 422),
        ([("request", (None, '{"pairs": []}')), ("a", ("x", b"a")), ("a", ("x", b"b"))], 422),
        ([("image", ("x", b"a"))] * 3, 413),
        ([("text", (None, "a"))] * 6, 413),
        ([("image", ("x", b"a"))] * 2, 200),
    ],
)
def test_forms_that_do_not_fit(files: Any, status: int) -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> httpx.Response:
        return await client.post("/v1/score", files=files)

    answer = ask(work, max_items=2)
    assert answer.status_code == status, answer.text


def test_a_part_that_is_not_there_is_its_items_problem() -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> httpx.Response:
        wanted = {"pairs": [{"image": "part:a", "text": "a red thing"}, {"image": "part:b", "text": "x"}]}
        return await client.post(
            "/v1/score", files=[("request", (None, json.dumps(wanted))), ("a", ("a", picture("red")))]
        )

    assert [r["status"] for r in ask(work).json()["results"]] == ["ok", "no_image"]


@pytest.mark.parametrize(
    ("error", "expected", "retry"),
    [
        (Overloaded("full", 7.4), (429, "overloaded"), "8"),
        (Unavailable("worker_lost", "gone"), (503, "worker_lost"), "1"),
        (TimedOut("late"), (504, "timeout"), "1"),
        (ApiError(409, "other", "no"), (409, "other"), None),
    ],
)
def test_what_the_engine_refuses_with(error: ApiError, expected: tuple[int, str], retry: str | None) -> None:
    engine = FakeEngine()
    engine.refuse = error
    for path, body in (("/v1/score", {"pairs": [{"text": "a"}]}), ("/v1/embed", {"texts": ["a"]})):
        answer = post(body, path, engine)
        assert problem(answer) == expected
        assert answer.headers.get("Retry-After") == retry


def test_a_crash_tells_nothing_but_its_id() -> None:
    engine = FakeEngine()
    engine.refuse = RuntimeError("a secret path")
    answer = post({"pairs": [{"text": "a"}]}, engine=engine)
    assert problem(answer) == (500, "internal")
    assert "secret" not in answer.text


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_refused(body: bytes) -> None:
    try:
        found = parse(body, ScoreRequest, SETTINGS)
    except ApiError as error:
        assert error.status in (400, 422)
    else:
        assert isinstance(found, ScoreRequest)


NAMES = st.sampled_from(["pairs", "image", "text", "label", "classes"])
LEAVES = st.none() | st.booleans() | st.floats() | st.integers() | st.text()


@given(st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)))
def test_any_json_parses_or_is_refused(value: Any) -> None:
    for model_body in (value, {"pairs": value}, {"pairs": [value]}):
        try:
            parse(json.dumps(model_body).encode(), ScoreRequest, SETTINGS)
        except ApiError as error:
            assert error.status in (400, 422)


@given(st.binary(max_size=100))
def test_base64_comes_back(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    assert decode_base64(text) == data
    assert decode_base64(f"data:image/jpeg;base64,{text}") == data
    assert decode_base64(f"DATA:IMAGE/PNG;BASE64,{text}") == data


@pytest.mark.parametrize(
    "text", ["a", "ab=", "a b=", "YQ==\n", "YQ", "é", "YQ==YQ==", "data:image/png,YQ==", "data:;base64"]
)
def test_base64_is_strict(text: str) -> None:
    with pytest.raises(ValueError, match=r"base64|data URI"):
        decode_base64(text)
