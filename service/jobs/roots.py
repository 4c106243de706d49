"""Find the shards that a client names, and refuse all that lie outside the configured roots, links and lists included."""

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.shards import expand_braces, find_shards
from noisegate.service.errors import ApiError

MAX_SHARDS = 100_000  # of one job
MAX_LIST_BYTES = 16 << 20
MAX_PATTERN_CHARS = 4096
MAX_LISTED = 100  # most folders with shards offered to a client
MAX_VISITED = 20_000  # most files and folders visited for the offer
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/{1,2}(?=[^/])")
_TARS = (".tar", ".tgz", ".tar.gz")
_LISTS = (".txt", ".list")
_WILD = re.compile(r"[*?\[]")
MAX_NAME_CHARS = 200  # mean length of the names that a pattern expands to
_RANGE = re.compile(r"\{(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])")


@dataclass(frozen=True)
class Roots:
    """Folders and URL prefixes that jobs may read; folders are resolved once, at the start."""

    folders: tuple[Path, ...]
    prefixes: tuple[str, ...]

    @classmethod
    def of(cls, roots: Sequence[str | Path]) -> "Roots":
        """Sort roots into folders and URL prefixes; `Path` may have removed one of a URL's slashes.

        >>> Roots.of([Path("s3://bucket/data")]).prefixes
        ('s3://bucket/data/',)
        """
        folders, prefixes = [], []
        for root in map(str, roots):
            match = _URL.match(root)
            if match:
                scheme = match.group(0).rstrip("/").rstrip(":")
                prefixes.append(f"{scheme}://{root[match.end() :].rstrip('/')}/")
            elif Path(root).is_dir():
                folders.append(Path(root).resolve())
            else:
                raise ConfigError.of("roots", root, "is not a folder; name one that holds shards, such as data")
        return cls(tuple(folders), tuple(prefixes))

    def find(self, patterns: Sequence[str]) -> list[str]:
        """Find every shard that the patterns match, by its real path or URL, in order and without repeats.

        Patterns are those of `find_shards`; a relative pattern is searched in each root. Raises ApiError 403
        `outside_roots`, 404 `unknown_shards` for patterns that match nothing, 422 `bad_shards` for invalid ones.
        """
        if not self.folders and not self.prefixes:
            raise ApiError(403, "outside_roots", "this server reads no shards; start it with --root DIR")
        try:
            names = list(dict.fromkeys(islice(self._expand(patterns, ()), MAX_SHARDS + 1)))
            if not names:
                raise _unknown("the patterns are empty; name shards such as x-{000000..000012}.tar")
            if len(names) > MAX_SHARDS:
                raise _bad(f"more than {MAX_SHARDS:,} shards; split the job")
            shards = find_shards(names)  # raises for two shards of one name, which would share a table
            if table := next((shard for shard in shards if shard.is_virtual), None):  # its pictures may be anywhere
                raise _bad(f"{table.stem} is of a table; jobs read tars, which `noisegate convert table` makes")
            return [shard.url for shard in shards]
        except ConfigError as error:
            raise _bad(str(error)) from error
        except (OSError, ValueError, NotImplementedError, re.error) as error:
            raise _unknown("a pattern is not a file name on this system; give one such as x-*.tar") from error

    def offer(self) -> list[dict[str, Any]]:
        """List folders with shards below the roots, each as a pattern with the number of its shards and their bytes.

        A pattern is relative if only one root has such a folder. Links are not followed; large trees are listed only in part.
        """
        offers: list[dict[str, Any]] = []
        visited = 0
        for root in self.folders:
            for place, folders, files in os.walk(root):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                visited += len(folders) + len(files)
                tars = [Path(place) / name for name in files if name.lower().endswith(_TARS)]
                sizes = [path.stat().st_size for path in tars if path.is_file() and not path.is_symlink()]
                inside = PurePosixPath(Path(place).relative_to(root).as_posix())
                unique = sum((other / inside).is_dir() for other in self.folders) == 1
                if sizes:
                    folder = inside if unique else PurePosixPath(place)
                    pattern = str(folder / "*.tar" if all(path.suffix == ".tar" for path in tars) else folder)
                    offers.append({"pattern": pattern, "shards": len(sizes), "bytes": sum(sizes)})
                if len(offers) >= MAX_LISTED or visited > MAX_VISITED:
                    return offers
        return offers

    def contain(self, path: Path) -> bool:
        """Return whether a resolved path is inside one of the folders."""
        return any(path.is_relative_to(folder) for folder in self.folders)

    def check_again(self, shards: Sequence[str]) -> None:
        """Check shards from `find` once more before they are read: links may have changed since. Raises ApiError."""
        for shard in shards:
            if "://" in shard:
                self._check_url(shard)
            elif self._resolve_inside(Path(shard)) != Path(shard):
                raise _outside(shard)
            elif re.search(r"[*?\[{]|::", shard) and not Path(shard).is_file():
                raise _bad(f"shard {shard[-200:]!r} is gone, and its name would be treated as a pattern")

    def _expand(self, patterns: Sequence[str], lists: tuple[Path, ...]) -> Iterator[str]:
        for pattern in patterns:
            if len(pattern) > MAX_PATTERN_CHARS:
                raise _bad(f"a pattern of {len(pattern):,} characters; at most {MAX_PATTERN_CHARS:,} are read")
            for part in (part.strip() for part in pattern.split("::")):
                if part:
                    yield from self._part(part, lists)

    def _part(self, part: str, lists: tuple[Path, ...]) -> Iterator[str]:
        if part.startswith("pipe:") or "|" in part or any(ord(c) < 32 or ord(c) == 127 for c in part):
            raise _bad(f"shard {part[:100]!r}: pipes are not run; give a path below the roots")
        if part.startswith("@") or part.lower().endswith(_LISTS):
            yield from self._from_list(part.removeprefix("@"), lists)
            return
        for name in _expand_braces(part):
            if "://" in name:
                yield from self._from_url(name)
            else:
                yield from self._local(name)

    def _from_list(self, name: str, lists: tuple[Path, ...]) -> Iterator[str]:
        if "://" in name:
            raise _outside(name)
        path = next((p for p in self._candidates(name) if p.exists()), None)
        if path is None:
            raise _unknown(f"the list of shards {name[:200]!r} is not there")
        real = self._resolve_inside(path)
        if real in lists or len(lists) >= 8:
            raise _bad(f"the list of shards {name[:200]!r} leads back to itself")
        if not real.is_file() or real.stat().st_size > MAX_LIST_BYTES:
            raise _bad(f"the list of shards {name[:200]!r} is no file of at most {MAX_LIST_BYTES >> 20} MB")
        try:
            lines = [line.strip() for line in real.read_text(encoding="utf-8-sig").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise _bad(f"the list of shards {name[:200]!r} cannot be read: {type(error).__name__}") from error
        yield from self._expand([line for line in lines if line and not line.startswith("#")], (*lists, real))

    def _from_url(self, name: str) -> Iterator[str]:
        self._check_url(name)
        wild = _WILD.search(urlsplit(name).path if name.startswith(("http://", "https://")) else name)
        for url in [shard.url for shard in find_shards(name)] if wild or name.endswith("/") else [name]:
            self._check_url(url)
            yield url

    def _check_url(self, name: str) -> None:
        """Raise ApiError unless the URL is below one of the prefixes and cannot lead above it."""
        path, before = name, ""
        while path != before:  # a server may decode percent signs twice
            path, before = unquote(path), path
        if not name.startswith(self.prefixes) or ".." in re.split(r"[/\\?#]", path) or "\\" in path:
            raise _outside(name)

    def _local(self, name: str) -> Iterator[str]:
        places = self._candidates(name)
        if not _WILD.search(name):
            place = next((p for p in places if p.exists()), places[0])
            real = self._resolve_inside(place)
            if real.is_dir():
                yield from self._tars(real.iterdir(), f"folder {name}")
            elif real.is_file():
                yield str(real)
            else:
                raise _unknown(f"there is no shard {name[:200]!r} below the roots")
            return
        if name.count("**") > 1:
            raise _bad(f"{name[:200]!r} has several **; one is enough")
        for place in places:
            folder = next(f for f in self.folders if place.is_relative_to(f))
            found = sorted(islice(folder.glob(str(place.relative_to(folder))), MAX_SHARDS + 1))
            if found:
                yield from self._tars(iter(found), name)
                return
        raise _unknown(f"no .tar or .tar.gz below the roots matches {name[:200]!r}")

    def _tars(self, paths: Iterator[Path], name: str) -> Iterator[str]:
        tars = sorted(path for path in paths if path.name.lower().endswith(_TARS))
        if not tars:
            raise _unknown(f"{name[:200]} holds no .tar or .tar.gz")
        for path in tars:
            real = self._resolve_inside(path)
            if real.is_file():
                yield str(real)

    def _candidates(self, name: str) -> list[Path]:
        """List candidate paths of a name: itself if absolute, else below each root; raise ApiError for a path outside."""
        path = PurePosixPath(name)
        if ".." in path.parts or name.startswith("~") or not self.folders:
            raise _outside(name)
        if not path.is_absolute():
            return [folder / path for folder in self.folders]
        whole = Path(path)
        if not self.contain(whole if _WILD.search(name) else _resolve(whole)):
            raise _outside(name)
        return [whole]

    def _resolve_inside(self, path: Path) -> Path:
        real = _resolve(path)
        if not self.contain(real):
            raise _outside(path.name)
        return real


def _resolve(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # circular links, names too long
        raise _outside(path.name) from error


def count_names(pattern: str) -> int:
    """Return an upper bound of the names that a pattern with braces expands to: every group times all groups within it.

    >>> count_names("{a,b}-{00..11}"), count_names("{a,{x..z}}")
    (24, 6)
    """
    plain = re.sub(r"\\.", "", pattern)
    count, open_groups = 1, []
    for sign in re.findall("[{},]", plain):
        if sign == "{":
            open_groups.append(1)
        elif open_groups and sign == ",":
            open_groups[-1] += 1
        elif open_groups:
            count *= open_groups.pop()
    ranges = (
        (ord(first), ord(last)) if first.isalpha() else (int(first), int(last))
        for first, last in _RANGE.findall(plain)
        if first.isalpha() == last.isalpha()
    )
    return count * math.prod(open_groups) * math.prod(abs(last - first) + 1 for first, last in ranges)


def _expand_braces(pattern: str) -> list[str]:
    """Expand braces; the names are counted first, so that a short pattern cannot fill the memory."""
    count = count_names(pattern)
    if count > MAX_SHARDS or count * len(pattern) > MAX_SHARDS * MAX_NAME_CHARS or pattern.count("{") > 50:
        raise _bad(f"{pattern[:200]!r} stands for more than {MAX_SHARDS:,} shards; split the job")
    try:
        return expand_braces(pattern)
    except (ConfigError, RecursionError) as error:
        raise _unknown(f"{pattern[:200]!r} matches nothing, and its braces do not match one another") from error


def _bad(reason: str) -> ApiError:
    return ApiError(422, "bad_shards", reason)


def _unknown(reason: str) -> ApiError:
    return ApiError(404, "unknown_shards", reason)


def _outside(name: str) -> ApiError:
    """Make the error for a path outside the roots, which does not reveal whether the path exists."""
    return ApiError(403, "outside_roots", f"shard {name[:200]!r} is not below the folders that this server may read")
