"""Label scores of a whole run: neighbours, anchors and an out-of-fold probe, TANGO's columns and the fused ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .anchors import Anchors
from .consistency import anchor_consistency, refine, visual_consistency
from .errors import ConfigError
from .estimators.device import Device
from .fusion import Fused, fuse
from .neighbours import Neighbours, default_k, near_duplicates
from .probe import probe_probabilities

__all__ = ["LabelScores", "count_classes", "score_labels"]

MAX_CLASSES = 25_000  # every sample gets a number for each
NEAR = 50  # a second, closer neighbourhood for the fused score

Rows = Sequence[NDArray[np.floating[Any]]]


@dataclass(frozen=True)
class LabelScores:
    """One entry per sample in each column (NaN, -1 or False without a label), flags as masks, and what was learned."""

    columns: dict[str, NDArray[Any]]
    flags: dict[str, NDArray[np.bool_]]
    fused: Fused
    k: int
    classes: int

    def facts(self) -> dict[str, Any]:
        """What the tables record about these scores."""
        return {"k": self.k, "classes": self.classes, **self.fused.facts()}


def count_classes(labels: NDArray[np.int64], anchors: Anchors | None) -> int:
    """The number of classes: the anchors' where there are some, else the largest label plus one."""
    largest = int(labels.max(initial=-1)) + 1
    if largest == 0:
        raise ConfigError("task labels: no sample has a label; the shards need a part cls or a json field label")
    if anchors is None:
        if largest > MAX_CLASSES:
            raise ConfigError(
                f"labels: {largest - 1:,} is the largest, which makes {largest:,} classes; number them 0, 1, 2, …, "
                f"at most {MAX_CLASSES:,}"
            )
        return largest
    if largest > len(anchors.names):
        raise ConfigError(
            f"classes: {len(anchors.names)} are named, but a sample has label {largest - 1}; add the missing names"
        )
    return len(anchors.names)


def score_labels(
    images: Rows,
    labels: NDArray[np.int64],
    neighbours: Neighbours,
    anchors: Anchors | None = None,
    *,
    duplicate_cosine: float = 0.985,
    seed: int = 0,
    device: str = "auto",
) -> LabelScores:
    """Score every label. `images` are row blocks (N, d); `labels` (N,), -1 for none; `neighbours` is their graph.

    The probe is trained on `device`. Raises ConfigError for anchors that do not fit the images or the labels.
    """
    classes = count_classes(labels, anchors)
    if anchors is not None and anchors.embeddings.shape[1] != images[0].shape[1]:
        raise ConfigError(
            f"anchors have {anchors.embeddings.shape[1]} numbers, the images {images[0].shape[1]}; use one model for both"
        )
    duplicates = near_duplicates(neighbours, duplicate_cosine)
    tango = refine(
        labels,
        classes,
        neighbours=neighbours,
        images=images,
        anchors=anchors.embeddings if anchors else None,
        anchor_labels=anchors.labels if anchors else None,
    )
    usable = np.where(tango.invalid, -1, labels)
    matrix = np.concatenate([np.asarray(block, np.float32) for block in images])
    lists = neighbours.indices
    sources = {"neighbours": _votes(lists, usable, classes, duplicates)}
    if lists.shape[1] > NEAR:
        sources["near neighbours"] = _votes(lists[:, :NEAR], usable, classes, duplicates)
    place = Device.choose(device).name
    sources["probe"] = probe = probe_probabilities(matrix, usable, classes, seed=seed, device=place)
    if anchors is not None:
        sources["anchors"] = anchor_consistency(images, anchors.embeddings, anchors.labels, classes)
    fused = fuse(sources, usable, classes, label_free={"anchors"}, seed=seed)
    known = usable >= 0
    at_label = np.where(known, probe[np.arange(len(usable)), np.maximum(usable, 0)], np.nan)
    return LabelScores(
        columns={
            "knn_consistency": tango.p_vis,
            "anchor_consistency": tango.p_sem,
            "consistency": tango.consistency,
            "clean_tango": tango.clean_tango,
            "probe_consistency": at_label,
            "label_quality": fused.label_quality,
            "clean_probability": fused.clean_probability,
            "clean": fused.clean,
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


def _votes(
    lists: NDArray[np.integer[Any]], labels: NDArray[np.int64], classes: int, duplicates: NDArray[np.int64]
) -> NDArray[np.float32]:
    """p_vis (N, C), NaN where no labelled neighbour speaks: the row's own label must not speak for itself."""
    votes = visual_consistency(lists, labels, classes, duplicates=duplicates)
    votes[~((lists >= 0) & (labels[lists] >= 0)).any(axis=1)] = np.nan
    return votes


def neighbours_wanted(count: int, classes: int, k: int | None) -> int:
    """k as asked for, or by the size of the data."""
    if k is not None and k < 1:
        raise ConfigError(f"k {k} is no number of neighbours; use 50, or leave it out")
    return k if k is not None else max(1, default_k(count, classes))
