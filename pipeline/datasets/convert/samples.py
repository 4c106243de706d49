"""The parts of a sample as bytes (pictures as they are, arrays without pickle, records as JSON), and pictures with labels."""

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards.decode import FORMATS, BadSample, decode_image
from noisegate.pipeline.shards.read import IMAGE_PARTS

from .source import Request, Sample, SampleSource, unusable

CHECKS = ("header", "full")
_NAMES = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp"}


def picture_file(path: Path, check: str = "header") -> dict[str, bytes]:
    """One part with the file's own bytes, named by its suffix, or by its content where the suffix is none of a picture.

    Raises BadSample where the file is missing or not a picture; `full` decodes all of it, `header` only its beginning.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise BadSample("no_image", f"{path.name} is not there") from error
    except OSError as error:
        raise BadSample("bad_image", f"{path.name} cannot be read: {error.strerror}") from error
    if check == "full":
        decode_image(data, Limits())
    content = _format(data)
    name = path.suffix.lower().lstrip(".") if is_picture(path) else _NAMES.get(content)
    if name is None:
        raise BadSample("bad_image", f"a {content} file; shards hold JPEG, PNG and WebP")
    return {name: data}


def _format(data: bytes) -> str:
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return str(image.format)
    except Exception as error:  # Pillow's plugins raise errors of any type for broken files
        reason = "not a readable JPEG, PNG, WebP or GIF" if data else "0 bytes"
        raise BadSample("bad_image", reason) from error


def is_picture(path: Path) -> bool:
    """Whether the file's suffix is one of those that shards hold."""
    return path.suffix.lower().lstrip(".") in IMAGE_PARTS


def png_part(pixels: NDArray[np.uint8]) -> bytes:
    """Encode (H, W, 3) pixels as a PNG, without loss."""
    packed = io.BytesIO()
    Image.fromarray(pixels).save(packed, "PNG")
    return packed.getvalue()


def array_part(array: NDArray[Any], float16: bool = False) -> bytes:
    """Encode an array as .npy of float32 or float16; raises BadSample where a number is not finite."""
    with np.errstate(over="ignore"):  # reported below
        kept = np.ascontiguousarray(array, dtype=np.float16 if float16 else np.float32)
    if not np.isfinite(kept).all():
        what = "too large for float16" if np.isfinite(array).all() else "not finite"
        raise BadSample("bad_image", f"features that are {what}")
    packed = io.BytesIO()
    np.lib.format.write_array(packed, kept, version=(1, 0), allow_pickle=False)
    return packed.getvalue()


def json_part(record: Mapping[str, Any]) -> bytes:
    """Encode a record as JSON, its fields in their own order."""
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace")


def key_of(split: str, number: int) -> str:
    """The key of a sample: letters, digits and `-`; keys sort by number.

    >>> key_of("train", 12)
    'train-0000012'
    """
    return f"{re.sub(r'[^a-z0-9]', '-', split)}-{number:07d}"


def label_parts(picture: Mapping[str, bytes], image_id: str, label: int, known: Mapping[str, Any]) -> dict[str, bytes]:
    """The parts of a picture with its class in `cls` and in the json; `known` adds fields, such as clean_label and noisy."""
    record = {"image_id": image_id, "label": label, **known}
    return {**picture, "cls": str(label).encode(), "json": json_part(record)}


def picture_samples(
    request: Request,
    folder: Path,
    names: Sequence[str],
    labels: Sequence[int],
    files: tuple[Path, ...],
    classes: tuple[str, ...] = (),
    known: Callable[[int], Mapping[str, Any]] = lambda number: {},
    facts: Mapping[str, Any] | None = None,
) -> SampleSource:
    """Samples of picture files below `folder` with their labels, in this order."""
    if not names:
        raise unusable(request.folder, f"--split {request.split} lists no pictures; check its files")
    check_classes(labels, classes, request.folder)

    def sample(number: int) -> Sample:
        name, label = names[number], int(labels[number])

        def parts() -> dict[str, bytes]:
            if label < 0:
                raise BadSample("bad_label", "the label is no class number")
            return label_parts(picture_file(folder / name, request.check), name, label, known(number))

        return Sample(key_of(request.split, number), name, parts)

    return SampleSource(len(names), sample, files, classes, facts or {})


def check_classes(labels: Sequence[int], classes: Sequence[str], place: Path) -> None:
    """Raise ConfigError where a label has no class."""
    largest = max(labels, default=-1)
    if classes and largest >= len(classes):
        raise unusable(place, f"a label is {largest}, and there are {len(classes)} classes; check its lists")
