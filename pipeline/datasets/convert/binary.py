"""Pictures in binary records: CIFAR-10 and CIFAR-100, with CIFAR-N's labels by people, and ANIMAL-10N.

CIFAR's pickled version is not read: loading it can run code.
"""

import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.labels.classes import BUILT_IN

from .source import (
    Request,
    Sample,
    SampleSource,
    check_classes,
    find,
    key_of,
    label_parts,
    missing,
    need,
    picture_samples,
    png_part,
    unusable,
)

CIFAR_SIDE, ANIMAL_SIDE = 32, 64  # pixels
ANIMAL_HEAD = 8  # bytes: id and label, 4 bytes each, big-endian
_ANIMALS = BUILT_IN["animal10n"]
_HUMAN_LABELS = {
    "cifar10n": {
        "worse": "worse_label",
        "aggre": "aggre_label",
        "random1": "random_label1",
        "random2": "random_label2",
        "random3": "random_label3",
    },
    "cifar100n": {"noisy": "noisy_label"},
}


class _Records:
    """Records in memory-mapped files: a head, then the red, green and blue planes of a square picture."""

    def __init__(self, paths: Sequence[Path], head: int, side: int) -> None:
        self._paths, self._head, self._side = paths, head, side
        self._files = [_map_records(path, head + 3 * side * side) for path in paths]
        self._starts = np.cumsum([0, *map(len, self._files)])

    def heads(self) -> NDArray[np.uint8]:
        """Return the heads of all records, (N, head) bytes."""
        return np.concatenate([records[:, : self._head] for records in self._files])

    def origin(self, number: int) -> str:
        """Name the file and record of a picture, for messages."""
        file, row = self._place(number)
        return f"{self._paths[file].name} record {row}"

    def png(self, number: int) -> bytes:
        file, row = self._place(number)
        planes = self._files[file][row, self._head :].reshape(3, self._side, self._side)
        return png_part(np.ascontiguousarray(planes.transpose(1, 2, 0)))

    def _place(self, number: int) -> tuple[int, int]:
        file = int(np.searchsorted(self._starts, number, "right")) - 1
        return file, number - int(self._starts[file])


def _map_records(path: Path, size: int) -> NDArray[np.uint8]:
    """Map a file as (N, size) bytes."""
    whole = path.stat().st_size
    if not whole or whole % size:
        problem = f"has {whole:,} bytes, no multiple of a record's {size:,}"
        raise unusable(path, f"{problem}; give the binary version (not pickled, not Matlab), unpacked")
    records: NDArray[np.uint8] = np.memmap(path, np.uint8, "r").reshape(-1, size)
    return records


# --- CIFAR ----------------------------------------------------------------------------------------------------------------


def read_cifar10(request: Request) -> SampleSource:
    """Read CIFAR-10: each record is a label and the pixels; cifar10n replaces the labels of the training set."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if request.split == "train" else ["test_batch.bin"]
    return _read_cifar(request, names, "cifar-10-batches-bin", head=1)


def read_cifar100(request: Request) -> SampleSource:
    """Read CIFAR-100: coarse label, fine label (the class), pixels; cifar100n replaces the labels of the training set."""
    return _read_cifar(request, [f"{request.split}.bin"], "cifar-100-binary", head=2)


def _read_cifar(request: Request, names: list[str], folder: str, head: int) -> SampleSource:
    paths = [need(request, name, f"{folder}/{name}") for name in names]
    records = _Records(paths, head, CIFAR_SIDE)
    heads = records.heads()
    true = heads[:, -1].astype(np.int64)
    coarse = heads[:, 0] if head == 2 else None
    classes = BUILT_IN["cifar100" if head == 2 else "cifar10"]
    check_classes(true.tolist(), classes, request.folder)
    given, files, facts, protocol = true, tuple(paths), {}, ""
    if request.kind.name in _HUMAN_LABELS and request.split == "train":
        path, column = _label_file(request)
        given = read_human_labels(path, column, true)
        check_classes(given.tolist(), classes, path)
        files, protocol = (*files, path), f"human:{request.kind.name}.{column}"
        facts = {"noise_protocol": protocol, "noisy": int((given != true).sum())}

    def sample(number: int) -> Sample:
        key = key_of(request.split, number)
        known: dict[str, Any] = {"class_name": classes[int(given[number])]}
        if coarse is not None:
            known["coarse_label"] = int(coarse[number])
        if protocol:
            wrong = bool(given[number] != true[number])
            known |= {"clean_label": int(true[number]), "noisy": wrong, "noise_protocol": protocol}

        def parts() -> dict[str, bytes]:
            return label_parts({"png": records.png(number)}, key, int(given[number]), known)

        return Sample(key, records.origin(number), parts)

    return SampleSource(len(true), sample, files, classes, facts)


def _label_file(request: Request) -> tuple[Path, str]:
    """Find the CIFAR-N file and its column; by default it is in the download's folder, or in `data` inside or beside it."""
    columns = _HUMAN_LABELS[request.kind.name]
    name = request.labels or next(iter(columns))
    if name not in columns and name not in columns.values():
        raise ConfigError(f"labels={name!r}: {request.kind.name} has {', '.join(columns)}", "labels", name)
    file = "CIFAR-100_human.pt" if request.kind.name == "cifar100n" else "CIFAR-10_human.pt"
    places = (f"{folder}/{file}" for folder in (".", "data", "..", "../data"))
    path = request.label_file or find(request.folder, *places)
    if path is None:
        raise missing(request, file)
    return path, columns.get(name, name)


def read_human_labels(path: Path, column: str, true: NDArray[np.int64]) -> NDArray[np.int64]:
    """Read (N,) labels from one column of a CIFAR-N file; raise ConfigError unless the file's clean labels equal `true`.

    The file is read by torch with weights_only, which takes tensors and arrays and runs nothing.
    """
    import torch
    from numpy.dtypes import Int8DType, Int16DType, Int32DType, Int64DType, UInt8DType

    kinds: list[Any] = [Int8DType, Int16DType, Int32DType, Int64DType, UInt8DType]
    rebuild = np.empty(0).__reduce__()[0]  # numpy's function to rebuild arrays; older files name another module for it
    scalar = np.int64(0).__reduce__()[0]
    names: list[Any] = [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    names += [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
    try:
        with torch.serialization.safe_globals([np.ndarray, np.dtype, *kinds, *names]):
            contents = torch.load(path, map_location="cpu", weights_only=True)
        labels, clean = (np.asarray(contents[name]).astype(np.int64).reshape(-1) for name in (column, "clean_label"))
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        problem = f"holds no labels {column!r} ({type(error).__name__}: {reason}); give the file of CIFAR-N"
        raise ConfigError.of("label_file", path, problem) from error
    if len(clean) != len(true) or len(labels) != len(true) or (clean != true).any():
        differ = f"{int((clean != true).sum()):,} differ" if len(clean) == len(true) else f"it has {len(clean):,}"
        problem = f"has clean labels that are not those of the {len(true):,} pictures ({differ}); give this data set's"
        raise ConfigError.of("label_file", path, problem)
    return labels


# --- ANIMAL-10N -----------------------------------------------------------------------------------------------------------


def read_animal10n(request: Request) -> SampleSource:
    """Read ANIMAL-10N from the folders training and testing (file names begin with the label), else from the binary batches."""
    need(request, ".")
    name = "training" if request.split == "train" else "testing"
    folder = find(request.folder, name, f"raw_image/{name}")
    if folder is None:
        return _read_batches(request, name)
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    labels = [int(match[1]) if (match := re.match(r"(\d+)_", file)) else -1 for file in names]
    if names and max(labels) < 0:
        raise unusable(
            request.folder, "no file name begins with a label, such as 0_12345.jpg; give ANIMAL-10N's raw images"
        )
    return picture_samples(request, folder, names, labels, (), _ANIMALS, lambda n: {"class_name": _ANIMALS[labels[n]]})


def _read_batches(request: Request, folder: str) -> SampleSource:
    pattern = "data_batch_*.bin" if request.split == "train" else "test_batch.bin"
    paths = sorted(
        (path for place in (".", "binary") for path in (request.folder / place).glob(pattern)),
        key=lambda path: [int(digits) for digits in re.findall(r"\d+", path.name)],
    )
    if not paths:
        raise missing(request, f"folder {folder} and no {pattern}")
    records = _Records(paths, ANIMAL_HEAD, ANIMAL_SIDE)
    heads = records.heads().view(">u4")
    check_classes(heads[:, 1].tolist(), _ANIMALS, request.folder)

    def sample(number: int) -> Sample:
        name, label = map(int, heads[number])

        def parts() -> dict[str, bytes]:
            return label_parts({"png": records.png(number)}, str(name), label, {"class_name": _ANIMALS[label]})

        return Sample(key_of(request.split, number), records.origin(number), parts)

    return SampleSource(len(heads), sample, tuple(paths), _ANIMALS)
