"""Shards as img2dataset leaves them: jpg, txt and json in the tar; a Parquet file and statistics of the same name beside it."""

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.runs.table import read_table
from tests.errors import refused
from tests.jobs import score
from tests.pipeline.shards.tars import encoded, write_tar

CAPTIONS = ["a red bird", "Käse & Brot", "two cats"]


@pytest.fixture
def crawled(tmp_path: Path) -> Path:
    folder = tmp_path / "crawled"
    folder.mkdir()
    files, rows = [], []
    for i, caption in enumerate(CAPTIONS):
        key = f"{i:09d}"
        picture = encoded(Image.new("RGB", (256, 192), (40 * i, 90, 160)), "JPEG")
        record = {
            "url": f"https://example.org/{i}.jpg",
            "caption": caption,
            "key": key,
            "status": "success",
            "error_message": None,
            "width": 256,
            "height": 192,
            "original_width": 640,
            "original_height": 480,
            "exif": "{}",
            "sha256": hashlib.sha256(picture).hexdigest(),
        }
        files += [(f"{key}.jpg", picture), (f"{key}.json", json.dumps(record, indent=4).encode())]
        files.append((f"{key}.txt", caption.encode()))
        rows.append(record)
    write_tar(folder / "00000.tar", files)
    rows.append({**rows[0], "key": "000000003", "status": "failed_to_download", "error_message": "404"})
    pq.write_table(pa.Table.from_pylist(rows), folder / "00000.parquet")
    (folder / "00000_stats.json").write_text(json.dumps({"count": 4, "successes": 3}))
    return folder


def test_they_are_read_as_they_are_and_left_alone(crawled: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in crawled.iterdir()}
    summary = score(str(crawled), tmp_path / "tables")
    assert (summary.shards, summary.samples, summary.statuses) == (1, 3, {"ok": 3})
    table = read_table(tmp_path / "tables")
    assert table["key"].to_pylist() == ["000000000", "000000001", "000000002"]
    assert table["text_sha256"].to_pylist() == [hashlib.sha256(text.encode()).digest() for text in CAPTIONS]
    theirs = pq.read_table(crawled / "00000.parquet")["sha256"].to_pylist()[:3]
    assert [digest.hex() for digest in table["image_sha256"].to_pylist()] == theirs
    assert {path.name: path.read_bytes() for path in crawled.iterdir()} == before


def test_their_parquet_files_are_not_written_over(crawled: Path) -> None:
    before = (crawled / "00000.parquet").read_bytes()
    with refused("out", crawled / "00000.parquet", TableError):
        score(str(crawled), crawled)
    assert (crawled / "00000.parquet").read_bytes() == before
