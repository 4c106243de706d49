"""CIFAR-10 and CIFAR-100 in their official binary version, and the labels by people of CIFAR-N.

The pickled version is not read: loading it can run code.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.labels.classes import BUILT_IN

from .files import missing, need
from .labelled import check_classes, label_parts
from .parts import key_of, png_part
from .source import Request, Sample, Source

__all__ = ["read_cifar10", "read_cifar10n", "read_cifar100", "read_cifar100n", "read_human_labels"]

PIXELS = 3 * 32 * 32  # bytes: the red plane, the green and the blue one, row by row
_COLUMNS = {
    "cifar10n": {
        "worse": "worse_label",
        "aggre": "aggre_label",
        "random1": "random_label1",
        "random2": "random_label2",
        "random3": "random_label3",
    },
    "cifar100n": {"noisy": "noisy_label"},
}


def read_cifar10(request: Request) -> Source:
    """Records of a label and the pixels."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if request.split == "train" else ["test_batch.bin"]
    return _read(request, names, ("cifar-10-batches-bin",), head=1)


def read_cifar100(request: Request) -> Source:
    """Records of the coarse label, the fine one, which is the class, and the pixels."""
    return _read(request, [f"{request.split}.bin"], ("cifar-100-binary",), head=2)


def read_cifar10n(request: Request) -> Source:
    """The labels of `--labels`, the worst by default; the test set has its own."""
    return read_cifar10(request)


def read_cifar100n(request: Request) -> Source:
    return read_cifar100(request)


def _read(request: Request, names: list[str], folders: tuple[str, ...], head: int) -> Source:
    paths = [need(request, name, *(f"{folder}/{name}" for folder in folders)) for name in names]
    records = [_records(path, head + PIXELS) for path in paths]
    starts = np.cumsum([0, *map(len, records)])
    true = np.concatenate([part[:, head - 1] for part in records]).astype(np.int64)
    coarse = np.concatenate([part[:, 0] for part in records]) if head == 2 else None
    classes = BUILT_IN["cifar100" if head == 2 else "cifar10"]
    check_classes(true.tolist(), classes, request.folder)
    given, files, facts, protocol = true, tuple(paths), {}, ""
    if request.kind.name in _COLUMNS and request.split == "train":
        path, column = _label_file(request)
        given = read_human_labels(path, column, true)
        check_classes(given.tolist(), classes, path)
        files, protocol = (*files, path), f"human:{request.kind.name}.{column}"
        facts = {"noise_protocol": protocol, "noisy": int((given != true).sum())}

    def sample(number: int) -> Sample:
        place = int(np.searchsorted(starts, number, "right")) - 1
        key = key_of(request.split, number)
        known: dict[str, Any] = {"class_name": classes[int(given[number])]}
        if coarse is not None:
            known["coarse_label"] = int(coarse[number])
        if protocol:
            wrong = bool(given[number] != true[number])
            known |= {"clean_label": int(true[number]), "noisy": wrong, "noise_protocol": protocol}

        def parts() -> dict[str, bytes]:
            pixels = records[place][number - starts[place], head:].reshape(3, 32, 32).transpose(1, 2, 0)
            picture = {"png": png_part(np.ascontiguousarray(pixels))}
            return label_parts(picture, key, int(given[number]), known)

        return Sample(key, f"{paths[place].name} record {number - starts[place]}", parts)

    return Source(len(true), sample, files, classes, facts)


def _records(path: Path, size: int) -> NDArray[np.uint8]:
    """(N, size) bytes, left on disk."""
    whole = path.stat().st_size
    if not whole or whole % size:
        raise ConfigError(
            f"{path} has {whole:,} bytes, no multiple of a record's {size:,}; it must be the binary version of the data "
            "set, unpacked (not the pickled or the Matlab one)"
        )
    found: NDArray[np.uint8] = np.memmap(path, np.uint8, "r").reshape(-1, size)
    return found


def _label_file(request: Request) -> tuple[Path, str]:
    columns = _COLUMNS[request.kind.name]
    name = request.labels or next(iter(columns))
    if name not in columns and name not in columns.values():
        raise ConfigError(f"labels={name!r}: {request.kind.name} has {', '.join(columns)}")
    file = "CIFAR-100_human.pt" if request.kind.name == "cifar100n" else "CIFAR-10_human.pt"
    path = request.label_file
    if path is None:
        found = [request.folder / place / file for place in (".", "data", "..", "../data")]
        path = next((one for one in found if one.exists()), None)
    if path is None:
        raise missing(request, file)
    return path, columns.get(name, name)


def read_human_labels(path: Path, column: str, true: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) labels of one column of a CIFAR-N file, whose clean labels must be the pictures' own, one by one.

    The file is read by torch with weights_only, which takes tensors and arrays and runs nothing.
    """
    import torch
    from numpy.dtypes import Int8DType, Int16DType, Int32DType, Int64DType, UInt8DType

    kinds: list[Any] = [Int8DType, Int16DType, Int32DType, Int64DType, UInt8DType]
    rebuild = np.empty(0).__reduce__()[0]  # numpy's own; files of older versions know it by another name
    scalar = np.int64(0).__reduce__()[0]
    names: list[Any] = [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    names += [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
    try:
        with torch.serialization.safe_globals([np.ndarray, np.dtype, *kinds, *names]):
            found = torch.load(path, map_location="cpu", weights_only=True)
        labels, clean = (np.asarray(found[name]).astype(np.int64).reshape(-1) for name in (column, "clean_label"))
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"label_file={str(path)!r} holds no labels {column!r} ({type(error).__name__}: {reason}); give the file of CIFAR-N"
        ) from error
    if len(clean) != len(true) or len(labels) != len(true) or (clean != true).any():
        differ = f"{int((clean != true).sum()):,} differ" if len(clean) == len(true) else f"it has {len(clean):,}"
        raise ConfigError(
            f"label_file={str(path)!r}: its clean labels are not those of the {len(true):,} pictures ({differ}); give the "
            "file of this data set"
        )
    return labels
