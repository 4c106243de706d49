"""Votes of class texts: the anchors nearest to an image, the images nearest to an anchor, and a classifier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.rows import Embeddings, Rows, as_rows, identical_rows, top_by_value, unit_rows
from noisegate.pipeline.system.array_types import Float32, Float64, Floats, Index

from .row_votes import RowVotes
from .visual import check_labels, chunk_rows, mean_or_fallback

HELD = 2**29  # most numbers of images in memory: a million rows of 512
READ = 16_384  # images read at a time
TIE = 2e-6  # cosines from a product in float32 that differ by less may be equal
AT_ONCE = 1 << 24  # cosines computed at a time where not all images are in memory


def anchor_consistency(images: Embeddings, anchors: Floats, anchor_labels: ArrayLike, classes: int) -> Float32:
    """p_sem (N, C): the classes of the K = |A| / C anchors nearest to each image (TANGO Sec. 3).

    images: (N, d) or blocks of rows; anchors: (A, d) text embeddings; anchor_labels: (A,) their classes, none empty.
    Anchors as near as the K-th all count, so that a text shared by two classes votes for both.  Where classes have
    different numbers of texts an anchor counts 1 / (texts of its class).  Rows sum to 1; NaN for invalid images.

    >>> anchor_consistency(np.array([[1., .1]]), np.array([[1., 0.], [1., .2], [0., 1.], [.1, 1.]]), [0, 0, 1, 1], 2)
    array([[1., 0.]], dtype=float32)
    """
    votes = AnchorVotes.of(anchors, anchor_labels, classes)
    rows = votes.check_images(images)
    result = np.empty((len(rows), classes), dtype=np.float32)
    for start, block in rows.chunks(votes.chunk):
        result[start : start + len(block)] = votes.consistency(block)
    return result


def inject_truth(
    images: Embeddings,
    anchors: Floats,
    anchor_labels: ArrayLike,
    classes: int,
    quota: int | ArrayLike | None = None,
) -> tuple[Float32, Index]:
    """Y_sem (N, C) and picks (N,): the mean class of the anchors that list an image among their nearest (TANGO Sec. 3).

    quota: how many images an anchor lists: N / C, at least 1, by default; a number; or (C,) numbers by class, such as
    the class counts of imbalanced data.  Ties go to the lower row.  An image that no anchor lists (picks 0) gets its
    `anchor_consistency`; an invalid one NaN.  Arguments otherwise as there.

    >>> soft, picks = inject_truth(np.array([[1., 0.], [0., 1.], [1., 1.]]), np.array([[1., 0.], [0., 1.]]), [0, 1], 2)
    >>> soft.tolist(), picks.tolist()
    ([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], [1, 1, 0])
    """
    votes = AnchorVotes.of(anchors, anchor_labels, classes)
    rows = votes.check_images(images)
    listed, picks = votes.truth(rows, quota)
    result = np.empty((len(rows), classes), dtype=np.float32)
    for start, block in rows.chunks(votes.chunk):
        part = slice(start, start + len(block))
        result[part] = mean_or_fallback(listed[part], votes.consistency(block))
    return result, picks


def text_anchor_logits(
    images: Embeddings,
    anchors: Floats,
    anchor_labels: ArrayLike,
    classes: int,
    scale: float | None = 40.0,
) -> Float32:
    """TAC (N, C): (scale / K_c) sum over the K_c anchors of a class of exp(cos), the text-anchored classifier of TANGO.

    The paper sums over K = 40 anchors, which is scale 40; None takes A / C for any K.  NaN for invalid images.

    >>> image, texts = np.array([[1., 0.]]), np.array([[.3, .91 ** .5], [.2, .96 ** .5]])
    >>> logits = text_anchor_logits(image, texts, [0, 1], classes=2)
    >>> round(float(logits[0, 0] - logits[0, 1]), 3)
    5.138
    """
    votes = AnchorVotes.of(anchors, anchor_labels, classes)
    rows = votes.check_images(images)
    factor = len(votes.label) / classes if scale is None else scale
    order = np.argsort(votes.label, kind="stable")
    starts = np.searchsorted(votes.label[order], np.arange(classes))
    result = np.empty((len(rows), classes), dtype=np.float32)
    for start, block in rows.chunks(votes.chunk):
        unit, valid = unit_rows(block)
        affinity = np.exp(votes.cosines(unit)[:, order].astype(np.float64))
        logits = np.add.reduceat(affinity, starts, axis=1) * (factor * votes.ballot)
        logits[~valid] = np.nan
        result[start : start + len(block)] = logits
    return result


@dataclass(frozen=True)
class AnchorVotes:
    """Anchors, checked, and their votes for images.

    Identical anchors are multiplied only once: products of equal rows may differ in the last bit, and would then not tie.
    """

    distinct: Float32  # (D, d)
    which: Index  # (A,) row of `distinct`
    label: Index  # (A,)
    classes: int
    ballot: Float64  # (C,) 1 / K_c
    nearest: int  # K

    @classmethod
    def of(cls, anchors: Floats, anchor_labels: ArrayLike, classes: int) -> AnchorVotes:
        label = check_labels(anchor_labels, classes)
        unit, valid = unit_rows(np.asarray(anchors))
        if label.shape != valid.shape:
            raise ConfigError(
                f"anchors {unit.shape} and anchor_labels {label.shape} must be (A, d) and (A,)",
                "anchor_labels",
                label.shape,
            )
        if not valid.all() or (label < 0).any():
            bad = int(np.flatnonzero(~valid | (label < 0))[0])
            raise ConfigError(
                f"anchors row {bad} has no direction or no class; give finite text embeddings with classes",
                "anchors",
                bad,
            )
        texts = np.bincount(label, minlength=classes)
        if not texts.all():
            empty = np.flatnonzero(texts == 0)[:5].tolist()
            raise ConfigError(
                f"anchors has no text for classes {empty}; give at least one for each of {classes}", "anchors", empty
            )
        first, which = _identical_groups(unit)
        return cls(unit[first], which, label, classes, 1 / texts, max(1, len(label) // classes))

    def check_images(self, images: Embeddings) -> Rows:
        """Return the images as rows; raise ConfigError if they have another width than the anchors."""
        rows = as_rows(images, "images")
        if rows.width != self.distinct.shape[1]:
            width = self.distinct.shape[1]
            raise ConfigError(
                f"anchors have {width} numbers, the images {rows.width}; use one model for both", "anchors", width
            )
        return rows

    @property
    def chunk(self) -> int:
        """Images at a time: about 4 million numbers."""
        return max(1, 4_000_000 // len(self.label))

    def cosines(self, unit: Float32) -> Float32:
        """(R, A) cosines of unit rows with all anchors."""
        product: Float32 = np.clip(unit @ self.distinct.T, -1, 1)
        return product if len(self.distinct) == len(self.which) else product[:, self.which]

    def consistency(self, images: Floats) -> Float64:
        """(R, C) p_sem of some images, NaN for invalid ones."""
        unit, valid = unit_rows(images)
        cosine = self.cosines(unit)
        place = cosine.shape[1] - self.nearest
        least = np.partition(cosine, place, axis=1)[:, place, None]
        row, anchor = np.nonzero(cosine >= least - TIE)
        choice = self.label[anchor]
        score = np.bincount(
            row * self.classes + choice, weights=self.ballot[choice], minlength=len(unit) * self.classes
        )
        score = score.reshape(len(unit), self.classes)
        share: Float64 = score / score.sum(axis=1, keepdims=True)
        share[~valid] = np.nan
        return share

    def truth(self, images: Rows, quota: int | ArrayLike | None, held: int = HELD) -> tuple[RowVotes, Index]:
        """(N, C) votes of the anchors that list an image, and (N,) how many do.

        All images are in memory where they have at most `held` numbers; else they are read once per block of anchors.
        """
        valid = np.concatenate([np.zeros(0, np.bool_), *(unit_rows(block)[1] for _, block in images.chunks(READ))])
        rows = np.flatnonzero(valid)
        lengths = np.minimum(self._quotas(quota, len(rows)), len(rows))[self.label]
        votes, picks = RowVotes(len(images), self.ballot, int(lengths.sum())), np.zeros(len(images), np.int64)
        lists = self._lists_held if len(images) * images.width <= held else self._lists_read
        for members, listed in lists(images, rows, lengths):
            votes.add(listed.ravel(), np.repeat(self.label[members], listed.shape[1]))
            picks += np.bincount(listed.ravel(), minlength=len(images))
        return votes, picks

    def _lists_held(self, images: Rows, rows: Index, lengths: Index) -> Iterator[tuple[Index, Index]]:
        """(m,) anchors and their (m, length) nearest of the valid `rows`, a block of anchors at a time."""
        unit = unit_rows(images.take(rows))[0]
        first, which = _identical_groups(unit)
        unit = unit[first]
        for length in np.unique(lengths):
            members = np.flatnonzero(lengths == length)
            for part in chunk_rows(len(members), 4 * len(rows)):
                cosine = self.distinct[self.which[members[part]]] @ unit.T
                if len(unit) < len(rows):
                    cosine = cosine[:, which]
                yield members[part], rows[top_by_value(cosine, int(length))]

    def _lists_read(self, images: Rows, rows: Index, lengths: Index) -> Iterator[tuple[Index, Index]]:
        """Like `_lists_held`, but reads images in blocks, and merges the nearest so far with each block."""
        for length in np.unique(lengths):
            members = np.flatnonzero(lengths == length)
            for part in chunk_rows(len(members), max(1, int(length)), AT_ONCE):
                anchors = self.distinct[self.which[members[part]]]
                best, listed = np.empty((len(anchors), 0), np.float32), np.empty((len(anchors), 0), np.int64)
                step = max(1, AT_ONCE // len(anchors))
                for start in range(0, len(rows), step):
                    some = rows[start : start + step]
                    cosine = np.hstack([best, anchors @ unit_rows(images.take(some))[0].T])
                    number = np.hstack([listed, np.broadcast_to(some, (len(anchors), len(some)))])
                    top = top_by_value(
                        cosine, min(int(length), cosine.shape[1])
                    )  # ties: the lower row, which came first
                    best, listed = np.take_along_axis(cosine, top, axis=1), np.take_along_axis(number, top, axis=1)
                yield members[part], listed

    def _quotas(self, quota: int | ArrayLike | None, images: int) -> Index:
        """(C,) how many images an anchor of each class lists."""
        wanted = np.asarray(max(1, images // self.classes) if quota is None else quota)
        if wanted.dtype.kind not in "iu" or wanted.shape not in {(), (self.classes,)} or wanted.min() < 0:
            raise ConfigError.of("quota", quota, f"is no number of images; give one, or ({self.classes},) by class")
        return np.broadcast_to(wanted, (self.classes,)).astype(np.int64)


def _identical_groups(unit: Float32) -> tuple[Index, Index]:
    """Index of the first row of each group of identical rows, and the group of every row."""
    known: dict[bytes, int] = {}
    which = np.array([known.setdefault(digest, len(known)) for digest in identical_rows(unit)], dtype=np.int64)
    return np.unique(which, return_index=True)[1], which
