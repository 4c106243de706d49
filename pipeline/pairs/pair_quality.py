"""Pool-normalised similarity: how far a pair's cosine stands above what its picture and its caption give to other pairs."""

from typing import Any

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.array_types import Float32, Floats, Index

TEMPERATURE = 0.01  # of CLIP's trained softmax: its logit scale is held at 100
BLOCK = 1 << 23  # cosines held at a time; the fastest of 2^21 to 2^24
CACHED = 1 << 17  # of these, cosines that a processor works on at a time, because its cache holds them; of 2^15 to 2^20
SAME_COSINE = 1e-4  # largest difference between the cosines of one pair, by rounding
SAME_PROJECTION = 2e-3  # the same for a projection of a unit row on a standard normal vector
PROJECTIONS = 4


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
        left, right = round_rows(images[valid]), round_rows(texts[valid])
        self._directions = np.random.default_rng(0).standard_normal((images.shape[1], PROJECTIONS)).astype(np.float32)
        self._marks = left @ self._directions, right @ self._directions
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
        step = max(1, BLOCK // len(self))
        for start in range(0, len(images), step):
            some = slice(start, start + step)
            left, right = round_rows(images[some]), round_rows(texts[some])
            own = np.einsum("nd,nd->n", left, right)
            around = self._around(left, right, own, temperatures)
            out[:, some] = (own if cosines is None else cosines[some]) - around
            out[:, some][:, ~(left.any(axis=1) & right.any(axis=1))] = np.nan
        return out

    def _around(self, left: Float32, right: Float32, own: Float32, temperatures: tuple[float, ...]) -> Float32:
        """(T, B) the mean of both soft maxima τ log mean exp(s / τ), over all pairs of the pool but the same ones."""
        by_image, by_text = self._put(left) @ self._texts.T, self._put(right) @ self._images.T
        of_texts, of_images = right @ self._directions, left @ self._directions
        step = max(1, CACHED // len(self)) if self._xp is np else len(left)
        spans = (slice(start, start + step) for start in range(0, len(left), step))
        found = [
            self._soft_maxima(
                by_image[some],
                by_text[some],
                self._same(by_image[some], own[some], of_texts[some], self._marks[1]),
                self._same(by_text[some], own[some], of_images[some], self._marks[0]),
                temperatures,
            )
            for some in spans
        ]
        return np.concatenate(found, axis=1).astype(np.float32)

    def _soft_maxima(
        self,
        by_image: Any,
        by_text: Any,
        same_text: tuple[Index, Index],
        same_image: tuple[Index, Index],
        temperatures: tuple[float, ...],
    ) -> Floats:
        """(T, B) what `_around` returns, from cosines (B, M), which it overwrites, and the places of the same pairs."""
        xp = self._xp
        rows, columns = (np.concatenate(places) for places in zip(same_text, same_image, strict=True))
        pairs = np.unique(rows * len(self) + columns)
        rows, columns = np.divmod(pairs, len(self))
        others = len(self) - np.bincount(rows, minlength=len(by_image))
        around = np.zeros((len(temperatures), len(by_image)))
        with np.errstate(divide="ignore", invalid="ignore"):  # a pool of the same pairs only: NaN
            for cosines in (by_image, by_text):
                cosines[rows, columns] = -np.inf
                top = xp.amax(cosines, 1)
                cosines -= top[:, None]
                for i, temperature in enumerate(temperatures):
                    total = self._get(xp.exp(cosines / temperature).sum(1))
                    around[i] += (self._get(top) + temperature * np.log(total / others)) / 2
        return around

    def _same(self, cosines: Any, own: Float32, marks: Float32, pool_marks: Float32) -> tuple[Index, Index]:
        """Rows and columns at which the pool has the row's own caption (or picture).

        Equal vectors have equal cosines with the row's picture, and equal projections; comparing these costs less than
        comparing every caption with every other.
        """
        close = self._xp.abs(cosines - self._put(own)[:, None]) <= SAME_COSINE
        rows, columns = (self._get(places) for places in self._xp.where(close))
        apart = np.abs(marks[rows] - pool_marks[columns]).max(axis=1, initial=0)
        return rows[apart <= SAME_PROJECTION], columns[apart <= SAME_PROJECTION]

    def _put(self, values: Float32) -> Any:
        return values if self._xp is np else self._xp.as_tensor(values, device=self._device)

    def _get(self, values: Any) -> Any:
        return values if self._xp is np else values.cpu().numpy()


def round_rows(rows: Floats) -> Float32:
    """Rows with the precision that embeddings are kept in, float16."""
    return np.asarray(rows, np.float16).astype(np.float32)
