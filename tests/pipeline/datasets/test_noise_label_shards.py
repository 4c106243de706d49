"""Wrong labels in shards: what comes out is compared, part by part, with what went in."""

import io
import json
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from noisegate.pipeline.annotate import annotate
from noisegate.pipeline.cli.commands import app
from noisegate.pipeline.datasets.noise.label_inputs import (
    CIFAR100_MAP,
    CIFAR100_SUPERCLASSES,
    load_class_map,
    make_thumbnails,
)
from noisegate.pipeline.datasets.noise.label_shards import LabelNoiseReport, noise_labels
from noisegate.pipeline.datasets.noise.labels import asymmetric, instance_dependent, pmd, symmetric
from noisegate.pipeline.errors import ConfigError, MismatchError
from noisegate.pipeline.estimators.by_name import CustomEstimator
from noisegate.pipeline.labels.classes import BUILT_IN
from noisegate.pipeline.shards.locate import find_shards
from tests.errors import refused

Parts = dict[str, bytes]
CLASSES = 6


def png(colour: tuple[int, int, int], corner: tuple[int, int, int] = (0, 0, 0)) -> bytes:
    picture = Image.new("RGB", (12, 10), colour)
    picture.paste(corner, (0, 0, 5, 5))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def write_shard(path: Path, samples: dict[str, Parts]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for key, parts in samples.items():
            for part, data in parts.items():
                member = tarfile.TarInfo(f"{key}.{part}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def read_shards(folder: Path) -> dict[str, Parts]:
    """Key to parts, by plain tarfile."""
    samples: dict[str, Parts] = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, part = member.name.split(".", 1)
                file = tar.extractfile(member)
                assert file is not None
                samples.setdefault(key, {})[part] = file.read()
    return samples


def labelled(count: int, classes: int = CLASSES, start: int = 0, pictures: bool = False) -> dict[str, Parts]:
    samples: dict[str, Parts] = {}
    for i in range(start, start + count):
        label = (7 * i) % classes
        parts = {
            "txt": f"a photo of class {label}".encode(),
            "cls": f"{label}\n".encode(),
            "json": json.dumps({"label": label, "class_name": f"class {label}", "id": i}).encode(),
        }
        if pictures:
            parts["png"] = png((40 * label, 255 - 40 * label, (37 * i) % 256), ((11 * i) % 256, 0, 90))
        samples[f"s{i:05d}"] = parts
    return samples


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 labels in two shards, no pictures; nobody writes there."""
    folder = tmp_path_factory.mktemp("clean")
    write_shard(folder / "a.tar", labelled(120))
    write_shard(folder / "b.tar", labelled(80, start=120))
    return folder


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,500 samples of 100 classes, nothing but labels."""
    path = tmp_path_factory.mktemp("hundred") / "c.tar"
    write_shard(path, {f"{i}": {"cls": str(i % 100).encode()} for i in range(1500)})
    return path


def labels_of(folder: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([int(parts["cls"]) for parts in read_shards(folder).values()])


OPTIONS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "symmetric": lambda _: {"rate": 0.4},
    "asymmetric": lambda _: {"rate": 0.4, "class_map": "next"},
    "instance-dependent": lambda _: {"rate": 0.4, "features": features()},
    "pmd": lambda folder: {"posteriors": posteriors(labels_of(folder)), "kind": "II", "rate": 0.4},
}


def features(count: int = 200) -> np.ndarray[Any, Any]:
    return np.random.default_rng(5).normal(size=(count, 4))


def posteriors(labels: np.ndarray[Any, Any], classes: int = CLASSES) -> np.ndarray[Any, Any]:
    """Right about every label, by margins of all sizes."""
    weights = np.random.default_rng(6).dirichlet(np.ones(classes), len(labels))
    rows, top = np.arange(len(labels)), weights.argmax(axis=1)
    weights[rows, labels], weights[rows, top] = weights[rows, top], weights[rows, labels]
    return weights


# --- every protocol --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", OPTIONS)
def test_mask_labels_and_counts_say_what_really_changed(protocol: str, clean: Path, tmp_path: Path) -> None:
    report = noise_labels(clean, tmp_path / "noisy", protocol=protocol, seed=3, **OPTIONS[protocol](clean))
    before, after = read_shards(clean), read_shards(tmp_path / "noisy")
    assert list(before) == list(after)
    table = pq.read_table(tmp_path / "noisy" / "noise.parquet")
    rows = {row["key"]: row for row in table.to_pylist()}
    assert table.column_names == ["shard", "index", "key", "noisy", "clean_label", "label"]
    moves: Counter[tuple[int, int]] = Counter()
    for i, (key, old) in enumerate(before.items()):
        new, row = after[key], rows[key]
        true, given = int(old["cls"]), int(new["cls"])
        record = json.loads(new["json"])
        assert record == json.loads(old["json"]) | {
            "label": given,
            "clean_label": true,
            "noisy": true != given,
            "noise_protocol": report.protocol,
        }
        assert (row["clean_label"], row["label"], row["noisy"]) == (true, given, true != given)
        assert (row["shard"], row["index"]) == (("a", i) if i < 120 else ("b", i - 120))
        assert new["txt"] == old["txt"]
        moves[true, given] += 1
    assert {(i, j): count for i, j, count in report.transitions} == moves
    assert [tuple(t) for t in json.loads(table.schema.metadata[b"noisegate.transitions"])] == report.transitions
    assert table.schema.metadata[b"noisegate.noise_protocol"].decode() == report.protocol
    noisy = sum(count for (i, j), count in moves.items() if i != j)
    assert (report.noisy, report.samples, report.untouched, report.classes) == (noisy, 200, 0, CLASSES)
    assert report.rate == noisy / 200
    assert report.rate == pytest.approx(0.4, abs=0.14)  # four deviations
    assert report.protocol.startswith(f"{protocol}(")


@pytest.mark.parametrize("protocol", OPTIONS)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(protocol: str, clean: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "other")]
    options = OPTIONS[protocol](clean)
    reports = [
        noise_labels(clean, out, protocol=protocol, seed=seed, **options)
        for out, seed in zip(folders, (1, 1, 2), strict=True)
    ]
    one, two, other = ({file.name: file.read_bytes() for file in sorted(f.iterdir())} for f in folders)
    assert sorted(one) == ["a.tar", "b.tar", "noise.parquet"]
    assert one == two
    assert all(one[name] != other[name] for name in one)
    assert reports[0].protocol == reports[1].protocol != reports[2].protocol


def test_the_noise_is_that_of_the_pure_functions_with_a_fresh_generator(clean: Path, tmp_path: Path) -> None:
    true = labels_of(clean)
    wanted = {
        "symmetric": symmetric(true, CLASSES, 0.4, np.random.default_rng(9)),
        "asymmetric": asymmetric(true, [1, 2, 3, 4, 5, 0], 0.4, np.random.default_rng(9)),
        "instance-dependent": instance_dependent(true, features(), CLASSES, 0.4, np.random.default_rng(9)),
        "pmd": pmd(true, posteriors(true), "II", np.random.default_rng(9)),
    }
    for protocol, noise in wanted.items():
        options = OPTIONS[protocol](clean) | ({"rate": None} if protocol == "pmd" else {})
        noise_labels(clean, tmp_path / protocol, protocol=protocol, seed=9, **options)
        np.testing.assert_array_equal(labels_of(tmp_path / protocol), noise.labels)


# --- symmetric -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "expected"), [(0.2, 0.198), (0.4, 0.396), (0.6, 0.594)])
def test_inclusive_noise_over_100_classes_has_its_known_true_rate(
    rate: float, expected: float, hundred: Path, tmp_path: Path
) -> None:
    report = noise_labels(hundred, tmp_path / "out", rate=rate, seed=0, inclusive=True)
    # int(rate N) are drawn anew and each keeps its class with probability 1/100
    assert report.rate == pytest.approx(expected, abs=4 * np.sqrt(rate * 0.01 * 0.99 / 1500))
    assert report.classes == 100


def test_the_number_of_classes_is_given_or_that_of_the_largest_label(clean: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("".join(f"class {i}\n" for i in range(20)))

    def made(name: str, classes: Any) -> LabelNoiseReport:
        return noise_labels(clean, tmp_path / name, rate=1.0, seed=0, classes=classes)

    assert [made(str(i), c).classes for i, c in enumerate([None, 9, "9", names, "cifar10"])] == [6, 9, 9, 20, 10]
    assert labels_of(tmp_path / "0").max() == 5
    assert labels_of(tmp_path / "3").max() > 15


# --- asymmetric ------------------------------------------------------------------------------------------------------


def test_cifar100_noise_stays_inside_its_superclasses(tmp_path: Path) -> None:
    write_shard(tmp_path / "c.tar", {f"{i}": {"cls": str(i).encode()} for i in range(100)})
    report = noise_labels(
        tmp_path / "c.tar", tmp_path / "out", protocol="asymmetric", rate=1, seed=0, class_map="cifar100"
    )
    moves = {true: given for true, given, _ in report.transitions}
    for group in CIFAR100_SUPERCLASSES:
        walk = [group[0]]
        while moves[walk[-1]] != group[0]:
            walk.append(moves[walk[-1]])
        assert walk == list(group)
    assert "class_map=cifar100," in report.protocol


def test_a_map_from_a_file_goes_by_id_or_by_name_and_leaves_the_others(clean: Path, tmp_path: Path) -> None:
    file, names = tmp_path / "map.json", tmp_path / "names.txt"
    names.write_text("cat\ndog\nmaple_tree\ncar\nship\nfrog\n")
    ids = {}
    for text in ('{"cat": "dog", "Maple tree": 4}', '{"0": 1, "2": "ship"}'):
        file.write_text(text)
        report = noise_labels(
            clean, tmp_path / "out", protocol="asymmetric", rate=1, seed=0, class_map=file, classes=names
        )
        assert {true: given for true, given, _ in report.transitions} == {0: 1, 1: 1, 2: 4, 3: 3, 4: 4, 5: 5}
        ids[report.protocol] = text
    assert len(ids) == 1  # the same noise has the same id, however the file words it


def test_a_file_that_says_what_a_built_in_map_says_has_its_name(tmp_path: Path) -> None:
    names = BUILT_IN["cifar100"]
    file = tmp_path / "map.json"
    file.write_text(json.dumps({names[i]: names[j] for i, j in enumerate(CIFAR100_MAP)}))
    assert load_class_map(file, 100, names).name == "cifar100"
    assert load_class_map("next", 100).name == "next:100"


# --- instance dependent ----------------------------------------------------------------------------------------------


@pytest.fixture
def pictured(tmp_path: Path) -> Path:
    write_shard(tmp_path / "pictured" / "a.tar", labelled(60, pictures=True))
    samples = labelled(40, start=60, pictures=True)
    samples["s00070"]["png"] = b"no picture"
    write_shard(tmp_path / "pictured" / "b.tar", samples)
    return tmp_path / "pictured"


def test_thumbnails_are_small_centred_and_missing_where_there_is_no_picture(pictured: Path) -> None:
    found = make_thumbnails(find_shards(pictured))
    assert found.rows.shape == (100, 192)
    assert np.flatnonzero(~found.known).tolist() == [70]
    assert not found.rows[70].any()
    assert np.abs(found.rows[found.known].mean(axis=0)).max() <= 0.5  # the mean is rounded to whole grey levels
    first = np.asarray(Image.open(io.BytesIO(read_shards(pictured)["s00000"]["png"])).resize((8, 8), 2), np.int64)
    second = np.asarray(Image.open(io.BytesIO(read_shards(pictured)["s00001"]["png"])).resize((8, 8), 2), np.int64)
    np.testing.assert_array_equal(found.rows[0] - found.rows[1], (first - second).reshape(-1))


def test_without_features_the_noise_follows_the_pictures(pictured: Path, tmp_path: Path) -> None:
    report = noise_labels(pictured, tmp_path / "out", protocol="instance-dependent", rate=1, seed=0, temperature=1e-3)
    assert "features=thumbnails-8x8:" in report.protocol
    assert (report.samples, report.untouched, report.noisy) == (100, 1, 99)
    after = read_shards(tmp_path / "out")
    record = json.loads(after["s00070"]["json"])
    assert (record["noisy"], record["clean_label"], record["label"]) == (False, 490 % CLASSES, 490 % CLASSES)
    assert after["s00070"]["png"] == b"no picture"
    wanted = instance_dependent(
        np.delete(labels_of(pictured), 70),
        np.delete(make_thumbnails(find_shards(pictured)).rows, 70, axis=0),
        CLASSES,
        1,
        np.random.default_rng(0),
        temperature=1e-3,
    )
    np.testing.assert_array_equal(np.delete(labels_of(tmp_path / "out"), 70), wanted.labels)


def test_features_may_be_a_file_with_rows_that_are_not_finite(clean: Path, tmp_path: Path) -> None:
    rows = features()
    rows[[3, 150]] = np.nan
    np.save(tmp_path / "rows.npy", rows)
    options: dict[str, Any] = {"protocol": "instance-dependent", "rate": 1, "seed": 0}
    report = noise_labels(clean, tmp_path / "file", features=tmp_path / "rows.npy", **options)
    same = noise_labels(clean, tmp_path / "array", features=rows, **options)
    assert (report.untouched, report.noisy) == (2, 198)
    assert report.protocol == same.protocol
    table = pq.read_table(tmp_path / "file" / "noise.parquet").to_pylist()
    assert [i for i, row in enumerate(table) if not row["noisy"]] == [3, 150]


class Colours:
    """Embeds a picture as its mean colour."""

    identity = "mean colour"

    def encode_images(self, images: list[Image.Image]) -> list[Any]:
        return [np.asarray(image, np.float32).mean(axis=(0, 1)) + 1 for image in images]

    def encode_texts(self, texts: list[str]) -> list[Any]:
        return [np.ones(3, np.float32) for _ in texts]


def test_features_may_be_the_embeddings_of_a_run_on_the_same_shards(pictured: Path, tmp_path: Path) -> None:
    annotate(pictured, tmp_path / "run", estimator=CustomEstimator(Colours(), "colours"), workers=0)
    options: dict[str, Any] = {"protocol": "instance-dependent", "rate": 1, "seed": 0, "features": tmp_path / "run"}
    report = noise_labels(pictured, tmp_path / "out", **options)
    assert "features=colours:" in report.protocol
    assert (report.untouched, report.noisy) == (1, 99)
    write_shard(pictured / "b.tar", labelled(40, start=61, pictures=True))
    with refused("features", tmp_path / "run", MismatchError):
        noise_labels(pictured, tmp_path / "out", **options)
    write_shard(pictured / "c.tar", labelled(4, start=200, pictures=True))
    with refused("features", tmp_path / "run"):
        noise_labels(pictured / "c.tar", tmp_path / "out", **options)


# --- pmd -------------------------------------------------------------------------------------------------------------


def test_a_sure_posterior_makes_no_pmd_noise_and_a_rate_is_met(clean: Path, tmp_path: Path) -> None:
    true = labels_of(clean)
    report = noise_labels(clean, tmp_path / "sure", protocol="pmd", seed=0, kind="I", posteriors=np.eye(CLASSES)[true])
    assert (report.noisy, report.classes) == (0, CLASSES)
    eta = posteriors(true)
    np.save(tmp_path / "p.npy", eta)
    for rate in (0.35, 0.7):
        report = noise_labels(
            clean, tmp_path / "unsure", protocol="pmd", seed=0, kind="III", posteriors=tmp_path / "p.npy", rate=rate
        )
        assert report.rate == pytest.approx(rate, abs=4 * np.sqrt(rate * (1 - rate) / 200))
    second = np.where(np.arange(CLASSES) == true[:, None], -1, eta).argmax(axis=1)
    given = labels_of(tmp_path / "unsure")
    assert ((given == true) | (given == second)).all()


# --- samples of all kinds --------------------------------------------------------------------------------------------


def test_labels_are_found_where_they_are_and_samples_without_one_are_left_alone(tmp_path: Path) -> None:
    samples: dict[str, Parts] = {
        "part": {"jpg": b"\x00\xff", "cls": b"0"},
        "both": {"cls": b"1", "json": b'{"label": 1, "cls": "1"}'},
        "json": {"json": '{"label": 2, "note": "Übung"}'.encode(), "npy": b"123"},
        "none": {"txt": b"a dog"},
        "word": {"cls": b"dog", "json": b"[1]"},
        "torn": {"cls": b"2", "json": b"{"},
    }
    write_shard(tmp_path / "in" / "x.tar", samples)
    report = noise_labels(tmp_path / "in", tmp_path / "out", rate=1, seed=0, classes=3)
    assert (report.samples, report.untouched, report.noisy) == (6, 2, 4)
    after = read_shards(tmp_path / "out")
    labels = {key: json.loads(parts["json"]).get("label") for key, parts in after.items()}
    assert labels["none"] is None
    assert labels["word"] is None
    for key, true in {"part": 0, "both": 1, "json": 2, "torn": 2}.items():
        assert labels[key] != true
        assert labels[key] in range(3)
        assert json.loads(after[key]["json"])["clean_label"] == true
    assert after["part"] == {
        "jpg": b"\x00\xff",
        "cls": str(labels["part"]).encode(),
        "json": after["part"]["json"],
    }
    assert json.loads(after["both"]["json"])["cls"] == labels["both"] == int(after["both"]["cls"])
    assert "cls" not in after["json"]
    assert after["json"]["npy"] == b"123"
    assert json.loads(after["json"]["json"])["note"] == "Übung"
    assert after["word"]["cls"] == b"dog"
    table = pq.read_table(tmp_path / "out" / "noise.parquet").to_pylist()
    assert [row["key"] for row in table if row["label"] is None and row["clean_label"] is None] == ["none", "word"]


def test_a_field_of_the_users_own_is_read_and_written(tmp_path: Path) -> None:
    record = b'{"fine": 3, "label": 0}'
    write_shard(tmp_path / "in.tar", {"a": {"cls": b"0", "json": record}, "b": {"cls": b"1", "json": b"{}"}})
    report = noise_labels(tmp_path / "in.tar", tmp_path / "out", rate=1, seed=0, label_field="fine")
    after = read_shards(tmp_path / "out")
    changed = json.loads(after["a"]["json"])
    assert (changed["clean_label"], changed["label"], after["a"]["cls"]) == (3, 0, b"0")
    assert changed["fine"] in (0, 1, 2)
    assert (report.classes, report.untouched) == (4, 1)


# --- settings that cannot work ---------------------------------------------------------------------------------------


POSTERIORS = np.ones((200, 6)) / 6


@pytest.mark.parametrize(
    ("options", "setting", "value"),
    [
        ({"protocol": "shuffle-captions", "rate": 0.4}, "protocol", "shuffle-captions"),
        ({"protocol": "symetric"}, "protocol", "symetric"),
        ({}, "rate", None),
        ({"rate": 1.5}, "rate", 1.5),
        ({"rate": 0.4, "seed": -1}, "seed", -1),
        ({"rate": 0.4, "classes": 3}, "labels", 3),
        ({"rate": 0.4, "classes": 0}, "classes", 0),
        ({"rate": 0.4, "class_map": "next"}, "class_map", "next"),
        ({"rate": 0.4, "kind": "I"}, "kind", "I"),
        ({"rate": 0.4, "features": np.eye(2)}, "features", "an array"),
        ({"protocol": "asymmetric", "rate": 0.4}, "class_map", None),
        ({"protocol": "asymmetric", "class_map": "next"}, "rate", None),
        ({"protocol": "asymmetric", "rate": 0.4, "class_map": "nxt"}, "class_map", "nxt"),
        ({"protocol": "asymmetric", "rate": 0.4, "class_map": "cifar10", "classes": 6}, "class_map", "cifar10"),
        ({"protocol": "asymmetric", "rate": 0.4, "class_map": "next", "inclusive": True}, "inclusive", True),
        ({"protocol": "instance-dependent", "rate": 0.4, "features": np.ones((9, 2))}, "features", 9),
        ({"protocol": "instance-dependent", "rate": 0.4}, "features", None),
        ({"protocol": "instance-dependent", "rate": 0.4, "features": np.ones(200)}, "features", (200,)),
        ({"protocol": "instance-dependent", "rate": 0.4, "features": "no.npy"}, "features", Path("no.npy")),
        ({"protocol": "pmd", "kind": "I"}, "posteriors", None),
        ({"protocol": "pmd", "posteriors": POSTERIORS}, "kind", None),
        ({"protocol": "pmd", "posteriors": POSTERIORS, "kind": "IV"}, "kind", "IV"),
        ({"protocol": "pmd", "posteriors": POSTERIORS[:9], "kind": "I"}, "posteriors", 9),
        ({"protocol": "pmd", "posteriors": np.ones((200, 7)) / 7, "kind": "I", "classes": 6}, "posteriors", (200, 7)),
        ({"protocol": "pmd", "posteriors": POSTERIORS, "kind": "I", "rate": 0.3, "factor": 1.2}, "factor", 1.2),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    options: dict[str, Any], setting: str, value: object, clean: Path, tmp_path: Path
) -> None:
    with refused(setting, value):
        noise_labels(clean, tmp_path / "out", **{"seed": 0, **options})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[1, 0]", "is no object of classes; write for example"),
        ('{"cat": 1}', "has 'cat', which is no class; give ids, or --classes with their names"),
        ('{"0": 6}', "has the id 6; use 0 to 5"),
        ('{"0": 1, "00": 2}', "names class 0 again as '00'"),
        ('{"0": 1, "1": 3, "0": 2}', "holds '0' twice; map each class once"),
        ('{"0": 1.5}', "has 1.5, which is no class"),
    ],
)
def test_a_class_map_that_cannot_work_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text(text)
    with refused("class_map", str(tmp_path / "map.json")) as caught:
        load_class_map(tmp_path / "map.json", 6)
    assert message in str(caught.value)
    with refused("class_map", "next"):
        load_class_map("next", 1)


def test_shards_without_labels_with_noise_or_in_place_are_refused(clean: Path, tmp_path: Path) -> None:
    write_shard(tmp_path / "t.tar", {"a": {"txt": b"a dog"}})
    with refused("label_field"):
        noise_labels(tmp_path / "t.tar", tmp_path / "out", rate=0.4, seed=0)
    write_shard(tmp_path / "far.tar", {"a": {"cls": b"2000000000"}})
    with refused("classes", 2000000001):
        noise_labels(tmp_path / "far.tar", tmp_path / "out", rate=0.4, seed=0)
    noise_labels(clean, tmp_path / "noisy", rate=0.4, seed=0)
    with refused("shards", str(tmp_path / "noisy/a.tar")):
        noise_labels(tmp_path / "noisy", tmp_path / "twice", rate=0.4, seed=0)
    with refused("out", clean):
        noise_labels(clean, clean, rate=0.4, seed=0)
    assert len(read_shards(clean)) == 200


def known_truth(count: int, wrong: int, name: str = "clean_label") -> dict[str, Parts]:
    """Labels in `cls` of which sample number `wrong` has another in `name` of its json, as people's mistakes come."""
    return {
        f"h{i}": {"cls": str(i % 3).encode(), "json": json.dumps({name: (i + (i == wrong)) % 3}).encode()}
        for i in range(count)
    }


@pytest.mark.parametrize("field", ["clean_label", "noisy", "noise_protocol", "original_caption"])
def test_a_label_where_the_noise_writes_its_own_record_is_refused(field: str, tmp_path: Path) -> None:
    write_shard(tmp_path / "h.tar", known_truth(9, 4))
    with refused("label_field", field) as caught:
        noise_labels(tmp_path / "h.tar", tmp_path / "out", rate=0.4, seed=0, label_field=field)
    assert "another field too, such as true_label" in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("true", [2, "2", "two", [2]])
def test_a_truth_other_than_the_label_is_never_replaced_by_it(true: object, tmp_path: Path) -> None:
    shard = known_truth(9, 4)
    shard["h4"]["json"] = json.dumps({"clean_label": true}).encode()
    write_shard(tmp_path / "h.tar", shard)
    with refused("shards", str(tmp_path / "h.tar")) as caught:
        noise_labels(tmp_path / "h.tar", tmp_path / "out", rate=0.4, seed=0)
    assert f"h.tar has label 1 and clean_label {true!r}: it is wrong already" in str(caught.value)
    assert "sample h4 of" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_truth_in_one_more_field_can_be_spoilt_as_the_refusal_says(tmp_path: Path) -> None:
    shard = known_truth(60, 4)
    for parts in shard.values():
        record = json.loads(parts["json"])
        parts["json"] = json.dumps(record | {"true_label": record["clean_label"]}).encode()
    write_shard(tmp_path / "h.tar", shard)
    report = noise_labels(tmp_path / "h.tar", tmp_path / "out", rate=0.4, seed=0, label_field="true_label")
    made = read_shards(tmp_path / "out")
    wrong = 0
    for key, parts in made.items():
        record = json.loads(parts["json"])
        assert record["clean_label"] == json.loads(shard[key]["json"])["clean_label"]
        assert parts["cls"] == shard[key]["cls"]  # people's label, of which nobody asked
        wrong += record["true_label"] != record["clean_label"]
    assert wrong == report.noisy > 10


def test_a_truth_that_says_the_same_as_the_label_is_no_obstacle(tmp_path: Path) -> None:
    shard = known_truth(9, -1)
    shard["h8"]["json"] = b'{"clean_label": "2"}'
    shard["h7"]["json"] = b'{"clean_label": null}'
    write_shard(tmp_path / "h.tar", shard)
    noise_labels(tmp_path / "h.tar", tmp_path / "out", rate=1, seed=0)
    assert [json.loads(p["json"])["clean_label"] for p in read_shards(tmp_path / "out").values()] == [0, 1, 2] * 3


# --- the command -----------------------------------------------------------------------------------------------------


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["noise", *map(str, arguments)])


def test_the_command_prints_what_was_done_and_as_json_all_of_it(clean: Path, tmp_path: Path) -> None:
    arguments = (clean, "--protocol", "asymmetric", "--class-map", "next", "--rate", "0.4", "--out", tmp_path / "out")
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    wanted = noise_labels(clean, tmp_path / "again", protocol="asymmetric", rate=0.4, seed=0, class_map="next")
    assert printed["transitions"] == [list(move) for move in wanted.transitions]
    assert (printed["protocol"], printed["rate"]) == (wanted.protocol, wanted.rate)
    shown = run(*arguments).stdout
    assert f"{wanted.noisy} ({100 * wanted.rate:.1f} % of those with a label)" in shown


@pytest.mark.parametrize(
    ("arguments", "setting", "value"),
    [
        (["--protocol", "symmetric", "--rate", "0.4", "--derange"], "derange", True),
        (["--rate", "0.4", "--classes", "10"], "classes", "10"),
        (["--rate", "0.4", "--label-field", "y"], "label_field", "y"),
        (["--protocol", "symmetric", "--rate", "0.4", "--text-field", "y"], "text_field", "y"),
        ([], "rate", None),
        (["--protocol", "pmd"], "posteriors", None),
    ],
)
def test_the_command_refuses_options_of_other_protocols(
    arguments: list[str], setting: str, value: object, clean: Path, tmp_path: Path
) -> None:
    done = run(clean, "--out", tmp_path / "out", *arguments)
    assert isinstance(done.exception, ConfigError)
    assert (done.exception.setting, done.exception.value) == (setting, value)
