"""The job on a real Ray of this machine, started once: the plain job's bytes, also when a worker is killed."""

import os
import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import ray

from noisegate.pipeline.engines import engine
from noisegate.pipeline.engines.ray_workers import Ray
from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.system.ray_connection import SLOW_START, connect_to_ray
from tests.commands import ROOT, called
from tests.errors import refused
from tests.fakes import ColourModel, pairs, picture, write_tar
from tests.jobs import Notes, files_of, said, score, stamps
from tests.pipeline.engines.deadly import FOLDER, SPEC, sample, without_times

TWO = Ray(actors=2, cpus_per_worker=1)


@pytest.fixture(scope="module")
def deaths(bucket: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Ray of two processors whose workers find the folder, and the S3 server, in their environment."""
    folder = tmp_path_factory.mktemp("deaths")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # else workers wait for everything else that runs here
        patch.syspath_prepend(str(ROOT))
        how = {"num_cpus": 2, "object_store_memory": 80_000_000, "include_dashboard": False, "log_to_driver": False}
        try:
            ray.init(address="local", **how)
        except Exception as error:  # Ray raises plain ones
            if SLOW_START not in str(error):
                raise
            ray.shutdown()
            ray.init(address="local", **how)
        yield folder
        ray.shutdown()


LISTENING = """
import psutil
from noisegate.pipeline.system.ray_connection import connect_to_ray, import_ray
ray, addresses = import_ray(), set()
with connect_to_ray(ray):
    here = psutil.Process()
    for process in [here, *here.children(recursive=True)]:
        for socket in process.net_connections("inet"):
            if socket.status == "LISTEN":
                addresses.add(socket.laddr.ip)
print(*addresses)
"""


def test_a_ray_that_is_started_here_listens_to_this_host_only() -> None:
    done = subprocess.run([sys.executable, "-c", LISTENING], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"} and done.stdout  # it was 0.0.0.0 and ::


def test_two_workers_of_which_one_is_killed_leave_the_plain_jobs_bytes(
    deaths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # names are relative, and workers were started elsewhere
    tars = Path("s")
    for i in range(5):
        write_tar(tmp_path / "s" / f"x-{i}.tar", [*pairs(4, 10 * i), *(sample("d", "deadly once") if i == 1 else [])])
    (tmp_path / "s" / "junk.tar").write_bytes(b"this is no tar\n" * 100)
    (deaths / "once").touch()
    plain = score(tars, Path("plain"), estimator=SPEC, beta="auto")
    quiet, loud = Notes(), Notes()
    for name, progress in (("whole", quiet), ("killed", loud)):
        summary = score(tars, Path(name), estimator=SPEC, beta="auto", engine=TWO, progress=progress)
        assert files_of(tmp_path / name) == files_of(tmp_path / "plain")
        assert without_times(summary) == without_times(plain)
        assert progress.size == sum(path.stat().st_size for path in (tmp_path / "s").glob("*.tar"))
        (deaths / "once").unlink(missing_ok=True)
    assert "lost" not in said(quiet)
    assert "lost the encoder on Ray worker " in said(loud)
    assert re.search("encoding again: .*x-1", said(loud))
    assert capsys.readouterr().out == ""


def test_workers_of_a_run_in_a_store_share_no_folder(deaths: Path, bucket: str, tmp_path: Path) -> None:
    """Each makes its files in a folder of its own and puts them; the driver copies what it scores. One is killed."""
    members = [("l.png", picture("red", (90, 90))), ("l.txt", b"red")]
    for i in range(4):
        deadly = sample("d", "deadly once") if i == 1 else []
        write_tar(tmp_path / "s" / f"x-{i}.tar", [*pairs(4, 10 * i), *deadly, *members])
    told = Notes()
    how: dict[str, Any] = {"estimator": SPEC, "engine": TWO}
    small = DecodeOptions(limits=Limits(max_pixels=1000))
    (deaths / "once").unlink(missing_ok=True)
    score(tmp_path / "s", f"{bucket}/ray", progress=told, options=small, **how)  # type: ignore[arg-type]
    assert "lost the encoder on Ray worker " in said(told)
    assert "copying 8 files" in said(told)
    score(tmp_path / "s", f"{bucket}/ray", retry_failed=True, **how)  # type: ignore[arg-type]
    score(tmp_path / "s", tmp_path / "plain", estimator=SPEC)
    fsspec.filesystem("s3").get(f"{bucket}/ray/", str(tmp_path / "copy"), recursive=True)
    assert files_of(tmp_path / "copy") == files_of(tmp_path / "plain")


def test_neighbours_are_searched_on_ray_too_once_the_encoders_have_made_room(
    deaths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search takes both processors, which the encoders hold until then."""
    for number in range(2):
        pictures = [(f"{i:02d}.png", picture(("red", "blue")[i % 2], (16 + i, 16 + number))) for i in range(20)]
        labels = [(f"{i:02d}.cls", str((i + (i == 3)) % 2).encode()) for i in range(20)]
        write_tar(tmp_path / "s" / f"x-{number}.tar", sorted(pictures + labels))
    task = {"estimator": ColourModel, "options": DecodeOptions(tasks=("labels",)), "k": 4}
    score(tmp_path / "s", tmp_path / "plain", **task)
    monkeypatch.setattr(engine, "run_in_turn", lambda tasks: pytest.fail("searched in this process"))
    score(tmp_path / "s", tmp_path / "out", engine=TWO, neighbour_memory=2_000_000_000, **task)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "plain")


def test_ctrl_c_leaves_no_worker_and_the_run_goes_on_reads_what_failed_again_and_is_replaced(
    deaths: Path, tmp_path: Path
) -> None:
    one = Ray(actors=1, cpus_per_worker=1)
    members = [("l.png", picture("red", (90, 90))), ("l.txt", b"red")]
    for i in range(4):
        write_tar(tmp_path / "s" / f"x-{i}.tar", [*pairs(4, 10 * i), *members])
    small = {"options": DecodeOptions(limits=Limits(max_pixels=1000)), "estimator": noting(deaths)}
    plain = {"estimator": ColourModel}
    score(tmp_path / "s", tmp_path / "plain", **plain)
    with pytest.raises(KeyboardInterrupt):
        score(tmp_path / "s", tmp_path / "out", engine=one, progress=Notes(stop_after=6), **small)
    workers = [int(path.name.removeprefix("pid-")) for path in deaths.glob("pid-*")]
    assert len(workers) == 1
    ended(workers[0])
    done = len(list((tmp_path / "out").glob("*.parquet")))
    assert 1 <= done < 4
    went_on = score(tmp_path / "s", tmp_path / "out", engine=one, retry_failed=True, **plain)
    assert (went_on.encoded, went_on.statuses) == (done + 5 * (4 - done), {"ok": 20})
    assert files_of(tmp_path / "out") == files_of(tmp_path / "plain")
    before = stamps(tmp_path / "out")
    assert score(tmp_path / "s", tmp_path / "out", engine=one, overwrite=True, **plain).encoded == 20
    assert not set(stamps(tmp_path / "out").values()) & set(before.values())
    assert files_of(tmp_path / "out") == files_of(tmp_path / "plain")


def noting(folder: Path) -> Callable[[], ColourModel]:
    """The fake, which leaves the number of its process in a folder."""

    def make() -> ColourModel:
        (folder / f"pid-{os.getpid()}").touch()
        return ColourModel()

    return make


def ended(pid: int) -> None:
    """Wait until a process is gone."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([watched], [], [], 60)[0], f"worker {pid} is still there"
    finally:
        os.close(watched)


def test_the_command_says_what_a_worker_raises(deaths: Path, tmp_path: Path) -> None:
    write_tar(tmp_path / "s" / "x.tar", pairs(2))
    words = ("annotate", "s", "--out", "out", "--engine", "ray", "--ray-workers", 1, "--workers", 0, "--quiet")
    done = called(*words, "--model", "python:tests.fakes:Nobody", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: model 'python:tests.fakes:Nobody' does not work: tests.fakes has no 'Nobody'")
    assert len(done.stderr.splitlines()) == 1


def test_a_function_goes_to_the_workers_and_an_object_does_not(deaths: Path, tmp_path: Path) -> None:
    write_tar(tmp_path / "s" / "x.tar", pairs(2))
    score(tmp_path / "s", tmp_path / "plain", estimator=lambda: ColourModel())
    score(tmp_path / "s", tmp_path / "out", estimator=lambda: ColourModel(), engine=TWO, workers=1)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "plain")
    with refused("estimator", "ColourModel"):
        score(tmp_path / "s", tmp_path / "no", estimator=ColourModel(), engine=TWO)


def test_without_ray_the_command_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        refused("engine", "ray"),
        TWO.start(SPEC, 1, print),
    ):
        pass


def test_ray_is_not_imported_by_those_who_do_not_ask_for_it() -> None:
    code = "import sys, noisegate.pipeline.annotate, noisegate.pipeline.engines.ray_workers; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


class BusyHost:
    """Stands in for the package: its first starts fail with these words."""

    def __init__(self, *words: str) -> None:
        self.words, self.calls = list(words), list[str]()

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str, **_: object) -> None:
        self.calls.append(f"init {address}")
        if self.words:
            raise Exception(self.words.pop(0))

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def test_a_ray_that_starts_slowly_is_started_once_more_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    slow = "The current node timed out during startup."
    busy = BusyHost(slow)
    with connect_to_ray(busy):
        assert busy.calls == ["init local", "shutdown", "init local"]
    assert busy.calls[-1] == "shutdown"
    for words, starts in (((slow, slow), 2), (("Could not find any running Ray instance.",), 1)):
        host = BusyHost(*words)
        with refused("address", "here:1"), connect_to_ray(host, "here:1"):
            pass
        assert host.calls.count("init here:1") == starts


@pytest.mark.parametrize(
    ("field", "setting", "value"),
    [
        ("actors", "ray-workers", 0),
        ("gpus_per_worker", "gpus-per-worker", 1.5),
        ("gpus_per_worker", "gpus-per-worker", -1),
        ("cpus_per_worker", "cpus-per-worker", -1),
    ],
)
def test_settings_that_cannot_work_are_named(field: str, setting: str, value: float) -> None:
    with refused(setting, value):
        Ray(**{field: value})  # type: ignore[arg-type]


def test_parts_of_gpus() -> None:
    nodes = [{"CPU": 32.0, "GPU": 4.0}, {"CPU": 8.0, "GPU": 1.0}, {"CPU": 64.0}]
    assert Ray().choose_actors(nodes, on_cpu=False).count == 5
    half = Ray(gpus_per_worker=0.5).choose_actors(nodes, on_cpu=False)
    assert (half.count, half.gpus, half.cpus) == (10, 0.5, 4)
    assert Ray(gpus_per_worker=2).choose_actors(nodes, on_cpu=False).count == 2
    assert Ray().choose_actors(nodes, on_cpu=True).gpus == 0
    assert Ray(actors=3, cpus_per_worker=0.5).choose_actors(nodes, on_cpu=True).cpus == 0.5
