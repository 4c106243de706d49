"""Some samples scored once more, and how far the numbers have moved."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.estimators.base import Estimator
from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.pairs.scorer import encode, score_pairs
from noisegate.pipeline.shards.read import RawSample
from noisegate.pipeline.shards.workers import Decoded, DecodeOptions, decode_sample

from .problems import Problems

__all__ = ["Drift", "Rescoring", "no_frozen_model", "recorded_model"]


@dataclass(frozen=True)
class Drift:
    """The largest difference between a table and its samples scored again; None where there was nothing to compare.

    `image` is one minus the cosine of a picture's embedding, kept and new: for samples without a caption.
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


def no_frozen_model(run: Mapping[str, Any]) -> bool:
    """Whether a training wrote the tables from shards alone: its own network judged them while it learnt."""
    return not run.get("model") and "method" in run


def recorded_model(run: Mapping[str, Any], device: str = "auto", batch_size: int | None = None) -> ModelSpec:
    """The model that a run names, in the precision that it was scored in; raises ConfigError where it names none."""
    model = run.get("model")
    if not model:
        raise ConfigError(
            "the run does not record how its model is loaded (it was given as an object); "
            "name it with --model, or check all else with --no-rescore"
        )
    own = model["model"].startswith("python:")
    return ModelSpec(
        model["model"],
        model["pretrained"],
        "auto" if own else device,
        dtype_of(run, model["model"]),
        batch_size,
        model.get("draft", False),
    )


def dtype_of(run: Mapping[str, Any], model: str) -> str:
    """What the run was computed in, which `auto` may not choose on another machine."""
    return "auto" if model.startswith("python:") else str(run["scorer"]["dtype"])


@dataclass
class _Waiting:
    sample: Decoded
    row: int
    similarity: float
    weight: float
    beta: Beta | None
    embeddings: Path
    problems: Problems


class Rescoring:
    """Encodes samples in batches and remembers the largest drift; what is beyond `tolerance` becomes a problem."""

    def __init__(self, estimator: Estimator, tolerance: float) -> None:
        self._model, self._tolerance = estimator, tolerance
        self._waiting: list[_Waiting] = []
        self._largest: dict[str, float] = {}
        self._samples = 0

    @property
    def drift(self) -> Drift:
        return Drift(self._samples, **self._largest)

    def taker(
        self, table: Any, rows: set[int], metadata: Mapping[str, Any], embeddings: Path, problems: Problems
    ) -> Callable[[int, RawSample], None]:
        """What to call with the unchanged samples of one table; only those in `rows` are scored."""
        options = DecodeOptions.from_record(metadata["reading"])
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
        """Score what waits."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        found = encode(self._model, [one.sample for one in waiting], {})
        for i, one in enumerate(waiting):
            self._samples += 1
            if one.sample.status != "ok":
                one.problems.add(
                    f"its status is {one.sample.status} now ({one.sample.error}), ok in the table", one.sample.key
                )
            elif np.isnan(one.similarity):
                self._compare(one, "image", _cosine_distance(found.images[i], one), 0.0)
            else:
                self._compare(one, "similarity", float(found.similarity[i]), one.similarity)
                if one.beta is not None:
                    weight = score_pairs(found.similarity[i : i + 1], one.beta).osa_weight
                    self._compare(one, "weight", float(weight[0]), one.weight)

    def _compare(self, one: _Waiting, name: str, now: float | None, then: float) -> None:
        if now is None:
            return
        drift = abs(now - then) if np.isfinite(now) else 1.0
        self._largest[name] = max(drift, self._largest.get(name, 0.0))
        if drift > self._tolerance:
            what = f"{name} is {now:.6f} when scored again, {then:.6f} in the table: {drift:.1e} apart"
            if name == "image":
                what = f"the picture's embedding has moved by {drift:.1e} (one minus its cosine with the kept one)"
            one.problems.add(what, one.sample.key)


def _cosine_distance(image: NDArray[np.float32], one: _Waiting) -> float | None:
    """Between a new embedding and the one kept of the same row; None where none was kept."""
    try:
        with safe_open(one.embeddings, framework="numpy") as file:
            kept = file.get_slice("image")[one.row : one.row + 1][0].astype(np.float64)
    except (OSError, SafetensorError):
        return None
    if kept.shape != image.shape:
        return 1.0
    length = float(np.linalg.norm(kept) * np.linalg.norm(image))
    return float(1 - min(1.0, kept @ image / length)) if length else 1.0


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
