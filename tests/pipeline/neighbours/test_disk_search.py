"""Searches that are cut, stopped and shared, against a loop, brute force and the search in memory."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisegate.pipeline.neighbours import (
    Neighbours,
    NeighbourSearch,
    Task,
    find_neighbours,
    find_neighbours_on_disk,
    run_in_turn,
)
from tests.errors import refused
from tests.pipeline.neighbours.test_graph import loop_neighbours, signs

from .embedding_files import clustered, cut_at, stored


def brute_force(rows: np.ndarray, k: int) -> np.ndarray:
    """(N, k) cosines of the nearest others, nearest first."""
    unit = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, -2)
    return -np.sort(-cosine, axis=1)[:, :k]


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_cut_gives_the_lists_of_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(1, 40)), int(rng.integers(1, 45))
    rows = signs(rng, n, width=int(rng.choice([4, 16])))  # copies and exact ties
    rows[rng.random(n) < 0.1] = 0
    failed = rng.random(n) < 0.15  # status not ok, whatever the row holds
    counted = np.where(failed[:, None], 0, rows)
    ends = np.sort(rng.integers(0, n + 1, 2))
    odd = cut_at(int(rng.integers(3, n + 4)), int(rng.integers(5, n + 6)))  # k is larger than most parts
    with tempfile.TemporaryDirectory() as name:
        files = stored(Path(name), rows, ends)
        files.ok = ~failed
        target = Path(name) / "neighbours.safetensors"
        search = NeighbourSearch(cut=odd, memory=int(rng.choice([20, 10**9])))  # 20 bytes: many buckets of digests
        found = find_neighbours_on_disk(files, k, target, made_from="rows", search=search)
        assert found.indices.tolist() == loop_neighbours(counted, k)
        source, place = np.nonzero(found.indices >= 0)
        cosine = (counted[source] * counted[found.indices[source, place]]).mean(axis=1)
        np.testing.assert_array_equal(found.similarities[source, place], cosine)
        assert np.isnan(found.similarities[found.indices < 0]).all()
        find_neighbours(counted, k).save(Path(name) / "in memory", {"made_from": "rows"})
        assert target.read_bytes() == (Path(name) / "in memory").read_bytes()
        assert sorted(path.name for path in Path(name).glob("*neighbours*")) == ["neighbours.safetensors"]


def test_parts_that_fit_the_memory_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = clustered(5000, 64)
    rows[10], rows[4000] = rows[3000], 0
    files = stored(tmp_path, rows, [1200, 1201, 4000])
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    find_neighbours(rows, 9).save(tmp_path / "in memory", {"made_from": "rows"})
    faiss.omp_set_num_threads(before)
    said: list[str] = []
    for threads, memory in (("1", None), ("1", 24_000_000), ("3", 72_000_000)):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        target = tmp_path / "neighbours.safetensors"
        search = NeighbourSearch(memory=memory)
        find_neighbours_on_disk(files, 9, target, made_from="rows", search=search, note=said.append)
        assert target.read_bytes() == (tmp_path / "in memory").read_bytes()
    assert ["parts of" in line for line in said] == [True], "one part needs no word"


class Stop(Exception):
    pass


def stopping(after: int, done: list[Task]) -> NeighbourSearch:
    """Carries out so many tasks, then fails."""

    def run(tasks: Iterable[Task]) -> Iterator[Task]:
        for task in run_in_turn(tasks):
            done.append(task)
            if len(done) > after:
                raise Stop
            yield task

    return NeighbourSearch(run=run, cut=cut_at(300, 250))


@pytest.mark.parametrize("index", ["flat", "ivf"])
def test_a_stopped_search_goes_on_and_ends_with_the_same_bytes(tmp_path: Path, index: str) -> None:
    files = stored(tmp_path, clustered(1000, 8), [400])
    target = tmp_path / "neighbours.safetensors"

    def search(after: int) -> list[Task]:
        done: list[Task] = []
        settings = stopping(after, done)
        settings = NeighbourSearch(index=index, run=settings.run, cut=settings.cut)  # type: ignore[arg-type]
        find_neighbours_on_disk(files, 5, target, made_from="rows", search=settings)
        return done

    whole = search(10**6)
    undisturbed = target.read_bytes()
    target.unlink()
    assert len(whole) == 4 * 4 + (0 if index == "flat" else 3 * 4)  # 4 parts: spans; build, truth, one try of probes
    stops = 0
    while True:  # each start does two tasks more; the second is lost half-way, before anybody heard of it
        try:
            search(1)
        except Stop:
            stops += 1
            assert not target.exists()
        else:
            break
    assert stops >= len(whole) // 2 - 1
    assert target.read_bytes() == undisturbed
    assert not (tmp_path / "_neighbours_search").exists()


def test_a_search_stopped_between_merging_and_noting_it_goes_on(tmp_path: Path) -> None:
    files = stored(tmp_path, clustered(600, 8))
    target = tmp_path / "neighbours.safetensors"
    seen: list[tuple[int, int]] = []

    def fail(done: int, total: int) -> None:
        seen.append((done, total))
        raise Stop

    search = NeighbourSearch(cut=cut_at(300, 200))
    for _ in range(3):
        with pytest.raises(Stop):
            find_neighbours_on_disk(files, 5, target, made_from="rows", search=search, progress=fail)
    done: list[tuple[int, int]] = []
    progress = lambda *counts: done.append(counts)  # noqa: E731
    found = find_neighbours_on_disk(files, 5, target, made_from="rows", search=search, progress=progress)
    assert seen == [(200, 600)] * 3
    assert done == [(200, 600), (400, 600), (600, 600)]
    assert found.indices.tolist() == find_neighbours(clustered(600, 8), 5).indices.tolist()


KILLED = """
import os, signal, sys
from pathlib import Path
from noisegate.pipeline.neighbours import NeighbourSearch, find_neighbours_on_disk
from noisegate.pipeline.neighbours.task import run_task
from tests.pipeline.neighbours.embedding_files import clustered, cut_at, stored

def run(tasks):
    for number, task in enumerate(tasks):
        if number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        yield run_task(task)

folder = Path(sys.argv[1])
files = stored(folder, clustered(1000, 8), [400])
search = NeighbourSearch(run=run, cut=cut_at(300, 250))
find_neighbours_on_disk(files, 5, folder / "neighbours.safetensors", made_from="rows", search=search)
"""


def test_a_killed_search_goes_on(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    ended = subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=root, timeout=300)
    assert ended.returncode == -9
    target = tmp_path / "neighbours.safetensors"
    assert not target.exists()
    files = stored(tmp_path, clustered(1000, 8), [400])
    done: list[Task] = []
    half = tmp_path / "_neighbours_search" / ".exact-000000000250-00001.safetensors.0123"
    half.write_bytes(b"of a task that was killed")
    there: list[bool] = []
    find_neighbours_on_disk(
        files,
        5,
        target,
        made_from="rows",
        search=stopping(10**6, done),
        note=lambda text: there.append(half.exists()),
    )
    assert there == [False]  # it would take disk until the search ends
    assert len(done) == 16 - 5
    find_neighbours_on_disk(files, 5, tmp_path / "again", made_from="rows", search=NeighbourSearch())
    assert target.read_bytes() == (tmp_path / "again").read_bytes()


def test_a_stopped_search_that_is_cut_elsewhere_in_the_same_process(tmp_path: Path) -> None:
    files = stored(tmp_path, clustered(1000, 8))
    target = tmp_path / "neighbours.safetensors"
    with pytest.raises(Stop):
        find_neighbours_on_disk(files, 5, target, made_from="rows", search=stopping(0, []))
    shutil.rmtree(tmp_path / "_neighbours_search")
    search = NeighbourSearch(cut=cut_at(700, 250))  # its first part is another than the one that was searched last
    found = find_neighbours_on_disk(files, 5, target, made_from="rows", search=search)
    assert found.indices.tolist() == find_neighbours(clustered(1000, 8), 5).indices.tolist()


def test_work_of_other_rows_or_another_k_is_not_used(tmp_path: Path) -> None:
    files = stored(tmp_path, clustered(1000, 8))
    target = tmp_path / "neighbours.safetensors"
    for name, k in (("rows", 5), ("other rows", 5), ("other rows", 4)):
        done: list[Task] = []
        with pytest.raises(Stop):
            find_neighbours_on_disk(files, k, target, made_from=name, search=stopping(3, done))
        assert len(done) == 4
        assert done[0].start == 0


def test_an_inverted_file_reports_the_recall_it_has_however_it_is_cut(tmp_path: Path) -> None:
    rows = clustered(4000, 8, spread=0.9)
    rows[10] = rows[3000]
    files = stored(tmp_path, rows, [1500])
    target = tmp_path / "neighbours.safetensors"
    graphs = []
    for part in (4096, 1024):
        search = NeighbourSearch(index="ivf", cut=cut_at(part, 4096))
        graph = find_neighbours_on_disk(files, 10, target, made_from="rows", search=search)
        graphs.append((np.array(graph.indices), np.array(graph.similarities), graph.recall, graph.kind))
    for one, other in zip(*graphs, strict=True):
        np.testing.assert_array_equal(one, other)
    indices, similarities, recall, kind = graphs[0]
    assert kind == "ivf"
    assert recall >= 0.95
    true = np.mean(similarities >= brute_force(rows, 10)[:, -1:] - 1e-6, axis=1)
    distinct = np.random.default_rng(1).choice(3999, 1000, replace=False)
    assert (
        abs(true[distinct + (distinct >= 3000)].mean() - recall) < 5e-4
    )  # of 10 others; the row itself does not count
    assert true.mean() < 0.99
    assert (indices != np.arange(4000)[:, None]).all()
    assert indices[10, 0] == 3000


def test_a_compressed_search_lists_exact_cosines_and_its_recall(tmp_path: Path) -> None:
    rows = clustered(11_000, 16, spread=0.9)
    files = stored(tmp_path, rows, [1500])
    search = NeighbourSearch(index="ivf-pq", cut=cut_at(6144, 8192))
    graph = find_neighbours_on_disk(files, 5, tmp_path / "graph", made_from="rows", search=search)
    assert graph.kind == "ivf-pq"
    assert graph.recall is not None
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    some = np.arange(0, 11_000, 10)
    cosine = np.einsum("nd,nkd->nk", unit[some], unit[graph.indices[some]])
    np.testing.assert_allclose(graph.similarities[some], cosine, atol=2e-6)
    every = unit[some] @ unit.T
    every[np.arange(len(some)), some] = -2
    true = np.mean(graph.similarities[some] >= -np.sort(-every, axis=1)[:, 4:5] - 1e-6)
    assert abs(true - graph.recall) < 0.02
    assert 0.8 < true < 1
    assert Neighbours.load(tmp_path / "graph").recall == graph.recall


def test_settings_that_cannot_work_are_named(tmp_path: Path) -> None:
    files = stored(tmp_path, clustered(100, 8))
    with refused("neighbour-index", "hnsw"):
        NeighbourSearch(index="hnsw")  # type: ignore[arg-type]
    with refused("k", 0):
        find_neighbours_on_disk(files, 0, tmp_path / "graph", made_from="rows")
    with refused("device", "tpu"):
        find_neighbours_on_disk(files, 1, tmp_path / "graph", made_from="rows", device="tpu")
    with refused("neighbour-memory", 1_000_000):
        search = NeighbourSearch(memory=1_000_000)
        find_neighbours_on_disk(files, 1, tmp_path / "graph", made_from="rows", search=search)
