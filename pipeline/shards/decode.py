"""Decode bytes to a picture, a caption or a label, with limits checked before the costly part. Imports no torch."""

import io
import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from noisegate.pipeline.settings import Limits

from .read import MAX_JSON_BYTES

MAX_SCANS = 100  # of a JPEG; a progressive JPEG has about ten. Ten bytes of the file can cause a scan over all pixels
MAX_SEGMENTS = 5000  # of a JPEG; a large JPEG with a colour profile has a few hundred, and Pillow is slow on each
_MARKER = re.compile(rb"\xff([\x02-\xcf\xd9-\xfe])")
JPEG = b"\xff\xd8"  # the first bytes
FORMATS = ("JPEG", "PNG", "WEBP", "GIF")  # JPEG covers MPO; other formats are refused
_UPRIGHT = {  # by EXIF orientation, the turn that undoes it
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Pillow warns about harmless oddities in EXIF and palettes for every sample; real problems are exceptions
warnings.filterwarnings("ignore", module=r"PIL\.")


class BadSample(Exception):
    """A sample that cannot be used: `status` and the text go to the table's columns status and error."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def decode_image(data: bytes, limits: Limits, least_side: int | None = None) -> Image.Image:
    """Decode the first frame to an upright RGB picture.

    With `least_side` a JPEG is decoded at 1/2, 1/4 or 1/8 of its size, as long as neither side is then shorter than
    `least_side` pixels (libjpeg's scaled DCT: faster, with slightly different pixels). 16-bit grey is scaled to 8 bits
    (Pillow's own conversion clips it to white). Raises BadSample `bad_image` or `too_large`.
    """
    with refuse_broken(data, limits):
        image = open_image(data, limits)
        if least_side is not None:
            image.draft(None, (least_side, least_side))  # has no effect on other formats
        return upright_rgb(image)


def open_image(data: bytes, limits: Limits) -> Image.Image:
    """Read the header and check the limits; pixels are not decoded yet. Call it within `refuse_broken`."""
    if len(data) > limits.max_image_bytes:
        raise BadSample("too_large", f"image of {len(data):,} bytes; the limit is {limits.max_image_bytes:,}")
    if Image.MAX_IMAGE_PIXELS is not None and limits.max_pixels > 2 * Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = limits.max_pixels  # Pillow refuses twice its limit, so it must not be lower than ours
    segments = islice(jpeg_segments(data), MAX_SEGMENTS + 1) if data[:2] == JPEG else ()
    markers = bytes(marker for marker, _ in segments)
    if len(markers) > MAX_SEGMENTS:
        raise BadSample("too_large", f"JPEG of more than {MAX_SEGMENTS:,} segments")
    image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
    _check_size(*image.size, limits)
    if (stated := stated_size(data)) not in (None, image.size):  # such as a PNG with two headers
        raise BadSample("bad_image", f"image of {image.size}, but its first bytes say {stated}")
    if is_jpeg(image) and markers.count(0xDA) > MAX_SCANS:
        raise BadSample("too_large", f"JPEG of more than {MAX_SCANS} scans")
    return image


def stated_size(data: bytes) -> tuple[int, int] | None:
    """Read width and height of a PNG or GIF from its first bytes; None for other formats.

    >>> stated_size(b"GIF89a" + (300).to_bytes(2, "little") + (200).to_bytes(2, "little"))
    (300, 200)
    """
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if data[:4] == b"GIF8":
        return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    return None


def is_jpeg(image: Image.Image) -> bool:
    """Return whether an opened picture is a JPEG file; MPO is a JPEG with several pictures."""
    return image.format in ("JPEG", "MPO")


@contextmanager
def refuse_broken(data: bytes, limits: Limits) -> Iterator[None]:
    """Turn any error of Pillow while it opens or decodes `data` into BadSample."""
    try:
        yield
    except BadSample:
        raise
    except Image.DecompressionBombError as error:
        raise BadSample("too_large", f"image over the limit of {limits.max_pixels:,} pixels") from error
    except UnidentifiedImageError as error:  # Pillow's text contains a memory address, which differs in each run
        reason = "not a readable JPEG, PNG, WebP or GIF" if data else "0 bytes"
        raise BadSample("bad_image", reason) from error
    except Exception as error:  # Pillow's plugins raise errors of any type for broken files
        raise _bad_image(error) from error


def to_upright_rgb(image: Image.Image, limits: Limits) -> Image.Image:
    """Like `decode_image`, for a Pillow image that a program has opened; loading its pixels may still fail."""
    try:
        _check_size(*image.size, limits)
        return upright_rgb(image)
    except BadSample:
        raise
    except Exception as error:  # as above
        raise _bad_image(error) from error


def _bad_image(error: Exception) -> BadSample:
    reason = re.sub(r" at 0x[0-9a-f]+", "", " ".join(str(error).split()))
    return BadSample("bad_image", f"{type(error).__name__}: {reason}"[:300])


def _check_size(width: int, height: int, limits: Limits) -> None:
    if width * height > limits.max_pixels:
        raise BadSample("too_large", f"image of {width:,} x {height:,} pixels; the limit is {limits.max_pixels:,}")
    if max(width, height) > limits.max_aspect * min(width, height):
        raise BadSample(
            "too_large",
            f"image of {width:,} x {height:,} pixels; one side is over {limits.max_aspect:,} times the other",
        )


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the segments of the first picture in a JPEG file: marker, and where its content begins.

    >>> list(jpeg_segments(bytes.fromhex("ffd8 ffe0 0004 ffda ffda 0002 99 ffd9")))  # the first ffda is content
    [(224, 4), (218, 10)]
    """
    at = 2
    while (found := _MARKER.search(data, at)) and found[1] != b"\xd9":
        yield found[1][0], found.end()
        at = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")


def upright_rgb(image: Image.Image) -> Image.Image:
    """Decode an opened picture, turn it upright and convert it."""
    image.load()
    turn = _UPRIGHT.get(orientation(image))
    return _to_rgb(image if turn is None else image.transpose(turn))


def orientation(image: Image.Image) -> int:
    """Read the EXIF orientation, from 1 to 8; 1 (upright) if it is missing or invalid."""
    try:
        value = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # the picture may be readable though its EXIF is not
        return 1
    return value if value in _UPRIGHT else 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):  # 16-bit grey, as I;16 or widened to I
        grey = np.asarray(image).astype(np.int64)
        return Image.fromarray((np.clip(grey, 0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def decode_text(parts: dict[str, bytes], field: str | None, limits: Limits) -> str:
    """Decode the caption: part `txt`, else a field of part `json` (`caption`, then `text`, unless `field` names one).

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
        record = _parse_json(parts, "bad_text")
        value = next((record[name] for name in names if record.get(name) is not None), None)
        if value is not None and not isinstance(value, str):
            raise BadSample("bad_text", f"the caption in json is a {type(value).__name__}, not a string")
        text = value
    if text is None:
        wanted = f"no json field {field!r}" if field else "no part txt and no caption or text in json"
        raise BadSample("no_text", wanted)
    if len(text) > limits.max_text_chars:
        raise BadSample("too_large", f"caption of {len(text):,} characters; the limit is {limits.max_text_chars:,}")
    if not text.replace("\0", "").strip():
        raise BadSample("no_text", "the caption is empty")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # json may contain lone surrogates
        raise BadSample("bad_text", f"caption has an invalid character at {error.start}") from error
    return text


def decode_label(parts: dict[str, bytes], field: str | None) -> int:
    """Decode the class number: part `cls`, else a field of part `json` (`label`, then `cls`, unless `field` names one).

    Raises BadSample `no_label` or `bad_label`.
    """
    value: Any = None
    if field is None and "cls" in parts:
        value = parts["cls"].decode("utf-8-sig", "replace").strip()
    elif "json" in parts:
        record = _parse_json(parts, "bad_label")
        names = [field] if field else ["label", "cls"]
        value = next((record[name] for name in names if record.get(name) is not None), None)
    if value is None or value == "":
        raise BadSample("no_label", f"no json field {field!r}" if field else "no part cls and no label or cls in json")
    try:
        label = -1 if isinstance(value, bool) else int(value)
    except (TypeError, ValueError, OverflowError):  # OverflowError: infinity
        label = -1
    if not 0 <= label < 2**31 or (isinstance(value, float) and value != label):
        raise BadSample("bad_label", f"the label {str(value)[:40]!r} is not a class number (0, 1, 2, …)")
    return label


def _parse_json(parts: dict[str, bytes], status: str) -> dict[str, Any]:
    if len(parts["json"]) > MAX_JSON_BYTES:
        raise BadSample("too_large", f"part json of {len(parts['json']):,} bytes; the limit is {MAX_JSON_BYTES:,}")
    try:
        record = json.loads(parts["json"])
    except (ValueError, RecursionError) as error:  # ValueError covers bad JSON and bad UTF-8
        raise BadSample(status, f"json cannot be read: {' '.join(str(error).split())}"[:300]) from error
    if not isinstance(record, dict):
        raise BadSample(status, f"json holds a {type(record).__name__}, not an object")
    return record


Preprocessor = Callable[..., NDArray[np.uint8]]
"""A function of a picture (Pillow's) that returns the pixels a model takes; it may have the attributes of `Preprocess`."""
