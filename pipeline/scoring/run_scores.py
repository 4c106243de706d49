"""Learn a run's scores from all its rows: β and calibration of pairs, labels, neighbourhoods, duplicates; and write them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from noisegate.pipeline.labels.anchors import Anchors
from noisegate.pipeline.labels.repair import RepairPolicy
from noisegate.pipeline.neighbours import NeighbourSearch, near_duplicates
from noisegate.pipeline.neighbours.disk_search import find_or_build_graph
from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.pairs.calibration import LIKELY, QUALITY
from noisegate.pipeline.pairs.neighbourhood import NEIGHBOURS, NeighbourhoodScores, score_neighbourhood
from noisegate.pipeline.pairs.pair_fit import PairFit, fit_pairs, read_pair_fit
from noisegate.pipeline.pairs.pair_pool import RECORD, RunPool
from noisegate.pipeline.pairs.scorer import pair_columns
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.rows import MappedRows
from noisegate.pipeline.runs.table import SCORE_COLUMNS, RunFolder, digest_columns, read_metadata, replace_columns
from noisegate.pipeline.settings import ScoreSettings

LEARNED_FLAGS = ("no_neighbours", "indegree0", "unpicked")  # flags that label scoring sets
DUPLICATE_COSINE = 0.985  # images at least this similar are flagged as near duplicates
ROWS_AT_ONCE = 16_384


if TYPE_CHECKING:
    from noisegate.pipeline.labels.scoring import LabelScores


@dataclass(frozen=True)
class RunScores:
    """Everything learned from a run, for its tables and its summary; None for scores that the settings leave out."""

    pairs: PairFit | None = None
    labels: "LabelScores | None" = None
    neighbourhood: NeighbourhoodScores | None = None
    duplicate_of: NDArray[np.int64] | None = None  # (N,) row of the image's near duplicate, -1 for none

    def record(self) -> dict[str, Any]:
        """Return the record of pair scores for `_run.json`: β, and the score that P(clean) comes from."""
        calibration = self.pairs.calibration if self.pairs else None
        return {
            "beta": self.pairs.beta.to_dict() if self.pairs else None,
            "judged_by": calibration.score if calibration else None,
        }

    def metadata(self) -> dict[str, Any]:
        """Return the metadata that each table records about its scores."""
        columns = self.labels.columns | self.labels.flags if self.labels else {}
        if self.neighbourhood:
            columns = columns | {"neighbourhood": self.neighbourhood.agreement}
        if self.duplicate_of is not None:
            columns = columns | {"duplicate_of": self.duplicate_of}
        return {
            "beta": self.pairs.beta.to_dict() if self.pairs else None,
            "calibration": self.pairs.calibration.to_dict() if self.pairs and self.pairs.calibration else None,
            RECORD: self.pairs.quality if self.pairs else None,
            "cut": self.pairs.cut if self.pairs else None,
            "labels": self.labels.facts() if self.labels else None,
            "neighbourhood": self.neighbourhood.facts() if self.neighbourhood else None,
            "scores": digest_columns(columns),
        }


def write_scores(run: RunFolder, stems: Sequence[str], scores: RunScores) -> None:
    """Write the scores into every table, unless it has exactly these scores already."""
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
        run.write_table(stem, replace_columns(table, _columns(run, stem, table, scores, rows, keys), metadata | wanted))


def _columns(
    run: RunFolder, stem: str, table: pa.Table, scores: RunScores, rows: slice, keys: "_KeyFinder"
) -> dict[str, Any]:
    """Make all score columns of one table; null for scores that were not learned."""
    columns: dict[str, Any] = {name: pa.nulls(len(table), kind) for name, kind in SCORE_COLUMNS.items()}
    ok = pc.equal(table["status"], "ok").to_numpy()
    if scores.pairs:
        quality = columns["pair_quality"] = _pair_quality(run, stem, table, scores.pairs.pool)
        columns |= pair_columns(table, scores.pairs.beta, scores.pairs.calibration, quality, scores.pairs.cut)
    if scores.neighbourhood:
        columns |= scores.neighbourhood.table_columns(rows, ok, _probability(columns))
        if scores.pairs and scores.pairs.cut == "probability":
            chance = _probability(columns)
            columns["clean"] = pa.array(np.nan_to_num(chance) > LIKELY, mask=np.isnan(chance))
    if scores.labels:
        columns |= _label_columns(columns, scores.labels, rows)
    columns["flags"] = _flags(table, scores, rows, keys)
    return columns


def _pair_quality(run: RunFolder, stem: str, table: pa.Table, pool: RunPool | None) -> NDArray[np.float32]:
    """Compute column `pair_quality` of one table; without a pool its present values stay."""
    cosines = table["similarity"].to_numpy()
    if pool is None or np.isnan(cosines).all():
        return np.asarray(table["pair_quality"].to_numpy(), np.float32)
    images, texts = (read_embeddings(run.embeddings(stem), part) for part in ("image", "text"))
    quality = pool.quality(images, texts, cosines)
    return np.where(pc.equal(table["status"], "ok").to_numpy(), quality, np.float32(np.nan)).astype(np.float32)


def _label_columns(before: dict[str, Any], labels: "LabelScores", rows: slice) -> dict[str, Any]:
    """Make label columns; a sample with a judged pair is clean if both are, with the smaller of the two probabilities."""
    known = np.isfinite(labels.columns["label_quality"][rows])
    columns: dict[str, Any] = {}
    for name, values in labels.columns.items():
        part = values[rows]
        columns[name] = part if part.dtype.kind == "f" else pa.array(part, mask=~known)
    for name in ("predicted_label", "refined_label"):  # samples without a label have a predicted one too
        values = labels.columns[name][rows]
        columns[name] = pa.array(values, mask=values < 0)
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
    """List flags of reading, then flags of this scoring; flags of an earlier scoring are dropped."""
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
    """Find the key of a row of the whole run, prefixed with `SHARD/` if it is in another shard than the flagged row.

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


def learn_scores(
    run: RunFolder,
    stems: Sequence[str],
    settings: ScoreSettings,
    *,
    random_inputs: Callable[[], Beta] | None = None,
    anchors: Anchors | None = None,
    device: str = "auto",
    search: NeighbourSearch | None = None,
    note: Callable[[str], None] = lambda text: None,
    keep_embeddings: bool = True,
) -> RunScores:
    """Learn all scores of an encoded run. No table is changed (see `write_scores`); neighbour graphs are kept in the folder.

    `random_inputs` measures the model's own β; `search` says in how much memory and by which processes to search neighbours.
    Without `keep_embeddings`, P(clean) comes from the cosine, because there will be no pool to compare new pairs with.
    """
    pairs = None
    if not stems:  # no shard could be read; the summary says so
        return RunScores()
    if "pairs" in settings.tasks and settings.joint:
        pairs = fit_pairs(run, stems, settings, random_inputs, device, keep_embeddings)
    if "labels" in settings.tasks or settings.neighbourhood:
        return _learn_with_neighbours(run, stems, settings, pairs, anchors, device, search, note)
    return RunScores(pairs)


def read_scores(run: RunFolder, stems: Sequence[str], seed: int) -> RunScores:
    """Read the tables' record of pair scores, for a summary; raise MismatchError if the tables differ."""
    scored = stems and read_metadata(run.table(stems[0])).get("beta")
    return RunScores(read_pair_fit(run, stems, seed) if scored else None)


def _learn_with_neighbours(
    run: RunFolder,
    stems: Sequence[str],
    settings: ScoreSettings,
    pairs: PairFit | None,
    anchors: Anchors | None,
    device: str,
    search: NeighbourSearch | None,
    note: Callable[[str], None],
) -> RunScores:
    """Learn the scores that need the neighbour graph: labels, and the neighbourhoods of pairs."""
    images = MappedRows.of_run(run, stems, "image")
    if not _has_embeddings(images):
        return RunScores(pairs)  # every sample failed, and its row says why
    given = np.concatenate([_read_labels(run, stem) for stem in stems])
    build_graph = partial(find_or_build_graph, run, stems, device=device, search=search, note=note)
    around = min(settings.k or NEIGHBOURS, NEIGHBOURS)
    labels = neighbourhood = None
    if "labels" in settings.tasks:
        from noisegate.pipeline.labels.scoring import choose_k, count_classes, score_labels  # imports torch

        k = choose_k(int((given >= 0).sum()), count_classes(given, anchors), settings.k)
        graph = build_graph(images, max(k, around) if settings.neighbourhood else k)
        note(f"labels: neighbours{', anchors' if anchors else ''} and an out-of-fold probe")
        labels = score_labels(
            images,
            given,
            graph.nearest(k),
            anchors,
            duplicate_cosine=DUPLICATE_COSINE,
            seed=settings.seed,
            device=device,
            policy=RepairPolicy(settings.repair),
        )
    else:
        graph = build_graph(images, settings.k or NEIGHBOURS)
    if settings.neighbourhood:
        texts = MappedRows.of_run(run, stems, "text")
        near_texts = build_graph(texts, around) if _has_embeddings(texts) else None
        cosines = None
        if pairs is not None:
            columns = [run.read(stem, ["similarity"])["similarity"].to_numpy() for stem in stems]
            cosines = np.concatenate(columns).astype(np.float32)
        neighbourhood = score_neighbourhood(
            images, texts, graph, near_texts, around, settings.seed, cosines, decides="pairs" in settings.tasks
        )
        by_pairs = pairs.calibration if pairs else None
        fused = neighbourhood.calibration
        if by_pairs and fused and by_pairs.score == QUALITY and by_pairs.loss <= fused.loss:
            # pair_quality alone separates better than cosine and neighbours
            neighbourhood = replace(neighbourhood, weight=0.0)
    return RunScores(pairs, labels, neighbourhood, near_duplicates(graph, DUPLICATE_COSINE))


def _has_embeddings(rows: MappedRows) -> bool:
    """Whether any row could be embedded."""
    return any(block.any() for _, block in rows.chunks(ROWS_AT_ONCE))


def _read_labels(run: RunFolder, stem: str) -> NDArray[np.int64]:
    """Given classes (N,), -1 for samples without one and for failed samples."""
    table = run.read(stem, ["status", "label"])
    ok = pc.equal(table["status"], "ok").to_numpy()
    given = pc.fill_null(table["label"].cast(pa.int64()), -1).to_numpy()
    return np.where(ok, given, -1)
