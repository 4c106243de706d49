"""A compiled vision tower: used where it agrees and is faster, left out with a reason everywhere else."""

import copy
import itertools
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from noisegate.pipeline.engines.shard_task import Note, ProgressTotals
from noisegate.pipeline.estimators import ModelSpec, load_estimator, normalise
from noisegate.pipeline.estimators.device import Device
from noisegate.pipeline.estimators.openclip import OpenClipEstimator
from noisegate.pipeline.estimators.openclip_towers import (
    Compiler,
    Encode,
    probe_batches,
    row_distance,
    tolerance_for,
    torch_compile,
)
from noisegate.pipeline.runs.table import RunFolder
from tests.errors import refused
from tests.jobs import Notes, score
from tests.pipeline.shards.tars import pairs, write_tar


def turns(eager: float, compiled: float) -> Callable[[], float]:
    """A clock by which the two ways, which take turns, take so many seconds each."""

    def ticks() -> Iterator[float]:
        now = 0.0
        for taken in itertools.cycle((eager, compiled)):
            yield now
            now += taken
            yield now

    times = ticks()
    return lambda: next(times)


def flat(batch: torch.Tensor) -> torch.Tensor:
    return batch.flatten(1)


BATCHES = probe_batches(4, 6)


class TestTrial:
    def test_exact_and_faster_is_used(self) -> None:
        trial = Compiler(lambda encode: lambda batch: encode(batch), turns(1.12, 1.0)).try_out(flat, BATCHES, 1e-4)
        assert trial.line == "torch.compile: 1.12 x, largest change of a cosine 0e+00: used"
        assert trial.encode is not None

    @pytest.mark.parametrize(("eager", "expected"), [(0.97, "0.97 x"), (1.0, "1.00 x"), (1.01, "1.01 x")])
    def test_slower_or_hardly_faster_is_left_out(self, eager: float, expected: str) -> None:
        trial = Compiler(lambda encode: encode, turns(eager, 1.0)).try_out(flat, BATCHES, 1e-4)
        assert trial.encode is None
        assert trial.line == f"torch.compile: {expected}, largest change of a cosine 0e+00: left out"

    def test_the_least_of_the_rounds_counts(self) -> None:
        spans = iter([1.5, 9.0, 9.0, 1.0, *[9.0] * 6])  # eager and compiled by turns, disturbed most of the time

        def ticks() -> Iterator[float]:
            for span in spans:
                yield 0.0
                yield span

        times = ticks()
        assert (
            Compiler(lambda encode: encode, lambda: next(times))
            .try_out(flat, BATCHES, 1e-4)
            .line.startswith("torch.compile: 1.50 x")
        )

    def test_wrong_is_left_out_however_fast(self) -> None:
        def turned(encode: Encode) -> Encode:
            return lambda batch: encode(batch) + 0.01

        trial = Compiler(turned, turns(5.0, 1.0)).try_out(flat, BATCHES, 1e-4)
        rows = BATCHES[0].flatten(1).double()
        unit, other = (r / r.norm(dim=1, keepdim=True) for r in (rows, rows + 0.01))
        assert trial.encode is None
        expected = f"{float((unit - other).norm(dim=1).max()):.0e}"
        assert trial.line == f"torch.compile: 5.00 x, largest change of a cosine {expected}, 1e-04 is allowed: left out"

    def test_wrong_on_the_smaller_batch_only_is_found(self) -> None:
        def forgetful(encode: Encode) -> Encode:
            return lambda batch: encode(batch) if len(batch) == len(BATCHES[0]) else encode(batch).flip(0)

        assert Compiler(forgetful, turns(5.0, 1.0)).try_out(flat, BATCHES, 1e-4).encode is None

    def test_what_is_not_a_number_does_not_agree(self) -> None:
        trial = Compiler(lambda encode: lambda batch: encode(batch) * torch.nan, turns(5.0, 1.0)).try_out(
            flat, BATCHES, 1e-4
        )
        assert trial.encode is None and "largest change of a cosine 1e+00" in trial.line

    @pytest.mark.parametrize("when", ["compiled", "called"])
    def test_a_compiler_that_fails_is_left_out_with_its_reason_in_one_line(self, when: str) -> None:
        def fail(_: Any) -> Any:
            raise RuntimeError("no C++ compiler\n\nSet TORCH_LOGS=all. " + "More. " * 100)

        trial = Compiler(fail if when == "compiled" else lambda encode: fail, turns(1, 1)).try_out(flat, BATCHES, 1e-4)
        assert trial.encode is None
        assert trial.line.startswith("torch.compile: not available (RuntimeError: no C++ compiler Set TORCH_LOGS=all.")
        assert trial.line.endswith("…): left out") and "\n" not in trial.line and len(trial.line) < 220


class TestGuard:
    def used(self, compiled: Encode) -> Encode:
        trial = Compiler(lambda _: compiled, turns(2.0, 1.0)).try_out(flat, BATCHES, 1e-4)
        assert trial.encode is not None
        return trial.encode

    def test_single_pictures_and_gradients_go_the_eager_way(self) -> None:
        sizes: list[int] = []

        def compiled(batch: torch.Tensor) -> torch.Tensor:
            sizes.append(len(batch))
            return flat(batch)

        encode = self.used(compiled)
        sizes.clear()
        encode(BATCHES[0])  # not in inference mode: somebody may want gradients
        with torch.inference_mode():
            encode(BATCHES[0][:1])
            encode(BATCHES[0][:2])
        assert sizes == [2]

    def test_a_later_failure_ends_no_job_and_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        calls: list[int] = []

        def compiled(batch: torch.Tensor) -> torch.Tensor:
            calls.append(len(batch))
            if len(batch) == 5:
                raise RuntimeError("no such kernel")
            return flat(batch)

        encode = self.used(compiled)
        calls.clear()
        with torch.inference_mode(), caplog.at_level(logging.WARNING):
            for count in (6, 5, 6, 5):
                assert torch.equal(encode(BATCHES[0][:count]), flat(BATCHES[0][:count]))
        assert calls == [6, 5]
        assert [record.getMessage() for record in caplog.records] == [
            "torch.compile: failed (RuntimeError: no such kernel): left out from here on"
        ]


def test_distance_bounds_the_change_of_every_cosine() -> None:
    rng = np.random.default_rng(0)
    one = rng.normal(size=(5, 8)).astype(np.float32)
    other = one + rng.normal(scale=0.01, size=one.shape).astype(np.float32)
    texts = normalise(rng.normal(size=(2000, 8)))
    change = np.abs((normalise(one) - normalise(other)) @ texts.T).max()
    distance = row_distance(torch.from_numpy(one), torch.from_numpy(other))
    assert 0.5 * distance < change <= distance
    assert row_distance(torch.from_numpy(one), torch.from_numpy(3 * one)) < 1e-7


@pytest.fixture(scope="module")
def eager() -> OpenClipEstimator:
    found = load_estimator("embedded", device="cpu")
    assert isinstance(found, OpenClipEstimator)
    return found


def test_tolerance_grows_with_the_rounding_of_the_number_type_but_not_without_end() -> None:
    row = torch.tensor([[1.0, 0.0]])
    assert tolerance_for(row, torch.tensor([[1.0, 1e-6]])) == 1e-4
    assert tolerance_for(row, torch.tensor([[1.0, 0.01]])) == pytest.approx(0.02, rel=1e-3)
    assert tolerance_for(row, torch.tensor([[torch.inf, 0.0]])) == 0.1  # float16 has no such number


class TestOpenClip:
    """The embedded model, which is one of open_clip's, compiled by torch without a C++ compiler."""

    def made(self, eager: OpenClipEstimator, compiler: Compiler, dtype: str = "float32") -> OpenClipEstimator:
        place = Device.choose("cpu", dtype)
        return OpenClipEstimator(eager.module, eager.tokenizer, "embedded", place, 4, eager.config, compiler=compiler)

    @pytest.fixture
    def pixels(self) -> list[Any]:
        rng = np.random.default_rng(0)
        return list(rng.integers(0, 256, (11, 64, 64, 3), dtype=np.uint8))

    def test_is_compiled_once_for_batches_of_every_size_and_gives_the_same(
        self, eager: OpenClipEstimator, pixels: list[Any]
    ) -> None:
        graphs: list[int] = []

        def backend(graph: Any, _: Any) -> Any:
            graphs.append(len(graph.graph.nodes))
            return graph.forward

        compiler = Compiler(partial(torch_compile, backend=backend, fullgraph=True), turns(3.0, 2.0))
        model = self.made(eager, compiler)
        assert model.notes[0].startswith("torch.compile: 1.50 x, largest change of a cosine ")
        assert model.notes[0].endswith(": used")
        assert model.identity == eager.identity
        for count in (11, 3, 6, 1):  # the last batches of four are of three, three, two and one
            found, expected = model.encode_pixels(pixels[:count]), eager.encode_pixels(pixels[:count])
            assert np.abs(normalise(found) - normalise(expected)).max() <= 1e-6
        assert len(graphs) == 1

    def test_bfloat16_may_move_as_far_as_its_rounding_does(self, eager: OpenClipEstimator, pixels: list[Any]) -> None:
        half = self.made(eager, Compiler(lambda encode: encode, turns(2.0, 1.0)), "bfloat16")
        own = row_distance(*(torch.from_numpy(model.encode_pixels(pixels)) for model in (eager, half)))
        assert half.notes[0].endswith(": used") and own > 1e-3

        def moved(by: float) -> str:
            def compile_(encode: Encode) -> Encode:
                def call(batch: torch.Tensor) -> torch.Tensor:
                    rows = encode(batch).float()
                    side = torch.roll(rows, 1, dims=1)
                    return rows + by * side * rows.norm(dim=1, keepdim=True) / side.norm(dim=1, keepdim=True)

                return call

            return self.made(eager, Compiler(compile_, turns(2.0, 1.0)), "bfloat16").notes[0]

        assert moved(own).endswith(": used")
        assert moved(10 * own).endswith("is allowed: left out")


@pytest.mark.parametrize("model", ["python:tests.fakes:ColourModel", "hf:anything"])
def test_only_models_of_open_clip_are_compiled(model: str) -> None:
    with refused("compile", True):
        ModelSpec(model, compile=True)()


def test_the_run_and_its_summary_say_what_came_of_it_and_go_on_without(
    tmp_path: Path, eager: OpenClipEstimator
) -> None:
    one, two = (write_tar(tmp_path / f"{name}.tar", pairs(3)) for name in "ab")
    compiled = copy.copy(eager)
    compiled.notes = ("torch.compile: 1.12 x, largest change of a cosine 3e-08: used",)
    out, said = tmp_path / "out", Notes()
    summary = score([one], out, estimator=compiled, progress=said)
    assert said.said.count(compiled.notes[0]) == 1
    assert summary.notes == compiled.notes and summary.to_dict()["notes"] == compiled.notes
    assert (RunFolder(out).read_run() or {})["notes"] == list(compiled.notes)

    assert score([one, two], out, estimator=eager).notes == ()
    assert (RunFolder(out).read_run() or {})["notes"] == list(compiled.notes)  # a part of the tables is made so


def test_encoders_that_say_the_same_are_recorded_once() -> None:
    totals = ProgressTotals(said := Notes(), {})
    for event in (
        Note("one", recorded=True),
        Note("x.tar: damaged"),
        Note("two", recorded=True),
        Note("one", recorded=True),
    ):
        totals.add(event)
    assert totals.notes == ["one", "two"] and len(said.said) == 4
