"""The command `noisegate`: the real one in a process of its own, or its `main` in this one where that is enough."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from noisegate.pipeline.cli import main

ROOT = Path(__file__).resolve().parents[1]
FAKE = ("--model", "python:tests.fakes:ColourModel")


def command(*arguments: object) -> dict[str, Any]:
    """What `subprocess` needs to start `noisegate` as a user would, with the tests' fakes within reach."""
    script = Path(sys.executable).with_name("noisegate")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return {"args": [str(script), *map(str, arguments)], "env": environment, "text": True}


def run_noisegate(*arguments: object, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run it to its end."""
    return subprocess.run(**command(*arguments), cwd=cwd, capture_output=True, check=False, timeout=120)


def called(*arguments: object, cwd: Path, columns: int = 200) -> "subprocess.CompletedProcess[str]":
    """The same without a process: quick, and as good for everything but signals and imports."""
    out, err = io.StringIO(), io.StringIO()
    words = ["noisegate", *map(str, arguments)]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", words)
        patch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as end:
            main()
    code = end.value.code
    return subprocess.CompletedProcess(words, code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())
