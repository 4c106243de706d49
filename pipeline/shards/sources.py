"""Folders of pictures and tables of samples, read as if they were tars.

A source is cut into virtual shards of `ROWS` samples, whose bytes are those of a tar that is made while it is read: a
shard's digest, its samples by position, resuming and all that comes after need not know the difference. Its URL is
`folder:PATH/NAME-000012.tar` or `table:PATH?image=COLUMN&text=COLUMN&label=COLUMN/NAME-000012.tar`.

Samples are numbered by their sorted names (folders) or by their rows (tables): one that is added in the middle changes all
shards after it.
"""

import io
import json
import os
import tarfile
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from noisegate.pipeline.errors import ConfigError, ShardError

from .read import IMAGE_PARTS

ROWS = 1000  # samples of a virtual shard
SCHEMES = ("folder:", "table:")
TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow", ".json")  # .json: captions as COCO has them
_IN_FOLDERS = (".parquet", ".arrow")  # tables that make a folder one data set, as Hugging Face `datasets` writes them
_SIDECARS = ("txt", "json", "cls")
_BLOCK = 512
_IMAGE = (
    "image",
    "image_path",
    "image_file",
    "img",
    "path",
    "file_path",
    "filepath",
    "file_name",
    "filename",
    "file",
    "jpg",
)
_TEXT = ("caption", "text", "txt", "title", "sentence", "description", "prompt")
_LABEL = ("label", "cls", "class", "class_id", "target")
_MAGIC = {b"\xff\xd8": "jpg", b"\x89PNG": "png", b"RIFF": "webp"}


class SampleParts(NamedTuple):
    """A key, and its parts as bytes or as files."""

    key: str
    parts: dict[str, bytes | Path]


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table that hold picture, caption and class; None: by their names."""

    image: str | None = None
    text: str | None = None
    label: str | None = None


def is_virtual(url: str) -> bool:
    """Whether this is the URL of a virtual shard."""
    return url.startswith(SCHEMES)


def source_shards(path: Path, columns: TableColumns) -> list[str]:
    """The virtual shards of a folder of pictures or of a table; none for a folder without pictures. Raises ConfigError."""
    _list_folder.cache_clear()
    _read_text_table.cache_clear()
    if path.is_dir():
        count, prefix, name = len(_list_folder(str(path))), f"folder:{path}", path.resolve().name
        tables = sorted(file for file in path.iterdir() if file.suffix in _IN_FOLDERS)
        if tables and not count:
            return [url for table in tables for url in source_shards(table, columns)]
    else:
        chosen = _choose_columns(path, columns)
        count, name = _count_rows(path), path.stem
        query = urlencode({key: value for key, value in vars(chosen).items() if value}, quote_via=quote, safe="")
        prefix = f"table:{path}?{query}"
        if not count:
            raise ConfigError.of("shards", path, "has no rows")
    name = name.replace(".", "_") or "root"
    return [f"{prefix}/{name}-{number:06d}.tar" for number in range(-(-count // ROWS))]


def open_virtual(url: str) -> "VirtualTar":
    """The bytes of a virtual shard; raises ShardError where its source is gone."""
    try:
        return VirtualTar(_samples(url))
    except (OSError, pa.ArrowInvalid, IndexError, KeyError) as error:
        raise ShardError(f"shard {url} cannot be opened: {error}", "shards", url) from error


def virtual_size_and_time(url: str) -> tuple[int, float]:
    """Size in bytes, and the time of the last change of any of its files."""
    samples = open_virtual(url)
    return samples.size, samples.changed


def _samples(url: str) -> list[SampleParts]:
    scheme, _, rest = url.partition(":")
    place, _, name = rest.rpartition("/")
    number = int(PurePosixPath(name).stem.rpartition("-")[2])
    rows = slice(number * ROWS, (number + 1) * ROWS)
    if scheme == "folder":
        found = _list_folder(place)[rows]
    else:
        path, _, query = place.rpartition("?")
        found = _read_rows(Path(path), TableColumns(**dict(parse_qsl(query))), rows)
    if not found:
        raise IndexError("its samples are gone")
    return found


@lru_cache(maxsize=4)
def _list_folder(folder: str) -> list[SampleParts]:
    """All pictures below a folder by name, with captions and classes in files of the same name; else the folder is the class.

    Without any such file, pictures in several sub-folders are of the class that their sub-folder names, numbered by name.
    """
    groups: dict[str, dict[str, bytes | Path]] = {}
    for root, folders, files in os.walk(folder):
        folders.sort()
        inside = Path(root).relative_to(folder)
        for file in sorted(files):
            stem, _, suffix = file.rpartition(".")
            if stem and not file.startswith(".") and suffix.lower() in (*IMAGE_PARTS, *_SIDECARS):
                parts = groups.setdefault(str(inside / stem.replace(".", "_")), {})
                parts.setdefault(suffix.lower(), Path(root) / file)
    pictures = {key: parts for key, parts in groups.items() if not parts.keys().isdisjoint(IMAGE_PARTS)}
    tops = sorted({key.split("/")[0] for key in pictures if "/" in key})
    if len(tops) > 1 and all("/" in key and parts.keys().isdisjoint(_SIDECARS) for key, parts in pictures.items()):
        number = {name: str(place).encode() for place, name in enumerate(tops)}
        pictures = {key: {**parts, "cls": number[key.split("/")[0]]} for key, parts in pictures.items()}
    return [SampleParts(key, pictures[key]) for key in sorted(pictures)]


def _choose_columns(path: Path, wanted: TableColumns) -> TableColumns:
    """The columns to read; raises ConfigError for ones that are not there or cannot be guessed, and for addresses."""
    names = _schema(path).names
    for setting, name in vars(wanted).items():
        if name is not None and name not in names:
            raise ConfigError.of(f"{setting}_column", name, f"is not in {path}, which has {', '.join(names)}")
    by_name = {name.lower(): name for name in reversed(names)}

    def guess(known: Sequence[str]) -> str | None:
        return next((by_name[name] for name in known if name in by_name), None)

    image = wanted.image or guess(_IMAGE)
    address = next((by_name[name] for name in ("url", "image_url") if name in by_name), None)
    chosen = TableColumns(image or address, wanted.text or guess(_TEXT), wanted.label or guess(_LABEL))
    if chosen.image is None:
        raise ConfigError.of(
            "image_column", None, f"cannot be guessed: {path} has {', '.join(names)}; use --image-column"
        )
    if chosen.text is None and chosen.label is None:
        raise ConfigError.of(
            "text_column", None, f"cannot be guessed: {path} has {', '.join(names)}; use --text-column"
        )
    first = _read_columns(path, chosen, slice(0, 1)).to_pylist()
    value = first[0][chosen.image] if first else None
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        kind = path.suffix.removeprefix(".")
        caption = f" --caption_col {chosen.text}" if chosen.text else ""
        raise ConfigError(
            f"shards {path}: the column {chosen.image} holds addresses; fetch the pictures first: img2dataset "
            f"--url_list {path} --input_format {kind} --url_col {chosen.image}{caption} --output_format webdataset "
            "--output_folder data",
            "shards",
            path,
        )
    return chosen


def _schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path) if path.suffix.lower() == ".parquet" else _read_text_table(str(path)).schema
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError.of("shards", path, f"is no readable table: {error}") from error


def _count_rows(path: Path) -> int:
    if path.suffix.lower() == ".parquet":
        return int(pq.read_metadata(path).num_rows)
    return len(_read_text_table(str(path)))


@lru_cache(maxsize=2)
def _read_text_table(path: str) -> pa.Table:
    """A table that holds paths and captions, whole, or an Arrow file, which is mapped."""
    if path.lower().endswith(".arrow"):
        return pa.ipc.open_stream(pa.memory_map(path)).read_all()
    if path.lower().endswith(".json"):
        return _read_coco(Path(path))
    if path.lower().endswith(".jsonl"):
        return pyarrow.json.read_json(path)
    parse = pyarrow.csv.ParseOptions(delimiter="\t" if path.lower().endswith(".tsv") else ",", newlines_in_values=True)
    return pyarrow.csv.read_csv(path, parse_options=parse)


def _read_coco(path: Path) -> pa.Table:
    """COCO's captions: one row a caption. Pictures are sought beside the file, beside its folder, and in folders there."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        names = {image["id"]: image["file_name"] for image in content["images"]}
        pairs = [(names[entry["image_id"]], entry["caption"]) for entry in content["annotations"]]
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ConfigError.of(
            "shards", path, "is no table of captions as COCO has them: images and annotations"
        ) from error
    near = [path.parent, *sorted(filter(Path.is_dir, path.parent.iterdir()))]
    near += [path.parent.parent, *sorted(filter(Path.is_dir, path.parent.parent.iterdir()))]
    first = pairs[0][0] if pairs else ""
    folder = next((folder for folder in near if (folder / first).is_file()), path.parent)
    images = [os.path.relpath(folder / name, path.parent) for name, _ in pairs]
    return pa.table(
        {"image": pa.array(images, pa.string()), "caption": pa.array([text for _, text in pairs], pa.string())}
    )


def _read_columns(path: Path, columns: TableColumns, rows: slice) -> pa.Table:
    """Some rows of the columns; of a Parquet file only the row groups that hold them are read."""
    names = [name for name in dict.fromkeys(vars(columns).values()) if name]
    if path.suffix.lower() != ".parquet":
        table = _read_text_table(str(path))
        return table.select(names).slice(rows.start, rows.stop - rows.start)
    with pq.ParquetFile(path) as file:
        ends = [0]
        for group in range(file.num_row_groups):
            ends.append(ends[-1] + file.metadata.row_group(group).num_rows)
        groups = [g for g in range(file.num_row_groups) if ends[g] < rows.stop and ends[g + 1] > rows.start]
        if not groups:
            return file.schema_arrow.empty_table().select(names)
        return file.read_row_groups(groups, columns=names).slice(rows.start - ends[groups[0]], rows.stop - rows.start)


def _read_rows(path: Path, columns: TableColumns, rows: slice) -> list[SampleParts]:
    samples = []
    for number, row in enumerate(_read_columns(path, columns, rows).to_pylist(), rows.start):
        parts: dict[str, bytes | Path] = {}
        picture = row.get(columns.image or "")
        if isinstance(picture, dict):  # as Hugging Face `datasets` keeps pictures
            picture = picture.get("bytes") or picture.get("path")
        if isinstance(picture, bytes):
            parts[next((part for magic, part in _MAGIC.items() if picture.startswith(magic)), "jpg")] = picture
        elif isinstance(picture, str) and picture:
            suffix = PurePosixPath(picture).suffix.lower().removeprefix(".")
            parts[suffix if suffix in IMAGE_PARTS else "jpg"] = path.parent / picture
        text, label = row.get(columns.text or ""), row.get(columns.label or "")
        if text is not None:
            parts["txt"] = str(text).encode()
        if label is not None:
            parts["cls"] = str(label).encode()
        samples.append(SampleParts(f"{number:09d}", parts))
    return samples


class VirtualTar(io.RawIOBase):
    """The tar of some samples, made while it is read; files that are not there are left out."""

    def __init__(self, samples: Sequence[SampleParts]) -> None:
        self._pieces: list[bytes | tuple[Path, int]] = []
        self._starts: list[int] = []
        self.size, self.changed, self._position = 0, 0.0, 0
        self._open: tuple[int, bytes] = (-1, b"")
        for sample in samples:
            for part, content in (sample.parts or {"empty": b""}).items():
                self._add(f"{sample.key}.{part}", content)
        self._append(bytes(2 * _BLOCK))

    def _add(self, name: str, content: bytes | Path) -> None:
        if isinstance(content, Path):
            try:
                stat = content.stat()
            except OSError:  # the sample becomes a row that says which part it lacks
                stat = None
            size = -1 if stat is None else stat.st_size
            self.changed = max(self.changed, stat.st_mtime if stat else 0.0)
        else:
            size = len(content)
        header = tarfile.TarInfo(name if size >= 0 else f"{name.rpartition('.')[0]}.missing")
        header.size = max(size, 0)
        self._append(header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
        if size < 0:
            return
        self._append(content if isinstance(content, bytes) else (content, size))
        self._append(bytes(-size % _BLOCK))

    def _append(self, piece: bytes | tuple[Path, int]) -> None:
        size = len(piece) if isinstance(piece, bytes) else piece[1]
        if size:
            self._pieces.append(piece)
            self._starts.append(self.size)
            self.size += size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + {0: 0, 1: self._position, 2: self.size}[whence]
        return self._position

    def _content(self, place: int) -> bytes:
        """A piece's bytes; of a file that has changed since it was listed, as many as it had, so that the tar stays one."""
        piece = self._pieces[place]
        if isinstance(piece, bytes):
            return piece
        if self._open[0] != place:
            try:
                data = piece[0].read_bytes()
            except OSError:
                data = b""
            self._open = place, data[: piece[1]].ljust(piece[1], b"\0")
        return self._open[1]

    def read(self, size: int = -1) -> bytes:
        """As many bytes as asked for, fewer only at the end."""
        end = self.size if size < 0 else min(self._position + size, self.size)
        parts = []
        while self._position < end:
            place = bisect_right(self._starts, self._position) - 1
            inside = self._position - self._starts[place]
            parts.append(self._content(place)[inside : inside + end - self._position])
            self._position += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)
