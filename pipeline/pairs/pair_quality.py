"""Pool-normalised similarity: how far a pair's cosine stands above what its picture and its caption give to other pairs."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.array_types import Float32, Float64, Floats, Index
from noisegate.pipeline.system.blas import one_blas_thread
from noisegate.pipeline.system.machine import count_threads

TEMPERATURE = 0.01  # of CLIP's trained softmax: its logit scale is held at 100
BLOCK = 1 << 23  # cosines that a GPU holds at a time
ROWS = 512  # cosines that a thread holds at a time; the fastest of 128 to 1,024 each, at 64 and 512 numbers
COLUMNS = 512  # likewise, of the pool
LEAST = -2.0  # below every cosine; the largest so far, before there is one
SAME_PROJECTION = 2e-3  # largest difference of two projections of one unit row on a standard normal vector, by rounding
PROJECTIONS = 8  # unit rows as near as .01 agree in all of them once in a million times
CANDIDATES = 1 << 18  # of the same picture or caption, compared at a time
EMPTY: Index = np.zeros(0, np.int64)
LEFT = 1 / 16  # of a sum: where less is left after terms are taken off, rounding is too large a part of it


def pair_quality(
    images: Floats, texts: Floats, pool_images: Floats, pool_texts: Floats, temperature: float = TEMPERATURE
) -> Float32:
    """(N,) quality of the pairs of unit rows `images` (N, d) and `texts` (N, d) against a pool of M other pairs.

        n_i = s_ii - τ/2 [ log mean_j exp(s_ij / τ) + log mean_j exp(s_ji / τ) ],

    with s_ij the cosine of picture i and caption j, s_ji that of picture j and caption i (negCLIPLoss, Wang et al. 2024,
    arXiv 2405.19547). The means are over the pairs of the pool that have neither the picture nor the caption of pair i, so
    that pairs in the pool and outside it are comparable, and the size of the pool cancels out. 0 is a pair that fits no
    better than others do; NaN a row of zeros, or a pool without another pair.

    >>> image, text = np.eye(3), np.array([[1, 0, 0], [0, 1, 0], [0.6, 0.8, 0]])  # the last caption is wrong
    >>> [round(float(quality), 2) for quality in pair_quality(image, text, image, text)]
    [0.7, 0.6, -0.4]
    """
    return Pool(pool_images, pool_texts).quality(images, texts, (temperature,)).reshape(-1)


class Pool:
    """Unit rows (M, d) of the pairs that others are compared with, on a device: `cpu` computes with numpy, others with torch.

    Rows are rounded to float16, as embeddings are kept: a pair gets the same quality from a model as from the run's files.
    """

    def __init__(self, images: Floats, texts: Floats, device: str = "cpu") -> None:
        if images.shape != texts.shape or images.ndim != 2:
            raise ConfigError.of("texts", texts.shape, f"do not pair with images {images.shape}; give (N, d) for both")
        self._xp: Any = np
        self._device = device
        if device != "cpu":
            import torch

            self._xp = torch
        valid = images.any(axis=1) & texts.any(axis=1)
        left, right = (round_rows(rows if valid.all() else rows[valid]) for rows in (images, texts))
        self._directions = np.random.default_rng(0).standard_normal((images.shape[1], PROJECTIONS)).astype(np.float32)
        self._marks = left @ self._directions, right @ self._directions
        self._order = [np.argsort(marks[:, 0]) for marks in self._marks]
        self._images, self._texts = self._put(left), self._put(right)

    def __len__(self) -> int:
        return len(self._marks[0])

    def quality(
        self, images: Floats, texts: Floats, temperatures: tuple[float, ...], cosines: Floats | None = None
    ) -> Float32:
        """(T, N) `pair_quality` at each temperature; `cosines` (N,) are those of the pairs, if known more precisely."""
        if images.shape != texts.shape or images.shape[1:] != self._directions.shape[:1]:
            problem = f"do not fit images {images.shape} and a pool {self._directions.shape[0]} wide; use one model"
            raise ConfigError.of("texts", texts.shape, problem)
        if not min(temperatures) > 0:
            raise ConfigError.of("temperature", min(temperatures), "cannot divide cosines; use 0.01")
        out = np.full((len(temperatures), len(images)), np.nan, np.float32)
        if not len(self):
            return out

        def compare(some: slice) -> None:
            left, right = round_rows(images[some]), round_rows(texts[some])
            own = np.einsum("nd,nd->n", left, right)
            around = self._around(left, right, temperatures)
            out[:, some] = (own if cosines is None else cosines[some]) - around
            out[:, some][:, ~(left.any(axis=1) & right.any(axis=1))] = np.nan

        self._in_blocks(compare, len(images))
        return out

    def quality_of(
        self,
        images: Floats,
        texts: Floats,
        first: Index,
        second: Index,
        temperatures: tuple[float, ...],
        cosines: Floats | None = None,
    ) -> Float32:
        """(T, P) `quality` of the pairs of pictures `first` and captions `second`, row numbers (P,) that may repeat.

        Each picture and each caption is compared with the pool once, however many pairs it is in. Values differ from those of
        `quality` by rounding.
        """
        images, texts = round_rows(images), round_rows(texts)
        by_image = self._soft_maxima_of(images, texts, first, second, 0, temperatures)
        by_text = self._soft_maxima_of(texts, images, second, first, 1, temperatures)
        if cosines is None:
            cosines = np.einsum("nd,nd->n", images[first], texts[second])
        out = (cosines - (by_image + by_text) / 2).astype(np.float32)
        whole = images[first].any(axis=1) & texts[second].any(axis=1)
        left = np.flatnonzero(np.isnan(out).any(axis=0) | ~whole)
        out[:, left] = self.quality(images[first[left]], texts[second[left]], temperatures, cosines[left])
        return out

    def _in_blocks(self, work: Callable[[slice], None], count: int) -> None:
        """Do the work on `count` rows, some at a time, on all threads of the processor."""
        step = ROWS if self._xp is np else max(1, BLOCK // len(self))
        blocks = [slice(start, start + step) for start in range(0, count, step)]
        if self._xp is not np or len(blocks) < 2 or count_threads() < 2:
            for some in blocks:
                work(some)
        else:  # one BLAS thread in each: what follows a product takes as long, and BLAS does not spread that
            with one_blas_thread(), ThreadPoolExecutor(count_threads()) as threads:
                for _ in threads.map(work, blocks):
                    pass

    def _soft_maxima_of(
        self, rows: Float32, partners: Float32, own: Index, others: Index, side: int, temperatures: tuple[float, ...]
    ) -> Float32:
        """(T, P) soft maxima of the rows `own` of pairs whose other side are the `partners` `others`; NaN: not precise so.

        Pairs of the pool with the row itself are left out of its sum; those with a pair's partner, which are few, are then
        taken off.
        """
        out = np.full((len(temperatures), len(own)), np.nan, np.float32)
        if not len(self):
            return out
        by_row = np.argsort(own, kind="stable")
        pool = self._images if side else self._texts

        def compare(some: slice) -> None:
            pairs = by_row[slice(*np.searchsorted(own[by_row], (some.start, some.stop)))]
            queries, row = rows[some], own[pairs] - some.start
            same = _merge(list(self._same(queries @ self._directions, side)), len(self) * len(queries))
            marks = partners[others[pairs]] @ self._directions
            taken = _merge(list(self._same(marks, 1 - side)), len(self) * len(pairs))
            columns, pair = np.divmod(taken, max(1, len(pairs)))
            new = np.isin(columns * len(queries) + row[pair], same, invert=True)
            columns, pair = columns[new], pair[new]
            left_out, at = np.divmod(same, len(queries)), (row[pair], columns)
            top, sums, cosines = self._sum_powers(queries, pool, left_out[1], left_out[0], temperatures, at)
            count = (
                len(self)
                - np.bincount(left_out[1], minlength=len(queries))[row]
                - np.bincount(pair, minlength=len(pairs))
            )
            for i, temperature in enumerate(temperatures):
                powers = np.exp((cosines - top[at[0]]).astype(np.float64) / temperature)
                rest = sums[i][row] - np.bincount(pair, powers, len(pairs))
                precise = rest > LEFT * sums[i][row]
                mean = np.where(precise, rest, np.nan) / np.maximum(count, 1)
                out[i, pairs] = top[row] + temperature * np.log(mean)

        self._in_blocks(compare, len(rows))
        return out

    def _around(self, left: Float32, right: Float32, temperatures: tuple[float, ...]) -> Float32:
        """(T, B) the mean of both soft maxima τ log mean exp(s / τ), over all pairs of the pool but the same ones."""
        sides = (left @ self._directions, 0), (right @ self._directions, 1)
        same = [places for marks, side in sides for places in self._same(marks, side)]
        columns, rows = np.divmod(_merge(same, len(self) * len(left)), len(left))
        others = len(self) - np.bincount(rows, minlength=len(left))
        with np.errstate(divide="ignore", invalid="ignore"):  # a pool of the same pairs only: NaN
            by_image = self._soft_maxima(left, self._texts, rows, columns, temperatures, others)
            by_text = self._soft_maxima(right, self._images, rows, columns, temperatures, others)
        return ((by_image + by_text) / 2).astype(np.float32)

    def _soft_maxima(
        self,
        queries: Float32,
        pool: Any,
        rows: Index,
        columns: Index,
        temperatures: tuple[float, ...],
        others: Index,
    ) -> Floats:
        """(T, B) τ log mean exp(s / τ) of the cosines s (B, M) of queries and pool but those at `rows` and rising `columns`."""
        top, sums, _ = self._sum_powers(queries, pool, rows, columns, temperatures)
        return np.asarray(top + np.array(temperatures)[:, None] * np.log(sums / others))

    def _sum_powers(
        self,
        queries: Float32,
        pool: Any,
        rows: Index,
        columns: Index,
        temperatures: tuple[float, ...],
        places: tuple[Index, Index] = (EMPTY, EMPTY),
    ) -> tuple[Float32, Float64, Float32]:
        """The largest cosine (B,) of each query, the sums (T, B) of exp((s - largest) / τ), and the cosines at `places`.

        Cosines at `rows` and rising `columns` are left out; `places` are rows and rising columns too. Works on some columns
        at a time, because a processor's cache holds their cosines, relative to the largest so far.
        """
        xp, unit = self._xp, self._put(queries)
        top = self._put(np.full(len(queries), LEAST, np.float32))
        totals = [self._put(np.zeros(len(queries), np.float32)) for _ in temperatures]
        wanted = np.zeros(len(places[0]), np.float32)
        step = COLUMNS if xp is np else len(self)
        for start in range(0, len(self), step):
            cosines = unit @ pool[start : start + step].T
            left_out = slice(*np.searchsorted(columns, (start, start + step)))
            cosines[rows[left_out], columns[left_out] - start] = -np.inf
            some = slice(*np.searchsorted(places[1], (start, start + step)))
            if some.start < some.stop:
                wanted[some] = self._get(cosines[places[0][some], places[1][some] - start])
            before, top = top, xp.maximum(top, xp.amax(cosines, 1))
            cosines -= top[:, None]
            for i, temperature in enumerate(temperatures):
                powers = xp.exp(cosines / temperature)
                totals[i] = totals[i] * xp.exp((before - top) / temperature) + powers.sum(1)
        return self._get(top), np.stack([self._get(total) for total in totals]).astype(np.float64), wanted

    def _same(self, marks: Float32, side: int) -> Iterator[Index]:
        """Places (column · B + row) where the pool has the row's own picture (`side` 0) or caption (1); `marks` are (B, 8).

        Equal vectors have equal projections. Candidates are near in the first one, by which the pool is sorted.
        """
        order, pool_marks = self._order[side], self._marks[side]
        first = pool_marks[order, 0]
        begin = np.searchsorted(first, marks[:, 0] - 2 * SAME_PROJECTION)
        counts = np.searchsorted(first, marks[:, 0] + 2 * SAME_PROJECTION) - begin
        ends = np.cumsum(counts)
        for start in range(0, int(ends[-1]), CANDIDATES):
            stop = min(start + CANDIDATES, int(ends[-1]))
            rows = np.repeat(np.arange(len(marks)), np.diff(np.clip(ends, start, stop), prepend=start))
            columns = order[np.arange(start, stop) + (begin + counts - ends)[rows]]
            for mark, pool_mark in zip(marks.T, pool_marks.T, strict=True):  # each leaves few for the next
                near = np.abs(mark[rows] - pool_mark[columns]) <= SAME_PROJECTION
                rows, columns = rows[near], columns[near]
            yield columns * len(marks) + rows

    def _put(self, values: Float32) -> Any:
        return values if self._xp is np else self._xp.as_tensor(values, device=self._device)

    def _get(self, values: Any) -> Any:
        return values if self._xp is np else values.cpu().numpy()


def _merge(parts: list[Index], size: int) -> Index:
    """The different ones of numbers below `size`, in order."""
    if sum(map(len, parts)) < CANDIDATES:
        return np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))
    seen = np.zeros(size, bool)  # thousands of equal captions: sorting would take longer than all else
    for part in parts:
        seen[part] = True
    return np.flatnonzero(seen)


def round_rows(rows: Floats) -> Float32:
    """Rows with the precision that embeddings are kept in, float16; the array itself if it has no more."""
    half = np.asarray(rows, np.float16)
    return rows if rows.dtype == np.float32 and np.array_equal(half, rows) else half.astype(np.float32)
