"""How close the job comes to its bare encoder and to its bare decoder, what cutting texts saves, and whether memory stays flat.

    python -m benchmarks.annotate [--pairs 192] [--pictures 2048] [--workers 1] [--threads 1] [--rounds 3] [--json]

All figures are ratios of two things measured in the same run, by turns, because machines differ and are busy.

- Encoder the limit (ViT-B-32 of random numbers, VGA JPEGs): the bare encoder takes decoded batches out of memory, with as
  many torch threads as in the job. Decoding has `--workers` processes of its own beside it.
- Decoder the limit (an encoder that costs nothing, the same JPEGs): the bare decoder is the same number of processes that
  read whole shards and decode and resize them where they are: nothing is handed on, encoded or written.

`wall` ratios mean something on a machine with a free core for each thread and worker. `cpu` ratios are of processor seconds,
which do not depend on what else it does, of the processes that are the limit: the encoding one, or the decode workers.
`cpu_of_all` counts the job's main process as well. `encoder_idle` is the share of the time between its first and last batch
in which the encoder had none.
"""

import argparse
import io
import json
import multiprocessing
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.memory import peak_mb
from noisegate.pipeline.estimators.base import Identity, Pixels
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import Shard, find_shards
from noisegate.pipeline.shards.pixels import describe_decoder
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.pipeline.shards.read import ShardReader
from noisegate.pipeline.shards.workers import Decoded, decode_sample

WORDS = ["a", "small", "red", "bird", "sits", "on", "the", "old", "wooden", "fence", "beside", "our", "garden", "house"]
GOALS = {
    "end_to_end_over_bare_encoder_wall": "≥ 0.95",
    "end_to_end_over_bare_encoder_cpu": "≥ 0.95",
    "end_to_end_over_bare_decoder_wall": "≥ 0.9",
    "end_to_end_over_bare_decoder_cpu": "≥ 0.9",
    "trimmed_over_untrimmed": "≥ 3",
    "memory_10x_over_1x": "≤ 1.05",
}


def write_shards(folder: Path, shards: int, pairs: int, width: int, height: int, different: int | None = None) -> str:
    """Photos-like JPEGs (smooth noise) of width x height with captions of about twelve tokens.

    So many pictures of each shard are `different` ones (default: all), which then come again and again.
    """
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        pictures: list[bytes] = []
        with tarfile.open(folder / f"b-{shard:06d}.tar", "w") as tar:
            for i in range(pairs):
                if different is None or i < different:
                    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
                    picture = io.BytesIO()
                    coarse.resize((width, height), Image.Resampling.BICUBIC).save(picture, "JPEG", quality=90)
                    pictures.append(picture.getvalue())
                text = " ".join(rng.choice(WORDS, 10)).encode()
                for part, data in (("jpg", pictures[i % (different or pairs)]), ("txt", text)):
                    member = tarfile.TarInfo(f"{shard:03d}{i:05d}.{part}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return str(folder / "*.tar")


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def used(who: int = resource.RUSAGE_SELF) -> float:
    """Processor seconds so far, of this process or of its children that have ended."""
    found = resource.getrusage(who)
    return found.ru_utime + found.ru_stime


class Watched:
    """An estimator that notes when it is at work."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.spans: list[tuple[float, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode_pixels(self, pixels: Sequence[Pixels]) -> NDArray[np.float32]:
        began = time.perf_counter()
        rows: NDArray[np.float32] = self._inner.encode_pixels(pixels)
        self.spans.append((began, time.perf_counter()))
        return rows

    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        began = time.perf_counter()
        rows: NDArray[np.float32] = self._inner.encode_texts(texts)
        self.spans.append((began, time.perf_counter()))
        return rows

    def encode_pairs(self, pixels: Sequence[Pixels], texts: Sequence[str]) -> Any:
        began = time.perf_counter()
        rows = self._inner.encode_pairs(pixels, texts)
        self.spans.append((began, time.perf_counter()))
        return rows

    def idle_share(self) -> float:
        whole = self.spans[-1][1] - self.spans[0][0]
        return 1 - sum(stop - start for start, stop in self.spans) / whole


def encoder_limited(pairs: int, rounds: int, threads: int, workers: int, folder: Path) -> dict[str, float]:
    import torch

    from noisegate.pipeline.annotate import annotate
    from noisegate.pipeline.estimators import load_estimator

    torch.set_num_threads(threads)
    model = load_estimator("ViT-B-32", "random:0", device="cpu")
    shards = find_shards(write_shards(folder / "encoder", 2, pairs // 2, 640, 480))
    batches: list[list[Decoded]] = []
    for shard in shards:
        samples = [decode_sample(raw, model.preprocess, DecodeOptions()) for raw in ShardReader(shard)]
        batches += [samples[i : i + model.batch_size] for i in range(0, len(samples), model.batch_size)]
    walls, cpus, idle, rates = [], [], [], []
    for turn in range(rounds):
        cpu, wall = used(), time.perf_counter()
        for batch in batches:
            model.encode_texts([s.text for s in batch if s.text is not None])
            model.encode_pixels([s.pixels for s in batch if s.pixels is not None])
        bare_cpu, bare = used() - cpu, time.perf_counter() - wall
        watched = Watched(model)
        cpu, wall = used(), time.perf_counter()
        annotate([s.url for s in shards], folder / f"e{turn}", estimator=watched, beta="fixed:0.2", workers=workers)
        cpus.append(bare_cpu / (used() - cpu))
        walls.append(bare / (time.perf_counter() - wall))
        idle.append(watched.idle_share())
        rates.append(pairs / bare)
    return {
        "end_to_end_over_bare_encoder_wall": float(np.median(walls)),
        "end_to_end_over_bare_encoder_cpu": float(np.median(cpus)),
        "encoder_idle": float(np.median(idle)),
        "bare_encoder_pairs_per_second": float(np.median(rates)),
    }


class Free:
    """An estimator that costs next to nothing and takes pictures of 224 px."""

    identity = Identity("free", "free", "224", describe_decoder("pillow"), "float32", ())
    batch_size = 64
    preprocess = Preprocess()

    def encode_pixels(self, pixels: Sequence[Pixels]) -> NDArray[np.float32]:
        return np.stack([p[::56, ::56, 0].ravel() for p in pixels]).astype(np.float32) + 1

    def encode_images(self, images: Sequence[Image.Image]) -> NDArray[np.float32]:
        return self.encode_pixels([self.preprocess(image) for image in images])

    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([np.frombuffer(t.ljust(16)[:16].encode(), np.uint8) for t in texts]).astype(np.float32)


def decode_shard(url: str) -> int:
    """Read, decode and forget; how many samples are fine."""
    samples = (decode_sample(raw, Free.preprocess, DecodeOptions()) for raw in ShardReader(Shard(url)))
    return sum(sample.status == "ok" for sample in samples)


def decoder_limited(pictures: int, rounds: int, workers: int, folder: Path) -> dict[str, float]:
    from noisegate.pipeline.annotate import annotate

    urls = [s.url for s in find_shards(write_shards(folder / "decoder", 2, pictures // 2, 640, 480, 64))]
    context = multiprocessing.get_context("spawn")

    def bare() -> None:
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            if sum(pool.map(decode_shard, urls)) != pictures:
                raise SystemExit("not all pictures were decoded")

    walls, cpus, limits, rates = [], [], [], []
    for turn in range(rounds):
        took = []
        for work in (
            bare,
            lambda: annotate(urls, folder / f"d{turn}", estimator=Free(), beta="fixed:0.2", workers=workers),  # noqa: B023
        ):
            own, children = used(), used(resource.RUSAGE_CHILDREN)
            wall = seconds(work)
            children = used(resource.RUSAGE_CHILDREN) - children
            took.append((wall, used() - own + children, children))
        for ratios, (alone, whole) in zip((walls, cpus, limits), zip(*took, strict=True), strict=True):
            ratios.append(alone / whole)
        rates.append(pictures / took[0][0])
    return {
        "end_to_end_over_bare_decoder_wall": float(np.median(walls)),
        "end_to_end_over_bare_decoder_cpu": float(np.median(limits)),
        "end_to_end_over_bare_decoder_cpu_of_all": float(np.median(cpus)),
        "bare_decoder_pictures_per_second": float(np.median(rates)),
    }


def trimming(rounds: int) -> dict[str, float]:
    """Cut texts over whole texts, 12-token captions."""
    from noisegate.pipeline.estimators import load_estimator

    estimator: Any = load_estimator("ViT-B-32", "random:0", device="cpu")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 10)) for _ in range(64)]
    tokens = estimator.tokenize(texts).shape[1]
    ratios = []
    for _ in range(rounds):
        took = {}
        for cut in (False, True):
            estimator.trims_texts = cut
            cpu = used()
            estimator.encode_texts(texts)
            took[cut] = used() - cpu
        ratios.append(took[False] / took[True])
    return {"trimmed_over_untrimmed": float(np.median(ratios)), "tokens": float(tokens)}


class Null:
    """Encodes nothing worth mentioning, so that memory shows the job's own."""

    identity = "null"

    def encode_images(self, images: list[Image.Image]) -> NDArray[np.float32]:
        return np.stack([np.asarray(image.resize((16, 16)), np.float32).ravel()[:512] for image in images])

    def encode_texts(self, texts: list[str]) -> NDArray[np.float32]:
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
    from noisegate.pipeline.annotate import annotate
    from noisegate.pipeline.estimators.by_name import CustomEstimator

    annotate(pattern, out, estimator=CustomEstimator(Null(), "null"), beta="intersection")
    print(peak_mb())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=192, help="for the encoder")
    parser.add_argument("--pictures", type=int, default=2048, help="for the decoder")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--workers", type=int, default=1, help="decoding processes")
    parser.add_argument("--only", choices=["encoder", "decoder", "texts", "memory"], help="one part alone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--annotate", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.annotate:
        return annotate_and_print_peak(given.annotate, given.out)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts: dict[str, Callable[[], dict[str, float]]] = {
            "memory": lambda: memory(folder),
            "texts": lambda: trimming(given.rounds),
            "decoder": lambda: decoder_limited(given.pictures, given.rounds, given.workers, folder),
            "encoder": lambda: encoder_limited(given.pairs, given.rounds, given.threads, given.workers, folder),
        }
        figures = {k: v for part, run in parts.items() if given.only in (None, part) for k, v in run().items()}
    if given.json:
        print(json.dumps(figures))
        return None
    for name, value in figures.items():
        print(f"{name:36} {value:8.3f}  {('goal ' + GOALS[name]) if name in GOALS else ''}")
    return None


if __name__ == "__main__":
    main()
