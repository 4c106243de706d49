"""Pictures and captions of the chosen samples, read from the shards that hold them."""

import base64
import hashlib
import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from noisegate.pipeline.errors import ShardError
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards.decode import BadSample, decode_image, decode_text
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.random_access import read_samples
from noisegate.pipeline.shards.read import RawSample

from .collect import TableRow

SIDE = 352  # pixels: a card is 176 wide, and dense screens show two pixels for each
CAPTION = 300  # most characters of a caption that are shown


@dataclass(frozen=True)
class Shown:
    """A sample as a page shows it: its picture as a data URI with width and height, and its shortened caption."""

    source: str | None = None
    width: int = 0
    height: int = 0
    caption: str | None = None
    problem: str | None = None


@dataclass
class Album:
    """The samples shown, by (stem, index), and why some shards could not be read."""

    samples: dict[tuple[str, int], Shown] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    shards_read: int = 0

    @property
    def pictures(self) -> int:
        """Number of pictures in the album."""
        return sum(shown.source is not None for shown in self.samples.values())


def fetch(
    picks: Iterable[TableRow],
    urls: Mapping[str, str],
    text_field: str | None,
    limits: Limits,
    note: Callable[[str], None],
) -> Album:
    """Read pictures and captions of `picks` from the shards at `urls` (by stem); `missing` names unreadable shards."""
    wanted: dict[str, dict[int, TableRow]] = defaultdict(dict)
    for pick in picks:
        wanted[pick.stem][pick.place[1]] = pick
    album = Album()
    for number, (stem, rows) in enumerate(sorted(wanted.items()), start=1):
        note(f"pictures: shard {number} of {len(wanted)}, {stem}")
        try:
            samples = {
                raw.index: _shown(raw, rows[raw.index], text_field, limits)
                for raw in read_samples(Shard(urls[stem]), rows)
            }
        except ShardError as error:
            album.missing[stem] = str(error)
            continue
        album.shards_read += 1
        album.samples |= {(stem, index): shown for index, shown in samples.items()}
        if len(samples) < len(rows):
            album.missing[stem] = f"{len(rows) - len(samples)} chosen samples are no longer in the shard"
    return album


def _shown(raw: RawSample, pick: TableRow, text_field: str | None, limits: Limits) -> Shown:
    """Make what is shown of a sample, if its digests show that it is still the one that was scored."""
    data, digest = raw.image, pick.values["image_sha256"]
    if raw.key != pick.key or (data is not None and digest and hashlib.sha256(data).digest() != digest):
        return Shown(problem="changed since it was scored")
    try:
        caption = printable(decode_text(raw.parts, text_field, limits), CAPTION)
    except BadSample:
        caption = None
    if data is None:
        return Shown(caption=caption, problem="no picture in the shard")
    try:
        picture = thumbnail(decode_image(data, limits))
    except BadSample as error:
        return Shown(caption=caption, problem=str(error))
    return Shown(data_uri(picture), picture.width, picture.height, caption)


def thumbnail(image: Image.Image, side: int = SIDE) -> Image.Image:
    """Shrink a picture to at most `side` pixels wide and high; a smaller picture stays as it is.

    >>> thumbnail(Image.new("RGB", (704, 352))).size
    (352, 176)
    """
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return small


def data_uri(image: Image.Image) -> str:
    """Encode the picture as a JPEG in a data URI."""
    data = io.BytesIO()
    image.save(data, "JPEG", quality=80, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"


def printable(text: Any, most: int = 1000) -> str:
    """Make text printable on a page: one line, no control characters, at most `most` characters and then an ellipsis.

    >>> printable("a\\n dog\\x00" + "!" * 9, 8)
    'a dog\N{REPLACEMENT CHARACTER}!…'
    """
    head = str(text)[: 4 * most]
    line = " ".join(head.split())
    line = "".join("\N{REPLACEMENT CHARACTER}" if ord(c) < 32 or 0x7F <= ord(c) < 0xA0 else c for c in line)
    line = line.encode("utf-8", "backslashreplace").decode()
    return line if len(line) <= most and len(str(text)) <= 4 * most else f"{line[: most - 1]}…"
