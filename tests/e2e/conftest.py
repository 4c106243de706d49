"""One run of the real commands with the embedded model that several tests look at, because encoding takes longest."""

import json
from pathlib import Path

import pytest

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
