"""What find_neighbours costs over a bare faiss search of the same rows: both in one run, by turns, the best of each.

python benchmarks/neighbours.py --json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import faiss
import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.neighbours import find_neighbours


def bare_search(unit: NDArray[np.float32], k: int) -> None:
    """The least that any kNN needs: rows already of unit length, self not removed, ties as they come."""
    index = faiss.IndexFlatIP(unit.shape[1])
    index.add(unit)
    index.search(unit, k)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=1_280)
    parser.add_argument("--k", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    rows = np.random.default_rng(0).standard_normal((options.rows, options.width), dtype=np.float32)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    bare, ours = [], []
    for _ in range(options.rounds):
        bare.append(seconds(lambda: bare_search(unit, options.k)))
        ours.append(seconds(lambda: find_neighbours(rows, options.k)))
    result = {
        "rows": options.rows,
        "width": options.width,
        "k": options.k,
        "faiss_seconds": round(min(bare), 3),
        "find_neighbours_seconds": round(min(ours), 3),
        "ratio": round(min(ours) / min(bare), 3),
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"find_neighbours {result['find_neighbours_seconds']} s, bare faiss {result['faiss_seconds']} s, ", end=""
        )
        print(f"ratio {result['ratio']} ({options.rows:,} x {options.width:,}, k={options.k})")


if __name__ == "__main__":
    main()
