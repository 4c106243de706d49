"""A finished run asked about new samples, against plain loops; and about its own samples, against its own table."""

import asyncio
import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from noisegate import read_table
from noisegate.pipeline.estimators.base import normalise
from noisegate.pipeline.labels.anchors import Anchors
from noisegate.pipeline.labels.classes import ClassSet
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.settings import DecodeOptions
from noisegate.service.api.state import Service
from noisegate.service.errors import ApiError
from noisegate.service.runs.against import FinishedRun
from tests.fakes import BLANK, ColourModel, OtherModel, estimator, pairs, picture, write_tar
from tests.jobs import score
from tests.service.fakes import FakeEngine
from tests.service.serving import ask, base64_of

CLASSES = ClassSet(("red", "green", "blue"), (("it is red.",), ("it is green.",), ("it is blue.",)))
COPIES = (4, 17)  # the same picture under two keys


def image_of(i: int) -> bytes:
    i = COPIES[0] if i == COPIES[1] else i
    return speckled(CLASSES.names[i % 3], i)


def speckled(colour: str, seed: int) -> bytes:
    """Mostly one colour, and unlike any other picture."""
    rng = np.random.default_rng(seed)
    canvas = Image.new("RGB", (16, 16), colour)
    for x, y in rng.integers(0, 16, (60, 2)).tolist():
        canvas.putpixel((x, y), tuple(rng.integers(0, 256, 3).tolist()))
    data = io.BytesIO()
    canvas.save(data, "PNG")
    return data.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 samples in three shards with every fourth label wrong, a broken picture, and one without an embedding."""
    place = tmp_path_factory.mktemp("against")
    for part in range(3):
        members = []
        for i in range(16 * part, 16 * part + 16):
            data = b"no picture" if i == 7 else picture(BLANK) if i == 20 else image_of(i)
            label = (i + (i % 4 == 0)) % 3
            members += [
                (f"{i:05d}.png", data),
                (f"{i:05d}.txt", f"{i} is {CLASSES.names[label]}".encode()),
                (f"{i:05d}.cls", str(label).encode()),
            ]
        write_tar(place / "shards" / f"x-{part}.tar", members)
    options = DecodeOptions(tasks=("pairs", "labels"))
    score(place / "shards", place / "run", options=options, classes=CLASSES, k=6, neighbourhood=True)
    return place / "run"


@pytest.fixture(scope="module", params=[1 << 30, 0], ids=["held", "read again"])
def run(folder: Path, request: pytest.FixtureRequest) -> FinishedRun:
    return FinishedRun.load(folder, memory=request.param)


def embeddings_of(folder: Path, part: str) -> NDArray[np.float32]:
    run = RunFolder(folder)
    return np.concatenate([read_embeddings(run.embeddings(stem), part) for stem in sorted(run.stems())])


def encoded(*images: bytes) -> NDArray[np.float32]:
    pictures = [Image.open(io.BytesIO(data)).convert("RGB") for data in images]
    return normalise(ColourModel().encode_images(pictures))


def test_samples_of_the_run_get_the_tables_values(run: FinishedRun, folder: Path) -> None:
    table = read_table(folder).to_pylist()
    found = run.judge(
        embeddings_of(folder, "image"),
        embeddings_of(folder, "text"),
        [row["label"] for row in table],
        [row["image_sha256"] for row in table],
        [row["key"] for row in table],
    )
    scored = 0
    for row, judged in zip(table, found, strict=True):
        if row["status"] != "ok":
            continue
        scored += 1
        for name in ("knn_consistency", "anchor_consistency", "consistency", "clean_tango"):
            assert getattr(judged, name) == pytest.approx(row[name], abs=1e-6), (row["key"], name)
        assert judged.neighbourhood == pytest.approx(row["neighbourhood"], abs=1e-3)
        assert f"in_run:{row['key']}" in judged.flags
        duplicates = [flag for flag in row["flags"] if flag.startswith("duplicate_of:")]
        assert [flag for flag in judged.flags if flag.startswith("duplicate_of:")] == duplicates
        assert row["key"] not in [near.key for near in judged.neighbours]
    assert scored == 46


def test_a_new_sample_against_a_plain_loop(run: FinishedRun, folder: Path) -> None:
    new = encoded(speckled("green", 90), speckled("blue", 91), speckled("brown", 92))
    given = [1, 1, None]
    table = read_table(folder).to_pylist()
    rows = embeddings_of(folder, "image").astype(np.float64)
    anchors = Anchors.load(folder / "anchors.safetensors")
    counts = [sum(row["status"] == "ok" and row["label"] == c for row in table) for c in range(3)]
    for vector, label, judged in zip(new, given, run.judge(new, labels=given), strict=True):
        near = []
        for i, row in enumerate(table):
            if row["status"] == "ok":
                near.append((-float(vector @ rows[i] / np.linalg.norm(rows[i])), i))
        near.sort()
        assert [n.key for n in judged.neighbours] == [table[i]["key"] for _, i in near[:10]]
        assert [n.shard for n in judged.neighbours] == [table[i]["shard"] for _, i in near[:10]]
        assert [n.label for n in judged.neighbours] == [table[i]["label"] for _, i in near[:10]]
        np.testing.assert_allclose([n.similarity for n in judged.neighbours], [-c for c, _ in near[:10]], atol=1e-6)
        votes = [0.0, 0.0, 0.0]
        for _, i in near[:6]:
            votes[table[i]["label"]] += 1 / counts[table[i]["label"]]
        p_vis = [vote / sum(votes) for vote in votes]
        nearest = int(np.argmax(anchors.embeddings @ vector))  # |A| / C = 1
        p_sem = [float(c == anchors.labels[nearest]) for c in range(3)]
        q = [(a + b) / 2 for a, b in zip(p_vis, p_sem, strict=True)]
        best = int(np.argmax(q))
        assert judged.refined_label == best
        assert judged.refined_name == CLASSES.names[best]
        assert judged.refined_confidence == pytest.approx(q[best])
        if label is None:
            assert judged.knn_consistency is judged.clean_tango is judged.consistency is None
        else:
            assert judged.label == label
            assert judged.knn_consistency == pytest.approx(p_vis[label])
            assert judged.anchor_consistency == pytest.approx(p_sem[label])
            assert judged.consistency == pytest.approx(q[label] / max(q))
            assert judged.clean_tango == (best == label)


def test_the_pictures_own_row_is_known_by_its_bytes(run: FinishedRun, folder: Path) -> None:
    data = image_of(5)
    vector, digest = encoded(data), hashlib.sha256(data).digest()
    [stranger] = run.judge(vector)
    [known] = run.judge(vector, digests=[digest])
    assert stranger.neighbours[0].key == "00005"
    assert stranger.flags == ["duplicate_of:x-0/00005"]
    assert known.neighbours == stranger.neighbours[1:] + known.neighbours[-1:]
    assert known.flags == ["in_run:00005"]


def test_one_of_several_copies_is_left_out_and_the_others_vote(run: FinishedRun) -> None:
    data = image_of(COPIES[0])
    rows = encoded(data, data, data)
    digests = [hashlib.sha256(data).digest()] * 3
    labels = {"00004": (4 + 1) % 3, "00017": 17 % 3}  # 4 is one of the wrong ones, 17 has the picture's old class
    assert labels["00004"] == labels["00017"] == 2
    first, second, third = run.judge(rows, None, [2, 2, 0], digests, [None, "00017", None])
    assert first.flags == ["in_run:00004"]  # the first of those with its label
    assert second.flags == ["in_run:00017", "duplicate_of:x-0/00004"]
    assert third.flags == ["in_run:00004"]  # none has its label: the first
    assert (first.neighbours[0].key, second.neighbours[0].key) == ("00017", "00004")


def test_names_of_classes_and_labels_that_are_none(run: FinishedRun) -> None:
    rows = np.repeat(encoded(speckled("blue", 60)), 5, axis=0)
    found = run.judge(rows, labels=["blue", 2, "violet", 3, -1])
    assert [judged.status for judged in found] == ["ok", "ok", "bad_label", "bad_label", "bad_label"]
    assert found[0] == found[1]
    assert found[2].error == "label 'violet' is no class; use 0 to 2 or one of: red, green, blue"
    assert found[2].knn_consistency is None
    assert found[2].refined_label == 2


def test_a_sample_without_an_embedding_gets_nothing(run: FinishedRun) -> None:
    [judged] = run.judge(np.zeros((1, 24), np.float32), np.zeros((1, 24), np.float32), [1])
    assert judged.neighbours == ()
    assert judged.knn_consistency is judged.refined_label is judged.neighbourhood is None


def test_a_class_sets_anchors_take_the_place_of_the_runs(run: FinishedRun, folder: Path) -> None:
    own = Anchors.load(folder / "anchors.safetensors")
    turned = replace(own, labels=np.roll(own.labels, 1))
    row = encoded(speckled("blue", 60))
    [plain], [other] = run.judge(row, labels=[2]), run.judge(row, labels=[2], anchors=turned)
    assert plain.knn_consistency == other.knn_consistency
    assert (plain.anchor_consistency, other.anchor_consistency) == (1, 0)
    two = Anchors(("a", "b"), own.embeddings[:2], own.labels[:2])
    with pytest.raises(ApiError) as refused:
        run.judge(row, labels=[1], anchors=two)
    assert (refused.value.status, refused.value.code) == (409, "other_classes")


def test_another_scorer_is_refused_with_the_difference(run: FinishedRun) -> None:
    run.check_scorer(estimator().identity)
    with pytest.raises(ApiError, match="weights: colours-1 there, colours-2 now") as refused:
        run.check_scorer(replace(estimator().identity, weights="colours-2"))
    assert (refused.value.status, refused.value.code) == (409, "other_scorer")
    run.check_scorer(replace(estimator().identity, versions=(("torch", "99"),)))  # the same model, but for rounding


def test_a_run_of_pairs_alone_has_neighbours_and_no_votes(tmp_path: Path) -> None:
    write_tar(tmp_path / "shards" / "x.tar", pairs(80))
    score(tmp_path / "shards", tmp_path / "run")
    run = FinishedRun.load(tmp_path / "run")
    rows = embeddings_of(tmp_path / "run", "image")
    [judged] = run.judge(rows[3:4], embeddings_of(tmp_path / "run", "text")[3:4], [1])
    assert len(judged.neighbours) == 10
    assert judged.neighbours[0].key == "00003"
    assert judged.neighbours[0].label is None
    assert judged.label is judged.knn_consistency is judged.refined_label is None
    assert judged.neighbourhood is not None
    assert judged.neighbourhood > 0


@pytest.mark.parametrize("what", ["nothing", "unfinished", "dropped", "damaged"])
def test_runs_that_cannot_answer(what: str, tmp_path: Path) -> None:
    write_tar(tmp_path / "shards" / "x.tar", pairs(4))
    out = tmp_path / "run"
    code = {"nothing": "unfinished_run", "unfinished": "unfinished_run", "dropped": "no_embeddings"}
    if what != "nothing":
        score(tmp_path / "shards", out, keep_embeddings=what != "dropped")
    if what == "unfinished":
        facts = json.loads((out / "_run.json").read_text())
        (out / "_run.json").write_text(json.dumps({**facts, "finished": False}))
    if what == "damaged":
        (out / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(ApiError) as refused:
        FinishedRun.load(out)
    assert (refused.value.status, refused.value.code) == (409, code.get(what, "damaged_run"))
    assert str(tmp_path) not in refused.value.message


def test_over_http_a_sample_of_the_run_is_its_row_of_the_table(folder: Path) -> None:
    table = [row for row in read_table(folder).to_pylist() if row["status"] == "ok"]
    asked = [
        {
            "image": base64_of(image_of(int(row["key"]))),
            "text": f"{int(row['key'])} is {CLASSES.names[row['label']]}",
            "label": row["label"] if int(row["key"]) % 2 else CLASSES.names[row["label"]],
            "key": row["key"],
        }
        for row in table
    ]

    async def work(client: httpx.AsyncClient, service: Service) -> None:
        answer = await client.post("/v1/score", json={"pairs": asked, "against": "corpus"})
        assert answer.status_code == 200, answer.text
        for row, result in zip(table, answer.json()["results"], strict=True):
            for name in ("similarity", "osa_weight", "label", "clean_tango"):
                assert result[name] == pytest.approx(row[name], abs=1e-5), (row["key"], name)
            for name in ("knn_consistency", "anchor_consistency", "consistency"):
                assert result[name] == pytest.approx(row[name], abs=1e-5), (row["key"], name)
            assert result["neighbourhood"] == pytest.approx(row["neighbourhood"], abs=5e-3)
            assert f"in_run:{row['key']}" in result["flags"]

    ask(work, runs={"corpus": folder}, beta="fixed:0.4")


def test_over_http_labels_by_class_set_and_by_run(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "colours.txt").write_text("red\ngreen\nblue\n")
    blue = {"image": base64_of(speckled("blue", 77)), "label": "blue"}

    async def work(client: httpx.AsyncClient, service: Service) -> None:
        while not service.class_sets.ready():
            await asyncio.sleep(0)
        pairs = [blue, {**blue, "label": 0}, {**blue, "label": "cat"}, {"image": "broken", "label": 1}]
        of_texts = (await client.post("/v1/score", json={"pairs": pairs, "classes": "colours"})).json()["results"]
        assert [result["status"] for result in of_texts] == ["ok", "ok", "bad_label", "bad_image"]
        assert [result["clean_tango"] for result in of_texts] == [True, False, None, None]
        assert of_texts[0]["predicted"][0]["name"] == "blue"
        assert of_texts[0]["knn_consistency"] is None
        of_run = (await client.post("/v1/score", json={"pairs": [blue], "against": "corpus"})).json()["results"][0]
        both = {"pairs": [blue], "against": "corpus", "classes": "colours"}
        of_both = (await client.post("/v1/score", json=both)).json()["results"][0]
        assert of_both["knn_consistency"] == of_run["knn_consistency"]
        assert of_both["predicted"] == of_texts[0]["predicted"]
        assert of_both["refined_name"] == "blue"
        for name, code in (("against", "unknown_run"), ("classes", "unknown_classes")):
            refused = await client.post("/v1/score", json={"pairs": [blue], name: "nowhere"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, code)

    ask(work, runs={"corpus": folder}, classes={"colours": str(tmp_path / "colours.txt")}, beta="fixed:0.4")


def test_over_http_a_run_of_another_scorer_is_refused(folder: Path) -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> None:
        pairs = [{"image": base64_of(speckled("red", 1)), "text": "red"}]
        refused = await client.post("/v1/score", json={"pairs": pairs, "against": "corpus"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "other_scorer")
        assert "weights: colours-1 there, colours-2 now" in refused.json()["error"]["message"]

    ask(work, FakeEngine(OtherModel), runs={"corpus": folder}, model="python:tests.fakes:OtherModel")
