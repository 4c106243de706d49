"""What it takes to check a run: peak memory of verify, compare and show over 200,000 rows, and over a tenth of them.

    python -m benchmarks.verify [--rows 200000] [--json]

Rows are synthetic, with their shards: verify reads every byte again and scores 200 samples again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.memory import peak_mb
from benchmarks.synthetic_run import write_synthetic_run

ROOT = Path(__file__).resolve().parents[1]
GOAL_MB = 1000
COMMANDS = ("verify", "compare", "show")


def measured(command: str, folder: Path) -> dict[str, float]:
    """Megabytes at most, and rows a second, of one command in a process of its own."""
    arguments = [sys.executable, "-m", "benchmarks.verify", "--command", command, "--folder", str(folder)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def run_and_print(command: str, folder: str) -> None:
    sys.path.insert(0, str(ROOT))  # the run's model is benchmarks.synthetic_run:ByteModel
    began = time.monotonic()
    if command == "verify":
        from noisegate.pipeline.inspect.verify import verify

        found = verify(folder, trust=True)
        if not found.ok:
            sys.exit("\n".join(map(str, found.problems)))
        rows = found.samples
    elif command == "compare":
        from noisegate.pipeline.inspect.compare import compare

        rows = compare(folder, folder).matched
    else:
        from noisegate.pipeline.inspect.show import read_overview

        rows = read_overview(folder).summary.samples
    seconds = time.monotonic() - began
    print(json.dumps({"mb": peak_mb(), "rows_per_s": rows / seconds}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--command", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.command:
        return run_and_print(given.command, given.folder)
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        for rows in (given.rows // 10, given.rows):
            folder = write_synthetic_run(Path(name) / str(rows), rows, max(1, rows // 10_000), False, True)
            for command in COMMANDS:
                figures[f"{command}_{rows}_rows"] = measured(command, folder)
    if given.json:
        print(json.dumps(figures))
        return None
    for name, found in figures.items():
        print(f"{name:24} {found['mb']:6.0f} MB  goal < {GOAL_MB}  {found['rows_per_s']:9,.0f} rows/s")
    return None


if __name__ == "__main__":
    main()
