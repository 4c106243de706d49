"""Minutes of `noisegate annotate` under everything that goes wrong in practice; nothing may be lost, doubled or leak.

    python -m benchmarks.soak [--minutes 30] [--seed 0] [--json]

The shards hold corrupt samples, one of them is cut off, and they come from a slow store that sometimes answers 503 or
drops the connection. Rounds are of two kinds, in turn: in the first the job itself and its decode workers are killed
(kill -9) at random moments, also while it writes its scores; in the second only workers are, so that one process lives
long enough to show a leak. A job that ends is started again until it says that all is done. Then every table is compared
with what the shards were made from, and every file, byte by byte, with those of a run that nobody disturbed.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.faulty_store import Faults, serving
from benchmarks.tiny_shards import MODEL, Made, tiny_shard

ROOT = Path(__file__).resolve().parents[1]
LOOK = 0.5  # seconds between two looks at the job
SETTLED = 30  # seconds of work after which a job has all it needs in memory
MANY = 5  # problems after which there is no point in going on
FLAT = 1.05  # memory at the end of a job's life over that at its middle


@dataclass
class Life:
    """One process of the job: how it ended, its peak, and its memory while it encodes, in megabytes by seconds of work."""

    round: int
    ended: str = ""
    peak: float = 0.0
    memory: list[tuple[float, float]] = field(default_factory=list)

    @property
    def growth(self) -> float | None:
        """Median memory of the last third of its life over that of the middle third; None for one that died young."""
        ages = [age for age, _ in self.memory if age > SETTLED]
        if len(ages) < 60:
            return None
        settled = [size for age, size in self.memory if age > SETTLED]
        third = len(settled) // 3
        middle, last = sorted(settled[third : 2 * third]), sorted(settled[2 * third :])
        return last[len(last) // 2] / middle[len(middle) // 2]


@dataclass
class Soak:
    """What was done to the job, and what came of it."""

    folder: Path
    url: str
    made: dict[str, Made]
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    lives: list[Life] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def start(self, out: Path) -> "subprocess.Popen[bytes]":
        self.counts["starts"] += 1
        with (self.folder / "job.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "noisegate", "annotate"),
                    *(f"{self.url}{name}.tar" for name in sorted(self.made)),
                    *("--model", MODEL, "--beta", "intersection", "--workers", "2", "--out", str(out)),
                ],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
            )

    def round(self, number: int, until: float, kills_jobs: bool) -> None:
        """Start the job until all is done; after `until` nobody disturbs it any more."""
        out = self.folder / f"out{number}"
        killed_in_scoring = False
        while True:
            life = Life(number)
            self.lives.append(life)
            process, working = self.start(out), 0.0
            job_dies: float | None = None
            worker_dies: float | None = None
            while process.poll() is None:
                time.sleep(LOOK)
                now = time.monotonic()
                if job_dies is None:
                    if not workers_of(process.pid):
                        continue  # still starting, which a busy machine may take long for
                    job_dies = now + (self.rng.uniform(1, 90) if kills_jobs else float("inf"))
                    worker_dies, working = now + self.rng.uniform(5, 30), now
                if size := resident(process.pid):
                    life.peak = max(life.peak, size)
                    if workers_of(process.pid):  # they end before the scores are learned, which takes more for a moment
                        life.memory.append((now - working, size))
                scoring = (
                    kills_jobs and not killed_in_scoring and all((out / f"{n}.parquet").exists() for n in self.made)
                )
                if now > until:
                    continue
                if now > job_dies or scoring:
                    time.sleep(self.rng.uniform(0, LOOK))
                    killed_in_scoring = killed_in_scoring or scoring
                    process.kill()
                    self.counts["jobs killed in scoring" if scoring else "jobs killed"] += 1
                    life.ended = "killed"
                    process.wait()
                    break
                if worker_dies is not None and now > worker_dies:
                    self.counts["workers killed"] += kill_one(workers_of(process.pid), self.rng)
                    worker_dies = now + self.rng.uniform(8, 30)
            if life.ended != "killed":
                life.ended = f"exit {process.returncode}"
                self.counts[life.ended] += 1
                if process.returncode == 0:
                    return
                if process.returncode != 1:  # 1: a shard could not be read, so again
                    self.problems.append(
                        f"round {number}: the job ended with {process.returncode}: {self.last_words()}"
                    )
                    if len(self.problems) >= MANY:
                        raise SystemExit("\n".join(self.problems))

    def last_words(self) -> str:
        lines = (self.folder / "job.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def check(self, out: Path, reference: Path) -> dict[str, Any]:
        """Tables against what the shards were made from, files against those of the reference run."""
        rows: Counter[str] = Counter()
        for name, made in self.made.items():
            table = pq.read_table(out / f"{name}.parquet", columns=["key", "status", "index"])
            keys, statuses = table["key"].to_pylist(), table["status"].to_pylist()
            rows.update(statuses)
            lost, more = len(set(made.keys) - set(keys)), len(keys) - len(set(keys))
            self.counts["rows lost"] += lost
            self.counts["rows doubled"] += more
            if keys != made.keys or table["index"].to_pylist() != list(range(len(keys))):
                self.problems.append(f"{out.name}/{name}: {lost} rows lost, {more} doubled, or out of order")
            if statuses != made.statuses:
                self.problems.append(f"{out.name}/{name}: statuses {Counter(statuses)}, made {Counter(made.statuses)}")
        here, there = contents(out), contents(reference)
        other = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
        if other:
            self.problems.append(f"{out.name}: {len(other)} files differ from the undisturbed run, such as {other[0]}")
        return {"rows": sum(rows.values()), "statuses": dict(rows), "files": len(here), "identical": not other}


def resident(pid: int) -> float | None:
    """Megabytes of a process now, None where it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else None


def workers_of(pid: int) -> list[int]:
    """Decode workers: children that multiprocessing spawned, but not its resource tracker."""
    found = []
    for line in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(line.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            command = (line.parent / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue  # gone since
        if parent == pid and b"spawn_main" in command:
            found.append(int(line.parent.name))
    return sorted(found)


def kill_one(pids: list[int], rng: random.Random) -> int:
    if not pids:
        return 0
    try:
        os.kill(rng.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return 1


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run but for its lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "_lock"
    }


def soak(minutes: float, seed: int, shards: int, samples: int, folder: Path) -> dict[str, Any]:
    made = {}
    for i in range(shards):
        name = f"s-{i:06d}"
        made[name] = tiny_shard(folder / "shards" / f"{name}.tar", samples, i, corrupt=True, cut=i % 50 == 7)
    faults = Faults(bytes_per_second=200_000 * samples / 100, active=False, seed=seed)
    with serving(folder / "shards", faults) as url:
        run = Soak(folder, url, made, random.Random(seed))
        run.round(0, until=0, kills_jobs=False)  # the undisturbed one, at full speed
        faults.bytes_per_second, faults.active = 200_000.0, True
        began = time.monotonic()
        until, checks = began + 60 * minutes, []
        while time.monotonic() < until:
            number = len(checks) + 1
            run.round(number, until, kills_jobs=number % 2 == 1)
            checks.append(run.check(folder / f"out{number}", folder / "out0"))
            print(f"round {number}: {checks[-1]}, {dict(run.counts)}", file=sys.stderr, flush=True)
        lasted = time.monotonic() - began
    disturbed = [life for life in run.lives if life.round]
    grown = {f"life {i}": round(life.growth, 4) for i, life in enumerate(disturbed) if life.growth}
    leaks = [name for name, growth in grown.items() if growth > FLAT]
    run.problems += [f"{name} grew to {grown[name]:.3f} of its memory" for name in leaks]
    longest = max(disturbed, key=lambda life: len(life.memory))
    step = max(1, len(longest.memory) // 12)
    return {
        "minutes": round(lasted / 60, 1),
        "rounds": checks,
        "shards": shards,
        "samples": shards * samples,
        "counts": dict(run.counts) | {"rows lost": run.counts["rows lost"], "rows doubled": run.counts["rows doubled"]},
        "store": dict(faults.counts),
        "lives": len(disturbed),
        "memory_growth": grown,
        "peak_mb": round(max(life.peak for life in disturbed), 1),
        "longest_life_mb": [[round(age), round(size, 1)] for age, size in longest.memory[::step]],
        "problems": run.problems,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--shards", type=int, default=150)
    parser.add_argument("--samples", type=int, default=200, help="in each shard")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        figures = soak(given.minutes, given.seed, given.shards, given.samples, Path(name))
    if given.json:
        print(json.dumps(figures, indent=1))
    else:
        for name, value in figures.items():
            lines = value if isinstance(value, list) else [value]
            for line in lines or ["none"]:
                print(f"{name:16} {line}")
    sys.exit(1 if figures["problems"] else 0)


if __name__ == "__main__":
    main()
