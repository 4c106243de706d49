"""Real commands that are killed or stopped: encoder processes and nodes end with the bytes of a plain run."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from noisegate.pipeline.engines.nodes import Nodes
from tests.commands import called, command
from tests.e2e.test_kill import children_of, is_running
from tests.fakes import pairs, write_tar
from tests.jobs import BETA, files_of, score
from tests.pipeline.engines.deadly import FOLDER, SPEC, sample

MODEL = ("--model", SPEC.model, "--workers", "0", "--beta", BETA)
needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes as Linux lists them")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight shards; the fifth kills whoever encodes it first."""
    folder = tmp_path_factory.mktemp("scale-out")
    for i in range(8):
        write_tar(folder / f"x-{i}.tar", [*pairs(5 + i, 10 * i), *(sample("d", "deadly once") if i == 4 else [])])
    return folder


@pytest.fixture
def deaths(tmp_path: Path) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(tmp_path / "deaths"))
        (tmp_path / "deaths").mkdir()
        yield tmp_path / "deaths"


@pytest.fixture
def plain(shards: Path, deaths: Path, tmp_path: Path) -> dict[str, bytes]:
    (deaths / "once").touch()
    score(shards, tmp_path / "plain", estimator=SPEC)
    (deaths / "once").unlink()
    return files_of(tmp_path / "plain")


@needs_proc
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_all_encoders_and_leaves_a_run_that_goes_on(
    shards: Path, plain: dict[str, bytes], deaths: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ("annotate", shards, "--out", out, *MODEL, "--devices", "2")
    (deaths / "once").touch()
    start = command(*arguments)
    start["env"]["COLOUR_SECONDS"] = "1"  # the signal comes long before the end
    with subprocess.Popen(**start, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("[1/"):
                break
        encoders = {
            pid for pid in children_of(process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        }
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the encoders too
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped: run the same command again, without --overwrite, and it goes on" in said
    assert "Traceback" not in said
    assert len(encoders) == 2
    assert not any(map(is_running, encoders))
    assert list(out.glob("*.parquet"))
    score(shards, out, estimator=SPEC)
    assert files_of(out) == plain


def test_two_nodes_at_once_of_which_one_is_killed_and_started_again(
    shards: Path, plain: dict[str, bytes], deaths: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = [("annotate", shards, "--out", out, *MODEL, "--nodes", 2, "--node-rank", rank) for rank in range(2)]
    nodes = [subprocess.Popen(**command(*w), stderr=subprocess.PIPE, stdout=subprocess.PIPE) for w in words]
    said = ["".join(node.communicate(timeout=120)) for node in nodes]
    codes = [node.returncode for node in nodes]
    assert sorted(codes) == [-signal.SIGKILL, 0], said
    assert "not scored yet: waits for" in said[codes.index(0)]
    again = score(shards, out, estimator=SPEC, nodes=Nodes(codes.index(-signal.SIGKILL), 2))
    assert again.waits_for is None
    assert files_of(out) == plain


def test_options_that_do_not_go_together_are_named(shards: Path, tmp_path: Path) -> None:
    for words, message in [
        (("--engine", "spark"), "engine 'spark' is unknown; use local or ray"),
        (("--gpus-per-worker", 0.5), "--gpus-per-worker is for Ray; add --engine ray"),
        (("--engine", "ray", "--devices", "2"), "devices '2' is not for --engine ray"),
        (("--engine", "ray", "--nodes", "2", "--node-rank", 0), "nodes '2' is not for --engine ray"),
        (("--devices", "gpu0"), "devices 'gpu0' is unknown; use all, cuda:0,cuda:1, or 2"),
        (
            ("--devices", "2", "--device", "cpu", "--model", "embedded"),
            "device 'cpu' does not go with --devices",
        ),
        (("--nodes", "2"), "nodes and node-rank belong together"),
    ]:
        done = called("annotate", shards, "--out", "out", *words, cwd=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr
