"""Score some samples again and measure how far their numbers have moved."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from noisegate.pipeline.estimators.base import Estimator
from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.pairs.scorer import encode_samples, score_pairs
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.read import RawSample
from noisegate.pipeline.shards.workers import Decoded, decode_sample

from .problems import Problems


@dataclass(frozen=True)
class Drift:
    """The largest differences between a table and its samples scored again; None if nothing was compared.

    `image` is one minus the cosine between the kept and the new embedding of a picture, for samples without a caption.
    """

    samples: int = 0
    similarity: float | None = None
    weight: float | None = None
    image: float | None = None

    @property
    def largest(self) -> float | None:
        return max((v for v in (self.similarity, self.weight, self.image) if v is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "largest": self.largest}


@dataclass
class _Waiting:
    """A sample that waits for its batch, and what its table says about it."""

    sample: Decoded
    row: int
    similarity: float
    weight: float
    beta: Beta | None
    embeddings: Path
    problems: Problems


class Rescoring:
    """Score samples in batches and keep the largest drift; a drift beyond `tolerance` becomes a problem."""

    def __init__(self, estimator: Estimator, tolerance: float) -> None:
        self._model, self._tolerance = estimator, tolerance
        self._waiting: list[_Waiting] = []
        self._largest: dict[str, float] = {}
        self._samples = 0

    @property
    def drift(self) -> Drift:
        return Drift(self._samples, **self._largest)

    def open_table(
        self, table: Any, rows: set[int], metadata: Mapping[str, Any], embeddings: Path, problems: Problems
    ) -> Callable[[int, RawSample], None]:
        """A function that takes the unchanged samples of one table and scores those in `rows`."""
        options = DecodeOptions.from_dict(metadata["reading"])
        beta = Beta.from_dict(metadata["beta"]) if metadata.get("beta") else None

        def take(row: int, raw: RawSample) -> None:
            if row not in rows:
                return
            sample = decode_sample(raw, self._model.preprocess, options)
            similarity, weight = (_number(table[name][row].as_py()) for name in ("similarity", "osa_weight"))
            self._waiting.append(_Waiting(sample, row, similarity, weight, beta, embeddings, problems))
            if len(self._waiting) >= self._model.batch_size:
                self.flush()

        return take

    def flush(self) -> None:
        """Score the samples that wait for a full batch."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        encoded = encode_samples(self._model, [item.sample for item in waiting], {})
        for i, item in enumerate(waiting):
            self._samples += 1
            if item.sample.status != "ok":
                item.problems.add(
                    f"its status is {item.sample.status} now ({item.sample.error}), ok in the table", item.sample.key
                )
            elif np.isnan(item.similarity):
                self._compare(item, "image", _cosine_distance(encoded.images[i], item), 0.0)
            else:
                self._compare(item, "similarity", float(encoded.similarity[i]), item.similarity)
                if item.beta is not None:
                    weight = score_pairs(encoded.similarity[i : i + 1], item.beta).osa_weight
                    self._compare(item, "weight", float(weight[0]), item.weight)

    def _compare(self, item: _Waiting, name: str, now: float | None, then: float) -> None:
        if now is None:
            return
        drift = abs(now - then) if np.isfinite(now) else 1.0
        self._largest[name] = max(drift, self._largest.get(name, 0.0))
        if drift > self._tolerance:
            what = f"{name} is {now:.6f} when scored again, {then:.6f} in the table: {drift:.1e} apart"
            if name == "image":
                what = f"the picture's embedding has moved by {drift:.1e} (one minus its cosine with the kept one)"
            item.problems.add(what, item.sample.key)


def _cosine_distance(image: NDArray[np.float32], item: _Waiting) -> float | None:
    """One minus the cosine between a new embedding and the kept one of the same row; None if none was kept."""
    try:
        with safe_open(item.embeddings, framework="numpy") as file:
            kept = file.get_slice("image")[item.row : item.row + 1][0].astype(np.float64)
    except (OSError, SafetensorError):
        return None
    if kept.shape != image.shape:
        return 1.0
    length = float(np.linalg.norm(kept) * np.linalg.norm(image))
    return float(1 - min(1.0, kept @ image / length)) if length else 1.0


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
