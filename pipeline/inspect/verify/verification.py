"""Check that a run still belongs to its data: read its shards again, derive its scores again, score some samples again."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError, NoisegateError, TableError
from noisegate.pipeline.estimators.base import Estimator, Identity
from noisegate.pipeline.pairs.pair_pool import RECORD, read_pool
from noisegate.pipeline.pairs.scorer import is_from_training, model_of_run
from noisegate.pipeline.runs.arrays import MODEL as ARRAYS
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.pixels import decoder_name
from noisegate.pipeline.system.progress import Progress, counted

from .check_shard import Drift, Problem, Problems, Rescoring, check_shard
from .check_table import (
    check_array,
    check_digests,
    check_embeddings,
    check_quality,
    check_scores,
    check_settings,
    check_whole,
    settings_of,
)

TOLERANCE = 1e-4  # largest change of a similarity or weight scored again with the same decoder
DECODER_TOLERANCE = 1e-3  # the same with another decoder (benchmarks/decode.py)


@dataclass(frozen=True)
class Verification:
    """Result of `verify`: the first hundred `problems`, the count of all, and `notes` about what was not checked."""

    folder: str
    problems: tuple[Problem, ...]
    problem_count: int
    shards: int
    shards_in_run: int
    samples: int
    drift: Drift
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the table belongs to the data."""
        return self.problem_count == 0

    @property
    def verdict(self) -> str:
        """The result in one line."""
        some = "" if self.shards == self.shards_in_run else f"{self.shards:,} of "
        checked = f"{some}{counted(self.shards_in_run, 'shard')}, {counted(self.samples, 'sample')} checked"
        if not self.ok:
            return f"the table does NOT belong to the data: {counted(self.problem_count, 'problem')} in {checked}"
        largest = self.drift.largest
        drift = "nothing scored again" if largest is None else f"largest drift {largest:.1e}"
        return f"the table belongs to the data: {checked}, {drift}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            **vars(self),
            "ok": self.ok,
            "verdict": self.verdict,
            "problems": [{**vars(problem), "text": str(problem)} for problem in self.problems],
            "drift": {**vars(self.drift), "largest": self.drift.largest},
            "notes": list(self.notes),
        }


def verify(
    folder: str | Path,
    *,
    samples: int = 200,
    tolerance: float | None = None,
    rescore: bool = True,
    shards: int | None = None,
    estimator: Estimator | Callable[[], Estimator] | None = None,
    device: str = "auto",
    decoder: str = "auto",
    batch_size: int | None = None,
    trust: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Verification:
    """Check every table of a run (or `shards` random ones) against its shard, its embeddings and its own β.

    Then up to `samples` random samples are scored again by `estimator` (default: the model that the run records, on
    `device` in batches of `batch_size`; if that is code, a folder or on the hub, only with `trust`), and a similarity or
    weight that moved by more than `tolerance` (default: 1e-4) is a problem. A `decoder` other than the run's own is
    accepted if it is named, with a default tolerance of 1e-3.
    Nothing in the folder is changed. Raises TableError if there is no run, ConfigError for settings that cannot work;
    everything else becomes a Problem.
    """
    if tolerance is None:
        tolerance = TOLERANCE if decoder == "auto" else DECODER_TOLERANCE
    for setting, value, example in (("samples", samples, 200), ("tolerance", tolerance, 1e-4), ("seed", seed, 0)):
        if not value >= 0:
            raise ConfigError.of(setting, value, f"must be 0 or more; use {example}")
    if shards is not None and shards < 1:
        raise ConfigError.of("shards", shards, "is too few; use 1 or more, or leave it out for all")
    run = RunFolder.to_read(folder, embeddings=True)
    recorded = run.recorded()
    check = _Check(run, recorded, np.random.default_rng(seed), progress or Progress())
    arrays = "limits" not in recorded["reading"]
    if recorded["scorer"]["model"] == ARRAYS and not arrays:
        check.notes.append("the run was made from arrays: no model is known to score again with; all else is checked")
    elif arrays:
        check.notes.append(
            "the run was made from arrays, not shards: the image arrays are compared with the kept embeddings; text arrays, "
            "labels and keys came from files that the run does not name, and no model is known to score again with"
        )
    elif rescore and samples and estimator is None and is_from_training(recorded):
        check.notes.append(
            f"these tables were written by a training ({recorded['method']['name']}) without a pretrained model: nothing can "
            "be scored again; all else is checked"
        )
    elif rescore and samples:
        model = estimator or model_of_run(recorded, device=device, batch_size=batch_size, trust=trust, decoder=decoder)
        check.load(model() if callable(model) else model, tolerance, any_decoder=decoder != "auto")
    try:
        return check.go(samples, shards, arrays)
    finally:
        check.progress.stop()


class _Check:
    """One pass over a run: the problems, notes and drift so far."""

    def __init__(self, run: RunFolder, recorded: dict[str, Any], rng: np.random.Generator, progress: Progress) -> None:
        self.run, self.recorded, self.rng, self.progress = run, recorded, rng, progress
        self.problems = Problems()
        self.notes: list[str] = []
        self.rescoring: Rescoring | None = None
        self.usual: dict[str, str] = {}
        self.scored_rows: dict[str, int] = {}
        self.samples = 0

    def load(self, model: Estimator, tolerance: float, any_decoder: bool) -> None:
        """Set the model to score again with; report a problem if it is not the model of the tables."""
        recorded = Identity.from_dict(self.recorded["scorer"])
        if any_decoder and recorded.decoder != model.identity.decoder:
            self.notes.append(
                f"scored again with the decoder {decoder_name(model.identity.to_dict())}, the tables were made with "
                f"{decoder_name(recorded.to_dict())}: changes up to {tolerance:g} are accepted, --tolerance accepts more"
            )
            recorded = recorded.with_decoder_of(model.identity)
        differences = recorded.differences(model.identity)
        if differences:
            self.problems.add(f"the model is not the one that scored the tables: {'; '.join(differences)}")
        self.rescoring = Rescoring(model, tolerance)

    def go(self, samples: int, shards: int | None, arrays: bool) -> Verification:
        entries = self._entries(shards)
        self._look_at_all(entries)
        drawn = self._draw(samples if self.rescoring else 0)
        kept = [entry for entry in entries if self.run.embeddings(entry["table"]).exists()]
        if entries and not kept:
            self.notes.append(
                "no shard has embeddings (they were dropped, or removed): cosines are checked by the model alone"
            )
        self.progress.start(len(entries), self._bytes, 0)
        for entry in entries:
            problems = Problems(_name(entry))
            count = self._check(entry, drawn.get(entry["table"], set()), bool(kept), arrays, problems)
            if self.rescoring:
                self.rescoring.flush()
            self.progress.shard(entry["table"], count, problems.count)
            self.samples += count
            self.problems.merge(problems)
        self._check_quality(entries)
        if self._fused:
            self.notes.append(
                "clean_probability and label scores depend on the whole run: they are checked for range only"
            )
        return Verification(
            folder=str(self.run.name),
            problems=tuple(self.problems.kept),
            problem_count=self.problems.count,
            shards=len(entries),
            shards_in_run=len(self.recorded["shards"]),
            samples=self.samples,
            drift=self.rescoring.drift if self.rescoring else Drift(),
            notes=tuple(self.notes),
        )

    def _check_quality(self, entries: list[dict[str, Any]]) -> None:
        """Compute `pair_quality` again with the pool that the tables record; only if they have no other problems."""
        if self.problems.count or self.usual.get(RECORD, "null") == "null":
            return
        try:
            pool = read_pool(self.run)
        except TableError as error:
            self.problems.add(str(error))
            return
        if pool is None:  # the embeddings were dropped
            return
        for entry in entries:
            problems = Problems(_name(entry))
            check_quality(self.run, entry["table"], pool, problems)
            self.problems.merge(problems)

    def _entries(self, shards: int | None) -> list[dict[str, Any]]:
        """The shards to check, in order."""
        listed: list[dict[str, Any]] = self.recorded["shards"]
        if self.recorded.get("finished") is False:
            self.problems.add("the run is not finished; run the same annotate command again, it goes on")
        if not listed:
            self.problems.add("the run lists no shards")
        if shards is None or shards >= len(listed):
            return listed
        chosen = np.sort(self.rng.choice(len(listed), shards, replace=False))
        return [listed[int(i)] for i in chosen]

    def _look_at_all(self, entries: list[dict[str, Any]]) -> None:
        """Find the scorer and β of most tables, and check that `_run.json` has the same."""
        counts: dict[str, Counter[str]] = {}
        self._bytes = 0
        for entry in entries:
            stem = entry["table"]
            try:
                metadata = read_metadata(self.run.table(stem))
                status = self.run.read(stem, ["status"])["status"]
            except TableError:
                continue  # reported when this shard is checked
            self._bytes += metadata["shard"]["size"]
            self.scored_rows[stem] = int(pc.sum(pc.equal(status, "ok")).as_py() or 0)
            for name, text in settings_of(metadata).items():
                counts.setdefault(name, Counter())[text] += 1
        self.usual = {name: texts.most_common(1)[0][0] for name, texts in counts.items()}
        if not self.usual or self.recorded.get("finished") is False:
            return
        there = json.loads(self.usual["scorer"])
        if there and there != self.recorded["scorer"]:
            differences = Identity.from_dict(there).differences(Identity.from_dict(self.recorded["scorer"]))
            self.problems.add(f"_run.json names another scorer than the tables: {'; '.join(differences)}")
        if self.usual["beta"] != json.dumps(self.recorded["beta"], sort_keys=True):
            here, tables = (_value(beta) for beta in (self.recorded["beta"], json.loads(self.usual["beta"])))
            self.problems.add(f"β in _run.json ({here}) is not that of the tables ({tables})")

    @property
    def _fused(self) -> bool:
        near = json.loads(self.usual.get("neighbourhood", "null"))
        return self.usual.get("labels", "null") != "null" or bool(near and not near["alone"] and near["weight"])

    def _draw(self, samples: int) -> dict[str, set[int]]:
        """Draw the samples of each table to score again, as positions among its scored samples."""
        ends = np.cumsum([0, *self.scored_rows.values()])
        total = int(ends[-1])
        chosen: NDArray[np.int64] = (
            np.sort(self.rng.choice(total, min(samples, total), replace=False)) if total else ends[:0]
        )
        cuts = np.searchsorted(chosen, ends)
        parts = zip(self.scored_rows, ends, cuts, cuts[1:], strict=False)
        return {stem: set((chosen[a:b] - start).tolist()) for stem, start, a, b in parts if b > a}

    def _check(
        self, entry: Mapping[str, Any], drawn: set[int], embeddings: bool, arrays: bool, problems: Problems
    ) -> int:
        """Run all checks of one shard; return the number of samples checked."""
        stem = entry["table"]
        if not self.run.table(stem).exists():
            reason = self.recorded.get("unreadable", {}).get(entry["url"])
            problems.add(f"has no table {stem}.parquet" + (f": {reason}" if reason else ""))
            return 0
        try:
            metadata = read_metadata(self.run.table(stem))
        except TableError as error:
            problems.add(str(error))
            return 0
        facts = metadata["shard"]
        check_settings(metadata, self.usual, problems)
        differing = [name for name in ("rows", "sha256") if name in entry and entry[name] != facts[name]]
        if differing:
            problems.add(f"_run.json records other {' and '.join(differing)} of the shard than its table")
        table = check_whole(self.run, stem, facts, problems)
        if table is None:
            return 0
        try:
            check_scores(table, metadata, problems)
        except (NoisegateError, TypeError, KeyError) as error:
            problems.add(f"the table's record of β or calibration cannot be read: {error}")
            return len(table)
        if embeddings:
            check_embeddings(self.run.embeddings(stem), table, facts, problems)
        check_digests(self.run, stem, metadata, problems)
        if arrays:
            check_array(Path(entry["url"]), self.run.embeddings(stem), table, facts, problems)
            return len(table)
        scored = np.flatnonzero(pc.equal(table["status"], "ok").to_numpy(zero_copy_only=False))
        rows = {int(scored[place]) for place in drawn if place < len(scored)}
        path = self.run.embeddings(stem)
        take = (
            self.rescoring.open_table(table, rows, metadata, path, problems)
            if self.rescoring
            else lambda row, raw: None
        )
        check_shard(Shard(entry["url"]), table, metadata, problems, take, self.progress.advance)
        return len(table)


def _name(entry: Mapping[str, Any]) -> str:
    return str(entry["url"]).split("?")[0].rstrip("/").rpartition("/")[2] or str(entry["table"])


def _value(beta: Mapping[str, Any] | None) -> str:
    return "none" if beta is None else f"{beta['value']:.6g}, {beta['mode']}"
