"""Resume a stopped run: check that its settings are the same, find the shards still to do, and write `_run.json`."""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from noisegate.pipeline.errors import MismatchError, ShardError, TableError
from noisegate.pipeline.estimators.base import Identity
from noisegate.pipeline.settings import AnnotateSettings, ScoreSettings
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.pixels import decoder_name
from noisegate.pipeline.system.output_files import remove_half_written

from .digests import digest_file, is_unchanged
from .embeddings import embeddings_match
from .table import VERSION, RunFolder, read_metadata, search_folder

REQUESTS, BATCH = 16, 1024  # parallel size requests to a store; shards per batch of requests
RESCORED = ("beta", "cut", "k", "neighbourhood", "repair")  # settings that `rescore` can change
SCORED_LAST = (*RESCORED, "classes", "seed")  # settings that no embedding depends on


@dataclass
class RunRecord:
    """The content of `_run.json`: the state of a run so far."""

    run: RunFolder
    shards: Sequence[Shard]
    settings: AnnotateSettings
    classes_digest: str | None = None
    model: Mapping[str, Any] | None = None
    random_inputs: Mapping[str, Any] | None = None  # the model's own β, if it was measured
    failed: dict[str, str] = field(default_factory=dict)  # unreadable shards: reason by url
    times: dict[str, float | None] = field(default_factory=dict)  # each shard's last change before it was read
    notes: list[str] = field(default_factory=list)  # notes of the encoders about themselves

    def fixed_settings(self, identity: Identity) -> dict[str, Any]:
        """Return the settings that must stay the same when the run is resumed."""
        return {
            "scorer": identity.to_dict(),
            "scoring": self.settings.scoring.to_dict() | {"classes": self.classes_digest},
            "reading": self.settings.reading.to_dict(),
        }

    def write(self, identity: Identity, scores: Mapping[str, Any], finished: bool) -> None:
        """Write `_run.json` with the record of the `scores`.

        `finished`: all readable shards are scored; `complete`: all shards are.
        """
        before = self.run.read_run()
        known = {entry["table"]: entry for entry in before["shards"]} if before else {}
        here = {shard.stem for shard in self.shards}
        entries = [entry for entry in known.values() if entry["table"] not in here]
        for shard in self.shards:
            new = {"url": shard.url, "table": shard.stem, "modified": self.times.get(shard.url)}
            entries.append(new if shard.url in self.times else known.get(shard.stem, new))
        seen = {shard.stem for shard in self.shards if finished or shard.url in self.times}
        shards = [e if e["table"] in here - seen else e | _read_facts(self.run, e["table"]) for e in entries]
        self.run.write_run(
            {
                **self.fixed_settings(identity),
                "table_version": VERSION,
                "noisegate": version("noisegate"),
                "model": self.model,
                **scores,
                "random_inputs": self.random_inputs or (before or {}).get("random_inputs"),
                "notes": self.notes or (before or {}).get("notes", []),
                "shards": shards,
                "unreadable": self.failed,
                "finished": finished,
                "complete": finished and not self.failed and all("rows" in shard for shard in shards),
            }
        )


def _read_facts(run: RunFolder, stem: str) -> dict[str, Any]:
    if not run.table(stem).exists():
        return {}
    shard = read_metadata(run.table(stem))["shard"]
    return {"rows": shard["rows"], "sha256": shard["sha256"]}


def check_settings(
    before: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path | str, retry_failed: bool
) -> None:
    """Raise MismatchError, naming each setting that differs from the run in `folder`; a retry may only raise limits.

    An unfinished run may change the settings of its scoring: a mistake in them must not cost its embeddings.
    """
    differences = Identity.from_dict(before["scorer"]).differences(Identity.from_dict(wanted["scorer"]))
    unrecorded = {"repair": ScoreSettings.repair, "cut": ScoreSettings.cut}  # not recorded by earlier releases
    then, now = unrecorded | _flat(before), _flat(wanted)
    raised = {name for name in wanted["reading"]["limits"] if retry_failed and now[name] > then.get(name, now[name])}
    free = raised if before["finished"] else raised | {*SCORED_LAST}
    other = [name for name in now if name not in free and then.get(name) != now[name]]
    cheap = not differences and all(name in RESCORED for name in other)
    differences += [f"{name}: {then.get(name)} there, {now[name]} now" for name in other]
    if differences:
        lines = "\n  ".join(("was made with other settings:", *differences))
        options = " ".join(_option(name, now[name]) for name in other)
        hint = f" Without the model, in seconds: noisegate rescore {folder} {options}" if cheap else ""
        advice = "Use the same settings to go on, another --out, or --overwrite to start again."
        decoder, chosen = (decoder_name(run["scorer"]) for run in (before, wanted))
        if decoder != chosen:
            advice = f"--decoder {decoder} goes on with the decoder of this run. {advice}"
        raise MismatchError.of("out", folder, f"{lines}\n{advice}{hint}")


def _option(name: str, value: Any) -> str:
    """Format a setting as `rescore` takes it.

    >>> _option("k", 50), _option("neighbourhood", False)
    ('--k 50', '--no-neighbourhood')
    """
    return f"--{'' if value else 'no-'}{name}" if isinstance(value, bool) else f"--{name} {value}"


def _flat(run: Mapping[str, Any]) -> dict[str, Any]:
    reading = {name: value for name, value in run["reading"].items() if name != "limits"}
    return {**run["scoring"], **reading, **run["reading"].get("limits", {})}


@dataclass
class Resume:
    """The result of earlier runs in a folder, shard by shard. `listed` are the entries of `_run.json` by table name.

    Changed files are detected by size and time, then by digest; with `check` by digest at once.

    After `todo`: `unreachable` shards with the reason, `stale` tables that no longer belong to their shard, and the
    `times` of the shards' last change as they were before anything was read.
    """

    run: RunFolder
    identity: Identity
    reading: Mapping[str, Any]
    listed: Mapping[str, Mapping[str, Any]]
    keep_embeddings: bool
    retry_failed: bool
    note: Callable[[str], None]
    check: bool = False
    unreachable: dict[str, str] = field(default_factory=dict)
    stale: list[Path] = field(default_factory=list)
    sizes: dict[str, int | None] = field(default_factory=dict)
    times: dict[str, float | None] = field(default_factory=dict)

    def todo(self, shards: Sequence[Shard]) -> list[Shard]:
        """List the shards to encode. Shards that cannot be opened go to `unreachable` instead, and keep their tables."""
        left: list[Shard] = []
        with ThreadPoolExecutor(REQUESTS) as pool:
            for start in range(0, len(shards), BATCH):
                part = shards[start : start + BATCH]
                remote = [shard for shard in part if not shard.is_local]
                answers = dict(zip((shard.url for shard in remote), pool.map(_size_and_time, remote), strict=True))
                left += [shard for shard in part if not self._is_done(shard, answers.get(shard.url))]
        return left

    def _is_done(self, shard: Shard, answer: tuple[int | None, float | None] | ShardError | None) -> bool:
        """Return whether the table is complete and current; `answer` is the store's size and time, None for a local shard."""
        table = self.run.table(shard.stem)
        try:
            if isinstance(answer, ShardError):
                raise answer
            self.sizes[shard.url], self.times[shard.url] = answer or shard.size_and_time()
            metadata = self._read_metadata(table, shard.stem)
            if metadata is None:
                return False
            changed = self._has_changed(shard, metadata["shard"])
        except ShardError as error:
            self.unreachable[shard.url] = str(error)
            return True
        if changed:
            self._check_url(shard)
            self._redo(table, f"{shard.url} has changed since it was scored; it is scored again")
            return False
        if self._is_newer(table) and not is_unchanged(table):
            self._redo(table, f"{table} was changed after it was written; {shard.url} is scored again")
            return False
        if self.keep_embeddings and (problem := self._find_problem(self.run.embeddings(shard.stem), metadata)):
            self.note(f"{self.run.embeddings(shard.stem)} {problem}; {shard.url} is scored again")
            return False
        return not (self.retry_failed and failed_rows(table))

    def _find_problem(self, embeddings: Path, metadata: Mapping[str, Any]) -> str | None:
        if not embeddings_match(embeddings, metadata["shard"]["rows"], metadata["shard"]["sha256"]):
            return "is missing or damaged"
        written = metadata.get("embeddings")  # earlier releases recorded no digest
        if written and self._is_newer(embeddings) and digest_file(embeddings) != written:
            return "was changed after it was written"
        return None

    def _is_newer(self, path: Path) -> bool:
        """Return whether the file may be newer than `_run.json`, which a job writes last; always True with `check`."""
        try:
            return self.check or path.stat().st_mtime_ns >= self.run.run_file.stat().st_mtime_ns
        except FileNotFoundError:  # there is no _run.json
            return True

    def _read_metadata(self, table: Path, stem: str) -> dict[str, Any] | None:
        """Read the table's metadata, None if it is missing or damaged; raise if other settings or another tool made it."""
        if not table.exists():
            return None
        try:
            metadata = read_metadata(table)
        except TableError as error:
            if stem not in self.listed:
                raise TableError(f"{error}; move it, or choose another --out", "out", table) from error
            self._redo(table, f"{table} is damaged; its shard is scored again")
            return None
        if Identity.from_dict(metadata["scorer"]) != self.identity:
            raise MismatchError.of("out", table, f"is of another scorer than {self.run.run_file}; use --overwrite")
        if stem not in self.listed and metadata["reading"] != self.reading:
            raise MismatchError.of("out", table, f"has other settings, and no {self.run.run_file}; use --overwrite")
        return metadata

    def _has_changed(self, shard: Shard, scored: Mapping[str, Any]) -> bool:
        """Compare the size, then the time of the last change; if the time differs, or with `check`, compare the digest."""
        size, entry = self.sizes[shard.url], self.listed.get(shard.stem, {})
        if size is not None and size != scored["size"]:
            return True
        if not self.check and entry.get("url") == shard.url and entry.get("modified") == self.times[shard.url]:
            return False
        return bool(_digest(shard) != scored["sha256"])

    def _check_url(self, shard: Shard) -> None:
        """Raise MismatchError if the table belongs to a shard of the same name in another folder."""
        url = self.listed.get(shard.stem, {}).get("url", shard.url)
        if url != shard.url and not (shard.is_local and Path(url).resolve() == Path(shard.url).resolve()):
            table = self.run.table(shard.stem)
            raise MismatchError.of("out", table, f"belongs to {url}, and {shard.url} is another; choose another --out")

    def _redo(self, table: Path, reason: str) -> None:
        self.note(reason)
        self.stale.append(table)


def _size_and_time(shard: Shard) -> tuple[int | None, float | None] | ShardError:
    try:
        return shard.size_and_time()
    except ShardError as error:
        return error


def failed_rows(table: Path) -> set[int]:
    """Return the row numbers of the samples whose status is not `ok`."""
    statuses = pq.read_table(table, columns=["status"])["status"]
    return set(np.flatnonzero(pc.not_equal(statuses, "ok").to_numpy()).tolist())


def clear(run: RunFolder, wanted: Iterable[str] = (), searches: bool = True) -> None:
    """Remove weight tables, all files that `_run.json` lists, and stopped neighbour `searches`; other files stay.

    Raises TableError, before anything is removed, if another file has the name of a `wanted` table.
    """
    try:
        stems = {entry["table"] for entry in (run.read_run() or {"shards": []})["shards"]}
    except TableError:
        stems = set()  # _run.json may be damaged: that is a reason to start again
    for table in run.path.glob("*.parquet"):
        try:
            read_metadata(table)
        except TableError:
            continue
        stems.add(table.stem)
    for stem in wanted:
        if stem not in stems and run.table(stem).exists():
            raise TableError.of("out", run.table(stem), "is no weight table; move it, or choose another --out")
    for stem in sorted(stems):
        for path in (run.table(stem), run.embeddings(stem)):
            path.unlink(missing_ok=True)
    if stems:
        for name in ("neighbours.safetensors", "text_neighbours.safetensors", "anchors.safetensors"):
            (run.path / name).unlink(missing_ok=True)
            if searches:
                shutil.rmtree(search_folder(run.path / name), ignore_errors=True)
    sweep(run)
    run.run_file.unlink(missing_ok=True)


def sweep(run: RunFolder) -> None:
    """Remove half-written files of killed writers; call only while holding the folder lock."""
    for folder in (run.path, run.path / "embeddings"):
        remove_half_written(folder)


def _digest(shard: Shard) -> str:
    digest = hashlib.sha256()
    try:
        with shard.open() as file:
            while data := file.read(1 << 20):
                digest.update(data)
    except OSError as error:
        raise ShardError(f"shard {shard.url} broke off while reading: {error}", "shards", shard.url) from error
    return digest.hexdigest()
