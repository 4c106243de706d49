"""Folders of pictures, tables, data sets of Hugging Face and COCO's captions, read as `annotate` reads them."""

import hashlib
from bisect import bisect_right
from functools import partial
from itertools import accumulate
from pathlib import Path

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.shards.decode import BadSample
from noisegate.pipeline.shards.locate import find_shards
from noisegate.pipeline.shards.read import IMAGE_PARTS, MISSING
from noisegate.pipeline.shards.sources import (
    HUB,
    ROWS,
    FilePart,
    RowSource,
    SampleParts,
    TableColumns,
    open_source,
    read_classes,
)

from .source import Request, Sample, SampleSource, picture_bytes, picture_file, unusable

_STATUS = {"txt": "no_text", "json": "no_text", "cls": "no_label"}  # of a sample, by the part that cannot be read


def read_own_data(request: Request) -> SampleSource:
    """Read the samples of a source in its own order, with the keys and shard name that `annotate` gives them."""
    path, kind = request.folder, request.kind.name
    is_hub, is_pattern = str(path).startswith(HUB), "*" in path.name
    needs = f"{kind} needs {request.kind.expected}"
    if not is_hub and not is_pattern and not path.exists():
        raise unusable(path, f"is not there; {needs}")
    if (kind == "folder") > path.is_dir() or (kind in ("table", "coco-captions") and (is_hub or path.is_dir())):
        raise unusable(path, f"is of another kind; {needs}")
    columns = TableColumns(request.image_column, request.text_column, request.label_column)
    try:
        shards = find_shards(str(path), columns)
    except ConfigError as error:
        if error.setting != "shards":
            raise
        said = str(error).removeprefix(f"shards {path}: ").removeprefix(f"shards {str(path)!r} ")
        raise unusable(path, f"{said} ({needs})") from error
    if not all(shard.is_virtual for shard in shards):
        raise unusable(path, "holds tars already; annotate and train read them as they are")
    prefixes = list(dict.fromkeys(shard.url.rpartition("/")[0] for shard in shards))
    reader = _RowReader([open_source(prefix) for prefix in prefixes])
    name = shards[0].stem.rpartition("-")[0] if len(prefixes) == 1 else path.stem.replace("*", "") or kind
    keys = hashlib.sha256()
    files = [
        Path(prefix.removeprefix("table:").rpartition("?")[0]) for prefix in prefixes if prefix.startswith("table:")
    ]
    if not files:
        for number in range(len(reader)):
            keys.update(reader.read(number).key.encode("utf-8", "surrogateescape") + b"\0")

    def sample(number: int) -> Sample:
        row = reader.read(number)
        key = row.key if len(prefixes) == 1 else f"{number:09d}"
        return Sample(key, key, partial(_read_parts, row, request.check))

    classes = read_classes(shard.url for shard in shards)
    facts = {"name": name, **({} if files else {"keys_sha256": keys.hexdigest()})}
    return SampleSource(len(reader), sample, tuple(files), classes, facts)


class _RowReader:
    """Read rows of several sources by one running number, a block of rows at a time."""

    def __init__(self, sources: list[RowSource]) -> None:
        self._sources = sources
        self._starts = [0, *accumulate(len(source) for source in sources)]
        self._block: list[SampleParts] = []
        self._at = (-1, -1)  # number of the source, and of the block in it

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, number: int) -> SampleParts:
        place = bisect_right(self._starts, number) - 1
        row = number - self._starts[place]
        if self._at != (place, row // ROWS):
            start = row // ROWS * ROWS
            self._block, self._at = self._sources[place].read(slice(start, start + ROWS)), (place, row // ROWS)
        return self._block[row % ROWS]


def _read_parts(row: SampleParts, check: str) -> dict[str, bytes]:
    parts: dict[str, bytes] = {}
    for part, content in row.parts.items():
        if isinstance(content, FilePart):
            path = Path(content.path)
            parts |= picture_file(path, check) if part in IMAGE_PARTS else {part: _read_file(path, part)}
        elif part.endswith(MISSING):
            raise BadSample("no_image", content.decode())
        else:
            parts |= picture_bytes(content, check, part) if part in IMAGE_PARTS else {part: content}
    return parts


def _read_file(path: Path, part: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadSample(_STATUS[part], f"{path.name} cannot be read: {error.strerror}") from error
