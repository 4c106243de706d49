"""A folder of pictures, with captions and classes in files of the same name, or classes as sub-folders."""

import os
from collections.abc import Iterator
from pathlib import Path

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.shards.read import IMAGE_PARTS

from .samples import FilePart, SampleParts

_SIDECARS = ("txt", "json", "cls")
_SPLITS = frozenset({"train", "training", "val", "valid", "validation", "dev", "test", "testing"})
_TABLES = (".csv", ".tsv", ".jsonl")
_KEPT = 4  # folders whose file lists stay in memory


class FolderSource:
    """All pictures below a folder, sorted by key; hidden files and folders are left out, links are followed once.

    The key is the path inside the folder without its suffix, dots as `_`; a second picture of the same name gets its
    suffix added (`a.jpg`, `a.png`: keys `a`, `a_png`). If no picture has a file beside it and there are several sub-folders,
    each sub-folder is a class, numbered in the order of names.
    """

    file_bytes = None

    def __init__(self, folder: str) -> None:
        self._times = dict[str, int]()
        self._samples = self._list(folder)
        tops = sorted({sample.key.split("/")[0] for sample in self._samples if "/" in sample.key})
        alone = all("/" in sample.key and len(sample.parts) == 1 for sample in self._samples)
        self.classes: tuple[str, ...] = tuple(tops) if len(tops) > 1 and alone else ()
        beside = {part for sample in self._samples for part in sample.parts}
        pairs, labels = not beside.isdisjoint(("txt", "json")), not beside.isdisjoint(("cls", "json")) or self.classes
        self.tasks = (*(("pairs",) if pairs else ()), *(("labels",) if labels else ()))
        number = {name: str(place).encode() for place, name in enumerate(self.classes)}
        if number:
            for sample in self._samples:
                sample.parts["cls"] = number[sample.key.split("/")[0]]

    @property
    def changed(self) -> float:
        """Time at which a file was last added, removed or renamed."""
        return max(self._times.values()) / 1e9

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, rows: slice) -> list[SampleParts]:
        return self._samples[rows]

    def is_current(self) -> bool:
        """Return whether no file was added or removed since the folder was listed."""
        try:
            return all(Path(folder).stat().st_mtime_ns == time for folder, time in self._times.items())
        except OSError:
            return False

    def _list(self, folder: str) -> list[SampleParts]:
        groups: dict[tuple[str, str], dict[str, FilePart]] = {}
        for root, file in self._walk(folder):
            stem, _, suffix = file.rpartition(".")
            if stem and suffix.lower() in (*IMAGE_PARTS, *_SIDECARS):
                inside = os.path.relpath(root, folder).replace(os.sep, "/")
                name = file if inside == "." else f"{inside}/{file}"
                parts = groups.setdefault((name[: -len(suffix) - 1].replace(".", "_"), stem), {})
                parts[suffix] = FilePart(f"{root}/{file}", name)
        samples: dict[str, SampleParts] = {}
        for (key, _), files in sorted(groups.items()):
            beside = {suffix.lower(): file for suffix, file in files.items() if suffix.lower() in _SIDECARS}
            pictures = {suffix: file for suffix, file in files.items() if suffix.lower() in IMAGE_PARTS}
            for place, (suffix, picture) in enumerate(pictures.items()):
                own = f"{key}_{suffix}" if place else key
                while own in samples:
                    own += "_"
                samples[own] = SampleParts(own, {suffix.lower(): picture, **beside})
        return [samples[key] for key in sorted(samples)]

    def _walk(self, folder: str) -> Iterator[tuple[str, str]]:
        """Yield folder and name of each visible file; a folder that a link reaches a second time is left out."""
        seen = set[tuple[int, int]]()

        def is_new(path: str) -> bool:
            facts = Path(path).stat()
            before = len(seen)
            seen.add((facts.st_dev, facts.st_ino))
            return len(seen) > before

        is_new(folder)
        for root, folders, files in os.walk(folder, followlinks=True):
            self._times[root] = Path(root).stat().st_mtime_ns
            folders[:] = sorted(f for f in folders if not f.startswith(".") and is_new(f"{root}/{f}"))
            for file in sorted(files):
                if not file.startswith("."):
                    yield root, file


_listed: dict[str, FolderSource] = {}


def open_folder(place: str) -> FolderSource:
    """Open the source of a folder, and list it again if a file was added or removed."""
    source = _listed.pop(place, None)
    if source is None or not source.is_current():
        source = FolderSource(place)
    _listed[place] = source
    while len(_listed) > _KEPT:
        del _listed[next(iter(_listed))]
    return source


def find_in_folder(path: Path) -> str | None:
    """Return the URL of a folder of pictures, without a shard number; None if it has no pictures.

    Raises ConfigError if its pictures have neither captions nor classes, or if its sub-folders are splits.
    """
    source = open_folder(str(path))
    if not len(source):
        return None
    if source.classes and _SPLITS.issuperset(name.lower() for name in source.classes):
        names = ", ".join(str(path / name) for name in source.classes)
        raise ConfigError.of("shards", path, f"holds the splits of a data set; use one of {names}")
    if not source.tasks:
        near = (file for folder in (path, path.resolve().parent) for file in sorted(folder.iterdir()))
        table = next((file for file in near if file.suffix.lower() in _TABLES or file.name == "captions.txt"), None)
        advice = f"if {table} has them, use that" if table else "put them into metadata.csv there (file_name,caption)"
        problem = f"holds pictures ({len(source):,}) without captions (.txt or .json of the same name) or class folders"
        raise ConfigError.of("shards", path, f"{problem}; {advice}")
    return f"folder:{path}"
