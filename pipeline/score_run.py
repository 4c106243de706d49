"""Second half of a run, all of it: pairs, labels and neighbourhoods, from tables and kept embeddings to scores.

Used by `annotate` when every shard is encoded, by `rescore` with other settings, and by `score-embeddings`.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .errors import ConfigError
from .labels.anchors import Anchors
from .neighbours import Neighbours, NeighbourSearch, find_neighbours_on_disk, near_duplicates
from .pairs.beta import Beta, check_mode
from .pairs.pair_fit import PairFit, fit_pairs
from .pairs.scorer import pair_columns
from .runs.mapped_rows import MappedRows
from .runs.table import SCORE_COLUMNS, RunFolder, read_metadata, replace_columns, search_folder

if TYPE_CHECKING:
    from .labels.scoring import LabelScores
    from .pairs.neighbourhood_scoring import NeighbourhoodScores

__all__ = ["RunScores", "ScoreSettings", "learn_scores", "score_run", "write_scores"]

DUPLICATE_COSINE = 0.985
ROWS_AT_ONCE = 16_384
LEARNED_FLAGS = ("no_neighbours", "indegree0", "unpicked")


@dataclass(frozen=True)
class ScoreSettings:
    """What to compute. `k` None chooses by the size of the data; `neighbourhood` costs a neighbour search of both sides.

    Without `joint` images and texts are of unrelated encoders, so that their cosine means nothing.
    """

    beta: str = "auto"
    tasks: tuple[str, ...] = ("pairs",)
    k: int | None = None
    neighbourhood: bool = False
    seed: int = 0
    joint: bool = True

    def __post_init__(self) -> None:
        check_mode(self.beta)
        if self.k is not None and self.k < 1:
            raise ConfigError(f"k {self.k} is no number of neighbours; use 50, or leave it out")
        if self.seed < 0:
            raise ConfigError(f"seed {self.seed} is negative; use 0 or more")
        if "pairs" in self.tasks and not self.joint and not self.neighbourhood:
            raise ConfigError(
                "images and texts of two encoders have only neighbourhoods to compare; use --neighbourhood"
            )

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"tasks": list(self.tasks)}


@dataclass(frozen=True)
class RunScores:
    """Everything that was learned from a run, for its tables and its summary."""

    pairs: PairFit | None
    labels: "LabelScores | None"
    neighbourhood: "NeighbourhoodScores | None"
    duplicate_of: NDArray[np.int64] | None

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
        """Of all columns that depend on the whole run, so that a table knows whether it has exactly these."""
        digest = hashlib.sha256()
        columns = self.labels.columns | self.labels.flags if self.labels else {}
        if self.neighbourhood:
            columns = columns | {"neighbourhood": self.neighbourhood.agreement}
        if self.duplicate_of is not None:
            columns = columns | {"duplicate_of": self.duplicate_of}
        for name in sorted(columns):
            digest.update(name.encode() + np.ascontiguousarray(columns[name]).tobytes())
        return digest.hexdigest()[:16]


def score_run(
    run: RunFolder,
    stems: Sequence[str],
    settings: ScoreSettings,
    *,
    random_inputs: Callable[[], Beta] | None = None,
    anchors: Anchors | None = None,
    device: str = "auto",
    search: NeighbourSearch | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> RunScores:
    """Learn all scores of an encoded run and write them into its tables."""
    scores = learn_scores(
        run,
        stems,
        settings,
        random_inputs=random_inputs,
        anchors=anchors,
        device=device,
        search=search,
        note=note,
    )
    write_scores(run, stems, scores)
    return scores


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
) -> RunScores:
    """The first half of `score_run`: no table is changed, whatever goes wrong. The neighbour graphs are kept for later.

    `search` says how neighbours are searched: in how much memory, and by whom.
    """
    pairs = None
    if not stems:  # no shard could be read, which is what the summary will say
        return RunScores(None, None, None, None)
    if "pairs" in settings.tasks and settings.joint:
        pairs = fit_pairs(run, stems, settings.beta, random_inputs, settings.seed)
    if "labels" in settings.tasks or settings.neighbourhood:
        return _learn_with_neighbours(run, stems, settings, pairs, anchors, device, search, note)
    return RunScores(pairs, None, None, None)


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
    """What needs the neighbour graph: labels, and the neighbourhoods of pairs."""
    from .pairs.neighbourhood_scoring import NEIGHBOURS, score_neighbourhood

    images = MappedRows.of_run(run, stems, "image")
    if not _any(images):
        return RunScores(pairs, None, None, None)  # every sample failed, and its row says why
    given = np.concatenate([_labels(run, stem) for stem in stems])
    around = min(settings.k or NEIGHBOURS, NEIGHBOURS)
    labels = neighbourhood = None
    if "labels" in settings.tasks:
        from .labels.scoring import count_classes, neighbours_wanted, score_labels  # brings torch

        k = neighbours_wanted(int((given >= 0).sum()), count_classes(given, anchors), settings.k)
        graph = kept_graph(run, stems, images, max(k, around) if settings.neighbourhood else k, device, search, note)
        note("labels: neighbours, anchors and an out-of-fold probe")
        labels = score_labels(
            images,
            given,
            _nearest(graph, k),
            anchors,
            duplicate_cosine=DUPLICATE_COSINE,
            seed=settings.seed,
            device=device,
        )
    else:
        graph = kept_graph(run, stems, images, settings.k or NEIGHBOURS, device, search, note)
    if settings.neighbourhood:
        texts = MappedRows.of_run(run, stems, "text")
        near_texts = kept_graph(run, stems, texts, around, device, search, note) if _any(texts) else None
        cosines = None if pairs is None else np.concatenate([_similarity(run, stem) for stem in stems])
        neighbourhood = score_neighbourhood(
            images,
            texts,
            graph,
            near_texts,
            around,
            settings.seed,
            cosines,
            decides="pairs" in settings.tasks,
        )
    return RunScores(pairs, labels, neighbourhood, near_duplicates(graph, DUPLICATE_COSINE))


def kept_graph(
    run: RunFolder,
    stems: Sequence[str],
    rows: MappedRows,
    k: int,
    device: str,
    search: NeighbourSearch | None,
    note: Callable[[str], None],
) -> Neighbours:
    """The neighbour graph of the run's rows, kept in its folder and reused while nothing changed.

    The lists of an exact search begin with those of a smaller k. A search that was stopped goes on.
    """
    search = search or NeighbourSearch()
    k = min(k, max(1, len(rows) - 1))
    path = run.path / ("neighbours.safetensors" if rows.tensor == "image" else "text_neighbours.safetensors")
    shards = {stem: read_metadata(run.table(stem))["shard"] for stem in stems}
    kept = _kept(path)
    lengths = [k, kept.k] if kept and kept.kind == "flat" and kept.k > k else [k]
    digests = [hashlib.sha256(json.dumps([shards, length], sort_keys=True).encode()) for length in lengths]
    for _, block in rows.chunks(ROWS_AT_ONCE):
        for digest in digests:
            digest.update(block.data)
    if search.index != "auto":
        for digest in digests:
            digest.update(search.index.encode())
    made_from = digests[0].hexdigest()
    of = "neighbours" if rows.tensor == "image" else "neighbours of texts"
    if kept and kept.made_from == digests[-1].hexdigest():
        note(f"{of}: the graph is there already")
        shutil.rmtree(search_folder(path), ignore_errors=True)  # killed after its last step
        return _nearest(Neighbours.load(path), k)
    note(f"{of}: searching {len(rows):,} rows, k = {k}")
    return find_neighbours_on_disk(
        rows,
        k,
        path,
        made_from=made_from,
        search=search,
        device=device,
        note=note,
    )


def _any(rows: MappedRows) -> bool:
    """Whether anything could be embedded."""
    return any(block.any() for _, block in rows.chunks(ROWS_AT_ONCE))


def _nearest(graph: Neighbours, k: int) -> Neighbours:
    """The graph of the k nearest, of one that lists as many or more."""
    return replace(graph, indices=graph.indices[:, :k], similarities=graph.similarities[:, :k])


class _Kept(NamedTuple):
    """A graph in a file: what it was made from, how, and the length of its lists."""

    made_from: str | None
    kind: str | None
    k: int


def _kept(path: Path) -> _Kept | None:
    """None where there is no whole graph."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            facts = file.metadata() or {}
            return _Kept(facts.get("made_from"), facts.get("kind"), file.get_slice("indices").get_shape()[1])
    except (OSError, SafetensorError):
        return None


def _similarity(run: RunFolder, stem: str) -> NDArray[np.float32]:
    cosines: NDArray[np.float32] = run.read(stem, ["similarity"])["similarity"].to_numpy().astype(np.float32)
    return cosines


def _labels(run: RunFolder, stem: str) -> NDArray[np.int64]:
    table = run.read(stem, ["status", "label"])
    ok = pc.equal(table["status"], "ok").to_numpy()
    given = pc.fill_null(table["label"].cast(pa.int64()), -1).to_numpy()
    return np.where(ok, given, -1)


def write_scores(run: RunFolder, stems: Sequence[str], scores: RunScores) -> None:
    """Put the scores into every table that does not have exactly these already."""
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
    """All score columns of one table; what the settings do not ask for becomes null."""
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
    """Label columns; where the pair was judged too, a sample is clean when both are, and as likely as the worse of them."""
    known = np.isfinite(labels.columns["label_quality"][rows])
    found: dict[str, Any] = {}
    for name, values in labels.columns.items():
        part = values[rows]
        found[name] = part if part.dtype.kind == "f" else pa.array(part, mask=~known)
    refined = labels.columns["refined_label"][rows]
    found["refined_label"] = pa.array(refined, mask=refined < 0)  # a sample without a label has a likeliest one too
    pair_known = before["clean"].is_valid().to_numpy(zero_copy_only=False)
    pair_clean = before["clean"].fill_null(True).to_numpy(zero_copy_only=False)
    clean = np.where(known, labels.columns["clean"][rows], True) & pair_clean
    found["clean"] = pa.array(clean, mask=~(known | pair_known))
    found["clean_probability"] = np.fmin(found["clean_probability"], _probability(before))
    return found


def _probability(columns: dict[str, Any]) -> NDArray[np.float32]:
    """`clean_probability` so far, NaN for none."""
    return np.asarray(columns["clean_probability"], np.float32)


def _flags(table: pa.Table, scores: RunScores, rows: slice, keys: "_KeyFinder") -> list[list[str]]:
    """What reading noted, then what scoring found; flags of an earlier scoring go."""
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
    """The name of a global row: its key, after its shard where that is another than the asking row's.

    Keys may repeat across shards. Tables are read once, and their keys kept as they are stored.
    """

    def __init__(self, run: RunFolder, stems: Sequence[str]) -> None:
        self._run, self._stems = run, list(stems)
        self._ends = np.cumsum([pq.read_metadata(run.table(stem)).num_rows for stem in stems])
        self._keys: dict[int, pa.ChunkedArray] = {}

    def __call__(self, row: int, asking: int) -> str:
        place, here = np.searchsorted(self._ends, [row, asking], side="right").tolist()
        if place not in self._keys:
            self._keys[place] = self._run.read(self._stems[place], ["key"])["key"]
        key: str = self._keys[place][row - (int(self._ends[place - 1]) if place else 0)].as_py()
        return key if place == here else f"{self._stems[place]}/{key}"


def anchors_file(run: RunFolder) -> Path:
    """Where a run keeps its text anchors."""
    return run.path / "anchors.safetensors"
