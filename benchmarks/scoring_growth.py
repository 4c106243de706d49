"""How memory grows where labels and neighbourhoods are scored: one size and eight times that, each in its own process.

    python -m benchmarks.scoring_growth [--rows 12000] [--times 8] [--json]

Rows of 64 numbers around 20 directions, lists of 40 neighbours that are drawn, not searched: what searching takes is in
neighbours_growth. All limits of what is held at a time (rows that the probe trains on, posteriors, votes, gathered
neighbours) are set so low that both sizes are beyond them; so what is left to grow is what each row takes. Memory is that
of the process itself: pages of mapped files, which the system takes back when it likes, do not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import peak_of_its_own_mb

ROOT = Path(__file__).parents[1]
WIDTH, CLASSES, NEIGHBOURS, SHARD = 64, 20, 40, 2_000


def write_run(folder: Path, rows: int) -> list[str]:
    """Embeddings, tables with labels of which a fifth is wrong, and a graph in which neighbours are mostly of one class."""
    import pyarrow as pa

    from noisegate.pipeline.neighbours.graph import create_graph
    from noisegate.pipeline.runs.embeddings import write_embeddings
    from noisegate.pipeline.runs.table import VERSION, RunFolder, table_from

    rng, run, stems = np.random.default_rng(0), RunFolder(folder), []
    centres = 2 * rng.standard_normal((CLASSES, WIDTH), dtype=np.float32)
    graphs = [
        create_graph(folder / f"{name}.safetensors", (rows, NEIGHBOURS), np.int32, "flat", None, {})
        for name in ("neighbours", "text_neighbours")
    ]
    for start in range(0, rows, SHARD):
        count, stem = min(SHARD, rows - start), f"s-{start // SHARD:05d}"
        truth = (start + np.arange(count)) % CLASSES
        image = centres[truth] + rng.standard_normal((count, WIDTH), dtype=np.float32)
        text = image + rng.standard_normal((count, WIDTH), dtype=np.float32)
        facts = {"name": stem, "sha256": "", "size": 0, "rows": count}
        write_embeddings(run.embeddings(stem), image, text, {"shard": facts})
        columns = {
            "key": [f"{start + i:09d}" for i in range(count)],
            "index": np.arange(count, dtype=np.int32),
            "status": ["ok"] * count,
            "label": pa.array(np.where(rng.random(count) < 0.2, rng.integers(0, CLASSES, count), truth), pa.int32()),
            "flags": [[] for _ in range(count)],
        }
        run.write_table(stem, table_from(columns, {"table_version": VERSION, "shard": facts}))
        stems.append(stem)
        for graph in graphs:
            other = rng.integers(0, rows // CLASSES, (count, NEIGHBOURS)) * CLASSES + truth[:, None]
            graph["indices"][start : start + count] = np.where(rng.random(other.shape) < 0.9, other, other // CLASSES)
            graph["similarities"][start : start + count] = 0.5
    return stems


def one(folder: Path, rows: int) -> dict[str, Any]:
    """Peak memory of the two scores, from the files in `folder`."""
    from noisegate.pipeline.labels import fusion, probe
    from noisegate.pipeline.labels.scoring import score_labels
    from noisegate.pipeline.labels.tango import row_votes, visual
    from noisegate.pipeline.neighbours import Neighbours
    from noisegate.pipeline.pairs import neighbourhood
    from noisegate.pipeline.pairs.neighbourhood import score_neighbourhood
    from noisegate.pipeline.runs.rows import MappedRows
    from noisegate.pipeline.runs.table import RunFolder

    run, stems = RunFolder(folder), [f"s-{i:05d}" for i in range(-(-rows // SHARD))]
    row_votes.HELD, neighbourhood.GATHERED, probe.READ = 1 << 17, 1 << 20, 1 << 17
    visual.chunk_rows.__defaults__ = (200_000,)
    (fusion.fuse.__kwdefaults__ or {})["entries"] = 200_000
    images, texts = MappedRows.of_run(run, stems, "image"), MappedRows.of_run(run, stems, "text")
    given = np.concatenate([run.read(stem, ["label"])["label"].to_numpy() for stem in stems]).astype(np.int64)
    graph, of_texts = (Neighbours.load(folder / f"{name}.safetensors") for name in ("neighbours", "text_neighbours"))
    score_labels(
        np.eye(40, WIDTH), np.arange(40) % 2, Neighbours(graph.indices[:40] % 40, graph.similarities[:40], None, "flat")
    )
    began = time.process_time()
    with peak_of_its_own_mb() as labels:
        scores = score_labels(images, given, graph, device="cpu", held=0, trained=1 << 17)
    middle = time.process_time()
    with peak_of_its_own_mb() as neighbourhoods:
        score_neighbourhood(images, texts, graph, of_texts, 20, 0, None)
    return {
        "rows": rows,
        "labels_mb": round(labels[0], 1),
        "neighbourhood_mb": round(neighbourhoods[0], 1),
        "labels_cpu_us_per_row": round((middle - began) / rows * 1e6, 1),
        "neighbourhood_cpu_us_per_row": round((time.process_time() - middle) / rows * 1e6, 1),
        "noise_rate": round(scores.fused.noise_rate, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--times", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one, options.rows)))
        return
    found = []
    for rows in (options.rows, options.times * options.rows):
        with tempfile.TemporaryDirectory() as name:
            write_run(Path(name), rows)
            words = [sys.executable, "-m", "benchmarks.scoring_growth", "--one", name, "--rows", str(rows)]
            found.append(json.loads(subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout))
    more = found[1]["rows"] - found[0]["rows"]
    result = {
        "sizes": found,
        **{
            f"{part}_bytes_per_row": round((found[1][f"{part}_mb"] - found[0][f"{part}_mb"]) * 2**20 / more)
            for part in ("labels", "neighbourhood")
        },
        "rows_in_float32_bytes_per_row": 4 * WIDTH,
        "lists_bytes_per_row": 4 * NEIGHBOURS,
    }
    print(json.dumps(result) if options.json else json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
