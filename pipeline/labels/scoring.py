"""Score the labels of a whole run: TANGO's columns from neighbours and anchors, a probe, and the fused opinion."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators.device import Device
from noisegate.pipeline.neighbours import Neighbours, default_k, near_duplicates
from noisegate.pipeline.runs.rows import Embeddings, Rows, as_rows

from .anchors import Anchors
from .fusion import Fused, Posterior, fuse
from .probe import TRAINED, fit_probe
from .repair import RepairPolicy
from .tango import refine
from .tango.semantic import AnchorVotes
from .tango.visual import VisualVotes, chunk_rows

MAX_CLASSES = 25_000  # every sample gets a probability for each class
NEAR = 50  # neighbours in a second, smaller neighbourhood for the fused score
HELD = 50_000_000  # most numbers (rows x classes) of a source kept in memory; with more, they are computed when needed


@dataclass(frozen=True)
class LabelScores:
    """One entry per sample in each column (NaN, -1 or False without a label), flags as masks, and what was learned."""

    columns: dict[str, NDArray[Any]]
    flags: dict[str, NDArray[np.bool_]]
    fused: Fused
    k: int
    classes: int

    def facts(self) -> dict[str, Any]:
        """Return the facts that the tables record about these scores."""
        return {"k": self.k, "classes": self.classes, **self.fused.facts()}


def count_classes(labels: NDArray[np.int64], anchors: Anchors | None) -> int:
    """The number of classes: the anchors' where there are some, else the largest label plus one."""
    largest = int(labels.max(initial=-1)) + 1
    if largest == 0:
        raise ConfigError(
            "task labels: no sample has a label; the shards need a part cls or a json field label, arrays class numbers",
            "task",
            "labels",
        )
    if anchors is None:
        if largest > MAX_CLASSES:
            raise ConfigError(
                f"labels: {largest - 1:,} is the largest, which makes {largest:,} classes; number them 0, 1, 2, …, "
                f"at most {MAX_CLASSES:,}",
                "labels",
                largest - 1,
            )
        return largest
    if largest > len(anchors.names):
        raise ConfigError.of(
            "classes",
            len(anchors.names),
            f"are named, but a sample has label {largest - 1}; add the missing names, or number the labels 0, 1, 2, …",
        )
    return len(anchors.names)


def score_labels(
    images: Embeddings,
    labels: NDArray[np.int64],
    neighbours: Neighbours,
    anchors: Anchors | None = None,
    *,
    duplicate_cosine: float = 0.985,
    seed: int = 0,
    device: str = "auto",
    held: int = HELD,
    trained: int = TRAINED,
    policy: RepairPolicy | None = None,
) -> LabelScores:
    """Score every label. `images` (N, d); `labels` (N,), -1 for none; `neighbours` is their graph.

    The probe is trained on `device`, on at most `trained` numbers. At most `held` numbers of each source are in memory.
    Raises ConfigError for anchors that do not fit the images or the labels.
    """
    classes, rows = count_classes(labels, anchors), as_rows(images, "images")
    if anchors is not None and anchors.embeddings.shape[1] != rows.width:
        width = anchors.embeddings.shape[1]
        raise ConfigError(
            f"anchors have {width} numbers, the images {rows.width}; use one model for both", "anchors", width
        )
    duplicates = near_duplicates(neighbours, duplicate_cosine)
    tango = refine(
        labels,
        classes,
        neighbours=neighbours,
        images=rows,
        anchors=anchors.embeddings if anchors else None,
        anchor_labels=anchors.labels if anchors else None,
    )
    usable = np.where(tango.invalid, -1, labels)
    sources = label_sources(
        rows, usable, classes, neighbours, anchors, duplicates, seed=seed, device=device, trained=trained
    )
    if len(usable) * classes <= held:
        sources = {name: source(np.arange(len(usable))).__getitem__ for name, source in sources.items()}
    fused = fuse(sources, usable, classes, policy=policy, seed=seed)
    known = usable >= 0
    probe_consistency = np.full(len(usable), np.nan, np.float32)
    for part in chunk_rows(len(usable), classes):
        some = np.arange(part.start, part.stop)[known[part]]
        probe_consistency[some] = sources["probe"](some)[np.arange(len(some)), usable[some]]
    return LabelScores(
        columns={
            "knn_consistency": tango.p_vis,
            "anchor_consistency": tango.p_sem,
            "consistency": tango.consistency,
            "clean_tango": tango.clean_tango,
            "probe_consistency": probe_consistency,
            "label_quality": fused.label_quality,
            "clean_probability": fused.label_quality,
            "clean": fused.clean,
            "predicted_label": fused.predicted_label,
            "predicted_confidence": fused.predicted_confidence,
            "refined_label": fused.refined_label,
            "refined_confidence": fused.refined_confidence,
        },
        flags={
            name: getattr(tango, name) & known
            for name in ("no_neighbours", "indegree0", *(["unpicked"] if anchors else []))
        },
        fused=fused,
        k=neighbours.indices.shape[1],
        classes=classes,
    )


def label_sources(
    images: Rows,
    labels: NDArray[np.int64],
    classes: int,
    neighbours: Neighbours,
    anchors: Anchors | None,
    duplicates: NDArray[np.int64],
    *,
    seed: int = 0,
    device: str = "auto",
    trained: int = TRAINED,
) -> dict[str, Posterior]:
    """The class predictions that are fused, by name; none of them has seen the label of the row it predicts."""
    lists = neighbours.indices
    sources = {"neighbours": _neighbour_posterior(lists, labels, classes, duplicates)}
    if lists.shape[1] > NEAR:
        sources["near neighbours"] = _neighbour_posterior(lists[:, :NEAR], labels, classes, duplicates)
    sources["probe"] = fit_probe(images, labels, classes, seed=seed, device=Device.choose(device).name, most=trained)
    if anchors is not None:
        sources["anchors"] = _anchor_posterior(AnchorVotes.of(anchors.embeddings, anchors.labels, classes), images)
    return sources


def _neighbour_posterior(
    lists: NDArray[np.integer[Any]], labels: NDArray[np.int64], classes: int, duplicates: NDArray[np.int64]
) -> Posterior:
    """p_vis (R, C) of rows; NaN without a labelled neighbour, because a row's own label must not vote for itself."""
    votes = VisualVotes.of(lists, labels, classes, duplicates)

    def of(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        shares = np.empty((len(rows), classes), np.float32)
        for part in chunk_rows(len(rows), max(classes, lists.shape[1])):
            shares[part], alone = votes.shares(lists[rows[part]])
            shares[part][alone] = np.nan
        return shares

    return of


def _anchor_posterior(votes: AnchorVotes, images: Rows) -> Posterior:
    """p_sem (R, C) of rows."""

    def of(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        shares = np.empty((len(rows), votes.classes), np.float32)
        for start in range(0, len(rows), votes.chunk):
            part = slice(start, start + votes.chunk)
            shares[part] = votes.consistency(images.take(rows[part]))
        return shares

    return of


def choose_k(count: int, classes: int, k: int | None) -> int:
    """The number of neighbours: k if given, else by the size of the data."""
    if k is not None and k < 1:
        raise ConfigError.of("k", k, "is no number of neighbours; use 50, or leave it out")
    return k if k is not None else max(1, default_k(count, classes))
