"""Flickr30K, MS-COCO, CC152K, CC120K and MSR-VTT in all their layouts, and published noise files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from noisegate.pipeline.datasets.convert.job import convert
from noisegate.pipeline.datasets.convert.pairs import read_noise_file
from noisegate.pipeline.datasets.noise.captions import shuffle_captions
from tests.errors import refused
from tests.fakes import picture
from tests.pipeline.datasets.converting import converted, features, jpeg, records, write_files


def array_of(data: bytes, folder: Path) -> np.ndarray[Any, Any]:
    (folder / "part.npy").write_bytes(data)
    return np.load(folder / "part.npy", allow_pickle=False)


# --- region features -------------------------------------------------------------------------------------------------


def test_five_captions_of_each_image(tmp_path: Path) -> None:
    regions = features(tmp_path / "f30k", 3, [f"  caption {i} " for i in range(15)])
    found, samples = converted("flickr30k", tmp_path / "f30k", tmp_path / "out")
    assert [raw.parts["txt"].decode() for raw in samples] == [f"caption {i}" for i in range(15)]
    assert [row["image_id"] for row in records(found)] == [str(i // 5) for i in range(15)]
    assert [row["caption_id"] for row in records(found)] == list(range(15))
    for i, raw in enumerate(samples):
        np.testing.assert_array_equal(array_of(raw.parts["npy"], tmp_path), regions[i // 5])
    assert found.facts["features"] == [3, 4]


def test_evaluation_has_a_sample_for_each_image(tmp_path: Path) -> None:
    regions = features(tmp_path / "src/f30k_precomp", 3, [f"caption {i}" for i in range(15)], "dev")
    found, samples = converted("flickr30k", tmp_path / "src", tmp_path / "out", split="dev", float16=True)
    assert found.split == "val"
    assert records(found)[1] == {
        "image_id": "1",
        "captions": [f"caption {i}" for i in range(5, 10)],
        "caption_ids": [5, 6, 7, 8, 9],
    }
    assert samples[1].parts["txt"] == b"caption 5"
    np.testing.assert_array_equal(array_of(samples[1].parts["npy"], tmp_path), regions[1].astype(np.float16))


def test_cocos_test_is_the_5k_one(tmp_path: Path) -> None:
    features(tmp_path / "coco_precomp", 2, [f"whole {i}" for i in range(10)], "testall")
    features(tmp_path / "coco_precomp", 1, [f"part {i}" for i in range(5)], "test")
    whole = convert("coco", tmp_path / "coco_precomp", tmp_path / "a", split="test")
    part = convert("coco", tmp_path / "coco_precomp", tmp_path / "b", split="test1k")
    assert (whole.samples, part.samples) == (2, 1)
    assert records(part)[0]["captions"][0] == "part 0"


def test_images_repeated_for_each_caption_are_one_image(tmp_path: Path) -> None:
    """The oldest feature files hold each image five times over."""
    source = tmp_path / "f30k"
    regions = features(source, 2, [f"caption {i}" for i in range(10)])
    np.save(source / "train_ims.npy", np.repeat(regions, 5, axis=0))
    found, samples = converted("flickr30k", source, tmp_path / "out", rows="images")
    assert [row["image_id"] for row in records(found)] == ["0", "1"]
    np.testing.assert_array_equal(array_of(samples[1].parts["npy"], tmp_path), regions[1])


def test_cc152k_has_a_table_of_ids_and_captions(tmp_path: Path) -> None:
    source = tmp_path / "cc152k_precomp"
    features(source, 3, [])
    (source / "train_caps.txt").unlink()
    write_files(source, {"train_caps.tsv": 'id7\ta cat\nid9\t"a ""big"" dog"\nid8\ta bird\n'})
    found, samples = converted("cc152k", source, tmp_path / "out")
    assert [raw.parts["txt"].decode() for raw in samples] == ["a cat", 'a "big" dog', "a bird"]
    assert [row["image_id"] for row in records(found)] == ["id7", "id9", "id8"]


def test_an_open_quote_does_not_swallow_lines(tmp_path: Path) -> None:
    source = tmp_path / "cc"
    features(source, 3, [])
    (source / "train_caps.txt").unlink()
    write_files(source, {"train_caps.tsv": '1\t"so it begins\n2\ta dog\n3\ta "bird"\n'})
    _, samples = converted("cc152k", source, tmp_path / "out")
    assert [raw.parts["txt"].decode() for raw in samples] == ['"so it begins', "a dog", 'a "bird"']


def test_features_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    features(tmp_path / "a", 3, ["x"] * 14)
    with refused("source", tmp_path / "a/train_ims.npy"):
        convert("flickr30k", tmp_path / "a", tmp_path / "out")
    (tmp_path / "a/train_caps.txt").unlink()
    with refused("source", tmp_path / "a"):
        convert("flickr30k", tmp_path / "a", tmp_path / "out")
    write_files(tmp_path / "a", {"train_caps.txt": "x\n", "train_ims.npy": b"\x93NUMPY no"})
    with refused("source", tmp_path / "a/train_ims.npy"):
        convert("flickr30k", tmp_path / "a", tmp_path / "out")
    np.save(tmp_path / "a/train_ims.npy", np.array([{"a": 1}]))
    with refused("source", tmp_path / "a/train_ims.npy"):
        convert("flickr30k", tmp_path / "a", tmp_path / "out")
    np.save(tmp_path / "a/train_ims.npy", np.zeros(3))
    with refused("source", tmp_path / "a/train_ims.npy"):
        convert("flickr30k", tmp_path / "a", tmp_path / "out")


def test_one_bad_row_of_features_is_left_out(tmp_path: Path) -> None:
    regions = features(tmp_path / "a", 3, ["x", "y", "  "])
    regions[1, 2, 3] = np.inf
    np.save(tmp_path / "a/train_ims.npy", regions)
    found, samples = converted("cc152k", tmp_path / "a", tmp_path / "out")
    assert [raw.key for raw in samples] == ["train-0000000"]
    assert found.bad == {"bad_image": 1, "no_text": 1}


# --- Karpathy's split ------------------------------------------------------------------------------------------------


def karpathy(folder: Path, name: str, images: list[dict[str, Any]]) -> Path:
    return write_files(folder, {name: json.dumps({"images": images, "dataset": "x"})})


def sentences(count: int, first: int) -> list[dict[str, Any]]:
    return [{"raw": f"Sentence {first + i}. ", "tokens": [], "sentid": first + i} for i in range(count)]


def test_karpathys_flickr30k(tmp_path: Path) -> None:
    images = [
        {"filename": "b.jpg", "split": "test", "imgid": 0, "sentences": sentences(5, 0)},
        {"filename": "a.jpg", "split": "train", "imgid": 1, "sentences": sentences(5, 5)},
    ]
    karpathy(tmp_path / "src", "dataset_flickr30k.json", images)
    write_files(tmp_path / "src/flickr30k-images", {"a.jpg": jpeg("blue"), "b.jpg": jpeg("red")})
    found, samples = converted("flickr30k", tmp_path / "src", tmp_path / "out")
    assert [raw.parts["jpg"] for raw in samples] == [jpeg("blue")] * 5
    assert [raw.parts["txt"].decode() for raw in samples] == [f"Sentence {i}." for i in range(5, 10)]
    assert [row["caption_id"] for row in records(found)] == [5, 6, 7, 8, 9]
    assert {row["image_id"] for row in records(found)} == {"a.jpg"}


def test_karpathys_coco_joins_restval_and_takes_five_sentences(tmp_path: Path) -> None:
    places = [("val2014", 1, "restval", 7), ("train2014", 2, "train", 5), ("val2014", 3, "val", 5)]
    images = [
        {
            "filepath": folder,
            "filename": f"COCO_{folder}_0{number}.jpg",
            "split": split,
            "cocoid": number,
            "sentences": sentences(count, 7 * (number - 1)),
        }
        for folder, number, split, count in places
    ]
    karpathy(tmp_path / "src", "dataset_coco.json", images)
    pictures = {"val2014/COCO_val2014_01.jpg": jpeg("red"), "COCO_train2014_02.jpg": picture("blue", kind="JPEG")}
    write_files(tmp_path / "pictures", pictures)
    found, samples = converted("coco", tmp_path / "src", tmp_path / "out", images=tmp_path / "pictures")
    assert [row["image_id"] for row in records(found)] == ["1"] * 5 + ["2"] * 5
    assert samples[5].parts["txt"] == b"Sentence 7."
    with refused("source"):
        convert("coco", tmp_path / "src", tmp_path / "out2", split="val", images=tmp_path / "pictures")


def test_a_broken_split_is_named(tmp_path: Path) -> None:
    for text in ("{", '{"images": [{"split": "train"}]}', "[]"):
        write_files(tmp_path / "src", {"dataset_coco.json": text})
        with refused("source", tmp_path / "src/dataset_coco.json"):
            convert("coco", tmp_path / "src", tmp_path / "out")
    karpathy(tmp_path / "src", "dataset_coco.json", [])
    with refused("source", tmp_path / "src"):
        convert("coco", tmp_path / "src", tmp_path / "out")


# --- NPC's and OSA's annotations, tables -----------------------------------------------------------------------------


def test_annotations_of_flickr30k_go_by_numbers(tmp_path: Path) -> None:
    files = {"image_name.txt": "zero.jpg\none.jpg\ntwo.jpg\n", "train_ids.txt": "2\n0\n"}
    files |= {
        "train_caps.txt": "".join(f"c{i}\n" for i in range(10)),
        "test_ids.txt": "1\n1\n",
        "test_caps.txt": "a\nb\n",
    }
    write_files(tmp_path / "src/annotations", files)
    write_files(tmp_path / "src/images", {"zero.jpg": jpeg("red"), "one.jpg": jpeg("blue"), "two.jpg": jpeg("green")})
    _, samples = converted("flickr30k", tmp_path / "src", tmp_path / "out")
    assert [raw.parts["jpg"] for raw in samples] == [jpeg("green")] * 5 + [jpeg("red")] * 5
    found, _ = converted("flickr30k", tmp_path / "src", tmp_path / "test", split="test")
    assert records(found) == [{"image_id": "1", "captions": ["a", "b"], "caption_ids": [0, 1]}]
    write_files(tmp_path / "src/annotations", {"image_name.txt": "zero.jpg\n"})
    with refused("source", tmp_path / "src/annotations/image_name.txt"):
        convert("flickr30k", tmp_path / "src", tmp_path / "out2")


def test_annotations_of_coco_go_by_cocos_numbers(tmp_path: Path) -> None:
    write_files(tmp_path / "src/annotations", {"dev_ids.txt": "42\n", "dev_caps.txt": "a cat\n"})
    write_files(tmp_path / "src/images", {"COCO_2014_000000000042.jpg": jpeg()})
    found, _ = converted("coco", tmp_path / "src", tmp_path / "out", split="val")
    assert records(found)[0]["image_id"] == "42"
    write_files(tmp_path / "src/annotations", {"dev_caps.txt": "a cat\na dog\n"})
    with refused("source", tmp_path / "src/annotations/dev_caps.txt"):
        convert("coco", tmp_path / "src", tmp_path / "out2", split="val")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.tsv", "p/a.jpg\ta cat\np/b.jpg\ta, dog\n"),
        ("train.csv", 'caption,image\na cat,p/a.jpg\n"a, dog",p/b.jpg\n'),
    ],
)
def test_tables_of_paths_and_captions(tmp_path: Path, name: str, text: str) -> None:
    write_files(tmp_path / "src", {name: text, "p/a.jpg": jpeg("red"), "p/b.jpg": jpeg("blue")})
    _, samples = converted("cc152k", tmp_path / "src", tmp_path / "out")
    assert [(raw.parts["txt"], raw.parts["jpg"]) for raw in samples] == [
        (b"a cat", jpeg("red")),
        (b"a, dog", jpeg("blue")),
    ]


def test_a_table_with_a_short_row_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path / "src", {"train.tsv": "a.jpg\tx\nb.jpg\n"})
    with refused("source", tmp_path / "src/train.tsv"):
        convert("cc120k", tmp_path / "src", tmp_path / "out")
    write_files(tmp_path / "src", {"train.tsv": b"\xff\xfe"})
    with refused("source", tmp_path / "src/train.tsv"):
        convert("cc120k", tmp_path / "src", tmp_path / "out")


def test_a_layout_can_be_asked_for(tmp_path: Path) -> None:
    features(tmp_path / "src", 1, ["from features"])
    write_files(tmp_path / "src", {"train.tsv": "a.jpg\tfrom a table\n", "a.jpg": jpeg()})
    assert converted("cc152k", tmp_path / "src", tmp_path / "a")[1][0].parts["txt"] == b"from features"
    _, samples = converted("cc152k", tmp_path / "src", tmp_path / "b", layout="table")
    assert samples[0].parts["txt"] == b"from a table"


# --- noise files -----------------------------------------------------------------------------------------------------


@pytest.fixture
def ten(tmp_path: Path) -> tuple[Path, np.ndarray[Any, Any]]:
    return tmp_path / "f30k", features(tmp_path / "f30k", 2, [f"c{i}" for i in range(10)])


def test_ncrs_index_gives_each_caption_an_image(ten: tuple[Path, np.ndarray[Any, Any]], tmp_path: Path) -> None:
    source, regions = ten
    np.save(tmp_path / "f30k_precomp_0.2.npy", np.array([0, 0, 1, 0, 0, 1, 1, 1, 0, 1]))
    found, samples = converted("flickr30k", source, tmp_path / "out", noise_file=tmp_path / "f30k_precomp_0.2.npy")
    rows = records(found)
    assert [i for i, row in enumerate(rows) if row["noisy"]] == [2, 8]
    assert [raw.parts["txt"].decode() for raw in samples] == [f"c{i}" for i in range(10)], "captions stay in order"
    np.testing.assert_array_equal(array_of(samples[2].parts["npy"], tmp_path), regions[1])
    assert (rows[2]["image_id"], rows[2]["original_image_id"]) == ("1", "0")
    assert "original_image_id" not in rows[0]
    assert rows[0]["noise_protocol"].startswith("file:f30k_precomp_0.2.npy(sha256=")
    assert found.facts["noisy"] == 2


def test_an_index_made_by_ncrs_own_rule_is_read_as_the_same_noise(tmp_path: Path) -> None:
    """The published files come from this rule; our own protocol of the same name gives the mask to compare with."""
    image_of = np.repeat(np.arange(40), 5)
    moved = shuffle_captions(image_of, 0.4, np.random.default_rng(3))
    index = image_of.copy()
    index[moved.source] = image_of  # row i shows the caption source[i], so that caption's image is the row's
    np.save(tmp_path / "x.npy", index)
    given = read_noise_file(tmp_path / "x.npy", [f"c{i}" for i in range(200)], image_of, 40)
    assert given.noisy.sum() == moved.noisy.sum()
    np.testing.assert_array_equal(given.noisy[moved.source], moved.noisy)


def test_decls_index_moves_all_captions_of_an_image(ten: tuple[Path, np.ndarray[Any, Any]], tmp_path: Path) -> None:
    np.save(tmp_path / "n.npy", np.array([1, 0]))
    found = convert("flickr30k", ten[0], tmp_path / "out", noise_file=tmp_path / "n.npy")
    assert [row["image_id"] for row in records(found)] == ["1"] * 5 + ["0"] * 5
    assert found.facts["noisy"] == 10


def test_an_index_of_captions_moves_the_texts(ten: tuple[Path, np.ndarray[Any, Any]], tmp_path: Path) -> None:
    np.save(tmp_path / "n.npy", np.array([9, 2, 1, 3, 4, 5, 6, 7, 8, 0]))
    found, samples = converted("flickr30k", ten[0], tmp_path / "out", noise_file=tmp_path / "n.npy")
    rows = records(found)
    assert [i for i, row in enumerate(rows) if row["noisy"]] == [0, 9], "1 and 2 changed places on one image"
    assert (samples[0].parts["txt"], rows[0]["original_caption"], rows[0]["image_id"]) == (b"c9", "c0", "0")


def test_osas_noisy_captions_are_compared_with_the_right_ones(
    ten: tuple[Path, np.ndarray[Any, Any]], tmp_path: Path
) -> None:
    write_files(tmp_path, {"0.2_noise_train_caps.txt": "c0\nc7\n" + "".join(f"c{i}\n" for i in range(2, 10))})
    found, samples = converted("flickr30k", ten[0], tmp_path / "out", noise_file=tmp_path / "0.2_noise_train_caps.txt")
    assert [i for i, row in enumerate(records(found)) if row["noisy"]] == [1]
    assert (samples[1].parts["txt"], records(found)[1]["original_caption"]) == (b"c7", "c1")


@pytest.mark.parametrize(
    "array", [np.zeros(9, np.int64), np.full(10, 10), np.full(10, -1), np.zeros((10, 1), np.int64), np.zeros(10)]
)
def test_a_noise_file_that_does_not_fit_is_refused(
    ten: tuple[Path, np.ndarray[Any, Any]], tmp_path: Path, array: np.ndarray[Any, Any]
) -> None:
    np.save(tmp_path / "n.npy", array)
    with refused("noise_file", tmp_path / "n.npy"):
        convert("flickr30k", ten[0], tmp_path / "out", noise_file=tmp_path / "n.npy")


def test_noise_is_for_the_captions_of_training(ten: tuple[Path, np.ndarray[Any, Any]], tmp_path: Path) -> None:
    np.save(tmp_path / "n.npy", np.arange(10) // 5)
    write_files(tmp_path, {"n.txt": "c0\n"})
    with refused("noise_file", tmp_path / "n.txt"):
        convert("flickr30k", ten[0], tmp_path / "out", noise_file=tmp_path / "n.txt")
    with refused("noise_file", tmp_path / "n.npy"):
        convert("flickr30k", ten[0], tmp_path / "out", noise_file=tmp_path / "n.npy", rows="images")
    karpathy(
        tmp_path / "k", "dataset_coco.json", [{"filename": "a.jpg", "split": "train", "sentences": sentences(5, 0)}]
    )
    with refused("noise_file", tmp_path / "n.npy"):
        convert("coco", tmp_path / "k", tmp_path / "out", noise_file=tmp_path / "n.npy")


# --- MSR-VTT ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    told = {
        "videos": [
            {"video_id": f"video{i}", "split": name} for i, name in enumerate(("train", "train", "validate", "test"))
        ],
        "sentences": [{"sen_id": 100 + n, "video_id": f"video{n % 4}", "caption": f"words {n} "} for n in range(8)],
    }
    write_files(tmp_path / "src", {"MSRVTT_data.json": json.dumps(told)})
    (tmp_path / "src/features").mkdir()
    for i in range(3):
        np.save(tmp_path / f"src/features/video{i}.npy", np.full((2, 3), i, np.float32))
    np.savez(tmp_path / "src/features/video3.npz", features=np.arange(3.0))
    return tmp_path / "src"


def test_msrvtt_by_the_splits_of_its_json(videos: Path, tmp_path: Path) -> None:
    found, samples = converted("msrvtt", videos, tmp_path / "out")
    assert [(row["image_id"], row["caption_id"]) for row in records(found)] == [
        ("video0", 100),
        ("video0", 104),
        ("video1", 101),
        ("video1", 105),
    ]
    np.testing.assert_array_equal(array_of(samples[2].parts["npy"], tmp_path), np.ones((2, 3)))
    test, samples = converted("msrvtt", videos, tmp_path / "test", split="test")
    assert records(test)[0]["captions"] == ["words 3", "words 7"]
    np.testing.assert_array_equal(array_of(samples[0].parts["npy"], tmp_path), [0, 1, 2])


def test_msrvtt_by_the_usual_lists(videos: Path, tmp_path: Path) -> None:
    write_files(videos, {"MSRVTT_train.9k.csv": "video_id\nvideo2\nvideo0\n"})
    write_files(videos, {"MSRVTT_JSFUSION_test.csv": "key,vid_key,video_id,sentence\nret0,m,video1,one sentence\n"})
    train = convert("msrvtt", videos, tmp_path / "out")
    assert [row["image_id"] for row in records(train)] == ["video2", "video2", "video0", "video0"]
    test = convert("msrvtt", videos, tmp_path / "test", split="test")
    assert records(test) == [{"image_id": "video1", "captions": ["one sentence"], "caption_ids": [0]}]
    write_files(videos, {"MSRVTT_train.9k.csv": "id\nvideo2\n"})
    with refused("source", videos / "MSRVTT_train.9k.csv"):
        convert("msrvtt", videos, tmp_path / "out2")


def test_msrvtts_2d_and_3d_features_are_put_side_by_side(videos: Path, tmp_path: Path) -> None:
    for name, width in (("features_2d", 2), ("features_3d", 3)):
        (videos / name).mkdir()
        for i in range(2):
            np.save(videos / f"{name}/video{i}.npy", np.arange(2 * width).reshape(2, width) * (-1) ** i)
    _, samples = converted("msrvtt", videos, tmp_path / "out")
    np.testing.assert_array_equal(array_of(samples[0].parts["npy"], tmp_path), [2, 3, 3, 4, 5])
    np.testing.assert_array_equal(array_of(samples[2].parts["npy"], tmp_path), [0, -1, 0, -1, -2])


def test_a_video_without_features_is_left_out(videos: Path, tmp_path: Path) -> None:
    (videos / "features/video0.npy").unlink()
    (videos / "features/video1.npy").write_bytes(b"PK\x03\x04 cut")
    np.savez(videos / "features/video2.npz", np.zeros((1, 2, 3)))
    (videos / "features/video2.npy").unlink()
    write_files(videos, {"MSRVTT_train.9k.csv": "video_id\nvideo0\nvideo1\nvideo2\nvideo3\n"})
    found = convert("msrvtt", videos, tmp_path / "out")
    assert (found.samples, found.bad) == (2, {"no_image": 2, "bad_image": 4})


def test_msrvtt_in_one_file(videos: Path, tmp_path: Path) -> None:
    for path in (videos / "features").iterdir():
        path.unlink()
    (videos / "features").rmdir()
    np.savez(videos / "features.npz", video0=np.ones((1, 2)))
    found = convert("msrvtt", videos, tmp_path / "out")
    assert (found.samples, found.bad) == (2, {"no_image": 2})
    write_files(videos, {"MSRVTT_data.json": "[]"})
    with refused("source", videos / "MSRVTT_data.json"):
        convert("msrvtt", videos, tmp_path / "out2")
