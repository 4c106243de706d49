"""A model that kills its own process, as `kill -9` does, on captions that say so; encoders import it by name."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from noisegate import Summary
from noisegate.pipeline.estimators import ModelSpec
from tests.fakes import ColourModel, Member, Rows, picture

FOLDER = "NOISEGATE_TEST_DEATHS"


class DeadlyModel(ColourModel):
    """`deadly NAME` kills once: after that a file called NAME is in the folder that the environment names."""

    identity = "deadly-1"

    def encode_texts(self, texts: Sequence[str]) -> Rows:
        for text in texts:
            if text.startswith("deadly ") and _first_time(text.removeprefix("deadly ")):
                os.kill(os.getpid(), signal.SIGKILL)
            if text == "refused":
                raise ValueError("this caption is refused")
        return super().encode_texts(texts)


def _first_time(name: str) -> bool:
    try:
        (Path(os.environ[FOLDER]) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


SPEC = ModelSpec(f"python:{__name__}:DeadlyModel")


def sample(key: str, caption: str) -> list[Member]:
    return [(f"{key}.png", picture("red")), (f"{key}.txt", caption.encode())]


def without_times(summary: Summary) -> dict[str, Any]:
    """What two runs of the same shards must agree on."""
    return {k: v for k, v in summary.to_dict().items() if k not in ("out", "seconds", "pairs_per_second")}
