"""One run by several nodes without an engine between them: each takes its part of the shards, the last one scores.

All they share is the folder. `_nodes/plan.json` says which node has which shard and stays until the run is scored, so
that nodes which are killed and started again find the same parts; `_nodes/R.json` has what node R could not read.
"""

import hashlib
import heapq
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError, LockedError, ShardError
from noisegate.pipeline.runs.lock import folder_lock, shared_lock
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.system.output_files import write_atomically

__all__ = ["NodeShare", "Nodes", "forget_plan", "parts"]


@dataclass(frozen=True)
class Nodes:
    """This node is number `rank` of `count`, counted from 0."""

    rank: int
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"nodes {self.count} is no number of nodes; use --nodes 4 --node-rank 0")
        if not 0 <= self.rank < self.count:
            raise ConfigError(f"node-rank {self.rank} is none of {self.count} nodes; use 0 to {self.count - 1}")

    @classmethod
    def read(cls, nodes: str | None, rank: int | None, environment: Mapping[str, str] = os.environ) -> "Nodes | None":
        """From the two options; `slurm` takes both from srun's variables. None where neither is given.

        >>> Nodes.read("slurm", None, {"SLURM_PROCID": "2", "SLURM_NTASKS": "8"})
        Nodes(rank=2, count=8)
        """
        if nodes is None and rank is None:
            return None
        if nodes == "slurm":
            count = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS")
            if rank is not None:
                raise ConfigError(f"--nodes slurm knows its number itself; leave out --node-rank {rank}")
            number = environment.get("SLURM_PROCID")
            if count is None or number is None:
                raise ConfigError("--nodes slurm finds no SLURM_PROCID and SLURM_NTASKS; start it with srun")
            if not all(text.isascii() and text.isdigit() for text in (number, count)):
                raise ConfigError(
                    f"SLURM_PROCID {number!r} of {count!r} tasks is no node's number; start it with srun, or give "
                    "--nodes 4 --node-rank 0"
                )
            return cls(int(number), int(count))
        if nodes is None or rank is None:
            raise ConfigError("--nodes and --node-rank belong together; use --nodes 4 --node-rank 0")
        if not (nodes.isascii() and nodes.isdigit()):
            raise ConfigError(f"nodes {nodes!r} is neither a number nor slurm; use --nodes 4 --node-rank 0")
        return cls(rank, int(nodes))


def parts(sizes: Sequence[int | None], count: int) -> list[int]:
    """The node of each shard: the largest first, each to the node with the fewest bytes so far.

    A size that is not known counts as the mean of those that are.

    >>> parts([10, 30, 20, None], 2)
    [0, 0, 1, 1]
    """
    known = [size for size in sizes if size is not None]
    usual = sum(known) / len(known) if known else 1.0
    weights = [usual if size is None else float(size) for size in sizes]
    loads = [(0.0, rank) for rank in range(count)]
    found = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: (-weights[i], i)):
        load, found[i] = heapq.heappop(loads)
        heapq.heappush(loads, (load + weights[i], found[i]))
    return found


class NodeShare:
    """What one node has of the run in `folder`, and how it keeps out of the others' way."""

    def __init__(self, folder: Path, nodes: Nodes) -> None:
        self._folder, self._nodes = folder, nodes
        self._plan_file = folder / "_nodes" / "plan.json"

    def holding_rank(self) -> AbstractContextManager[str]:
        """Nobody else is this node; raises LockedError."""
        return folder_lock(self._folder / "_nodes" / str(self._nodes.rank))

    def planning(self) -> AbstractContextManager[str]:
        """One node at a time, the others wait: for what is read, changed and written in one go."""
        return folder_lock(self._folder / "_nodes" / "plan", wait=True)

    @contextmanager
    def at_work(
        self,
        shards: Sequence[Shard],
        settings: Mapping[str, Any],
        fresh: Callable[[], None],
        note: Callable[[str], None],
    ) -> Iterator[list[Shard]]:
        """This node's shards; while it encodes them nobody scores. `fresh` is called where a new plan begins."""
        facts = {"nodes": self._nodes.count, "shards": len(shards)}
        text = json.dumps([facts, settings, [shard.url for shard in shards]], sort_keys=True)
        key = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
        ranks: list[int] = []

        def begin(alone: bool) -> None:
            plan = self._read(self._plan_file)
            if plan.get("key") != key:
                if not alone:
                    there, here = (f"{p.get('shards')} shards for {p.get('nodes')} nodes" for p in (plan, facts))
                    raise LockedError(
                        f"{self._folder}: nodes are at work there on another plan ({there}, here {here}, or other settings); "
                        "wait for them, or choose another --out"
                    )
                forget_plan(self._folder)
                fresh()
                plan = {**facts, "key": key, "ranks": parts(_sizes(shards), self._nodes.count)}
                write_atomically(self._plan_file, json.dumps(plan).encode())
            ranks.extend(plan["ranks"])
            self._report_file(self._nodes.rank).unlink(missing_ok=True)

        with ExitStack() as held:
            with self.planning():
                held.enter_context(shared_lock(self._folder, begin, note))
            yield [shard for shard, rank in zip(shards, ranks, strict=True) if rank == self._nodes.rank]

    def report(self, failed: Mapping[str, str]) -> None:
        """What this node could not read, for the one that scores."""
        write_atomically(self._report_file(self._nodes.rank), json.dumps(failed).encode())

    def absent(self) -> list[int]:
        """Nodes that have not done their part since the plan was made."""
        return [rank for rank in range(self._nodes.count) if not self._report_file(rank).exists()]

    def failed(self) -> dict[str, str]:
        """What any node could not read: url and reason."""
        found: dict[str, str] = {}
        for rank in range(self._nodes.count):
            found |= self._read(self._report_file(rank))
        return found

    def _report_file(self, rank: int) -> Path:
        return self._plan_file.with_name(f"{rank}.json")

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        """Empty where there is none, or none that is whole."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def forget_plan(folder: Path) -> None:
    """The run in `folder` is scored, or begins anew: no plan, no reports."""
    for path in (folder / "_nodes").glob("*.json"):
        path.unlink(missing_ok=True)


def _sizes(shards: Sequence[Shard]) -> list[int | None]:
    def size(shard: Shard) -> int | None:
        try:
            return shard.size_and_time()[0]
        except ShardError:
            return None  # its node will say so

    with ThreadPoolExecutor(16) as pool:  # a store far away takes its time for each
        return list(pool.map(size, shards))
