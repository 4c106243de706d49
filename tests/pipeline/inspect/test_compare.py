"""Two runs of the same samples: correlations against scipy and scikit-learn, and what is no comparison at all."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from noisegate.pipeline.errors import MismatchError, TableError
from noisegate.pipeline.inspect.compare import CutAgreement, compare
from noisegate.pipeline.settings import DecodeOptions
from tests.commands import called
from tests.errors import refused
from tests.fakes import ColourModel, Member, Rows, estimator, pairs, write_tar
from tests.jobs import score


class HashModel(ColourModel):
    """Half of the colours and more of the hash: ranks pairs in another way than ColourModel."""

    identity = "colours-hashed"

    def encode_texts(self, texts: "list[str]") -> Rows:  # type: ignore[override]
        return super().encode_texts(texts) * np.repeat([0.5, 1.2], [10, 14]).astype(np.float32)


def with_noise(count: int, start: int = 0) -> list[Member]:
    """Pairs of which every third caption names another colour."""
    members = dict(pairs(count, start))
    colours = [data.split()[-1] for name, data in pairs(10) if name.endswith("txt")]
    for i in range(start, start + count, 3):
        members[f"{i:05d}.txt"] = f"number {i} is ".encode() + colours[(i + 4) % 10]
    return list(members.items())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs `a` and `b` of two models, `c` of the first with another β, over three shards, one sample of them broken."""
    folder = tmp_path_factory.mktemp("compare")
    for i in range(3):
        extra = [("bad.png", b"no picture"), ("bad.txt", b"red")] if i == 1 else []
        write_tar(folder / "shards" / f"x-{i}.tar", [*with_noise(14, 20 * i), *extra])
    score(folder / "shards", folder / "a")
    score(folder / "shards", folder / "b", estimator=estimator(kind=HashModel))
    score(folder / "shards", folder / "c", beta="fixed:0.85")
    return folder


def columns(folder: Path, name: str) -> list[object]:
    """A column over all shards in order, without the failed sample."""
    parts = [pq.read_table(path, columns=["status", name]).to_pylist() for path in sorted(folder.glob("*.parquet"))]
    return [row[name] for part in parts for row in part if row["status"] == "ok"]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_kappa_by_its_definition(rows: list[tuple[bool, bool]]) -> None:
    """κ = (p_o - p_e) / (1 - p_e)"""
    a, b = np.array(rows).T
    cut = CutAgreement(int((a & b).sum()), int((a & ~b).sum()), int((~a & b).sum()), int((~a & ~b).sum()))
    observed, by_chance = (a == b).mean(), a.mean() * b.mean() + (1 - a.mean()) * (1 - b.mean())
    if by_chance == 1:
        assert np.isnan(cut.kappa)
    else:
        assert cut.kappa == pytest.approx((observed - by_chance) / (1 - by_chance), abs=1e-12)


# --- runs -------------------------------------------------------------------------------------------------------------
def test_two_models(runs: Path) -> None:
    found = compare(runs / "a", runs / "b")
    assert (found.rows, found.matched, found.compared) == ((43, 43), 43, 43)
    for rank in found.ranks:
        a, b = columns(runs / "a", rank.score), columns(runs / "b", rank.score)
        assert rank.rows == rank.kendall_rows == 42
        assert rank.spearman == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-9)
        assert rank.kendall == pytest.approx(stats.kendalltau(a, b).statistic, abs=1e-9)
    assert {rank.score for rank in found.ranks} == {"similarity", "osa_weight", "clean_probability"}
    assert 0 < found.ranks[0].spearman < 1
    a, b = columns(runs / "a", "clean"), columns(runs / "b", "clean")
    assert found.cut is not None
    assert found.cut.both == sum(bool(x and y) for x, y in zip(a, b, strict=True))
    assert found.cut.only_first == sum(bool(x and not y) for x, y in zip(a, b, strict=True)) > 0
    assert found.cut.only_second == sum(bool(y and not x) for x, y in zip(a, b, strict=True))
    assert found.cut.rows == 42


def test_what_they_disagree_on_most_comes_first_with_key_scores_and_caption(runs: Path) -> None:
    found = compare(runs / "a", runs / "b", top=42)
    a, b = (np.array(columns(runs / name, "similarity"), np.float32) for name in "ab")
    apart = np.abs(stats.rankdata(a) - stats.rankdata(b)) / 42
    assert found.by == "similarity"
    listed = [abs(one.ranks[0] - one.ranks[1]) for one in found.disagreements]
    assert listed == pytest.approx(sorted(apart, reverse=True)[: len(listed)])
    worst, row = found.disagreements[0], int(apart.argmax())
    assert worst.key == columns(runs / "a", "key")[row]
    assert worst.first["similarity"] == pytest.approx(a[row])
    assert worst.second["similarity"] == pytest.approx(b[row])
    assert worst.caption is not None
    assert worst.caption.startswith(f"number {int(worst.key)} is ")
    assert worst.shard == f"x-{int(worst.key) // 20}"


def test_another_beta_ranks_alike_and_cuts_otherwise(runs: Path) -> None:
    found = compare(runs / "a", runs / "c", top=3)
    ranks = {rank.score: rank.spearman for rank in found.ranks}
    assert ranks["similarity"] == pytest.approx(1)
    assert found.cut is not None
    assert (found.cut.only_second, found.cut.only_first > 0) == (0, True)
    assert (found.by, len(found.disagreements)) == ("osa_weight", 3)
    cut = [(one.first["osa_weight"] > 0, one.second["osa_weight"] > 0) for one in found.disagreements]
    assert (True, False) in cut
    same = compare(runs / "a", runs / "a")
    assert (same.by, same.disagreements) == (None, ())
    assert same.cut is not None
    assert same.cut.share == 1


def test_rows_join_by_key_and_bytes_where_shards_differ(runs: Path, tmp_path: Path) -> None:
    """Renamed, in another order, one sample gone, one caption another."""
    shutil.copy(runs / "shards" / "x-2.tar", tmp_path / "renamed.tar")
    first = with_noise(14)
    changed = [(n, b"number 3 is pink" if n == "00003.txt" else d) for n, d in first if not n.startswith("00005")]
    write_tar(tmp_path / "x-0.tar", changed[4:] + changed[:4])
    score([tmp_path / "x-0.tar", tmp_path / "renamed.tar"], tmp_path / "run")
    found = compare(runs / "a", tmp_path / "run")
    assert (found.rows, found.matched) == ((43, 27), 14 + 12)
    assert found.ranks[0].spearman == pytest.approx(1)
    assert compare(tmp_path / "run", runs / "a").matched == 26


def test_other_data_is_refused(runs: Path, tmp_path: Path) -> None:
    write_tar(tmp_path / "x-0.tar", [*with_noise(4), *pairs(10, 500)])
    score([tmp_path / "x-0.tar"], tmp_path / "run")
    with refused("second", tmp_path / "run", MismatchError) as caught:
        compare(runs / "a", tmp_path / "run")
    assert "4 of 43 and 14 rows match" in str(caught.value)
    with refused("run", tmp_path, TableError):
        compare(runs / "a", tmp_path)
    with refused("top", -1):
        compare(runs / "a", runs / "b", top=-1)


def test_many_rows_are_sampled_with_a_seed_and_it_says_so(runs: Path) -> None:
    found = compare(runs / "a", runs / "b", most=20, seed=1)
    assert found.matched == 43
    assert 8 < found.compared < 35
    assert found == compare(runs / "a", runs / "b", most=20, seed=1)
    assert found.cut == compare(runs / "a", runs / "b", most=20, seed=2).cut  # counted over all rows


def test_label_runs_compare_their_labels(tmp_path: Path) -> None:
    labelled = [
        part
        for i, (name, data) in enumerate(pairs(60))
        for part in [
            (name, data),
            *([(name.replace("txt", "cls"), str((i // 2 + (i % 14 == 3)) % 10).encode())] if i % 2 else []),
        ]
    ]
    write_tar(tmp_path / "shards" / "x.tar", labelled)
    for name, k in (("a", 5), ("b", 12)):
        score(tmp_path / "shards", tmp_path / name, options=DecodeOptions(tasks=("labels",)), k=k)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.by == "label_quality"
    assert found.refined_rows == 60
    tables = [pq.read_table(tmp_path / name / "x.parquet")["refined_label"].to_pylist() for name in "ab"]
    assert found.refined_same == sum(x == y for x, y in zip(*tables, strict=True))


def test_the_command(runs: Path) -> None:
    done = called("compare", "a", "b", "--top", "3", cwd=runs)
    assert done.returncode == 0, done.stderr
    assert "43 rows are the same samples; correlations over all of them" in done.stdout
    assert "Cohen's κ" in done.stdout
    assert sum(" is " in line and "/000" in line for line in done.stdout.splitlines()) == 3
    plain = called("compare", "a", "b", "--json", cwd=runs)
    found = json.loads(plain.stdout)
    assert found["matched"] == 43
    assert len(found["disagreements"]) == 10
    assert 0 <= found["cut"]["share"] <= 1
    alike = called("compare", "a", "a", cwd=runs)
    assert "They rank every sample alike." in alike.stdout
