"""Small tars and pictures for tests of the reading side."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

Files = Iterable[tuple[str, bytes]]


def tar_bytes(files: Files, mode: str = "w", format: int = tarfile.USTAR_FORMAT) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode, format=format) as tar:  # type: ignore[call-overload]
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def write_tar(path: Path, files: Files, mode: str = "w", format: int = tarfile.USTAR_FORMAT) -> Path:
    path.write_bytes(tar_bytes(files, mode, format))
    return path


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def picture(colour: int = 0, size: tuple[int, int] = (8, 6), kind: str = "PNG") -> bytes:
    return encoded(Image.new("RGB", size, (colour % 256, 90, 200)), kind)


def pairs(count: int) -> list[tuple[str, bytes]]:
    """A picture and a caption for each of `count` keys."""
    return [
        file for i in range(count) for file in ((f"{i:04d}.png", picture(i)), (f"{i:04d}.txt", f"caption {i}".encode()))
    ]
