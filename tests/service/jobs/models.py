"""Models for jobs that must be caught in the act: one waits at a gate, one kills its own process."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from tests.fakes import ColourModel, Rows

GATED = "python:tests.service.jobs.models:Gated"
CRASHING = "python:tests.service.jobs.models:Crashing"
AFTER = 8  # pictures


class Gated(ColourModel):
    """Waits after a few pictures until the file named by GATE_FILE exists."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = 0

    def encode_images(self, images: Sequence[Image.Image]) -> Rows:
        self._seen += len(images)
        while self._seen > AFTER and not Path(os.environ["GATE_FILE"]).exists():
            time.sleep(0.01)
        return super().encode_images(images)


class Crashing(ColourModel):
    """Kills its process as often as CRASH_FILE has letters, one for each time."""

    def encode_images(self, images: Sequence[Image.Image]) -> Rows:
        path = Path(os.environ["CRASH_FILE"])
        if left := path.read_text():
            path.write_text(left[1:])
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode_images(images)
