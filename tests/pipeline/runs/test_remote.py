"""Runs in a store: the same bytes as on a disk, one writer at a time, failures survived or told."""

import errno
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import noisegate as ng
from noisegate.pipeline.engines import Devices, Nodes
from noisegate.pipeline.errors import ConfigError, LockedError, MismatchError, NoisegateError, TableError
from noisegate.pipeline.inspect.show import read_overview
from noisegate.pipeline.rescore import rescore
from noisegate.pipeline.runs import lease
from noisegate.pipeline.runs.reviews import Mark, Reviews
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.settings import DecodeOptions, Limits, ScoreSettings
from noisegate.pipeline.system import stores
from noisegate.pipeline.system.mirror import copy_folder
from noisegate.pipeline.system.stores import Store
from tests.errors import refused
from tests.fakes import OtherModel, estimator, pairs, picture, write_tar
from tests.jobs import Notes, files_of, said, score

RUN = "memory://bucket/run"


class FaultyStore(MemoryFileSystem):
    """A memory store that fails as `faults` tells: a request by its verb and the name of the file, and what it raises."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    faults: ClassVar[Callable[[str, str], Exception | None]]
    counts: ClassVar[Counter[str]] = Counter()

    def _meet(self, verb: str, path: str) -> None:
        type(self).counts[verb] += 1
        error = type(self).faults(verb, path.rpartition("/")[2])
        if error is not None:
            raise error

    def ls(self, path: str, detail: bool = True, **how: Any) -> Any:
        self._meet("ls", path)
        return super().ls(path, detail, **how)

    def put_file(self, lpath: str, rpath: str, **how: Any) -> None:
        self._meet("put", rpath)
        super().put_file(lpath, rpath, **how)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **how: Any) -> None:
        self._meet("put", path)
        super().pipe_file(path, value, mode, **how)

    def get_file(self, rpath: str, lpath: str, **how: Any) -> None:
        self._meet("get", rpath)
        super().get_file(rpath, lpath, **how)


@pytest.fixture(autouse=True)
def _empty_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fsspec.register_implementation("faulty", FaultyStore, clobber=True)
    monkeypatch.setattr(FaultyStore, "faults", staticmethod(lambda verb, name: None), raising=False)
    monkeypatch.setattr(stores, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)
    yield
    for kind in (MemoryFileSystem, FaultyStore):
        kind.store.clear()
        kind.pseudo_dirs[:] = [""]


def stored(url: str = RUN) -> dict[str, bytes]:
    """Every file of a run in a store by name."""
    files, root = fsspec.core.url_to_fs(url)
    return {path.removeprefix(f"{root}/"): files.cat_file(path) for path in files.find(root)}


def test_a_run_in_a_store_has_the_bytes_of_a_local_one_and_leaves_no_copy(shards: Path, tmp_path: Path) -> None:
    local, remote = score(shards, tmp_path / "out"), score(shards, RUN)  # type: ignore[arg-type]
    assert stored() == files_of(tmp_path / "out")
    assert remote.out == RUN
    assert (remote.samples, remote.encoded) == (local.samples, local.encoded)
    assert not list(copy_folder(RUN, "job").rglob("*.parquet"))
    again = score(shards, Path(RUN))  # a Path has lost a slash
    assert (again.encoded, stored()) == (0, files_of(tmp_path / "out"))


def test_settings_and_what_is_dropped_reach_the_store(shards: Path, tmp_path: Path) -> None:
    for out in (tmp_path / "out", RUN):
        score(shards, out, keep_embeddings=False)  # type: ignore[arg-type]
    assert stored() == files_of(tmp_path / "out")
    assert not any(name.startswith("embeddings/") for name in stored())
    with refused("out", RUN, MismatchError):
        score(shards, RUN, estimator=estimator(kind=OtherModel))  # type: ignore[arg-type]
    fsspec.filesystem("memory").pipe_file(f"{RUN}/notes.txt", b"mine")
    for out in (tmp_path / "out", RUN):
        score(shards, out, estimator=estimator(kind=OtherModel), overwrite=True)  # type: ignore[arg-type]
    assert stored() == {**files_of(tmp_path / "out"), "notes.txt": b"mine"}


def test_more_shards_a_changed_shard_and_failed_samples_are_scored_into_the_same_store(tmp_path: Path) -> None:
    tars = tmp_path / "s"
    write_tar(tars / "x-0.tar", [*pairs(4), ("l.png", picture("red", (90, 90))), ("l.txt", b"red")])
    small = {"options": DecodeOptions(limits=Limits(max_pixels=1000))}
    places: tuple[Any, ...] = (tmp_path / "out", RUN)
    for out in places:
        score(tars, out, **small)
    write_tar(tars / "x-1.tar", pairs(5, 10))
    for out in places:
        score(tars, out, **small)
    write_tar(tars / "x-1.tar", pairs(6, 20))
    for out in places:
        score(tars, out, **small)
    assert stored() == files_of(tmp_path / "out")
    for out in places:
        assert score(tars, out, retry_failed=True).statuses == {"ok": 11}
    assert stored() == files_of(tmp_path / "out")


def test_a_stopped_job_goes_on_from_what_the_store_has(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        score(shards, RUN, progress=Notes(stop_after=6))  # type: ignore[arg-type]
    done = [name for name in stored() if name.endswith(".parquet")]
    assert 1 <= len(done) < 3
    assert not json.loads(stored()["_run.json"])["finished"]
    went_on = Notes()
    assert score(shards, RUN, progress=went_on).encoded == 6 * (3 - len(done))  # type: ignore[arg-type]
    assert "copying" not in said(went_on)  # the copy of the stopped job is used
    assert stored() == files_of(tmp_path / "out")


def test_rescoring_and_arrays(shards: Path, tmp_path: Path) -> None:
    def settings(recorded: Any) -> ScoreSettings:
        return ScoreSettings(beta="fixed:0.3", neighbourhood=True, k=2)

    rows = np.random.default_rng(1).standard_normal((2, 30, 8)).astype(np.float32)
    np.save(tmp_path / "i.npy", rows[0])
    np.save(tmp_path / "t.npy", rows[1])
    arrays = "memory://bucket/arrays"
    for run, other in ((tmp_path / "out", tmp_path / "arrays"), (RUN, arrays)):
        score(shards, run)  # type: ignore[arg-type]
        rescore(run, settings)
        ng.score_embeddings(other, tmp_path / "i.npy", texts=tmp_path / "t.npy")
    assert stored() == files_of(tmp_path / "out")
    assert stored(arrays) == files_of(tmp_path / "arrays")
    assert "neighbours.safetensors" in stored()
    for out in (tmp_path / "out", RUN):  # the new run has no neighbours
        score(shards, out, overwrite=True)  # type: ignore[arg-type]
    assert stored() == files_of(tmp_path / "out")
    with refused("out", arrays):
        ng.score_embeddings(arrays, tmp_path / "i.npy", texts=tmp_path / "t.npy")
    with refused("run", "memory://bucket/none", TableError):
        rescore("memory://bucket/none", settings)


def test_a_run_in_a_store_is_read_like_a_local_one(shards: Path, tmp_path: Path) -> None:
    for out in (tmp_path / "out", RUN):
        score(shards, out)  # type: ignore[arg-type]
    assert ng.read_table(RUN).equals(ng.read_table(tmp_path / "out"))
    assert read_overview(RUN).worst == read_overview(tmp_path / "out").worst
    assert not list(copy_folder(RUN, "read").rglob("*.safetensors"))
    report = ng.write_report(RUN)
    assert report.path == f"{RUN}/report.html"
    assert stored()["report.html"].startswith(b"<!doctype html>")
    assert ng.verify(RUN, estimator=estimator()).ok
    assert ng.compare(RUN, tmp_path / "out").matched == 18
    score(shards, RUN, beta="fixed:0.1", overwrite=True)  # type: ignore[arg-type]
    assert ng.read_table(RUN)["osa_weight"] != ng.read_table(tmp_path / "out")["osa_weight"]  # the copy is renewed
    with refused("run", "memory://bucket/none", TableError):
        ng.read_table("memory://bucket/none")


@pytest.mark.parametrize(("kind", "name"), [("csv", "rows.csv"), ("shards", "kept"), ("datasets", "set")])
def test_exports(shards: Path, tmp_path: Path, kind: str, name: str) -> None:
    score(shards, tmp_path / "out")
    url = f"memory://bucket/exports/{name}"
    ng.export(tmp_path / "out", tmp_path / "exports" / name, kind)
    for overwrite in (False, True):
        done = ng.export(tmp_path / "out", url, kind, overwrite=overwrite)
        assert done.out == url
        assert all(file.startswith(url) for file in done.files)
        assert stored("memory://bucket/exports") == files_of(tmp_path / "exports")
    with refused("out", url):
        ng.export(tmp_path / "out", url, kind)
    with refused("out", f"{url}/x"):
        ng.export(url, f"{url}/x", kind)


def test_marks_of_people_come_along_and_a_copy_takes_none(shards: Path, tmp_path: Path) -> None:
    def mark(folder: Path, kind: str) -> None:
        Reviews(folder).write([Mark("x-00", 0, "00000", None, None, kind)])

    score(shards, RUN)  # type: ignore[arg-type]
    for kind in ("keep", "drop"):
        mark(tmp_path, kind)
        fsspec.filesystem("memory").put_file(str(tmp_path / "_reviews.sqlite"), f"{RUN}/_reviews.sqlite")
        copy = RunFolder.to_read(RUN)
        assert [one.mark for one in copy.reviews.read()] == [kind]
        with refused("reviews", error=TableError):
            mark(copy.path, "keep")
    score(shards, RUN)  # type: ignore[arg-type]
    assert stored()["_reviews.sqlite"] == (tmp_path / "_reviews.sqlite").read_bytes()


def test_a_second_writer_is_refused_and_told_who_is_first(shards: Path) -> None:
    run = RunFolder.to_write(RUN)
    with run.lock():
        with refused("out", RUN, LockedError):
            score(shards, RUN)  # type: ignore[arg-type]
        other = lease.Lease(Store(RUN), "another machine's copy")
        with refused("out", RUN, LockedError) as told:
            other.take()
        assert "process" in str(told.value)
        assert "its lease ends in" in str(told.value)
    other.take()
    other.give_back()
    assert stored() == {}


def test_a_lease_that_has_expired_is_taken_over_and_its_owner_stops(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = RunFolder.to_write(RUN)
    other = lease.Lease(Store(RUN), "another machine's copy")
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: 0.0)  # so the lease that is taken now ended long ago
        with refused("out", RUN, LockedError), slow.lock():
            patch.undo()
            other.take()
            slow.publish()
    assert json.loads(stored()["_lock"])["copy"] == "another machine's copy"


def test_a_job_whose_lease_was_taken_stops_after_the_shard(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sleeper(Notes):
        def shard(self, name: str, samples: int, failed: int) -> None:
            now = time.time()
            monkeypatch.setattr(time, "time", lambda: now + 1000)  # the machine was suspended
            lease.Lease(Store(RUN), "another machine's copy").take()

    with refused("out", RUN, LockedError):
        score(shards, RUN, progress=Sleeper())  # type: ignore[arg-type]
    assert [name for name in stored() if name.endswith(".parquet")] == ["x-00.parquet"]


def test_stores_without_conditional_puts_look_first(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = FaultyStore.pipe_file

    def unconditional(self: FaultyStore, path: str, value: bytes, mode: str = "overwrite", **how: Any) -> None:
        if mode == "create":
            raise OSError(errno.ENOSYS, "a header implies what is not implemented")
        pipe(self, path, value, mode, **how)

    monkeypatch.setattr(FaultyStore, "pipe_file", unconditional)
    url = "faulty://bucket/run"
    with RunFolder.to_write(url).lock():
        with refused("out", url, LockedError):
            lease.Lease(Store(url), "another machine's copy").take()
        assert not Store(url).write("_lock", b"", create=True)
    assert score(shards, url).encoded == 18  # type: ignore[arg-type]


def test_a_cache_folder_that_cannot_be_made_is_told(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with refused("cache"):
        score(shards, RUN)  # type: ignore[arg-type]


def test_a_lock_file_that_was_copied_there_with_a_local_run_is_no_lease(shards: Path) -> None:
    fsspec.filesystem("memory").pipe_file(f"{RUN}/_lock", b"process 1 on host\n")
    assert score(shards, RUN).encoded == 18  # type: ignore[arg-type]


def test_a_lease_is_renewed_while_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SECONDS", 0.004)
    renewed = threading.Event()
    seen: list[bytes] = []

    def watch(verb: str, name: str) -> None:
        if verb == "put":
            seen.append(b"")
            if len(seen) > 3:
                renewed.set()

    monkeypatch.setattr(FaultyStore, "faults", staticmethod(watch))
    with RunFolder.to_write("faulty://bucket/run").lock():
        assert renewed.wait(60)


def test_slow_answers_and_failures_that_pass_are_survived(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request waits, for longer than the lease lasts, and fails twice before it is answered."""
    monkeypatch.setattr(lease, "SECONDS", 0.002)
    never = threading.Event()
    score(shards, tmp_path / "out")
    tries: Counter[tuple[int, str, str]] = Counter()

    def faults(verb: str, name: str) -> Exception | None:
        request = (threading.get_ident(), verb, name)  # the lease is renewed by another thread
        tries[request] += 1
        never.wait(0.005)
        return OSError("reset by peer") if tries[request] % 3 and len(tries) > 1 else None

    monkeypatch.setattr(FaultyStore, "faults", staticmethod(faults))
    score(shards, "faulty://bucket/run")  # type: ignore[arg-type]
    assert stored("faulty://bucket/run") == files_of(tmp_path / "out")


@pytest.mark.parametrize("name", ["x-01.safetensors", "x-01.parquet"])
def test_a_put_that_fails_for_good_is_told_and_the_run_goes_on_later(
    name: str, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "faulty://bucket/run"
    score(shards, tmp_path / "out")
    full = OSError("SlowDown")
    monkeypatch.setattr(FaultyStore, "faults", staticmethod(lambda verb, at: full if at == name else None))
    with refused("out", url, NoisegateError) as told:
        score(shards, url)  # type: ignore[arg-type]
    assert f"writing embeddings/{name}" in str(told.value) or f"writing {name}" in str(told.value)
    assert "x-01.parquet" not in stored(url)
    assert "x-00.parquet" in stored(url)
    monkeypatch.setattr(FaultyStore, "faults", staticmethod(lambda verb, name: None))
    assert score(shards, url).encoded == 12  # type: ignore[arg-type]
    assert stored(url) == files_of(tmp_path / "out")


def test_a_file_that_arrives_short_is_read_again(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, cut = "faulty://bucket/run", []
    score(shards, url)  # type: ignore[arg-type]
    whole = ng.read_table(url)
    for path in copy_folder(url, "read").glob("*.parquet"):
        path.unlink()
    get = FaultyStore.get_file

    def short(self: FaultyStore, rpath: str, lpath: str, **how: Any) -> None:
        get(self, rpath, lpath, **how)
        if rpath.endswith("x-01.parquet") and not cut:
            cut.append(Path(lpath).write_bytes(Path(lpath).read_bytes()[:100]))

    monkeypatch.setattr(FaultyStore, "get_file", short)
    assert ng.read_table(url).equals(whole)
    assert cut == [100]


def test_requests_do_not_grow_with_the_shards(tmp_path: Path) -> None:
    """A resumed job lists; it does not ask for each file."""
    counts = []
    for many in (1, 6):
        tars = tmp_path / f"s{many}"
        for i in range(many):
            write_tar(tars / f"x-{i}.tar", pairs(2, 10 * i))
        score(tars, f"faulty://bucket/{many}")  # type: ignore[arg-type]
        FaultyStore.counts.clear()
        score(tars, f"faulty://bucket/{many}")  # type: ignore[arg-type]
        counts.append(FaultyStore.counts["ls"])
    assert counts[0] == counts[1]


def test_stores_that_cannot_be_used_are_told_before_a_model_is_loaded(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never() -> Any:
        pytest.fail("loaded a model")

    def tell(url: str, error: type[NoisegateError] = ConfigError, **settings: Any) -> str:
        with refused("out", url, error) as told:
            score(shards, url, estimator=never, **settings)  # type: ignore[arg-type]
        return str(told.value)

    fsspec.register_implementation("nodriver", "no_such_module.FileSystem", clobber=True, errtxt="install it")
    assert "pip install" in tell("nodriver://bucket/run")
    assert "unknown protocol" in tell("nosuch://bucket/run")
    assert "web address" in tell("https://host/run")
    assert "--nodes" in tell(RUN, nodes=Nodes(0, 2))
    assert "this process" in tell(RUN, engine=Devices.read("cpu"))
    for error, word in ((PermissionError("denied"), "credentials"), (OSError("no route"), "no route")):
        monkeypatch.setattr(FaultyStore, "faults", staticmethod(lambda verb, name, error=error: error))
        assert word in tell("faulty://bucket/run")
    read_only = PermissionError("denied")
    monkeypatch.setattr(FaultyStore, "faults", staticmethod(lambda verb, name: read_only if verb == "put" else None))
    assert "writing _lock" in tell("faulty://bucket/run")
