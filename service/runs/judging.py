"""Judge a new sample's label by the shares that its neighbours (p_vis) and the class prompts (p_sem) give each class."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import BaseModel, Field

from noisegate.pipeline.labels import Anchors
from noisegate.pipeline.labels.tango import SAME, AnchorVotes, mix_sources, verdict
from noisegate.pipeline.system import Float32, Float64, Index


class Neighbour(BaseModel):
    """A neighbour of a posted sample in the run, and their cosine."""

    key: str
    shard: str
    index: int = Field(description="Its position in the shard.")
    similarity: float
    label: int | None


class Predicted(BaseModel):
    """A class with its probability by the class set's texts."""

    label: int
    name: str
    probability: float


@dataclass
class Judged:
    """The verdict on one sample; None for unknown. `status` is `bad_label` for a label that is not a class, else `ok`.

    Scores are those of the table (p_vis[y], p_sem[y], q[y] / max q, argmax q = y). `refined_label` is argmax q, and
    `refined_confidence` its value: a new sample is no row's neighbour, and for such samples TANGO's corrected label (1 - b)
    Y_vis + b Y_sem falls back to q. The table's column of that name also uses a probe and can differ.
    """

    status: str = "ok"
    error: str | None = None
    label: int | None = None
    knn_consistency: float | None = None
    anchor_consistency: float | None = None
    consistency: float | None = None
    clean_tango: bool | None = None
    refined_label: int | None = None
    refined_confidence: float | None = None
    refined_name: str | None = None
    neighbourhood: float | None = None
    predicted: tuple[Predicted, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    flags: list[str] = field(default_factory=list)


def class_numbers(
    labels: Sequence[int | str | None], names: Sequence[str], classes: int, judged: Sequence[Judged]
) -> Index:
    """Convert labels to class numbers (N,), -1 for none; a label that is not a class gets the status `bad_label`.

    >>> results = [Judged(), Judged(), Judged()]
    >>> class_numbers(["dog", 0, "bird"], ["cat", "dog"], 2, results).tolist(), results[2].error
    ([1, 0, -1], "label 'bird' is no class; use 0 to 1 or one of: cat, dog")
    """
    numbers = {name: i for i, name in enumerate(names)}
    found = np.full(len(labels), -1, np.int64)
    for i, (label, result) in enumerate(zip(labels, judged, strict=True)):
        number = numbers.get(label, -1) if isinstance(label, str) else -1 if label is None else label
        if 0 <= number < classes:
            found[i] = result.label = int(number)
        elif label is not None:
            some = f" or one of: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}" if names else ""
            shown = repr(label) if len(repr(label)) <= 60 else f"{repr(label)[:60]}…"
            result.status, result.error = "bad_label", f"label {shown} is no class; use 0 to {classes - 1}{some}"
    return found


def anchor_shares(images: Float32, anchors: Anchors, classes: int) -> Float64:
    """Compute p_sem (N, C) of images (N, d), NaN for rows of zeros; in float64, so that ties are as in the table."""
    votes = AnchorVotes.of(anchors.embeddings, anchors.labels, classes)
    parts = [votes.consistency(images[i : i + votes.chunk]) for i in range(0, len(images), votes.chunk)]
    return np.concatenate([np.zeros((0, classes)), *parts])


def judge_labels(
    p_vis: Float64 | None, p_sem: Float64 | None, labels: Index, names: Sequence[str], judged: Sequence[Judged]
) -> None:
    """Fill in the verdicts from shares (N, C), NaN in rows without a value; labels (N,) with -1 for none."""
    sources = [share for share in (p_vis, p_sem) if share is not None]
    if not sources:
        return
    q = mix_sources(sources, 0.5)
    largest = q.max(axis=1)
    judgeable = np.isfinite(largest)
    known = np.flatnonzero(judgeable & (labels >= 0))
    clean, consistency = verdict(q[known], labels[known])
    for at, i in enumerate(known.tolist()):
        judged[i].clean_tango, judged[i].consistency = bool(clean[at]), float(consistency[at])
        judged[i].knn_consistency = _at(p_vis, i, labels)
        judged[i].anchor_consistency = _at(p_sem, i, labels)
    for i in np.flatnonzero(judgeable).tolist():
        stays = labels[i] >= 0 and q[i, labels[i]] >= largest[i] * (1 - SAME)
        best = int(labels[i] if stays else q[i].argmax())
        judged[i].refined_label, judged[i].refined_confidence = best, float(largest[i])
        judged[i].refined_name = names[best] if names else None


def _at(share: Float64 | None, row: int, labels: Index) -> float | None:
    value = np.nan if share is None else share[row, labels[row]]
    return float(value) if np.isfinite(value) else None
