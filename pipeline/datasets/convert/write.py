"""Samples to shards: each file whole or not at all, the same bytes for the same source, and on from where it stopped."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError, MismatchError
from noisegate.pipeline.runs.lock import folder_lock
from noisegate.pipeline.shards.decode import BadSample
from noisegate.pipeline.shards.writer import ShardWriter, write_shard
from noisegate.pipeline.system.output_files import refuse_other_shards, write_atomically, writing_to

from .source import Sample, Source

__all__ = ["BAD_FILE", "CLASSES_FILE", "RECORD", "Progress", "ShardSize", "State", "read_bad", "write_shards"]

RECORD = "_convert.json"
BAD_FILE = "_bad_samples.jsonl"
CLASSES_FILE = "classes.txt"
HOPELESS = 50  # so many bad samples at the beginning, and none good, mean a wrong folder

Progress = Callable[[int, int, str | None], None]
"""Called with samples done, samples in all, and the shard that was just written, if one was."""


@dataclass(frozen=True)
class ShardSize:
    """Where a shard ends: at whichever comes first. A sample larger than `size` has a shard of its own."""

    samples: int = 1_000
    size: int = 500_000_000

    def __post_init__(self) -> None:
        for name, value, example in (("samples", self.samples, 1_000), ("size", self.size, 500_000_000)):
            if value < 1:
                raise ConfigError(f"shard {name} {value} holds no sample; use {example}")


@dataclass
class State:
    """How far a folder is: all but `shards`, `next`, `bad` and `done` must be the same to go on."""

    settings: dict[str, Any]
    count: int
    shards: list[dict[str, Any]] = field(default_factory=list)
    next: int = 0
    bad: int = 0
    done: bool = False

    @property
    def written(self) -> int:
        """Samples that are in shards."""
        return sum(int(shard["samples"]) for shard in self.shards)


def write_shards(
    source: Source, out: Path, settings: Mapping[str, Any], size: ShardSize, progress: Progress
) -> tuple[State, bool]:
    """Write `KIND-SPLIT-000000.tar` and so on; true where the folder was whole already, and stays as it is."""
    with writing_to(out), folder_lock(out):
        state = _read_state(
            out, State({**settings, "shard_samples": size.samples, "shard_bytes": size.size}, source.count)
        )
        refuse_other_shards(out, {shard["name"] for shard in state.shards} | {_name(state)})
        if state.done:
            return state, True
        bad = read_bad(out, state.bad)
        writer = _Writer(source, size, progress, bad, state.written)
        while state.next < source.count:
            path = out / _name(state)
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
            raise ConfigError(_hopeless(writer.bad, source.count))
        if source.classes:
            write_atomically(out / CLASSES_FILE, "".join(f"{name}\n" for name in source.classes).encode())
        state.done = True
        _write_state(out, state)
    return state, False


class _Writer:
    """Goes through the samples once, shard by shard; `number` is the first that is in none yet."""

    def __init__(
        self, source: Source, size: ShardSize, progress: Progress, bad: list[dict[str, Any]], written: int
    ) -> None:
        self._source, self._size, self._progress = source, size, progress
        self.bad, self._written = bad, written
        self.number = 0
        self._waiting: dict[str, bytes] | None = None  # did not fit into the shard before

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
            raise ConfigError(_hopeless(self.bad, self._source.count))
        return None


def _name(state: State) -> str:
    return f"{state.settings['kind']}-{state.settings['split']}-{len(state.shards):06d}.tar"


def _hopeless(bad: list[dict[str, Any]], count: int) -> str:
    if not bad:
        return "the source holds no samples"
    first = bad[0]
    many = f"the first {len(bad)} of {count:,} samples" if len(bad) < count else f"all {count:,} samples"
    return f"{many} cannot be read, such as {first['from']}: {first['error']}; check the folder of the images"


def _read_state(out: Path, wanted: State) -> State:
    """The state that the folder is in; raises MismatchError where it was made from something else."""
    path = out / RECORD
    if not path.exists():
        return wanted
    try:
        found = State(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); remove the folder, or choose another --out") from error
    was, now = {**found.settings, "samples": found.count}, {**wanted.settings, "samples": wanted.count}
    differs = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    if differs:
        name = differs[0]
        raise MismatchError(
            f"out {out} was converted with {name}={was.get(name)!r}, and this is {name}={now.get(name)!r}; choose another "
            "--out, or remove that folder"
        )
    for shard in found.shards:
        place = out / str(shard["name"])
        if not place.exists() or place.stat().st_size != shard["bytes"]:
            raise MismatchError(f"{place} is not the one that was written; remove the folder {out} and convert again")
    return found


def _write_state(out: Path, state: State) -> None:
    write_atomically(out / RECORD, json.dumps(asdict(state), indent=1, ensure_ascii=False).encode())


def read_bad(out: Path, count: int) -> list[dict[str, Any]]:
    """The first `count` rows; those beyond belong to a shard that was not finished."""
    if not count:
        return []
    return [json.loads(line) for line in (out / BAD_FILE).read_text(encoding="utf-8").splitlines()[:count]]
