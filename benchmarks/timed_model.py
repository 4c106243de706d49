"""A model that takes the time of a large one without its work: what is measured with it is how requests wait for one another.

python -m benchmarks.service --only fairness --model python:benchmarks.timed_model:TimedModel --pretrained ''
"""

import hashlib
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Rows = NDArray[np.float32]
IMAGE_SECONDS, TEXT_SECONDS = (0.02, 0.05), (0.012, 0.005)  # of a batch, and of each item; about ViT-B-32 on one core


class TimedModel:
    """Sleeps as long as a batch would take; rows follow from the bytes of each item."""

    identity = "timed-1"

    def encode_images(self, images: Sequence[Image.Image]) -> Rows:
        return _wait_and_hash([image.tobytes() for image in images], *IMAGE_SECONDS)

    def encode_texts(self, texts: Sequence[str]) -> Rows:
        return _wait_and_hash([text.encode() for text in texts], *TEXT_SECONDS)


def _wait_and_hash(items: Sequence[bytes], batch_seconds: float, item_seconds: float) -> Rows:
    time.sleep(batch_seconds + item_seconds * len(items))
    digests = [np.frombuffer(hashlib.sha256(item).digest(), np.uint8) for item in items]
    return np.stack(digests).astype(np.float32) - 127.5
