"""Reading a folder of pictures and a Parquet file of pictures, over reading the same pictures from a tar, in one run.

python -m benchmarks.sources --samples 2000 --rounds 5

A ratio of 1 is the speed of the tar; processor time, because the machine may be busy. All samples are read, hashed and decoded
to 224 pixels as `annotate` does.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import Shard, find_shards
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.pipeline.shards.read import ShardReader
from noisegate.pipeline.shards.tar import write_shard
from noisegate.pipeline.shards.workers import decode_sample


def write(folder: Path, samples: int) -> dict[str, list[Shard]]:
    """The same pictures of about 30 kB in all three forms."""
    rng = np.random.default_rng(0)
    photos = folder / "photos"
    photos.mkdir()
    images, texts = [], [f"picture number {number}" for number in range(samples)]
    for number in range(samples):
        small = rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)
        path = photos / f"{number:06d}.jpg"
        Image.fromarray(small).resize((256, 256)).save(path, quality=92)
        path.with_suffix(".txt").write_text(texts[number])
        images.append(path.read_bytes())
    pq.write_table(pa.table({"image": images, "caption": texts}), folder / "t.parquet", row_group_size=500)
    with write_shard(folder / "x.tar") as tar:
        for number, image in enumerate(images):
            tar.add(f"{number:06d}", {"jpg": image, "txt": texts[number].encode()})
    return {
        "tar": find_shards(folder / "x.tar"),
        "folder": find_shards(photos),
        "parquet": find_shards(folder / "t.parquet"),
    }


def seconds(shards: list[Shard]) -> tuple[float, int]:
    """Processor time to read all samples once, and their number."""
    start = time.process_time()
    preprocess, options = Preprocess(224), DecodeOptions()
    samples = (decode_sample(sample, preprocess, options) for shard in shards for sample in ShardReader(shard))
    count = sum(sample.status == "ok" for sample in samples)
    return time.process_time() - start, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        forms = write(Path(folder), options.samples)
        best = {name: float("inf") for name in forms}
        for _ in range(options.rounds):
            for name, shards in forms.items():
                took, count = seconds(shards)
                assert count == options.samples, name
                best[name] = min(best[name], took)
    for name, took in best.items():
        print(f"{name:8} {1e6 * took / options.samples:7.0f} µs a sample, {best['tar'] / took:.2f} of the tar's speed")


if __name__ == "__main__":
    main()
