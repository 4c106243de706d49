"""How close the job comes to its bare encoder, what cutting texts saves, and whether memory stays flat.

All figures are ratios of two things measured in the same run, because machines differ and are busy.

    python -m benchmarks.annotate [--pairs 384] [--json]
"""

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.memory import peak_mb
from pipeline.estimators import load_estimator
from pipeline.job import annotate
from pipeline.read import ShardReader
from pipeline.shards import find_shards
from pipeline.workers import DecodeOptions, decode_sample

WORDS = ["a", "small", "red", "bird", "sits", "on", "the", "old", "wooden", "fence", "beside", "our", "garden", "house"]


def write_shards(folder: Path, shards: int, pairs: int, width: int, height: int) -> str:
    """Photos-like JPEGs (smooth noise) of width x height with captions of about twelve tokens."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        with tarfile.open(folder / f"b-{shard:06d}.tar", "w") as tar:
            for i in range(pairs):
                coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
                picture = io.BytesIO()
                coarse.resize((width, height), Image.Resampling.BICUBIC).save(picture, "JPEG", quality=90)
                text = " ".join(rng.choice(WORDS, 10)).encode()
                for part, data in (("jpg", picture.getvalue()), ("txt", text)):
                    member = tarfile.TarInfo(f"{shard:03d}{i:05d}.{part}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return str(folder / "*.tar")


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def end_to_end(pairs: int, rounds: int, folder: Path) -> dict[str, float]:
    """Job over bare encoder on the same batches, a randomly initialised ViT-B-32, VGA JPEGs."""
    estimator = load_estimator("ViT-B-32", "random:0")
    shards = find_shards(write_shards(folder / "vga", 2, pairs // 2, 640, 480))
    batches = []
    for shard in shards:
        samples = [decode_sample(raw, estimator.preprocess, DecodeOptions()) for raw in ShardReader(shard)]
        size = estimator.batch_size
        batches += [samples[i : i + size] for i in range(0, len(samples), size)]

    def bare() -> None:
        for batch in batches:
            estimator.encode_pixels([s.pixels for s in batch if s.pixels is not None])
            estimator.encode_texts([s.text for s in batch if s.text is not None])

    ratios, rates = [], []
    for turn in range(rounds):
        alone = seconds(bare)
        whole = seconds(
            lambda t=turn: annotate([s.url for s in shards], folder / f"out{t}", estimator=estimator, beta="fixed:0.2")
        )
        ratios.append(alone / whole)
        rates.append(pairs / alone)
    return {"end_to_end_over_bare": float(np.median(ratios)), "bare_pairs_per_second": float(np.median(rates))}


def trimming(rounds: int) -> dict[str, float]:
    """Cut texts over whole texts, 12-token captions."""
    estimator = load_estimator("ViT-B-32", "random:0")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 10)) for _ in range(128)]
    tokens = estimator.tokenize(texts).shape[1]  # type: ignore[attr-defined]
    ratios = []
    for _ in range(rounds):
        estimator.trims_texts = False  # type: ignore[attr-defined]
        whole = seconds(lambda: estimator.encode_texts(texts))
        estimator.trims_texts = True  # type: ignore[attr-defined]
        ratios.append(whole / seconds(lambda: estimator.encode_texts(texts)))
    return {"trimmed_over_untrimmed": float(np.median(ratios)), "tokens": float(tokens)}


class Null:
    """Encodes nothing worth mentioning, so that memory shows the job's own."""

    identity = "null"

    def encode_images(self, images: list[Image.Image]) -> np.ndarray:  # type: ignore[type-arg]
        return np.stack([np.asarray(image.resize((16, 16)), np.float32).ravel()[:512] for image in images])

    def encode_texts(self, texts: list[str]) -> np.ndarray:  # type: ignore[type-arg]
        return np.stack([np.frombuffer(text.ljust(512)[:512].encode(), np.uint8).astype(np.float32) for text in texts])


def memory(folder: Path) -> dict[str, float]:
    """Peak memory of the job's main process on 10 x the shards over 1 x."""
    peaks = {}
    for times in (1, 10):
        pattern = write_shards(folder / f"m{times}", 20 * times, 500, 64, 64)
        command = [
            sys.executable,
            "-m",
            "benchmarks.annotate",
            "--annotate",
            pattern,
            "--out",
            str(folder / f"mo{times}"),
        ]
        peaks[times] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {"memory_10x_over_1x": peaks[10] / peaks[1], "memory_1x_mb": peaks[1]}


def annotate_and_print_peak(pattern: str, out: str) -> None:
    from pipeline.estimators.custom import CustomEstimator

    annotate(pattern, out, estimator=CustomEstimator(Null(), "null"), beta="intersection")
    print(peak_mb())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--annotate", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.annotate:
        return annotate_and_print_peak(given.annotate, given.out)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = memory(folder) | trimming(given.rounds) | end_to_end(given.pairs, given.rounds, folder)
    if given.json:
        print(json.dumps(figures))
        return None
    goals = {"end_to_end_over_bare": "≥ 0.9", "trimmed_over_untrimmed": "≥ 3", "memory_10x_over_1x": "≤ 1.05"}
    for name, value in figures.items():
        print(f"{name:24} {value:8.3f}  {('goal ' + goals[name]) if name in goals else ''}")
    return None


if __name__ == "__main__":
    main()
