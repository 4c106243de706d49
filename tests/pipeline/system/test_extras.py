"""The command that installs an extra follows how noisegate was installed."""

import json
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest

from noisegate.pipeline.system.extras import install_line


class Installed(Distribution):
    """A distribution with this direct_url.json, or none."""

    def __init__(self, origin: dict[str, Any] | None) -> None:
        self.origin = origin

    def read_text(self, filename: str) -> str | None:
        return None if self.origin is None else json.dumps(self.origin)

    def locate_file(self, path: Any) -> Path:
        return Path(path)


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (None, "pip install 'noisegate[hf]'"),
        (
            {"url": "file:///home/me/my%20noisegate", "dir_info": {"editable": True}},
            "pip install --editable '/home/me/my noisegate[hf]'",
        ),
        (
            {"url": "file:///d/noisegate-0.1.0-py3-none-any.whl", "archive_info": {}},
            "pip install '/d/noisegate-0.1.0-py3-none-any.whl[hf]'",
        ),
        (
            {"url": "https://git.test/noisegate", "vcs_info": {"vcs": "git", "commit_id": "a1"}},
            "pip install 'noisegate[hf] @ git+https://git.test/noisegate'",
        ),
        (
            {"url": "https://files.test/noisegate.whl", "archive_info": {}},
            "pip install 'noisegate[hf] @ https://files.test/noisegate.whl'",
        ),
    ],
)
def test_install_line(origin: dict[str, Any] | None, line: str) -> None:
    assert install_line("hf", Installed(origin)) == line
