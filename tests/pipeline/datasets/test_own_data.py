"""Shards made from folders and tables hold the samples that `annotate` reads from them."""

import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noisegate import read_table
from noisegate.pipeline.datasets.convert.job import convert
from noisegate.pipeline.errors import MismatchError
from noisegate.pipeline.settings import DecodeOptions
from tests.commands import called
from tests.errors import refused
from tests.jobs import files_of, score
from tests.pipeline.shards.test_sources import COUNT, SOURCES, photos, sample

__all__ = ["photos"]  # a fixture
KINDS = {"folder": "folder", "csv": "table", "parquet": "table", "datasets": "datasets", "coco": "coco-captions"}
COLUMNS = ["key", "status", "image_sha256", "text_sha256", "similarity", "clean"]


@pytest.mark.parametrize("form", KINDS)
def test_converted_shards_score_as_their_source(form: str, photos: Path) -> None:
    source = SOURCES[form](photos)
    done = convert(KINDS[form], source, photos / "shards")
    assert (done.samples, done.bad, len(done.shards)) == (COUNT, {}, 1)
    score(source, photos / "virtual")
    score(photos / "shards", photos / "real")
    real = read_table(photos / "real", COLUMNS)
    assert real.equals(
        read_table(photos / "virtual", COLUMNS)
    )  # the name of the shard too, so either joins with the other


def test_a_stopped_conversion_goes_on_to_the_same_bytes(photos: Path) -> None:
    source = SOURCES["parquet"](photos)
    whole = convert("table", source, photos / "whole", shard_samples=7)
    assert [Path(shard).name for shard in whole.shards] == [f"t-{number:06d}.tar" for number in range(6)]

    def stop(done: int, count: int, shard: str | None) -> None:
        if done == 17:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert("table", source, photos / "stopped", shard_samples=7, progress=stop)
    assert len(list((photos / "stopped").glob("*.tar"))) == 2
    convert("table", source, photos / "stopped", shard_samples=7)
    assert files_of(photos / "stopped") == files_of(photos / "whole")
    assert convert("table", source, photos / "whole", shard_samples=7).already
    SOURCES["csv"](photos)
    with pytest.raises(MismatchError):
        convert("table", photos / "t.csv", photos / "whole", shard_samples=7)


def test_class_names_are_kept_and_what_cannot_be_read_is_listed(photos: Path) -> None:
    names = ["ship", "car", "ship", "car", None]
    pictures = [sample(number)[0] for number in range(3)] + [b"junk", None]
    pq.write_table(pa.table({"img": pictures, "kind": names}), photos / "t.parquet")
    arguments = ("--image-column", "img", "--label-column", "kind")
    done = called("convert", "table", "t.parquet", *arguments, "--out", "shards", "--json", cwd=photos)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bad"] == {"bad_image": 1, "no_image": 1}
    assert (photos / "shards" / "classes.txt").read_text() == "car\nship\n"
    with tarfile.open(photos / "shards" / "t-000000.tar") as tar:
        labels = [tar.extractfile(name).read() for name in tar.getnames() if name.endswith("cls")]  # type: ignore[union-attr]
    assert labels == [b"1", b"0", b"1"]


def test_several_tables_become_one_series_of_shards(photos: Path) -> None:
    for part in range(3):
        rows = range(part * 10, part * 10 + 10)
        columns = {"image": [sample(row)[0] for row in rows], "text": [sample(row)[1] for row in rows]}
        pq.write_table(pa.table(columns), photos / f"train-{part}.parquet")
    done = convert("table", str(photos / "train-*.parquet"), photos / "shards", shard_samples=12)
    assert (done.samples, len(done.shards)) == (30, 3)
    score(photos / "shards", photos / "out")
    assert read_table(photos / "out", ["key"])["key"].to_pylist() == [f"{row:09d}" for row in range(30)]


@pytest.mark.parametrize(
    ("kind", "source"), [("folder", "t.csv"), ("table", "photos"), ("coco-captions", "photos"), ("table", "none.csv")]
)
def test_a_source_of_another_kind_is_refused(kind: str, source: str, photos: Path) -> None:
    SOURCES["csv"](photos)
    with refused("source", photos / source):
        convert(kind, photos / source, photos / "shards")
    with refused("layout"):
        convert(kind, photos / source, photos / "shards", layout="table")


def test_commands_take_all_sources_and_columns(photos: Path) -> None:
    lines = ["file,alt,n", *(f"photos/{row:03d}.png,{sample(row)[1]},{row % 4}" for row in range(COUNT))]
    (photos / "odd.csv").write_text("\n".join(lines))
    columns = ("--image-column", "file", "--text-column", "alt")
    model = ("--model", "python:tests.fakes:ColourModel", "--workers", "0", "--json")
    planned = called("plan", "odd.csv", *columns, "--seconds", "0.2", *model, cwd=photos)
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["samples"]["value"] == pytest.approx(COUNT, rel=0.1)
    measured = called("calibrate", "odd.csv", *columns, *model, cwd=photos)
    assert {mode["mode"] for mode in json.loads(measured.stdout)["modes"]} >= {"shuffled_mean"}, measured.stderr
    noisy = called("noise", "odd.csv", *columns, "--rate", "0.5", "--out", "noisy", "--json", cwd=photos)
    assert json.loads(noisy.stdout)["samples"] == COUNT, noisy.stderr
    wrong = called("noise", "odd.csv", "--label-column", "n", "--protocol", "symmetric", "--rate", "0.5", "--out", "wrong",
                   *columns, "--json", cwd=photos)  # fmt: skip
    assert json.loads(wrong.stdout)["classes"] == 4, wrong.stderr
    for command in ("plan", "calibrate", "noise"):
        out = ("--out", "x", "--rate", "0.1") if command == "noise" else ()
        refusal = called(command, "odd.csv", "--text-column", "none", *out, cwd=photos)
        assert refusal.returncode == 2 and "text_column 'none' is not in odd.csv" in refusal.stderr


def test_a_folder_with_a_csv_becomes_a_report_in_one_command(photos: Path) -> None:
    lines = ["file_name,caption", *(f"{row:03d}.png,{sample(row)[1]}" for row in range(COUNT))]
    (photos / "photos" / "metadata.csv").write_text("\n".join(lines))
    done = called("annotate", "photos", "--model", "python:tests.fakes:ColourModel", "--workers", "0", "--report",
                  "--out", "tables", "--json", cwd=photos)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["report"] == "tables/report.html"
    assert sample(3)[1] in (photos / "tables" / "report.html").read_text()


def test_classes_of_the_source_become_anchors(photos: Path) -> None:
    colours = ["red", "green", "blue", "brown"]
    rows = [f"photos/{row:03d}.png,{colours[row % 4]}" for row in range(COUNT)]
    (photos / "t.csv").write_text("\n".join(["path,label", *rows]))
    arguments = ("--task", "labels", "--classes", "source", "--workers", "0", "--out", "tables")
    done = called("annotate", "t.csv", "--model", "python:tests.fakes:ColourModel", *arguments, cwd=photos)
    assert done.returncode == 0, done.stderr
    table = read_table(photos / "tables", ["label", "anchor_consistency"])
    assert table["label"].to_pylist()[:4] == [3, 2, 0, 1]  # blue, brown, green, red
    assert min(table["anchor_consistency"].to_pylist()[:3]) > 0.9  # red, green, blue
    (photos / "t.csv").write_text("\n".join(["path,label", *(row.rpartition(",")[0] + ",1" for row in rows)]))
    refusal = called("annotate", "t.csv", *arguments[:-1], "other", cwd=photos)
    assert refusal.returncode == 2 and "its labels are numbers" in refusal.stderr


def test_both_tasks_of_a_table(photos: Path) -> None:
    rows = [f"photos/{row:03d}.png,{sample(row)[1]},{row % 4}" for row in range(COUNT)]
    (photos / "t.csv").write_text("\n".join(["path,caption,label", *rows]))
    score(str(photos / "t.csv"), photos / "out", options=DecodeOptions(tasks=("pairs", "labels")), k=4)
    assert read_table(photos / "out", ["label"])["label"].to_pylist() == [row % 4 for row in range(COUNT)]
    with refused("shards", photos / "t.csv"):
        columns = {"image_column": "caption", "text_column": "path", "label_column": "label"}
        score(str(photos / "t.csv"), photos / "other", **columns)
