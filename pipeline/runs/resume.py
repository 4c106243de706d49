"""Going on where a run was stopped: was the folder made with these settings, and which shards are left to do?"""

import hashlib
import re
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
from noisegate.pipeline.settings import AnnotateSettings
from noisegate.pipeline.shards.locate import Shard

from .embeddings import embeddings_match
from .table import VERSION, RunFolder, read_metadata, search_folder

ASKED_AT_ONCE, ASKED = 16, 1024  # parallel size requests to a store; shards per batch of requests
RESCORED = ("beta", "k", "neighbourhood")  # what `rescore` changes from the kept embeddings
SCORED_LAST = (*RESCORED, "classes", "seed")  # what no embedding depends on
_HALF_WRITTEN = re.compile(r"\..+\.(parquet|safetensors|json)(\.[0-9a-f]{8})?\.tmp")


@dataclass
class RunRecord:
    """What is known of a run so far; JSON values where they come from other packages."""

    run: RunFolder
    shards: Sequence[Shard]
    settings: AnnotateSettings
    classes_digest: str | None = None
    model: Mapping[str, Any] | None = None
    random_inputs: Mapping[str, Any] | None = None  # the model's own β, if it was measured
    failed: dict[str, str] = field(default_factory=dict)  # reason by url of shards that could not be read
    times: dict[str, float | None] = field(default_factory=dict)  # last change of each shard before it was read
    notes: list[str] = field(default_factory=list)  # what the encoders reported about themselves

    def fixed_settings(self, identity: Identity) -> dict[str, Any]:
        """The settings that must stay the same when the run is resumed."""
        return {
            "scorer": identity.to_dict(),
            "scoring": self.settings.scoring.to_dict() | {"classes": self.classes_digest},
            "reading": self.settings.reading.to_dict(),
        }

    def write(self, identity: Identity, beta: Mapping[str, Any] | None, finished: bool) -> None:
        """Write the file: `finished` if all readable shards are scored, `complete` if all shards are."""
        before = self.run.read_run()
        known = {entry["table"]: entry for entry in before["shards"]} if before else {}
        here = {shard.stem for shard in self.shards}
        entries = [entry for entry in known.values() if entry["table"] not in here]
        for shard in self.shards:
            new = {"url": shard.url, "table": shard.stem, "modified": self.times.get(shard.url)}
            entries.append(new if shard.url in self.times else known.get(shard.stem, new))
        looked_at = {shard.stem for shard in self.shards if finished or shard.url in self.times}
        shards = [
            entry if entry["table"] in here - looked_at else {**entry, **_read_facts(self.run, entry["table"])}
            for entry in entries
        ]
        self.run.write_run(
            {
                **self.fixed_settings(identity),
                "table_version": VERSION,
                "noisegate": version("noisegate"),
                "model": self.model,
                "beta": beta,
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


def check_settings(before: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path, retry_failed: bool) -> None:
    """Refuse a folder that was made with other settings, and name each; a retry may raise limits, nothing else.

    A run that is not finished may be scored in another way: settings that its scoring stumbled over, such as classes with
    a name missing, must not cost its embeddings.
    """
    differences = Identity.from_dict(before["scorer"]).differences(Identity.from_dict(wanted["scorer"]))
    then, now = _flat(before), _flat(wanted)
    raised = {name for name in wanted["reading"]["limits"] if retry_failed and now[name] > then.get(name, now[name])}
    open_ones = () if before["finished"] else SCORED_LAST
    other = [name for name in now if name not in (*raised, *open_ones) and then.get(name) != now[name]]
    cheap = not differences and all(name in RESCORED for name in other)
    differences += [f"{name}: {then.get(name)} there, {now[name]} now" for name in other]
    if differences:
        lines = "\n  ".join(("was made with other settings:", *differences))
        hint = f" Without the model, in seconds: noisegate rescore {folder}" if cheap else ""
        advice = "Use the same settings to go on, another --out, or --overwrite to start again."
        raise MismatchError.of("out", folder, f"{lines}\n{advice}{hint}")


def _flat(run: Mapping[str, Any]) -> dict[str, Any]:
    reading = {name: value for name, value in run["reading"].items() if name != "limits"}
    return {**run["scoring"], **reading, **run["reading"].get("limits", {})}


@dataclass
class Resume:
    """What earlier runs left in a folder, shard by shard. `listed` are the entries of `_run.json` by table name.

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
    unreachable: dict[str, str] = field(default_factory=dict)
    stale: list[Path] = field(default_factory=list)
    sizes: dict[str, int | None] = field(default_factory=dict)
    times: dict[str, float | None] = field(default_factory=dict)

    def todo(self, shards: Sequence[Shard]) -> list[Shard]:
        """The shards that must be read; those that cannot be are in `unreachable`, and what is known of them stays."""
        left: list[Shard] = []
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            for start in range(0, len(shards), ASKED):
                part = shards[start : start + ASKED]
                remote = [shard for shard in part if not shard.is_local]
                told = dict(zip((shard.url for shard in remote), pool.map(_size_and_time, remote), strict=True))
                left += [shard for shard in part if not self._is_done(shard, told.get(shard.url))]
        return left

    def _is_done(self, shard: Shard, told: tuple[int | None, float | None] | ShardError | None) -> bool:
        table = self.run.table(shard.stem)
        try:
            if isinstance(told, ShardError):
                raise told
            self.sizes[shard.url], self.times[shard.url] = told or shard.size_and_time()
            metadata = self._metadata(table, shard.stem)
            if metadata is None:
                return False
            changed = self._has_changed(shard, metadata["shard"])
        except ShardError as error:
            self.unreachable[shard.url] = str(error)
            return True
        if changed:
            self._check_place(shard)
            self._redo(table, f"{shard.url} has changed since it was scored; it is scored again")
            return False
        sha256, rows = metadata["shard"]["sha256"], metadata["shard"]["rows"]
        if self.keep_embeddings and not embeddings_match(self.run.embeddings(shard.stem), rows, sha256):
            self.note(f"{self.run.embeddings(shard.stem)} is missing or damaged; {shard.url} is scored again")
            return False
        return not (self.retry_failed and failed_rows(table))

    def _metadata(self, table: Path, stem: str) -> dict[str, Any] | None:
        """What the table says of itself, None where there is no whole one."""
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
        """By size, then by the time of the last change; where that differs the shard is read to make sure."""
        size, entry = self.sizes[shard.url], self.listed.get(shard.stem, {})
        if size is not None and size != scored["size"]:
            return True
        if entry.get("url") == shard.url and entry.get("modified") == self.times[shard.url]:
            return False
        return bool(_digest(shard) != scored["sha256"])

    def _check_place(self, shard: Shard) -> None:
        """Two shards of one name in different folders must not take each other's table."""
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
    """Row numbers of the samples whose status is not `ok`."""
    statuses = pq.read_table(table, columns=["status"])["status"]
    return set(np.flatnonzero(pc.not_equal(statuses, "ok").to_numpy()).tolist())


def clear(run: RunFolder, wanted: Iterable[str] = (), searches: bool = True) -> None:
    """Remove the files of earlier runs and nothing else: Parquet files marked as weight tables, and what `_run.json` lists.

    Neighbour searches that were stopped go too, unless they are to go on.
    Raises TableError, before anything is removed, when another file is where one of the `wanted` tables must go.
    """
    try:
        stems = {entry["table"] for entry in (run.read_run() or {"shards": []})["shards"]}
    except TableError:
        stems = set()  # a damaged _run.json is one of the reasons to start again
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
    for path in (*run.path.glob(".*.tmp"), *run.path.glob("embeddings/.*.tmp")):
        if _HALF_WRITTEN.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def _digest(shard: Shard) -> str:
    digest = hashlib.sha256()
    try:
        with shard.open() as file:
            while data := file.read(1 << 20):
                digest.update(data)
    except OSError as error:
        raise ShardError(f"shard {shard.url} broke off while reading: {error}", "shards", shard.url) from error
    return digest.hexdigest()
