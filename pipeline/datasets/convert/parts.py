"""The parts of a sample as bytes: pictures as they are, arrays without pickle, records as JSON."""

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from noisegate.pipeline.shards.decode import FORMATS, BadSample, Limits, decode_image
from noisegate.pipeline.shards.read import IMAGE_PARTS

__all__ = ["CHECKS", "array_part", "json_part", "key_of", "picture_file", "png_part"]

CHECKS = ("header", "full")
_NAMES = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp"}


def picture_file(path: Path, check: str = "header") -> dict[str, bytes]:
    """One part with the file's own bytes, named by its suffix, or by its content where the suffix says nothing.

    Raises BadSample where there is no file, or no picture in it; `full` decodes it all, `header` looks at its beginning.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise BadSample("no_image", f"{path.name} is not there") from error
    except OSError as error:
        raise BadSample("bad_image", f"{path.name} cannot be read: {error.strerror}") from error
    if check == "full":
        decode_image(data, Limits())
    suffix = path.suffix.lower().lstrip(".")
    found = _format(data)
    name = suffix if suffix in IMAGE_PARTS else _NAMES.get(found)
    if name is None:
        raise BadSample("bad_image", f"a {found} file; shards hold JPEG, PNG and WebP")
    return {name: data}


def _format(data: bytes) -> str:
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return str(image.format)
    except Exception as error:  # Pillow's plugins raise whatever their parsers meet in broken files
        reason = "not a readable JPEG, PNG, WebP or GIF" if data else "0 bytes"
        raise BadSample("bad_image", reason) from error


def png_part(pixels: NDArray[np.uint8]) -> bytes:
    """(H, W, 3) as a PNG, which loses nothing."""
    packed = io.BytesIO()
    Image.fromarray(pixels).save(packed, "PNG")
    return packed.getvalue()


def array_part(array: NDArray[Any], float16: bool = False) -> bytes:
    """An .npy of floats, float32 or float16; raises BadSample where a number is not finite."""
    with np.errstate(over="ignore"):  # told below
        kept = np.ascontiguousarray(array, dtype=np.float16 if float16 else np.float32)
    if not np.isfinite(kept).all():
        what = "too large for float16" if np.isfinite(array).all() else "not finite"
        raise BadSample("bad_image", f"features that are {what}")
    packed = io.BytesIO()
    np.lib.format.write_array(packed, kept, version=(1, 0), allow_pickle=False)
    return packed.getvalue()


def json_part(record: Mapping[str, Any]) -> bytes:
    """The record in its own order."""
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace")


def key_of(split: str, number: int) -> str:
    """A key of letters, digits and `-`, in order.

    >>> key_of("train", 12)
    'train-0000012'
    """
    return f"{re.sub(r'[^a-z0-9]', '-', split)}-{number:07d}"
