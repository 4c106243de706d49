"""The job on small shards: every sample has its row, and what cannot be read or written is said."""

import errno
import hashlib
import io
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from noisegate import ClassSet, annotate, read_table
from noisegate.pipeline.errors import NoisegateError, TableError
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.labels.classes import prompts
from noisegate.pipeline.runs.table import COLUMNS, RunFolder, read_metadata
from noisegate.pipeline.settings import DecodeOptions
from tests.commands import FAKE
from tests.errors import refused
from tests.fakes import BLANK, NOT_FINITE, ZERO, ColourModel, estimator, pairs, picture, write_tar
from tests.jobs import Notes, files_of, said, score, stamps


# --- rows ---------------------------------------------------------------------------------------------------------------
def test_every_sample_has_its_row_in_tar_order_with_the_digests_of_its_bytes(tmp_path: Path) -> None:
    good, members = picture("red"), []
    for name, data in [
        ("b.png", good),
        ("b.txt", b"red\r\n"),
        ("a/1.jpg", b"not a picture"),
        ("a/1.txt", b"red"),
        ("c.txt", b"no picture"),
        ("d.png", good),
        ("e.png", good),
        ("e.json", json.dumps({"caption": "réd"}).encode()),
        ("b.png", good),
        ("b.txt", b"again"),
    ]:
        members.append((name, data))
    shard = write_tar(tmp_path / "x.tar", members)
    summary = score([shard], tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "x.parquet")
    assert table.schema.names == list(COLUMNS)
    assert table["key"].to_pylist() == ["b", "a/1", "c", "d", "e", "b"]
    assert table["index"].to_pylist() == [0, 1, 2, 3, 4, 5]
    assert table["status"].to_pylist() == ["ok", "bad_image", "no_image", "no_text", "ok", "ok"]
    assert table["flags"].to_pylist() == [[], [], [], [], [], ["duplicate_key"]]

    def digest(data: bytes | None) -> bytes | None:
        return None if data is None else hashlib.sha256(data).digest()

    images = [good, b"not a picture", None, good, good, good]
    texts = [b"red\r\n", b"red", b"no picture", None, "réd".encode(), b"again"]
    assert table["image_sha256"].to_pylist() == [digest(data) for data in images]
    assert table["text_sha256"].to_pylist() == [digest(data) for data in texts]
    for name in ("similarity", "osa_weight", "clean"):
        assert [value is not None for value in table[name].to_pylist()] == [True, False, False, False, True, True]
    assert [error is None for error in table["error"].to_pylist()] == [True, False, False, False, True, True]
    facts = read_metadata(tmp_path / "out" / "x.parquet")["shard"]
    assert facts["sha256"] == hashlib.sha256(shard.read_bytes()).hexdigest()
    assert (facts["rows"], facts["size"]) == (6, shard.stat().st_size)
    assert dict(summary.statuses) == {"ok": 3, "bad_image": 1, "no_image": 1, "no_text": 1}
    assert dict(summary.flags) == {"duplicate_key": 1}


def test_names_that_are_no_utf8_do_not_end_the_job(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "x.tar", [("k\udcff.b\udcfe", b"x"), ("k.txt", b"red"), *pairs(2)])
    score([shard], tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "x.parquet")
    keys = table["key"].to_pylist()
    assert keys[0].startswith("k")
    assert keys[1:] == ["k", "00000", "00001"]
    assert table["status"].to_pylist() == ["no_image", "no_image", "ok", "ok"]


def test_embeddings_that_are_none_make_the_sample_invalid(tmp_path: Path) -> None:
    members = [
        *[("a.png", picture("red")), ("a.txt", NOT_FINITE.encode())],
        *[("b.png", picture("red")), ("b.txt", ZERO.encode())],
        *[("c.png", picture(BLANK)), ("c.txt", b"red")],
        *pairs(1),
    ]
    score([write_tar(tmp_path / "x.tar", members)], tmp_path / "out")
    table = read_table(tmp_path / "out")
    assert table["status"].to_pylist() == ["invalid", "invalid", "invalid", "ok"]
    assert table["similarity"].null_count == table["osa_weight"].null_count == 3
    assert "image embedding" in table["error"][2].as_py()


def test_batches_never_cross_a_shard(shards: Path, tmp_path: Path) -> None:
    model = ColourModel()
    wrapped = estimator(batch_size=4)
    wrapped._inner = model
    score(shards, tmp_path / "out", estimator=wrapped)
    assert [count for kind, count in model.batches if kind == "images"] == [4, 2] * 3


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (5, 0), (64, 1), (7, 2)])
def test_a_pair_has_the_same_score_whatever_its_batch_worker_and_place(
    scenes: Path, tmp_path: Path, batch_size: int, workers: int
) -> None:
    together = score(scenes, tmp_path / "one", estimator=estimator(64))
    assert together.samples == 120
    table = read_table(tmp_path / "one", ["key", "similarity", "osa_weight"])
    known = {row["key"]: row for row in table.to_pylist()}
    elsewhere = tmp_path / "elsewhere" / "y.tar"  # the second shard, its samples in the opposite order
    elsewhere.parent.mkdir()
    subprocess.run(["tar", "-xf", sorted(scenes.glob("*.tar"))[1], "-C", elsewhere.parent], check=True)
    keys = sorted({path.name.split(".")[0] for path in elsewhere.parent.iterdir()}, reverse=True)
    write_tar(
        elsewhere, [(f"{k}.{p}", (elsewhere.parent / f"{k}.{p}").read_bytes()) for k in keys for p in ("txt", "png")]
    )
    score([elsewhere], tmp_path / "two", estimator=estimator(batch_size), workers=workers)
    rows = read_table(tmp_path / "two", ["key", "similarity", "osa_weight"]).to_pylist()
    assert [row["key"] for row in rows] == keys
    for row in rows:
        assert row["similarity"] == pytest.approx(known[row["key"]]["similarity"], abs=1e-5)
        assert row["osa_weight"] == pytest.approx(known[row["key"]]["osa_weight"], abs=1e-5)


# --- shards that cannot be read -----------------------------------------------------------------------------------------
def test_a_missing_and_a_garbage_shard_are_named_and_the_others_done(shards: Path, tmp_path: Path) -> None:
    missing, garbage = shards / "gone.tar", shards / "junk.tar"
    garbage.write_bytes(b"this is no tar\n" * 100)
    paths = [*sorted(shards.glob("x-*.tar")), missing, garbage]
    progress = Notes()
    summary = score(paths, tmp_path / "out", progress=progress)
    assert summary.samples == 18
    assert set(summary.failed_shards) == {str(missing), str(garbage)}
    assert "gone.tar" in said(progress)
    assert "junk.tar is not a tar" in said(progress)
    facts = json.loads((tmp_path / "out" / "_run.json").read_text())
    assert (facts["finished"], facts["complete"], set(facts["unreadable"])) == (
        True,
        False,
        {str(missing), str(garbage)},
    )
    assert len(read_table(tmp_path / "out")) == 18
    write_tar(missing, pairs(2))
    write_tar(garbage, pairs(2))
    mended = score(paths, tmp_path / "out")
    assert (mended.samples, mended.encoded, dict(mended.failed_shards)) == (22, 4, {})
    score(paths, tmp_path / "fresh")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "fresh")


def test_a_shard_that_is_gone_after_it_was_scored_keeps_its_table(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out")
    before, paths = stamps(tmp_path / "out"), sorted(shards.glob("*.tar"))
    paths[1].unlink()
    summary = score(paths, tmp_path / "out")
    assert set(summary.failed_shards) == {str(paths[1])}
    assert (summary.samples, summary.encoded) == (18, 0)
    assert stamps(tmp_path / "out") == before


def test_a_shard_that_turned_into_garbage_loses_its_table(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out")
    (shards / "x-01.tar").write_bytes(b"junk" * 200)
    summary = score(shards, tmp_path / "out")
    assert (summary.samples, list(summary.failed_shards)) == (12, [str(shards / "x-01.tar")])
    assert "x-01" not in read_table(tmp_path / "out")["shard"].to_pylist()


def test_nothing_readable_at_all_still_ends_with_a_summary(tmp_path: Path) -> None:
    summary = score([tmp_path / "gone.tar"], tmp_path / "out")
    assert (summary.samples, summary.shards, len(summary.failed_shards)) == (0, 0, 1)
    with refused("run", tmp_path / "out", TableError):
        read_table(tmp_path / "out")


def test_embeddings_stay_until_every_shard_is_in(shards: Path, tmp_path: Path) -> None:
    paths = [*sorted(shards.glob("*.tar")), shards / "late.tar"]
    score(paths, tmp_path / "out", keep_embeddings=False)
    assert len(list((tmp_path / "out" / "embeddings").iterdir())) == 3
    write_tar(paths[-1], pairs(2))
    assert score(paths, tmp_path / "out", keep_embeddings=False).encoded == 2
    assert not list((tmp_path / "out" / "embeddings").iterdir())


def test_empty_shards_have_empty_tables(tmp_path: Path) -> None:
    write_tar(tmp_path / "s" / "no-members.tar", [])
    (tmp_path / "s" / "no-bytes.tar").write_bytes(b"")
    write_tar(tmp_path / "s" / "no-samples.tar", [("README", b"hello")])
    summary = score(tmp_path / "s", tmp_path / "out", beta="auto")
    assert (summary.samples, summary.shards, dict(summary.failed_shards)) == (0, 3, {})
    assert summary.damaged_shards == {"no-bytes": "the file is empty (0 bytes)"}
    assert len(read_table(tmp_path / "out")) == 0
    before = stamps(tmp_path / "out")
    score(tmp_path / "s", tmp_path / "out", beta="auto")
    assert stamps(tmp_path / "out") == before


def test_shards_without_a_single_good_sample_have_rows_and_no_scores(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "x.tar", [("a.txt", b"red"), ("b.png", b"junk"), ("c.png", picture())])
    summary = score([shard], tmp_path / "out")
    assert (summary.samples, summary.scored, summary.mean_weight) == (3, 0, None)
    assert read_table(tmp_path / "out")["status"].to_pylist() == ["no_image", "bad_image", "no_text"]


def test_no_shards_is_a_mistake(tmp_path: Path) -> None:
    places: list[Any] = [[], str(tmp_path), str(tmp_path / "*.tar")]
    for nothing in places:
        with refused("shards"):
            score(nothing, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- where it is written ------------------------------------------------------------------------------------------------
def test_a_web_address_is_no_place_for_tables(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("https://host/x", Path("https://host/x")):
        with refused("out", "https://host/x"):
            score(shards, place)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


def test_a_file_is_no_place_for_tables(shards: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (file, file / "below"):
        with refused("out", place):
            score(shards, place)
    assert file.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named(shards: Path) -> None:
    with refused("out", Path("/proc/none/tables")):
        score(shards, Path("/proc/none/tables"))


@pytest.mark.parametrize(("setting", "value"), [("seed", -1), ("workers", -1), ("beta", "x")])
def test_settings_that_cannot_work_are_named(shards: Path, tmp_path: Path, setting: str, value: Any) -> None:
    with refused(setting, value):
        score(shards, tmp_path / "out", **{setting: value})
    assert not (tmp_path / "out").exists()


MOUNT = ["mount", "-t", "tmpfs", "-o", "size=24k", "none"]


def can_mount() -> bool:
    """Whether this process may mount a small disk; tried out, since no right says so for sure."""
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run([*MOUNT, folder], capture_output=True, check=False).returncode == 0
        return mounted and subprocess.run(["umount", folder], check=False).returncode == 0


needs_mount = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0 or not can_mount(), reason="may not mount")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run([*MOUNT, str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@needs_mount
def test_a_full_disk_is_said_and_the_run_goes_on_later(tmp_path: Path, small_disk: Path) -> None:
    for i in range(4):
        write_tar(tmp_path / "s" / f"x-{i}.tar", pairs(10, 10 * i))
    score(tmp_path / "s", tmp_path / "whole")
    stopped = 0
    for size in range(24, 400, 16):
        subprocess.run(["mount", "-o", f"remount,size={size}k", str(small_disk)], check=True)
        try:
            score(tmp_path / "s", small_disk / "out")
        except NoisegateError as error:
            assert "no space left" in str(error)
            assert "run the same command again" in str(error)
            cause = error.__cause__
            assert isinstance(cause, OSError)
            assert cause.errno == errno.ENOSPC
            stopped += 1
            continue
        break
    assert stopped > 2
    assert files_of(small_disk / "out") == files_of(tmp_path / "whole")


# --- telling how far it is ----------------------------------------------------------------------------------------------
def test_a_model_that_knows_nothing_of_the_data_is_named_after_the_first_shard(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    members: list[tuple[str, bytes]] = []
    for i in range(250):
        data = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(data, "PNG")
        members += [(f"{i}.png", data.getvalue()), (f"{i}.txt", f"word {i}".encode())]
    write_tar(tmp_path / "s" / "x.tar", members)
    write_tar(tmp_path / "s" / "y.tar", pairs(3))
    progress = Notes()
    score(tmp_path / "s", tmp_path / "out", progress=progress)
    assert [note for note in progress.said if note.startswith("after the first shard: the model hardly tells")]


def test_progress_adds_up(shards: Path, tmp_path: Path) -> None:
    progress = Notes()
    score(shards, tmp_path / "out", progress=progress)
    total = sum(path.stat().st_size for path in shards.glob("*.tar"))
    assert progress.started == (3, total, 0)
    assert progress.size == total


def test_the_run_file_tells_what_was_done(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out")
    facts = RunFolder(tmp_path / "out").read_run()
    assert facts is not None
    assert [shard["table"] for shard in facts["shards"]] == ["x-00", "x-01", "x-02"]
    assert [shard["rows"] for shard in facts["shards"]] == [6, 6, 6]
    assert (facts["beta"]["value"], facts["complete"], facts["scorer"]["weights"]) == (0.4, True, "colours-1")


def test_plain_values_stand_for_objects(tmp_path: Path) -> None:
    """task, classes, model and progress as words give the run that objects give."""
    members = [
        member
        for i, colour in enumerate(("red", "blue") * 6)
        for member in ((f"{i:02d}.png", picture(colour)), (f"{i:02d}.cls", str(i % 2).encode()))
    ]
    write_tar(tmp_path / "a.tar", members)
    names = ("red", "blue")
    shards, model = tmp_path / "a.tar", ModelSpec(FAKE[1])
    plain = annotate(
        shards, tmp_path / "plain", task="labels", classes=list(names), model=FAKE[1], workers=0, progress=False
    )
    options, classes = DecodeOptions(tasks=("labels",)), ClassSet(names, prompts(names))
    objects = annotate(shards, tmp_path / "objects", options=options, classes=classes, estimator=model, workers=0)
    assert plain.labels == objects.labels and plain.samples == 12
    for setting, wrong in (
        ("task", {"task": "pears"}),
        ("model", {"model": FAKE[1], "estimator": model}),
        ("classes", {"classes": "cifar10"}),
        ("classes", {"task": "labels", "classes": [1, 2]}),
        ("classes", {"task": "labels", "classes": "no such file"}),
    ):
        with refused(setting):
            annotate(shards, tmp_path / "wrong", **wrong)  # type: ignore[arg-type]
