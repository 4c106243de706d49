"""`convert` on small downloads of the same shape as those of the papers."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from .inputs import array, picture
from .recorder import Recorder

__all__ = ["record_downloads"]

COLOURS = ((222, 36, 36), (36, 164, 62), (40, 92, 228), (244, 222, 44))


def record_downloads(recorder: Recorder) -> None:
    """Shards of every data set, in its layouts."""
    write_captioned()
    write_labelled()
    wanted: dict[str, tuple[object, ...]] = {
        "features": ("flickr30k", "regions"),
        "features-dev": ("flickr30k", "regions", "--split", "val", "--float16"),
        "noise-index": ("flickr30k", "regions", "--noise-file", "index.npy", "--shard-samples", 4),
        "noise-captions": ("flickr30k", "regions", "--noise-file", "captions.txt", "--rows", "captions"),
        "karpathy": ("coco", "karpathy"),
        "annotations": ("flickr30k", "annotated"),
        "table": ("cc152k", "table", "--layout", "table"),
        "pairs": ("cc120k", "pairs"),
        "cifar10": ("cifar10", "cifar10"),
        "cifar10n": ("cifar10n", "cifar10", "--label-file", "human.pt", "--labels", "aggre"),
        "cifar100": ("cifar100", "cifar100", "--split", "test"),
        "webvision": ("webvision", "webvision", "--check", "full"),
        "food101n": ("food101n", "food"),
        "animal10n": ("animal10n", "animals"),
        "cars98n": ("cars98n", "cars"),
        "msrvtt": ("msrvtt", "videos"),
        "none": ("coco", "regions", "--split", "test"),
    }
    for name, words in wanted.items():
        out = Path(f"converted-{name}")
        recorder.command(f"downloads/{name}", "convert", *words, "--out", out, "--quiet", "--json")
        if out.exists():
            recorder.folder(f"downloads/{name}", out)
    recorder.command(
        "downloads/again", "convert", "food101n", "food", "--out", "converted-food101n", "--quiet", "--json"
    )
    recorder.command("downloads/other", "convert", "food101n", "food", "--out", "converted-food101n", "--check", "full")


def write(folder: str, files: Mapping[str, bytes | str]) -> None:
    """Write files below a folder."""
    for name, content in files.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def jpeg(number: int = 0) -> bytes:
    return picture(COLOURS[number % len(COLOURS)], kind="JPEG")


def write_captioned() -> None:
    """Features, annotations, Karpathy's split, tables, videos, and published noise."""
    rng = np.random.default_rng(2)
    for split in ("train", "dev"):
        regions = array(rng.standard_normal((3, 3, 4)).astype(np.float32))
        write(
            "regions", {f"{split}_ims.npy": regions, f"{split}_caps.txt": "".join(f" {split} {i}\n" for i in range(15))}
        )
    np.save("index.npy", np.array([0, 0, 1, 0, 0, 1, 1, 1, 0, 1, 2, 2, 2, 0, 2]))
    write(".", {"captions.txt": "".join(f"train {i if i % 4 else (i + 5) % 15}\n" for i in range(15))})
    images = [
        {"filename": f"{i}.jpg", "filepath": "val2014", "split": split, "cocoid": i, "imgid": i,
         "sentences": [{"raw": f"Sentence {n}. ", "sentid": 5 * i + n} for n in range(5)]}
        for i, split in enumerate(["train", "restval", "test"])
    ]  # fmt: skip
    write("karpathy", {"dataset_coco.json": json.dumps({"images": images})})
    write("karpathy/val2014", {f"{i}.jpg": jpeg(i) for i in range(3)})
    ids = {"image_name.txt": "zero.jpg\none.jpg\n", "train_ids.txt": "1\n0\n"}
    write("annotated/annotations", {**ids, "train_caps.txt": "".join(f"c{i}\n" for i in range(10))})
    write("annotated/images", {"zero.jpg": jpeg(0), "one.jpg": jpeg(1)})
    write(
        "table",
        {"train.csv": 'caption,image\na cat,p/a.jpg\n"a, dog",p/b.jpg\n', "p/a.jpg": jpeg(0), "p/b.jpg": jpeg(1)},
    )
    write("pairs", {"train.tsv": "a.jpg\ta cat\nb.jpg\ta dog\nc.jpg\tno picture\n", "a.jpg": jpeg(0), "b.jpg": jpeg(2)})
    videos = [{"video_id": f"video{i}", "split": "train", "id": i} for i in range(3)]
    sentences = [{"sen_id": i, "video_id": f"video{i % 3}", "caption": f"words {i}"} for i in range(6)]
    write("videos", {"MSRVTT_data.json": json.dumps({"videos": videos, "sentences": sentences})})
    write("videos/features", {f"video{i}.npy": array(np.full((2, 3), i, np.float32)) for i in range(2)})


def write_labelled() -> None:
    """CIFAR's binary files with labels by people, and folders of web pictures."""

    def record(label: bytes, number: int) -> bytes:
        return label + np.full((3, 32, 32), 2 * number, np.uint8).tobytes()

    batches = {f"data_batch_{i}.bin": record(bytes([i]), i) for i in range(1, 6)}
    write("cifar10", {**batches, "test_batch.bin": record(b"\x07", 7)})
    write("cifar100", {"test.bin": b"".join(record(bytes([i // 5, i]), i) for i in (7, 99, 0))})
    columns = {"worse_label": [0, 0, 0, 0, 5], "aggre_label": [1, 2, 3, 4, 0], "clean_label": [1, 2, 3, 4, 5]}
    torch.save({name: np.array(values) for name, values in columns.items()}, "human.pt")
    synsets = ["n01440764 tench, Tinca tinca", "n02012849 crane", "n03126707 crane", *(f"n{i} c{i}" for i in range(48))]
    listed = {"google/q0001/a.jpg": 0, "google/q0051/b.jpg": 50, "google/q0002/c d.jpg": 1}
    write("webvision/info", {"synsets.txt": "\n".join(synsets)})
    write(
        "webvision/info", {"train_filelist_google.txt": "".join(f"{name} {label}\n" for name, label in listed.items())}
    )
    write("webvision", {name: jpeg(label) for name, label in listed.items()})
    dishes = [f"{dish}/{i}.jpg" for dish in ("apple_pie", "baklava") for i in range(4)]
    write("food/meta", {"imagelist.tsv": "class_name/key\n" + "\n".join(dishes) + "\n"})
    write("food/meta", {"classes.txt": "class_name\napple_pie\nbaklava\n"})
    write("food/images", {name: b"" if i == 2 else jpeg(i) for i, name in enumerate(dishes[:-1])})
    write("animals", {"training/9_1.jpg": jpeg(0), "training/0_22.jpg": jpeg(1), "training/notes.txt": b"x"})
    write("cars", {"img/10/a.jpg": jpeg(0), "img/2/b.jpg": jpeg(1), "img/2/a.jpg": jpeg(2)})
