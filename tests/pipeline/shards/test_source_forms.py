"""The forms in which people have pictures and captions, good and bad: each is read, refused at once, or a row with a status."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noisegate import find_shards
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards import RawSample, Shard, ShardReader, decode_label
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.pipeline.shards.sources import TableColumns, read_classes
from noisegate.pipeline.shards.sources.huggingface import hub_tables
from noisegate.pipeline.shards.workers import Decoded, decode_sample
from tests.errors import refused
from tests.fakes import picture
from tests.jobs import Notes, score

RED, BLUE = picture("red", (16, 16)), picture("blue", (20, 16))


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(source: str | Path, columns: TableColumns | None = None) -> list[RawSample]:
    return [raw for shard in find_shards(source, columns) for raw in ShardReader(shard)]


def rows(source: str | Path, *tasks: str) -> list[Decoded]:
    options = DecodeOptions(tasks=tasks or ("pairs",))
    return [decode_sample(raw, Preprocess(8), options) for raw in read(source)]


def captions(source: str | Path) -> list[str | None]:
    return [row.text for row in rows(source)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, data in (("a.png", RED), ("b.png", BLUE)):
        write(tmp_path / "photos" / name, data)
    return tmp_path


# Text tables


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfpath,caption\nphotos/a.png,red\nphotos/b.png,blue\n",  # byte-order mark
        b"path,caption\r\nphotos\\a.png,red\r\nphotos\\b.png,blue\r\n",  # from Windows
        b'path,caption\n"photos/a.png","red"\nphotos/b.png,blue',
        b"path,caption\n./photos/../photos/a.png,red\nphotos/b.png,blue\n",
    ],
)
def test_csv_files_as_programs_write_them(content: bytes, root: Path) -> None:
    assert captions(write(root / "t.csv", content)) == ["red", "blue"]


def test_cells_stay_as_they_are_written(root: Path) -> None:
    lines = ["photos/a.png,007", "photos/a.png,2020-01-01", "photos/a.png,true", 'photos/a.png,"a, b\nc"']
    assert captions(write(root / "t.csv", "\n".join(["path,caption", *lines]))) == [
        "007",
        "2020-01-01",
        "true",
        "a, b\nc",
    ]
    records = [{"path": "photos/a.png", "caption": text} for text in ("2020-01-01", "2021-01-01")]
    assert captions(write(root / "t.jsonl", "\n".join(map(json.dumps, records)))) == ["2020-01-01", "2021-01-01"]
    assert captions(write(root / "t.json", json.dumps(records))) == ["2020-01-01", "2021-01-01"]


def test_absolute_paths_and_paths_that_climb(root: Path) -> None:
    text = f"path,caption\n{root}/photos/a.png,red\n../photos/b.png,blue\n"
    assert captions(write(root / "lists" / "t.csv", text)) == ["red", "blue"]


def as_parquet(root: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), root / "t.parquet")
    return root / "t.parquet"


BAD_FORMS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no such folder": (lambda root: root / "photoz", "shards"),
    "no such table": (lambda root: root / "t.csv", "shards"),
    "table in a store": (lambda root: "memory://bucket/t.csv", "shards"),
    "rows of different lengths": (lambda root: write(root / "t.csv", "path,caption\na.png,red,x\n"), "shards"),
    "two columns of a name": (lambda root: write(root / "t.csv", "path,path\na.png,b.png\n"), "shards"),
    "latin-1": (lambda root: write(root / "t.csv", "path,caption\nphotos/a.png,café\n".encode("latin-1")), "shards"),
    "utf-16": (lambda root: write(root / "t.csv", "path,caption\nphotos/a.png,red\n".encode("utf-16")), "shards"),
    "a broken line": (lambda root: write(root / "t.jsonl", '{"path": "photos/a.png", "caption": "red"}\n{"pa'), "shards"),
    "json of something else": (lambda root: write(root / "t.json", "[1, 2]"), "shards"),
    "no picture is there": (lambda root: write(root / "t.csv", "path,caption\nx.png,red\n"), "shards"),
    "pictures in a store": (lambda root: write(root / "t.csv", "path,caption\ns3://bucket/a.png,red\n"), "shards"),
    "captions in lists": (lambda root: as_parquet(root, image=[RED], caption=[["red", "a red one"]]), "text_column"),
    "pictures as numbers": (lambda root: as_parquet(root, image=[1], caption=["red"]), "image_column"),
    "empty parquet": (lambda root: as_parquet(root, image=pa.array([], pa.binary()), text=pa.array([], pa.string())), "shards"),
    "pictures alone": (lambda root: root / "photos", "shards"),
    "splits": (lambda root: [write(root / "d" / s / "c" / "x.png", RED) for s in ("train", "val")] and root / "d", "shards"),
    "captions below": (lambda root: write(root / "d/train/metadata.csv", "file_name,text").parents[1], "shards"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FORMS)
def test_a_bad_form_is_refused_before_anything_is_loaded(name: str, root: Path) -> None:
    make, setting = BAD_FORMS[name]
    with refused(setting):
        find_shards(make(root))


def test_bad_cells_are_rows_with_a_status(root: Path) -> None:
    images = pa.array([RED, None, b"", b"junk"], pa.binary())
    table = as_parquet(root, image=images, caption=["red", "red", "red", None], label=[1, 2**40, None, -1])
    done = rows(table, "pairs", "labels")
    assert [row.status for row in done] == ["ok", "no_image", "bad_image", "bad_image"]
    assert done[1].error == "the column image is empty"
    with pytest.raises(Exception, match="not a class number"):
        decode_label(read(table)[1].parts, None)
    damaged = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    (row,) = rows(as_parquet(root, image=[RED], caption=damaged))
    assert row.status == "bad_text"


# Labels


@pytest.mark.parametrize(
    ("values", "numbers", "names"),
    [
        (["dog", "cat", "dog"], [1, 0, 1], ("cat", "dog")),
        (["3", "0", "4.0"], [3, 0, 4], ()),
        ([3.0, None, 1.0], [3, None, 1], ()),
        ([True, False, True], [1, 0, 1], ()),
        (["3", "cat", ""], [3, None, None], ()),  # a name among numbers is a mistake, and a row of its own
        (pa.array(["b", "a", None]).dictionary_encode(), [1, 0, None], ("a", "b")),
    ],
)
def test_labels_are_numbers_or_names(
    values: Any, numbers: list[int | None], names: tuple[str, ...], root: Path
) -> None:
    source = as_parquet(root, image=[RED] * 3, label=values)
    assert [row.label for row in rows(source, "labels")] == numbers
    assert read_classes(shard.url for shard in find_shards(source)) == names


def test_files_of_one_data_set_share_their_class_numbers(root: Path) -> None:
    for name, labels in (("x-0", ["cat", "dog"]), ("x-1", ["ant", "dog"])):
        pq.write_table(pa.table({"image": [RED, BLUE], "label": labels}), root / f"{name}.parquet")
    for source in (root / "x-*.parquet",):
        assert [row.label for row in rows(str(source), "labels")] == [1, 2, 0, 2]
    with refused("shards"):
        find_shards([root / "x-0.parquet", root / "x-1.parquet"])


# Folders


def test_a_folder_as_people_have_it(root: Path) -> None:
    photos = root / "photos"
    for name, data in (
        *(("a.jpg", BLUE), ("C.PNG", RED), ("C.TXT", "capital"), (".hidden.png", RED), (".git/x.png", RED)),
        *(("a.txt", "both"), ("b.txt", "blue"), ("deep/d.v2.png", RED), ("deep/d.v2.txt", "deep")),
    ):
        write(photos / name, data)
    (photos / "deep" / "loop").symlink_to(photos)
    (photos / "linked").symlink_to(root / "elsewhere")
    write(root / "elsewhere" / "e.png", BLUE)
    (photos / "gone.png").symlink_to(root / "none.png")
    found = {row.key: (row.status, row.text, row.error) for row in rows(photos)}
    assert found == {
        "C": ("ok", "capital", None),
        "a": ("ok", "both", None),
        "a_png": ("ok", "both", None),
        "b": ("ok", "blue", None),
        "deep/d_v2": ("ok", "deep", None),
        "gone": ("no_image", None, "gone.png is not there"),
        "linked/e": ("no_text", None, "no part txt and no caption or text in json"),
    }


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl", "captions.csv", "captions.txt"])
def test_captions_in_the_folder_of_the_pictures(name: str, root: Path) -> None:
    table = [("b.png", "blue"), ("a.png", "red"), ("a.png", "dark red")]
    lines = ["file_name,caption", *map(",".join, table)]
    if name.endswith("jsonl"):
        lines = [json.dumps({"file_name": file, "text": text}) for file, text in table]
    write(root / "photos" / name, "\n".join(lines))
    assert captions(root / "photos") == ["blue", "red", "dark red"]
    assert [shard.stem for shard in find_shards(root / "photos")] == ["photos-000000"]


@pytest.mark.parametrize("place", ["captions.txt", "lists/captions.csv"])
def test_captions_beside_the_folder_of_the_pictures(place: str, root: Path) -> None:
    """As Kaggle's Flickr8k has them: names without their folder."""
    assert captions(write(root / place, "image,caption\na.png,red\nb.png,blue\n")) == ["red", "blue"]


@pytest.mark.parametrize(("task", "other"), [("pairs", "labels"), ("labels", "pairs")])
def test_a_task_that_the_data_cannot_serve_is_refused_before_anything_is_loaded(
    task: str, other: str, root: Path
) -> None:
    column = {"pairs": "label", "labels": "caption"}[task]
    sources = [write(root / "t.csv", f"path,{column}\nphotos/a.png,red\n")]
    if task == "pairs":
        sources.append(write(root / "d" / "one" / "a.png", RED).parents[1])
        write(root / "d" / "two" / "b.png", BLUE)
    for source in sources:
        with refused("task", task) as caught:
            score(str(source), root / "out", options=DecodeOptions(tasks=(task,)), estimator=pytest.fail)
        assert f"which {source} does not have; use --task {other}" in str(caught.value)


# Hugging Face


def as_dataset() -> datasets.Dataset:
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "caption": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
        }
    )
    pictures = [{"bytes": RED, "path": None}, {"bytes": BLUE, "path": None}]
    return datasets.Dataset.from_dict({"image": pictures, "caption": ["red", "blue"], "label": [1, 0]}, features)


def test_folders_of_datasets(root: Path) -> None:
    train = as_dataset()
    datasets.DatasetDict({"train": train}).save_to_disk(root / "one")
    datasets.DatasetDict({"train": train, "test": train}).save_to_disk(root / "two")
    write(root / "two" / "train" / "cache-1.arrow", "left by map")
    write(root / "clone" / "README.md", "card")
    for split in ("train", "test"):
        (root / "clone" / "data").mkdir(exist_ok=True)
        train.to_parquet(root / "clone" / "data" / f"{split}-00000-of-00001.parquet")
    for source in ("one", "two/train", "clone/data/train-*.parquet"):
        assert captions(str(root / source)) == ["red", "blue"]
        assert read_classes(shard.url for shard in find_shards(str(root / source))) == ("cat", "dog")
    for source in ("two", "clone"):
        with refused("shards", root / source) as caught:
            find_shards(root / source)
        assert "train" in str(caught.value) and "test" in str(caught.value)


def test_datasets_of_the_hub(root: Path) -> None:
    as_dataset().save_to_disk(root / "cache")
    (file,) = (root / "cache").glob("*.arrow")
    asked: list[Any] = []

    def load(name: str, config: str | None, split: str | None) -> Any:
        asked.append((name, config, split))
        data = SimpleNamespace(cache_files=[{"filename": str(file)}])
        return data if split else {"train": data, "test": data}

    for source in ("hf-dataset:org/name:train", "hf-dataset:org/name?split=train"):
        assert hub_tables(source, load) == [file]
    assert hub_tables("hf-dataset:org/name?config=small&split=train[:9]", load) == [file]
    assert asked == [("org/name", None, "train")] * 2 + [("org/name", "small", "train[:9]")]
    with refused("shards", "hf-dataset:org/name") as caught:
        hub_tables("hf-dataset:org/name", load)
    assert "hf-dataset:org/name?split=test" in str(caught.value)

    def fail(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no hub")

    for source in ("hf-dataset:org/name", "hf-dataset:", "hf-dataset:x?splits=1"):
        with refused("shards", source):
            hub_tables(source, fail)


def test_pictures_of_datasets_may_be_files_of_their_own(root: Path) -> None:
    """As `datasets` keeps an image folder: paths in the struct, without bytes."""
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    pictures = [{"bytes": None, "path": str(root / "photos" / name)} for name in ("a.png", "none.png")]
    source = as_parquet(root, image=pa.array(pictures, kind), caption=["red", "blue"])
    assert [row.status for row in rows(source)] == ["ok", "no_image"]
    (shard,) = find_shards(source)
    assert shard.size_and_time()[0] == len(shard.open().read())  # known exactly: nothing but paths has to be read
    source = as_parquet(root, image=pa.array([{"bytes": RED, "path": "a.png"}], kind), caption=["red"])
    assert find_shards(source)[0].size_and_time()[0] is None and captions(source) == ["red"]


# Resuming


def test_a_table_that_holds_pictures_is_known_by_its_time(root: Path) -> None:
    source = as_parquet(root, image=[RED, BLUE] * 10, caption=["red", "blue"] * 10)
    (shard,) = find_shards(source)
    assert shard.size_and_time()[0] is None
    assert 0 < (shard.estimated_size() or 0) < 2 * source.stat().st_size
    assert score(str(source), root / "out").encoded == 20
    assert score(str(source), root / "out").encoded == 0
    source.touch()  # another time: compare the digest
    assert score(str(source), root / "out").encoded == 0
    as_parquet(root, image=[RED, BLUE] * 10, caption=["red", "gray"] * 10)
    notes = Notes()
    assert score(str(source), root / "out", progress=notes).encoded == 20
    assert any("has changed" in note for note in notes.said)
    assert RunFolder(root / "out").recorded()["complete"]


def test_an_edit_of_captions_or_names_is_noticed(root: Path) -> None:
    text = "path,caption\n" + "photos/a.png,red\nphotos/b.png,blue\n" * 10
    source = write(root / "t.csv", text)
    score(str(source), root / "out")
    write(source, text.replace("blue", "gray"))
    assert score(str(source), root / "out").encoded == 20
    folder = root / "f"
    for number in range(20):
        write(folder / f"{number:02d}.png", RED)
        write(folder / f"{number:02d}.txt", "red")
    score(str(folder), root / "out2")
    for suffix in ("png", "txt"):
        (folder / f"07.{suffix}").rename(folder / f"77.{suffix}")
    assert score(str(folder), root / "out2").encoded == 20


def test_a_source_that_is_gone_is_a_shard_that_cannot_be_read(root: Path) -> None:
    (shard,) = find_shards(as_parquet(root, image=[RED], caption=["red"]))
    (root / "t.parquet").unlink()
    for use in (Shard.open, Shard.size_and_time, Shard.estimated_size):
        with pytest.raises(Exception, match="cannot be opened"):
            use(shard)
