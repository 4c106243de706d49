"""The job on small shards: every sample has its row, and going on, changing and failing end as they should."""

import errno
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import Summary, annotate, read_table
from pipeline.decode import Limits
from pipeline.errors import ConfigError, LockedError, MismatchError, NoisegateError, TableError
from pipeline.lock import folder_lock
from pipeline.progress import Silent
from pipeline.table import COLUMNS, RunFolder, read_metadata
from pipeline.workers import DecodeOptions
from tests.fakes import BLANK, NOT_FINITE, ZERO, ColourModel, OtherModel, estimator, files_of, pairs, picture, write_tar

BETA = "fixed:0.4"


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Three shards of six good samples each."""
    for i in range(3):
        write_tar(tmp_path / "shards" / f"x-{i:02d}.tar", pairs(6, 10 * i))
    return tmp_path / "shards"


class Notes(Silent):
    """Remembers what was said, and stops the job as Ctrl-C would when asked to."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.said: list[str] = []
        self.started: tuple[int, int, int] | None = None
        self.size = 0
        self._left = stop_after

    def _step(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt

    def start(self, todo: int, size: int, done: int) -> None:
        self.started = (todo, size, done)
        self._step()

    def advance(self, samples: int, size: int) -> None:
        self.size += size
        self._step()

    def shard(self, name: str, samples: int, failed: int) -> None:
        self._step()

    def note(self, text: str) -> None:
        self.said.append(text)


def run(shards: Any, out: Path, **settings: Any) -> Summary:
    source = shards if not isinstance(shards, Path) else sorted(shards.glob("*.tar"))
    return annotate(source, out, **{"estimator": estimator(), "beta": BETA, "workers": 0, **settings})


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every table and embedding file: both stay only where nobody wrote."""
    found = [*folder.glob("*.parquet"), *folder.glob("embeddings/*")]
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


def said(progress: Notes) -> str:
    return "\n".join(progress.said)


# --- rows ------------------------------------------------------------------------------------------------------------


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
    summary = run([shard], tmp_path / "out")
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
    run([shard], tmp_path / "out")
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
    run([write_tar(tmp_path / "x.tar", members)], tmp_path / "out")
    table = read_table(tmp_path / "out")
    assert table["status"].to_pylist() == ["invalid", "invalid", "invalid", "ok"]
    assert table["similarity"].null_count == table["osa_weight"].null_count == 3
    assert "image embedding" in table["error"][2].as_py()


def test_batches_never_cross_a_shard(shards: Path, tmp_path: Path) -> None:
    model = ColourModel()
    wrapped = estimator(batch_size=4)
    wrapped._inner = model
    run(shards, tmp_path / "out", estimator=wrapped)
    assert [count for kind, count in model.batches if kind == "images"] == [4, 2] * 3


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (5, 0), (64, 1), (7, 2)])
def test_a_pair_has_the_same_score_whatever_its_batch_worker_and_place(
    scenes: Path, tmp_path: Path, batch_size: int, workers: int
) -> None:
    together = run(scenes, tmp_path / "one", estimator=estimator(64))
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
    run([elsewhere], tmp_path / "two", estimator=estimator(batch_size), workers=workers)
    rows = read_table(tmp_path / "two", ["key", "similarity", "osa_weight"]).to_pylist()
    assert [row["key"] for row in rows] == keys
    for row in rows:
        assert row["similarity"] == pytest.approx(known[row["key"]]["similarity"], abs=1e-5)
        assert row["osa_weight"] == pytest.approx(known[row["key"]]["osa_weight"], abs=1e-5)


# --- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [BETA, "auto"])
def test_a_finished_run_is_not_touched(shards: Path, tmp_path: Path, beta: str) -> None:
    for i in range(2):
        write_tar(shards / f"more-{i}.tar", pairs(10, 100 * i))  # enough pairs for auto to look at the data
    run(shards, tmp_path / "out", beta=beta)
    before, run_file = stamps(tmp_path / "out"), (tmp_path / "out" / "_run.json").read_bytes()
    progress = Notes()
    summary = run(shards, tmp_path / "out", beta=beta, progress=progress)
    assert stamps(tmp_path / "out") == before
    assert (tmp_path / "out" / "_run.json").read_bytes() == run_file
    assert (summary.encoded, summary.samples, progress.started) == (0, 38, (0, 0, 5))


def test_a_run_stopped_anywhere_goes_on_to_the_same_bytes(shards: Path, tmp_path: Path) -> None:
    run(shards, tmp_path / "whole")
    stops = 0
    for moment in range(100):
        try:
            run(shards, tmp_path / "out", progress=Notes(stop_after=moment % 4))
        except KeyboardInterrupt:
            stops += 1
            continue
        break
    assert stops > 5
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


@pytest.mark.parametrize("lost", ["x-01.parquet", "embeddings/x-01.safetensors", "_run.json"])
def test_what_was_lost_is_made_again(shards: Path, tmp_path: Path, lost: str) -> None:
    run(shards, tmp_path / "out")
    whole, before = files_of(tmp_path / "out"), stamps(tmp_path / "out")
    (tmp_path / "out" / lost).unlink()
    run(shards, tmp_path / "out")
    assert files_of(tmp_path / "out") == whole
    assert {k: v for k, v in stamps(tmp_path / "out").items() if "01" not in k} == {
        k: v for k, v in before.items() if "01" not in k
    }


@pytest.mark.parametrize("file", ["x-01.parquet", "embeddings/x-01.safetensors"])
@pytest.mark.parametrize("keep", [0, 100, -1])
def test_a_damaged_file_is_made_again_with_a_note(shards: Path, tmp_path: Path, file: str, keep: int) -> None:
    run(shards, tmp_path / "out")
    whole, path = files_of(tmp_path / "out"), tmp_path / "out" / file
    path.write_bytes(path.read_bytes()[:keep])
    progress = Notes()
    summary = run(shards, tmp_path / "out", progress=progress)
    assert files_of(tmp_path / "out") == whole
    assert summary.encoded == 6
    assert "damaged" in said(progress)
    assert "x-01" in said(progress)


def test_a_left_over_temporary_file_does_no_harm(shards: Path, tmp_path: Path) -> None:
    run(shards, tmp_path / "whole")
    (tmp_path / "out" / "embeddings").mkdir(parents=True)
    for name in (".x-01.parquet.tmp", "embeddings/.x-01.safetensors.tmp", "._run.json.tmp"):
        (tmp_path / "out" / name).write_bytes(b"half")
    run(shards, tmp_path / "out")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_shards_added_later_end_as_if_they_had_come_at_once(scenes: Path, tmp_path: Path) -> None:
    paths = sorted(scenes.glob("*.tar"))
    run(paths, tmp_path / "whole", beta="intersection")
    run(paths[:2], tmp_path / "out", beta="intersection")
    assert len(read_table(tmp_path / "out")) == 80
    summary = run(paths[2:], tmp_path / "out", beta="intersection")
    assert (summary.samples, summary.shards, summary.encoded) == (120, 3, 40)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def rewrite_same_size(shard: Path) -> bytes:
    """One letter of a caption changed; the file keeps its size and gets a time of its own."""
    before = shard.read_bytes()
    shard.write_bytes(before.replace(b"number 10 is red", b"number 10 is rad"))
    assert len(shard.read_bytes()) == len(before) != shard.read_bytes().count(b"rad") == 1
    return before


@pytest.mark.parametrize("seconds", [1000, -1000])
def test_a_changed_shard_is_scored_again_newer_or_older(shards: Path, tmp_path: Path, seconds: int) -> None:
    run(shards, tmp_path / "out")
    before = stamps(tmp_path / "out")
    shard = shards / "x-01.tar"
    written = shard.stat().st_mtime
    rewrite_same_size(shard)
    os.utime(shard, (written + seconds, written + seconds))
    progress = Notes()
    assert run(shards, tmp_path / "out", progress=progress).encoded == 6
    after = stamps(tmp_path / "out")
    assert {name for name in after if after[name] != before[name]} == {"x-01.parquet", "x-01.safetensors"}
    assert "x-01.tar has changed since it was scored; it is scored again" in said(progress)
    run(shards, tmp_path / "fresh")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "fresh")


def test_a_shard_that_was_only_touched_is_read_once_to_make_sure(shards: Path, tmp_path: Path) -> None:
    run(shards, tmp_path / "out")
    before = stamps(tmp_path / "out")
    os.utime(shards / "x-01.tar", (0, 0))
    assert run(shards, tmp_path / "out").encoded == 0
    assert stamps(tmp_path / "out") == before
    entries = json.loads((tmp_path / "out" / "_run.json").read_text())["shards"]
    assert [entry["modified"] for entry in entries][1] == 0


def test_a_shard_that_changes_while_the_job_runs_is_seen_next_time(shards: Path, tmp_path: Path) -> None:
    shard, last = shards / "x-01.tar", shards / "x-02.tar"

    class ChangeLater(Silent):
        def shard(self, name: str, samples: int, failed: int) -> None:
            if name == last.stem:  # x-01 is encoded, and its table will be written once more with the scores
                rewrite_same_size(shard)

    run(shards, tmp_path / "out", progress=ChangeLater())
    assert run(shards, tmp_path / "out").encoded == 6


def test_a_changed_shard_whose_new_run_is_stopped_is_not_taken_for_done(shards: Path, tmp_path: Path) -> None:
    run(shards, tmp_path / "out")
    rewrite_same_size(shards / "x-01.tar")
    with pytest.raises(KeyboardInterrupt):
        run(shards, tmp_path / "out", progress=Notes(stop_after=0))
    assert run(shards, tmp_path / "out").encoded == 6


def test_a_moved_shard_keeps_its_table_but_another_one_of_that_name_does_not_get_it(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(shards, tmp_path / "out")
    before = stamps(tmp_path / "out")
    moved = shards.rename(tmp_path / "moved")
    assert run(moved, tmp_path / "out").encoded == 0
    monkeypatch.chdir(moved)
    assert run(["x-00.tar", "x-01.tar", "x-02.tar"], tmp_path / "out").encoded == 0
    assert stamps(tmp_path / "out") == before
    assert len(read_table(tmp_path / "out")) == 18
    other = write_tar(tmp_path / "other" / "x-01.tar", pairs(4))
    with pytest.raises(
        MismatchError, match=r"x-01\.parquet belongs to x-01\.tar, which is not the same as .*other/x-01\.tar"
    ):
        run([other], tmp_path / "out")
    assert stamps(tmp_path / "out") == before


# --- refusing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"estimator": estimator(kind=OtherModel)}, "weights: colours-1 there, colours-2 now"),
        ({"beta": "fixed:0.5"}, "beta: fixed:0.4 there, fixed:0.5 now"),
        ({"seed": 1}, "seed: 0 there, 1 now"),
        ({"options": DecodeOptions(text_field="alt")}, "text_field: None there, alt now"),
        ({"options": DecodeOptions(label_field="y")}, "label_field: None there, y now"),
        ({"options": DecodeOptions(tasks=("pairs", "labels"))}, r"tasks: \['pairs'\] there, \['pairs', 'labels'\] now"),
        ({"options": DecodeOptions(limits=Limits(max_pixels=5))}, "max_pixels: 90000000 there, 5 now"),
        (
            {"options": DecodeOptions(limits=Limits(max_text_chars=5)), "retry_failed": True},
            "max_text_chars: 20000 there, 5 now",
        ),
    ],
)
def test_other_settings_are_refused_by_name_and_cost_nothing(
    shards: Path, tmp_path: Path, setting: dict[str, Any], named: str
) -> None:
    run(shards, tmp_path / "out")
    before = files_of(tmp_path / "out")
    with pytest.raises(MismatchError, match=f"out was made with other settings:\n(.*\n)*.*{named}\n.*--overwrite"):
        run(shards, tmp_path / "out", **setting)
    assert files_of(tmp_path / "out") == before


def test_overwrite_starts_again_and_leaves_other_files_alone(shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(shards, out)
    notes, table, numbers = out / "notes.txt", out / "noise.parquet", out / "embeddings" / "mine.safetensors"
    notes.write_text("mine")
    pq.write_table(pa.table({"key": ["a"]}).replace_schema_metadata({"noisegate.noise_protocol": "p(x)"}), table)
    numbers.write_bytes(b"mine")
    mine = {path: path.read_bytes() for path in (notes, table, numbers)}
    (out / "x-00.parquet").write_bytes(b"damaged")
    summary = run(sorted(shards.glob("*.tar"))[:2], out, beta="fixed:0.5", overwrite=True)
    assert (summary.samples, summary.beta.value) == (12, 0.5)
    assert {path: path.read_bytes() for path in mine} == mine
    assert not (out / "x-02.parquet").exists()
    assert not (out / "embeddings" / "x-02.safetensors").exists()


def test_overwrite_mends_a_damaged_run_file(shards: Path, tmp_path: Path) -> None:
    run(shards, tmp_path / "out")
    whole = files_of(tmp_path / "out")
    (tmp_path / "out" / "_run.json").write_text("{")
    with pytest.raises(TableError, match=r"_run\.json is damaged.*--overwrite"):
        run(shards, tmp_path / "out")
    run(shards, tmp_path / "out", overwrite=True)
    assert files_of(tmp_path / "out") == whole


def test_a_model_that_cannot_be_loaded_does_not_cost_the_tables(shards: Path, tmp_path: Path) -> None:
    run(shards, tmp_path / "out")
    before = files_of(tmp_path / "out")

    def wrong_name() -> Any:
        raise ConfigError("no such model")

    with pytest.raises(ConfigError, match="no such model"):
        run(shards, tmp_path / "out", estimator=wrong_name, overwrite=True)
    assert files_of(tmp_path / "out") == before


def test_a_foreign_file_where_a_table_must_go_is_kept(shards: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "out" / "x-01.parquet"
    foreign.parent.mkdir()
    pq.write_table(pa.table({"mine": [1]}), foreign)
    before = foreign.read_bytes()
    for settings in ({}, {"overwrite": True}):
        with pytest.raises(TableError, match=r"x-01\.parquet is not a weight table.*move it, or choose another --out"):
            run(shards, tmp_path / "out", **settings)
    assert foreign.read_bytes() == before


def test_tables_without_their_run_file_must_fit_the_settings(shards: Path, tmp_path: Path) -> None:
    run(shards, tmp_path / "out")
    (tmp_path / "out" / "_run.json").unlink()
    with pytest.raises(MismatchError, match="other settings"):
        run(shards, tmp_path / "out", options=DecodeOptions(text_field="alt"))
    with pytest.raises(MismatchError, match="another scorer"):
        run(shards, tmp_path / "out", estimator=estimator(kind=OtherModel))


def test_another_job_in_the_same_folder_is_refused(shards: Path, tmp_path: Path) -> None:
    with folder_lock(tmp_path / "out"), pytest.raises(LockedError, match=f"being written by process {os.getpid()}"):
        run(shards, tmp_path / "out")


# --- failed samples --------------------------------------------------------------------------------------------------


def test_failed_samples_alone_are_read_again_when_asked_for(tmp_path: Path) -> None:
    sizes = [(20, 16), (300, 300), (20, 16), (400, 300)]
    members = pairs(3)
    for i, size in enumerate(sizes):
        members += [(f"s{i}.png", picture("blue", size)), (f"s{i}.txt", f"blue number {i}".encode())]
    write_tar(tmp_path / "s" / "x.tar", members)
    write_tar(tmp_path / "s" / "y.tar", pairs(3))
    write_tar(tmp_path / "s" / "z.tar", [("only.png", picture("red", (500, 500))), ("only.txt", b"red")])
    small = DecodeOptions(limits=Limits(max_pixels=1000))
    first = run(tmp_path / "s", tmp_path / "out", options=small)
    assert dict(first.statuses) == {"ok": 8, "too_large": 3}
    before = stamps(tmp_path / "out")
    again = run(tmp_path / "s", tmp_path / "out", options=small, retry_failed=True)
    assert (dict(again.statuses), again.encoded) == (dict(first.statuses), 3)
    summary = run(tmp_path / "s", tmp_path / "out", retry_failed=True)
    assert (dict(summary.statuses), summary.encoded) == ({"ok": 11}, 3)
    assert {name for name, stamp in stamps(tmp_path / "out").items() if stamp == before[name]} == {
        "y.parquet",
        "y.safetensors",
    }
    run(tmp_path / "s", tmp_path / "full")
    mended, full = read_table(tmp_path / "out"), read_table(tmp_path / "full")
    for name in full.column_names:
        if full[name].type == pa.float32():
            left, right = (t[name].to_numpy(zero_copy_only=False) for t in (mended, full))
            np.testing.assert_allclose(left, right, atol=1e-5)
        else:
            assert mended[name].to_pylist() == full[name].to_pylist()
    assert run(tmp_path / "s", tmp_path / "out", retry_failed=True).encoded == 0


def test_a_retry_that_is_stopped_goes_on(tmp_path: Path) -> None:
    for name in ("x", "y"):
        members = [*pairs(3), (f"{name}.png", picture("red", (300, 300))), (f"{name}.txt", b"red")]
        write_tar(tmp_path / "s" / f"{name}.tar", members)
    run(tmp_path / "s", tmp_path / "out", options=DecodeOptions(limits=Limits(max_pixels=1000)))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "s", tmp_path / "out", retry_failed=True, progress=Notes(stop_after=3))
    summary = run(tmp_path / "s", tmp_path / "out", retry_failed=True)
    assert (dict(summary.statuses), summary.encoded) == ({"ok": 8}, 1)


def test_a_retry_reads_a_changed_shard_whole(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "x.tar", [*pairs(3), ("a.png", b"bad"), ("a.txt", b"red")])
    run([shard], tmp_path / "out")
    write_tar(shard, [*pairs(4), ("a.png", picture("red")), ("a.txt", b"red")])
    summary = run([shard], tmp_path / "out", retry_failed=True)
    assert (dict(summary.statuses), summary.encoded) == ({"ok": 5}, 5)


# --- embeddings ------------------------------------------------------------------------------------------------------


def test_embeddings_can_be_dropped_and_the_run_still_goes_on(scenes: Path, tmp_path: Path) -> None:
    paths = sorted(scenes.glob("*.tar"))
    out = tmp_path / "out"
    run(paths, tmp_path / "kept", beta="intersection")
    first = run(paths, out, beta="intersection", keep_embeddings=False)
    assert not list(out.glob("embeddings/*"))
    tables = {path.name: path.read_bytes() for path in out.glob("*.parquet")}
    assert tables == {path.name: path.read_bytes() for path in (tmp_path / "kept").glob("*.parquet")}
    before = stamps(out)
    again = run(paths, out, beta="intersection", keep_embeddings=False)
    assert stamps(out) == before
    assert (again.beta, again.similarity_quantiles) == (first.beta, first.similarity_quantiles)
    # as if it had been killed while it dropped them
    (out / "embeddings").mkdir(exist_ok=True)
    kept = tmp_path / "kept" / "embeddings" / f"{paths[0].stem}.safetensors"
    (out / "embeddings" / kept.name).write_bytes(kept.read_bytes())
    assert run(paths, out, beta="intersection", keep_embeddings=False).encoded == 0
    assert not list(out.glob("embeddings/*"))


@pytest.mark.parametrize("keep", [True, False])
def test_shards_cannot_join_a_run_whose_embeddings_were_dropped(shards: Path, tmp_path: Path, keep: bool) -> None:
    run(shards, tmp_path / "out", keep_embeddings=False)
    before = files_of(tmp_path / "out")
    more = write_tar(tmp_path / "more.tar", pairs(3))
    with pytest.raises(MismatchError, match=r"embeddings of x-00 were dropped, so .*more\.tar cannot.*another --out"):
        run([more], tmp_path / "out", keep_embeddings=keep)
    assert files_of(tmp_path / "out") == before


def test_asking_for_dropped_embeddings_scores_the_shards_again(shards: Path, tmp_path: Path) -> None:
    run(shards, tmp_path / "out", keep_embeddings=False)
    assert run(shards, tmp_path / "out").encoded == 18
    run(shards, tmp_path / "fresh")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "fresh")


# --- shards that cannot be read --------------------------------------------------------------------------------------


def test_a_missing_and_a_garbage_shard_are_named_and_the_others_done(shards: Path, tmp_path: Path) -> None:
    missing, garbage = shards / "gone.tar", shards / "junk.tar"
    garbage.write_bytes(b"this is no tar\n" * 100)
    paths = [*sorted(shards.glob("x-*.tar")), missing, garbage]
    progress = Notes()
    summary = run(paths, tmp_path / "out", progress=progress)
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
    mended = run(paths, tmp_path / "out")
    assert (mended.samples, mended.encoded, dict(mended.failed_shards)) == (22, 4, {})
    run(paths, tmp_path / "fresh")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "fresh")


def test_a_shard_that_is_gone_after_it_was_scored_keeps_its_table(shards: Path, tmp_path: Path) -> None:
    run(shards, tmp_path / "out")
    before, paths = stamps(tmp_path / "out"), sorted(shards.glob("*.tar"))
    paths[1].unlink()
    summary = run(paths, tmp_path / "out")
    assert set(summary.failed_shards) == {str(paths[1])}
    assert (summary.samples, summary.encoded) == (18, 0)
    assert stamps(tmp_path / "out") == before


def test_a_shard_that_turned_into_garbage_loses_its_table(shards: Path, tmp_path: Path) -> None:
    run(shards, tmp_path / "out")
    (shards / "x-01.tar").write_bytes(b"junk" * 200)
    summary = run(shards, tmp_path / "out")
    assert (summary.samples, list(summary.failed_shards)) == (12, [str(shards / "x-01.tar")])
    assert "x-01" not in read_table(tmp_path / "out")["shard"].to_pylist()


def test_nothing_readable_at_all_still_ends_with_a_summary(tmp_path: Path) -> None:
    summary = run([tmp_path / "gone.tar"], tmp_path / "out")
    assert (summary.samples, summary.shards, len(summary.failed_shards)) == (0, 0, 1)
    with pytest.raises(TableError, match="holds no weight tables"):
        read_table(tmp_path / "out")


def test_embeddings_stay_until_every_shard_is_in(shards: Path, tmp_path: Path) -> None:
    paths = [*sorted(shards.glob("*.tar")), shards / "late.tar"]
    run(paths, tmp_path / "out", keep_embeddings=False)
    assert len(list((tmp_path / "out" / "embeddings").iterdir())) == 3
    write_tar(paths[-1], pairs(2))
    assert run(paths, tmp_path / "out", keep_embeddings=False).encoded == 2
    assert not list((tmp_path / "out" / "embeddings").iterdir())


def test_empty_shards_have_empty_tables(tmp_path: Path) -> None:
    write_tar(tmp_path / "s" / "no-members.tar", [])
    (tmp_path / "s" / "no-bytes.tar").write_bytes(b"")
    write_tar(tmp_path / "s" / "no-samples.tar", [("README", b"hello")])
    summary = run(tmp_path / "s", tmp_path / "out", beta="auto")
    assert (summary.samples, summary.shards, dict(summary.failed_shards)) == (0, 3, {})
    assert summary.damaged_shards == {"no-bytes": "the file is empty (0 bytes)"}
    assert len(read_table(tmp_path / "out")) == 0
    before = stamps(tmp_path / "out")
    run(tmp_path / "s", tmp_path / "out", beta="auto")
    assert stamps(tmp_path / "out") == before


def test_shards_without_a_single_good_sample_have_rows_and_no_scores(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "x.tar", [("a.txt", b"red"), ("b.png", b"junk"), ("c.png", picture())])
    summary = run([shard], tmp_path / "out")
    assert (summary.samples, summary.scored, summary.mean_weight) == (3, 0, None)
    assert read_table(tmp_path / "out")["status"].to_pylist() == ["no_image", "bad_image", "no_text"]


def test_no_shards_is_a_mistake(tmp_path: Path) -> None:
    for nothing in ([], str(tmp_path), str(tmp_path / "*.tar")):
        with pytest.raises(ConfigError, match=r"no shard|no \.tar"):
            run(nothing, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- where it is written ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out", ["s3://bucket/tables", "gs:/bucket/tables", "https://host/x"])
def test_a_url_is_no_place_for_tables(shards: Path, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in (out, Path(out)):
        with pytest.raises(ConfigError, match=r"is a URL; tables are written to a local folder, such as --out tables"):
            run(shards, place)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


def test_a_file_is_no_place_for_tables(shards: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (file, file / "below"):
        with pytest.raises(ConfigError, match=r"out .*file.* cannot be written: .*such as --out tables"):
            run(shards, place)
    assert file.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_named(shards: Path) -> None:
    with pytest.raises(ConfigError, match=r"out /proc/none/tables cannot be written: "):
        run(shards, Path("/proc/none/tables"))


@pytest.mark.parametrize(
    ("setting", "message"), [({"seed": -1}, "seed -1"), ({"workers": -1}, "workers -1"), ({"beta": "x"}, "beta 'x'")]
)
def test_settings_that_cannot_work_are_named(
    shards: Path, tmp_path: Path, setting: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(shards, tmp_path / "out", **setting)


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
    run(tmp_path / "s", tmp_path / "whole")
    stopped = 0
    for size in range(24, 400, 16):
        subprocess.run(["mount", "-o", f"remount,size={size}k", str(small_disk)], check=True)
        try:
            run(tmp_path / "s", small_disk / "out")
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


# --- telling how far it is -------------------------------------------------------------------------------------------


def test_progress_adds_up(shards: Path, tmp_path: Path) -> None:
    progress = Notes()
    run(shards, tmp_path / "out", progress=progress)
    total = sum(path.stat().st_size for path in shards.glob("*.tar"))
    assert progress.started == (3, total, 0)
    assert progress.size == total


def test_the_run_file_tells_what_was_done(shards: Path, tmp_path: Path) -> None:
    run(shards, tmp_path / "out")
    facts = RunFolder(tmp_path / "out").read_run()
    assert facts is not None
    assert [shard["table"] for shard in facts["shards"]] == ["x-00", "x-01", "x-02"]
    assert [shard["rows"] for shard in facts["shards"]] == [6, 6, 6]
    assert (facts["beta"]["value"], facts["complete"], facts["scorer"]["weights"]) == (0.4, True, "colours-1")
