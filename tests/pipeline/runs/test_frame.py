"""A run as a pyarrow Table with captions and as a pandas DataFrame, compared with what the tars hold."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import noisegate as ng
from noisegate.pipeline.errors import MismatchError, TableError
from noisegate.pipeline.rescore import score_embeddings
from noisegate.pipeline.settings import DecodeOptions
from tests.errors import refused
from tests.fakes import pairs, picture, write_tar
from tests.jobs import score


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two shards, the second with captions in json, a broken picture, and one sample without a caption."""
    odd = [("bad.png", b"junk"), ("bad.txt", b"\xef\xbb\xbfred"), ("none.png", picture("red"))]
    write_tar(tmp_path / "x-0.tar", [*pairs(8), *odd])
    second = [member for number in range(6) for member in
              ((f"{number}.png", picture("blue")), (f"{number}.json", b'{"caption": "blue \\u00e9 %d"}' % number))]  # fmt: skip
    write_tar(tmp_path / "x-1.tar", second)
    score([tmp_path / "x-0.tar", tmp_path / "x-1.tar"], tmp_path / "run")
    return tmp_path / "run"


def test_captions_are_those_of_the_shards(run: Path) -> None:
    table = ng.read_table(run, captions=True)
    given = [data.decode() for name, data in pairs(8) if name.endswith("txt")]
    assert table["caption"].to_pylist() == [*given, "red", None, *(f"blue é {number}" for number in range(6))]
    assert "knn_consistency" not in table.column_names and "similarity" in table.column_names
    assert ng.read_table(run, ["key", "label"], captions=True).column_names == ["shard", "key", "label", "caption"]
    assert ng.read_table(run, ["caption"])["caption"].equals(table["caption"])
    assert "caption" not in ng.read_table(run).column_names and "knn_consistency" in ng.read_table(run).column_names


def test_a_frame_is_pleasant(run: Path) -> None:
    frame = ng.read_frame(run, captions=True)
    table = ng.read_table(run)
    assert len(frame) == len(table) and frame.columns[0] == "shard"
    assert not {"image_sha256", "text_sha256", "label"} & set(frame.columns)
    assert not any(isinstance(kind, pd.CategoricalDtype) for kind in frame.dtypes)
    assert (
        frame["clean"].dtype == "boolean" and frame["index"].dtype == "Int32" and frame["similarity"].dtype == "float32"
    )
    assert frame["clean"].tolist() == [pd.NA if value is None else value for value in table["clean"].to_pylist()]
    assert frame.query("status == 'ok' and clean")["caption"].str.len().min() > 0
    assert frame[frame["status"] == "bad_image"]["clean"].isna().all()
    digests = ng.read_frame(run, ["image_sha256", "label"])
    assert digests["image_sha256"][0] == table["image_sha256"][0].as_py().hex()
    assert digests["label"].dtype == "Int32" and digests["label"].isna().all()


def test_flags_and_class_numbers(tmp_path: Path) -> None:
    labels = [b"", *(str(number % 2).encode() for number in range(1, 20))]
    members = []
    for number, label in enumerate(labels):
        image = picture(("red", "blue")[number % 2], (16 + number, 16))
        members += [(f"{number:02d}.png", image), (f"{number:02d}.cls", label)]
    write_tar(tmp_path / "x.tar", [*members, members[0], members[1]])
    score([tmp_path / "x.tar"], tmp_path / "run", options=DecodeOptions(tasks=("labels",)), k=3)
    frame = ng.read_frame(tmp_path / "run")
    assert frame["label"].tolist()[:3] == [pd.NA, 1, 0] and frame["label"].dtype == "Int32"
    assert list(frame["flags"].iloc[-1]) == ["duplicate_key"] and frame["predicted_label"].dtype == "Int32"


def test_a_shard_that_has_changed_is_refused(run: Path, tmp_path: Path) -> None:
    write_tar(tmp_path / "x-0.tar", [(name, b"green" if name.endswith("txt") else data) for name, data in pairs(8)])
    with refused("shards", error=MismatchError):
        ng.read_frame(run, captions=True)
    assert len(ng.read_frame(run)) == 16
    (tmp_path / "x-0.tar").unlink()
    with pytest.raises(ng.NoisegateError, match="cannot be opened"):
        ng.read_table(run, captions=True)
    with refused("columns", "captions", error=TableError):
        ng.read_frame(run, ["captions"])


def test_a_run_of_embeddings_has_no_captions(run: Path, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    score_embeddings(tmp_path / "own", tmp_path / "rows.npy", texts=tmp_path / "rows.npy")
    with refused("captions", True):
        ng.read_frame(tmp_path / "own", captions=True)
    assert len(ng.read_frame(tmp_path / "own")) == 30


def test_captions_of_a_folder_and_of_scored_pairs(tmp_path: Path) -> None:
    for name, data in pairs(6):
        (tmp_path / "photos").mkdir(exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(data)
    score(str(tmp_path / "photos"), tmp_path / "run")
    given = [data.decode() for name, data in pairs(6) if name.endswith("txt")]
    assert ng.read_frame(tmp_path / "run", ["key"], captions=True)["caption"].tolist() == given
