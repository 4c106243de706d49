"""What joining the table costs while loading, and what memory does with ten times the shards.

    python -m benchmarks.train_data [--samples 400] [--rounds 12] [--json]

Loading is measured batch by batch in turns in one process, as processor time, with a table (keys and digests proven, two
columns) and without: JPEG pictures of 320 x 240 cropped to 224, and, as the hard case, PNG pictures of 64 pixels.
Memory is the peak of a process of its own that loads two epochs of 64-pixel pictures out of 30 and of 300 shards.
"""

import argparse
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.memory import peak_mb
from noisegate.pipeline.runs.table import VERSION, RunFolder, table_from
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.pipeline.system.output_files import write_atomically
from noisegate.trainers.data import WeightedShards
from noisegate.trainers.targets.pictures import Augment, PictureTransform

JOIN_LIMIT, MEMORY_LIMIT = 1.02, 1.05
PER_SHARD = 100
COLUMNS = ("osa_weight", "clean")
SIZES = {"jpeg 320 x 240": (320, 240), "png 64 x 64": (64, 64)}
CROPS = {"jpeg 320 x 240": 224, "png 64 x 64": 64}


def picture(rng: np.random.Generator, size: tuple[int, int]) -> tuple[str, bytes]:
    """Smooth blotches, which compress about as photographs do."""
    small = rng.integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)
    data = io.BytesIO()
    image.save(data, *(("JPEG",) if size[0] > 64 else ("PNG",)), **({"quality": 92} if size[0] > 64 else {}))
    return "jpg" if size[0] > 64 else "png", data.getvalue()


def write_shard(folder: Path, number: int, count: int, size: tuple[int, int]) -> dict[str, Any]:
    """A shard below `folder/shards`, its table in `folder/run`, and its entry for the run's record."""
    rng = np.random.default_rng([number, size[0]])
    packed = io.BytesIO()
    keys, images, texts = [], [], []
    pictures = [picture(rng, size) for _ in range(min(count, 8))]
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for i in range(count):
            key, (kind, image) = f"{number:06d}{i:06d}", pictures[i % len(pictures)]
            text = f"a caption of about the usual length, number {i} of shard {number}".encode()
            for part, data in ((kind, image), ("txt", text)):
                member = tarfile.TarInfo(f"{key}.{part}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
            keys.append(key)
            images.append(hashlib.sha256(image).digest())
            texts.append(hashlib.sha256(text).digest())
    shard = folder / "shards" / f"s-{number:06d}.tar"
    shard.parent.mkdir(parents=True, exist_ok=True)
    shard.write_bytes(packed.getbuffer())
    similarity = rng.random(count).astype(np.float32)
    columns = {
        "key": keys,
        "index": np.arange(count, dtype=np.int32),
        "status": ["ok"] * count,
        "image_sha256": images,
        "text_sha256": texts,
        "similarity": similarity,
        "osa_weight": similarity**2 * (1 - similarity),
        "clean": similarity > 0.5,
        "flags": [[] for _ in keys],
    }
    facts = {"name": shard.name, "sha256": "", "size": packed.tell(), "rows": count, "damage": None}
    reading = {"tasks": ["pairs"], "text_field": None, "label_field": None, "limits": vars(Limits())}
    metadata = {"table_version": VERSION, "shard": facts, "reading": reading}
    RunFolder(folder / "run").write_table(shard.stem, table_from(columns, metadata))
    return {"url": str(shard), "table": shard.stem, "rows": count}


def write_run(folder: Path, shards: int, count: int, size: tuple[int, int]) -> Path:
    entries = [write_shard(folder, number, count, size) for number in range(shards)]
    names = ("model", "weights", "preprocess", "decoder", "dtype")
    run = {
        "table_version": VERSION,
        "scorer": dict.fromkeys(names, "none") | {"versions": {}},
        "scoring": {"tasks": ["pairs"], "classes": None},
        "reading": {"tasks": ["pairs"], "limits": vars(Limits())},
        "model": None,
        "beta": None,
        "shards": entries,
        "finished": True,
        "complete": True,
    }
    write_atomically(folder / "run" / "_run.json", json.dumps(run).encode())
    return folder


def data_of(folder: Path, joined: bool, size: int) -> WeightedShards:
    return WeightedShards(
        folder / "shards",
        folder / "run" if joined else None,
        columns=COLUMNS if joined else (),
        batch_size=50,
        image=PictureTransform(Preprocess(size), Augment(crop=(0.5, 1), flip=0.5)),
        captions="read",
    )


def join_ratio(folder: Path, size: int, rounds: int) -> dict[str, float]:
    """Processor time of an epoch with the join over one without; the first of the rounds warms up.

    Both are read side by side, batch by batch in turns, so that both see what else happens on the machine; an epoch is the
    sum of its batches, each at the lower quartile of its rounds.
    """
    plain, joined = data_of(folder, False, size), data_of(folder, True, size)
    seconds: dict[bool, list[list[float]]] = {False: [], True: []}
    for turn in range(rounds + 1):
        streams = {False: iter(plain), True: iter(joined)}
        taken: dict[bool, list[float]] = {False: [], True: []}
        while streams:
            for side in sorted(streams, reverse=turn % 2 == 1):
                began = time.process_time()
                if next(streams[side], None) is None:
                    del streams[side]
                else:
                    taken[side].append(time.process_time() - began)
        if turn:
            for side, values in taken.items():
                seconds[side].append(values)
    shortest = min(len(values) for both in seconds.values() for values in both)
    epochs = {
        side: float(np.quantile([v[:shortest] for v in both], 0.25, axis=0).sum()) for side, both in seconds.items()
    }
    samples = shortest * plain.batch_size
    return {
        "ratio": epochs[True] / epochs[False],
        "plain_us": 1e6 * epochs[False] / samples,
        "joined_us": 1e6 * epochs[True] / samples,
    }


def memory_of(folder: Path) -> None:
    """Load two epochs in this process and print the peak."""
    data = data_of(folder, True, 64)
    for _ in range(2):
        for _ in data:
            pass
    print(json.dumps({"peak_mb": peak_mb(), "rows": data.total_rows}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--memory", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.memory:
        return memory_of(given.memory)
    found: dict[str, Any] = {"join": {}, "memory": {}}
    with tempfile.TemporaryDirectory() as temporary:
        for name, size in SIZES.items():
            folder = write_run(Path(temporary) / name, max(1, given.samples // PER_SHARD), PER_SHARD, size)
            found["join"][name] = join_ratio(folder, CROPS[name], given.rounds)
        for shards in (30, 300):
            folder = write_run(Path(temporary) / str(shards), shards, 20, (64, 64))
            command = [sys.executable, "-m", "benchmarks.train_data", "--memory", str(folder)]
            ran = subprocess.run(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=True)
            found["memory"][str(shards)] = json.loads(ran.stdout)
    growth = found["memory"]["300"]["peak_mb"] / found["memory"]["30"]["peak_mb"]
    found["memory"]["ratio"] = growth
    if given.json:
        print(json.dumps(found))
    else:
        for name, f in found["join"].items():
            print(
                f"join over none, {name:15} {f['ratio']:.4f}   ({f['joined_us']:,.0f} over {f['plain_us']:,.0f} µs each)"
            )
        peaks = [found["memory"][shards]["peak_mb"] for shards in ("30", "300")]
        print(f"memory, 300 over 30 shards     {growth:.4f}   ({peaks[1]:,.0f} over {peaks[0]:,.0f} MB)")
    worst = found["join"]["jpeg 320 x 240"]["ratio"]
    if worst > JOIN_LIMIT or growth > MEMORY_LIMIT:
        sys.exit(f"join {worst:.4f} (limit {JOIN_LIMIT}), memory {growth:.4f} (limit {MEMORY_LIMIT})")
    return None


if __name__ == "__main__":
    main()
