"""Models for the encoder process whose work can be held up, or goes wrong."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from tests.fakes import ColourModel, Rows

GATE = "NOISEGATE_TEST_GATE"  # a file: while it is there, pictures are not encoded
POISON, LOUD = "a text that the model cannot stand", "a text that ends the process"


class Gated(ColourModel):
    """Waits before each batch of pictures while the gate's file exists; loading is not held up."""

    loaded = False

    def encode_images(self, images: Sequence[Image.Image]) -> Rows:
        gate = os.environ.get(GATE)
        while self.loaded and gate and Path(gate).exists():
            time.sleep(0.005)
        return super().encode_images(images)

    def encode_texts(self, texts: Sequence[str]) -> Rows:
        self.loaded = self.loaded or "a photo" in texts  # the last step of warming up
        return super().encode_texts(texts)


class Fragile(ColourModel):
    """Raises for one text, and ends the process for another."""

    def encode_texts(self, texts: Sequence[str]) -> Rows:
        if LOUD in texts:
            os._exit(9)
        if POISON in texts:
            raise ValueError("no such word")
        return super().encode_texts(texts)
