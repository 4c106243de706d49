"""Runs of the real commands that several tests look at, because encoding takes longest, and signals as of a terminal."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from benchmarks.store_kills import s3_server
from tests.commands import called


@pytest.fixture(scope="session")
def labelled_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 scenes below `clean`, the same with 40 % symmetric label noise below `noisy`, scored into `tables`.

    Captions are right. `summary.json` is what annotate printed. Tests only read it.
    """
    folder = tmp_path_factory.mktemp("labelled")
    classes, task = ("--classes", "clean/classes.txt"), ("--task", "pairs,labels")
    commands: list[tuple[object, ...]] = [
        ("scenes", "clean", "--count", 2000, "--seed", 3),
        ("noise", "clean/*.tar", "--protocol", "symmetric", "--rate", 0.4, *classes, "--out", "noisy"),
        ("annotate", "noisy/*.tar", *task, *classes, "--out", "tables", "--workers", 0, "--json"),
    ]
    for words in commands:
        done = called(*words, cwd=folder)
        assert done.returncode == 0, done.stderr
    (folder / "summary.json").write_text(json.dumps(json.loads(done.stdout)))
    return folder


@pytest.fixture(scope="session")
def bucket() -> Iterator[str]:
    """`s3://runs`, an empty bucket of an S3 server that runs beside the tests; processes that tests start find it too."""
    with pytest.MonkeyPatch.context() as patch, s3_server() as environment:
        for name, value in environment.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3").mkdir("runs")
        yield "s3://runs"
        fsspec.filesystem("s3").clear_instance_cache()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell's background jobs ignore SIGINT, and so would what they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
