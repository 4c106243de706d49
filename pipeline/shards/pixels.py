"""From the bytes of a picture to the pixels a model takes, by the decoder that its preprocessing names.

- `pillow`: Pillow decodes and resizes. The reference: equal to open_clip's own transform.
- `fast`: libjpeg-turbo decodes plain JPEGs, at a part of their size where that is enough, and torch resizes. Pillow opens every
  picture first and decodes all others, so limits, statuses, EXIF and odd files are the same.
- `gpu`: as `fast`, but the bytes of plain JPEGs go on to the encoder, which decodes them on its GPU.
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
_NAMES = {  # as identities record them: the name, a colon, what it does
    ("pillow", False): _PILLOW,
    ("pillow", True): f"{_PILLOW}, large JPEGs at 1/2, 1/4 or 1/8",  # as small as still covers what the model takes
    ("fast", False): f"fast: as pillow; JPEGs {2 * SPARE} times too large at 1/2, 1/4 or 1/8, resized by torch",
    ("fast", True): "fast: as pillow; JPEGs twice too large at 1/2, 1/4 or 1/8, resized by torch",
    ("gpu", False): "gpu: as fast, JPEGs decoded and resized whole on the GPU",
}


def describe_decoder(decoder: str, draft: bool = False) -> str:
    """The decoder as identities record it.

    >>> describe_decoder("pillow")
    'pillow: first frame, exif-transposed, rgb'
    """
    return _NAMES[decoder, draft]


def decoder_name(scorer: Mapping[str, Any]) -> str:
    """The setting that makes the decoder of a recorded identity; Pillow's for records without one.

    >>> decoder_name({"decoder": describe_decoder("fast", draft=True)}), decoder_name({})
    ('fast', 'pillow')
    """
    name = str(scorer.get("decoder")).partition(":")[0]
    return name if name in DECODERS else "pillow"


def decode_pixels(data: bytes, preprocess: Preprocessor, limits: Limits) -> NDArray[np.uint8]:
    """Decode and preprocess a picture; raise BadSample `bad_image` or `too_large`. (N,) bytes of a JPEG are for the GPU."""
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
    """`decode_image` as an array (H, W, 3), by libjpeg-turbo where it can."""
    with refuse_broken(data, limits):
        return _decode_array(data, open_image(data, limits), least_side)


def is_plain_jpeg(image: Image.Image) -> bool:
    """Whether an opened picture is a JPEG of grey or colour, and not of four inks."""
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
        except ValueError:  # damaged, or of a kind that it does not know: Pillow decides
            pass
    return np.array(upright_rgb(image))


def _is_enough(width: int, height: int, scale: int, turn: int, least_side: int | None) -> bool:
    """Whether a JPEG may be decoded at 1/scale of its size.

    Where that leaves a remainder, the last row and column of pixels lie partly outside. `resize_pixels` allows for it at the
    right and at the bottom, and a turn other than along the diagonal would bring them to the left or the top.
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
    """Make a decoded picture what the model takes; raise BadSample for one that cannot be resized.

    `size` is the width and height that the picture had before it was decoded at a part of it.
    """
    try:
        return preprocess(image, *size)
    except (MemoryError, ArithmeticError, ValueError, OSError, RuntimeError) as error:  # RuntimeError: torch's
        width, height = size[0] if size else image.size
        reason = f"{width} x {height} pixels cannot be resized: {type(error).__name__}: {error}"
        raise BadSample("bad_image", reason[:300]) from error
