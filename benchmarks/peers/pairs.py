"""Pairs scored by noisegate, by clip-retrieval's inference and by the loop that everyone writes: speed and cosines.

    python -m benchmarks.peers.environments ENVIRONMENTS
    python -m benchmarks.peers.pairs ENVIRONMENTS [--tiny] [--pairs 256] [--rounds 3] [--threads 1] [--workers 1] [--json]

The same shards (VGA JPEGs, captions of about 12 tokens), the same randomly initialised ViT-B-32 from one checkpoint, the
same torch, batch size, threads and decoding processes. Models are loaded and warm before anything is timed; the programs
take turns, one at a time. Ratios are of medians; those of processor seconds (children counted) do not depend on what else
the machine does. noisegate's `encoding` is its time until the last shard is encoded, which is all that the others do: what
follows (β, calibration, `pair_quality`) has no counterpart there. `--tiny` puts a model of one narrow
layer in the place of ViT-B-32, so that decoding is the limit.

Every program also does the first of the four shards alone. From the two sizes follow what a run costs whatever its size and
what each further pair costs: in a long run only the second counts. (noisegate's `pair_quality` costs more there than here,
because its pool grows to 32,768 pairs; docs/speed.md says how much.)
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.annotate import write_shards
from benchmarks.peers.environments import python_of
from benchmarks.peers.turns import Side
from noisegate.pipeline.estimators import load_estimator
from noisegate.pipeline.estimators.loading import allow_torchvision
from noisegate.pipeline.estimators.openclip import OpenClipEstimator
from noisegate.pipeline.runs.table import read_table
from noisegate.pipeline.shards.locate import find_shards

HERE = Path(__file__).resolve().parent
Cosines = dict[str, float]


TINY = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": 224, "layers": 1, "width": 64, "head_width": 32, "patch_size": 32},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1},
}
GOALS = {False: "≥ 1.7", True: "≥ 2.5"}


def save_model(folder: Path, tiny: bool) -> tuple[Path, Path]:
    """A model of random numbers, once for all: open_clip's configuration, whose name is the model's, and a checkpoint."""
    allow_torchvision()
    import open_clip

    config = folder / ("Tiny-B-32.json" if tiny else "ViT-B-32.json")
    config.write_text(json.dumps(TINY if tiny else open_clip.get_model_config("ViT-B-32")))
    open_clip.add_model_config(config)
    model = load_estimator(config.stem, "random:0", device="cpu")
    assert isinstance(model, OpenClipEstimator)
    checkpoint = folder / "model.pt"
    torch.save({name: value.contiguous() for name, value in model.module.state_dict().items()}, checkpoint)
    return config, checkpoint


def of_noisegate(out: Path) -> Cosines:
    table = read_table(out, ["key", "similarity"])
    return dict(zip(table["key"].to_pylist(), table["similarity"].to_pylist(), strict=True))


def of_clip_retrieval(out: Path) -> Cosines:
    import pyarrow.parquet as pq

    def rows(kind: str) -> NDArray[np.float32]:
        return np.asarray(np.load(out / f"{kind}_emb" / f"{kind}_emb_0.npy"), np.float32)

    keys = pq.read_table(out / "metadata" / "metadata_0.parquet")["image_path"].to_pylist()
    return dict(zip(keys, np.einsum("nd,nd->n", rows("img"), rows("text")).tolist(), strict=True))


def of_plain_loop(out: Path) -> Cosines:
    found = np.load(out.with_suffix(".npz"))
    return dict(zip(found["key"].tolist(), found["similarity"].tolist(), strict=True))


READ = {"noisegate": of_noisegate, "clip-retrieval": of_clip_retrieval, "plain loop": of_plain_loop}


def compare(
    environments: Path, folder: Path, tiny: bool, pairs: int, rounds: int, threads: int, workers: int
) -> dict[str, Any]:
    """Seconds of each side by round, their ratios to noisegate's, and the largest difference of a cosine."""
    shards = [shard.url for shard in find_shards(write_shards(folder / "shards", 4, pairs // 4, 640, 480, 64))]
    given = [*save_model(folder, tiny), str(workers), "64", str(threads)]
    programs = {
        "noisegate": (Path(sys.executable), "with_noisegate.py"),
        "clip-retrieval": (python_of(environments, "clip-retrieval"), "with_clip_retrieval.py"),
        "plain loop": (Path(sys.executable), "with_open_clip.py"),
    }
    calm = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    sides = {}
    for name, (python, program) in programs.items():
        path = {} if name == "clip-retrieval" else {"PYTHONPATH": str(HERE.parents[1])}
        sides[name] = Side([python, HERE / program, *given], calm | path, folder / f"{name}.log")
    took: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for turn in range(rounds + 1):  # the first does what is done once in a process, such as late imports
        for name, side in sides.items():
            part = side.go("\t".join([str(folder / f"{name}-{turn}-part"), shards[0]]))
            whole = side.go("\t".join([str(folder / f"{name}-{turn}"), *shards])) if turn else {}
            if turn:
                took[name].append(whole | {f"{kind}_of_part": value for kind, value in part.items()})
    for side in sides.values():
        side.close()
    cosines = {name: read(folder / f"{name}-1") for name, read in READ.items()}
    return report(took, cosines, pairs)


def by_size(seconds: dict[str, float], kind: str, pairs: int) -> tuple[float, float]:
    """Seconds of a run without pairs, and of each pair, from all pairs and a quarter of them."""
    each = (seconds[kind] - seconds[f"{kind}_of_part"]) / (pairs - pairs // 4)
    return seconds[kind] - each * pairs, each


def report(took: dict[str, list[dict[str, float]]], cosines: dict[str, Cosines], pairs: int) -> dict[str, Any]:
    own = cosines["noisegate"]
    median = {
        name: {kind: float(np.median([turn[kind] for turn in turns])) for kind in turns[0]}
        for name, turns in took.items()
    }
    found: dict[str, Any] = {
        "pairs": pairs,
        "rounds": took,
        "milliseconds_per_pair": {},
        "fixed_and_each_cpu": {},
        "peers": {},
    }
    for name, seconds in median.items():
        found["milliseconds_per_pair"][name] = {
            kind: 1000 * value / pairs for kind, value in seconds.items() if not kind.endswith("_of_part")
        }
        start, each = by_size(seconds, "cpu", pairs)
        found["fixed_and_each_cpu"][name] = {"seconds_of_a_run": start, "milliseconds_of_a_pair": 1000 * each}
        if name == "noisegate":
            continue
        if set(cosines[name]) != set(own):
            raise SystemExit(f"{name} has {len(cosines[name])} pairs, noisegate {len(own)}: not the same ones")
        found["peers"][name] = {
            "times_as_fast_wall": seconds["wall"] / median["noisegate"]["wall"],
            "times_as_fast_cpu": seconds["cpu"] / median["noisegate"]["cpu"],
            "times_as_fast_encoding_wall": seconds["wall"] / median["noisegate"]["encoding_wall"],
            "times_as_fast_encoding_cpu": seconds["cpu"] / median["noisegate"]["encoding_cpu"],
            "times_as_fast_steady_cpu": by_size(seconds, "cpu", pairs)[1]
            / by_size(median["noisegate"], "cpu", pairs)[1],
            "largest_difference": max(abs(own[key] - value) for key, value in cosines[name].items()),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("environments", type=Path)
    parser.add_argument("--tiny", action="store_true", help="a model so small that decoding is the limit")
    parser.add_argument("--pairs", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of torch, in the encoding process")
    parser.add_argument("--workers", type=int, default=1, help="decoding processes")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        found = compare(
            given.environments, Path(name), given.tiny, given.pairs, given.rounds, given.threads, given.workers
        )
    if given.json:
        print(json.dumps(found))
        return
    for name, cost in found["milliseconds_per_pair"].items():
        parts = found["fixed_and_each_cpu"][name]
        print(
            f"{name:16} {cost['wall']:7.1f} ms per pair, {cost['cpu']:7.2f} ms of processor time: "
            f"{parts['seconds_of_a_run']:.2f} s a run and {parts['milliseconds_of_a_pair']:.2f} ms a pair"
        )
    for name, facts in found["peers"].items():
        print(
            f"noisegate is {facts['times_as_fast_wall']:.2f} times as fast as {name} (goal {GOALS[given.tiny]}), "
            f"{facts['times_as_fast_cpu']:.2f} in processor time, "
            f"{facts['times_as_fast_encoding_wall']:.2f} and {facts['times_as_fast_encoding_cpu']:.2f} until all is encoded, "
            f"{facts['times_as_fast_steady_cpu']:.2f} in processor time of a further pair; "
            f"cosines differ by at most {facts['largest_difference']:.1e}"
        )


if __name__ == "__main__":
    main()
