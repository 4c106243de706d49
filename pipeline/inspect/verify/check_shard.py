"""Check a table against its shard: the same samples in the same order, with the same bytes and the same scores."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from noisegate.pipeline.errors import ShardError
from noisegate.pipeline.estimators.base import Estimator
from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.pairs.scorer import encode_samples, score_pairs
from noisegate.pipeline.runs.arrays import MODEL as ARRAYS
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.read import RawSample, ShardReader
from noisegate.pipeline.shards.workers import Decoded, decode_sample

KEPT = 100  # problems kept as text; all are counted


@dataclass(frozen=True)
class Problem:
    """One difference between a run and its data. `shard` is a file name, `key` a sample's; None if it concerns neither.

    >>> str(Problem("x-000001.tar", "000123", "the caption's bytes have changed"))
    "x-000001.tar: sample 000123: the caption's bytes have changed"
    """

    shard: str | None
    key: str | None
    what: str

    def __str__(self) -> str:
        sample = None if self.key is None else f"sample {self.key}"
        return ": ".join(part for part in (self.shard, sample, self.what) if part is not None)


class Problems:
    """The first hundred problems and the count of all, so that a wrong shard does not fill the memory."""

    def __init__(self, shard: str | None = None) -> None:
        self.shard = shard
        self.kept: list[Problem] = []
        self.count = 0

    def add(self, what: str, key: str | None = None) -> None:
        self.count += 1
        if len(self.kept) < KEPT:
            self.kept.append(Problem(self.shard, key, what))

    def lead(self, what: str) -> None:
        """Add a problem of the file itself, before the problems of its samples."""
        self.count += 1
        self.kept.insert(0, Problem(self.shard, None, what))

    def merge(self, other: "Problems") -> None:
        self.count += other.count
        self.kept = (self.kept + other.kept)[:KEPT]


def check_shard(
    shard: Shard,
    table: pa.Table,
    metadata: Mapping[str, Any],
    problems: Problems,
    unchanged: Callable[[int, RawSample], None] = lambda row, raw: None,
    advance: Callable[[int, int], None] = lambda samples, size: None,
) -> None:
    """Read the shard once and compare all of it with its table.

    `unchanged` is called with the row and the raw sample if picture, caption and label are as recorded; `advance` with the
    samples and bytes read since its last call.
    """
    facts, rows = metadata["shard"], _Rows(table, metadata, problems)
    reader, reported = ShardReader(shard, rows.image_part is not None, rows.options.limits), 0
    try:
        for raw in reader:
            row = rows.compare(raw)
            if row is not None:
                unchanged(row, raw)
            advance(1, reader.position - reported)
            reported = reader.position
    except ShardError as error:
        problems.lead(str(error))
        return
    advance(0, reader.size - reported)
    rows.finish()
    if reader.damage != facts["damage"]:
        problems.lead(f"{reader.damage or 'the shard is whole now'}; when it was scored: {facts['damage'] or 'whole'}")
    if (reader.sha256, reader.size) != (facts["sha256"], facts["size"]):
        same = "" if problems.count else "; the pictures, captions and labels of all its samples are the same"
        problems.lead(
            f"the file has changed: {reader.size:,} bytes with SHA-256 {reader.sha256[:12]}… now, "
            f"{facts['size']:,} with {facts['sha256'][:12]}… when it was scored{same}"
        )


class _Rows:
    """The rows of a table by key (repeats in order), and which of them were seen in the shard."""

    def __init__(self, table: pa.Table, metadata: Mapping[str, Any], problems: Problems) -> None:
        self.options, self._problems = DecodeOptions.from_dict(metadata["reading"]), problems
        self.image_part: str | None = metadata["reading"].get("image_part")
        self._from_arrays = metadata["scorer"]["model"] == ARRAYS
        self._keys: list[str] = table["key"].to_pylist()
        self._places: dict[str, list[int]] = {}
        for row, key in enumerate(self._keys):
            self._places.setdefault(key, []).append(row)
        self._recorded = {name: table[name] for name in ("status", "image_sha256", "text_sha256", "label")}
        self._seen = np.zeros(len(table), bool)
        self._repeats: dict[str, int] = {}
        self._last = -1
        self._in_order = True

    def compare(self, raw: RawSample) -> int | None:
        """Compare a sample with its row; return the row number if it is unchanged."""
        turn = self._repeats.get(raw.key, 0)
        places = self._places.get(raw.key, [])
        self._repeats[raw.key] = turn + 1
        if turn >= len(places):
            self._problems.add(f"in the shard, but not in the table{' this often' if places else ''}", raw.key)
            return None
        row = places[turn]
        self._seen[row] = True
        if row < self._last and self._in_order:
            self._in_order = False  # report once per shard: all following samples would be out of order too
            self._problems.add(
                f"comes after sample {self._keys[self._last]} in the shard, before it in the table", raw.key
            )
        self._last = row
        before = self._problems.count
        status, image, text, label = (column[row].as_py() for column in self._recorded.values())
        now = decode_sample(raw, None, self.options, self.image_part)
        self._digest("image", image, now.image_sha256, raw.key)
        if not (status == "bad_image" and text is None):  # a picture that crashed the decoder has no caption
            self._digest("caption", text, now.text_sha256, raw.key)
            own_label = now.label is not None or not self._from_arrays  # labels from arrays need not be in the shard
            if now.label != label and own_label:
                self._problems.add(f"the label is {now.label} now, {label} in the table", raw.key)
        return row if self._problems.count == before else None

    def _digest(self, name: str, then: bytes | None, now: bytes | None, key: str) -> None:
        if then == now:
            return
        if now is None:
            self._problems.add(f"the {name} is gone, or can no longer be read", key)
        elif then is None:
            self._problems.add(f"has {'an' if name == 'image' else 'a'} {name} now, and had none", key)
        else:
            self._problems.add(f"the {name}'s bytes have changed", key)

    def finish(self) -> None:
        """Report the rows that the shard does not have."""
        for row in np.flatnonzero(~self._seen):
            self._problems.add("in the table, but not in the shard", self._keys[row])


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


@dataclass
class _Waiting:
    """A sample that waits for its batch, with its recorded scores."""

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
        """Make a function that takes the unchanged samples of one table and scores those in `rows`."""
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
    """Compute one minus the cosine between a new embedding and the kept one of the same row; None if none was kept."""
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
