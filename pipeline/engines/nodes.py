"""One run by several nodes that share only its folder: each encodes its part of the shards, the last one scores.

`_nodes/plan.json` assigns shards to nodes and stays until the run is scored, so that a restarted node finds the same part;
`_nodes/R.json` lists the shards that node R could not read.
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


@dataclass(frozen=True)
class Nodes:
    """This node is number `rank` of `count`, counted from 0."""

    rank: int
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError.of("nodes", self.count, "is not a number of nodes; use --nodes 4 --node-rank 0")
        if not 0 <= self.rank < self.count:
            raise ConfigError.of("node-rank", self.rank, f"is not one of {self.count} nodes; use 0 to {self.count - 1}")

    @classmethod
    def read(cls, nodes: str | None, rank: int | None, environment: Mapping[str, str] = os.environ) -> "Nodes | None":
        """Read the two options; `slurm` takes both from srun's variables. None if neither is given.

        >>> Nodes.read("slurm", None, {"SLURM_PROCID": "2", "SLURM_NTASKS": "8"})
        Nodes(rank=2, count=8)
        """
        if nodes is None and rank is None:
            return None
        if nodes == "slurm":
            count = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS")
            if rank is not None:
                raise ConfigError.of("node-rank", rank, "is what --nodes slurm finds itself; leave it out")
            number = environment.get("SLURM_PROCID")
            if count is None or number is None:
                raise ConfigError.of("nodes", nodes, "needs SLURM_PROCID and SLURM_NTASKS; start it with srun")
            if not all(text.isascii() and text.isdigit() for text in (number, count)):
                raise ConfigError.of("nodes", nodes, f"finds rank {number!r} of {count!r}; start it with srun")
            return cls(int(number), int(count))
        if nodes is None or rank is None:
            missing = "nodes" if nodes is None else "node-rank"
            raise ConfigError("nodes and node-rank belong together; use --nodes 4 --node-rank 0", missing)
        if not (nodes.isascii() and nodes.isdigit()):
            raise ConfigError.of("nodes", nodes, "is neither a number nor slurm; use --nodes 4 --node-rank 0")
        return cls(rank, int(nodes))


def assign_shards(sizes: Sequence[int | None], count: int) -> list[int]:
    """Rank of the node for each shard: largest first, each to the node with the fewest bytes so far.

    An unknown size counts as the mean of the known ones.

    >>> assign_shards([10, 30, 20, None], 2)
    [0, 0, 1, 1]
    """
    known = [size for size in sizes if size is not None]
    mean = sum(known) / len(known) if known else 1.0
    weights = [mean if size is None else float(size) for size in sizes]
    loads = [(0.0, rank) for rank in range(count)]
    ranks = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: (-weights[i], i)):
        load, ranks[i] = heapq.heappop(loads)
        heapq.heappush(loads, (load + weights[i], ranks[i]))
    return ranks


class NodeShare:
    """One node's part of the run in `folder`, and the locks that keep nodes apart."""

    def __init__(self, folder: Path, nodes: Nodes) -> None:
        self._folder, self._nodes = folder, nodes
        self._plan_file = folder / "_nodes" / "plan.json"

    def lock_rank(self) -> AbstractContextManager[str]:
        """Hold this node's rank; raise LockedError if another process has it."""
        return folder_lock(self._folder / "_nodes" / str(self._nodes.rank))

    def lock_plan(self) -> AbstractContextManager[str]:
        """Wait for the lock on the files that all nodes read and change."""
        return folder_lock(self._folder / "_nodes" / "plan", wait=True)

    @contextmanager
    def take_shards(
        self,
        shards: Sequence[Shard],
        settings: Mapping[str, Any],
        start_over: Callable[[], None],
        note: Callable[[str], None],
    ) -> Iterator[list[Shard]]:
        """Yield this node's shards; no node scores while this one encodes. `start_over` is called before a new plan is made."""
        facts = {"nodes": self._nodes.count, "shards": len(shards)}
        text = json.dumps([facts, settings, [shard.url for shard in shards]], sort_keys=True)
        key = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
        ranks: list[int] = []

        def begin(alone: bool) -> None:
            plan = self._read(self._plan_file)
            if plan.get("key") != key:
                if not alone:
                    there, here = (f"{p.get('shards')} shards for {p.get('nodes')} nodes" for p in (plan, facts))
                    raise LockedError.of(
                        "out",
                        str(self._folder),
                        f"has nodes at work on another plan ({there}, here {here}, or other settings); use another --out",
                    )
                remove_plan(self._folder)
                start_over()
                plan = {**facts, "key": key, "ranks": assign_shards(_sizes(shards), self._nodes.count)}
                write_atomically(self._plan_file, json.dumps(plan).encode())
            ranks.extend(plan["ranks"])
            self._report_file(self._nodes.rank).unlink(missing_ok=True)

        with ExitStack() as held:
            with self.lock_plan():
                held.enter_context(shared_lock(self._folder, begin, note))
            yield [shard for shard, rank in zip(shards, ranks, strict=True) if rank == self._nodes.rank]

    def report(self, failed: Mapping[str, str]) -> None:
        """Write which shards this node could not read, for the node that scores."""
        write_atomically(self._report_file(self._nodes.rank), json.dumps(failed).encode())

    def missing_nodes(self) -> list[int]:
        """Return the ranks of nodes that have not finished their part of the plan."""
        return [rank for rank in range(self._nodes.count) if not self._report_file(rank).exists()]

    def failed(self) -> dict[str, str]:
        """Return the unreadable shards of all nodes: the reason by url."""
        reasons: dict[str, str] = {}
        for rank in range(self._nodes.count):
            reasons |= self._read(self._report_file(rank))
        return reasons

    def _report_file(self, rank: int) -> Path:
        return self._plan_file.with_name(f"{rank}.json")

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        """Read a JSON object; empty if there is no complete one."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return values if isinstance(values, dict) else {}


def remove_plan(folder: Path) -> None:
    """Remove the plan and the nodes' reports: the run is scored, or starts over."""
    for path in (folder / "_nodes").glob("*.json"):
        path.unlink(missing_ok=True)


def _sizes(shards: Sequence[Shard]) -> list[int | None]:
    def size(shard: Shard) -> int | None:
        try:
            return shard.estimated_size()
        except ShardError:
            return None  # the shard's node reports the error

    with ThreadPoolExecutor(16) as pool:  # a remote store takes long for each request
        return list(pool.map(size, shards))
