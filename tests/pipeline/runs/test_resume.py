"""Going on: nothing done is done again, nothing changed is missed, and other settings are refused."""

import json
import os
import threading
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noisegate import read_table
from noisegate.pipeline.errors import ConfigError, LockedError, MismatchError, ShardError, TableError
from noisegate.pipeline.rescore import score_embeddings
from noisegate.pipeline.runs.lock import folder_lock
from noisegate.pipeline.runs.resume import Resume
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.system.progress import Progress
from tests.errors import refused
from tests.fakes import OtherModel, estimator, pairs, tar_bytes, write_tar
from tests.jobs import BETA, Notes, files_of, said, score, stamps


class Asked(Shard):
    """A shard of a store that counts how many are asked about at the same time; every third cannot be reached."""

    waiting = threading.Barrier(8)
    asked: ClassVar[list[str]] = []

    def size_and_time(self) -> tuple[int | None, float | None]:
        self.waiting.wait(timeout=60)  # nobody is answered before eight have asked
        self.asked.append(self.url)
        if int(self.stem) % 3 == 0:
            raise ShardError(f"{self.url} is away")
        return int(self.stem), None


def test_a_store_is_asked_about_many_shards_at_once_and_answers_stay_in_order(tmp_path: Path) -> None:
    shards = [Asked(f"mem://{i}.tar") for i in range(1, 17)]
    resume = Resume(RunFolder(tmp_path), estimator().identity, {}, {}, True, False, lambda text: None)
    left = resume.todo(shards)
    assert [shard.stem for shard in left] == [str(i) for i in range(1, 17) if i % 3]
    assert resume.sizes == {shard.url: int(shard.stem) for shard in left}
    assert resume.unreachable == {f"mem://{i}.tar": f"mem://{i}.tar is away" for i in range(3, 17, 3)}
    assert sorted(Asked.asked) == sorted(shard.url for shard in shards)


# --- going on -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("beta", [BETA, "auto"])
def test_a_finished_run_is_not_touched(shards: Path, tmp_path: Path, beta: str) -> None:
    for i in range(2):
        write_tar(shards / f"more-{i}.tar", pairs(10, 100 * i))  # enough pairs for auto to look at the data
    score(shards, tmp_path / "out", beta=beta)
    before, run_file = stamps(tmp_path / "out"), (tmp_path / "out" / "_run.json").read_bytes()
    progress = Notes()
    summary = score(shards, tmp_path / "out", beta=beta, progress=progress)
    assert stamps(tmp_path / "out") == before
    assert (tmp_path / "out" / "_run.json").read_bytes() == run_file
    assert (summary.encoded, summary.samples, progress.started) == (0, 38, (0, 0, 5))


def test_a_run_stopped_anywhere_goes_on_to_the_same_bytes(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "whole")
    stops = 0
    for moment in range(100):
        try:
            score(shards, tmp_path / "out", progress=Notes(stop_after=moment % 4))
        except KeyboardInterrupt:
            stops += 1
            continue
        break
    assert stops > 5
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


@pytest.mark.parametrize("lost", ["x-01.parquet", "embeddings/x-01.safetensors", "_run.json"])
def test_what_was_lost_is_made_again(shards: Path, tmp_path: Path, lost: str) -> None:
    score(shards, tmp_path / "out")
    whole, before = files_of(tmp_path / "out"), stamps(tmp_path / "out")
    (tmp_path / "out" / lost).unlink()
    score(shards, tmp_path / "out")
    assert files_of(tmp_path / "out") == whole
    assert {k: v for k, v in stamps(tmp_path / "out").items() if "01" not in k} == {
        k: v for k, v in before.items() if "01" not in k
    }


@pytest.mark.parametrize("file", ["x-01.parquet", "embeddings/x-01.safetensors"])
@pytest.mark.parametrize("keep", [0, 100, -1])
def test_a_damaged_file_is_made_again_with_a_note(shards: Path, tmp_path: Path, file: str, keep: int) -> None:
    score(shards, tmp_path / "out")
    whole, path = files_of(tmp_path / "out"), tmp_path / "out" / file
    path.write_bytes(path.read_bytes()[:keep])
    progress = Notes()
    summary = score(shards, tmp_path / "out", progress=progress)
    assert files_of(tmp_path / "out") == whole
    assert summary.encoded == 6
    assert "damaged" in said(progress)
    assert "x-01" in said(progress)


def edit_caption(shard: Path) -> None:
    data = shard.read_bytes()
    shard.write_bytes(data.replace(b"number 10 is red", b"number 10 is rad"))


def edit_scores(path: Path) -> None:
    """What a person would do with pandas or pyarrow: the metadata stay."""
    table = pq.read_table(path)
    place = table.column_names.index("osa_weight")
    pq.write_table(table.set_column(place, "osa_weight", pa.array([0.1] * len(table), pa.float32())), path)


def edit_metadata(path: Path) -> None:
    table = pq.read_table(path)
    metadata = {**table.schema.metadata, b"noisegate.scores": b'"0123"'}
    pq.write_table(table.replace_schema_metadata(metadata), path)


def flip_last_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


EDITS: dict[str, Any] = {
    "x-01.tar": edit_caption,
    "out/x-01.parquet": edit_scores,
    "out/embeddings/x-01.safetensors": flip_last_bit,
}


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("name", EDITS)
def test_an_edited_file_is_noticed_by_its_digest(shards: Path, tmp_path: Path, name: str, check: bool) -> None:
    out = shards / "out"
    score(shards.glob("*.tar"), out)
    whole, run_file = files_of(out), out / "_run.json"
    path = shards / name
    stat = path.stat()
    EDITS[name](path)
    if check:  # a forger, or a clock that was put back: size and time tell nothing
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        os.utime(run_file, ns=(stat.st_mtime_ns + 10**9,) * 2)
        if path.stat().st_size == stat.st_size:
            assert score(shards.glob("*.tar"), out).encoded == 0
            os.utime(run_file, ns=(stat.st_mtime_ns + 10**9,) * 2)
    else:
        os.utime(path, ns=(stat.st_atime_ns, run_file.stat().st_mtime_ns + 10**9))
    progress = Notes()
    assert score(shards.glob("*.tar"), out, check=check, progress=progress).encoded == 6
    assert "scored again" in said(progress) and "changed" in said(progress)
    if name.startswith("out/"):
        assert files_of(out) == whole
    progress = Notes()
    assert score(shards.glob("*.tar"), out, check=True, progress=progress).encoded == 0  # and all is well again
    assert said(progress) == ""


def test_edited_metadata_are_noticed_and_tables_without_a_digest_are_taken(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path)
    edit_metadata(tmp_path / "x-01.parquet")
    assert score(shards, tmp_path, check=True).encoded == 6
    for path in tmp_path.glob("*.parquet"):
        table = pq.read_table(path)
        without = {b"noisegate.digest", b"noisegate.embeddings"}
        kept = {name: value for name, value in table.schema.metadata.items() if name not in without}
        pq.write_table(table.replace_schema_metadata(kept), path)
    assert score(shards, tmp_path, check=True).encoded == 0


def test_a_left_over_temporary_file_does_no_harm(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "whole")
    (tmp_path / "out" / "embeddings").mkdir(parents=True)
    for name in (".x-01.parquet.0123abcd.tmp", "embeddings/.x-01.safetensors.99999999.tmp", "._run.json.tmp"):
        (tmp_path / "out" / name).write_bytes(b"half")
    (tmp_path / "out" / ".mine.tmp").write_bytes(b"whole")
    score(shards, tmp_path / "out")
    assert (tmp_path / "out" / ".mine.tmp").read_bytes() == b"whole"
    (tmp_path / "out" / ".mine.tmp").unlink()
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_shards_added_later_end_as_if_they_had_come_at_once(scenes: Path, tmp_path: Path) -> None:
    paths = sorted(scenes.glob("*.tar"))
    score(paths, tmp_path / "whole", beta="intersection")
    score(paths[:2], tmp_path / "out", beta="intersection")
    assert len(read_table(tmp_path / "out")) == 80
    summary = score(paths[2:], tmp_path / "out", beta="intersection")
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
    score(shards, tmp_path / "out")
    before = stamps(tmp_path / "out")
    shard = shards / "x-01.tar"
    written = shard.stat().st_mtime
    rewrite_same_size(shard)
    os.utime(shard, (written + seconds, written + seconds))
    progress = Notes()
    assert score(shards, tmp_path / "out", progress=progress).encoded == 6
    after = stamps(tmp_path / "out")
    tables = {f"x-0{i}.parquet" for i in range(3)}  # of all shards: their pool of pairs is another one
    assert {name for name in after if after[name] != before[name]} == {"x-01.safetensors"} | tables
    assert "x-01.tar has changed since it was scored; it is scored again" in said(progress)
    score(shards, tmp_path / "fresh")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "fresh")


def test_a_shard_that_was_only_touched_is_read_once_to_make_sure(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out")
    before = stamps(tmp_path / "out")
    os.utime(shards / "x-01.tar", (0, 0))
    assert score(shards, tmp_path / "out").encoded == 0
    assert stamps(tmp_path / "out") == before
    entries = json.loads((tmp_path / "out" / "_run.json").read_text())["shards"]
    assert [entry["modified"] for entry in entries][1] == 0


def test_a_shard_that_changes_while_the_job_runs_is_seen_next_time(shards: Path, tmp_path: Path) -> None:
    shard, last = shards / "x-01.tar", shards / "x-02.tar"

    class ChangeLater(Progress):
        def shard(self, name: str, samples: int, failed: int) -> None:
            if name == last.stem:  # x-01 is encoded, and its table will be written once more with the scores
                rewrite_same_size(shard)

    score(shards, tmp_path / "out", progress=ChangeLater())
    assert score(shards, tmp_path / "out").encoded == 6


def test_a_changed_shard_whose_new_run_is_stopped_is_not_taken_for_done(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out")
    rewrite_same_size(shards / "x-01.tar")
    with pytest.raises(KeyboardInterrupt):
        score(shards, tmp_path / "out", progress=Notes(stop_after=0))
    assert score(shards, tmp_path / "out").encoded == 6


def test_a_moved_shard_keeps_its_table_but_another_one_of_that_name_does_not_get_it(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score(shards, tmp_path / "out")
    before = stamps(tmp_path / "out")
    moved = shards.rename(tmp_path / "moved")
    assert score(moved, tmp_path / "out").encoded == 0
    monkeypatch.chdir(moved)
    assert score(["x-00.tar", "x-01.tar", "x-02.tar"], tmp_path / "out").encoded == 0
    assert stamps(tmp_path / "out") == before
    assert len(read_table(tmp_path / "out")) == 18
    other = write_tar(tmp_path / "other" / "x-01.tar", pairs(4))
    with refused("out", tmp_path / "out" / "x-01.parquet", MismatchError):
        score([other], tmp_path / "out")
    assert stamps(tmp_path / "out") == before


def test_shards_in_a_store_go_on_too(tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    urls = [f"memory://test_resume/x-{i}.tar" for i in range(3)]
    for i, url in enumerate(urls):
        store.pipe(url, tar_bytes(pairs(4, 10 * i)))
    assert score(urls, tmp_path / "out").encoded == 12
    before = stamps(tmp_path / "out")
    assert score("memory://test_resume/x-{0..2}.tar", tmp_path / "out").encoded == 0
    assert stamps(tmp_path / "out") == before
    store.pipe(urls[1], store.cat(urls[1]).replace(b"number 10 is red", b"number 10 is rad"))
    assert score(urls, tmp_path / "out").encoded == 4
    store.rm(urls[2])
    gone = score(urls, tmp_path / "out")
    assert (set(gone.failed_shards), gone.samples) == ({urls[2]}, 12)


# --- refusing -----------------------------------------------------------------------------------------------------------
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
    score(shards, tmp_path / "out")
    before = files_of(tmp_path / "out")
    with pytest.raises(
        MismatchError, match=f"out .*out was made with other settings:\n(.*\n)*.*{named}\n.*--overwrite"
    ) as refused:
        score(shards, tmp_path / "out", **setting)
    hint = f"noisegate rescore {tmp_path / 'out'} --beta {setting.get('beta')}"
    assert (hint in str(refused.value)) == ("beta" in setting), "what needs no model is said"
    assert files_of(tmp_path / "out") == before


def test_overwrite_starts_again_and_leaves_other_files_alone(shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    score(shards, out)
    (out / "neighbours.safetensors").write_bytes(b"of the run")
    for name in ("_neighbours_search", "_text_neighbours_search"):  # stopped ones
        (out / name).mkdir()
        (out / name / "plan.json").touch()
    notes, table, numbers = out / "notes.txt", out / "noise.parquet", out / "embeddings" / "mine.safetensors"
    notes.write_text("mine")
    pq.write_table(pa.table({"key": ["a"]}).replace_schema_metadata({"noisegate.noise_protocol": "p(x)"}), table)
    numbers.write_bytes(b"mine")
    mine = {path: path.read_bytes() for path in (notes, table, numbers)}
    (out / "x-00.parquet").write_bytes(b"damaged")
    summary = score(sorted(shards.glob("*.tar"))[:2], out, beta="fixed:0.5", overwrite=True)
    assert summary.beta is not None
    assert (summary.samples, summary.beta.value) == (12, 0.5)
    assert {path: path.read_bytes() for path in mine} == mine
    assert not (out / "x-02.parquet").exists()
    assert not (out / "neighbours.safetensors").exists()
    assert not list(out.glob("_*_search"))
    assert not (out / "embeddings" / "x-02.safetensors").exists()


def test_overwrite_mends_a_damaged_run_file(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out")
    whole = files_of(tmp_path / "out")
    (tmp_path / "out" / "_run.json").write_text("{")
    with refused("run", tmp_path / "out", TableError):
        score(shards, tmp_path / "out")
    score(shards, tmp_path / "out", overwrite=True)
    assert files_of(tmp_path / "out") == whole


def test_a_model_that_cannot_be_loaded_does_not_cost_the_tables(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out")
    before = files_of(tmp_path / "out")

    def wrong_name() -> Any:
        raise ConfigError("no such model")

    with pytest.raises(ConfigError, match="no such model"):
        score(shards, tmp_path / "out", estimator=wrong_name, overwrite=True)
    assert files_of(tmp_path / "out") == before


def test_a_foreign_file_where_a_table_must_go_is_kept(shards: Path, tmp_path: Path) -> None:
    score([shards / "x-00.tar"], tmp_path / "out")
    foreign = tmp_path / "out" / "x-01.parquet"
    pq.write_table(pa.table({"mine": [1]}), foreign)
    before = files_of(tmp_path / "out")
    for settings in ({}, {"overwrite": True}):
        with refused("out", tmp_path / "out" / "x-01.parquet", TableError):
            score(shards, tmp_path / "out", **settings)
        assert files_of(tmp_path / "out") == before


def test_tables_without_their_run_file_must_fit_the_settings(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out")
    (tmp_path / "out" / "_run.json").unlink()
    with refused("out", tmp_path / "out" / "x-00.parquet", MismatchError):
        score(shards, tmp_path / "out", options=DecodeOptions(text_field="alt"))
    with refused("out", tmp_path / "out" / "x-00.parquet", MismatchError):
        score(shards, tmp_path / "out", estimator=estimator(kind=OtherModel))


def test_a_folder_made_from_arrays_is_refused(shards: Path, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((2, 30, 8)).astype(np.float32)
    for name, array in zip(("images", "texts"), rows, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    score_embeddings(tmp_path / "out", tmp_path / "images.npy", texts=tmp_path / "texts.npy")
    with pytest.raises(MismatchError, match="model: arrays there, python:tests"):
        score(shards, tmp_path / "out")


def test_another_job_in_the_same_folder_is_refused(shards: Path, tmp_path: Path) -> None:
    with folder_lock(tmp_path / "out"), refused("out", tmp_path / "out", LockedError):
        score(shards, tmp_path / "out")
