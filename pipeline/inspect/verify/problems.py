"""What `verify` finds wrong, said so that it can be looked up: the shard, the sample, and what differs."""

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Problem", "Problems"]

KEPT = 100  # problems kept word for word; all are counted


@dataclass(frozen=True)
class Problem:
    """One thing that is not as the table says. `shard` is a file's name, `key` a sample's; None where it is about neither.

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
    """The first hundred problems and the number of all, so that a shard that was swapped does not fill the memory."""

    def __init__(self, shard: str | None = None) -> None:
        self.shard = shard
        self.kept: list[Problem] = []
        self.count = 0

    def add(self, what: str, key: str | None = None) -> None:
        self.count += 1
        if len(self.kept) < KEPT:
            self.kept.append(Problem(self.shard, key, what))

    def lead(self, what: str) -> None:
        """Of the file itself: before what is wrong with its samples."""
        self.count += 1
        self.kept.insert(0, Problem(self.shard, None, what))

    def merge(self, other: "Problems") -> None:
        self.count += other.count
        self.kept = (self.kept + other.kept)[:KEPT]
