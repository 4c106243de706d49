"""Small downloads of the same shape as the real ones, and converted shards as they are read."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from noisegate.pipeline.datasets.convert.job import Converted, convert
from noisegate.pipeline.shards.locate import find_shards
from noisegate.pipeline.shards.read import RawSample, ShardReader
from tests.fakes import picture

COLOURS = {"red": (222, 36, 36), "green": (36, 164, 62), "blue": (40, 92, 228), "yellow": (244, 222, 44)}


def write_files(folder: Path, files: Mapping[str, bytes | str]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return folder


def jpeg(colour: str = "red") -> bytes:
    return picture(COLOURS[colour], kind="JPEG")


def read_all(found: Converted) -> list[RawSample]:
    """Every sample of the shards, in order, with all its parts."""
    return [raw for shard in find_shards(found.shards) for raw in ShardReader(shard, all_parts=True)]


def records(found: Converted) -> list[dict[str, Any]]:
    return [json.loads(raw.parts["json"]) for raw in read_all(found)]


def converted(kind: str, source: Path, out: Path, **options: Any) -> tuple[Converted, list[RawSample]]:
    found = convert(kind, source, out, **options)
    return found, read_all(found)


def features(folder: Path, images: int, captions: Sequence[str], split: str = "train") -> np.ndarray[Any, Any]:
    """SPLIT_ims.npy and SPLIT_caps.txt as SCAN and NCR pass them around, with 3 regions of 4 numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    regions = np.random.default_rng(images).standard_normal((images, 3, 4)).astype(np.float32)
    np.save(folder / f"{split}_ims.npy", regions)
    (folder / f"{split}_caps.txt").write_text("".join(f"{text}\n" for text in captions), encoding="utf-8")
    return regions
