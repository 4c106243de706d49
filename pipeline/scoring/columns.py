"""The score columns of a run's tables."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from noisegate.pipeline.pairs.pair_fit import PairFit
from noisegate.pipeline.pairs.scorer import pair_columns
from noisegate.pipeline.runs.columns import SCORE_COLUMNS
from noisegate.pipeline.runs.table import RunFolder, read_metadata, replace_columns

if TYPE_CHECKING:
    from noisegate.pipeline.labels.scoring import LabelScores
    from noisegate.pipeline.pairs.neighbourhood_scoring import NeighbourhoodScores

LEARNED_FLAGS = ("no_neighbours", "indegree0", "unpicked")  # flags that label scoring sets


@dataclass(frozen=True)
class RunScores:
    """Everything learned from a run, for its tables and its summary; None for what the settings do not ask for."""

    pairs: PairFit | None = None
    labels: "LabelScores | None" = None
    neighbourhood: "NeighbourhoodScores | None" = None
    duplicate_of: NDArray[np.int64] | None = None  # (N,) row of the image's near duplicate, -1 for none

    def metadata(self) -> dict[str, Any]:
        """What each table records about its scores."""
        return {
            "beta": self.pairs.beta.to_dict() if self.pairs else None,
            "calibration": self.pairs.calibration.to_dict() if self.pairs and self.pairs.calibration else None,
            "labels": self.labels.facts() if self.labels else None,
            "neighbourhood": self.neighbourhood.facts() if self.neighbourhood else None,
            "scores": self._digest(),
        }

    def _digest(self) -> str:
        """Digest of all columns that depend on the whole run, so that a table shows whether it has exactly these."""
        digest = hashlib.sha256()
        columns = self.labels.columns | self.labels.flags if self.labels else {}
        if self.neighbourhood:
            columns = columns | {"neighbourhood": self.neighbourhood.agreement}
        if self.duplicate_of is not None:
            columns = columns | {"duplicate_of": self.duplicate_of}
        for name in sorted(columns):
            digest.update(name.encode() + np.ascontiguousarray(columns[name]).tobytes())
        return digest.hexdigest()[:16]


def write_scores(run: RunFolder, stems: Sequence[str], scores: RunScores) -> None:
    """Write the scores into every table that does not have exactly these already."""
    wanted = scores.metadata()
    keys = _KeyFinder(run, stems)
    start = 0
    for stem in stems:
        metadata = read_metadata(run.table(stem))
        rows = slice(start, start + metadata["shard"]["rows"])
        start = rows.stop
        recorded = {name: metadata.get(name) for name in wanted}
        if json.dumps(recorded, sort_keys=True) == json.dumps(wanted, sort_keys=True):
            continue
        table = run.read(stem)
        run.write_table(stem, replace_columns(table, _columns(table, scores, rows, keys), metadata | wanted))


def _columns(table: pa.Table, scores: RunScores, rows: slice, keys: "_KeyFinder") -> dict[str, Any]:
    """All score columns of one table; null for scores that were not learned."""
    columns: dict[str, Any] = {name: pa.nulls(len(table), kind) for name, kind in SCORE_COLUMNS.items()}
    ok = pc.equal(table["status"], "ok").to_numpy()
    if scores.pairs:
        columns |= pair_columns(table, scores.pairs.beta, scores.pairs.calibration)
    if scores.neighbourhood:
        columns |= scores.neighbourhood.table_columns(rows, ok, _probability(columns))
    if scores.labels:
        columns |= _label_columns(columns, scores.labels, rows)
    columns["flags"] = _flags(table, scores, rows, keys)
    return columns


def _label_columns(before: dict[str, Any], labels: "LabelScores", rows: slice) -> dict[str, Any]:
    """Label columns; a sample with a judged pair is clean if both are, with the smaller of the two probabilities."""
    known = np.isfinite(labels.columns["label_quality"][rows])
    columns: dict[str, Any] = {}
    for name, values in labels.columns.items():
        part = values[rows]
        columns[name] = part if part.dtype.kind == "f" else pa.array(part, mask=~known)
    refined = labels.columns["refined_label"][rows]
    columns["refined_label"] = pa.array(refined, mask=refined < 0)  # samples without a label have a likeliest one too
    pair_known = before["clean"].is_valid().to_numpy(zero_copy_only=False)
    pair_clean = before["clean"].fill_null(True).to_numpy(zero_copy_only=False)
    clean = np.where(known, labels.columns["clean"][rows], True) & pair_clean
    columns["clean"] = pa.array(clean, mask=~(known | pair_known))
    columns["clean_probability"] = np.fmin(columns["clean_probability"], _probability(before))
    return columns


def _probability(columns: dict[str, Any]) -> NDArray[np.float32]:
    """`clean_probability` so far, NaN for none."""
    return np.asarray(columns["clean_probability"], np.float32)


def _flags(table: pa.Table, scores: RunScores, rows: slice, keys: "_KeyFinder") -> list[list[str]]:
    """Flags of reading, then those of this scoring; flags of an earlier scoring are dropped."""
    kept = [
        [f for f in flags or [] if f not in LEARNED_FLAGS and not f.startswith("duplicate_of:")]
        for flags in table["flags"].to_pylist()
    ]
    for name, mask in (scores.labels.flags if scores.labels else {}).items():
        for i in np.flatnonzero(mask[rows]):
            kept[i].append(name)
    if scores.duplicate_of is not None:
        for i in np.flatnonzero(scores.duplicate_of[rows] >= 0):
            kept[i].append(f"duplicate_of:{keys(int(scores.duplicate_of[rows][i]), rows.start)}")
    return kept


class _KeyFinder:
    """Finds the key of a row of the whole run, prefixed with `SHARD/` if it is in another shard than the flagged row.

    Keys may repeat across shards. The keys of each table are read once.
    """

    def __init__(self, run: RunFolder, stems: Sequence[str]) -> None:
        self._run, self._stems = run, list(stems)
        self._ends = np.cumsum([pq.read_metadata(run.table(stem)).num_rows for stem in stems])
        self._keys: dict[int, pa.ChunkedArray] = {}

    def __call__(self, row: int, flagged_row: int) -> str:
        shard, flagged_shard = np.searchsorted(self._ends, [row, flagged_row], side="right").tolist()
        if shard not in self._keys:
            self._keys[shard] = self._run.read(self._stems[shard], ["key"])["key"]
        key: str = self._keys[shard][row - (int(self._ends[shard - 1]) if shard else 0)].as_py()
        return key if shard == flagged_shard else f"{self._stems[shard]}/{key}"
