"""Features for instance-dependent label noise: rows of an array, a run's embeddings, or thumbnails of the pictures."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import MismatchError, ShardError
from noisegate.pipeline.estimators.base import array_digest
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.pipeline.shards.stream import Chunk, ShardFailed, stream
from noisegate.pipeline.shards.workers import DecodePool

from .protocols import bad_setting

SIDE = 8  # pixels; chosen: 384 MB for a million pictures, enough for colour and layout
ArraySource = str | Path | NDArray[Any]


@dataclass(frozen=True, eq=False)
class Features:
    """rows: (N, S), one for each sample; known: (N,) bool, false where a sample has none. name: for a protocol's id."""

    name: str
    rows: NDArray[Any]
    known: NDArray[np.bool_]


def load_features(
    source: ArraySource | None, shards: Sequence[Shard], digests: Sequence[str], workers: int = 0
) -> Features:
    """Load the features of all samples of `shards`, in order.

    `source` is an array, an .npy file of one, a folder that `noisegate annotate` wrote from the same shards (`digests`:
    their SHA-256), or None for thumbnails.
    """
    if source is None:
        return make_thumbnails(shards, workers)
    if isinstance(source, str | Path) and Path(source).is_dir():
        return _read_embeddings(Path(source), shards, digests)
    rows = load_rows(source, "features")
    known: NDArray[np.bool_] = np.isfinite(rows).all(axis=1)
    return Features(name_with_digest("array", rows), rows, known)


def load_rows(source: ArraySource, setting: str) -> NDArray[Any]:
    """Load a matrix of numbers from an array or an .npy file; errors name `setting`."""
    if isinstance(source, np.ndarray):
        rows = source
    else:
        try:
            rows = np.load(source, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError as error:
            raise bad_setting(setting, source, "no such file; give an .npy file of one row per sample") from error
        except (OSError, ValueError, EOFError) as error:
            raise bad_setting(setting, source, "this is no .npy file; write one with numpy.save") from error
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.dtype.kind not in "fiu":
        shape = f"{rows.dtype} of shape {rows.shape}" if isinstance(rows, np.ndarray) else "several arrays"
        raise bad_setting(
            setting,
            getattr(rows, "shape", None),
            f"{shape} was given; give numbers of shape (samples, columns), one row per sample",
        )
    return rows


def make_thumbnails(shards: Sequence[Shard], workers: int = 0) -> Features:
    """(N, 192) int16: pictures of 8 x 8 pixels in RGB minus their mean; integers, so that every machine agrees.

    Without the centring all rows would point the same way, and each class would have one target.
    """
    pixels: list[NDArray[np.uint8] | None] = []
    small = Preprocess(size=SIDE, resize="squash", interpolation="bilinear")
    with (
        DecodePool(workers, small, DecodeOptions(tasks=("labels",))) as pool,
        closing(stream(shards, pool, 2 * max(1, workers) + 2)) as items,
    ):
        for item in items:
            if isinstance(item, Chunk):
                pixels += [sample.pixels for sample in item.samples]
            elif isinstance(item, ShardFailed):
                raise ShardError(item.error, "shards", item.shard.url)
    known = np.array([picture is not None for picture in pixels], dtype=bool)
    rows = np.zeros((len(pixels), SIDE * SIDE * 3), np.int16)
    if known.any():
        rows[known] = np.stack([picture.reshape(-1) for picture in pixels if picture is not None])
        rows[known] -= np.rint(rows[known].mean(axis=0)).astype(np.int16)
    return Features(name_with_digest(f"thumbnails-{SIDE}x{SIDE}", rows), rows, known)


def _read_embeddings(folder: Path, shards: Sequence[Shard], digests: Sequence[str]) -> Features:
    run = RunFolder(folder)
    record = run.read_run()
    if record is None:
        raise bad_setting(
            "features", folder, f"no run is there; make one with: noisegate annotate SHARDS --out {folder}"
        )
    parts = []
    for shard, digest in zip(shards, digests, strict=True):
        table = run.table(shard.stem)
        if not table.exists():
            raise bad_setting("features", folder, f"this run has no {table.name}; annotate {shard.url} too")
        if read_metadata(table)["shard"]["sha256"] != digest:
            raise MismatchError(
                f"{table} was made from another shard than {shard.url}; annotate the shards as they are",
                "features",
                folder,
            )
        if not run.embeddings(shard.stem).exists():
            raise bad_setting("features", folder, "its embeddings were dropped; annotate without --drop-embeddings")
        parts.append(read_embeddings(run.embeddings(shard.stem), "image"))
    rows = np.concatenate(parts)
    known: NDArray[np.bool_] = (rows != 0).any(axis=1)  # a sample that could not be encoded is a row of zeros
    return Features(name_with_digest(str(record["scorer"]["model"]), rows), rows, known)


def name_with_digest(name: str, rows: NDArray[Any]) -> str:
    """The name with 8 hexadecimal digits of the rows, which decide the noise."""
    return f"{name}:{array_digest({'rows': rows})[:8]}"
