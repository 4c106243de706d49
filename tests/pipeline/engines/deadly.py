"""A model that kills its own process, as `kill -9` does, on captions that say so; encoders import it by name."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from pipeline.estimators import ModelSpec
from tests.fakes import ColourModel, Member, Rows, picture

FOLDER = "NOISEGATE_TEST_DEATHS"
ALWAYS = "deadly always"


class DeadlyModel(ColourModel):
    """`deadly NAME` kills once: after that a file called NAME is in the folder that the environment names."""

    identity = "deadly-1"

    def encode_texts(self, texts: Sequence[str]) -> Rows:
        for text in texts:
            if text == ALWAYS or (text.startswith("deadly ") and _first_time(text.removeprefix("deadly "))):
                os.kill(os.getpid(), signal.SIGKILL)
            if text == "refused":
                raise ValueError("this caption is refused")
        return super().encode_texts(texts)


class NeverLoads:
    """Dies before it is a model."""

    def __init__(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def encode_images(self, images: Sequence[Image.Image]) -> Rows:
        raise NotImplementedError


def _first_time(name: str) -> bool:
    try:
        (Path(os.environ[FOLDER]) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


SPEC = ModelSpec(f"python:{__name__}:DeadlyModel")


def sample(key: str, caption: str) -> list[Member]:
    return [(f"{key}.png", picture("red")), (f"{key}.txt", caption.encode())]
