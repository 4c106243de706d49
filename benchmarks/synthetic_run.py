"""A finished run of any size in seconds, for measuring what reads one: report, verify, export.

    python benchmarks/synthetic_run.py FOLDER [--rows 200000] [--shards 20] [--labels] [--with-shards]

Pictures are 4 x 2 pixels whose 24 bytes are the embedding, captions end in 24 bytes of their own in hex, and the model
`python:benchmarks.synthetic_run:ByteModel` reads both back: with shards the run can be scored again for real.
"""

import argparse
import hashlib
import io
import tarfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.estimators.base import normalise
from noisegate.pipeline.estimators.by_name import CustomEstimator
from noisegate.pipeline.runs.embeddings import write_embeddings
from noisegate.pipeline.runs.table import VERSION, RunFolder, read_metadata, replace_columns, table_from
from noisegate.pipeline.scoring import learn_scores, write_scores
from noisegate.pipeline.settings import Limits, ScoreSettings
from noisegate.pipeline.system.output_files import write_atomically

MODEL = "python:benchmarks.synthetic_run:ByteModel"
WIDTH = 24
CLASSES = 10
NOISE = 0.3
FAILED = 0.01

Bytes = NDArray[np.uint8]


class ByteModel:
    """Reads embeddings out of the first eight pixels of a picture and the hex digits at the end of a caption."""

    identity = "bytes-1"

    def encode_images(self, images: Sequence[Image.Image]) -> NDArray[np.float32]:
        return _centred(np.stack([np.asarray(image, np.uint8).reshape(-1)[:WIDTH] for image in images]))

    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return _centred(np.stack([_bytes_of(text) for text in texts]))


def _centred(rows: Bytes) -> NDArray[np.float32]:
    return (rows.astype(np.float32) - 127.5) / 127.5


def _bytes_of(text: str) -> Bytes:
    """The 24 bytes a caption ends in; any other text gets bytes of its own."""
    tail = text.rpartition("#")[2]
    data = bytes.fromhex(tail) if len(tail) == 2 * WIDTH else hashlib.sha256(text.encode()).digest()[:WIDTH]
    return np.frombuffer(data, np.uint8)


def write_synthetic_run(
    folder: Path, rows: int, shards: int, labels: bool = False, with_shards: bool = False, seed: int = 0
) -> Path:
    """Write a finished run into `folder` and return it; `with_shards` also writes the tars below `folder/shards`.

    30 % of the captions are wrong, 1 % of the samples have failed. Label columns are drawn, not learned.
    """
    run, model = RunFolder(folder), CustomEstimator(ByteModel(), MODEL)
    tasks = ("pairs", "labels") if labels else ("pairs",)
    limits = vars(Limits())
    reading = {"tasks": list(tasks), "text_field": None, "label_field": None, "limits": limits}
    bounds = [rows * part // shards for part in range(shards + 1)]
    entries: list[dict[str, Any]] = []
    for part in range(shards):
        stem, count = f"s-{part:06d}", bounds[part + 1] - bounds[part]
        rng = np.random.default_rng([seed, part])
        made = _shard(rng, bounds[part], count)
        packed = _packed(made) if with_shards else b""
        url = folder / "shards" / f"{stem}.tar"
        facts = {"name": url.name, "sha256": hashlib.sha256(packed).hexdigest(), "size": len(packed), "rows": count}
        if with_shards:
            write_atomically(url, packed)
        metadata = {
            "table_version": VERSION,
            "scorer": model.identity.to_dict(),
            "shard": facts | {"damage": None},
            "reading": reading,
        }
        write_embeddings(run.embeddings(stem), made["images"], made["texts"], {"shard": facts})
        run.write_table(stem, table_from(_columns(made, labels), metadata))
        entries.append({"url": str(url), "table": stem, "modified": None, "rows": count, "sha256": facts["sha256"]})
        if with_shards:
            entries[-1]["modified"] = url.stat().st_mtime
    settings = ScoreSettings(beta="intersection", tasks=("pairs",), seed=seed)
    stems = [entry["table"] for entry in entries]
    scores = learn_scores(run, stems, settings)
    write_scores(run, stems, scores)
    if labels:
        for part, stem in enumerate(stems):
            _add_labels(run, stem, np.random.default_rng([seed, part, 1]))
    run.write_run(
        {
            "table_version": VERSION,
            "noisegate": version("noisegate"),
            "scorer": model.identity.to_dict(),
            "model": ModelSpec(MODEL).to_dict(),
            "scoring": settings.to_dict() | {"tasks": list(tasks), "classes": None},
            "reading": reading,
            "beta": scores.pairs.beta.to_dict() if scores.pairs else None,
            "random_inputs": None,
            "shards": entries,
            "unreadable": {},
            "finished": True,
            "complete": True,
        }
    )
    return folder


def _shard(rng: np.random.Generator, start: int, count: int) -> dict[str, Any]:
    """Keys, picture bytes, captions, embeddings and which samples have failed."""
    pixels = rng.integers(0, 256, (count, WIDTH), dtype=np.uint8)
    other = rng.integers(0, 256, (count, WIDTH), dtype=np.uint8)
    mixed = (0.6 * pixels + 0.4 * other).round().astype(np.uint8)
    words = np.where((rng.random(count) < NOISE)[:, None], other, mixed)
    failed = rng.random(count) < FAILED
    keys = [f"{start + i:09d}" for i in range(count)]
    captions = [f"number {key} #{row.tobytes().hex()}" for key, row in zip(keys, words, strict=True)]
    images, texts = normalise(_centred(pixels)), normalise(_centred(words))
    images[failed] = 0
    return {
        "keys": keys,
        "pictures": [b"" if bad else _png(row) for row, bad in zip(pixels, failed, strict=True)],
        "captions": captions,
        "labels": rng.integers(0, CLASSES, count),
        "images": images,
        "texts": texts,
        "failed": failed,
    }


def _png(row: Bytes) -> bytes:
    data = io.BytesIO()
    Image.fromarray(row.reshape(2, 4, 3)).save(data, "PNG", compress_level=1)
    return data.getvalue()


def _packed(made: dict[str, Any]) -> bytes:
    """The samples as a tar; a failed one has a picture of 0 bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for key, picture, caption, label in zip(
            made["keys"], made["pictures"], made["captions"], made["labels"], strict=True
        ):
            for part, data in (("png", picture), ("txt", caption.encode()), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{key}.{part}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def _columns(made: dict[str, Any], labels: bool) -> dict[str, Any]:
    """What is known of a shard before β is, as the job would write it."""
    failed = made["failed"]
    cosines = np.clip(np.einsum("nd,nd->n", made["images"], made["texts"], dtype=np.float64), -1, 1)
    return {
        "key": made["keys"],
        "index": np.arange(len(failed), dtype=np.int32),
        "status": np.where(failed, "bad_image", "ok").tolist(),
        "error": ["0 bytes" if bad else None for bad in failed],
        "image_sha256": [hashlib.sha256(data).digest() for data in made["pictures"]],
        "text_sha256": [hashlib.sha256(text.encode()).digest() for text in made["captions"]],
        "similarity": np.where(failed, np.nan, cosines).astype(np.float32),
        "label": pa.array(made["labels"], pa.int32()),
        "flags": [[] for _ in failed],
    }


def _add_labels(run: RunFolder, stem: str, rng: np.random.Generator) -> None:
    """Label columns as a scoring with 30 % wrong labels would look."""
    table, metadata = run.read(stem), read_metadata(run.table(stem))
    count, known = len(table), table["status"].to_numpy(zero_copy_only=False) == "ok"
    given = table["label"].to_numpy()
    wrong = rng.random(count) < NOISE
    quality = np.where(known, np.where(wrong, rng.beta(1, 6, count), rng.beta(6, 1, count)), np.nan).astype(np.float32)
    refined = np.where(wrong, (given + 1 + rng.integers(0, 3, count)) % CLASSES, given).astype(np.int32)
    clean = np.nan_to_num(quality) >= 0.5
    columns = {
        **dict.fromkeys(("knn_consistency", "consistency", "probe_consistency", "label_quality"), quality),
        "clean_probability": quality,
        "clean": pa.array(clean, mask=~known),
        "clean_tango": pa.array(clean, mask=~known),
        "refined_label": pa.array(refined, mask=~known),
        "refined_confidence": np.where(wrong, 1 - quality, quality),
    }
    expected = {"kept": 0.7, "clean_precision": 0.98, "clean_recall": 0.98}
    facts = {
        **{"k": 50, "classes": CLASSES, "noise_rate": NOISE, "noise_interval": [0.28, 0.32], "ece": 0.01},
        "source_weights": {"neighbours": 0.6, "probe": 0.4},
        "expected": expected | {"noise_precision": 0.95, "noise_recall": 0.95},
    }
    run.write_table(stem, replace_columns(table, columns, metadata | {"labels": facts}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--labels", action="store_true")
    parser.add_argument("--with-shards", action="store_true")
    given = parser.parse_args()
    print(write_synthetic_run(given.folder, given.rows, given.shards, given.labels, given.with_shards))


if __name__ == "__main__":
    main()
