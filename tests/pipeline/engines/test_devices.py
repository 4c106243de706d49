"""Real encoder processes: the plain job's bytes, also when one of them is killed."""

import multiprocessing
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from noisegate import annotate
from noisegate.pipeline.engines.devices import Devices, _environment, pickle_factory, place_on
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.settings import DecodeOptions, Limits
from tests.errors import refused
from tests.fakes import ColourModel, estimator, pairs, picture, tar_bytes, write_tar
from tests.jobs import Notes, files_of, said, score, stamps

from .deadly import FOLDER, SPEC, sample, without_times

TWO = Devices(("cpu", "cpu"))


@pytest.fixture(autouse=True)
def deaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "deaths"
    folder.mkdir()
    monkeypatch.setenv(FOLDER, str(folder))
    return folder


# --- two processes ------------------------------------------------------------------------------------------------------
def test_two_processes_of_which_one_is_killed_leave_the_plain_jobs_bytes(tmp_path: Path, deaths: Path) -> None:
    for i in range(5):
        write_tar(tmp_path / "s" / f"x-{i}.tar", [*pairs(4, 10 * i), *(sample("d", "deadly once") if i == 1 else [])])
    (tmp_path / "s" / "junk.tar").write_bytes(b"this is no tar\n" * 100)
    (deaths / "once").touch()
    plain = score(tmp_path / "s", tmp_path / "plain", estimator=SPEC, beta="auto")
    (deaths / "once").unlink()
    progress = Notes()
    summary = score(tmp_path / "s", tmp_path / "out", estimator=SPEC, beta="auto", engine=TWO, progress=progress)
    assert (deaths / "once").exists()
    assert files_of(tmp_path / "out") == files_of(tmp_path / "plain")
    assert without_times(summary) == without_times(plain)
    assert re.search(r"lost the encoder on cpu \(killed by SIGKILL\); encoding again: .*x-1", said(progress))
    assert progress.size == sum(path.stat().st_size for path in (tmp_path / "s").glob("*.tar"))


def test_failed_samples_and_old_tables_are_done_again(tmp_path: Path) -> None:
    members = [*pairs(3), ("l.png", picture("red", (90, 90))), ("l.txt", b"red")]
    for name in ("x", "y"):
        write_tar(tmp_path / "s" / f"{name}.tar", members)
    small = DecodeOptions(limits=Limits(max_pixels=1000))
    for name in ("plain", "out"):
        score(tmp_path / "s", tmp_path / name, estimator=SPEC, options=small)
    score(tmp_path / "s", tmp_path / "plain", estimator=SPEC, retry_failed=True)
    again = score(tmp_path / "s", tmp_path / "out", estimator=SPEC, retry_failed=True, engine=TWO, workers=2)
    assert (again.encoded, again.statuses) == (2, {"ok": 8})
    assert files_of(tmp_path / "out") == files_of(tmp_path / "plain")


def test_a_run_is_replaced_and_shards_are_found_by_url_broken_empty_or_not_there_at_all(tmp_path: Path) -> None:
    """Memory of this process is a store that no encoder sees; the others find all that the plain job finds."""
    write_tar(tmp_path / "s" / "a.tar", pairs(4))
    write_tar(tmp_path / "s" / "empty.tar", [])
    (tmp_path / "s" / "junk.tar").write_bytes(b"this is no tar\n" * 100)
    urls = [f"file://{path}" for path in sorted((tmp_path / "s").glob("*.tar"))]
    with fsspec.open("memory://here/m.tar", "wb") as file:
        file.write(tar_bytes(pairs(2)))
    plain = score(urls, tmp_path / "plain", estimator=SPEC)
    score(tmp_path / "s", tmp_path / "out", estimator=SPEC)
    before = stamps(tmp_path / "out")
    progress = Notes()
    summary = score(
        [*urls, "memory://here/m.tar"], tmp_path / "out", estimator=SPEC, engine=TWO, overwrite=True, progress=progress
    )
    assert (summary.encoded, summary.samples) == (plain.encoded, plain.samples) == (4, 4)
    assert set(summary.failed_shards) == {str(tmp_path / "s" / "junk.tar"), "memory://here/m.tar"}
    assert re.search(r"memory://here/m\.tar.*(not found|No such|FileNotFound)", said(progress))
    after = stamps(tmp_path / "out")
    assert set(after) == set(before)
    assert not set(after.values()) & set(before.values())
    found, wanted = files_of(tmp_path / "out"), files_of(tmp_path / "plain")
    del found["_run.json"], wanted["_run.json"]  # one more shard is named there
    assert found == wanted


def test_one_shard_needs_one_process() -> None:
    with TWO.start(SPEC, 1, print) as fleet:
        assert len(multiprocessing.active_children()) == 1
        assert fleet.identity.model == SPEC.model
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("spec", "caption"),
    [(SPEC, "refused"), (ModelSpec("python:tests.fakes:Nobody"), "red")],
)
def test_what_an_encoder_raises_is_what_the_plain_job_raises(tmp_path: Path, spec: ModelSpec, caption: str) -> None:
    write_tar(tmp_path / "s" / "x.tar", [*pairs(2), *sample("s", caption)])
    with pytest.raises(Exception, match=r"refused|Nobody") as expected:
        score(tmp_path / "s", tmp_path / "plain", estimator=spec)
    with pytest.raises(type(expected.value)) as raised:
        score(tmp_path / "s", tmp_path / "out", estimator=spec, engine=TWO)
    assert str(raised.value) == str(expected.value)


# --- estimators that cannot go elsewhere --------------------------------------------------------------------------------
@pytest.mark.parametrize("given", [estimator, ColourModel], ids=["wrapped", "own"])
def test_an_object_of_this_process_is_refused(shards: Path, tmp_path: Path, given: Callable[[], Any]) -> None:
    with refused("estimator"):
        annotate(sorted(shards.glob("*.tar")), tmp_path / "out", estimator=given(), engine=TWO)


def test_a_function_that_cannot_be_pickled_is_refused() -> None:
    with refused("estimator"):
        pickle_factory(lambda: ColourModel())
    assert pickle_factory(ColourModel)


# --- names --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", ["", "0", "gpu", "cuda", "cuda:x", "cpu:1", "cuda:0,", "mps"])
def test_unknown_devices_are_named(text: str) -> None:
    with refused("devices"):
        Devices.read(text)


def test_names_are_read_in_order_and_may_repeat() -> None:
    assert Devices.read("cuda:1, cuda:0,cuda:1,cpu").names == ("cuda:1", "cuda:0", "cuda:1", "cpu")


def test_gpus_that_are_not_there_are_said_before_anything_starts(tmp_path: Path) -> None:
    import torch

    count = torch.cuda.device_count()
    with (
        refused("devices", f"cuda:{count}"),
        Devices((f"cuda:{count}",)).start(SPEC, 1, print),
    ):
        pass


def test_decoding_processes_are_split() -> None:
    processors = len(os.sched_getaffinity(0))
    assert [Devices(("cpu",) * 4).workers(requested) for requested in (0, 1, 8, 10)] == [0, 1, 2, 2]
    assert TWO.workers(None) == max(1, min(16, processors // 2))


def test_a_model_goes_where_its_process_is() -> None:
    assert place_on(ModelSpec("ViT-B-32"), "cuda:3").device == "cuda"  # the only one it sees
    assert place_on(ModelSpec("embedded"), "cpu").device == "cpu"
    assert place_on(SPEC, "cuda:3") is SPEC
    with refused("device", "cuda"):
        place_on(ModelSpec("embedded", device="cuda"), "cuda:1")


def test_each_process_sees_its_own_gpu_and_its_share_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert _environment("cuda:1", None) == {"CUDA_VISIBLE_DEVICES": "1"}
    threads = {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}
    assert _environment("cpu", 4) == {"CUDA_VISIBLE_DEVICES": "", **threads}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert _environment("cuda:1", 4) == {"CUDA_VISIBLE_DEVICES": "7"}
