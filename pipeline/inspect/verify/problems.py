"""The problems that `verify` finds: the shard, the sample, and what differs."""

from dataclasses import asdict, dataclass
from typing import Any

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

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


class Problems:
    """The first hundred problems and the count of all, so that a shard that was swapped does not fill the memory."""

    def __init__(self, shard: str | None = None) -> None:
        self.shard = shard
        self.kept: list[Problem] = []
        self.count = 0

    def add(self, what: str, key: str | None = None) -> None:
        self.count += 1
        if len(self.kept) < KEPT:
            self.kept.append(Problem(self.shard, key, what))

    def lead(self, what: str) -> None:
        """Add a problem of the file itself, before those of its samples."""
        self.count += 1
        self.kept.insert(0, Problem(self.shard, None, what))

    def merge(self, other: "Problems") -> None:
        self.count += other.count
        self.kept = (self.kept + other.kept)[:KEPT]
