"""Tiny-ImageNet, WebFG-496, LSMDC and YouCook2 from small files of their own shapes."""

import json
from pathlib import Path

import numpy as np
import pytest

from noisegate.pipeline.datasets.convert.job import convert
from tests.errors import refused
from tests.pipeline.datasets.converting import converted, jpeg, records, write_files


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Classes in the order of wnids.txt, not of their names; two synsets with one name."""
    files: dict[str, bytes | str] = {
        "wnids.txt": "n02\nn01\nn03\n",
        "words.txt": "n01\tgoldfish, Carassius auratus\nn02\tcrane\nn03\tcrane\nn09\tnot here\n",
        "val/val_annotations.txt": "val_0.JPEG\tn03\t0\t32\t44\t62\nval_1.JPEG\tn02\t52\t55\t57\t59\n",
        "val/images/val_0.JPEG": jpeg(),
        "val/images/val_1.JPEG": jpeg("blue"),
    }
    for synset in ("n01", "n02", "n03"):
        files |= {f"train/{synset}/images/{synset}_{i}.JPEG": jpeg() for i in range(2)}
        files[f"train/{synset}/{synset}_boxes.txt"] = ""
    return write_files(tmp_path / "download" / "tiny-imagenet-200", files).parent


def test_tiny_imagenet(tiny: Path, tmp_path: Path) -> None:
    found, samples = converted("tinyimagenet", tiny, tmp_path / "out")
    assert [int(raw.parts["cls"]) for raw in samples] == [0, 0, 1, 1, 2, 2]
    assert records(found)[0] == {"image_id": "train/n02/images/n02_0.JPEG", "label": 0, "synset": "n02"}
    assert (tmp_path / "out/classes.txt").read_text().split("\n")[:3] == ["crane (n02)", "goldfish", "crane (n03)"]
    val, samples = converted("tiny-imagenet", tiny / "tiny-imagenet-200", tmp_path / "val", split="val")
    assert [int(raw.parts["cls"]) for raw in samples] == [2, 0]
    assert jpeg("blue") in samples[1].parts.values()
    assert records(val)[0]["synset"] == "n03"
    write_files(tiny, {"tiny-imagenet-200/val/val_annotations.txt": "val_0.JPEG\tn04\n"})
    with refused("source", tiny / "tiny-imagenet-200/val/val_annotations.txt"):
        convert("tinyimagenet", tiny, tmp_path / "wrong", split="val")
    with refused("source", tmp_path / "out"):
        convert("tinyimagenet", tmp_path / "out", tmp_path / "none")


def test_webfg(tmp_path: Path) -> None:
    names = ("001.Black_footed_Albatross", "002.Laysan_Albatross")
    files = {f"web-bird/{split}/{name}/{i}.jpg": jpeg() for split in ("train", "val") for name in names for i in (0, 1)}
    source = write_files(tmp_path / "download", files)
    found, samples = converted("web-bird", source, tmp_path / "out")
    assert [int(raw.parts["cls"]) for raw in samples] == [0, 0, 1, 1]
    assert records(found)[2]["class_name"] == "Laysan Albatross"
    assert convert("web-bird", source / "web-bird", tmp_path / "val", split="val").samples == 4
    with refused("source", source):
        convert("web-car", source, tmp_path / "car")


def clip_features(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        np.save(folder / f"{name}.npy", np.full((2, 3), number, np.float32))


def test_lsmdc(tmp_path: Path) -> None:
    row = "{}\t00.00.01.000\t00.00.02.000\t00.00.01.000\t00.00.02.000\t{}\n"
    listed = row.format("1005_Signs_00.24.33", "SOMEONE dials.") + row.format("1005_Signs_00.24.36", "She waits.")
    source = write_files(tmp_path / "lsmdc", {"task1/LSMDC16_annos_training.csv": listed})
    clip_features(source / "features", "1005_Signs_00.24.33", "1005_Signs_00.24.36")
    found, samples = converted("lsmdc", source, tmp_path / "out")
    assert [row["image_id"] for row in records(found)] == ["1005_Signs_00.24.33", "1005_Signs_00.24.36"]
    assert [raw.parts["txt"].decode() for raw in samples] == ["SOMEONE dials.", "She waits."]
    write_files(source, {"LSMDC16_annos_val.csv": "clip\tsentence\n"})
    with refused("source", source / "LSMDC16_annos_val.csv"):
        convert("lsmdc", source, tmp_path / "val", split="val")


def test_youcook2(tmp_path: Path) -> None:
    def steps(*sentences: str) -> list[dict[str, object]]:
        return [{"id": i, "segment": [0, 9], "sentence": text} for i, text in enumerate(sentences)]

    database = {
        "aaa": {"subset": "training", "annotations": steps("chop onions", "fry them")},
        "b_b": {"subset": "validation", "annotations": steps("boil water ")},
    }
    name = "youcookii_annotations_trainval.json"
    source = write_files(tmp_path / "youcook2", {name: json.dumps({"database": database})})
    clip_features(source / "features", "aaa_0", "aaa_1", "b_b_0")
    found, samples = converted("youcook2", source, tmp_path / "out")
    assert [row["image_id"] for row in records(found)] == ["aaa_0", "aaa_1"]
    assert samples[1].parts["txt"].decode() == "fry them"
    test = convert("youcook2", source, tmp_path / "test", split="test")
    assert records(test)[0]["captions"] == ["boil water"]
    write_files(source, {name: "[]"})
    with refused("source", source / name):
        convert("youcook2", source, tmp_path / "wrong")
