"""`convert`: one split of a download to a folder of shards.

The same source gives the same bytes. A stopped job goes on after its last complete shard.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError, MismatchError
from noisegate.pipeline.runs.lock import folder_lock
from noisegate.pipeline.shards.decode import BadSample
from noisegate.pipeline.shards.tar import ShardWriter, write_shard
from noisegate.pipeline.system.output_files import refuse_other_shards, write_atomically, writing_to

from .kinds import Kind, find_kind
from .source import CHECKS, Request, Sample, SampleSource, digest

RECORD = "_convert.json"
BAD_FILE = "_bad_samples.jsonl"
CLASSES_FILE = "classes.txt"
HOPELESS = 50  # after this many bad samples at the start and no good one, the folder is taken to be wrong
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
    "image_column": (None, "path"),
    "text_column": (None, "caption"),
    "label_column": (None, "label"),
}

Progress = Callable[[int, int, str | None], None]
"""Called with the samples done, all samples, and the name of the shard that was just written, or None."""


@dataclass(frozen=True)
class ShardSize:
    """Limits of a shard in samples and bytes. A sample larger than `size` gets a shard of its own."""

    samples: int = 1_000
    size: int = 500_000_000

    def __post_init__(self) -> None:
        for name, value, example in (("samples", self.samples, 1_000), ("bytes", self.size, 500_000_000)):
            if value < 1:
                raise ConfigError(f"shard-{name} {value} holds no sample; use {example}", f"shard_{name}", value)


@dataclass(frozen=True)
class Converted:
    """Counts of a converted folder: `read` samples in the source, `samples` of them written; `bad` counts the others by status.

    facts: more about the data, such as the noise of a given file. already: the folder was complete before this call.
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
    """Write shards of one split of a data set from the files of its usual download (`KINDS` lists them).

    A sample that cannot be read is left out and listed in `_bad_samples.jsonl`; keys count the source's samples, so no other
    key changes. After a stop the same call goes on; with other settings it is refused. check: `header` or `full` decoding of
    pictures. options: those of the kind, such as noise_file, rows or layout.
    """
    chosen = find_kind(kind)
    split = _SPLITS.get(split, split).replace("-", "_")
    if split not in chosen.splits:
        raise ConfigError.of("split", split, f"is not one of {chosen.name}; use {' or '.join(chosen.splits)}")
    if check not in CHECKS:
        raise ConfigError.of("check", check, f"is unknown; use {' or '.join(CHECKS)}")
    given = _check_options(chosen, options)
    folder, target = Path(source), Path(out)
    if folder.is_dir() and target.resolve() == folder.resolve():
        raise ConfigError.of("out", out, "is the source; use another folder, so that the download stays as it is")
    request = Request(chosen, folder, split, check, **given)
    module, _, name = chosen.reader.partition(":")
    read: Callable[[Request], SampleSource] = getattr(import_module(f".{module}", __package__), name)
    samples = read(request)
    settings = {
        "kind": chosen.name,
        "split": split,
        **{name: str(value) if isinstance(value, Path) else value for name, value in given.items()},
        "check": check,
        "files": digest(samples.files),
        **samples.facts,
    }
    for name in ("images", "noise_file", "label_file"):
        settings.pop(name, None)  # a path may change; the content is in `files` or shows in the samples
    state, already = write_shards(samples, target, settings, ShardSize(shard_samples, shard_bytes), progress)
    return _summarise(state, samples, target, already)


def _check_options(kind: Kind, given: dict[str, Any]) -> dict[str, Any]:
    """Check the given options and add the kind's defaults."""
    for name, value in given.items():
        if name not in _OPTIONS:
            raise ConfigError.of(name, value, f"is no option; use {', '.join(_OPTIONS)}")
        if name not in kind.options and value != _OPTIONS[name][0]:
            taken = ", ".join(kind.options) or "none"
            raise ConfigError.of(name, value, f"is not for {kind.name}, which takes {taken}")
    if given.get("rows") not in (None, "captions", "images"):
        raise ConfigError.of("rows", given["rows"], "is unknown; use captions (one row each) or images")
    layout = given.get("layout")
    if layout is not None and layout not in kind.layouts:
        raise ConfigError.of("layout", layout, f"is not one of {kind.name}; use {' or '.join(kind.layouts)}")
    options = {name: given.get(name, _OPTIONS[name][0]) for name in kind.options}
    for name in ("images", "noise_file", "label_file"):
        if options.get(name) is not None:
            options[name] = Path(options[name])
            if not options[name].exists():
                raise ConfigError.of(name, options[name], f"is not there; give for example {_OPTIONS[name][1]}")
    return options


@dataclass
class State:
    """Progress of a folder, as stored in its record; a job goes on only if `settings` and `count` are unchanged."""

    settings: dict[str, Any]
    count: int
    shards: list[dict[str, Any]] = field(default_factory=list)
    next: int = 0
    bad: int = 0
    done: bool = False

    @property
    def written(self) -> int:
        """Number of samples written to shards."""
        return sum(int(shard["samples"]) for shard in self.shards)


def _summarise(state: State, source: SampleSource, out: Path, already: bool) -> Converted:
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


def write_shards(
    source: SampleSource, out: Path, settings: Mapping[str, Any], size: ShardSize, progress: Progress
) -> tuple[State, bool]:
    """Write `KIND-SPLIT-000000.tar` and so on, or `NAME-000000.tar` if the settings have a name.

    Return the state, and True if the folder was complete already and is unchanged.
    """
    with writing_to(out), folder_lock(out):
        state = _read_state(
            out, State({**settings, "shard_samples": size.samples, "shard_bytes": size.size}, source.count)
        )
        refuse_other_shards(out, {shard["name"] for shard in state.shards} | {_shard_name(state)})
        if state.done:
            return state, True
        bad = read_bad(out, state.bad)
        writer = _Writer(source, size, progress, bad, state.written)
        while state.next < source.count:
            path = out / _shard_name(state)
            with write_shard(path) as shard:
                writer.fill(shard, state.next)
            if shard.samples:
                facts = {"samples": shard.samples, "bytes": shard.size, "sha256": shard.sha256}
                state.shards.append({"name": path.name, **facts})
            else:
                path.unlink()
            if writer.bad and len(writer.bad) > state.bad:
                lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in writer.bad)
                write_atomically(out / BAD_FILE, lines.encode("utf-8", "backslashreplace"))
            state.next, state.bad = writer.number, len(writer.bad)
            _write_state(out, state)
            progress(state.next, source.count, path.name if shard.samples else None)
        if not state.shards:
            raise ConfigError(_describe_failure(writer.bad, source.count), "source", None)
        if source.classes:
            write_atomically(out / CLASSES_FILE, "".join(f"{name}\n" for name in source.classes).encode())
        state.done = True
        _write_state(out, state)
    return state, False


class _Writer:
    """Go through the samples once, shard by shard; `number` is the next sample."""

    def __init__(
        self, source: SampleSource, size: ShardSize, progress: Progress, bad: list[dict[str, Any]], written: int
    ) -> None:
        self._source, self._size, self._progress = source, size, progress
        self.bad, self._written = bad, written
        self.number = 0
        self._waiting: dict[str, bytes] | None = None  # a sample that was read but did not fit into the last shard

    def fill(self, shard: ShardWriter, start: int) -> None:
        """Fill one shard with the samples from `start` on."""
        self.number = start
        while self.number < self._source.count and shard.samples < self._size.samples:
            sample = self._source.sample(self.number)
            parts = self._waiting if self._waiting is not None else self._parts(sample)
            self._waiting = None
            if parts is not None:
                if shard.samples and shard.size + sum(map(len, parts.values())) > self._size.size:
                    self._waiting = parts
                    break
                shard.add(sample.key, parts)
                self._written += 1
            self.number += 1
            self._progress(self.number, self._source.count, None)

    def _parts(self, sample: Sample) -> dict[str, bytes] | None:
        try:
            return sample.parts()
        except BadSample as error:
            row = {"number": self.number, "key": sample.key, "from": sample.origin}
            self.bad.append({**row, "status": error.status, "error": str(error)})
        if not self._written and len(self.bad) >= HOPELESS:
            raise ConfigError(_describe_failure(self.bad, self._source.count), "source", None)
        return None


def _shard_name(state: State) -> str:
    name = state.settings.get("name") or f"{state.settings['kind']}-{state.settings['split']}"
    return f"{name}-{len(state.shards):06d}.tar"


def _describe_failure(bad: list[dict[str, Any]], count: int) -> str:
    if not bad:
        return "the source holds no samples"
    first = bad[0]
    many = f"the first {len(bad)} of {count:,} samples" if len(bad) < count else f"all {count:,} samples"
    return f"{many} cannot be read, such as {first['from']}: {first['error']}; check the folder of the images"


def _read_state(out: Path, wanted: State) -> State:
    """Read the state from the folder's record; raise MismatchError if the folder was made with other settings or data."""
    path = out / RECORD
    if not path.exists():
        return wanted
    try:
        state = State(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ConfigError.of("out", out, f"has a {RECORD} that cannot be read ({error}); use another folder") from error
    was, now = {**state.settings, "samples": state.count}, {**wanted.settings, "samples": wanted.count}
    differs = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    if differs:
        name = differs[0]
        problem = (
            f"is not the {was.get(name)!r} with which {out} was converted; use another --out, or remove that folder"
        )
        raise MismatchError.of(name, now.get(name), problem)
    for shard in state.shards:
        place = out / str(shard["name"])
        if not place.exists() or place.stat().st_size != shard["bytes"]:
            raise MismatchError.of(
                "out", out, f"has another {place.name} than was written; remove it and convert again"
            )
    return state


def _write_state(out: Path, state: State) -> None:
    write_atomically(out / RECORD, json.dumps(asdict(state), indent=1, ensure_ascii=False).encode())


def read_bad(out: Path, count: int) -> list[dict[str, Any]]:
    """Read the first `count` bad samples; later rows belong to a shard that was not finished."""
    if not count:
        return []
    return [json.loads(line) for line in (out / BAD_FILE).read_text(encoding="utf-8").splitlines()[:count]]
