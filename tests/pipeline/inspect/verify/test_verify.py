"""`verify` passes on a run that nobody touched, and names what was changed on one that somebody did."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.inspect.verify import Verification, verify
from noisegate.pipeline.inspect.verify.check_shard import KEPT, Problems
from noisegate.pipeline.rescore import rescore, score_embeddings
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.settings import DecodeOptions, Limits, ScoreSettings
from tests.commands import FAKE, called
from tests.errors import refused
from tests.fakes import Member, OtherModel, estimator, pairs, picture, tar_bytes, write_tar
from tests.jobs import Notes, files_of, score


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of twelve samples in `shards`, one of them broken, and their tables in `run`; tests work on copies."""
    folder = tmp_path_factory.mktemp("verify")
    for i in range(3):
        extra = [("bad.png", b"no picture"), ("bad.txt", b"red"), ("bad.cls", b"3")] if i == 1 else []
        write_tar(folder / "shards" / f"x-{i:02d}.tar", [*pairs(12, 20 * i), *extra])
    score(folder / "shards", folder / "run")
    return folder


@pytest.fixture
def work(scored: Path, tmp_path: Path) -> Path:
    """A copy of the run, its shards beside it."""
    folder = tmp_path / "copy"
    shutil.copytree(scored, folder)
    run = json.loads((folder / "run" / "_run.json").read_text())
    for entry in run["shards"]:
        entry["url"] = str(folder / "shards" / Path(entry["url"]).name)
    (folder / "run" / "_run.json").write_text(json.dumps(run))
    return folder


def check(work: Path, **settings: Any) -> Verification:
    return verify(work / "run", **{"estimator": estimator(), **settings})


def texts(found: Verification) -> str:
    assert not found.ok
    assert found.problem_count >= len(found.problems) > 0
    return "\n".join(map(str, found.problems))


def members(i: int = 1) -> list[Member]:
    return pairs(12, 20 * i)


def rewrite(work: Path, edit: Callable[[pa.Table], pa.Table], stem: str = "x-01") -> None:
    """Put an edited table in the place of the old one, its metadata as it was unless the edit changed it."""
    run = RunFolder(work / "run")
    table = run.read(stem)
    edited = edit(table)
    run.write_table(stem, edited if edited.schema.metadata else edited.replace_schema_metadata(table.schema.metadata))


def with_value(table: pa.Table, name: str, row: int, value: Any) -> pa.Table:
    values = table[name].to_pylist()
    values[row] = value
    return table.set_column(
        table.schema.names.index(name), table.schema.field(name), pa.array(values, table[name].type)
    )


def with_metadata(table: pa.Table, name: str, value: Any) -> pa.Table:
    key = f"noisegate.{name}".encode()
    return table.replace_schema_metadata({**table.schema.metadata, key: json.dumps(value).encode()})


# --- nothing was touched ----------------------------------------------------------------------------------------------
def test_an_untouched_run_passes_and_nothing_is_written(work: Path) -> None:
    before = files_of(work / "run")
    found = check(work)
    assert found.ok, found.problems
    assert (found.shards, found.shards_in_run, found.samples, found.drift.samples) == (3, 3, 37, 36)
    assert found.drift.similarity == pytest.approx(0, abs=1e-6)
    assert found.drift.weight == pytest.approx(0, abs=1e-6)
    assert found.verdict.startswith("the table belongs to the data: 3 shards, 37 samples checked, largest drift ")
    assert files_of(work / "run") == before


def test_the_slice_is_seeded_and_some_shards_can_be_enough(work: Path) -> None:
    few = check(work, samples=5, shards=2, seed=3)
    assert few.ok
    assert few.drift.samples == 5
    assert "2 of 3 shards" in few.verdict
    assert few == check(work, samples=5, shards=2, seed=3)


def test_all_but_scoring_again_works_without_the_model(work: Path) -> None:
    found = verify(work / "run", rescore=False)
    assert found.ok
    assert found.drift.largest is None
    assert "nothing scored again" in found.verdict


def test_progress_counts_all_bytes_and_samples(work: Path) -> None:
    notes = Notes()
    check(work, progress=notes, rescore=False)
    size = sum(path.stat().st_size for path in (work / "shards").iterdir())
    assert notes.started == (3, size, 0)
    assert notes.size == size


def test_runs_with_labels_pass_too(tmp_path: Path) -> None:
    labelled = [
        part
        for i, (name, data) in enumerate(pairs(60))
        for part in [(name, data), *([(name.replace("txt", "cls"), str(i // 2 % 10).encode())] if i % 2 else [])]
    ]
    write_tar(tmp_path / "shards" / "x.tar", labelled)
    score(tmp_path / "shards", tmp_path / "run", options=DecodeOptions(tasks=("pairs", "labels")), k=5)
    found = verify(tmp_path / "run", estimator=estimator())
    assert found.ok, found.problems
    assert found.drift.largest is not None
    assert any("whole run" in note for note in found.notes)
    write_tar(tmp_path / "shards" / "x.tar", [(n, b"7" if n == "00003.cls" else d) for n, d in labelled])
    assert "x.tar: sample 00003: the label is 7 now, 3 in the table" in texts(
        verify(tmp_path / "run", estimator=estimator())
    )


def test_label_runs_without_captions_are_scored_again_by_their_pictures(tmp_path: Path) -> None:
    named = [(name.replace("txt", "cls"), data if "png" in name else b"1") for name, data in pairs(30)]
    write_tar(tmp_path / "shards" / "x.tar", named)
    score(tmp_path / "shards", tmp_path / "run", options=DecodeOptions(tasks=("labels",)), k=5)
    found = verify(tmp_path / "run", estimator=estimator())
    assert found.ok, found.problems
    assert found.drift.similarity is None
    assert found.drift.image == pytest.approx(0, abs=1e-5)


def test_dropped_embeddings_and_a_later_beta_are_no_reason_to_fail(work: Path, tmp_path: Path) -> None:
    rescore(work / "run", lambda recorded: ScoreSettings(beta="fixed:0.2"))
    assert check(work).ok
    score(work / "shards", tmp_path / "dropped", keep_embeddings=False)
    found = verify(tmp_path / "dropped", estimator=estimator())
    assert found.ok
    assert any("no shard has embeddings" in note for note in found.notes)


def test_neighbourhoods_pass(scenes: Path, tmp_path: Path) -> None:
    score(scenes, tmp_path / "run", neighbourhood=True)
    found = verify(tmp_path / "run", estimator=estimator(), samples=10)
    assert found.ok, found.problems


def test_odd_shards_pass_as_long_as_they_are_as_odd_as_before(tmp_path: Path) -> None:
    """Empty, cut off, packed, without any picture; keys twice and no UTF-8; captions in json, too long, of no letters."""
    folder = tmp_path / "shards"
    write_tar(folder / "empty.tar", [])
    write_tar(
        folder / "failed.tar", [("a.png", b"no"), ("a.txt", b"red"), ("b.txt", b"red"), ("c.png", picture("red"))]
    )
    (folder / "cut.tar").write_bytes(tar_bytes(pairs(6))[:5000])
    (folder / "packed.tar.gz").write_bytes(gzip.compress(tar_bytes(pairs(6, 10)), mtime=0))
    members = [("k\udcff.png", picture("red")), ("k\udcff.txt", b"red"), *pairs(3), *pairs(2)]
    for i, text in enumerate([b"\xff\xfe", b"  ", b"x" * 200]):
        members += [(f"t{i}.png", picture("red")), (f"t{i}.txt", text)]
    for i, record in enumerate([{"caption": "red"}, {"caption": 3}, {"caption": "x" * 200}, {"label": 2}]):
        members += [(f"j{i}.png", picture("red")), (f"j{i}.json", json.dumps(record).encode())]
    write_tar(folder / "odd.tar", members)
    options = DecodeOptions(limits=Limits(max_text_chars=100))
    score([folder], tmp_path / "run", options=options)
    found = verify(tmp_path / "run", estimator=estimator())
    assert found.ok, found.problems
    assert found.shards == 5
    raised = DecodeOptions(limits=Limits(max_text_chars=300))
    score([folder], tmp_path / "run", options=raised, retry_failed=True)
    again = verify(tmp_path / "run", estimator=estimator())
    assert again.ok, again.problems
    assert again.drift.samples == found.drift.samples + 2  # the two long captions


# --- the shard was changed --------------------------------------------------------------------------------------------
def test_one_byte_of_a_caption(work: Path) -> None:
    changed = [(n, d.replace(b"is", b"Is") if n == "00023.txt" else d) for n, d in members(1)]
    bad = [("bad.png", b"no picture"), ("bad.txt", b"red"), ("bad.cls", b"3")]
    write_tar(work / "shards" / "x-01.tar", [*changed, *bad])
    found = check(work)
    assert "x-01.tar: sample 00023: the caption's bytes have changed" in texts(found)
    assert "x-01.tar: the file has changed" in str(found.problems[0])
    assert found.problem_count == 2


def test_one_byte_of_an_image(work: Path) -> None:
    flipped = [(n, d[:-1] + bytes([d[-1] ^ 1]) if n == "00003.png" else d) for n, d in members(0)]
    write_tar(work / "shards" / "x-00.tar", flipped)
    assert "x-00.tar: sample 00003: the image's bytes have changed" in texts(check(work))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda m: m[:4] + m[6:], "x-02.tar: sample 00042: in the table, but not in the shard"),
        (
            lambda m: [*m, ("new.png", picture("red")), ("new.txt", b"red")],
            "x-02.tar: sample new: in the shard, but not in the table",
        ),
        (lambda m: [*m, *m[:2]], "x-02.tar: sample 00040: in the shard, but not in the table this often"),
        (
            lambda m: m[2:4] + m[:2] + m[4:],
            "x-02.tar: sample 00040: comes after sample 00041 in the shard, before it in the table",
        ),
        (lambda m: [part for part in m if part[0] != "00044.txt"], "sample 00044: the caption is gone"),
    ],
    ids=["removed", "added", "repeated", "reordered", "caption removed"],
)
def test_samples_of_the_tar(work: Path, edit: Callable[[list[Member]], list[Member]], words: str) -> None:
    write_tar(work / "shards" / "x-02.tar", edit(members(2)))
    found = check(work)
    assert words in texts(found)
    assert {problem.shard for problem in found.problems} == {"x-02.tar"}
    assert found.problem_count == 2  # the file, and that sample


def test_a_tar_packed_anew_has_the_same_samples_and_says_so(work: Path) -> None:
    shard = work / "shards" / "x-00.tar"
    shard.write_bytes(shard.read_bytes() + bytes(512))
    assert "the pictures, captions and labels of all its samples are the same" in texts(check(work))


def test_a_shard_that_is_gone_or_cut(work: Path) -> None:
    (work / "shards" / "x-00.tar").unlink()
    cut = work / "shards" / "x-02.tar"
    cut.write_bytes(cut.read_bytes()[:6000])
    said = texts(check(work))
    assert "x-00.tar cannot be opened: No such file or directory" in said
    assert "x-02.tar: the file has changed: 6,000 bytes" in said
    assert "x-02.tar: sample 00051: in the table, but not in the shard" in said


# --- the table was changed --------------------------------------------------------------------------------------------
def test_a_row_removed_from_the_table(work: Path) -> None:
    rewrite(work, lambda t: pa.concat_tables([t.slice(0, 3), t.slice(4)]))
    said = texts(check(work))
    assert "x-01.tar: sample 00023: in the shard, but not in the table" in said
    assert "x-01.tar: the table has 12 rows, its own record says 13" in said


def test_a_row_added_to_the_table(work: Path) -> None:
    rewrite(work, lambda t: pa.concat_tables([t, t.slice(0, 1)]))
    said = texts(check(work))
    assert "the table has 14 rows, its own record says 13" in said
    assert "x-01.tar: sample 00020: in the table, but not in the shard" in said


def test_rows_of_the_table_in_another_order(work: Path) -> None:
    rewrite(work, lambda t: t.take([1, 0, *range(2, 13)]))
    said = texts(check(work))
    assert "sample 00021: row 0 of the table has index 1; rows were moved, removed or added" in said


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("osa_weight", 0.1, "osa_weight is 0.1, but β 0.4 and similarity"),
        ("osa_weight", None, "osa_weight is null, but β 0.4 and similarity"),
        ("clean", False, "clean is false, but osa_weight"),
        ("clean_probability", 0.123, "clean_probability is 0.123, but the calibration and "),
        ("clean_probability", 1.5, "clean_probability is 1.5, which is no probability"),
        ("similarity", 0.9, "similarity is 0.9000, but its kept embeddings give"),
        ("text_sha256", bytes(32), "the caption's bytes have changed"),
        ("label", 4, "the label is None now, 4 in the table"),
    ],
)
def test_one_value_of_the_table(work: Path, name: str, value: Any, words: str) -> None:
    rewrite(work, lambda t: with_value(t, name, 5, value))
    found = check(work)
    assert words in texts(found)
    assert {(p.shard, p.key) for p in found.problems} == {("x-01.tar", "00025")}


def test_a_score_for_a_sample_that_failed(work: Path) -> None:
    rewrite(work, lambda t: with_value(t, "similarity", 12, 0.5))
    assert "x-01.tar: sample bad: the sample failed, but has a similarity" in texts(check(work))


def test_beta_of_one_table(work: Path) -> None:
    beta = read_metadata(work / "run" / "x-01.parquet")["beta"]
    rewrite(work, lambda t: with_metadata(t, "beta", beta | {"value": 0.41}))
    said = texts(check(work))
    assert "x-01.tar: β is 0.41 in this table, 0.4 in the others" in said
    assert "x-01.tar: sample 00020: osa_weight is" in said


def test_beta_of_the_run_file(work: Path) -> None:
    run = json.loads((work / "run" / "_run.json").read_text())
    run["beta"]["value"] = 0.3
    (work / "run" / "_run.json").write_text(json.dumps(run))
    found = check(work)
    assert texts(found) == "β in _run.json (0.3, fixed) is not that of the tables (0.4, fixed)"


def test_a_record_that_cannot_be_read(work: Path) -> None:
    rewrite(work, lambda t: with_metadata(t, "calibration", {"noise_rate": 0.5}))
    assert "x-01.tar: the table's record of β or calibration cannot be read" in texts(check(work))
    rewrite(work, lambda t: with_metadata(t, "beta", {"value": 7}))
    assert "x-01.parquet has damaged metadata: beta.mode is missing" in texts(check(work))


@pytest.mark.parametrize(
    ("name", "what"), [("x-01.parquet", "table was"), ("embeddings/x-01.safetensors", "embeddings were")]
)
def test_an_edit_that_nothing_else_shows(work: Path, name: str, what: str) -> None:
    path = work / "run" / name
    if path.suffix == ".parquet":
        pq.write_table(with_metadata(pq.read_table(path), "note", "all is well"), path)
    else:
        data = bytearray(path.read_bytes())
        data[-2] ^= 1  # the last digit of a number
        path.write_bytes(data)
    assert f"x-01.tar: the {what} changed after" in texts(check(work))


def test_a_table_of_another_scorer(work: Path) -> None:
    scorer = read_metadata(work / "run" / "x-01.parquet")["scorer"]
    rewrite(work, lambda t: with_metadata(t, "scorer", scorer | {"weights": "colours-9"}))
    assert "another scorer than the others: weights: colours-1 there, colours-9 now" in texts(check(work))


def test_a_table_of_another_version(work: Path) -> None:
    rewrite(work, lambda t: with_metadata(t, "table_version", 2))
    assert "is not a weight table of version 1 (found 2)" in texts(check(work))


# --- files ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("file", "cut", "words"),
    [
        ("x-01.parquet", None, "x-01.tar: has no table x-01.parquet"),
        ("x-01.parquet", 900, "is not a readable Parquet file"),
        ("embeddings/x-01.safetensors", None, "x-01.tar: the embeddings file is missing"),
        ("embeddings/x-01.safetensors", 900, "x-01.tar: the embeddings file cannot be read"),
    ],
)
def test_a_file_that_is_gone_or_cut(work: Path, file: str, cut: int | None, words: str) -> None:
    path = work / "run" / file
    data = path.read_bytes()
    path.unlink()
    if cut is not None:
        path.write_bytes(data[:cut])
    found = check(work)
    assert words in texts(found)
    assert {problem.shard for problem in found.problems} == {"x-01.tar"}


def test_embeddings_of_another_shard(work: Path) -> None:
    shutil.copy(work / "run" / "embeddings" / "x-00.safetensors", work / "run" / "embeddings" / "x-02.safetensors")
    assert "x-02.tar: the embeddings file has 12 rows or was made from another shard" in texts(check(work))


def test_a_run_that_was_stopped(tmp_path: Path, shards: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        score(shards, tmp_path / "run", progress=Notes(stop_after=4))
    said = texts(verify(tmp_path / "run", estimator=estimator()))
    assert "the run is not finished; run the same annotate command again" in said
    assert "has no table" in said


# --- the model --------------------------------------------------------------------------------------------------------
def test_other_weights_of_the_same_name_are_named_with_what_they_move(work: Path) -> None:
    other = estimator(kind=OtherModel)
    other._name = "python:tests.fakes:ColourModel"
    said = texts(check(work, estimator=other))
    assert "the model is not the one that scored the tables" in said
    assert "weights: colours-1 there, colours-2 now" in said


def test_scores_that_move_beyond_the_tolerance_fail(work: Path) -> None:
    class Drifting:
        """Claims to be the model, and is not quite."""

        def __init__(self) -> None:
            self._model = estimator()
            self.identity, self.batch_size = self._model.identity, 4
            self.preprocess, self.encode_images = self._model.preprocess, self._model.encode_images
            self.encode_pixels, self.encode_noise = self._model.encode_pixels, self._model.encode_noise

        def encode_texts(self, words: Any) -> Any:
            return self._model.encode_texts(words) + np.float32(0.01)

    found = check(work, estimator=Drifting())
    assert found.drift.similarity is not None
    assert found.drift.similarity > 1e-4
    assert "when scored again" in texts(found)
    lenient = check(work, estimator=Drifting(), tolerance=0.1)
    assert lenient.ok
    assert lenient.drift == found.drift


def test_settings_that_cannot_work_and_folders_without_a_run(work: Path, tmp_path: Path) -> None:
    with refused("model"):
        verify(work / "run")  # the model was given as an object
    with refused("samples", -1):
        check(work, samples=-1)
    with refused("shards", 0):
        check(work, shards=0)
    with pytest.raises(TableError):
        verify(tmp_path)


# --- arrays -----------------------------------------------------------------------------------------------------------
def test_runs_of_arrays_are_checked_as_far_as_they_can_be(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((80, 8)).astype(np.float32)
    for name, rows in (("i", images), ("t", images + rng.standard_normal((80, 8)).astype(np.float32))):
        np.save(tmp_path / f"{name}.npy", rows)
    score_embeddings(tmp_path / "run", tmp_path / "i.npy", texts=tmp_path / "t.npy")
    found = verify(tmp_path / "run")
    assert found.ok, found.problems
    assert found.samples == 80
    assert "does not name" in found.notes[0]
    images[7] += 1
    np.save(tmp_path / "i.npy", images)
    changed = verify(tmp_path / "run")
    assert texts(changed) == "i.npy: sample 000000007: its vector in the array has changed"
    (tmp_path / "i.npy").unlink()
    assert "i.npy: the array cannot be read" in texts(verify(tmp_path / "run"))


# --- much, and the command --------------------------------------------------------------------------------------------
def test_only_the_first_problems_are_kept_and_all_are_counted() -> None:
    problems, all_of_them = Problems("x.tar"), Problems()
    for i in range(KEPT + 5):
        problems.add("differs", f"{i}")
    problems.lead("the file has changed")
    all_of_them.merge(problems)
    assert (len(all_of_them.kept), all_of_them.count) == (KEPT, KEPT + 6)
    assert str(all_of_them.kept[0]) == "x.tar: the file has changed"


def test_the_command_ends_with_the_verdict_and_its_exit_code(work: Path) -> None:
    done = called("annotate", "shards/*.tar", "--out", "run2", *FAKE, "--beta", "fixed:0.4", "--workers", "0", cwd=work)
    assert done.returncode == 0, done.stderr
    assert "--trust-run" in called("verify", "run2", cwd=work).stderr  # the recorded model is code
    good = called("verify", "run2", "--trust-run", cwd=work)
    assert good.returncode == 0, good.stdout + good.stderr
    assert good.stdout.splitlines()[-1].startswith(
        "the table belongs to the data: 3 shards, 37 samples checked, largest"
    )
    assert "3 shards to check" in good.stderr
    (work / "shards" / "x-01.tar").unlink()
    bad = called("verify", "run2", "--no-rescore", "--json", "--quiet", cwd=work)
    assert bad.returncode == 1
    found = json.loads(bad.stdout)
    assert found["ok"] is False
    assert found["problems"][0]["shard"] == "x-01.tar"
    assert "cannot be opened" in found["problems"][0]["text"]
    assert bad.stderr.splitlines()[-1].startswith("the table does NOT belong to the data: 1 problem in")
    assert called("verify", "shards", cwd=work).returncode == 2
