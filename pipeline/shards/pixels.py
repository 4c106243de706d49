"""Decode and preprocess a picture's bytes to the model's input pixels, with the decoder of its preprocessing.

- `pillow`: Pillow decodes and resizes. The reference: equal to open_clip's own transform.
- `fast`: libjpeg-turbo decodes plain JPEGs, at a fraction of their size if that is enough, and torch resizes. Pillow opens
every picture first and decodes all other formats, so limits, statuses, EXIF and odd files are the same.
- `gpu`: as `fast`, but the bytes of plain JPEGs are passed to the encoder, which decodes them on its GPU.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from noisegate.pipeline.settings import DECODERS, Limits

from .decode import BadSample, Preprocessor, decode_image, is_jpeg, open_image, orientation, refuse_broken, upright_rgb
from .preprocess import SPARE

_PILLOW = "pillow: first frame, exif-transposed, rgb"
_NAMES = {  # as in identities: the name, a colon, a description
    ("pillow", False): _PILLOW,
    ("pillow", True): f"{_PILLOW}, large JPEGs at 1/2, 1/4 or 1/8",  # not below the model's input size
    ("fast", False): f"fast: as pillow; JPEGs {2 * SPARE} times too large at 1/2, 1/4 or 1/8, resized by torch",
    ("fast", True): "fast: as pillow; JPEGs twice too large at 1/2, 1/4 or 1/8, resized by torch",
    ("gpu", False): "gpu: as fast, JPEGs decoded and resized whole on the GPU",
}


def describe_decoder(decoder: str, draft: bool = False) -> str:
    """Describe the decoder for an identity.

    >>> describe_decoder("pillow")
    'pillow: first frame, exif-transposed, rgb'
    """
    return _NAMES[decoder, draft]


def decoder_name(scorer: Mapping[str, Any]) -> str:
    """Return the setting for the decoder of a recorded identity; `pillow` for records without one.

    >>> decoder_name({"decoder": describe_decoder("fast", draft=True)}), decoder_name({})
    ('fast', 'pillow')
    """
    name = str(scorer.get("decoder")).partition(":")[0]
    return name if name in DECODERS else "pillow"


def decode_pixels(data: bytes, preprocess: Preprocessor, limits: Limits) -> NDArray[np.uint8]:
    """Decode and preprocess a picture; raise BadSample `bad_image` or `too_large`. For `gpu`, return a JPEG's bytes (N,)."""
    decoder, least_side = getattr(preprocess, "decoder", "pillow"), getattr(preprocess, "least_side", None)
    if decoder == "pillow":
        return preprocess_image(decode_image(data, limits, least_side), preprocess)
    with refuse_broken(data, limits):
        image = open_image(data, limits)
        if decoder == "gpu" and is_plain_jpeg(image):
            return np.frombuffer(data, np.uint8)
        pixels = _decode_array(data, image, least_side)
        width, height = image.size
        # after decoding, because for a PNG this decodes all of it and hides its errors
        turned = (height, width) if orientation(image) >= 5 else (width, height)
    return preprocess_image(pixels, preprocess, turned)


def decode_array(data: bytes, limits: Limits, least_side: int | None = None) -> NDArray[np.uint8]:
    """Like `decode_image`, but return an array (H, W, 3), and use libjpeg-turbo if it can decode the file."""
    with refuse_broken(data, limits):
        return _decode_array(data, open_image(data, limits), least_side)


def is_plain_jpeg(image: Image.Image) -> bool:
    """Return whether an opened picture is a grey or RGB JPEG, not CMYK."""
    return is_jpeg(image) and image.mode in ("L", "RGB")


def _decode_array(data: bytes, image: Image.Image, least_side: int | None) -> NDArray[np.uint8]:
    if is_plain_jpeg(image):
        width, height = image.size
        turn = orientation(image)
        scale = next((s for s in (8, 4, 2) if _is_enough(width, height, s, turn, least_side)), 1)
        try:
            pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
                data, "RGB", min_height=-(-height // scale), min_width=-(-width // scale), min_factor=scale
            )
            return turn_upright(pixels, turn)
        except ValueError:  # damaged or unsupported: let Pillow decide
            pass
    return np.array(upright_rgb(image))


def _is_enough(width: int, height: int, scale: int, turn: int, least_side: int | None) -> bool:
    """Return whether a JPEG may be decoded at 1/scale of its size.

    If the size is not divisible by `scale`, the last row and column of pixels lie partly outside. `resize_pixels` corrects this
    at the right and the bottom only, and most turns would move them to the left or the top.
    """
    if least_side is None or min(width, height) < scale * least_side:
        return False
    return turn in (1, 5) or width % scale == height % scale == 0


def turn_upright(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Undo an EXIF orientation of (H, W, 3) pixels.

    >>> turn_upright(np.arange(6).reshape(2, 3, 1), 6)[:, :, 0].tolist()
    [[3, 0], [4, 1], [5, 2]]
    """
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    down, across = orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)
    if down or across:
        # not ascontiguousarray: numpy counts a turned line of pixels as contiguous, and torch does not take it
        return pixels[:: -1 if down else 1, :: -1 if across else 1].copy()
    return np.ascontiguousarray(pixels)


def preprocess_image(image: Any, preprocess: Preprocessor, *size: tuple[int, int]) -> NDArray[np.uint8]:
    """Preprocess a decoded picture for the model; raise BadSample if it cannot be resized.

    `size` is the picture's full width and height, if it was decoded at a fraction of it.
    """
    try:
        return preprocess(image, *size)
    except (MemoryError, ArithmeticError, ValueError, OSError, RuntimeError) as error:  # RuntimeError: torch's
        width, height = size[0] if size else image.size
        reason = f"{width} x {height} pixels cannot be resized: {type(error).__name__}: {error}"
        raise BadSample("bad_image", reason[:300]) from error
