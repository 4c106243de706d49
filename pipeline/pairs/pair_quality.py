"""Pool-normalised similarity: how far a pair's cosine is above the cosines of its picture and caption with other pairs."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.array_types import Float32, Float64, Floats, Index
from noisegate.pipeline.system.blas import one_blas_thread
from noisegate.pipeline.system.machine import count_threads

TEMPERATURE = 0.01  # of CLIP's trained softmax: its logit scale is clipped at 100
BLOCK = 1 << 23  # cosines that a GPU holds at a time
ROWS = 512  # rows of cosines per thread at a time; the fastest of 128 to 1,024, at widths 64 and 512
COLUMNS = 512  # the same for columns, which are pairs of the pool
LEAST = -2.0  # below every cosine; start value of the largest so far
SAME_PROJECTION = 2e-3  # largest difference of two projections of one unit row on a standard normal vector, by rounding
PROJECTIONS = 8  # unit rows .01 apart agree in all projections once in a million times
CANDIDATES = 1 << 18  # candidates of equal pictures or captions compared at a time
EMPTY: Index = np.zeros(0, np.int64)
LEFT = 1 / 16  # if less than this part of a sum is left after subtracting terms, rounding errors are too large


def pair_quality(
    images: Floats, texts: Floats, pool_images: Floats, pool_texts: Floats, temperature: float = TEMPERATURE
) -> Float32:
    """Compute the quality (N,) of the pairs of unit rows `images` (N, d) and `texts` (N, d) against a pool of M other pairs.

        n_i = s_ii - τ/2 [ log mean_j exp(s_ij / τ) + log mean_j exp(s_ji / τ) ],

    with s_ij the cosine of picture i and caption j, s_ji that of picture j and caption i (negCLIPLoss, Wang et al. 2024,
    arXiv 2405.19547). The means are over the pairs of the pool that have neither the picture nor the caption of pair i, so that
    pairs inside and outside the pool are comparable, and the size of the pool cancels out. 0 is a pair that fits no better than
    other pairs; NaN is a row of zeros, or a pool without other pairs.

    >>> image, text = np.eye(3), np.array([[1, 0, 0], [0, 1, 0], [0.6, 0.8, 0]])  # the last caption is wrong
    >>> [round(float(quality), 2) for quality in pair_quality(image, text, image, text)]
    [0.7, 0.6, -0.4]
    """
    return Pool(pool_images, pool_texts).quality(images, texts, (temperature,)).reshape(-1)


class Pool:
    """Unit rows (M, d) of the pairs to compare with, on a device: `cpu` computes with numpy, other devices with torch.

    Rows are rounded to float16, as in the run's files, so that a pair has the same quality from the model and from a file.
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
        """Compute `pair_quality` at each temperature, (T, N); `cosines` (N,) are the pairs' own, if known more precisely."""
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
        """Compute `quality`, (T, P), of the pairs of pictures `first` and captions `second`, row numbers (P,) that may repeat.

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
        """Do the work on `count` rows in blocks, on all threads of the processor."""
        step = ROWS if self._xp is np else max(1, BLOCK // len(self))
        blocks = [slice(start, start + step) for start in range(0, count, step)]
        if self._xp is not np or len(blocks) < 2 or count_threads() < 2:
            for some in blocks:
                work(some)
        else:  # one BLAS thread each: the work after a product takes as long, and BLAS threads do not share it
            with one_blas_thread(), ThreadPoolExecutor(count_threads()) as threads:
                for _ in threads.map(work, blocks):
                    pass

    def _soft_maxima_of(
        self, rows: Float32, partners: Float32, own: Index, others: Index, side: int, temperatures: tuple[float, ...]
    ) -> Float32:
        """Compute soft maxima (T, P) of rows `own`, in pairs with `partners` rows `others`; NaN where this is not precise.

        Pairs of the pool with the row itself are left out of its sum; the few pairs with the partner are then subtracted.
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
        """Compute the mean of both soft maxima τ log mean exp(s / τ), (T, B), over the pool without the same pairs."""
        sides = (left @ self._directions, 0), (right @ self._directions, 1)
        same = [places for marks, side in sides for places in self._same(marks, side)]
        columns, rows = np.divmod(_merge(same, len(self) * len(left)), len(left))
        others = len(self) - np.bincount(rows, minlength=len(left))
        with np.errstate(divide="ignore", invalid="ignore"):  # NaN if the pool has only the same pairs
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
        """Compute τ log mean exp(s / τ), (T, B), of cosines s (B, M) with the pool, without those at `rows`, `columns`."""
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
        """Return each query's largest cosine (B,), the sums (T, B) of exp((s - largest) / τ), and the cosines at `places`.

        Cosines at `rows` and rising `columns` are left out; `places` are rows and rising columns too. Works on blocks of
        columns whose cosines fit the CPU cache, relative to the largest cosine so far.
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
        """Yield places (column · B + row) where the pool has the row's picture (`side` 0) or caption (1); `marks` are (B, 8).

        Equal vectors have equal projections. The pool is sorted by the first projection, in which candidates are near.
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
    """Return the distinct numbers (all below `size`), in order."""
    if sum(map(len, parts)) < CANDIDATES:
        return np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))
    seen = np.zeros(size, bool)  # with thousands of equal captions, sorting would take most of the time
    for part in parts:
        seen[part] = True
    return np.flatnonzero(seen)


def round_rows(rows: Floats) -> Float32:
    """Round rows to float16, the precision of kept embeddings; return the array itself if that changes nothing."""
    half = np.asarray(rows, np.float16)
    return rows if rows.dtype == np.float32 and np.array_equal(half, rows) else half.astype(np.float32)
