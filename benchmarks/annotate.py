"""How close the job comes to its bare encoder and to its bare decoder, what cutting texts saves, and whether memory stays flat.

    python -m benchmarks.annotate [--pairs 192] [--pictures 2048] [--workers 1] [--threads 1] [--rounds 3]
        [--decoder fast] [--only encoder|decoder|texts|memory] [--json]

All figures are ratios of two things measured in the same run, by turns, because machines differ and are busy.

- Encoder the limit (ViT-B-32 of random numbers, VGA JPEGs): the bare encoder takes decoded batches out of memory, with as
  many torch threads as in the job. Decoding has `--workers` processes of its own beside it.
- Decoder the limit (an encoder that costs nothing, the same JPEGs): the bare decoder is the same number of processes that
  read whole shards and decode and resize them where they are: nothing is handed on, encoded or written. They start as the
  job's own workers do.
- Memory: peaks of the main process and of a decode worker's own pages, with 20 shards and with 200.

`wall` ratios mean something on a machine with a free core for each thread and worker. `cpu` ratios are of processor seconds,
which do not depend on what else it does, of the processes that are the limit: the encoding one, or the decode workers.
`cpu_of_all` counts the job's main process as well. `encoding` is until the last shard is encoded: what follows learns β and
the calibration from at most 10,000 pairs, and compares every pair with a pool of at most 32,768. `encoder_idle` is the share
of the time between its first and last batch in which the encoder had none. `encoder_over_matmul` is the bare encoder's rate of
floating-point operations over that of one product of large matrices by torch, which is as fast as this processor multiplies.
"""

import argparse
import io
import json
import resource
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.memory import peak_mb, private_mb
from benchmarks.peers.turns import child_seconds, descendants
from noisegate.pipeline.estimators.base import Identity, Pixels
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import Shard, find_shards
from noisegate.pipeline.shards.pixels import describe_decoder
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.pipeline.shards.read import ShardReader
from noisegate.pipeline.shards.workers import WITH_TORCH, Decoded, _set_up_worker, decode_sample
from noisegate.pipeline.system.processes import forkserver_context, spawn_context
from noisegate.pipeline.system.progress import Progress
from noisegate.pipeline.tools.plan.measure import gflops_per_sample

WORDS = ["a", "small", "red", "bird", "sits", "on", "the", "old", "wooden", "fence", "beside", "our", "garden", "house"]
GOALS = {
    "end_to_end_over_bare_encoder_wall": "≥ 0.95",
    "end_to_end_over_bare_encoder_cpu": "≥ 0.95",
    "end_to_end_over_bare_decoder_wall": "≥ 0.9",
    "end_to_end_over_bare_decoder_wall_encoding": "≥ 0.9",
    "end_to_end_over_bare_decoder_cpu": "≥ 0.9",
    "trimmed_over_untrimmed": "≥ 3",
    "memory_10x_over_1x": "≤ 1.05",
    "worker_memory_10x_over_1x": "≤ 1.05",
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


def used() -> float:
    """Processor seconds of this process so far."""
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime


class LastShard(Progress):
    """Notes when the last shard was encoded: clock, processor seconds of this process, and of those below it."""

    def __init__(self) -> None:
        self.encoded = (0.0, 0.0, 0.0)

    def shard(self, name: str, samples: int, failed: int) -> None:
        self.encoded = time.perf_counter(), used(), child_seconds()


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
    walls, cpus, idle, rates, operations, limits = [], [], [], [], [], []
    each = gflops_per_sample(model, batches[0], 16) or float("nan")
    for turn in range(rounds):
        cpu, wall = used(), time.perf_counter()
        for batch in batches:
            model.encode_texts([s.text for s in batch if s.text is not None])
            model.encode_pixels([s.pixels for s in batch if s.pixels is not None])
        bare_cpu, bare = used() - cpu, time.perf_counter() - wall
        operations.append(each * pairs / bare_cpu)
        limits.append(matmul_gflops())
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
        "gflop_of_a_pair": each,
        "bare_encoder_gflop_per_cpu_second": float(np.median(operations)),
        "matmul_gflop_per_cpu_second": float(np.median(limits)),
        "encoder_over_matmul": float(np.median(np.divide(operations, limits))),
    }


def matmul_gflops(size: int = 2048, repeats: int = 8) -> float:
    """10^9 operations in a second of processor time that torch does in products of large float32 matrices."""
    import torch

    left, right = torch.rand(size, size), torch.rand(size, size)
    left @ right
    began = used()
    for _ in range(repeats):
        left @ right
    return float(2 * size**3 * repeats / 1e9 / (used() - began))


class Free:
    """An estimator that costs next to nothing and takes pictures of 224 px."""

    batch_size = 64

    def __init__(self, decoder: str) -> None:
        self.preprocess = Preprocess(decoder=decoder)
        self.identity = Identity("free", "free", "224", describe_decoder(decoder), "float32", ())

    def encode_pixels(self, pixels: Sequence[Pixels]) -> NDArray[np.float32]:
        return np.stack([p[::56, ::56, 0].ravel() for p in pixels]).astype(np.float32) + 1

    def encode_images(self, images: Sequence[Image.Image]) -> NDArray[np.float32]:
        return self.encode_pixels([self.preprocess(image) for image in images])

    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([np.frombuffer(t.ljust(16)[:16].encode(), np.uint8) for t in texts]).astype(np.float32)


def decode_shard(preprocess: Preprocess, url: str) -> int:
    """Read, decode and forget; how many samples are fine."""
    samples = (decode_sample(raw, preprocess, DecodeOptions()) for raw in ShardReader(Shard(url)))
    return sum(sample.status == "ok" for sample in samples)


def decoder_limited(pictures: int, rounds: int, workers: int, decoder: str, folder: Path) -> dict[str, float]:
    from benchmarks.annotate import decode_shard  # by this name, not __main__'s, workers find it
    from noisegate.pipeline.annotate import annotate

    free, with_torch = Free(decoder), decoder != "pillow"
    urls = [s.url for s in find_shards(write_shards(folder / "decoder", 2, pictures // 2, 640, 480, 64))]
    context = forkserver_context(preload=WITH_TORCH) if with_torch else spawn_context()
    begin = partial(_set_up_worker, None, with_torch)

    def bare() -> None:
        with ProcessPoolExecutor(workers, mp_context=context, initializer=begin) as pool:
            if sum(pool.map(partial(decode_shard, free.preprocess), urls)) != pictures:
                raise SystemExit("not all pictures were decoded")

    ratios: list[dict[str, float]] = []
    bare()  # starts the server that forks workers, which both ways then have
    for turn in range(rounds):
        began = time.perf_counter(), used(), child_seconds()
        bare()
        alone = np.subtract((time.perf_counter(), used(), child_seconds()), began)
        began, last = (time.perf_counter(), used(), child_seconds()), LastShard()
        annotate(urls, folder / f"d{turn}", estimator=free, beta="fixed:0.2", workers=workers, progress=last)
        whole = np.subtract((time.perf_counter(), used(), child_seconds()), began)
        encoding = np.subtract(last.encoded, began)
        ratios.append(
            {
                "wall": alone[0] / whole[0],
                "wall_encoding": alone[0] / encoding[0],
                "cpu": alone[2] / whole[2],
                "cpu_of_all": alone[1:].sum() / whole[1:].sum(),
                "cpu_of_all_encoding": alone[1:].sum() / encoding[1:].sum(),
                "milliseconds_of_a_picture": 1000 * alone[1:].sum() / pictures,
                "end_seconds": whole[0] - encoding[0],
                "end_cpu_seconds": whole[1] - encoding[1],
            }
        )
    found = {name: float(np.median([ratio[name] for ratio in ratios])) for name in ratios[0]}
    more = {
        "bare_decoder_cpu_ms_a_picture": found.pop("milliseconds_of_a_picture"),
        "end_of_the_run_seconds": found.pop("end_seconds"),
        "end_of_the_run_cpu_seconds": found.pop("end_cpu_seconds"),
    }
    return {f"end_to_end_over_bare_decoder_{name}": value for name, value in found.items()} | more


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


def memory(decoder: str, folder: Path) -> dict[str, float]:
    """Peak memory of the job's main process and of a worker's own pages, on 10 x the shards over 1 x."""
    peaks = {}
    for times in (1, 10):
        pattern = write_shards(folder / f"m{times}", 20 * times, 500, 64, 64, 50)
        command = [sys.executable, "-m", "benchmarks.annotate", "--decoder", decoder]
        command += ["--annotate", pattern, "--out", str(folder / f"mo{times}")]
        peaks[times] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return {
        "memory_10x_over_1x": peaks[10]["main"] / peaks[1]["main"],
        "memory_1x_mb": peaks[1]["main"],
        "worker_memory_10x_over_1x": peaks[10]["worker"] / peaks[1]["worker"],
        "worker_memory_1x_mb": peaks[1]["worker"],
    }


def annotate_and_print_peaks(pattern: str, out: str, decoder: str) -> None:
    """Annotate with two workers; what the main process and the largest worker needed at most, as JSON."""
    from noisegate.pipeline.annotate import annotate

    done, largest = threading.Event(), [0.0]

    def watch() -> None:
        while not done.wait(0.2):
            below = descendants()
            forks = [pid for pid, fields in below.items() if int(fields[1]) in below]
            largest.extend(map(private_mb, below if decoder == "pillow" else forks))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        annotate(pattern, out, estimator=Free(decoder), beta="intersection", workers=2)
    finally:
        done.set()
        watcher.join()
    print(json.dumps({"main": peak_mb(), "worker": max(largest)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=192, help="for the encoder")
    parser.add_argument("--pictures", type=int, default=2048, help="for the decoder")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--workers", type=int, default=1, help="decoding processes")
    parser.add_argument("--decoder", choices=["fast", "pillow"], default="fast", help="of the decoder and memory parts")
    parser.add_argument("--only", choices=["encoder", "decoder", "texts", "memory"], help="one part alone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--annotate", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.annotate:
        return annotate_and_print_peaks(given.annotate, given.out, given.decoder)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts: dict[str, Callable[[], dict[str, float]]] = {
            "memory": lambda: memory(given.decoder, folder),
            "texts": lambda: trimming(given.rounds),
            "decoder": lambda: decoder_limited(given.pictures, given.rounds, given.workers, given.decoder, folder),
            "encoder": lambda: encoder_limited(given.pairs, given.rounds, given.threads, given.workers, folder),
        }
        figures = {k: v for part, run in parts.items() if given.only in (None, part) for k, v in run().items()}
    if given.json:
        print(json.dumps(figures))
        return None
    for name, value in figures.items():
        print(f"{name:48} {value:8.3f}  {('goal ' + GOALS[name]) if name in GOALS else ''}")
    return None


if __name__ == "__main__":
    main()
