"""Predictions against numbers worked out by hand; time comes from a clock that only the fakes move."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from noisegate.pipeline.errors import ConfigError, NoisegateError, ShardError
from noisegate.pipeline.estimators.base import Identity
from noisegate.pipeline.pairs.pair_quality import ROWS
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.workers import Decoded
from noisegate.pipeline.tools.plan import plan
from noisegate.pipeline.tools.plan.devices import DEVICES, PAPER_GFLOPS, Machine, paper_rate, this_machine
from noisegate.pipeline.tools.plan.measure import (
    BatchTimes,
    Measurements,
    ReadShard,
    _time_quality,
    gflops_per_sample,
    measure,
    pick_evenly,
)
from noisegate.pipeline.tools.plan.predict import Estimate, forecast_run, ratio
from tests.commands import FAKE, called
from tests.errors import refused
from tests.fakes import pairs, tar_bytes, write_tar

MACHINE = Machine("cuda", workers=2, processors=8, threads=1, price=3600.0, price_given=True)
BATCH = BatchTimes(samples=100, read_samples=99, read=0.099, decode=0.4, encode=0.2)


def measurements(**other: Any) -> Measurements:
    """Per sample: 1 ms to read and 1 to open, 4 to decode, 2 to encode, 1.1 to write, 0.5 to score; 10 kB in the shard."""
    looked = [ReadShard(Shard(f"{i}.tar"), samples=100, bytes=1_000_000, opening=0.2) for i in range(2)]
    found = Measurements([2_000_000] * 4, looked, [BATCH, BATCH], 0, None, [], 1.5, width=8, rows=200)
    found.write, found.write_start = [0.22] * 3, 0.02
    found.score, found.score_start = [0.1] * 3, 0.0
    found.table_bytes, found.table_start = 30_000, 10_000
    return replace(found, **other)


# --- arithmetic ------------------------------------------------------------------------------------------------------


def test_every_row_is_compared_with_a_pool_of_at_most_32768() -> None:
    few, many = (forecast_run(measurements(quality=0.002), "m", shards, MACHINE) for shards in (41, 1000))
    seconds = [forecast.stages[-1].seconds.value for forecast in (few, many)]
    assert seconds == pytest.approx([0.0005 + 0.002 * 41 * 200 / 32_768, 0.0025])
    assert many.devices == forecast_run(measurements(), "m", 1000, MACHINE).devices


def test_all_shards_by_hand() -> None:
    forecast = forecast_run(measurements(), "m", 100, MACHINE, neighbours=10)
    assert forecast.bytes.value == 200e6
    assert forecast.samples.value == pytest.approx(20_000)
    stages = {stage.name: 1000 * stage.seconds.value for stage in forecast.stages}
    assert stages == pytest.approx({"read": 2.0, "decode": 4.0, "encode": 2.0, "write": 1.1, "score": 0.5})
    assert (
        forecast.limit == "encode"
    )  # 2 + 1.1 against 2 for reading, 4 / 2 for decoding and 9.1 / 8 for all processors
    assert forecast.seconds.value == pytest.approx(20_000 * (3.1 + 0.5) / 1000)
    assert forecast.money.value == pytest.approx(72)
    assert forecast.workers_needed == 2
    assert vars(forecast.disk) == pytest.approx(
        {"tables": 20_000 * 100 + 100 * 10_000, "embeddings": 20_000 * 32, "neighbours": 20_000 * 80}
    )
    paper = next(one for one in forecast.devices if one.measured_by_paper)
    assert paper.hours == pytest.approx((20_000 * 153 / 566_435 + 20_000 * 0.0005) / 3600)
    assert paper.workers_needed == math.ceil(566_435 / 153 * 0.004)
    assert paper.processes_needed == math.ceil(566_435 / 153 * (0.002 + 0.0011))  # each reads and writes by itself


def test_a_device_faster_than_one_process_reads_and_tokenises_needs_several() -> None:
    batches = [replace(BATCH, read=0.0, encode=1.0, tokens=tokens) for tokens in (0.05, 0.15)]  # 1 ms a sample
    forecast = forecast_run(measurements(batches=batches, write=[0.0] * 3, write_start=0.0), "m", 100, MACHINE)
    own = 0.001 + 0.001  # and one to open the shard
    assert [one.processes_needed for one in forecast.devices] == [math.ceil(paper_rate(one) * own) for one in DEVICES]
    assert any("about 500 samples/s; --devices cuda:0,cuda:0" in text for text in forecast.assumptions)


@pytest.mark.parametrize(
    ("machine", "change", "limit", "milliseconds", "advice"),
    [
        ({"workers": 1}, {}, "decode", 4.0, "--workers 2"),
        ({"workers": 8, "processors": 2}, {}, "processors", 9.1 / 2, "--draft"),
        ({"device": "cpu", "workers": 8, "threads": 8}, {}, "encode", 3.1, "--device cuda"),
        ({"device": "cpu", "processors": 4, "threads": 4}, {}, "processors", 15.1 / 4, "--device cuda"),
        ({"device": "cpu", "workers": 8, "processors": 2}, {}, "processors", 9.1 / 2, "--draft"),
        ({"workers": 0}, {}, "decode", 9.1, "--workers 2"),
        ({}, {"batches": [replace(BATCH, read=0.99)] * 2}, "read", 11.0, "the store is the limit"),
        ({}, {}, "encode", 3.1, "more devices"),
    ],
)
def test_the_slowest_stage_sets_the_pace_and_the_advice(
    machine: dict[str, Any], change: dict[str, Any], limit: str, milliseconds: float, advice: str
) -> None:
    forecast = forecast_run(measurements(**change), "m", 100, replace(MACHINE, **machine))
    assert forecast.limit == limit
    assert 1000 * forecast.seconds.value / 20_000 == pytest.approx(milliseconds + 0.5)
    assert advice in " ".join(forecast.advice)


def test_more_work_per_picture_needs_more_workers() -> None:
    slow = measurements(batches=[replace(BATCH, decode=4.0)] * 2)
    assert forecast_run(slow, "m", 100, MACHINE).workers_needed == math.ceil(40 / 3.1)


def test_what_was_read_to_its_end_is_counted_and_not_guessed() -> None:
    looked = [ReadShard(Shard(f"{i}.tar"), 100 + i, 1_000_000, whole=True) for i in range(2)]
    forecast = forecast_run(measurements(shards_read=looked, sizes=[1_000_000] * 2), "m", 2, MACHINE)
    assert forecast.samples == Estimate(201.0, 0.0)
    assert not any("other shards" in text for text in forecast.assumptions)


def test_unlike_shards_make_the_interval_wide() -> None:
    alike = forecast_run(measurements(), "m", 100, MACHINE).samples
    looked = [ReadShard(Shard("a"), 150, 1_000_000), ReadShard(Shard("b"), 50, 1_000_000)]
    unlike = forecast_run(measurements(shards_read=looked), "m", 100, MACHINE)
    assert alike.half == pytest.approx(0)
    assert unlike.samples.half > unlike.samples.value  # two shards, three times apart: anything is possible
    assert unlike.seconds.to_dict()["low"] == 0
    alone = forecast_run(measurements(shards_read=looked[:1]), "m", 100, MACHINE)
    assert alone.samples.to_dict() == {"value": pytest.approx(30_000), "low": None, "high": None}


def test_embeddings_and_graph_only_where_they_are_kept() -> None:
    forecast = forecast_run(measurements(), "m", 100, MACHINE, keep_embeddings=False)
    assert (forecast.disk.embeddings, forecast.disk.neighbours) == (0, 0)
    assert forecast.disk.total == forecast.disk.tables == 3_000_000


def test_a_model_that_fills_no_gpu_says_nothing_about_known_devices() -> None:
    forecast = forecast_run(measurements(gflops=0.016), "m", 100, MACHINE)
    assert forecast.devices == ()
    assert any("0.016 GFLOP per sample, too little" in text for text in forecast.assumptions)
    assert not any("makers' dense" in text for text in forecast.assumptions)


def test_prices_and_operations_of_the_known_devices() -> None:
    plain = forecast_run(measurements(), "m", 100, MACHINE)
    dear = forecast_run(measurements(gflops=2 * PAPER_GFLOPS), "m", 100, MACHINE, prices={"A100": 9.0})
    for before, after in zip(plain.devices, dear.devices, strict=True):
        assert after.samples_per_second == pytest.approx(before.samples_per_second / 2)
    a100 = next(one for one in dear.devices if one.name == "A100")
    assert a100.money == pytest.approx(9.0 * a100.hours)
    assert [one.name for one in DEVICES] == [one.name for one in plain.devices]
    assert 1e9 / paper_rate(next(one for one in DEVICES if one.name == "RTX 3090")) / 3600 == pytest.approx(75, abs=0.1)
    assert any(
        "assumed; give yours" in text
        for text in forecast_run(measurements(), "m", 9, this_machine("cpu", 1, None)).assumptions
    )


def test_the_interval_is_students() -> None:
    found = ratio([1, 2, 3], [1, 1, 1])
    assert found.value == 2
    assert found.half == pytest.approx(4.302653 / math.sqrt(3))


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=9))
def test_pieces_of_one_size_give_the_plain_interval_of_a_mean(values: list[float]) -> None:
    found = ratio(values, [4.0] * len(values))
    expected = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    assert found.value * 4 == pytest.approx(np.mean(values))
    assert found.half * 4 == pytest.approx(expected, abs=1e-9)


def test_errors_of_a_product_add_as_squares() -> None:
    found = Estimate(10.0, 3.0).times(Estimate(2.0, 0.8))
    assert (found.value, found.half) == (20.0, pytest.approx(20 * 0.5))
    assert Estimate(1.0, 3.0).plus(Estimate(2.0, 4.0)) == Estimate(3.0, 5.0)


# --- measuring -------------------------------------------------------------------------------------------------------


class Clock:
    """Stands still unless somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Worker:
    """An estimator whose work moves the clock: 2 ms to fit a picture, 5 to encode it, 1 for a text."""

    batch_size = 4
    identity = Identity("worker", "w", "p", "d", "float32", ())

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def preprocess(self, image: Any) -> Any:
        self.clock.now += 0.002
        return np.asarray(image)

    def encode_pixels(self, pixels: Any) -> Any:
        self.clock.now += 0.005 * len(pixels)
        return np.ones((len(pixels), 3), np.float32)

    def encode_texts(self, texts: Any) -> Any:
        self.clock.now += 0.001 * len(texts)
        return np.eye(3, dtype=np.float32)[[0] * len(texts)]


class Stored(Shard):
    """A shard in memory, of a store that is asked and read at a price: a second to read, nothing to be asked."""

    opened: ClassVar[list[str]] = []
    asked: ClassVar[list[str]] = []

    def __init__(self, url: str, data: bytes, clock: Clock) -> None:
        super().__init__(url)
        object.__setattr__(self, "held", (data, clock))

    def open(self) -> Any:
        self.opened.append(self.url)
        data, clock = self.held  # type: ignore[attr-defined]
        clock.now += 1.0
        return io.BytesIO(data)

    def size_and_time(self) -> tuple[int | None, float | None]:
        self.asked.append(self.url)
        return len(self.held[0]), None  # type: ignore[attr-defined]


@pytest.fixture
def store() -> tuple[Clock, list[Stored]]:
    clock = Clock()
    Stored.opened, Stored.asked = [], []
    return clock, [Stored(f"mem://x-{i:04d}.tar", tar_bytes(pairs(10, 10 * i)), clock) for i in range(200)]


def test_stages_are_timed_one_by_one(store: tuple[Clock, list[Stored]]) -> None:
    clock, shards = store
    found = measure(shards[:3], Worker(clock), DecodeOptions(), 1e9, clock)
    assert sorted(batch.samples for batch in found.batches) == [2, 2, 2, 4, 4, 4, 4, 4, 4]
    for batch in found.batches:
        assert batch.decode == pytest.approx(0.002 * batch.samples)
        assert batch.encode == pytest.approx(0.006 * batch.samples)
        assert batch.read == pytest.approx(0)  # the whole of such a small tar comes with its opening
    assert (
        [(one.samples, one.whole, one.bytes, one.opening) for one in found.shards_read]
        == [
            (10, True, len(shard.held[0]), pytest.approx(1.0))  # type: ignore[attr-defined]
            for shard in shards[:3]
        ]
    )
    assert (found.rows, found.width, found.failed) == (30, 3, 0)
    assert [batch.tokens for batch in found.batches] == [0.0] * 9  # this model does not tell
    forecast = forecast_run(found, "m", 3, MACHINE)
    assert forecast.samples == Estimate(30.0)
    assert {s.name: s.seconds.value for s in forecast.stages} == pytest.approx(
        {"read": 0.1, "decode": 0.002, "encode": 0.006, "write": 0, "score": 0}
    )
    assert forecast.seconds.value == pytest.approx(3.0)  # three shards, a second each


def test_tokens_are_timed_where_the_model_makes_them(store: tuple[Clock, list[Stored]]) -> None:
    clock, shards = store

    class Tokenising(Worker):
        def tokenize(self, texts: Any) -> None:
            self.clock.now += 0.0005 * len(texts)

    found = measure(shards[:2], Tokenising(clock), DecodeOptions(), 1e9, clock)
    assert [batch.tokens for batch in found.batches] == pytest.approx([0.0005 * p.samples for p in found.batches])
    assert [batch.encode for batch in found.batches] == pytest.approx([0.006 * p.samples for p in found.batches])


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_compared_with_the_pool_on_all_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    ticks = iter([0.0, 3.0])
    rows = np.eye(5, 8, dtype=np.float32)
    assert _time_quality(rows, rows, lambda: next(ticks)) == 3.0 / (ROWS * threads)


def test_a_few_seconds_are_enough_for_a_long_list(store: tuple[Clock, list[Stored]]) -> None:
    clock, shards = store
    found = measure(shards, Worker(clock), DecodeOptions(), 0.5, clock)
    assert Stored.opened == [shards[12].url, shards[37].url]  # a second each, so that two are all there is time for
    assert len(Stored.asked) == 64
    assert [one.samples for one in found.shards_read] == [4, 4]
    assert found.shards_read[0].bytes == 4 * 2 * 1024  # four samples: two headers and two blocks of data each
    forecast = forecast_run(found, "m", len(shards), MACHINE)
    assert forecast.bytes.value == pytest.approx(200 * len(shards[0].held[0]), rel=0.01)  # type: ignore[attr-defined]
    assert forecast.samples.value == pytest.approx(forecast.bytes.value / 2048)


def test_shards_come_from_the_whole_list() -> None:
    shards = [Shard(f"{i}.tar") for i in range(100)]
    assert [shard.url for shard in pick_evenly(shards, 4)] == ["12.tar", "37.tar", "62.tar", "87.tar"]
    assert pick_evenly(shards[:3], 8) == shards[:3]


def test_failed_samples_are_counted_and_a_broken_shard_is_passed_over(store: tuple[Clock, list[Stored]]) -> None:
    clock, shards = store
    bad = tar_bytes([*pairs(2), ("a.png", b"junk"), ("a.txt", b"x")])
    some = [Stored("mem://bad.tar", bad, clock), Stored("mem://junk.tar", b"no tar" * 999, clock), shards[0]]
    found = measure(some, Worker(clock), DecodeOptions(), 1e9, clock)
    assert found.failed == 1
    assert "not a tar" in found.notes[0]
    assert [one.shard.url for one in found.shards_read] == ["mem://bad.tar", shards[0].url]
    assert forecast_run(found, "m", 3, MACHINE).failed_share == pytest.approx(1 / 13)


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"no tar" * 999, ShardError, "not a tar"),
        (tar_bytes([]), ConfigError, "holds no sample; name shards that hold some"),
        (
            tar_bytes([("a.png", b"junk"), ("a.txt", b"x")]),
            ConfigError,
            "none of the 1 samples looked at can be used: not a",
        ),
    ],
)
def test_nothing_to_measure_says_why(data: bytes, error: type[NoisegateError], words: str) -> None:
    clock = Clock()
    with refused("shards", "mem://x.tar", error) as caught:
        measure([Stored("mem://x.tar", data, clock)], Worker(clock), DecodeOptions(), 1, clock)
    assert words in str(caught.value)


def test_operations_are_counted_where_torch_does_them() -> None:
    import torch

    class Linear(Worker):
        def encode_pixels(self, pixels: Any) -> Any:
            return (torch.ones(len(pixels), 500) @ torch.ones(500, 1000)).numpy()

    sample = Decoded("k", 0, pixels=np.zeros((2, 2, 3), np.uint8), text="a")
    assert gflops_per_sample(Linear(Clock()), [sample] * 9) == pytest.approx(2 * 500 * 1000 / 1e9)
    assert gflops_per_sample(Worker(Clock()), [sample]) is None


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for i in range(3):
        write_tar(tmp_path / "s" / f"x-{i}.tar", pairs(30, 30 * i))
    return tmp_path


def test_the_command_prints_a_plan_and_writes_nothing(shards: Path) -> None:
    before = {path: path.read_bytes() for path in shards.rglob("*") if path.is_file()}
    done = called("plan", "s", *FAKE, "--seconds", "0.1", "--price", "1.20", "--price", "A100=9", cwd=shards)
    assert done.returncode == 0, done.stderr
    for words in (
        "samples",
        "90",
        "limit",
        "RTX 3090",
        "H100",
        "at 1.20 an hour",
        "9.00",
        "assumed:",
        "75 hours",
        "faster:",
    ):
        assert words in done.stdout, words
    assert {path: path.read_bytes() for path in shards.rglob("*") if path.is_file()} == before


ESTIMATE = {"value", "low", "high"}


def test_the_json_has_a_fixed_shape(shards: Path) -> None:
    done = called("plan", "s", *FAKE, "--seconds", "0.1", "--task", "pairs,labels", "--k", "7", "--json", cwd=shards)
    found = json.loads(done.stdout)
    assert {name: type(value).__name__ for name, value in found.items()} == {
        **dict.fromkeys(("model", "limit"), "str"),
        **dict.fromkeys(("shards", "workers_needed"), "int"),
        **dict.fromkeys(("bytes", "samples", "looked_at", "machine", "seconds", "money", "disk"), "dict"),
        **dict.fromkeys(("stages", "devices", "advice", "assumptions", "notes"), "list"),
        **dict.fromkeys(("failed_share", "samples_per_second"), "float"),
        "gflops_per_sample": "NoneType",
    }
    assert all(set(found[name]) == ESTIMATE for name in ("bytes", "samples", "seconds", "money"))
    assert [stage["name"] for stage in found["stages"]] == ["read", "decode", "encode", "write", "score"]
    assert all(set(stage["seconds_per_sample"]) == ESTIMATE for stage in found["stages"])
    assert set(found["looked_at"]) == {"shards", "samples", "bytes", "seconds"}
    assert set(found["disk"]) == {"tables", "embeddings", "neighbours", "total"}
    assert set(found["devices"][0]) == {
        *("name", "hours", "price", "money", "samples_per_second", "workers_needed", "processes_needed"),
        "measured_by_paper",
    }
    assert found["shards"] == 3
    assert found["samples"]["value"] == pytest.approx(90, rel=0.1)
    assert found["disk"]["neighbours"] == pytest.approx(found["samples"]["value"] * 7 * 8)
    assert found["disk"]["embeddings"] == pytest.approx(found["samples"]["value"] * 4 * 24)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none/*.tar", *FAKE], "matches no .tar or .tar.gz"),
        (["junk.tar", *FAKE], "not a tar or tar.gz"),
        (["empty.tar", *FAKE], "shards 'empty.tar' holds no sample"),
        (["gone.tar", *FAKE], "gone.tar cannot be opened"),
        (["s", "--model", "python:nowhere:make"], "'nowhere'); is it here or on PYTHONPATH"),
        (["s", *FAKE, "--price", "cheap"], "price 'cheap' is no price per hour; use 1.20"),
        (["s", *FAKE, "--price", "Z1=1"], "price 'Z1' is of no known device"),
        (["s", *FAKE, "--seconds", "0"], "seconds 0 is no time to measure; use 10"),
        (["s", *FAKE, "--workers", "-1"], "workers -1 is not a number of processes; use 0"),
        (["s", *FAKE, "--task", "nothing"], "task 'nothing' is unknown"),
        (["s", "--decoder", "magic"], "decoder 'magic' is unknown; use"),
        (["s", *FAKE, "--decoder", "fast"], "decoder 'fast' resizes pictures, and"),
    ],
)
def test_what_cannot_be_planned_gets_one_line(shards: Path, arguments: list[str], words: str) -> None:
    (shards / "junk.tar").write_bytes(b"this is no tar at all " * 100)
    write_tar(shards / "empty.tar", [])
    done = called("plan", "--seconds", "0.1", *arguments, cwd=shards)
    assert done.returncode == 2
    assert words in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("error")]) == 1
    assert "Traceback" not in done.stderr


def test_the_function_plans_as_the_command_does(shards: Path) -> None:
    forecast = plan(
        shards / "s", estimator=lambda: Worker(Clock()), seconds=0.01, clock=Clock(), workers=3, prices={"here": 2.0}
    )
    assert (forecast.machine.workers, forecast.machine.price, forecast.machine.price_given) == (3, 2.0, True)
    assert forecast.samples.value == 90  # a clock that stands still: all is read
