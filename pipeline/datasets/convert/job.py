"""`convert`: one split of a download to a folder of shards."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError

from .files import digest
from .kinds import Kind, find_kind
from .parts import CHECKS
from .source import Request, Source
from .write import Progress, ShardSize, State, read_bad, write_shards

__all__ = ["Converted", "convert"]

_SPLITS = {"dev": "val", "validation": "val", "training": "train", "testing": "test"}
_OPTIONS: dict[str, tuple[object, str]] = {  # default, and an example for messages
    "layout": (None, "features"),
    "rows": (None, "captions"),
    "images": (None, "images"),
    "float16": (False, "True"),
    "noise_file": (None, "f30k_precomp_0.4.npy"),
    "labels": (None, "worse"),
    "label_file": (None, "CIFAR-100_human.pt"),
    "classes": (None, "50"),
}


@dataclass(frozen=True)
class Converted:
    """What a folder holds now: `samples` of the `read` of the source; `bad` counts the others by why.

    facts: what is particular to the data, such as the noise of a given file. already: nothing was left to do.
    """

    kind: str
    split: str
    out: str
    shards: list[str]
    read: int
    samples: int
    bad: dict[str, int]
    bytes: int
    classes: int
    facts: dict[str, Any] = field(default_factory=dict)
    already: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def convert(
    kind: str,
    source: str | Path,
    out: str | Path,
    *,
    split: str = "train",
    shard_samples: int = 1_000,
    shard_bytes: int = 500_000_000,
    check: str = "header",
    progress: Progress = lambda done, count, shard: None,
    **options: Any,
) -> Converted:
    """Shards of one split of a data set, from the files of its usual download (`KINDS` says which).

    A sample that cannot be read is left out and listed in `_bad_samples.jsonl`; keys count the source's samples, so no other
    key changes. Stopped, the same call goes on; with other settings it is refused. check: `header` or `full` decoding of
    pictures. options: those of the kind, such as noise_file, rows or layout.
    """
    chosen = find_kind(kind)
    split = _SPLITS.get(split, split).replace("-", "_")
    if split not in chosen.splits:
        raise ConfigError(f"split {split!r}: {chosen.name} has {', '.join(chosen.splits)}")
    if check not in CHECKS:
        raise ConfigError(f"check {check!r} is unknown; use {' or '.join(CHECKS)}")
    given = _options(chosen, options)
    folder, target = Path(source), Path(out)
    if folder.is_dir() and target.resolve() == folder.resolve():
        raise ConfigError(f"out {out} is the source; use another folder, so that the download stays as it is")
    request = Request(chosen, folder, split, check, **given)
    module, _, name = chosen.reader.partition(":")
    read: Callable[[Request], Source] = getattr(import_module(f".{module}", __package__), name)
    found = read(request)
    settings = {
        "kind": chosen.name,
        "split": split,
        **{name: str(value) if isinstance(value, Path) else value for name, value in given.items()},
        "check": check,
        "files": digest(found.files),
        **found.facts,
    }
    for name in ("images", "noise_file", "label_file"):
        settings.pop(name, None)  # where it lies; what it is stands in `files` or shows in the samples
    state, already = write_shards(found, target, settings, ShardSize(shard_samples, shard_bytes), progress)
    return _result(state, found, target, already)


def _options(kind: Kind, given: dict[str, Any]) -> dict[str, Any]:
    """The kind's options with their defaults; raises ConfigError for one that it does not take."""
    for name, value in given.items():
        if name not in _OPTIONS:
            raise ConfigError(f"{name}={value!r} is no option; use {', '.join(_OPTIONS)}")
        if name not in kind.options and value != _OPTIONS[name][0]:
            taken = ", ".join(kind.options) or "none"
            raise ConfigError(f"{name}={str(value)!r}: {kind.name} does not take it; it takes {taken}")
    if given.get("rows") not in (None, "captions", "images"):
        raise ConfigError(f"rows={given['rows']!r} is unknown; use captions (one row each) or images")
    layout = given.get("layout")
    if layout is not None and layout not in kind.layouts:
        raise ConfigError(f"layout={layout!r}: {kind.name} has {', '.join(kind.layouts)}")
    found = {name: given.get(name, _OPTIONS[name][0]) for name in kind.options}
    for name in ("images", "noise_file", "label_file"):
        if found.get(name) is not None:
            found[name] = Path(found[name])
            if not found[name].exists():
                raise ConfigError(f"{name}={str(found[name])!r} is not there; give for example {_OPTIONS[name][1]}")
    return found


def _result(state: State, source: Source, out: Path, already: bool) -> Converted:
    return Converted(
        kind=state.settings["kind"],
        split=state.settings["split"],
        out=str(out),
        shards=[str(out / shard["name"]) for shard in state.shards],
        read=state.count,
        samples=state.written,
        bad=dict(Counter(str(row["status"]) for row in read_bad(out, state.bad))),
        bytes=sum(int(shard["bytes"]) for shard in state.shards),
        classes=len(source.classes),
        facts=dict(source.facts),
        already=already,
    )
