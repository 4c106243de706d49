"""Lists of neighbours against a sort by each pair's own cosine, where the search rounds and breaks ties as it likes."""

import tempfile
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisegate.pipeline.neighbours import NeighbourSearch, exact, find_neighbours, find_neighbours_on_disk
from noisegate.pipeline.neighbours.exact import (
    STREAMED,
    ExactIndex,
    exact_top,
    nearest_in_blocks,
    pair_cosines,
    read_blocks,
)
from noisegate.pipeline.runs.rows import top_by_value, unit_rows
from noisegate.pipeline.system.array_types import Float32, Index
from tests.pipeline.neighbours.test_graph import signs

from .embedding_files import cut_at, stored
from .gpu_faiss import GpuFaiss


def by_pairs(queries: Float32, rows: Float32, k: int) -> tuple[list[list[int]], list[list[float]]]:
    """One pair at a time, by (cosine, lower number)."""
    numbers, cosines = [], []
    for query in queries:
        cosine = [float(np.float32(sum(float(a) * float(b) for a, b in zip(query, row, strict=True)))) for row in rows]
        numbers.append(sorted(range(len(rows)), key=lambda j: (-min(cosine[j], 1.0), j))[:k])
        cosines.append([cosine[j] for j in numbers[-1]])
    return numbers, cosines


def whole_numbers(rng: np.random.Generator) -> Float32:
    """Rows in few dimensions: many cosines are equal, of which float32 makes different ones."""
    return rng.integers(-2, 3, (int(rng.integers(5, 25)), int(rng.integers(1, 5)))).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_list_for_k_is_the_beginning_of_every_longer_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, k = whole_numbers(rng), int(rng.integers(1, 12))
    unit, valid = unit_rows(rows)
    short, longer = find_neighbours(rows, k).indices, find_neighbours(rows, k + 3).indices
    with_self = find_neighbours(rows, k + 1, include_self=True).indices
    np.testing.assert_array_equal(short, longer[:, : short.shape[1]])
    np.testing.assert_array_equal(short[valid], with_self[valid, 1:])
    found = np.flatnonzero(valid)
    for row, listed in zip(found, by_pairs(unit[found], unit[found], len(found))[0], strict=True):
        expected = [found[j] for j in listed if found[j] != row][: short.shape[1]]
        assert short[row, : len(expected)].tolist() == expected


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_rows_on_disk_in_parts_of_any_size_have_the_lists_of_rows_in_memory(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, k = whole_numbers(rng), int(rng.integers(1, 12))
    search = NeighbourSearch(cut=cut_at(int(rng.integers(3, len(rows) + 4)), int(rng.integers(5, len(rows) + 6))))
    with tempfile.TemporaryDirectory() as name:
        files = stored(Path(name), rows)
        target = Path(name) / "neighbours.safetensors"
        found = find_neighbours_on_disk(files, k, target, made_from="rows", search=search)
        np.testing.assert_array_equal(found.indices, find_neighbours(rows, k).indices)


@pytest.mark.parametrize(("spread", "k"), [(1.0, 5), (3e-4, 5), (3e-4, 1), (3e-4, 300), (1e-6, 30)])
@pytest.mark.parametrize("block", [4096, 64])
def test_a_search_that_rounds_as_it_likes_gives_the_order_of_the_pairs(
    spread: float, k: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows closer to each other than float32 can tell, in any number, and a search that is off by up to 3e-7."""
    monkeypatch.setattr(exact, "BLOCK", block)
    rng = np.random.default_rng(1)
    rows = unit_rows(np.eye(12)[0] + spread * rng.standard_normal((300, 12)))[0]

    def search(queries: Float32, width: int) -> tuple[Index, Float32]:
        cosine = (queries @ rows.T + rng.uniform(-3e-7, 3e-7, (len(queries), len(rows)))).astype(np.float32)
        order = np.argsort(-cosine, axis=1)[:, :width]
        return order, np.take_along_axis(cosine, order, axis=1)

    number, cosine = exact_top(search, rows[:20], k, rows)
    expected, values = by_pairs(rows[:20], rows, k)
    assert number.tolist() == expected
    np.testing.assert_allclose(cosine, values, atol=4e-7)
    assert (np.diff(cosine, axis=1) <= 0).all()


def test_the_cosine_of_a_pair_does_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(0)
    left, right = (unit_rows(rng.standard_normal((500, 67)))[0] for _ in range(2))
    together = pair_cosines(left, right)
    assert together.tolist() == [float(pair_cosines(left[i : i + 1], right[i : i + 1])[0]) for i in range(500)]
    assert together.tolist() == pair_cosines(right, left).tolist()


@pytest.mark.parametrize("gpus", [[], [1], [0, 1]])
def test_ties_wider_than_the_list_take_the_lower_number(gpus: list[int]) -> None:
    rows = signs(np.random.default_rng(0), 3000, width=4) / np.float32(2)  # 16 kinds of rows: ties of about 190
    played = GpuFaiss()
    number, cosine = ExactIndex(played, rows, gpus).nearest(rows[:40], 7)
    every = rows[:40] @ rows.T
    assert number.tolist() == top_by_value(every, 7).tolist()
    assert cosine.tolist() == np.take_along_axis(every, number, axis=1).tolist()
    assert played.copied == ([] if not gpus else [("one", 1)] if len(gpus) == 1 else [("several", [0, 1])])


def test_a_tie_wider_than_a_gpu_lists_is_found_on_the_cpu() -> None:
    rows = np.tile(np.eye(2, dtype=np.float32), (2500, 1))
    number, _ = ExactIndex(GpuFaiss(), rows, [0]).nearest(rows[:3], 4)
    assert number.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7], [0, 2, 4, 6]]


def test_rows_that_come_in_blocks_give_the_lists_of_all_of_them() -> None:
    count = STREAMED + 3
    rows = signs(np.random.default_rng(0), count, width=4) / np.float32(2)
    number, cosine = nearest_in_blocks(faiss, read_blocks(lambda some: rows[some], count), rows[-2:], 6)
    every = rows[-2:] @ rows.T
    assert number.tolist() == top_by_value(every, 6).tolist()
    assert cosine.tolist() == np.take_along_axis(every, number, axis=1).tolist()
