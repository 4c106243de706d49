"""Learn the scores of a run from all its rows: β and calibration of pairs, labels, neighbourhoods, duplicates."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from noisegate.pipeline.labels.anchors import Anchors
from noisegate.pipeline.neighbours import NeighbourSearch, near_duplicates
from noisegate.pipeline.neighbours.kept_graph import find_or_build_graph, nearest
from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.pairs.neighbourhood_scoring import NEIGHBOURS, score_neighbourhood
from noisegate.pipeline.pairs.pair_fit import PairFit, fit_pairs
from noisegate.pipeline.runs.mapped_rows import MappedRows
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.settings import ScoreSettings

from .columns import RunScores

DUPLICATE_COSINE = 0.985  # images at least this similar are flagged as near duplicates
ROWS_AT_ONCE = 16_384


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
    """Learn all scores of an encoded run. No table is changed (see `write_scores`); neighbour graphs are kept in the folder.

    `random_inputs` measures the model's own β; `search` says in how much memory and by which processes to search neighbours.
    """
    pairs = None
    if not stems:  # no shard could be read; the summary says so
        return RunScores()
    if "pairs" in settings.tasks and settings.joint:
        pairs = fit_pairs(run, stems, settings.beta, random_inputs, settings.seed)
    if "labels" in settings.tasks or settings.neighbourhood:
        return _learn_with_neighbours(run, stems, settings, pairs, anchors, device, search, note)
    return RunScores(pairs)


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
    """Learn what needs the neighbour graph: labels, and the neighbourhoods of pairs."""
    images = MappedRows.of_run(run, stems, "image")
    if not _has_embeddings(images):
        return RunScores(pairs)  # every sample failed, and its row says why
    given = np.concatenate([_read_labels(run, stem) for stem in stems])
    around = min(settings.k or NEIGHBOURS, NEIGHBOURS)
    labels = neighbourhood = None
    if "labels" in settings.tasks:
        from noisegate.pipeline.labels.scoring import choose_k, count_classes, score_labels  # brings torch

        k = choose_k(int((given >= 0).sum()), count_classes(given, anchors), settings.k)
        graph = find_or_build_graph(
            run, stems, images, max(k, around) if settings.neighbourhood else k, device, search, note
        )
        note("labels: neighbours, anchors and an out-of-fold probe")
        labels = score_labels(
            images,
            given,
            nearest(graph, k),
            anchors,
            duplicate_cosine=DUPLICATE_COSINE,
            seed=settings.seed,
            device=device,
        )
    else:
        graph = find_or_build_graph(run, stems, images, settings.k or NEIGHBOURS, device, search, note)
    if settings.neighbourhood:
        texts = MappedRows.of_run(run, stems, "text")
        near_texts = (
            find_or_build_graph(run, stems, texts, around, device, search, note) if _has_embeddings(texts) else None
        )
        cosines = None if pairs is None else np.concatenate([_read_cosines(run, stem) for stem in stems])
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


def _has_embeddings(rows: MappedRows) -> bool:
    """Whether any row could be embedded."""
    return any(block.any() for _, block in rows.chunks(ROWS_AT_ONCE))


def _read_cosines(run: RunFolder, stem: str) -> NDArray[np.float32]:
    cosines: NDArray[np.float32] = run.read(stem, ["similarity"])["similarity"].to_numpy().astype(np.float32)
    return cosines


def _read_labels(run: RunFolder, stem: str) -> NDArray[np.int64]:
    """Given classes (N,), -1 for samples without one and for failed samples."""
    table = run.read(stem, ["status", "label"])
    ok = pc.equal(table["status"], "ok").to_numpy()
    given = pc.fill_null(table["label"].cast(pa.int64()), -1).to_numpy()
    return np.where(ok, given, -1)
