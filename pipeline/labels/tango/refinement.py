"""TANGO's refinement: consistency of every label, which samples are clean, and the corrected label."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.neighbours import Neighbours
from noisegate.pipeline.runs.rows import Embeddings, Rows, as_rows, unit_rows
from noisegate.pipeline.system.array_types import Float32, Float64, Floats, Index, Mask

from .semantic import AnchorVotes
from .visual import NeighbourLists, VisualVotes, check_labels, chunk_rows, mean_or_fallback, row_sums

log = logging.getLogger(__name__)
SAME = 1e-9  # two shares that differ by less, relative to the larger, are tied: they differ by rounding only


@dataclass(frozen=True)
class Refinement:
    """One row per sample; scores are at the given label y and NaN for unlabelled and invalid rows.

    The fall-backs are visible: without a neighbour p_vis is the given label; a sample in no list takes p_vis
    for its propagated label; a sample in no anchor's list takes p_sem.
    """

    q: Float32
    """(N,) (1 - b) p_vis[y] + b p_sem[y]"""
    p_vis: Float32
    """(N,) p_vis[y], NaN without neighbours given"""
    p_sem: Float32
    """(N,) p_sem[y], NaN without anchors given"""
    consistency: Float32
    """(N,) q[y] / max q, 1 where clean_tango"""
    clean_tango: Mask
    """(N,) argmax q = y"""
    label: NDArray[np.int32]
    """(N,) argmax of the corrected soft label; the given one for invalid rows"""
    confidence: Float32
    """(N,) value of the corrected soft label there"""
    no_neighbours: Mask
    indegree0: Mask
    unpicked: Mask
    invalid: Mask
    unlabelled: Mask
    soft: Float32 | None = None
    """(N, C) the corrected soft label where it was asked for, NaN for invalid rows"""


def refine(
    labels: ArrayLike,
    classes: int,
    *,
    neighbours: NeighbourLists | None = None,
    images: Embeddings | None = None,
    anchors: Floats | None = None,
    anchor_labels: ArrayLike | None = None,
    b: float = 0.5,
    quota: int | ArrayLike | None = None,
    duplicates: ArrayLike | None = None,
    invalid: ArrayLike | None = None,
    keep_soft: bool = False,
) -> Refinement:
    """Select clean samples and correct labels (TANGO Sec. 3) from neighbours, from anchors (with images), or from both.

    q = (1 - b) p_vis + b p_sem;  clean where argmax q = y;  Y~ = (1 - b) Y_vis + b Y_sem.  With one source only, q and
    Y~ are that source's.  Where classes tie for the maximum the given label wins, then the lower class.

    labels: (N,) given classes, -1 for unlabelled rows, which do not vote.
    images, anchors, anchor_labels, quota: see `inject_truth`; duplicates: see `visual_consistency`.
    invalid: (N,) bool, more rows to leave out. Left out in any case: images without a direction, or (without images) rows with
    an empty list in a graph of `find_neighbours` in which other rows have one.

    Memory: all N x C numbers are held only with `keep_soft`, else a few million at a time. Votes, one per entry of a neighbour
    list and per pick of an anchor, go to a temporary file if they are many (see `RowVotes`).

    >>> lists = np.array([[1, 2], [0, 2], [0, 1], [0, 1]])
    >>> result = refine([0, 0, 0, 1], classes=2, neighbours=lists)
    >>> result.clean_tango.tolist(), result.label.tolist()
    ([True, True, True, False], [0, 0, 0, 0])
    """
    given = check_labels(labels, classes)
    if not 0 <= b <= 1:
        raise ConfigError.of("b", b, "is no share; give 0 (neighbours only) to 1 (anchors only), such as 0.5")
    if neighbours is None and anchors is None:
        raise ConfigError("neighbours and anchors are both None; give one of them or both", "neighbours")
    if anchors is not None and (images is None or anchor_labels is None):
        raise ConfigError("anchors came without images or anchor_labels; give all three", "anchors")
    rows = None if images is None else as_rows(images, "images")
    if rows is not None and len(rows) != len(given):
        raise ConfigError(
            f"images has {len(rows)} rows for {len(given)} labels; give one row per label", "images", len(rows)
        )
    left_out = _invalid(invalid, rows, neighbours, len(given))
    label = np.where(left_out, -1, given)
    if len(np.unique(label[label >= 0])) == 1:
        log.warning(
            "all labelled samples carry one class: every neighbour agrees, so the visual score carries no information"
        )

    columns = _Columns(given, classes if keep_soft else None)
    visual = None if neighbours is None else VisualVotes.of(neighbours, label, classes, duplicates)
    pickers = None if visual is None else visual.pickers()
    semantic, truth, picks = None, None, np.zeros(0, dtype=np.int64)
    if anchors is not None and anchor_labels is not None and rows is not None:
        semantic = AnchorVotes.of(anchors, anchor_labels, classes)
        truth, picks = semantic.truth(semantic.check_images(rows), quota)
    width = max(classes, 0 if visual is None else visual.lists.shape[1], 0 if semantic is None else len(semantic.label))
    for part in chunk_rows(len(given), width):
        shares, soft = [], []
        if visual is not None and pickers is not None:
            p_vis, columns.no_neighbours[part] = visual.consistency(part)
            picked = pickers[part]
            columns.indegree0[part] = row_sums(picked) == 0
            columns.at_label(columns.p_vis, part, label[part], p_vis)
            shares.append(p_vis)
            soft.append(mean_or_fallback(picked, p_vis))
        if semantic is not None and truth is not None and rows is not None:
            p_sem = semantic.consistency(rows.take(np.arange(part.start, part.stop)))
            columns.unpicked[part] = picks[part] == 0
            columns.at_label(columns.p_sem, part, label[part], p_sem)
            shares.append(p_sem)
            soft.append(mean_or_fallback(truth[part], p_sem))
        columns.select(part, label[part], mix_sources(shares, b))
        columns.correct(part, label[part], mix_sources(soft, b))
    return columns.result(left_out)


def _invalid(invalid: ArrayLike | None, rows: Rows | None, neighbours: NeighbourLists | None, total: int) -> Mask:
    mask = np.zeros(total, dtype=np.bool_)
    if invalid is not None:
        named = np.asarray(invalid, dtype=np.bool_)
        if named.shape != mask.shape:
            raise ConfigError(f"invalid has shape {named.shape}; give ({total},) booleans", "invalid", named.shape)
        mask |= named
    if rows is not None:
        for start, block in rows.chunks(4096):
            mask[start : start + len(block)] |= ~unit_rows(block)[1]
    elif isinstance(neighbours, Neighbours):
        listed = (neighbours.indices >= 0).any(axis=1)
        if listed.any():
            mask |= ~listed
    return mask


def mix_sources(sources: list[Float64], b: float) -> Float64:
    """Mix (R, C) sources: (1 - b) visual + b semantic; a single source, or the one that is not NaN, counts alone."""
    if len(sources) == 1:
        return sources[0]
    visual, semantic = sources
    mixed = (1 - b) * visual + b * semantic
    return np.where(np.isnan(visual), semantic, np.where(np.isnan(semantic), visual, mixed))


def verdict(q: Float64, label: Index) -> tuple[Mask, Float64]:
    """Return (R,) whether no class beats the label, and (R,) consistency q[y] / max q (1 if clean); every row has a label.

    >>> clean, consistency = verdict(np.array([[.5, .5], [.8, .2]]), np.array([1, 1]))
    >>> clean.tolist(), consistency.tolist()
    ([True, False], [1.0, 0.25])
    """
    mine, largest = q[np.arange(len(q)), label], q.max(axis=1)
    clean = mine >= largest * (1 - SAME)
    return clean, np.where(clean, 1, mine / largest)


class _Columns:
    """The columns of a `Refinement`, filled slice by slice."""

    def __init__(self, given: Index, soft_classes: int | None) -> None:
        total = len(given)
        self.soft = None if soft_classes is None else np.full((total, soft_classes), np.nan, np.float32)
        self.given = given
        self.label = given.astype(np.int32)
        self.q, self.p_vis, self.p_sem, self.consistency, self.confidence = np.full((5, total), np.nan, np.float32)
        self.clean, self.no_neighbours, self.indegree0, self.unpicked = np.zeros((4, total), np.bool_)

    def at_label(self, column: Float32, part: slice, label: Index, share: Float64) -> None:
        row = np.flatnonzero(label >= 0)
        column[part.start + row] = share[row, label[row]]

    def select(self, part: slice, label: Index, q: Float64) -> None:
        """Set `clean` and `consistency` of a slice of rows."""
        row = np.flatnonzero(label >= 0)
        at = part.start + row
        self.q[at] = q[row, label[row]]
        self.clean[at], self.consistency[at] = verdict(q[row], label[row])

    def correct(self, part: slice, label: Index, soft: Float64) -> None:
        """Set the label to the best class of the soft label; ties and rows without a soft label keep the given label."""
        if self.soft is not None:
            self.soft[part] = soft
        row = np.flatnonzero(~np.isnan(soft).any(axis=1))
        at, given = part.start + row, label[row]
        value = soft[row].max(axis=1)
        stays = (given >= 0) & (soft[row, given] >= value * (1 - SAME))
        self.label[at] = np.where(stays, given, soft[row].argmax(axis=1))
        self.confidence[at] = value

    def result(self, invalid: Mask) -> Refinement:
        for column in (self.q, self.p_vis, self.p_sem, self.consistency, self.confidence):
            column[invalid] = np.nan
        if self.soft is not None:
            self.soft[invalid] = np.nan
        return Refinement(
            q=self.q,
            p_vis=self.p_vis,
            p_sem=self.p_sem,
            consistency=self.consistency,
            clean_tango=self.clean & ~invalid,
            label=np.where(invalid, self.given, self.label).astype(np.int32),
            confidence=self.confidence,
            no_neighbours=self.no_neighbours & ~invalid,
            indegree0=self.indegree0 & ~invalid,
            unpicked=self.unpicked & ~invalid,
            invalid=invalid,
            unlabelled=self.given < 0,
            soft=self.soft,
        )
