"""Whether the report's memory depends on the number of rows: its peak over 200,000 rows, and over a tenth of them.

    python -m benchmarks.report [--rows 200000] [--json]

Rows are synthetic, with labels; the smaller run has its shards, and so pictures.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.memory import peak_mb
from benchmarks.synthetic_run import write_synthetic_run

GOAL_MB = 1000


def peak(folder: Path) -> float:
    """Megabytes that a process of its own needs at most to write the report of a run."""
    command = [sys.executable, "-m", "benchmarks.report", "--report", str(folder)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def report_and_print_peak(folder: str) -> None:
    from noisegate.pipeline.inspect.report import write_report

    write_report(folder)
    print(peak_mb())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--report", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.report:
        return report_and_print_peak(given.report)
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        for rows in (given.rows // 10, given.rows):
            folder = write_synthetic_run(Path(name) / str(rows), rows, max(1, rows // 10_000), True, rows < given.rows)
            figures[f"report_{rows}_rows_mb"] = peak(folder)
    if given.json:
        print(json.dumps(figures))
        return None
    for name, value in figures.items():
        print(f"{name:28} {value:8.0f}  goal < {GOAL_MB}")
    return None


if __name__ == "__main__":
    main()
