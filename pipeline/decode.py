"""Raw bytes to pixels and text, with limits checked before the costly part. Nothing here imports torch."""

import io
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from .errors import ConfigError

__all__ = ["DECODER", "BadSample", "Limits", "decode_image", "decode_label", "decode_text"]

DECODER = "pillow: first frame, exif-transposed, rgb"
FORMATS = ("JPEG", "PNG", "WEBP", "GIF")  # JPEG covers MPO; anything else a file claims to be is refused

Image.MAX_IMAGE_PIXELS = None  # Limits.max_pixels decides, before anything is decoded


@dataclass(frozen=True)
class Limits:
    """What is refused before it is decoded; a sample over a limit gets the status `too_large`."""

    max_pixels: int = 90_000_000
    max_image_bytes: int = 64_000_000
    max_text_chars: int = 20_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ConfigError(f"{name}={value} would refuse every sample; use a positive number, such as 1000000")


class BadSample(Exception):
    """One sample cannot be used: `status` goes to the table's column of that name, the text to `error`."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def decode_image(data: bytes, limits: Limits) -> Image.Image:
    """The first frame as an upright RGB picture.

    16-bit grey is scaled to 8 bits (Pillow's own conversion clips it to white). Raises BadSample `bad_image` or
    `too_large`.
    """
    if len(data) > limits.max_image_bytes:
        raise BadSample("too_large", f"image of {len(data):,} bytes; the limit is {limits.max_image_bytes:,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of harmless EXIF and palette oddities, once per sample
            image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
            width, height = image.size
            if width * height > limits.max_pixels:
                raise BadSample(
                    "too_large", f"image of {width:,} x {height:,} pixels; the limit is {limits.max_pixels:,}"
                )
            image.load()
            image = ImageOps.exif_transpose(image)
            return _rgb(image)
    except BadSample:
        raise
    except Exception as error:  # Pillow's plugins raise whatever their parsers meet in broken files
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadSample("bad_image", f"{type(error).__name__}: {reason}"[:300]) from error


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):  # 16-bit grey, as I;16 or widened to I
        grey = np.asarray(image).astype(np.int64)
        return Image.fromarray((np.clip(grey, 0, 65535) >> 8).astype(np.uint8), mode="L").convert("RGB")
    return image.convert("RGB")


def decode_text(parts: dict[str, bytes], field: str | None, limits: Limits) -> str:
    """The caption: part `txt`, else a field of part `json` (`caption`, then `text`, unless `field` names one).

    Raises BadSample `no_text`, `bad_text` or `too_large`.
    """
    text: str | None = None
    if field is None and "txt" in parts:
        try:
            text = parts["txt"].decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadSample("bad_text", f"caption is not UTF-8: {error.reason} at byte {error.start}") from error
    elif "json" in parts:
        names = [field] if field else ["caption", "text"]
        record = _json(parts)
        found = next((record[name] for name in names if record.get(name) is not None), None)
        if found is not None and not isinstance(found, str):
            raise BadSample("bad_text", f"the caption in json is a {type(found).__name__}, not a string")
        text = found
    if text is None:
        wanted = f"no json field {field!r}" if field else "no part txt and no caption or text in json"
        raise BadSample("no_text", wanted)
    if len(text) > limits.max_text_chars:
        raise BadSample("too_large", f"caption of {len(text):,} characters; the limit is {limits.max_text_chars:,}")
    if not text.strip():
        raise BadSample("no_text", "the caption is empty")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # json may carry lone surrogates
        raise BadSample("bad_text", f"caption has an invalid character at {error.start}") from error
    return text


def decode_label(parts: dict[str, bytes], field: str | None) -> int:
    """The class number: part `cls`, else a field of part `json` (`label`, then `cls`, unless `field` names one).

    Raises BadSample `no_label` or `bad_label`.
    """
    value: Any = None
    if field is None and "cls" in parts:
        value = parts["cls"].decode("utf-8", "replace").strip()
    elif "json" in parts:
        record = _json(parts)
        names = [field] if field else ["label", "cls"]
        value = next((record[name] for name in names if record.get(name) is not None), None)
    if value is None or value == "":
        raise BadSample("no_label", f"no json field {field!r}" if field else "no part cls and no label or cls in json")
    try:
        label = int(value)
    except (TypeError, ValueError) as error:
        raise BadSample("bad_label", f"the label {str(value)[:40]!r} is not a whole number") from error
    if (isinstance(value, float) and value != label) or not 0 <= label < 2**31:
        raise BadSample("bad_label", f"the label {value!r} is not a class number (0, 1, 2, …)")
    return label


def _json(parts: dict[str, bytes]) -> dict[str, Any]:
    try:
        record = json.loads(parts["json"])
    except (ValueError, RecursionError) as error:  # ValueError covers bad JSON and bad UTF-8
        raise BadSample("bad_text", f"json cannot be read: {' '.join(str(error).split())}"[:300]) from error
    if not isinstance(record, dict):
        raise BadSample("bad_text", f"json holds a {type(record).__name__}, not an object")
    return record


Preprocessor = Callable[[Image.Image], NDArray[np.uint8]]
