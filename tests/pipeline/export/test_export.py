"""Exports as one flat file, read back by the tools that people have; and where an export may go."""

import csv
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisegate import read_table
from noisegate.pipeline.errors import MismatchError, TableError
from noisegate.pipeline.export import export
from noisegate.pipeline.export.datacomp import UID, uid_array
from noisegate.pipeline.rescore import score_embeddings
from noisegate.pipeline.runs.table import RunFolder
from tests.commands import called, command
from tests.errors import refused
from tests.fakes import pairs, picture, write_tar
from tests.jobs import files_of, score

NASTY = 'red, "rouge"\r\nand\nnew\tlines, \0 NUL, 赤 \\n \' ;'


def uid(i: int) -> str:
    return f"{(i * 0x9E3779B97F4A7C15F39CC0605CEDC835) % 2**128:032x}"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards `s` with nasty captions, failures and a shard without a good sample, scored into `run`."""
    folder = tmp_path_factory.mktemp("export")
    nasty = [("nasty.png", picture("red")), ("nasty.txt", NASTY.encode())]
    comma = [('com,ma "q".png', picture("blue")), ('com,ma "q".txt', b"blue")]
    bad = [("bad.png", b"junk"), ("bad.txt", b"red"), ("alone.txt", b"red")]
    again = [("00001.png", picture("green")), ("00001.txt", b"green again")]
    write_tar(folder / "s" / "x-00.tar", [*pairs(8), *nasty, *comma, *bad, *again])
    write_tar(folder / "s" / "x-01.tar", bad)
    write_tar(folder / "s" / "x-02.tar", pairs(7, 20))
    score(folder / "s", folder / "run")
    return folder


@pytest.fixture(scope="module")
def rows(work: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_table(work / "run").to_pylist()
    return found


# --- keys and flat files ------------------------------------------------------------------------------------------------
def test_keys_are_one_per_line(work: Path, tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    done = export(work / "run", tmp_path / "keys.txt", "keys", where="osa_weight > 0.1")
    wanted = [row for row in rows if (row["osa_weight"] or 0) > 0.1]
    assert (tmp_path / "keys.txt").read_text().splitlines() == [row["key"] for row in wanted]
    assert (done.rows, done.kept, done.written) == (len(rows), len(wanted), len(wanted))
    assert 0 < len(wanted) < len(rows)
    assert done.files == [str(tmp_path / "keys.txt")] and done.bytes == (tmp_path / "keys.txt").stat().st_size
    export(work / "run", tmp_path / "long.txt", "keys", with_shard=True)
    assert (tmp_path / "long.txt").read_text().splitlines() == [f"{row['shard']}/{row['key']}" for row in rows]


def test_a_key_with_a_line_break_does_not_fit_a_list(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "x.tar", [("a\nb.png", picture("red")), ("a\nb.txt", b"red")])
    score([shard], tmp_path / "run")
    with refused("key", "a\nb"):
        export(tmp_path / "run", tmp_path / "keys.txt", "keys")
    export(tmp_path / "run", tmp_path / "keys.jsonl", "jsonl")
    assert json.loads((tmp_path / "keys.jsonl").read_text())["key"] == "a\nb"


def test_parquet_read_by_duckdb_polars_and_pandas(work: Path, tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = tmp_path / "flat.parquet"
    done = export(work / "run", path, "parquet")
    names = pq.read_schema(path).names
    assert names[:3] == ["key", "shard", "similarity"]
    assert {"osa_weight", "clean"} <= set(names)
    assert not {"label", "label_quality", "refined_label"} & set(names)  # null throughout
    assert done.written == len(rows)
    for column in names:
        wanted = [row[column] for row in rows]
        assert [v for (v,) in duckdb.execute(f"select {column} from '{path}'").fetchall()] == wanted
        assert pl.read_parquet(path)[column].to_list() == wanted
    frame = pd.read_parquet(path)
    np.testing.assert_array_equal(frame["osa_weight"].to_numpy(), [row["osa_weight"] or np.nan for row in rows])
    assert json.loads(pq.read_schema(path).metadata[b"noisegate.export"])["where"] is None


def test_every_column_can_be_chosen(work: Path, tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    names = ["flags", "shard", "image_sha256", "error", "status", "index", "label", "key"]
    for kind in ("parquet", "csv", "jsonl"):
        export(work / "run", tmp_path / f"f.{kind}", kind, columns=names)
    wanted = [{name: row[name] for name in names} for row in rows]
    assert pq.read_table(tmp_path / "f.parquet").to_pylist() == wanted
    hexed = [{**row, "image_sha256": row["image_sha256"] and row["image_sha256"].hex()} for row in wanted]
    assert [json.loads(line) for line in (tmp_path / "f.jsonl").read_bytes().splitlines()] == hexed
    with (tmp_path / "f.csv").open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    for row, wanted_row in zip(found, hexed, strict=True):
        assert json.loads(row["flags"]) == wanted_row["flags"]
        assert row["image_sha256"] == (wanted_row["image_sha256"] or "")
        assert (row["key"], row["error"], row["label"]) == (wanted_row["key"], wanted_row["error"] or "", "")
    assert ["duplicate_key"] in [json.loads(row["flags"]) for row in found]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_captions_come_through_whatever_they_hold(work: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"out.{kind}"
    rule = "key in ('nasty', 'com,ma \"q\"', 'alone')"
    export(work / "run", path, kind, columns=["caption", "key", "osa_weight"], where=rule)
    if kind == "csv":
        frames = [
            pd.read_csv(path, keep_default_na=False),
            pl.read_csv(path).to_pandas(),
            duckdb.read_csv(str(path), quotechar='"', escapechar='"').df(),
        ]
        with path.open(newline="", encoding="utf-8") as file:
            frames.append(pd.DataFrame(list(csv.DictReader(file))))
    elif kind == "jsonl":
        frames = [pd.read_json(path, lines=True, dtype={"key": str}), pl.read_ndjson(path).to_pandas()]
    else:
        frames = [pd.read_parquet(path)]
    for frame in frames:
        assert frame["key"].tolist() == ["nasty", 'com,ma "q"', "alone", "alone"]
        assert frame["caption"].tolist() == [NASTY, "blue", "red", "red"]


def test_floats_keep_every_bit_and_no_more(work: Path, tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    for kind in ("csv", "jsonl"):
        export(work / "run", tmp_path / f"f.{kind}", kind, columns=["similarity"], where="similarity is not null")
    wanted = np.array([row["similarity"] for row in rows if row["similarity"] is not None], np.float32)
    text = (tmp_path / "f.csv").read_text().splitlines()[1:]
    np.testing.assert_array_equal(np.array(text, np.float32), wanted)
    assert max(map(len, text)) <= 14
    lines = [json.loads(line)["similarity"] for line in (tmp_path / "f.jsonl").read_text().splitlines()]
    np.testing.assert_array_equal(np.array(lines, np.float32), wanted)


def test_columns_that_are_not_there(work: Path, tmp_path: Path) -> None:
    with refused("columns", "osa_wieght"):
        export(work / "run", tmp_path / "x.csv", "csv", columns=["key", "osa_wieght"])
    with refused("columns", []):
        export(work / "run", tmp_path / "x.csv", "csv", columns=[])
    assert list(tmp_path.iterdir()) == []


# --- DataComp -------------------------------------------------------------------------------------------------------------
def _with_uids(folder: Path, count: int = 9) -> Path:
    for shard in range(2):
        members = []
        for i in range(shard * count, (shard + 1) * count):
            record = json.dumps({"uid": uid(i), "caption": "red"}).encode()
            members += [(f"{i:04d}.png", picture("red")), (f"{i:04d}.json", record)]
        write_tar(folder / "s" / f"d-{shard}.tar", members)
    score(folder / "s", folder / "run")
    return folder / "run"


def test_datacomp_finds_its_samples_in_the_subset(tmp_path: Path) -> None:
    run = _with_uids(tmp_path)
    done = export(run, tmp_path / "subset.npy", "datacomp", where="index % 3 <> 1")
    subset = np.load(tmp_path / "subset.npy", mmap_mode="r")
    assert subset.dtype == np.dtype("u8,u8") == UID
    kept = [i for i in range(18) if (i % 9) % 3 != 1]
    assert [(int(high) << 64) + int(low) for high, low in subset] == sorted(int(uid(i), 16) for i in kept)
    assert np.array_equal(subset, np.sort(np.array(subset)))
    for i in range(18):  # the way DataComp's own tool looks a sample up
        wanted = np.array([divmod(int(uid(i), 16), 2**64)], UID)[0]
        times = np.searchsorted(subset, wanted, "right") - np.searchsorted(subset, wanted, "left")
        assert times == (i in kept)
    assert (done.rows, done.kept, done.written) == (18, 12, 12)


def test_uids_are_not_taken_from_shards_that_changed(tmp_path: Path) -> None:
    run = _with_uids(tmp_path)
    shard = tmp_path / "s" / "d-1.tar"
    shard.write_bytes(shard.read_bytes().replace(uid(12).encode(), uid(99).encode()))
    with refused("shards", str(shard), MismatchError):
        export(run, tmp_path / "subset.npy", "datacomp")
    assert not (tmp_path / "subset.npy").exists()


def test_a_uid_that_two_samples_share_is_listed_once(tmp_path: Path) -> None:
    members = []
    for key, number in (("a", 1), ("b", 2), ("c", 1)):
        members += [
            (f"{key}.png", picture("red")),
            (f"{key}.json", json.dumps({"uid": uid(number), "text": "red"}).encode()),
        ]
    score([write_tar(tmp_path / "x.tar", members)], tmp_path / "run")
    done = export(tmp_path / "run", tmp_path / "s.npy", "datacomp")
    assert len(np.load(tmp_path / "s.npy")) == 2
    assert (done.written, done.left_out) == (2, {"uid listed already": 1})


def test_keys_of_32_hex_digits_are_uids(tmp_path: Path) -> None:
    members = [m for i in (5, 6) for m in ((f"{uid(i)}.png", picture("red")), (f"{uid(i)}.txt", b"red"))]
    score([write_tar(tmp_path / "x.tar", members)], tmp_path / "run")
    export(tmp_path / "run", tmp_path / "s.npy", "datacomp")
    found = {(int(high) << 64) + int(low) for high, low in np.load(tmp_path / "s.npy")}
    assert found == {int(uid(5), 16), int(uid(6), 16)}


def test_samples_without_a_uid_are_named(work: Path, tmp_path: Path) -> None:
    with refused("as", "datacomp") as caught:
        export(work / "run", tmp_path / "s.npy", "datacomp")
    assert "x-00/00000, x-00/00001, " in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.integers(0, 2**128 - 1), max_size=30))
def test_uids_sort_as_numbers(numbers: list[int]) -> None:
    found = uid_array([f"{number:032x}" for number in numbers])
    assert [(int(high) << 64) + int(low) for high, low in found] == sorted(set(numbers))


# --- where an export goes -------------------------------------------------------------------------------------------------
def test_nothing_is_overwritten_unless_asked(work: Path, tmp_path: Path) -> None:
    out = tmp_path / "keys.txt"
    out.write_text("mine")
    with refused("out", out):
        export(work / "run", out, "keys")
    assert out.read_text() == "mine"
    export(work / "run", out, "keys", overwrite=True)
    assert out.read_text().startswith("00000\n")


def test_a_folder_is_replaced_only_where_it_is_an_export(work: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept"
    (out / "deep").mkdir(parents=True)
    (out / "deep" / "thesis.txt").write_text("mine")
    for overwrite in (False, True):
        with refused("out", out) as caught:
            export(work / "run", out, "shards", overwrite=overwrite)
        assert ("is not an export" if overwrite else "is there already") in str(caught.value)
    assert (out / "deep" / "thesis.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    export(work / "run", tmp_path / "empty", "shards")
    export(work / "run", tmp_path / "empty", "shards", where="shard = 'x-02'", overwrite=True)
    assert [path.name for path in sorted((tmp_path / "empty").iterdir())] == [
        "_export.json",
        "croissant.json",
        "x-02.tar",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "kept"]


def test_an_export_that_was_killed_while_being_replaced_is_still_there(work: Path, tmp_path: Path) -> None:
    export(work / "run", tmp_path / "kept", "shards")
    before = files_of(tmp_path / "kept")
    (tmp_path / "kept").rename(tmp_path / ".kept.old")  # the moment between the two renames
    (tmp_path / ".kept.tmp").mkdir()
    with refused("out", tmp_path / "kept"):
        export(work / "run", tmp_path / "kept", "shards", where="index = 1")
    assert files_of(tmp_path / "kept") == before
    export(work / "run", tmp_path / "kept", "shards", where="index = 1", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    ("out", "kind", "message"),
    [
        ("run/x.csv", "csv", "lie in one another"),
        ("run", "shards", "lie in one another"),
        (".", "shards", "lie in one another"),
        ("s", "shards", "holds, the shard"),
        ("s/x-00.tar", "csv", "holds, the shard"),
        ("s/x-00.tar", "shards", "holds, the shard"),
        ("folder", "csv", "is a folder; name a file"),
        ("file", "datasets", "is a file; name a folder"),
        ("file/x.csv", "csv", "cannot be written"),
    ],
)
def test_places_that_an_export_would_spoil(work: Path, out: str, kind: str, message: str) -> None:
    (work / "folder").mkdir(exist_ok=True)
    (work / "file").write_text("mine")
    before = files_of(work)
    with refused("out") as caught:
        export(work / "run", work / out, kind, overwrite=True)
    assert message in str(caught.value)
    assert files_of(work) == before


def test_a_rule_that_keeps_nothing_writes_nothing(work: Path, tmp_path: Path) -> None:
    for kind in ("keys", "csv", "parquet", "jsonl", "datacomp", "shards", "datasets"):
        with refused("where", "similarity > 2") as caught:
            export(work / "run", tmp_path / "out", kind, where="similarity > 2")
        assert "keeps none of 22 rows" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_options_that_mean_nothing_are_refused(work: Path, tmp_path: Path) -> None:
    with refused("with_shard", True) as caught:
        export(work / "run", tmp_path / "x", "csv", with_shard=True)
    assert str(caught.value) == "with-shard has no meaning for csv; it goes with keys"
    with refused("add_columns", {"w": "osa_weight"}):
        export(work / "run", tmp_path / "x", "keys", add_columns={"w": "osa_weight"})
    with refused("columns", ["key"]):
        export(work / "run", tmp_path / "x", "shards", columns=["key"])
    with refused("as", "xml"):
        export(work / "run", tmp_path / "x", "xml")


# --- runs ---------------------------------------------------------------------------------------------------------------
def test_runs_that_cannot_be_exported(shards: Path, tmp_path: Path) -> None:
    with refused("run", error=TableError):
        export(tmp_path, tmp_path / "x", "keys")
    score(shards, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    facts = run.read_run() or {}
    run.write_run({**facts, "finished": False})
    with refused("folder", run.path, TableError):
        export(run.path, tmp_path / "x", "keys")
    run.write_run(facts)
    run.table("x-01").unlink()
    with refused("folder", run.path, TableError):
        export(run.path, tmp_path / "x", "keys")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("kind", ["shards", "datasets", "csv"])
def test_shards_that_changed_since_are_not_joined(shards: Path, tmp_path: Path, kind: str) -> None:
    score(shards, tmp_path / "run")
    columns = ["key", "caption"] if kind == "csv" else None
    shard = shards / "x-02.tar"
    whole = shard.read_bytes()
    for changed in (whole.replace(b"number 21", b"number 99"), whole.replace(b"00021", b"00091")):
        assert changed != whole
        shard.write_bytes(changed)
        # the first two shards are fine, and nothing of them is shown either
        with refused("shards", str(shard), MismatchError):
            export(tmp_path / "run", tmp_path / "out", kind, columns=columns)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "shards"]


def test_runs_of_embeddings_have_keys_and_scores_but_no_shards(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((60, 8)).astype(np.float32)
    np.save(tmp_path / "i.npy", rows)
    np.save(tmp_path / "t.npy", rows + rng.standard_normal((60, 8)).astype(np.float32))
    score_embeddings(tmp_path / "run", tmp_path / "i.npy", texts=tmp_path / "t.npy")
    assert export(tmp_path / "run", tmp_path / "x.csv", "csv").written == 60
    for kind, columns in (("shards", None), ("datasets", None), ("jsonl", ["caption"])):
        with refused("folder", tmp_path / "run"):
            export(tmp_path / "run", tmp_path / "out", kind, columns=columns)
    with refused("as", "datacomp"):
        export(tmp_path / "run", tmp_path / "out", "datacomp")


@pytest.mark.skipif(os.name != "posix", reason="needs a named pipe and SIGKILL")
def test_a_killed_export_shows_nothing_and_can_be_run_again(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "run")
    last = shards / "x-02.tar"
    whole = last.read_bytes()
    last.unlink()
    os.mkfifo(last)
    arguments = ("export", "run", "--as", "shards", "--out", "kept")
    child = subprocess.Popen(**command(*arguments), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with last.open("wb", buffering=0) as pipe:  # opens when the export has come to its last shard
        pipe.write(whole[: len(whole) // 2])
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert not (tmp_path / "kept").exists()
    last.unlink()
    last.write_bytes(whole)
    done = called(*arguments, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["written"] == 18
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "run", "shards"]


# --- the command ----------------------------------------------------------------------------------------------------------
def test_the_command_counts_and_says_what_is_wrong(work: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    rule = "status = 'ok' and osa_weight >= 0"
    arguments = ("export", "run", "--as", "csv", "--columns", "key, osa_weight", "--where", rule, "--out", out)
    done = called(*arguments, "--json", cwd=work)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert (counts["rows"], counts["kept"], counts["written"]) == (22, 18, 18)
    assert counts["files"] == [str(out)] and counts["bytes"] == out.stat().st_size
    assert pd.read_csv(out).columns.tolist() == ["key", "osa_weight"]
    again = called(*arguments, cwd=work)
    assert again.returncode == 2 and "--overwrite" in again.stderr
    wrong = called("export", "run", "--as", "keys", "--where", "clen", "--out", tmp_path / "k", cwd=work)
    assert wrong.returncode == 2 and "did you mean clean" in wrong.stderr
    shown = called(
        "export", "run", "--as", "shards", "--add-columns", "w=osa_weight", "--where", "index > 3 and clean",
        "--out", tmp_path / "kept", cwd=work,
    )  # fmt: skip
    assert shown.returncode == 0
    assert "nothing would be in them: x-01 (shards: 1)" in shown.stderr


def test_texts_like_formulas_are_exact_in_csv_unless_it_is_for_a_spreadsheet(tmp_path: Path) -> None:
    keys = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "a=b", "0001", "'=1"]
    files = [(f"{key}.{part}", data) for key in keys for part, data in (("png", picture()), ("txt", key.encode()))]
    write_tar(tmp_path / "s" / "x.tar", files)
    score(tmp_path / "s", tmp_path / "run")
    columns = ["key", "caption", "similarity"]
    export(tmp_path / "run", tmp_path / "plain.csv", "csv", columns=columns)
    export(tmp_path / "run", tmp_path / "safe.csv", "csv", columns=columns, spreadsheet_safe=True)
    plain, safe = (list(csv.reader((tmp_path / f"{name}.csv").open(newline=""))) for name in ("plain", "safe"))
    assert [row[0] for row in plain[1:]] == [row[1] for row in plain[1:]] == keys
    assert [row[0] for row in safe[1:]] == [row[1] for row in safe[1:]] == [*(f"'{key}" for key in keys[:4]), *keys[4:]]
    assert [row[2] for row in safe] == [row[2] for row in plain]  # a negative number is no text
    with refused("spreadsheet_safe", True):
        export(tmp_path / "run", tmp_path / "x.jsonl", "jsonl", spreadsheet_safe=True)
