"""Other tools read the tables as they are."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from noisegate import read_table
from tests.fakes import pairs, picture, write_tar
from tests.jobs import score


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with failures, flags, an empty shard and one in which every sample fails."""
    folder = tmp_path_factory.mktemp("elsewhere")
    bad = [("bad.png", b"junk"), ("bad.txt", b"red"), ("alone.txt", b"red")]
    twice = [("00001.png", picture("red")), ("00001.txt", "red, rouge, 赤".encode())]
    write_tar(folder / "s" / "x-00.tar", [*pairs(8), *bad, *twice])
    write_tar(folder / "s" / "x-01.tar", pairs(7, 20))
    write_tar(folder / "s" / "x-02.tar", bad)
    write_tar(folder / "s" / "x-03.tar", [])
    score(folder / "s", folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def table(out: Path) -> pa.Table:
    return read_table(out)


def test_duckdb(out: Path, table: pa.Table) -> None:
    def ask(query: str) -> list[tuple[Any, ...]]:
        return duckdb.execute(query.format(t=f"'{out}/*.parquet'")).fetchall()

    weights = table["osa_weight"].drop_null().to_numpy()
    assert len(weights) == 16
    [(average, count)] = ask("select avg(osa_weight), count(*) from {t}")
    assert average == pytest.approx(weights.mean())
    assert count == len(table)
    counts = dict(ask("select status, count(*) from {t} group by all"))
    assert counts == {"ok": 16, "bad_image": 2, "no_image": 2}
    assert ask("select key, index from {t} where list_contains(flags, 'duplicate_key')") == [("00001", 10)]
    [(kept,)] = ask("select count(*) from {t} where clean")
    assert kept == pc.sum(table["clean"]).as_py() == (weights > 0).sum()
    digests = dict(ask("select key, hex(image_sha256) from {t} where filename like '%x-01%'"))
    wanted = {row["key"]: row["image_sha256"].hex().upper() for row in table.to_pylist() if row["shard"] == "x-01"}
    assert digests == wanted


def test_polars(out: Path, table: pa.Table) -> None:
    frame = pl.read_parquet(out / "*.parquet")
    assert frame.columns == table.column_names[1:]
    assert frame["osa_weight"].mean() == pytest.approx(np.mean(table["osa_weight"].drop_null().to_numpy()))
    assert frame["status"].cast(pl.String).to_list() == table["status"].to_pylist()
    assert frame["flags"].to_list() == table["flags"].to_pylist()
    assert frame["similarity"].to_list() == table["similarity"].to_pylist()
    assert frame["label"].null_count() == len(table)
    lazy = pl.scan_parquet(out / "*.parquet").filter(pl.col("clean")).select(pl.len()).collect().item()
    assert lazy == pc.sum(table["clean"]).as_py()


def test_pandas(out: Path, table: pa.Table) -> None:
    frames = [pd.read_parquet(path) for path in sorted(out.glob("*.parquet"))]
    frame = pd.concat([part for part in frames if len(part)])
    assert list(frame.columns) == table.column_names[1:]
    np.testing.assert_array_equal(frame["osa_weight"].to_numpy(), table["osa_weight"].to_numpy())
    assert frame["status"].tolist() == table["status"].to_pylist()
    assert [list(flags) for flags in frame["flags"]] == table["flags"].to_pylist()
    assert frame["error"].isna().sum() == 16


def test_pyarrow_as_one_data_set(out: Path, table: pa.Table) -> None:
    found = ds.dataset(out, format="parquet", exclude_invalid_files=True).to_table()
    assert found["key"].to_pylist() == table["key"].to_pylist()
    assert found["osa_weight"].to_pylist() == table["osa_weight"].to_pylist()
