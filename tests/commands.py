"""The real command `noisegate` in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FAKE = ("--model", "python:tests.fakes:ColourModel")


def command(*arguments: object) -> dict[str, Any]:
    """What `subprocess` needs to start `noisegate` as a user would, with the tests' fakes within reach."""
    script = Path(sys.executable).with_name("noisegate")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return {"args": [str(script), *map(str, arguments)], "env": environment, "text": True}


def noisegate(*arguments: object, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run it to its end."""
    return subprocess.run(**command(*arguments), cwd=cwd, capture_output=True, check=False, timeout=120)
