"""Several nodes on one folder: each shard has one node, whoever is last scores, and the tables are those of a plain run."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisegate import Summary, read_table
from noisegate.pipeline.engines.nodes import Nodes, assign_shards
from noisegate.pipeline.errors import LockedError, MismatchError, TableError
from noisegate.pipeline.runs.lock import folder_lock
from noisegate.pipeline.settings import DecodeOptions, Limits
from tests.errors import refused
from tests.fakes import OtherModel, estimator, pairs, picture, write_tar
from tests.jobs import Notes, files_of, said, score, stamps

SIZES = st.lists(st.one_of(st.none(), st.integers(0, 1000)), max_size=40)


# --- which node has which shard -----------------------------------------------------------------------------------------
@given(SIZES, st.integers(1, 9))
def test_each_shard_has_one_node_and_no_node_has_much_more_than_another(sizes: list[int | None], count: int) -> None:
    ranks = assign_shards(sizes, count)
    assert len(ranks) == len(sizes)
    assert set(ranks) <= set(range(count))
    known = [size for size in sizes if size is not None]
    usual = sum(known) / len(known) if known else 1
    weights = [usual if size is None else size for size in sizes]
    loads = [sum(w for w, r in zip(weights, ranks, strict=True) if r == rank) for rank in range(count)]
    assert max(loads) - min(loads) <= max(weights, default=0) + 1e-6
    assert assign_shards(sizes, count) == ranks


def test_equal_shards_are_dealt_out_evenly() -> None:
    ranks = assign_shards([None] * 10, 4)
    assert sorted(map(ranks.count, range(4))) == [2, 2, 3, 3]


@pytest.mark.parametrize(
    ("nodes", "rank", "setting", "value"),
    [
        ("4", None, "node-rank", None),
        (None, 1, "nodes", None),
        ("four", 1, "nodes", "four"),
        ("0", 0, "nodes", 0),
        ("4", 4, "node-rank", 4),
        ("4", -1, "node-rank", -1),
        ("slurm", 1, "node-rank", 1),
        ("slurm", None, "nodes", "slurm"),
    ],
)
def test_options_that_cannot_work_are_named(nodes: str | None, rank: int | None, setting: str, value: Any) -> None:
    with refused(setting, value):
        Nodes.read(nodes, rank, {})


def test_a_step_of_slurm_knows_its_own_number_of_tasks() -> None:
    step = {"SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2"}
    assert Nodes.read("slurm", None, step) == Nodes(1, 2)
    assert Nodes.read(None, None, step) is None
    for odd in ("", "first", "1.5", "-1"):
        with refused("nodes", "slurm"):
            Nodes.read("slurm", None, step | {"SLURM_PROCID": odd})
    assert Nodes.read("3", 2, {}) == Nodes(2, 3)


# --- one run ------------------------------------------------------------------------------------------------------------
def node(rank: int, count: int, shards: Any, out: Path, **settings: Any) -> Summary:
    return score(shards, out, nodes=Nodes(rank, count), **settings)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Five shards of different sizes, one with a bad sample."""
    for i in range(5):
        members = [*pairs(3 + 2 * i, 10 * i), *([("bad.png", b"junk"), ("bad.txt", b"red")] if i == 3 else [])]
        write_tar(tmp_path / "shards" / f"x-{i}.tar", members)
    return tmp_path / "shards"


@pytest.fixture
def plain(many: Path, tmp_path: Path) -> dict[str, bytes]:
    score(many, tmp_path / "plain")
    return files_of(tmp_path / "plain")


def test_nodes_one_after_the_other(many: Path, tmp_path: Path) -> None:
    score(many, tmp_path / "plain", beta="auto")
    plain = files_of(tmp_path / "plain")
    out, progress = tmp_path / "out", Notes()
    first = node(0, 2, many, out, beta="auto", progress=progress)
    assert first.beta is None
    assert first.waits_for is not None
    assert "shards of other nodes, such as" in first.waits_for
    assert 0 < first.samples == first.encoded < 36
    assert progress.size == sum(
        path.stat().st_size for path in many.glob("*.tar") if (out / f"{path.stem}.parquet").exists()
    )
    with refused("run", out, TableError):
        read_table(out)
    last = node(1, 2, many, out, beta="auto")
    assert last.waits_for is None
    assert (last.samples, last.encoded) == (36, 36 - first.encoded)
    assert files_of(out) == plain
    before = stamps(out)
    again = [node(rank, 2, many, out, beta="auto") for rank in range(2)]
    assert [summary.encoded for summary in again] == [0, 0]
    assert stamps(out) == before
    assert files_of(out) == plain


class Meeting(Notes):
    """Waits at the start until the other nodes have started too, so that they surely work at the same time."""

    def __init__(self, barrier: threading.Barrier) -> None:
        super().__init__()
        self._barrier = barrier

    def start(self, todo: int, size: int, done: int) -> None:
        super().start(todo, size, done)
        self._barrier.wait(60)


def test_nodes_at_the_same_time(many: Path, plain: dict[str, bytes], tmp_path: Path) -> None:
    out, barrier = tmp_path / "out", threading.Barrier(3)
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(node, rank, 3, many, out, progress=Meeting(barrier)) for rank in range(3)]
        summaries = [run.result(60) for run in runs]
    assert sum(summary.encoded for summary in summaries) == 36
    assert [summary.samples for summary in summaries if summary.waits_for is None] == [36]
    assert files_of(out) == plain


@pytest.mark.parametrize("moment", [1, 3])
def test_a_node_that_is_stopped_goes_on(many: Path, plain: dict[str, bytes], tmp_path: Path, moment: int) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        node(1, 2, many, out, progress=Notes(stop_after=moment))
    assert node(0, 2, many, out).waits_for
    assert node(1, 2, many, out).waits_for is None
    assert files_of(out) == plain


def test_a_plain_run_takes_over(many: Path, plain: dict[str, bytes], tmp_path: Path) -> None:
    node(0, 4, many, tmp_path / "out")
    score(many, tmp_path / "out")
    assert files_of(tmp_path / "out") == plain


def test_another_number_of_nodes_goes_on(many: Path, plain: dict[str, bytes], tmp_path: Path) -> None:
    node(2, 4, many, tmp_path / "out")
    node(0, 2, many, tmp_path / "out")
    assert node(1, 2, many, tmp_path / "out").waits_for is None
    assert files_of(tmp_path / "out") == plain


def test_more_nodes_than_shards(many: Path, plain: dict[str, bytes], tmp_path: Path) -> None:
    summaries = [node(rank, 7, many, tmp_path / "out") for rank in range(7)]
    assert sum(summary.encoded for summary in summaries) == 36
    assert summaries[-1].waits_for is None
    assert files_of(tmp_path / "out") == plain


# --- what goes wrong ----------------------------------------------------------------------------------------------------
def test_shards_that_no_node_can_read_do_not_keep_the_others_from_their_scores(many: Path, tmp_path: Path) -> None:
    (many / "junk.tar").write_bytes(b"this is no tar\n" * 10_000)
    paths = [*sorted(many.glob("*.tar")), many / "gone.tar"]
    whole = score(paths, tmp_path / "plain")
    summaries = [node(rank, 3, paths, tmp_path / "out") for rank in range(3)]
    assert summaries[2].waits_for is None
    assert dict(summaries[2].failed_shards) == dict(whole.failed_shards)
    assert len(whole.failed_shards) == 2
    assert files_of(tmp_path / "out") == files_of(tmp_path / "plain")


@contextmanager
def at_work(rank: int, count: int, shards: Path, out: Path) -> Iterator[None]:
    """A node that has begun and does not go on before the block ends."""
    begun, go_on = threading.Event(), threading.Event()

    class Halted(Notes):
        def start(self, todo: int, size: int, done: int) -> None:
            begun.set()
            go_on.wait(60)

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(node, rank, count, shards, out, progress=Halted())
        assert begun.wait(60)
        try:
            yield
        finally:
            go_on.set()
            run.result(60)


def test_who_may_work_beside_a_node(many: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with at_work(0, 2, many, out):
        with refused("out", out, LockedError):
            score(many, out)
        with refused("out", out / "_nodes" / "0", LockedError):
            node(0, 2, many, out)
        with pytest.raises(LockedError, match=r"another plan \(5 shards for 2 nodes, here 5 shards for 3 nodes"):
            node(1, 3, many, out)
        with refused("out", str(out), LockedError):
            node(1, 2, many, out, overwrite=True)
        beside = node(1, 2, many, out)
        assert beside.waits_for == "other nodes, which are at work"
    score(many, tmp_path / "plain")
    assert files_of(out) == files_of(tmp_path / "plain")
    with folder_lock(out), refused("out", out, LockedError):
        node(1, 2, many, out)


def test_a_node_waits_for_one_that_scores(many: Path, tmp_path: Path) -> None:
    heard = threading.Event()

    class Listening(Notes):
        def note(self, text: str) -> None:
            super().note(text)
            heard.set()

    progress = Listening()
    with ThreadPoolExecutor(1) as pool:
        with folder_lock(tmp_path / "out", doing="scoring for all nodes"):
            run = pool.submit(node, 0, 1, many, tmp_path / "out", progress=progress)
            assert heard.wait(60)
        assert run.result(60).samples == 36
    assert "scoring for all nodes" in said(progress)


def test_other_settings_are_refused_as_in_a_plain_run(many: Path, tmp_path: Path) -> None:
    node(0, 2, many, tmp_path / "out")
    with refused("out", tmp_path / "out", MismatchError):
        node(1, 2, many, tmp_path / "out", estimator=estimator(kind=OtherModel))
    assert node(1, 2, many, tmp_path / "out").waits_for is None


# --- second looks -------------------------------------------------------------------------------------------------------
def test_overwrite_removes_once_whatever_the_number_of_nodes(many: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    score(many, out, estimator=estimator(kind=OtherModel))
    write_tar(tmp_path / "old" / "old.tar", pairs(2))
    score([tmp_path / "old" / "old.tar"], out, estimator=estimator(kind=OtherModel))
    summaries = [node(rank, 2, many, out, overwrite=True) for rank in range(2)]
    assert [summary.encoded for summary in summaries if summary.waits_for] + [summaries[1].encoded] != [36, 36]
    assert summaries[1].samples == sum(summary.encoded for summary in summaries) == 36
    score(many, tmp_path / "plain")
    assert files_of(out) == files_of(tmp_path / "plain")
    assert node(0, 2, many, out, overwrite=True).encoded > 0  # the run was over: it begins anew


def test_a_node_without_shards_that_comes_late_does_not_overwrite_what_the_others_made(
    many: Path, tmp_path: Path
) -> None:
    out, one = tmp_path / "out", [many / "x-0.tar"]
    first = node(0, 2, one, out, overwrite=True)
    assert (first.encoded, first.waits_for) == (3, "node 1")
    last = node(1, 2, one, out, overwrite=True)
    assert (last.encoded, last.samples, last.waits_for) == (0, 3, None)
    score(one, tmp_path / "plain")
    assert files_of(out) == files_of(tmp_path / "plain")


def test_failed_samples_are_read_again_by_their_node(many: Path, tmp_path: Path) -> None:
    for i in (1, 4):
        large = [(f"{n}.png", picture("red", (90, 90))) for n in "ab"] + [(f"{n}.txt", b"red") for n in "ab"]
        write_tar(many / f"large-{i}.tar", sorted(large))
    for name in ("plain", "out"):
        score(many, tmp_path / name, options=DecodeOptions(limits=Limits(max_pixels=1000)))
    assert score(many, tmp_path / "plain", retry_failed=True).encoded == 5
    summaries = [node(rank, 2, many, tmp_path / "out", retry_failed=True) for rank in range(2)]
    assert sum(summary.encoded for summary in summaries) == 5
    assert summaries[1].statuses == {"ok": 39, "bad_image": 1}
    assert files_of(tmp_path / "out") == files_of(tmp_path / "plain")


def test_embeddings_are_dropped_when_all_is_scored(many: Path, tmp_path: Path) -> None:
    score(many, tmp_path / "plain", keep_embeddings=False)
    node(0, 2, many, tmp_path / "out", keep_embeddings=False)
    assert list((tmp_path / "out" / "embeddings").glob("*.safetensors"))
    node(1, 2, many, tmp_path / "out", keep_embeddings=False)
    assert not list((tmp_path / "out" / "embeddings").iterdir())
    assert files_of(tmp_path / "out") == files_of(tmp_path / "plain")
