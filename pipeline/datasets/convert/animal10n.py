"""ANIMAL-10N: files that begin with their label, or binary batches."""

import re

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.labels.classes import BUILT_IN

from .files import find, missing, need
from .labelled import check_classes, label_parts, listed_pictures
from .parts import key_of, png_part
from .source import Request, Sample, Source

__all__ = ["read_animal10n"]

SIDE = 64
RECORD = 8 + 3 * SIDE * SIDE  # id and label, 4 bytes each with the highest first, then red, green and blue planes
_CLASSES = BUILT_IN["animal10n"]


def read_animal10n(request: Request) -> Source:
    """The folders training and testing, else the batches."""
    need(request, ".")
    name = "training" if request.split == "train" else "testing"
    folder = find(request.folder, name, f"raw_image/{name}")
    if folder is None:
        return _batches(request, name)
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    labels = [int(match[1]) if (match := re.match(r"(\d+)_", one)) else -1 for one in names]
    if names and max(labels) < 0:
        raise ConfigError(
            f"{folder}: no file name begins with a label, such as 0_12345.jpg; give ANIMAL-10N's raw images"
        )
    return listed_pictures(request, folder, names, labels, (), _CLASSES, lambda n: {"class_name": _CLASSES[labels[n]]})


def _batches(request: Request, folder: str) -> Source:
    pattern = "data_batch_*.bin" if request.split == "train" else "test_batch.bin"
    paths = sorted(
        (path for place in (".", "binary") for path in (request.folder / place).glob(pattern)),
        key=lambda path: [int(digits) for digits in re.findall(r"\d+", path.name)],
    )
    if not paths:
        raise missing(request, f"folder {folder} and no {pattern}")
    for path in paths:
        if not path.stat().st_size or path.stat().st_size % RECORD:
            raise ConfigError(f"{path} has {path.stat().st_size:,} bytes, no multiple of a record's {RECORD:,}")
    records = [np.memmap(path, np.uint8, "r").reshape(-1, RECORD) for path in paths]
    heads = np.concatenate([part[:, :8].copy().view(">u4") for part in records])
    starts = np.cumsum([0, *map(len, records)])
    check_classes(heads[:, 1].tolist(), _CLASSES, request.folder)

    def sample(number: int) -> Sample:
        place = int(np.searchsorted(starts, number, "right")) - 1
        row, (name, label) = number - int(starts[place]), map(int, heads[number])

        def parts() -> dict[str, bytes]:
            pixels = records[place][row, 8:].reshape(3, SIDE, SIDE).transpose(1, 2, 0)
            picture = {"png": png_part(np.ascontiguousarray(pixels))}
            return label_parts(picture, str(name), label, {"class_name": _CLASSES[label]})

        return Sample(key_of(request.split, number), f"{paths[place].name} record {row}", parts)

    return Source(len(heads), sample, tuple(paths), _CLASSES)
