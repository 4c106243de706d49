"""The neighbour graph against loops and scikit-learn: ties, copies, invalid rows, blocks, inverted files."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.neighbors import NearestNeighbors

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.neighbours import Neighbours, default_k, find_neighbours, near_duplicates
from noisegate.pipeline.neighbours.graph import LINKED
from noisegate.pipeline.runs.rows import RowBlocks, top_by_value, unit_rows
from tests.errors import refused

small = settings(max_examples=80, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def signs(rng: np.random.Generator, rows: int, width: int = 16) -> NDArray[np.float32]:
    """Rows of ±1: with 4 or 16 columns every cosine is exact in float32, so ties are exact and many."""
    return rng.choice(np.array([-1, 1], dtype=np.float32), (rows, width))


def loop_neighbours(rows: NDArray[np.floating], k: int, include_self: bool = False) -> list[list[int]]:
    """Sort everybody by (cosine, index), in plain Python."""
    norm = [float(np.linalg.norm(row.astype(np.float64))) for row in rows]
    valid = [np.isfinite(size) and size >= 1e-12 for size in norm]
    lists = []
    for i in range(len(rows)):
        others = [j for j in range(len(rows)) if j != i and valid[i] and valid[j]]
        others.sort(key=lambda j: (-float(rows[i].astype(np.float64) @ rows[j]) / (norm[i] * norm[j]), j))
        own = [i] if include_self and valid[i] else []
        width = min(k, len(rows) - (not include_self))
        lists.append([*own, *others, *[-1] * len(rows)][:width])
    return lists


@small
@given(seeds, st.booleans())
def test_lists_equal_a_loop_with_copies_ties_and_rows_without_direction(seed: int, include_self: bool) -> None:
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(1, 40)), int(rng.integers(1, 45))  # k >= n happens
    rows = signs(rng, n, width=int(rng.choice([4, 16])))
    rows[rng.random(n) < 0.1] = 0
    rows[rng.random(n) < 0.1, 0] = np.nan
    rows[rng.random(n) < 0.05, 1] = np.inf
    found = find_neighbours(rows, k, include_self=include_self)
    assert found.indices.tolist() == loop_neighbours(rows, k, include_self)
    assert (found.kind, found.recall) == ("flat", None)
    missing = found.indices < 0
    assert np.isnan(found.similarities[missing]).all()
    source, place = np.nonzero(~missing)
    cosine = (rows[source] * rows[found.indices[source, place]]).mean(axis=1)
    np.testing.assert_array_equal(found.similarities[~missing], cosine)


def test_ties_at_the_cut_take_the_lower_index_when_hundreds_tie() -> None:
    rng = np.random.default_rng(1)
    rows = signs(rng, 250, width=4)  # 16 kinds of row: every list is cut inside a tie of copies
    assert find_neighbours(rows, 10).indices.tolist() == loop_neighbours(rows, 10)
    distinct = np.unique(signs(rng, 250), axis=0)  # no copies: ties of different rows at the cut
    assert find_neighbours(distinct, 10).indices.tolist() == loop_neighbours(distinct, 10)


def test_many_copies_never_list_the_row_itself() -> None:
    rows = np.tile(np.random.default_rng(0).standard_normal(33).astype(np.float32), (50, 1))
    found = find_neighbours(rows, 5)
    assert found.indices[:6].tolist() == [[j for j in range(6) if j != i][:5] for i in range(6)]
    assert (found.indices[6:] == np.arange(5)).all()
    np.testing.assert_allclose(found.similarities, 1, atol=1e-6)
    assert find_neighbours(rows, 5, include_self=True).indices[49].tolist() == [49, 0, 1, 2, 3]


@small
@given(seeds)
def test_lists_agree_with_sklearn_where_there_are_no_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((30, 5))
    oracle = NearestNeighbors(n_neighbors=7, metric="cosine", algorithm="brute").fit(rows)
    distance, index = oracle.kneighbors()  # without arguments it leaves the row itself out
    found = find_neighbours(rows, 7)
    np.testing.assert_allclose(found.similarities, 1 - distance, atol=1e-5)
    assert np.mean(found.indices == index) > 0.98  # float32 may swap two that differ by 1e-7


def test_blocks_and_half_precision_give_the_graph_of_the_whole() -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((120, 24)).astype(np.float16)
    rows[7] = rows[100]
    rows[5] = np.nan
    whole = find_neighbours(rows.astype(np.float32), 9)
    blocked = find_neighbours([rows[:1], rows[1:1], rows[1:90], rows[90:]], 9)
    np.testing.assert_array_equal(whole.indices, blocked.indices)
    np.testing.assert_allclose(whole.similarities, blocked.similarities, atol=1e-6)
    assert whole.indices.dtype == np.int32


def test_one_row_and_no_valid_row_have_no_neighbours() -> None:
    assert find_neighbours(np.ones((1, 3)), 4).indices.shape == (1, 0)
    assert find_neighbours(np.ones((1, 3)), 4, include_self=True).indices.tolist() == [[0]]
    assert find_neighbours(np.zeros((3, 2)), 4).indices.tolist() == [[-1, -1]] * 3
    assert find_neighbours(np.zeros((0, 2)), 4).indices.shape == (0, 0)


def test_inverted_file_reports_the_recall_it_has() -> None:
    rng = np.random.default_rng(3)
    centres = rng.standard_normal((40, 8))
    rows = (centres[rng.integers(0, 40, 4000)] + 0.4 * rng.standard_normal((4000, 8))).astype(np.float32)
    rows[10] = rows[3000]
    rows[11] = 0
    exact = find_neighbours(rows, 10)
    approximate = find_neighbours(rows, 10, exact_limit=1000)
    assert approximate.kind == "ivf"
    assert approximate.recall is not None
    assert approximate.recall >= 0.95
    found = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(exact.indices, approximate.indices, strict=True)])
    assert abs(found - approximate.recall) < 0.03
    assert (approximate.indices != np.arange(4000)[:, None]).all()
    assert approximate.indices[10, 0] == 3000
    assert (approximate.indices[11] == -1).all()
    again = find_neighbours(rows, 10, exact_limit=1000)
    np.testing.assert_array_equal(again.indices, approximate.indices)


def test_inverted_file_of_few_or_no_valid_rows() -> None:
    rows = np.vstack([np.eye(3), np.zeros((60, 3))]).astype(np.float32)
    assert find_neighbours(rows, 2, exact_limit=10).indices[:4].tolist() == [[1, 2], [0, 2], [0, 1], [-1, -1]]
    assert (find_neighbours(np.zeros((60, 3)), 2, exact_limit=10).indices == -1).all()


def test_progress_counts_every_row_once() -> None:
    seen: list[tuple[int, int]] = []
    rows = np.random.default_rng(0).standard_normal((9000, 3))
    rows[:40] = 0
    find_neighbours(rows, 2, progress=lambda done, total: seen.append((done, total)))
    assert [total for _, total in seen] == [9000] * len(seen)
    assert [done for done, _ in seen] == [40 + 4096, 40 + 8192, 9000]


@pytest.mark.parametrize(
    ("n", "classes", "k"),
    [(50_000, 100, 200), (50_000, 10, 200), (2_000, 100, 10), (200, 100, 5), (4, 2, 3), (1, 1, 0)],
)
def test_default_k(n: int, classes: int, k: int) -> None:
    assert default_k(n, classes) == k


def test_settings_that_cannot_work_are_named() -> None:
    rows = np.eye(3)
    with refused("k", 0):
        find_neighbours(rows, 0)
    with refused("device", "tpu"):
        find_neighbours(rows, 1, device="tpu")
    with refused("device", "cuda:99"):
        find_neighbours(rows, 1, device="cuda:99")
    with refused("embeddings"):
        find_neighbours([np.eye(3), np.eye(2)], 1)
    with refused("classes", 0):
        default_k(10, 0)


def test_auto_takes_what_there_is() -> None:
    assert find_neighbours(np.eye(3), 1, device="auto").indices.tolist() == [[1], [0], [0]]


# Near duplicates


@small
@given(seeds)
def test_near_duplicates_equal_a_flood_fill(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    rows = rng.standard_normal((n, 3))
    rows = rows[rng.integers(0, n, n)] + 0.05 * rng.standard_normal((n, 3))
    found = find_neighbours(rows, 4)
    linked = [set[int]() for _ in range(n)]
    for i in range(n):
        for j, cosine in zip(found.indices[i], found.similarities[i], strict=True):
            if j >= 0 and cosine >= 0.99:
                linked[i].add(int(j))
                linked[j].add(i)
    expected = []
    for i in range(n):
        reached, todo = {i}, [i]
        while todo:
            fresh = linked[todo.pop()] - reached
            reached |= fresh
            todo += fresh
        expected.append(-1 if min(reached) == i else min(reached))
    assert near_duplicates(found, 0.99).tolist() == expected


@pytest.mark.parametrize("links", [1, 10_000_000])
def test_links_are_joined_a_few_at_a_time(links: int) -> None:
    row = np.arange(3 * LINKED + 5)
    ahead = np.where(row % 7 == 0, -1, row - 1)[:, None]  # chains of seven, some across the blocks that are looked at
    far = np.where(row == LINKED + 1, 2 * LINKED, -1)[:, None]
    graph = Neighbours(np.hstack([ahead, far]), np.ones((len(row), 2), np.float32), None, "flat")
    first = row // 7 * 7
    first[first == 2 * LINKED // 7 * 7] = (LINKED + 1) // 7 * 7
    assert np.array_equal(near_duplicates(graph, links=links), np.where(first == row, -1, first))


def test_more_copies_than_k_are_one_group() -> None:
    rows = np.repeat(np.eye(2), [30, 3], axis=0)
    assert near_duplicates(find_neighbours(rows, 2)).tolist() == [-1, *[0] * 29, -1, 30, 30]


# The file


def test_a_saved_graph_comes_back_whole(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((20, 4))
    graph = find_neighbours(rows, 3)
    graph.save(tmp_path / "graph.safetensors", {"model": "a"})
    back = Neighbours.load(tmp_path / "graph.safetensors")
    np.testing.assert_array_equal(back.indices, graph.indices)
    np.testing.assert_array_equal(back.similarities, graph.similarities)
    assert (back.kind, back.recall, str(back.indices.dtype)) == ("flat", None, "int32")
    assert [file.name for file in tmp_path.iterdir()] == ["graph.safetensors"]
    Neighbours(graph.indices, graph.similarities, 0.9625, "ivf").save(tmp_path / "other")
    assert Neighbours.load(tmp_path / "other").recall == 0.9625


def test_a_file_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    save_file({"indices": np.zeros(2)}, tmp_path / "other.safetensors")
    (tmp_path / "damaged").write_bytes(b"\x00" * 20)
    for name in ("other.safetensors", "damaged", "none"):
        with refused("graph", tmp_path / name, TableError):
            Neighbours.load(tmp_path / name)


# Rows


@small
@given(seeds)
def test_top_by_value_equals_a_stable_sort(seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = int(rng.integers(1, 12))
    values = rng.integers(0, 4, (5, columns)).astype(np.float32)
    k = int(rng.integers(0, columns + 1))
    assert top_by_value(values, k).tolist() == np.argsort(-values, axis=1, kind="stable")[:, :k].tolist()


def test_unit_rows_and_taken_rows() -> None:
    rows = np.array([[2.0, 0.0], [-0.0, -3.0], [1e-13, 0], [np.inf, 1], [0, 1e25]])  # the last: its square overflows
    unit, valid = unit_rows(rows)
    assert unit.tolist() == [[1, 0], [0, -1], [0, 0], [0, 0], [0, 1]]
    assert valid.tolist() == [True, True, False, False, True]
    blocks = RowBlocks([rows[:1], rows[1:]])
    assert blocks.take(np.array([0, 2])).tolist() == rows[[0, 2]].astype(np.float32).tolist()
    assert blocks.take(np.array([], dtype=np.int64)).shape == (0, 2)


def test_the_same_graph_is_the_same_file(tmp_path: Path) -> None:
    graph = find_neighbours(np.random.default_rng(0).normal(size=(20, 4)), 3)
    names = {"made_from": "abc", "z": "ä", "another": "1", "more": "2"}
    for name in "abcde":
        graph.save(tmp_path / name, dict(names))
    assert len({(tmp_path / name).read_bytes() for name in "abcde"}) == 1
    with safe_open(tmp_path / "a", framework="numpy") as file:
        assert {key: file.metadata()[key] for key in names} == names
    np.testing.assert_array_equal(Neighbours.load(tmp_path / "a").indices, graph.indices)
