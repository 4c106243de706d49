"""Cut a search on disk into tasks: parts of the rows that fit into memory, spans of queries, and names of their files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.output_files import write_atomically

Kind = Literal["flat", "ivf", "ivf-pq"]
IndexChoice = Literal["auto", "flat", "ivf", "ivf-pq"]
FORMAT = 2
# faiss multiplies blocks of 4096 queries and 1024 rows, so cuts at these sizes do not change cosines.
QUERIES = 4096  # searched at a time
ALIGNED = 1024  # rows of a part are a multiple of this
SPAN = 65_536  # queries of a task: a killed task loses at most this many
LONG_SPAN = 1 << 20  # queries of a task if there are several parts, because each span reads all parts
PRODUCT_BYTES = 4 * QUERIES * ALIGNED  # held by each thread
ROWS_PER_CELL = 40  # to learn cells from; faiss warns below 39
ROWS_FOR_CODES = 40 * 256  # to learn the codes of compressed rows from


def check_k(k: int) -> None:
    """Raise ConfigError for k below 1."""
    if k < 1:
        raise ConfigError.of("k", k, "asks for no neighbours; use 1 or more, such as default_k(n, classes)")


def choose_kind(index: IndexChoice, rows: int, distinct: int, exact_limit: int) -> Kind:
    """Choose the kind of index: "auto" by the number of rows; with too few rows no compression, or no cells.

    >>> choose_kind("auto", 10**6, 10**6, 10**6), choose_kind("auto", 10**7, 10**7, 10**6), choose_kind("ivf-pq", 90, 90, 50)
    ('flat', 'ivf', 'ivf')
    """
    kind = index if index != "auto" else ("flat" if rows <= exact_limit else "ivf")
    if kind == "ivf-pq" and distinct < ROWS_FOR_CODES:
        kind = "ivf"
    return "flat" if distinct < ROWS_PER_CELL else kind


@dataclass(frozen=True)
class Plan:
    """The parameters of all tasks of a search, kept as `plan.json` in the search's folder."""

    made_from: str
    tensor: str
    files: tuple[str, ...]
    shapes: tuple[tuple[int, int], ...]
    width: int
    distinct: int
    wanted: int  # entries in a list of distinct rows: the row itself and its neighbours
    kind: Kind
    part: int  # distinct rows of a part
    span: int  # queries of a task
    need: int  # bytes of memory that a task takes with `threads` threads
    device: str
    seed: int
    threads: int = 1  # most that a task may use
    format: int = FORMAT

    @property
    def parts(self) -> int:
        return -(-self.distinct // self.part) if self.distinct else 0

    def bounds(self, part: int) -> tuple[int, int]:
        """Return the first distinct row of a part, and the row after its last."""
        return part * self.part, min(self.distinct, (part + 1) * self.part)

    def spans(self) -> list[tuple[int, int]]:
        """List the queries of each task, in order: first distinct row, and the row after the last."""
        return [(start, min(self.distinct, start + self.span)) for start in range(0, self.distinct, self.span)]

    def save(self, folder: Path) -> None:
        write_atomically(folder / "plan.json", json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, folder: Path) -> Plan | None:
        """Read `plan.json`; None if there is none of this version."""
        try:
            saved: dict[str, Any] = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if saved.get("format") != FORMAT:
            return None
        shapes = tuple((rows, width) for rows, width in saved.pop("shapes"))
        return cls(shapes=shapes, files=tuple(saved.pop("files")), **saved)


@dataclass(frozen=True)
class Task:
    """One piece of work, by file names and numbers; its result is the file `name` of its folder.

    build: write the inverted file of a part; search: find the nearest rows of a span of queries in a part; exact: the same
    by comparing with every row. `sample` takes the queries from the sample on which recall is measured.
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
        queries = f"sample-{self.probes}" if self.sample else f"{self.start:012d}"
        return f"{self.step}-{queries}-{self.part:05d}.safetensors"

    @property
    def cells(self) -> str:
        """File of the cells that the task's queries probe, shared by all parts."""
        return f"cells-{self.start:012d}.safetensors"


def cut(plan: Plan, memory: int, threads: int, remote: bool = False) -> Plan:
    """Choose parts and spans that keep a task below `memory` bytes; raise ConfigError if none do.

    `remote` tasks run on machines that may have more threads than this one: up to 1/8 of the memory is reserved for these.

    need = part × row + threads × (queries + products) + span × list
    row = 4 d (flat); 4 d + 8 (ivf); d/4 .. d/8 + 8 (ivf-pq)     list = 12 (k + 1) bytes
    """
    each = {"flat": 4 * plan.width, "ivf": 4 * plan.width + 8, "ivf-pq": plan.width // 4 + 8}[plan.kind]
    lists = 12 * plan.wanted
    a_thread = PRODUCT_BYTES + QUERIES * (8 * plan.width + 3 * lists + 96)
    threads = max(threads, memory // 8 // a_thread) if remote else threads
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
        least = max(least * 8 // 7, least + QUERIES * lists)  # a span takes 1/8 of the memory, or more if it needs more
        enough = f"{-(-least // 1_000_000)}MB or more"
        raise ConfigError.of("neighbour-memory", memory, f"bytes are too few for {threads} threads; use {enough}")
    part = min(room // ALIGNED * ALIGNED, whole)
    even = -(-whole // -(-whole // part))  # parts of equal size finish at the same time
    part = min(part, -(-even // ALIGNED) * ALIGNED)
    return replace(plan, part=part, span=span, need=searching + part * each, threads=threads)
