"""Estimate the cost to decode a picture from its headers: pixels of all scans, and memory. Nothing is decoded."""

from dataclasses import dataclass
from itertools import islice

from noisegate.pipeline.shards import JPEG, MAX_SEGMENTS, jpeg_segments, stated_size

JPEG_BYTES, OTHER_BYTES = 13, 20  # of memory per pixel; measured: JPEG 4 to 12, PNG 4 to 19, WebP 16, GIF 5
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # frame markers of a JPEG, whose segments contain its size


@dataclass(frozen=True)
class PictureCost:
    """The cost of a picture: `pixels` of all scans, `memory` in bytes; both are 0 if the decoder refuses it at once."""

    pixels: int = 0
    memory: int = 0


def picture_cost(data: bytes, max_pixels: int) -> PictureCost:
    """Estimate the cost of a JPEG, PNG, WebP or GIF file; 0 for more than `max_pixels`, because it is refused.

    >>> picture_cost(b"GIF89a" + (300).to_bytes(2, "little") + (200).to_bytes(2, "little"), 90_000)
    PictureCost(pixels=60000, memory=1200000)
    """
    width, height, scans = _read_size(data)
    pixels = width * height
    if pixels > max_pixels:
        return PictureCost()
    return PictureCost(pixels * scans, pixels * (JPEG_BYTES if data[:2] == JPEG else OTHER_BYTES))


def _read_size(data: bytes) -> tuple[int, int, int]:
    """Read width, height, and the number of passes of a decoder over the pixels."""
    if data[:2] == JPEG:
        return _read_jpeg(data)
    if (size := stated_size(data)) is not None:
        return *size, 1  # the decoder refuses a picture of another size
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return *_read_webp(data[12:16], data[20:30]), 1
    return 0, 0, 1


def _read_webp(kind: bytes, head: bytes) -> tuple[int, int]:
    if kind == b"VP8X":
        return int.from_bytes(head[4:7], "little") + 1, int.from_bytes(head[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return int.from_bytes(head[6:8], "little") & 0x3FFF, int.from_bytes(head[8:10], "little") & 0x3FFF


def _read_jpeg(data: bytes) -> tuple[int, int, int]:
    """Read the frame's size before the first scan, as Pillow does, and count the scans. Too many segments are refused later."""
    scans, size = 0, (0, 0)
    for marker, start in islice(jpeg_segments(data), MAX_SEGMENTS):
        if marker in _FRAMES and not scans:
            height, width = data[start + 3 : start + 5], data[start + 5 : start + 7]
            size = int.from_bytes(width, "big"), int.from_bytes(height, "big")
        scans += marker == 0xDA
    return *size, max(1, scans)
