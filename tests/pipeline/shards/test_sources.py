"""Folders of pictures and tables score as the same samples in tars do; what cannot be read says so before a model is loaded."""

import csv
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import noisegate as ng
from noisegate import read_table
from noisegate.pipeline.errors import ShardError
from noisegate.pipeline.export import export
from noisegate.pipeline.inspect.verify import verify
from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.shards.locate import Shard, find_shards
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.pipeline.shards.random_access import read_samples
from noisegate.pipeline.shards.read import ShardReader
from noisegate.pipeline.shards.sources import ROWS, TableColumns, VirtualTar, open_virtual
from noisegate.pipeline.shards.sources.virtual_tar import make_header
from noisegate.pipeline.shards.workers import decode_sample
from noisegate.service.runs.browse import ShardSamples
from tests.commands import called
from tests.errors import refused
from tests.fakes import picture, write_tar
from tests.jobs import score

COLOURS = ("red", "green", "blue", "brown")
COUNT = 40


def sample(number: int) -> tuple[bytes, str]:
    """A picture and a caption, every fifth of them wrong."""
    colour = COLOURS[number % 4]
    return picture(colour, (16 + number, 16)), f"number {number} is {COLOURS[(number + (number % 5 == 0)) % 4]}"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Pictures in a folder of their own, without captions."""
    (tmp_path / "photos").mkdir()
    for number in range(COUNT):
        (tmp_path / "photos" / f"{number:03d}.png").write_bytes(sample(number)[0])
    return tmp_path


def rows(of: str = "photos") -> list[dict[str, str]]:
    return [{"path": f"{of}/{number:03d}.png", "caption": sample(number)[1]} for number in range(COUNT)]


def as_folder(root: Path) -> str:
    for number in range(COUNT):
        kind = ("txt", sample(number)[1]) if number % 2 else ("json", json.dumps({"caption": sample(number)[1]}))
        (root / "photos" / f"{number:03d}.{kind[0]}").write_text(kind[1])
    return str(root / "photos")


def as_lines(root: Path, name: str, separator: str) -> str:
    with (root / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, ["path", "caption"], delimiter=separator)
        writer.writeheader()
        writer.writerows(rows())
    return str(root / name)


def as_jsonl(root: Path) -> str:
    (root / "t.jsonl").write_text("\n".join(map(json.dumps, rows())))
    return str(root / "t.jsonl")


def as_parquet(root: Path) -> str:
    images = [sample(number)[0] for number in range(COUNT)]
    table = pa.table({"image": images, "text": [sample(number)[1] for number in range(COUNT)]})
    pq.write_table(table, root / "t.parquet", row_group_size=7)
    return str(root / "t.parquet")


def as_datasets(root: Path) -> str:
    """A folder with Arrow files and the picture in a struct, as `datasets` saves it."""
    images = [{"bytes": sample(number)[0], "path": None} for number in range(COUNT)]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table({"image": pa.array(images, kind), "caption": [sample(number)[1] for number in range(COUNT)]})
    (root / "saved").mkdir()
    with pa.OSFile(str(root / "saved" / "data-0.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return str(root / "saved")


def as_coco(root: Path) -> str:
    (root / "annotations").mkdir()
    images = [{"id": 100 + number, "file_name": f"{number:03d}.png"} for number in range(COUNT)]
    annotations = [{"image_id": 100 + number, "caption": sample(number)[1]} for number in range(COUNT)]
    (root / "annotations" / "captions.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    return str(root / "annotations" / "captions.json")


SOURCES: dict[str, Callable[[Path], str]] = {
    "folder": as_folder,
    "csv": lambda root: as_lines(root, "t.csv", ","),
    "tsv": lambda root: as_lines(root, "t.tsv", "\t"),
    "jsonl": as_jsonl,
    "parquet": as_parquet,
    "datasets": as_datasets,
    "coco": as_coco,
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_scores_as_tars_do(name: str, photos: Path) -> None:
    members = []
    for number in range(COUNT):
        image, text = sample(number)
        members += [(f"{number:03d}.png", image), (f"{number:03d}.txt", text.encode())]
    write_tar(photos / "tars" / "x.tar", members)
    score(photos / "tars", photos / "plain")
    score(SOURCES[name](photos), photos / "out")
    columns = ["status", "image_sha256", "text_sha256", "similarity", "osa_weight", "clean_probability", "clean"]
    assert (
        read_table(photos / "out", columns)
        .drop_columns("shard")
        .equals(read_table(photos / "plain", columns).drop_columns("shard"))
    )


def test_what_comes_after_works_on_a_folder(photos: Path) -> None:
    folder = as_folder(photos)
    first = score(folder, photos / "out")
    assert first.encoded == COUNT
    assert score(folder, photos / "out").encoded == 0  # nothing has changed
    assert not verify(photos / "out", rescore=False).problems
    done = export(photos / "out", photos / "tars", "shards")
    assert done.written == done.kept > 0
    with tarfile.open(next((photos / "tars").glob("*.tar"))) as tar:
        assert any(name.endswith(".png") for name in tar.getnames())
    loader = ng.WeightedShards(None, photos / "out", batch_size=8, text=lambda texts: texts)
    texts = [text for batch in loader for text in batch.texts]
    assert sorted(texts) == sorted(sample(number)[1] for number in range(COUNT))
    row = read_table(photos / "out").slice(3, 1).to_pylist()[0]
    raw = ShardSamples(Limits()).read(photos / "out", find_shards(folder)[0].url, row)
    assert (raw.key, raw.parts["png"]) == ("003", sample(3)[0])
    (Path(folder) / "001.txt").write_text("number 1 is brown")
    assert score(folder, photos / "out").encoded == COUNT  # the shard is another one now


def test_classes_may_be_folders(tmp_path: Path) -> None:
    for number in range(30):
        place = tmp_path / "pets" / ("cats", "dogs")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:02d}.v1.png").write_bytes(sample(number % 2)[0])
    score(str(tmp_path / "pets"), tmp_path / "out", options=DecodeOptions(tasks=("labels",)), k=4)
    table = read_table(tmp_path / "out", ["key", "label"]).to_pydict()
    assert set(zip((key.split("/")[0] for key in table["key"]), table["label"], strict=True)) == {
        ("cats", 0),
        ("dogs", 1),
    }
    assert "cats/00_v1" in table["key"]


def test_files_that_are_missing_are_rows_with_a_status(photos: Path) -> None:
    table = pa.table(
        {"path": ["photos/001.png", "photos/none.png", None, "photos/002.png"], "caption": ["red", "red", None, None]}
    )
    pq.write_table(table, photos / "t.parquet")
    (photos / "photos" / "002.png").write_bytes(b"junk")
    score(str(photos / "t.parquet"), photos / "out")
    found = read_table(photos / "out", ["key", "status", "error"]).to_pydict()
    assert found["key"] == ["000000000_001", "000000001_none", "000000002", "000000003_002"]
    assert found["status"] == ["ok", "no_image", "no_image", "bad_image"]
    assert found["error"][1:3] == ["photos/none.png is not there", "the column path is empty"]


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda root: (root / "empty").mkdir() or root / "empty", "shards"),
        (lambda root: written(root / "t.csv", "a,b\n1,2\n"), "image_column"),
        (lambda root: written(root / "t.csv", "path,b\n1,2\n"), "text_column"),
        (lambda root: written(root / "t.csv", "path,caption\n"), "shards"),
        (lambda root: written(root / "t.csv", ""), "shards"),
        (lambda root: written(root / "t.parquet", "no"), "shards"),
        (lambda root: written(root / "t.json", '{"images": []}'), "shards"),
        (lambda root: written(root / "t.csv", "url,caption\nhttps://host/a.jpg,red\n"), "shards"),
        (lambda root: written(root / "a.png", "no"), "shards"),
        (lambda root: written(root / "a.JPG", "no").parent / "*.JPG", "shards"),
    ],
)
def test_what_cannot_be_read_is_refused_at_once(make: Callable[[Path], Path], setting: str, tmp_path: Path) -> None:
    with refused(setting):
        find_shards(make(tmp_path))


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_columns_are_chosen_by_name_or_given(photos: Path) -> None:
    lines = ["file,alt,caption,n", *(f"photos/{i:03d}.png,it is {COLOURS[i % 4]},no,{i % 4}" for i in range(8))]
    path = written(photos / "t.csv", "\n".join(lines))
    (shard,) = find_shards(path, TableColumns(text="alt", label="n"))
    assert shard.stem == "t-000000" and "image=file&text=alt&label=n" in shard.url
    raw = list(ShardReader(shard))
    assert [sample.parts["txt"] for sample in raw[:2]] == [b"it is red", b"it is green"]
    assert raw[3].parts["cls"] == b"3"
    with refused("text_column", "words"):
        find_shards(path, TableColumns(text="words"))
    done = called("annotate", path, "--text-column", "words", "--out", "out", cwd=photos)
    assert done.returncode == 2 and "text_column 'words' is not in" in done.stderr
    addresses = written(photos / "u.csv", "url,caption\nhttps://host/a.jpg,red\n")
    done = called("annotate", addresses, "--out", "out", cwd=photos)
    assert done.returncode == 2 and "img2dataset --url_list" in done.stderr and "--caption_col caption" in done.stderr


def test_a_virtual_shard_is_a_tar_of_any_reader(photos: Path) -> None:
    (shard,) = find_shards(as_folder(photos))
    content = shard.open().read()
    assert shard.size_and_time()[0] == len(content)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert len(tar.getnames()) == 2 * COUNT
        member = tar.extractfile("007.png")
        assert member is not None and member.read() == sample(7)[0]
    stream, rng = shard.open(), np.random.default_rng(0)
    for start, size in rng.integers(0, len(content), (50, 2)).tolist():
        stream.seek(start)
        assert stream.read(size) == content[start : start + size] and stream.tell() == min(start + size, len(content))
    (seventh,) = read_samples(shard, [7])
    assert (seventh.key, seventh.parts["png"]) == ("007", sample(7)[0])


@pytest.mark.parametrize("name", ["a.jpg", "é/ü.txt", "x" * 96 + ".jpg", "x" * 97 + ".jpg", "x" * 300, "\udcff.png"])
@pytest.mark.parametrize("size", [0, 511, 30_000, 8**11 - 1, 8**11])
def test_headers_are_those_of_tarfile(name: str, size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    assert make_header(name, size) == member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def test_sources_are_cut_into_shards_of_fixed_size(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(sample(0)[0])
    lines = ["path,caption", *(f"{i}.png,number {i}" for i in range(2 * ROWS + 1))]
    shards = find_shards(written(tmp_path / "t.csv", "\n".join(lines)))
    assert [shard.stem for shard in shards] == ["t-000000", "t-000001", "t-000002"]
    counts = [sum(1 for _ in ShardReader(shard)) for shard in shards]
    assert counts == [ROWS, ROWS, 1]
    with pytest.raises(ShardError):
        open_virtual(shards[2].url.replace("000002", "000009"))
    with pytest.raises(ShardError):
        Shard(f"table:{tmp_path / 'gone.csv'}?image=path/gone-000000.tar").open()


def test_a_file_that_changes_while_it_is_read_is_named_in_its_row(photos: Path) -> None:
    (shard,) = find_shards(as_folder(photos))
    stream = shard.open()
    assert isinstance(stream, VirtualTar)
    (photos / "photos" / "003.png").write_bytes(b"short")
    (photos / "photos" / "005.png").unlink()
    (photos / "photos" / "007.txt").unlink()
    content = stream.read()
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert len(tar.getnames()) == 2 * COUNT
    write = photos / "copy.tar"
    write.write_bytes(content)
    rows = [decode_sample(raw, Preprocess(8), DecodeOptions()) for raw in ShardReader(Shard(str(write)))]
    assert {(row.key, row.status, row.error) for row in rows if row.status != "ok"} == {
        ("003", "no_image", "003.png changed while it was read"),
        ("005", "no_image", "005.png is not there"),
        ("007", "no_text", "007.txt is not there"),
    }
    stream.seek(0)
    begun = stream.read(512)  # the header of the first picture opens its file
    (photos / "photos" / "000.json").unlink(), (photos / "photos" / "000.png").unlink()
    assert begun + stream.read(len(sample(0)[0])) == content[: 512 + len(sample(0)[0])]
