"""CIFAR with labels by people, WebVision, Food-101N, ANIMAL-10N and CARS98N from small files of their own shapes."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from noisegate import read_table
from noisegate.pipeline.datasets.convert.binary import read_human_labels
from noisegate.pipeline.datasets.convert.job import convert
from noisegate.pipeline.labels.classes import BUILT_IN
from tests.commands import FAKE, called
from tests.errors import refused
from tests.pipeline.datasets.converting import COLOURS, converted, jpeg, records, write_files


def pixels_of(png: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(png)))


def planes(colour: tuple[int, int, int], side: int) -> bytes:
    """A picture of one colour but for its second pixel, as planes of red, green and blue."""
    picture = np.broadcast_to(np.array(colour, np.uint8), (side, side, 3)).copy()
    picture[0, 1] = (1, 2, 3)
    return picture.transpose(2, 0, 1).tobytes()


# --- CIFAR -----------------------------------------------------------------------------------------------------------

FINE = [7, 99, 0, 7, 23, 42]


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """cifar-100-binary: coarse label, fine label, pixels."""
    colours = list(COLOURS.values())
    records = b"".join(bytes([fine // 5, fine]) + planes(colours[i % 4], 32) for i, fine in enumerate(FINE))
    return write_files(tmp_path / "cifar-100-binary", {"train.bin": records, "test.bin": records[: 2 * 3074]})


def human(path: Path, old_numpy: bool = False, **columns: Any) -> Path:
    """A file as CIFAR-N's: numpy arrays in torch's format, older ones under numpy's former name."""
    packed = io.BytesIO()
    torch.save(
        {name: np.array(values) for name, values in columns.items()}, packed, _use_new_zipfile_serialization=False
    )
    data = packed.getvalue()
    path.write_bytes(data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray") if old_numpy else data)
    return path


def test_cifar100s_binary_version(cifar: Path, tmp_path: Path) -> None:
    found, samples = converted("cifar100", cifar, tmp_path / "out")
    assert [int(raw.parts["cls"]) for raw in samples] == FINE
    assert records(found)[1] == {
        "image_id": "train-0000001",
        "label": 99,
        "class_name": "worm",
        "coarse_label": 19,
    }
    first = pixels_of(samples[0].parts["png"])
    assert first.shape == (32, 32, 3)
    assert first[0, 0].tolist() == first[31, 31].tolist() == list(COLOURS["red"])
    assert first[0, 1].tolist() == [1, 2, 3]
    assert (tmp_path / "out/classes.txt").read_text().splitlines() == list(BUILT_IN["cifar100"])
    assert convert("cifar100", tmp_path, tmp_path / "test", split="test").samples == 2, "the folder above is found too"


def test_cifar10_in_five_batches(tmp_path: Path) -> None:
    files = {f"data_batch_{i}.bin": bytes([i]) + planes((i, 0, 0), 32) for i in range(1, 6)}
    found, samples = converted("cifar10", write_files(tmp_path / "src", files), tmp_path / "out", shard_samples=2)
    assert [int(raw.parts["cls"]) for raw in samples] == [1, 2, 3, 4, 5]
    assert [int(pixels_of(raw.parts["png"])[5, 5, 0]) for raw in samples] == [1, 2, 3, 4, 5]
    assert "coarse_label" not in records(found)[0]
    (tmp_path / "src/data_batch_4.bin").unlink()
    with refused("source", tmp_path / "src"):
        convert("cifar10", tmp_path / "src", tmp_path / "out2")


@pytest.mark.parametrize("old_numpy", [False, True])
def test_labels_by_people_come_with_the_truth(cifar: Path, tmp_path: Path, old_numpy: bool) -> None:
    given = [7, 98, 0, 8, 23, 42]
    human(cifar / "CIFAR-100_human.pt", old_numpy, noisy_label=given, clean_label=FINE, noisy_coarse_label=[0] * 6)
    found, samples = converted("cifar100n", cifar, tmp_path / "out")
    rows = records(found)
    assert [int(raw.parts["cls"]) for raw in samples] == given
    assert [row["clean_label"] for row in rows] == FINE
    assert [row["noisy"] for row in rows] == [False, True, False, True, False, False]
    assert rows[1]["class_name"] == "woman"
    assert rows[0]["noise_protocol"] == "human:cifar100n.noisy_label"
    assert found.facts["noisy"] == 2
    assert "clean_label" not in records(convert("cifar100n", cifar, tmp_path / "test", split="test"))[0]


def test_cifar10n_has_several_columns(tmp_path: Path) -> None:
    files = {f"data_batch_{i}.bin": bytes([i]) + planes((i, 0, 0), 32) for i in range(1, 6)}
    write_files(tmp_path / "src", files)
    columns = {"worse_label": [0, 0, 0, 0, 5], "aggre_label": [1, 2, 3, 4, 0], "clean_label": [1, 2, 3, 4, 5]}
    path = human(tmp_path / "labels.pt", **columns)
    worst = convert("cifar10n", tmp_path / "src", tmp_path / "a", label_file=path)
    best = convert("cifar10n", tmp_path / "src", tmp_path / "b", label_file=path, labels="aggre")
    assert (worst.facts["noisy"], best.facts["noisy"]) == (4, 1)
    with refused("label_file", path):
        convert("cifar10n", tmp_path / "src", tmp_path / "c", label_file=path, labels="random1")
    with refused("labels", "worst"):
        convert("cifar10n", tmp_path / "src", tmp_path / "c", label_file=path, labels="worst")
    with refused("source", tmp_path / "src"):
        convert("cifar10n", tmp_path / "src", tmp_path / "c")


def test_labels_of_other_pictures_are_refused(cifar: Path, tmp_path: Path) -> None:
    path = human(tmp_path / "x.pt", noisy_label=FINE, clean_label=[7, 99, 0, 7, 23, 41])
    with refused("label_file", path):
        convert("cifar100n", cifar, tmp_path / "out", label_file=path)
    path = human(tmp_path / "x.pt", noisy_label=FINE[:5], clean_label=FINE[:5])
    with refused("label_file", path):
        convert("cifar100n", cifar, tmp_path / "out", label_file=path)


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("code ran",)


def test_a_label_file_runs_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content in ({"noisy_label": _Evil()}, {"noisy_label": np.array([_Evil()], object)}):
        torch.save(content, tmp_path / "evil.pt")
        with refused("label_file", tmp_path / "evil.pt"):
            read_human_labels(tmp_path / "evil.pt", "noisy_label", np.zeros(1, np.int64))
    write_files(tmp_path, {"text.pt": "not a torch file"})
    with refused("label_file", tmp_path / "text.pt"):
        read_human_labels(tmp_path / "text.pt", "noisy_label", np.zeros(1, np.int64))
    assert "code ran" not in capsys.readouterr().out


def test_a_cut_binary_file_is_refused(cifar: Path, tmp_path: Path) -> None:
    for data in (b"", (cifar / "train.bin").read_bytes()[:-1]):
        (cifar / "train.bin").write_bytes(data)
        with refused("source", cifar / "train.bin"):
            convert("cifar100", cifar, tmp_path / "out")
    (cifar / "train.bin").write_bytes(bytes([0, 100]) + planes((0, 0, 0), 32))
    with refused("source", cifar):
        convert("cifar100", cifar, tmp_path / "out")


def test_human_noise_goes_through_annotate_and_evaluate(cifar: Path, tmp_path: Path) -> None:
    """The table's labels are the given ones, and evaluate finds the truth in the shards."""
    human(cifar / "CIFAR-100_human.pt", noisy_label=[7, 98, 0, 8, 23, 42], clean_label=FINE)
    convert("cifar100n", cifar, tmp_path / "out")
    annotate = ("annotate", "out/*.tar", "--out", "tables", "--task", "labels", "--classes", "out/classes.txt")
    done = called(*annotate, *FAKE, "--workers", "0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = called("evaluate", "tables", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    judged = json.loads(done.stdout)["labels"]
    assert (judged["samples"], judged["noisy"], judged["given_accuracy"]) == (6, 2, 4 / 6)
    assert read_table(tmp_path / "tables", columns=["label"])["label"].to_pylist() == [7, 98, 0, 8, 23, 42]


# --- WebVision -------------------------------------------------------------------------------------------------------


@pytest.fixture
def webvision(tmp_path: Path) -> Path:
    listed = ["google/q0001/a.jpg 0", "google/q0051/b.jpg 50", "google/q0002/c d.jpg 1", "google/q0001/e.jpg 0"]
    synsets = ["n01440764 tench, Tinca tinca", "n02012849 crane", "n03126707 crane"] + [f"n{i} c{i}" for i in range(48)]
    files: dict[str, bytes | str] = {
        "info/train_filelist_google.txt": "\n".join(listed) + "\n",
        "info/val_filelist.txt": "val1.jpg 49\nval2.jpg 999\nval3.jpg 0\n",
        "info/synsets.txt": "\n".join(synsets),
        "val_images_256/val1.jpg": jpeg("red"),
        "val_images_256/val3.jpg": jpeg("blue"),
    }
    files |= {
        f"google/{name}": jpeg("green") for name in ("q0001/a.jpg", "q0051/b.jpg", "q0002/c d.jpg", "q0001/e.jpg")
    }
    return write_files(tmp_path / "webvision", files)


def test_mini_webvision_is_the_first_fifty_classes(webvision: Path, tmp_path: Path) -> None:
    found, samples = converted("webvision", webvision, tmp_path / "out")
    assert [row["image_id"] for row in records(found)] == [
        "google/q0001/a.jpg",
        "google/q0002/c d.jpg",
        "google/q0001/e.jpg",
    ]
    assert [int(raw.parts["cls"]) for raw in samples] == [0, 1, 0]
    names = (tmp_path / "out/classes.txt").read_text().splitlines()
    assert len(names) == 50
    assert names[:3] == ["tench", "crane (n02012849)", "crane (n03126707)"]
    assert convert("webvision", webvision, tmp_path / "more", classes=51).samples == 4
    _, samples = converted("webvision", webvision, tmp_path / "val", split="val")
    assert [(int(raw.parts["cls"]), raw.parts["jpg"]) for raw in samples] == [(49, jpeg("red")), (0, jpeg("blue"))]


def test_webvisions_lists_are_checked(webvision: Path, tmp_path: Path) -> None:
    with refused("classes", 0):
        convert("webvision", webvision, tmp_path / "out", classes=0)
    write_files(webvision, {"info/train_filelist_google.txt": "a.jpg 0\nb.jpg\n"})
    with refused("source", webvision / "info/train_filelist_google.txt"):
        convert("webvision", webvision, tmp_path / "out")
    write_files(webvision, {"info/train_filelist_google.txt": "a.jpg 70\n"})
    with refused("source", webvision):
        convert("webvision", webvision, tmp_path / "out")


def test_imagenets_validation_set_has_webvisions_numbers(tmp_path: Path) -> None:
    source = tmp_path / "ILSVRC"
    files = {"val/n02/b.JPEG": jpeg("red"), "val/n01/a.JPEG": jpeg("blue"), "val/n01/readme.txt": b""}
    write_files(source, files)
    found, samples = converted("webvision", source, tmp_path / "out", split="ilsvrc", classes=2)
    assert [(int(raw.parts["cls"]), raw.parts["jpeg"]) for raw in samples] == [(0, jpeg("blue")), (1, jpeg("red"))]
    assert records(found)[1]["synset"] == "n02"
    with refused("source", source / "val"):
        convert("webvision", source, tmp_path / "out2", split="ilsvrc")


# --- Food-101N -------------------------------------------------------------------------------------------------------


@pytest.fixture
def food(tmp_path: Path) -> Path:
    verified = "class_name/key\tverification_label\nbaklava/x.jpg\t0\napple_pie/y.jpg\t1\n"
    names = ("apple_pie/y.jpg", "apple_pie/z.jpg", "baklava/x.jpg")
    files: dict[str, bytes | str] = {
        "meta/imagelist.tsv": "class_name/key\n" + "\n".join(names),
        "meta/classes.txt": "class_name\napple_pie\nbaklava\n",
        "meta/verified_train.tsv": verified,
        **{f"images/{name}": jpeg() for name in names},
    }
    return write_files(tmp_path / "Food-101N_release", files)


def test_food101n_knows_what_people_verified(food: Path, tmp_path: Path) -> None:
    found = convert("food101n", food, tmp_path / "out")
    rows = records(found)
    assert [row["label"] for row in rows] == [0, 0, 1]
    assert [row.get("verification_label") for row in rows] == [1, None, 0]
    assert all("noisy" not in row for row in rows), "it is not known of all"
    assert (found.facts["verified"], found.facts["wrong"]) == (2, 1)
    looked_at = convert("food101n", food, tmp_path / "verified", split="verified-train")
    assert [(row["image_id"], row["noisy"]) for row in records(looked_at)] == [
        ("baklava/x.jpg", True),
        ("apple_pie/y.jpg", False),
    ]


def test_food101s_test_set_has_the_same_numbers(tmp_path: Path) -> None:
    files = {"meta/test.txt": "baklava/1\napple_pie/2\n", "meta/classes.txt": "apple_pie\nbaklava\n"}
    write_files(
        tmp_path / "food-101", {**files, "images/baklava/1.jpg": jpeg(), "images/apple_pie/2.jpg": jpeg("blue")}
    )
    found, samples = converted("food101n", tmp_path / "food-101", tmp_path / "out", split="test")
    assert [int(raw.parts["cls"]) for raw in samples] == [1, 0]
    assert records(found)[0] == {"image_id": "baklava/1.jpg", "label": 1, "class_name": "baklava"}


def test_food101ns_lists_are_checked(food: Path, tmp_path: Path) -> None:
    write_files(food, {"meta/verified_train.tsv": "baklava/x.jpg\tyes\n"})
    with refused("source", food / "meta/verified_train.tsv"):
        convert("food101n", food, tmp_path / "out")
    write_files(food, {"meta/imagelist.tsv": "churros/x.jpg\n"})
    with refused("source", food / "meta/imagelist.tsv"):
        convert("food101n", food, tmp_path / "out")


# --- ANIMAL-10N ------------------------------------------------------------------------------------------------------


def test_animal10ns_files_begin_with_their_label(tmp_path: Path) -> None:
    files = {"training/9_1.jpg": jpeg("red"), "training/0_22.jpg": jpeg("blue"), "training/notes.txt": b"x"}
    write_files(tmp_path / "src", {**files, "testing/3_1.jpg": jpeg()})
    found, samples = converted("animal10n", tmp_path / "src", tmp_path / "out")
    assert [(int(raw.parts["cls"]), raw.parts["jpg"]) for raw in samples] == [(0, jpeg("blue")), (9, jpeg("red"))]
    assert found.bad == {"bad_label": 1}
    assert [row["class_name"] for row in records(found)] == ["cat", "guinea_pig"]
    assert convert("animal10n", tmp_path / "src", tmp_path / "test", split="test").samples == 1
    write_files(tmp_path / "wrong", {"training/cat.jpg": jpeg()})
    with refused("source", tmp_path / "wrong"):
        convert("animal10n", tmp_path / "wrong", tmp_path / "out2")


def test_animal10ns_batches(tmp_path: Path) -> None:
    def record(number: int, label: int) -> bytes:
        return number.to_bytes(4, "big") + label.to_bytes(4, "big") + planes((number % 256, 0, 0), 64)

    files = {"data_batch_10.bin": record(300, 4), "data_batch_2.bin": record(1, 9) + record(2, 0)}
    found, samples = converted("animal10n", write_files(tmp_path / "src", files), tmp_path / "out")
    assert [(row["image_id"], row["label"]) for row in records(found)] == [("1", 9), ("2", 0), ("300", 4)]
    assert pixels_of(samples[2].parts["png"])[63, 63].tolist() == [300 % 256, 0, 0]
    assert pixels_of(samples[2].parts["png"])[0, 1].tolist() == [1, 2, 3]
    write_files(tmp_path / "src", {"data_batch_2.bin": b"short"})
    with refused("source", tmp_path / "src/data_batch_2.bin"):
        convert("animal10n", tmp_path / "src", tmp_path / "out2")


# --- CARS98N ---------------------------------------------------------------------------------------------------------


def test_cars98n_by_its_folders(tmp_path: Path) -> None:
    files = {"img/10/a.jpg": jpeg("red"), "img/2/b.jpg": jpeg("blue"), "img/2/a.jpg": jpeg("green")}
    found, samples = converted("cars98n", write_files(tmp_path / "src", files), tmp_path / "out")
    assert [(row["image_id"], row["label"], row["source_class"]) for row in records(found)] == [
        ("2/a.jpg", 0, "2"),
        ("2/b.jpg", 0, "2"),
        ("10/a.jpg", 1, "10"),
    ]
    assert samples[2].parts["jpg"] == jpeg("red")
    assert not (tmp_path / "out/classes.txt").exists(), "numbers are no names"
    named = write_files(tmp_path / "named", {"Audi TT/1.jpg": jpeg(), "AM General/1.jpg": jpeg()})
    convert("cars98n", named, tmp_path / "out2")
    assert (tmp_path / "out2/classes.txt").read_text() == "AM General\nAudi TT\n"


def test_cars98n_by_prisms_lists(tmp_path: Path) -> None:
    listed = "/data/cars_noise/img_v3/0/a.jpg,1\n/data/cars_noise/img_v3/10/b, c.jpg,3\n"
    source = write_files(
        tmp_path / "src", {"CARSN_train.csv": listed, "img_v3/0/a.jpg": jpeg(), "img_v3/10/b, c.jpg": jpeg()}
    )
    assert [(row["label"], row["source_class"]) for row in records(convert("cars98n", source, tmp_path / "out"))] == [
        (0, 1),
        (1, 3),
    ]
    test = {"CARSN_test.csv": "/data/cars196/images/FIAT 500/07729.jpg,99\n", "images/FIAT 500/07729.jpg": jpeg("blue")}
    found, samples = converted("cars98n", write_files(tmp_path / "196", test), tmp_path / "test", split="test")
    assert (samples[0].parts["jpg"], records(found)[0]["source_class"]) == (jpeg("blue"), 99)
    write_files(tmp_path / "196", {"CARSN_test.csv": "a.jpg,1\nb.jpg,x\n"})
    with refused("source", tmp_path / "196/CARSN_test.csv"):
        convert("cars98n", tmp_path / "196", tmp_path / "out2", split="test")


def test_cars98ns_test_set_from_the_annotations_of_cars196(tmp_path: Path) -> None:
    kind = [("relative_im_path", object), ("class", object), ("test", object)]
    rows = [("car_ims/1.jpg", 98, 0), ("car_ims/2.jpg", 196, 1), ("car_ims/3.jpg", 99, 0)]
    annotations = np.array([rows], dtype=kind)
    names = np.array([[f"car {i}" for i in range(1, 197)]], object)
    source = write_files(tmp_path / "src", {"car_ims/2.jpg": jpeg("red"), "car_ims/3.jpg": jpeg("blue")})
    savemat(source / "cars_annos.mat", {"annotations": annotations, "class_names": names})
    found, samples = converted("cars98n", source, tmp_path / "out", split="test")
    assert [(row["label"], row["source_class"]) for row in records(found)] == [(1, 196), (0, 99)]
    assert samples[1].parts["jpg"] == jpeg("blue")
    assert (tmp_path / "out/classes.txt").read_text() == "car 99\ncar 196\n"
    write_files(source, {"cars_annos.mat": b"x" * 200})
    with refused("source", source / "cars_annos.mat"):
        convert("cars98n", source, tmp_path / "out2", split="test")
