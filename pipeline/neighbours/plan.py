"""How a search is cut: base parts that fit the memory, spans of queries, and the names of the files in between."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.output_files import write_atomically

__all__ = ["Kind", "Plan", "Task", "cut"]

Kind = Literal["flat", "ivf", "ivf-pq"]
FORMAT = 2
QUERIES = 4096  # searched at a time, and
ALIGNED = 1024  # rows of a part are a multiple of it: faiss multiplies in such blocks, so the cut changes no bit
SPAN = 65_536  # queries of a task: what a kill costs at most
LONG_SPAN = 1 << 20  # where there are several parts, because each span reads all of them
MULTIPLIED = 4 * QUERIES * ALIGNED  # bytes of the products that a thread holds


@dataclass(frozen=True)
class Plan:
    """All that a task needs to know, kept as `plan.json` in the search's folder."""

    made_from: str
    tensor: str
    files: tuple[str, ...]
    shapes: tuple[tuple[int, int], ...]
    width: int
    distinct: int
    wanted: int  # entries of a list of distinct rows: the row itself and its others
    kind: Kind
    part: int
    span: int
    need: int  # bytes of memory that a task takes
    device: str
    seed: int
    threads: int = 1  # that a task may use at most: `need` counts so many
    format: int = FORMAT

    @property
    def parts(self) -> int:
        return -(-self.distinct // self.part) if self.distinct else 0

    def bounds(self, part: int) -> tuple[int, int]:
        """The distinct rows of a part, from and up to."""
        return part * self.part, min(self.distinct, (part + 1) * self.part)

    def spans(self) -> list[tuple[int, int]]:
        """The queries, in order: distinct rows from and up to."""
        return [(start, min(self.distinct, start + self.span)) for start in range(0, self.distinct, self.span)]

    def save(self, folder: Path) -> None:
        write_atomically(folder / "plan.json", json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, folder: Path) -> Plan | None:
        """None where there is none of this version."""
        try:
            found: dict[str, Any] = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if found.get("format") != FORMAT:
            return None
        shapes = tuple((rows, width) for rows, width in found.pop("shapes"))
        return cls(shapes=shapes, files=tuple(found.pop("files")), **found)


@dataclass(frozen=True)
class Task:
    """One piece of work: file names and numbers, no arrays. What it finds is in the file `name` of its folder.

    build: the inverted file of a part; search: the nearest of a span of queries in a part; exact: the same by comparing
    with every row.  `sample` takes the queries from the sample that measures the recall.
    """

    folder: str
    step: Literal["build", "search", "exact"]
    part: int
    start: int = 0
    stop: int = 0
    probes: int = 0
    sample: bool = False

    @property
    def name(self) -> str:
        if self.step == "build":
            return f"part-{self.part:05d}.faiss"
        of = f"sample-{self.probes}" if self.sample else f"{self.start:012d}"
        return f"{self.step}-{of}-{self.part:05d}.safetensors"

    @property
    def cells(self) -> str:
        """Where the cells that its queries look into are kept for the other parts."""
        return f"cells-{self.start:012d}.safetensors"


def cut(plan: Plan, memory: int, threads: int, afar: bool = False) -> Plan:
    """The plan with parts and spans that keep a task below `memory` bytes; raises ConfigError where none do.

    Tasks `afar` run on machines that may have more threads than this one: up to an eighth of the memory is for those.

    need = part × row + threads × (queries + products) + span × list
    row = 4 d (flat); 4 d + 8 (ivf); d/4 .. d/8 + 8 (ivf-pq)     list = 12 (k + 1) bytes
    """
    each = {"flat": 4 * plan.width, "ivf": 4 * plan.width + 8, "ivf-pq": plan.width // 4 + 8}[plan.kind]
    lists = 12 * plan.wanted
    a_thread = MULTIPLIED + QUERIES * (8 * plan.width + 3 * lists + 96)
    threads = max(threads, memory // 8 // a_thread) if afar else threads
    threaded = threads * a_thread
    whole = -(-max(1, plan.distinct) // ALIGNED) * ALIGNED
    for most in (SPAN, LONG_SPAN):
        span = max(QUERIES, min(most, memory // 8 // max(1, lists) // QUERIES * QUERIES))
        searching = threaded + span * lists
        room = (memory - searching) // max(1, each)
        if room >= whole:
            break
    if room < ALIGNED:
        least = threaded + ALIGNED * each
        least = max(least * 8 // 7, least + QUERIES * lists)  # a span takes an eighth, or what it must
        raise ConfigError(
            f"neighbour-memory {memory / 1e6:,.0f}MB is too little for {threads} threads with lists of {plan.wanted - 1} "
            f"rows of {plan.width} numbers; use {-(-least // 1_000_000)}MB or more"
        )
    part = min(room // ALIGNED * ALIGNED, whole)
    even = -(-whole // -(-whole // part))  # parts of one size are done at one time
    part = min(part, -(-even // ALIGNED) * ALIGNED)
    return replace(plan, part=part, span=span, need=searching + part * each, threads=threads)
