"""Decode pairs that a program passes in: pictures as files, bytes, Pillow images or arrays, with their captions."""

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from noisegate.pipeline.settings import Limits

from .decode import BadSample, Preprocessor, decode_image, decode_text, to_upright_rgb
from .pixels import decode_pixels, preprocess_image
from .workers import Decoded

Picture: TypeAlias = Image.Image | NDArray[np.uint8] | bytes | str | Path
_LIMITS = Limits()


def decode_pair(pair: Any, preprocess: Preprocessor) -> Decoded:
    """Decode (picture, caption) as if it came from a shard; a problem becomes its status and error."""
    sample = Decoded("", 0)
    try:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            size = f" of {len(pair)}" if isinstance(pair, tuple | list) else ""
            raise BadSample("broken", f"a {type(pair).__name__}{size} is not a pair; give (picture, caption)")
        picture = _read_picture(pair[0])
        sample.text = _read_caption(pair[1])
        if isinstance(picture, bytes):
            sample.pixels = decode_pixels(picture, preprocess, _LIMITS)
        else:
            sample.pixels = preprocess_image(picture, preprocess)
    except BadSample as error:
        sample.status, sample.error, sample.text = error.status, str(error), None
    return sample


def open_picture(picture: Any) -> Image.Image:
    """Open a picture of any form as upright RGB; raise BadSample if it is not a picture."""
    data = _read_picture(picture)
    return decode_image(data, _LIMITS) if isinstance(data, bytes) else data


def _read_picture(picture: Any) -> bytes | Image.Image:
    """Read the bytes of a file, or turn an image that is open already into upright RGB."""
    if isinstance(picture, str | Path):
        try:
            picture = Path(picture).read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a null character in the name
            reason = getattr(error, "strerror", None) or str(error)
            raise BadSample("no_image", f"{picture}: {reason}"[:300]) from error
    if isinstance(picture, bytes | bytearray | memoryview):
        return bytes(picture)
    if isinstance(picture, np.ndarray):
        grey = picture.ndim == 2
        if picture.dtype != np.uint8 or not (grey or (picture.ndim == 3 and picture.shape[2] in (3, 4))):
            problem = f"an array of {picture.dtype} and shape {picture.shape} is not a picture; give uint8 (H, W, 3)"
            raise BadSample("bad_image", problem)
        if not picture.size:
            raise BadSample("bad_image", f"an array of shape {picture.shape} has no pixels")
        picture = Image.fromarray(np.ascontiguousarray(picture))
    if isinstance(picture, Image.Image):
        return to_upright_rgb(picture, _LIMITS)
    if picture is None:
        raise BadSample("no_image", "the picture is None")
    what = f"a {type(picture).__name__} is not a picture; give a path, bytes, a Pillow image or a uint8 array (H, W, 3)"
    raise BadSample("bad_image", what)


def _read_caption(caption: Any) -> str:
    if caption is None:
        raise BadSample("no_text", "the caption is None")
    if not isinstance(caption, str):
        raise BadSample("bad_text", f"the caption is a {type(caption).__name__}, not a string")
    return decode_text({"txt": caption.encode("utf-8", "surrogatepass")}, None, _LIMITS)
