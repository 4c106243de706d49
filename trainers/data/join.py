"""Join one shard with its table: find the sample of each row, and verify that it is the sample that was scored."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError, MismatchError
from noisegate.pipeline.runs import ALL_COLUMNS, RunFolder, read_metadata
from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.shards import IMAGE_PARTS, TarSamples, decode_text
from noisegate.pipeline.system import Index

EXAMPLES = 3  # examples of a problem in a message
PROOF_COLUMNS = ("image_sha256", "text_sha256", "label")


@dataclass(frozen=True)
class ReadOverrides:
    """Where to read captions and labels in a sample, and size limits; None: as the table records."""

    text_field: str | None = None
    label_field: str | None = None
    limits: Limits | None = None


def column_values(column: pa.ChunkedArray) -> NDArray[Any]:
    """Convert a column to an array: float32 with nan for null, int64 with -1, or bool with false."""
    if pa.types.is_boolean(column.type):
        return column.fill_null(False).to_numpy()  # type: ignore[no-any-return]
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64()).fill_null(-1).to_numpy()  # type: ignore[no-any-return]
    return column.cast(pa.float32()).fill_null(float("nan")).to_numpy()  # type: ignore[no-any-return]


class JoinedShard:
    """An open shard; its rows are the table's rows, or the tar's if there is no table."""

    def __init__(
        self,
        samples: TarSamples,
        positions: Index | None,
        columns: dict[str, NDArray[Any]],
        proof: Proof | None,
        options: DecodeOptions,
    ) -> None:
        self.samples, self.columns, self.proof, self.options = samples, columns, proof, options
        self._positions = positions  # position of each row's sample in the tar, -1: missing; None: the same order

    def sample_of(self, row: int) -> int:
        """Return the position of the row's sample in the tar, -1 if it is missing."""
        return row if self._positions is None else int(self._positions[row])

    def key_of(self, row: int) -> str:
        return self.samples.key(row) if self.proof is None else str(self.proof.keys[row].as_py())

    def close(self) -> None:
        self.samples.close()


def join(
    samples: TarSamples,
    run: RunFolder | None,
    stem: str,
    columns: Sequence[str],
    overrides: ReadOverrides,
    strict: bool,
) -> JoinedShard:
    """Join an open shard with its table by key; `strict` raises MismatchError if a key is missing on either side.

    Verification reads captions and labels as the table records; `overrides` change only what is delivered.
    """
    if run is None:
        options = DecodeOptions(("pairs",), overrides.text_field, overrides.label_field, overrides.limits or Limits())
        return JoinedShard(samples, None, {}, None, options)
    metadata = read_metadata(run.table(stem))
    table = run.read(stem, ["key", *PROOF_COLUMNS, *(name for name in columns if name not in PROOF_COLUMNS)])
    keys = table["key"].combine_chunks()
    positions = _match_keys(samples, keys, strict)
    scored = DecodeOptions.from_dict(metadata["reading"])
    options = DecodeOptions(
        scored.tasks,
        overrides.text_field or scored.text_field,
        overrides.label_field or scored.label_field,
        overrides.limits or scored.limits,
    )
    proof = Proof(keys, table, scored, metadata["reading"].get("image_part"))
    return JoinedShard(samples, positions, {name: column_values(table[name]) for name in columns}, proof, options)


def _match_keys(samples: TarSamples, keys: pa.Array, strict: bool) -> Index | None:
    """Return the tar position of each row's sample, -1 if missing; None if rows and samples have the same keys in order."""
    if pa.chunked_array([keys]).equals(samples.keys):
        return None
    waiting: dict[str, list[int]] = {}
    for position in range(len(samples) - 1, -1, -1):
        waiting.setdefault(samples.key(position), []).append(position)
    rows: list[str] = keys.to_pylist()
    positions = np.array([waiting[key].pop() if waiting.get(key) else -1 for key in rows], np.int64)
    lost = [rows[row] for row in np.flatnonzero(positions < 0)]
    extra = [key for key, left in waiting.items() for _ in left]
    if strict and (lost or extra):
        problems = []
        if lost:
            rate = f"{len(lost):,} of its table's {len(rows):,} samples ({format_share(len(lost), len(rows))})"
            problems.append(f"{rate} are not in it, such as {', '.join(lost[:EXAMPLES])}")
        if extra:
            problems.append(f"{len(extra):,} are in it and not in the table, such as {', '.join(extra[:EXAMPLES])}")
        if samples.damage:
            problems.append(samples.damage)
        advice = "annotate it again, or allow a share of differing samples such as max_mismatch 0.01"
        problem = f"shard {samples.name} is not the one that was scored: {'; '.join(problems)}; {advice}"
        raise MismatchError(problem, "max_mismatch", 0)
    return positions


def format_share(count: int, of: int) -> str:
    """Format a share in percent."""
    return f"{count / of:.2%}" if of else "0%"


class Proof:
    """Digests and labels in the table, to verify that samples have not changed.

    `image_part` is the part whose digest stands for the picture's (npy), None for pictures.
    """

    def __init__(self, keys: pa.Array, table: pa.Table, scored: DecodeOptions, image_part: str | None) -> None:
        self.keys, self.scored, self.image_part = keys, scored, image_part
        self.image_parts = (image_part,) if image_part else IMAGE_PARTS
        self._image, self._text = _digests(table["image_sha256"]), _digests(table["text_sha256"])
        self._label = column_values(table["label"])

    def has_image(self, row: int) -> bool:
        """Return whether the table has the digest of a picture."""
        return bool(self._image[row].any())

    def has_text(self, row: int) -> bool:
        """Return whether the table has the digest of a caption."""
        return bool(self._text[row].any())

    def has_label(self, row: int) -> bool:
        """Return whether the table has a given label."""
        return bool(self._label[row] >= 0)

    def check_image(self, row: int, parts: dict[str, bytes]) -> str | None:
        """Describe what has changed in the picture; None if its bytes are those that were scored."""
        data = next((parts[name] for name in self.image_parts if name in parts), None)
        return _differs("image", self._image[row].tobytes(), data)

    def image_digest(self, row: int) -> str | None:
        """Return the digest of the scored picture in hex; None if there was no picture."""
        return str(self._image[row].tobytes().hex()) if self.has_image(row) else None

    def check_text(self, row: int, parts: dict[str, bytes], text: str | None) -> str | None:
        """Describe what has changed in the caption. `text` is the caption if it was decoded as the table records, else None."""
        options = self.scored
        from_json = options.text_field is not None or "txt" not in parts
        if not from_json:
            data: bytes | None = parts["txt"]
        elif text is not None:
            data = text.encode()
        else:
            data = decode_text(parts, options.text_field, options.limits).encode()
        return _differs("caption", self._text[row].tobytes(), data)

    def check_label(self, row: int, label: int) -> str | None:
        """Describe what has changed in the label."""
        then = int(self._label[row])
        return None if label == then else f"the label is {label}, {'none' if then < 0 else then} in the table"


def _digests(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    """Return the digests as bytes, (N, 32); a null digest is all zeros, which is no real digest."""
    array = column.fill_null(bytes(32)).combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    first = array.offset * 32
    return np.frombuffer(array.buffers()[1], np.uint8)[first : first + 32 * len(array)].reshape(-1, 32)


def _differs(name: str, then: bytes, data: bytes | None) -> str | None:
    if data is None:
        return f"the {name} is gone"
    if hashlib.sha256(data).digest() == then:
        return None
    return f"the {name}'s bytes have changed" if any(then) else f"now has the {name}, and had none"


def check_columns(columns: Sequence[str]) -> None:
    """Raise ConfigError for a column that is unknown or not numeric."""
    known = [name for name, (kind, _) in ALL_COLUMNS.items() if pa.types.is_primitive(kind)]
    for name in columns:
        if name not in known:
            raise ConfigError.of("columns", name, f"is not a number of the weight table; use {', '.join(known)}")
