"""Shards with pictures, captions, labels and json, scored by the fake model; and transforms that workers can import."""

import io
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from noisegate.pipeline.runs.table import RunFolder, read_metadata, replace_columns
from noisegate.trainers.data import Batch
from tests.fakes import Member, picture, tar_bytes
from tests.jobs import score

COLOURS = ("red", "green", "blue", "orange", "purple")
RGB = {
    "red": (222, 36, 36),
    "green": (36, 164, 62),
    "blue": (40, 92, 228),
    "orange": (248, 138, 20),
    "purple": (150, 52, 190),
}
BAD = 2  # the sample of each shard whose picture cannot be decoded


def sample(number: int, bad: bool = False) -> list[Member]:
    """Every part that training can read; the caption names the picture's colour."""
    colour = COLOURS[number % 5]
    features = io.BytesIO()
    np.save(features, np.full((3, 4), number, np.float32))
    texts = [f"{word} picture {number} is {colour}" for word in ("one", "two", "three")]
    record = {"image_id": number // 2, "captions": texts}
    return [
        (f"{number:04d}.png", b"no picture" if bad else picture(RGB[colour], (8 + number % 7, 8))),
        (f"{number:04d}.txt", f"number {number} is {colour}".encode()),
        (f"{number:04d}.cls", str(number % 5).encode()),
        (f"{number:04d}.json", json.dumps(record).encode()),
        (f"{number:04d}.npy", features.getvalue()),
    ]


def members(shard: int, count: int) -> list[Member]:
    return [part for i in range(count) for part in sample(shard * count + i, i == BAD)]


def write_scored(folder: Path, shards: int = 4, count: int = 8) -> Path:
    """`folder/shards` and its finished run in `folder/run`, with refined labels of which every seventh is null."""
    for i in range(shards):
        path = folder / "shards" / f"x-{i:02d}.tar"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tar_bytes(members(i, count)))
    score(folder / "shards", folder / "run")
    run = RunFolder(folder / "run")
    for stem in run.stems():
        table = run.read(stem)
        refined = [None if i % 7 == 6 else (i + 1) % 5 for i in range(len(table))]
        run.write_table(stem, replace_columns(table, {"refined_label": refined}, read_metadata(run.table(stem))))
    return folder


def pixels(image: Image.Image) -> Tensor:
    """The same size for all, nothing drawn."""
    return torch.from_numpy(np.asarray(image.resize((6, 6)), np.float32))


def with_noise(image: Image.Image, rng: np.random.Generator) -> Tensor:
    return pixels(image) + torch.from_numpy(rng.standard_normal((6, 6, 3)).astype(np.float32))


def with_global_noise(image: Image.Image) -> Tensor:
    """As transforms of others do it: from the global generators of torch, Python and numpy."""
    return pixels(image) + torch.rand(()) + random.random() + float(np.random.rand())  # noqa: NPY002


def lengths(texts: list[str]) -> Tensor:
    return torch.tensor([[len(text)] for text in texts])


def halved(array: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(array / 2)


def same(left: Batch, right: Batch) -> bool:
    """Bit for bit the same samples, in the same order."""
    return flat(left) == flat(right)


def flat(batch: Batch) -> dict[str, Any]:
    """A batch as plain values that compare."""
    tensors = {"images": batch.images, "texts": batch.texts, "labels": batch.labels, **batch.columns}
    plain = {name: None if t is None else (t.shape, str(t.dtype), t.numpy().tobytes()) for name, t in tensors.items()}
    names = {"rows": batch.rows.tolist(), "keys": batch.keys, "captions": batch.captions, "fields": batch.fields}
    return plain | names | {"epoch": batch.epoch, "number": batch.number}


def open_tars(folder: Path) -> int:
    """How many files below `folder` this process holds open; others come and go as earlier tests are cleared away."""
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    return len([link for link in links if link.exists() and link.readlink().is_relative_to(folder)])
