"""One small target of each kind, for tests of all of them, and batches without shards."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

from noisegate.trainers.data import Batch
from noisegate.trainers.targets import Target, build_target, resolve_target

CAPTIONS = ["a red dog runs", "two cats", "a blue bird over the sea", "one small red fish"]
ARCHITECTURE: dict[str, Any] = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 16, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}
WORDS = {"min_count": 1}
CONFIGS: Mapping[str, dict[str, Any]] = {
    "clip": {"name": "clip", "architecture": ARCHITECTURE, "vocabulary": {"kind": "captions"}},
    "dual": {"name": "dual", "features": 6, "regions": 5, "width": 8, "word_width": 4, "vocabulary": WORDS},
    "dual-transformer": {
        "name": "dual",
        "features": 6,
        "regions": 5,
        "width": 8,
        "word_width": 4,
        "image_mlp": True,
        "pooling": "max",
        "text": "transformer",
        "text_layers": 2,
        "text_pooling": "mean",
        "vocabulary": WORDS,
    },
    "sgraf": {
        "name": "sgraf",
        "features": 6,
        "regions": 5,
        "width": 8,
        "similarity_width": 4,
        "word_width": 4,
        "steps": 2,
        "vocabulary": WORDS,
    },
    "scan": {"name": "scan", "features": 6, "regions": 5, "width": 8, "word_width": 4, "vocabulary": WORDS},
    "video": {
        "name": "video",
        "features": 6,
        "frames": 5,
        "width": 8,
        "word_width": 4,
        "sentence_width": 5,
        "vocabulary": WORDS,
    },
}
KINDS = tuple(CONFIGS)


def small(kind: str, seed: int = 0, **changes: Any) -> Target:
    """Built for `CAPTIONS`, in evaluation mode."""
    return build_target(resolve_target({**CONFIGS[kind], **changes}, lambda: CAPTIONS), seed=seed).eval()


def inputs(kind: str, count: int = 3, seed: int = 0) -> torch.Tensor:
    """Images for the target of that kind."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "clip":
        return torch.randint(0, 256, (count, 3, 16, 16), generator=generator, dtype=torch.uint8)
    return torch.randn(count, 5, 6, generator=generator)


def photo(seed: int, size: tuple[int, int] = (70, 50)) -> Image.Image:
    """A picture of random pixels, width x height."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def batch(start: int, count: int, **parts: Any) -> Batch:
    """A batch of rows from `start` on."""
    rows = torch.from_numpy(np.arange(start, start + count))
    return Batch(rows=rows, keys=[str(row) for row in rows.tolist()], **parts)
