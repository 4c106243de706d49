"""How many pictures a core decodes by each decoder, beside open_clip and clip-retrieval, and what that does to scores.

    python -m benchmarks.decode [--pictures 24] [--photos 200] [--rounds 5] [--memory] [--json]

Speed: pictures per second of processor time on one thread, from the file's bytes to the pixels of a model of 224 pixels. All
ways take turns in the same run, and the best of the rounds counts. `open_clip` is its own inference transform on Pillow's
picture; `clip-retrieval` is the loop of its reader with that transform: decode, transform, stack a batch of float32.

Differences: photos of Flickr8k (../shared/data, where it is) with their captions, as they are and as 12-megapixel mosaics of
photos at full resolution, which have more fine detail than a camera's picture; pixels and cosines of `fast` against `pillow`,
by the embedded model and by a ViT-B-32 of random numbers.

`--memory` starts pools of four decode workers and prints what they cost.
"""

import argparse
import io
import json
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy.stats import spearmanr

from noisegate.pipeline.estimators import load_estimator, normalise
from noisegate.pipeline.estimators.loading import allow_torchvision
from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.shards.pixels import decode_pixels
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.pipeline.shards.read import RawSample
from noisegate.pipeline.shards.workers import DecodePool

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
GOALS = {"JPEG VGA": "≥ 2", "JPEG 12 MP": "≥ 3", "PNG VGA": "≥ 1", "WebP VGA": "≥ 1"}
WORKERS = 4
Figures = dict[str, float]


def photos(count: int) -> list[tuple[bytes, str]]:
    """Photos and captions of Flickr8k, or drawn noise where the data is absent."""
    found: list[tuple[bytes, str]] = []
    for path in sorted(DATA.glob("flickr8k-dev-*.tar")):
        with tarfile.open(path) as tar:
            parts = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        found += [(data, parts[f"{name[:-4]}.txt"].decode()) for name, data in parts.items() if name.endswith(".jpg")]
    if not found:
        rng = np.random.default_rng(0)
        for _ in range(count):
            noise = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
            found.append((save(noise.resize((341, 256), Image.Resampling.BICUBIC), "JPEG"), "a photo"))
    return found[:count]


def save(image: Image.Image, kind: str) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **({"quality": 90} if kind != "PNG" else {}))
    return data.getvalue()


def mosaic(given: list[bytes], start: int) -> Image.Image:
    """Photos side by side in their own resolution, 4000 x 3000."""
    canvas = Image.new("RGB", (4000, 3000))
    for place in range(16 * 12):
        tile = Image.open(io.BytesIO(given[(start * 31 + place) % len(given)]))
        canvas.paste(
            tile.resize((250, 250), box=(0, 0, *[min(tile.size)] * 2)), (250 * (place % 16), 250 * (place // 16))
        )
    return canvas


def kinds(given: list[bytes], count: int) -> dict[str, list[bytes]]:
    """The pictures to decode, by kind."""
    vga = [Image.open(io.BytesIO(data)).resize((640, 480), Image.Resampling.BICUBIC) for data in given[:count]]
    return {
        "JPEG VGA": [save(image, "JPEG") for image in vga],
        "JPEG 12 MP": [save(mosaic(given, i), "JPEG") for i in range(3)],
        "PNG VGA": [save(image, "PNG") for image in vga],
        "WebP VGA": [save(image, "WEBP") for image in vga],
        "JPEG as it is": given[:count],
    }


def ways() -> dict[str, Callable[[list[bytes]], object]]:
    """The ways from files to pixels."""
    allow_torchvision()
    import open_clip

    transform: Any = open_clip.image_transform(224, is_train=False)

    def of(decoder: str) -> Callable[[list[bytes]], object]:
        preprocess, limits = Preprocess(decoder=decoder), Limits()
        return lambda files: [decode_pixels(data, preprocess, limits) for data in files]

    def loop(files: list[bytes]) -> object:
        def samples() -> Iterator[dict[str, Any]]:
            for number, data in enumerate(files):
                image = Image.open(io.BytesIO(data))
                yield {"image_filename": str(number), "image_tensor": transform(image)}

        return torch.stack([sample["image_tensor"] for sample in samples()])

    return {
        "pillow": of("pillow"),
        "fast": of("fast"),
        "open_clip": lambda files: [transform(Image.open(io.BytesIO(data))) for data in files],
        "clip-retrieval": loop,
    }


def measure_speed(files: list[bytes], rounds: int) -> Figures:
    """Pictures per second of processor time, by way."""
    all_ways = ways()
    least = dict.fromkeys(all_ways, float("inf"))
    for turn in range(rounds + 1):  # the first one is a warm-up
        for name, decode in all_ways.items():
            before = time.process_time()
            decode(files)
            spent = time.process_time() - before
            least[name] = min(least[name], spent) if turn else least[name]
    return {name: len(files) / seconds for name, seconds in least.items()}


def measure_scores(model: Any, pairs: list[tuple[bytes, str]], decoders: tuple[Preprocess, Preprocess]) -> Figures:
    """How far pixels and cosines of the second decoder are from those of the first."""
    limits = Limits()
    pixels = [[decode_pixels(data, preprocess, limits) for data, _ in pairs] for preprocess in decoders]
    texts = normalise(model.encode_texts([text for _, text in pairs]))
    before, after = ((normalise(model.encode_pixels(side)) * texts).sum(axis=1) for side in pixels)
    moved = np.abs(np.stack(pixels[0]).astype(int) - np.stack(pixels[1]))
    change = np.abs(after - before)
    return {
        "pictures": len(pairs),
        "values that differ": float((moved > 0).mean()),
        "largest change of a value of 255": float(moved.max()),
        "mean change of a cosine": float(change.mean()),
        "largest change of a cosine": float(change.max()),
        "spread of cosines": float(before.std()),
        "rank correlation": float(spearmanr(before, after).statistic),
    }


def measure_differences(count: int) -> dict[str, Figures]:
    given = photos(count)
    files = [data for data, _ in given]
    large = [(save(mosaic(files, i), "JPEG"), given[i][1]) for i in range(max(4, count // 10))]
    found = {}
    for name, pretrained in (("embedded", None), ("ViT-B-32", "random:0")):
        model: Any = load_estimator(name, pretrained, device="cpu")
        values = {**vars(model.preprocess), "decoder": "pillow"}
        decoders = Preprocess(**values), model.preprocess
        squash = tuple(Preprocess(**{**vars(one), "resize": "squash"}) for one in decoders)
        found[f"{name}, photos"] = measure_scores(model, given, decoders)
        found[f"{name}, photos squashed"] = measure_scores(model, given, squash)  # type: ignore[arg-type]
        found[f"{name}, 12 MP mosaics"] = measure_scores(model, large, decoders)
    return found


def measure_workers(decoder: str) -> Figures:
    """Start-up and memory of a pool of workers, each of which has decoded something."""
    import multiprocessing

    data, preprocess = photos(1)[0][0], Preprocess(decoder=decoder)
    began = time.perf_counter()
    with DecodePool(WORKERS, preprocess, DecodeOptions()) as pool:
        chunk = [RawSample(str(i), i, {"jpg": data, "txt": b"a"}, ["jpg", "txt"]) for i in range(16)]
        pool.submit(chunk[:1]).result()
        first = time.perf_counter() - began
        for future in [pool.submit(chunk) for _ in range(16 * WORKERS)]:
            future.result()
        own = [_private_mb(child.pid or 0) for child in multiprocessing.active_children()]
        return {
            "seconds to the first picture": first,
            "workers": len(own),
            "private MB of a worker": float(np.mean(own)),
        }


def _private_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=24)
    parser.add_argument("--photos", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    if arguments.memory:
        found["workers"] = {decoder: measure_workers(decoder) for decoder in ("pillow", "fast")}
    given = [data for data, _ in photos(max(arguments.pictures, 200))]
    found["pictures per second"] = {
        kind: measure_speed(files, arguments.rounds) for kind, files in kinds(given, arguments.pictures).items()
    }
    found["differences"] = measure_differences(arguments.photos)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for decoder, figures in found.get("workers", {}).items():
        print(f"workers, {decoder}: " + ", ".join(f"{name} {value:.2f}" for name, value in figures.items()))
    for kind, speeds in found["pictures per second"].items():
        for other in ("pillow", "open_clip", "clip-retrieval"):
            goal = f"goal {GOALS[kind]}" if other == "pillow" and kind in GOALS else ""
            print(
                f"{kind:14} fast over {other:15} {speeds['fast'] / speeds[other]:5.2f} x  ({speeds['fast']:.0f}/s) {goal}"
            )
    for name, figures in found["differences"].items():
        print(name)
        for what, value in figures.items():
            print(f"  {what:34} {value:.6g}")


if __name__ == "__main__":
    main()
