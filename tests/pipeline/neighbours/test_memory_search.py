"""New rows searched in a run: against a plain loop over all rows, with copies, failed rows, and too little memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from noisegate.pipeline.neighbours import RowQuery, find_neighbours
from noisegate.pipeline.runs.rows import RowBlocks


def search_of(rows: NDArray[np.float32], parts: int = 3, memory: int = 1 << 30) -> RowQuery:
    return RowQuery(RowBlocks(np.array_split(rows, parts)), memory)


def plainly(
    rows: NDArray[np.float32], query: NDArray[np.float32], k: int, out: int = -1
) -> tuple[list[int], list[float]]:
    """All rows with a direction but `out`, sorted by cosine and then by number."""
    scored = []
    for i, row in enumerate(rows):
        length = float(np.sqrt((row.astype(np.float64) ** 2).sum()))
        if length > 1e-12 and i != out:
            unit = query.astype(np.float64) / np.linalg.norm(query.astype(np.float64))
            scored.append((round(float(row.astype(np.float64) / length @ unit), 6), i))
    scored.sort(key=lambda pair: (-pair[0], pair[1]))
    return [i for _, i in scored[:k]], [cosine for cosine, _ in scored[:k]]


@pytest.mark.parametrize("memory", [1 << 30, 0])
def test_against_a_plain_loop(memory: int) -> None:
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((70, 6)).astype(np.float32)
    rows[[3, 40]] = 0  # failed
    queries = rng.standard_normal((9, 6)).astype(np.float32)
    out = np.array([5, -1, 7, -1, -1, 0, 69, -1, -1])
    near, cosines = search_of(rows, memory=memory).nearest(queries, 12, out)
    for i, query in enumerate(queries):
        listed, expected = plainly(rows, query, 12, int(out[i]))
        assert near[i].tolist() == listed
        np.testing.assert_allclose(cosines[i], expected, atol=2e-6)


@pytest.mark.parametrize("memory", [1 << 30, 0])
def test_copies_come_in_the_order_of_their_rows_however_many(memory: int) -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((200, 5)).astype(np.float32)
    rows[20:180] = rows[20]
    near, cosines = search_of(rows, memory=memory).nearest(rows[20:21], 7, np.array([22]))
    assert near[0].tolist() == [20, 21, 23, 24, 25, 26, 27]
    assert len(set(cosines[0].tolist())) == 1


def test_more_neighbours_than_rows_and_queries_without_direction() -> None:
    rows = np.array([[1, 0], [0, 0], [1, 1]], np.float32)
    near, cosines = search_of(rows).nearest(np.array([[2, 0], [0, 0], [np.nan, 1]], np.float32), 4)
    assert near.tolist() == [[0, 2, -1, -1], [-1] * 4, [-1] * 4]
    assert np.isnan(cosines[0, 2:]).all()
    assert np.isnan(cosines[1:]).all()


@pytest.mark.parametrize("memory", [1 << 30, 0])
def test_rows_are_taken_at_unit_length(memory: int) -> None:
    search = search_of(np.array([[3, 4], [0, 0], [1, 0], [0, 2]], np.float32), memory=memory)
    expected = np.array([[0.6, 0.8], [0, 0], [1, 0], [0, 1]], np.float32)
    np.testing.assert_array_equal(search.take(np.array([0, 1, 3])), expected[[0, 1, 3]])
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in search.chunks(3)]), expected)


def test_nothing_to_search_or_to_ask() -> None:
    nothing = search_of(np.zeros((0, 3), np.float32), parts=1)
    assert nothing.nearest(np.ones((2, 3), np.float32), 3)[0].tolist() == [[-1] * 3] * 2
    assert search_of(np.ones((4, 3), np.float32)).nearest(np.zeros((0, 3), np.float32), 3)[0].shape == (0, 3)


@given(st.integers(0, 10_000), st.integers(1, 12))
def test_a_run_searched_by_its_own_rows_gives_its_graph(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((30, 4)).astype(np.float32)
    rows[rng.integers(0, 30, 6)] = rows[0]
    rows[rng.integers(1, 30)] = 0
    graph = find_neighbours(rows, k)
    near, _ = search_of(rows).nearest(rows, k, np.arange(30))
    assert near.tolist() == graph.indices.tolist()


@given(st.integers(0, 10_000))
def test_what_else_is_asked_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    search = search_of(rng.standard_normal((64, 8)).astype(np.float32))
    queries = rng.standard_normal((33, 8)).astype(np.float32)
    rows, cosines = search.nearest(queries, 5)
    alone = search.nearest(queries[7:8], 5)
    assert rows[7].tolist() == alone[0][0].tolist()
    assert cosines[7].tobytes() == alone[1][0].tobytes()
