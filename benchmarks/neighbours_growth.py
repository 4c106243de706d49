"""How the neighbour graph's cost grows with its rows: each size and kind in a process of its own, exponents fitted.

python -m benchmarks.neighbours_growth
python -m benchmarks.neighbours_growth --exact 10000,50000 --ivf 10000,100000 --json
python -m benchmarks.neighbours_growth --exact 100000,1000000 --ivf "" --queries 8192

With `--queries` an exact search is done for the first so many rows only, each compared with every row, and its processor
seconds are scaled to all rows: every row costs the same.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import peak_mb

ROOT = Path(__file__).parents[1]
PER_FILE = 50_000


def write_rows(folder: Path, rows: int, width: int) -> list[str]:
    """Rows around 1,000 directions, whose spread hides most of their class, as float16 embedding files of a run."""
    from noisegate.pipeline.runs.embeddings import write_embeddings

    rng = np.random.default_rng(0)
    centres = rng.standard_normal((1000, width)).astype(np.float32)
    files = []
    for start in range(0, rows, PER_FILE):
        count = min(PER_FILE, rows - start)
        block = centres[rng.integers(0, 1000, count)] + rng.standard_normal((count, width), dtype=np.float32)
        block /= np.linalg.norm(block, axis=1, keepdims=True)
        path = folder / f"{start:09d}.safetensors"
        write_embeddings(path, block, np.zeros((count, 0)), {})
        files.append(str(path))
    return files


def one(kind: Any, rows: int, width: int, k: int, memory: str | None) -> dict[str, Any]:
    """Seconds, processor seconds and peak memory of one graph, made by this process."""
    from noisegate.pipeline.neighbours import NeighbourSearch, find_neighbours_on_disk
    from noisegate.pipeline.runs.rows import MappedRows
    from noisegate.pipeline.system.machine import read_size

    with tempfile.TemporaryDirectory() as name:
        mapped = MappedRows(write_rows(Path(name), rows, width), "image")
        search = NeighbourSearch(read_size(memory) if memory else None, kind)
        start, work = time.perf_counter(), time.process_time()
        graph = find_neighbours_on_disk(
            mapped,
            k,
            Path(name) / "neighbours.safetensors",
            made_from="benchmark",
            search=search,
            note=lambda text: print(text, file=sys.stderr),
        )
        return {
            "kind": graph.kind,
            "rows": rows,
            "seconds": round(time.perf_counter() - start, 2),
            "cpu_seconds": round(time.process_time() - work, 2),
            "peak_mb": round(peak_mb()),
            "recall": graph.recall,
        }


def some_queries(queries: int, rows: int, width: int, k: int) -> dict[str, Any]:
    """Figures of an exact search, from the first `queries` rows compared with all."""
    import faiss

    from noisegate.pipeline.neighbours.exact import ExactIndex
    from noisegate.pipeline.neighbours.plan import QUERIES
    from noisegate.pipeline.runs.rows import MappedRows

    with tempfile.TemporaryDirectory() as name:
        mapped = MappedRows(write_rows(Path(name), rows, width), "image")
        unit = np.concatenate([block for _, block in mapped.chunks(PER_FILE)]).astype(np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    faiss.omp_set_num_threads(1)
    index = ExactIndex(faiss, unit)
    start, work = time.perf_counter(), time.process_time()
    for first in range(0, queries, QUERIES):
        index.nearest(unit[first : min(first + QUERIES, queries)], k + 1)
    took = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - work}
    scaled = {what: round(value * rows / queries, 2) for what, value in took.items()}
    return {"kind": "flat", "rows": rows, **scaled, "peak_mb": round(peak_mb()), "recall": None}


def exponent(results: Sequence[dict[str, Any]]) -> float | None:
    """Slope of log processor seconds over log rows; None for one size."""
    if len(results) < 2:
        return None
    rows, seconds = (np.log([result[name] for result in results]) for name in ("rows", "cpu_seconds"))
    return float(np.polyfit(rows, seconds, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exact", default="10000,30000,100000", help="sizes that are compared row by row")
    parser.add_argument("--ivf", default="10000,100000,1000000", help="sizes through an inverted file")
    parser.add_argument("--ivf-pq", default="", help="sizes through a compressed inverted file")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--memory", help="as --neighbour-memory")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--queries", type=int, help="rows to search exactly, of all; the figures are scaled")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one and options.queries and options.one[0] == "flat":
        print(json.dumps(some_queries(options.queries, int(options.one[1]), options.width, options.k)))
        return
    if options.one:
        print(json.dumps(one(options.one[0], int(options.one[1]), options.width, options.k, options.memory)))
        return
    results: dict[str, list[dict[str, Any]]] = {}
    for kind, sizes in (("flat", options.exact), ("ivf", options.ivf), ("ivf-pq", options.ivf_pq)):
        for size in filter(None, sizes.split(",")):
            words = [sys.executable, "-m", "benchmarks.neighbours_growth", "--one", kind, size]
            words += ["--width", str(options.width), "--k", str(options.k)]
            words += ["--memory", options.memory] if options.memory else []
            words += ["--queries", str(options.queries)] if options.queries else []
            answer = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout
            results.setdefault(kind, []).append(json.loads(answer))
            print(answer.strip(), file=sys.stderr, flush=True)
    exponents = {kind: exponent(found) for kind, found in results.items()}
    if options.json:
        print(json.dumps({"width": options.width, "k": options.k, "results": results, "exponents": exponents}))
        return
    print(f"| kind | rows (d = {options.width}, k = {options.k}) | CPU seconds | seconds | peak MB | recall |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for found in results.values():
        for result in found:
            recall = "exact" if result["recall"] is None else f"{result['recall']:.3f}"
            print(
                f"| {result['kind']} | {result['rows']:,} | {result['cpu_seconds']:,} | {result['seconds']:,} | "
                f"{result['peak_mb']:,} | {recall} |"
            )
    for kind, value in exponents.items():
        print(f"{kind}: " + ("one size, no exponent" if value is None else f"CPU seconds grow with rows^{value:.2f}"))


if __name__ == "__main__":
    main()
