"""Shards of tiny pictures, made in no time, and a model that reads their embeddings out of them: for growth and soak.

What is wrong with a sample is known when it is made, so that whoever checks a table needs no second reader.
"""

import hashlib
import io
import struct
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["MODEL", "ByteModel", "Made", "tiny_shard"]

MODEL = "python:benchmarks.tiny_shards:ByteModel"
WIDTH = 48  # numbers of an embedding: a picture of 4 x 4 pixels
NOISE = 0.3
WRONG = {  # every so many samples: what is wrong with one, as the table should call it
    97: "bad_image",
    101: "no_text",
    103: "bad_text",
    107: "no_image",
}


class ByteModel:
    """Pixels and hex digits as embeddings; costs next to nothing."""

    identity = "tiny-bytes-1"

    def encode_images(self, images: Sequence[Image.Image]) -> NDArray[np.float32]:
        rows = [np.asarray(image, np.uint8).reshape(-1)[:WIDTH] for image in images]
        return _centred(np.stack(rows))

    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return _centred(np.stack([_bytes_of(text) for text in texts]))


def _centred(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    return (rows.astype(np.float32) - 127.5) / 127.5


def _bytes_of(text: str) -> NDArray[np.uint8]:
    """The bytes a caption ends in; any other text gets bytes of its own."""
    tail = text.rpartition("#")[2]
    data = bytes.fromhex(tail) if len(tail) == 2 * WIDTH else hashlib.sha384(text.encode()).digest()
    return np.frombuffer(data, np.uint8)


@dataclass(frozen=True)
class Made:
    """The key and the status of every sample of a shard, in order."""

    keys: list[str]
    statuses: list[str]


def tiny_shard(path: Path, count: int, seed: int, corrupt: bool = False, cut: bool = False) -> Made:
    """Write a tar of `count` pairs, 30 % of them mismatched; `corrupt` spoils some, `cut` ends it inside the last one."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, WIDTH), dtype=np.uint8)
    other = rng.integers(0, 256, (count, WIDTH), dtype=np.uint8)
    mixed = (0.6 * pixels + 0.4 * other).round().astype(np.uint8)
    words = np.where((rng.random(count) < NOISE)[:, None], other, mixed)
    keys, statuses = [f"{seed:06d}{i:06d}" for i in range(count)], []
    packed = io.BytesIO()
    for i, key in enumerate(keys):
        status = next((name for every, name in WRONG.items() if corrupt and i % every == every - 1), "ok")
        parts = {"png": _png(pixels[i]), "txt": f"picture {key} #{words[i].tobytes().hex()}".encode()}
        if status == "bad_image":
            parts["png"] = parts["png"][:40]
        elif status == "bad_text":
            parts["txt"] = b"\xff\xfe\x80 no UTF-8"
        elif status != "ok":
            del parts["png" if status == "no_image" else "txt"]
        statuses.append(status)
        for part, data in parts.items():
            _add(packed, f"{key}.{part}", data)
    data = packed.getvalue()
    if cut:
        data, statuses[-1] = data[: -(-len(parts["txt"]) // 512) * -512 - 1024], "broken"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if cut else data + bytes(1024))
    return Made(keys, statuses)


def _png(row: NDArray[np.uint8]) -> bytes:
    """A picture of 4 x 4 pixels, written by hand: Pillow would take most of the time."""
    lines = b"".join(b"\0" + row[12 * y : 12 * y + 12].tobytes() for y in range(4))
    header = struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def _add(packed: io.BytesIO, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    packed.write(member.tobuf(tarfile.USTAR_FORMAT))
    packed.write(data + bytes(-len(data) % 512))
