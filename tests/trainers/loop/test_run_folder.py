"""Numbered folders, logs that are cut after a stop, and states without pickle."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from noisegate.pipeline.errors import NoisegateError, StoppedError
from noisegate.trainers.loop.checkpoint import load_optimizer, optimizer_state, read_checkpoint, write_checkpoint
from noisegate.trainers.loop.log import TrainLog, read_log
from noisegate.trainers.loop.run_folder import TrainFolder, explain_interrupts, make_run_folder
from tests.errors import refused


def test_runs_are_numbered_and_never_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / "007-osa").mkdir()
    (tmp_path / "notes").mkdir()
    assert [make_run_folder(tmp_path, name).path.name for name in ("osa", "baseline")] == ["008-osa", "009-baseline"]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused("out"):
        make_run_folder(tmp_path / "file", "osa")


def test_weights_of_several_networks(tmp_path: Path) -> None:
    folder = TrainFolder(tmp_path)
    assert folder.networks("best") == []
    for name in ("best.safetensors", "best-1.safetensors"):
        (tmp_path / name).touch()
    assert [path.name for path in folder.networks("best")] == ["best.safetensors", "best-1.safetensors"]


def test_a_log_loses_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    log = TrainLog(file, None)
    for batch in range(1, 5):
        log.write("train", batch, {"loss": 1 / batch, "bad": float("nan")})
    log.close()
    with file.open("a") as end:
        end.write('{"kind": "train", "ba')  # killed while writing
    again = TrainLog(file, None, batch=2)
    again.write("eval", 2, {"rsum": 1.0})
    again.close()
    lines = read_log(file)
    assert [(line["kind"], line["batch"]) for line in lines] == [("train", 1), ("train", 2), ("eval", 2)]
    assert lines[0]["bad"] is None, "NaN is no JSON"
    assert read_log(file, "eval")[0]["rsum"] == 1.0
    assert all(json.loads(text) for text in file.read_text().splitlines())


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = TrainLog(tmp_path / "log.jsonl", tmp_path / "tensorboard")
    log.write("train", 3, {"loss": 0.5})
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(3, 0.5)]


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    groups = {"network0": {"a": shared, "b": shared.T}, "method": {"labels": np.array([[1, 2]], np.int64)}, "none": {}}
    write_checkpoint(tmp_path / "s.safetensors", groups, {"epoch": 3, "best": {"rsum": 1.5}})
    state = read_checkpoint(tmp_path / "s.safetensors")
    assert state.facts == {"epoch": 3, "best": {"rsum": 1.5}}
    assert torch.equal(state.group("network0")["b"], shared.T)
    assert state.group("method")["labels"].tolist() == [[1, 2]]
    assert state.group("none") == {}


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_optimiser_goes_on_as_if_nothing_had_been(kind: type[torch.optim.Optimizer], momentum: float) -> None:
    def made() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        how = {"momentum": momentum} if kind is torch.optim.SGD else {}
        return parameter, kind([{"params": [parameter], "weight_decay": 0.1}], lr=0.1, **how)  # type: ignore[call-arg]

    def step(parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        (parameter**2).sum().backward()
        optimizer.step()

    one, first = made()
    for _ in range(3):
        step(one, first)
    tensors, groups = optimizer_state(first)
    other, second = made()
    with torch.no_grad():
        other.copy_(one)
    kept = {name: tensor.clone() for name, tensor in tensors.items()}  # as a file does
    load_optimizer(second, kept, json.loads(json.dumps(groups)))
    for _ in range(3):
        step(one, first)
        step(other, second)
    assert torch.equal(one, other)


def test_a_full_disk_and_a_second_ctrl_c_say_how_to_go_on(tmp_path: Path) -> None:
    folder = TrainFolder(tmp_path)
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        pytest.raises(NoisegateError, match="free some, and start anew: there is no checkpoint yet"),
        explain_interrupts(folder),
    ):
        raise full
    folder.state_file.touch()
    with (
        pytest.raises(NoisegateError, match=f"free some, and go on .*: noisegate train --resume {tmp_path}"),
        explain_interrupts(folder),
    ):
        raise full
    with pytest.raises(StoppedError, match="at once; go on from the last checkpoint with"), explain_interrupts(folder):
        raise KeyboardInterrupt
    with pytest.raises(PermissionError), explain_interrupts(folder):
        raise PermissionError(errno.EACCES, "no")
