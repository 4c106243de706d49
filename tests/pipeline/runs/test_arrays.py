"""Arrays from anywhere: found, paired by number, checked before anything is written, and turned into tables."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noisegate import read_table
from noisegate.pipeline.runs.arrays import arrays_identity, check_labels, find_parts, open_array, write_parts
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from tests.embeddings import captions, clusters, saved, split
from tests.errors import refused
from tests.jobs import run_record

IMAGES, _ = clusters(count=46)
TEXTS = captions(IMAGES)


def metadata_files(folder: Path, keys: list[str], parts: int, column: str = "image_path") -> Path:
    folder.mkdir(parents=True)
    for i, rows in enumerate(np.array_split(np.array(keys), parts)):
        pq.write_table(pa.table({"caption": ["x"] * len(rows), column: rows}), folder / f"metadata_{i}.parquet")
    return folder


def written(folder: Path, parts: Any, labels: Any = None, joint: bool = True) -> RunFolder:
    run = RunFolder(folder)
    record = run_record([])
    write_parts(run, parts, labels, joint, {"scorer": record["scorer"], "reading": record["reading"]})
    shards = [{"url": str(part.images), "table": part.stem} for part in parts]
    run.write_run(run_record(shards))
    return run


# --- finding files ---------------------------------------------------------------------------------------------------


def test_clip_retrieval_folders_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    keys = [f"photo {row}" for row in range(len(IMAGES))]
    split(tmp_path / "img_emb", "img_emb", IMAGES, 11)
    split(tmp_path / "text_emb", "text_emb", TEXTS, 11)
    metadata_files(tmp_path / "metadata", keys, 11)
    parts = find_parts(tmp_path)
    assert [part.stem for part in parts] == [f"img_emb_{i}" for i in range(11)]
    assert [part.texts and part.texts.name for part in parts] == [f"text_emb_{i}.npy" for i in range(11)]
    assert [part.metadata and part.metadata.name for part in parts] == [f"metadata_{i}.parquet" for i in range(11)]
    assert [part.start for part in parts] == list(np.cumsum([0, *(part.rows for part in parts)])[:-1])
    table = read_table(written(tmp_path / "out", parts, np.arange(46)).path)
    assert table["key"].to_pylist() == keys
    assert table["label"].to_pylist() == list(range(46))  # labels run in numeric order too: 9 before 10
    assert table["similarity"].to_numpy() == pytest.approx(_cosines(IMAGES, TEXTS), abs=1e-6)


def _cosines(images: Any, texts: Any) -> Any:
    return (images * texts).sum(axis=1) / np.linalg.norm(images, axis=1) / np.linalg.norm(texts, axis=1)


def test_one_folder_with_all_files_and_other_ways_to_name_it(tmp_path: Path) -> None:
    for name, rows in (("img_emb", IMAGES), ("text_emb", TEXTS)):
        split(tmp_path / "flat", name, rows, 3)
        split(tmp_path / "whole" / name, name, rows, 3)
    flat = find_parts(tmp_path / "flat")
    assert [(part.images.name, part.texts and part.texts.name) for part in flat] == [
        (f"img_emb_{i}.npy", f"text_emb_{i}.npy") for i in range(3)
    ]
    named = find_parts(tmp_path / "whole" / "img_emb", tmp_path / "whole")
    assert named == find_parts(tmp_path / "whole")
    assert [part.texts for part in find_parts(tmp_path / "whole" / "img_emb")] == [None] * 3


@pytest.mark.parametrize(
    ("images", "texts"),
    [
        (["part-0-of-12", "part-2-of-12", "part-11-of-12"], ["t0", "t2", "t11"]),
        (["vitb32_00", "vitb32_01", "vitb32_02"], ["sentence_0", "sentence_1", "sentence_2"]),
        (["cats", "dogs", "x"], ["cats", "dogs", "x"]),
        (["v2_a_1", "v2_b_3", "7"], ["1", "3", "7"]),
    ],
)
def test_files_are_paired_by_what_tells_them_apart(images: list[str], texts: list[str], tmp_path: Path) -> None:
    for folder, names in (("i", images), ("t", texts)):
        saved(tmp_path / folder, **{name: np.full((2, 3), at + 1.0) for at, name in enumerate(names)})
    parts = find_parts(tmp_path / "i", tmp_path / "t")
    assert [(part.stem, part.texts.stem) for part in parts if part.texts] == list(zip(images, texts, strict=True))


def test_files_that_do_not_pair_are_refused(tmp_path: Path) -> None:
    split(tmp_path / "i", "img", IMAGES, 3)
    split(tmp_path / "t", "txt", TEXTS, 3)
    (tmp_path / "t" / "txt_2.npy").rename(tmp_path / "t" / "txt_3.npy")
    with refused("texts", tmp_path / "t"):
        find_parts(tmp_path / "i", tmp_path / "t")
    (tmp_path / "t" / "txt_3.npy").unlink()
    with refused("texts", tmp_path / "t"):
        find_parts(tmp_path / "i", tmp_path / "t")
    with refused("images", tmp_path / "nowhere"):
        find_parts(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with refused("metadata", tmp_path / "empty"):
        find_parts(tmp_path / "i", None, tmp_path / "empty")


def test_rows_and_widths_must_fit(tmp_path: Path) -> None:
    files = saved(tmp_path, i=IMAGES, few=TEXTS[:5], none=np.zeros((46, 0)))
    with refused("texts", files["few"]):
        find_parts(files["i"], files["few"])
    for setting, images, texts in (("images", files["none"], None), ("texts", files["i"], files["none"])):
        with refused(setting, files["none"]):
            find_parts(images, texts)
    saved(tmp_path / "mixed", a_0=IMAGES, a_1=IMAGES[:, :5])
    with refused("images", tmp_path / "mixed" / "a_1.npy"):
        find_parts(tmp_path / "mixed")


def test_metadata_must_fit_and_have_keys(tmp_path: Path) -> None:
    images, path = saved(tmp_path, i=IMAGES)["i"], tmp_path / "m.parquet"
    tables: list[tuple[dict[str, list[Any]], str]] = [
        ({"key": ["a"]}, r"has 1 rows, .* has 46; give one for each"),
        ({"caption": ["a"] * 46, "n": [1] * 46}, "has no column called key or uid"),
        ({"url": [None, *["a"] * 45]}, "has 1 rows without url"),
        ({"url": ["", *["a"] * 45]}, "has 1 rows without url"),
        ({"key": [["a"]] * 46}, "has key of type list<.*>"),
        ({"key": [0.5] * 46}, "has key of type double"),
    ]
    for columns, message in tables:
        pq.write_table(pa.table(columns), path)
        with refused("metadata", path) as error:
            find_parts(images, None, path)
        assert re.search(message, str(error.value))
    path.write_bytes(b"PAR")
    with refused("metadata", path):
        find_parts(images, None, path)


# --- reading arrays --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (IMAGES[0], r"holds float32 of shape \(12,\); want numbers \(N, d\)"),
        (IMAGES[None], r"holds float32 of shape \(1, 46, 12\)"),
        (np.float32(1), r"holds float32 of shape \(\)"),
        (np.array([["a"]]), "holds <U1"),
        (IMAGES > 0, "holds bool"),
        (IMAGES.astype(complex), "holds complex128"),
        (np.array([[object()]], dtype=object), r"is no whole \.npy file of numbers; write one with numpy\.save"),
    ],
)
def test_anything_but_rows_of_numbers_is_refused(array: Any, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with refused("images", tmp_path / "x.npy") as error:
        find_parts(tmp_path / "x.npy")
    assert re.search(message, str(error.value))


def test_files_that_are_no_arrays_are_refused(tmp_path: Path) -> None:
    whole = saved(tmp_path, x=IMAGES)["x"].read_bytes()
    for data in (b"", b"junk", whole[:-1], whole[:20]):
        (tmp_path / "x.npy").write_bytes(data)
        with refused("labels", tmp_path / "x.npy"):
            open_array(tmp_path / "x.npy", "labels", 1)
    np.savez(tmp_path / "x.npz", a=IMAGES)
    with refused("images", tmp_path / "x.npz"):
        open_array(tmp_path / "x.npz", "images", 2)
    with refused("anchors", tmp_path / "none.npy"):
        open_array(tmp_path / "none.npy", "anchors", 2)


def test_labels_are_class_numbers_one_for_each_row() -> None:
    assert check_labels(np.array([3, -7, 0], np.int8), 3).tolist() == [3, -7, 0]
    cases: list[tuple[Any, Any]] = [
        (np.array([1.0, 2.0, 3.0]), (3,)),  # no whole numbers
        (np.array([[1], [2], [3]]), (3, 1)),
        (np.array([1, 2]), 2),  # of 3
        (np.array([1, 2, 2**31]), 2**31),
        (np.array([1, 2, 2**64 - 1], np.uint64), 2**64 - 1),
    ]
    for labels, value in cases:
        with refused("labels", value):
            check_labels(labels, 3)


# --- writing tables --------------------------------------------------------------------------------------------------


def test_any_kind_of_numbers_gives_unit_rows(tmp_path: Path) -> None:
    kinds = {
        "f16": IMAGES.astype(np.float16),
        "f64": IMAGES.astype(np.float64) * 1e100,  # far outside float32
        "big": IMAGES.astype(">f4"),
        "columns": np.asfortranarray(IMAGES),
        "whole": np.round(IMAGES * 1000).astype(np.int16),
    }
    for name, path in saved(tmp_path, **kinds).items():
        parts = find_parts(path)
        rows = read_embeddings(written(tmp_path / "out" / name, parts).embeddings(name), "image")
        assert rows == pytest.approx(IMAGES, abs=3e-3), name
        assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-3)


def test_rows_without_a_direction_become_failures_that_say_why(tmp_path: Path) -> None:
    images, texts = IMAGES.copy(), TEXTS.copy()
    images[3], images[5], images[7, 2], texts[9], texts[3] = np.nan, 0, np.inf, 0, np.nan
    files = saved(tmp_path, i=images, t=texts)
    labels = np.where(np.arange(46) == 1, -1, 2)
    table = read_table(written(tmp_path / "out", find_parts(files["i"], files["t"]), labels).path)
    failed = [3, 5, 7, 9]
    assert [row for row, status in enumerate(table["status"].to_pylist()) if status == "invalid"] == failed
    assert [table["error"][row].as_py() for row in failed] == [
        "the image embedding is zero or not finite",
        "the image embedding is zero or not finite",
        "the image embedding is zero or not finite",
        "the text embedding is zero or not finite",
    ]
    assert [row for row, value in enumerate(table["similarity"].to_pylist()) if value is None] == failed
    assert table["label"].to_pylist() == [None if row == 1 else 2 for row in range(46)]
    assert table["error"].null_count == 42


def test_keys_without_metadata_count_on_from_part_to_part(tmp_path: Path) -> None:
    table = read_table(written(tmp_path / "out", find_parts(split(tmp_path / "i", "a", IMAGES, 5))).path)
    assert table["key"].to_pylist() == [f"{row:09d}" for row in range(46)]
    assert table["index"].to_pylist() == [i for part in np.array_split(np.arange(46), 5) for i in range(len(part))]


@pytest.mark.parametrize(
    ("keys", "read"),
    [
        ([b"caf\xc3\xa9", b"b", b"\xff"], ["café", "b", "\\xff"]),  # text whose writer did not say that it is text
        ([7, 8, 7], ["7", "8", "7"]),
        (pa.array(["x", "x", "y"]).dictionary_encode(), ["x", "x", "y"]),
    ],
)
def test_keys_of_any_usual_type_are_text_and_say_where_they_repeat(keys: Any, read: list[str], tmp_path: Path) -> None:
    images, path = saved(tmp_path, i=IMAGES[:3])["i"], tmp_path / "m.parquet"
    pq.write_table(pa.table({"key": keys}), path)
    table = read_table(written(tmp_path / "out", find_parts(images, None, path)).path)
    assert table["key"].to_pylist() == read
    repeats = [["duplicate_key"] if key in read[:row] else [] for row, key in enumerate(read)]
    assert table["flags"].to_pylist() == repeats


def test_the_identity_names_the_arrays(tmp_path: Path) -> None:
    files = saved(tmp_path, a=IMAGES, b=IMAGES.copy(), other=-IMAGES, t=TEXTS)

    def identity(*paths: Path) -> str:
        return arrays_identity(find_parts(*paths)).weights

    assert identity(files["a"]) == identity(files["b"])
    assert len({identity(files["a"]), identity(files["other"]), identity(files["a"], files["t"])}) == 3
    run = written(tmp_path / "out", find_parts(files["a"]))
    assert read_metadata(run.table("a"))["scorer"] == run_record([])["scorer"]


def test_no_rows_at_all_is_a_table_of_no_rows(tmp_path: Path) -> None:
    files = saved(tmp_path, i=IMAGES[:0], t=TEXTS[:0])
    parts = find_parts(files["i"], files["t"])
    assert (parts[0].rows, parts[0].widths) == (0, (12, 12))
    assert len(read_table(written(tmp_path / "out", parts, np.zeros(0, np.int64)).path)) == 0
