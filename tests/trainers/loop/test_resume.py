"""A run that is killed, stopped and resumed ends with the curve and the weights of one that never was."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from noisegate import train
from noisegate.pipeline.errors import StoppedError
from noisegate.pipeline.system.progress import Lines, Progress
from noisegate.trainers.loop.checkpoint import read_checkpoint
from noisegate.trainers.loop.log import read_log
from tests.commands import called, command
from tests.errors import refused
from tests.trainers.runs import TARGET, curve, same_weights, settings

pytestmark = pytest.mark.usefixtures("one_thread")


def start(*arguments: object, cwd: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(**command("train", *arguments), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def kill_at(process: "subprocess.Popen[str]", words: str) -> int:
    """Kill a process once it writes a line with these words; return its exit code."""
    assert process.stderr is not None
    next(line for line in process.stderr if words in line)
    process.kill()
    process.communicate(timeout=60)
    return process.returncode


def logged(folder: Path) -> int:
    """Batches that the log knows of."""
    return max((line["batch"] for line in read_log(folder / "log.jsonl")), default=0)


class SignalAt(Lines):
    """Sends this process a signal after the first batch of an epoch."""

    def __init__(self, epoch: str, number: int) -> None:
        super().__init__()
        self.signal = (f"{epoch} batch 1/", number)

    def note(self, text: str) -> None:
        if text.startswith(self.signal[0]):
            os.kill(os.getpid(), self.signal[1])


def test_killed_and_stopped_and_resumed_is_undisturbed(
    scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three epochs of five batches; killed in the second after a checkpoint at its start, stopped in the third."""
    config = settings(
        scored, tmp_path / "runs", loop__epochs=3, loop__save_every=2, loop__ema=0.9, schedule={"warmup": 3}
    )
    whole = train({**config, "out": str(tmp_path / "whole")}, quiet=True)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    run = tmp_path / "runs" / "001-osa"

    assert kill_at(start("--config", file, cwd=tmp_path), "epoch 2/3 batch 2/5") == -signal.SIGKILL
    assert 7 <= logged(run) < 15, "in the middle of an epoch"

    monkeypatch.setattr("noisegate.trainers.train.progress_for", lambda quiet: SignalAt("epoch 3/3", signal.SIGTERM))
    done = called("train", "--resume", run, cwd=tmp_path)
    monkeypatch.undo()
    assert done.returncode == 130, done.stderr
    assert "stopped: saved; go on with: " in done.stderr
    assert f"train --resume {run}" in done.stderr
    assert "Traceback" not in done.stderr
    assert logged(run) < 15

    result = train(resume=run, quiet=True)
    assert not result.stopped
    assert curve(run) == curve(whole.folder)
    assert len(curve(run)) == 15
    assert [line["rsum"] for line in read_log(run / "log.jsonl", "eval")] == [
        line["rsum"] for line in read_log(whole.folder / "log.jsonl", "eval")
    ]
    for name in ("last.safetensors", "best.safetensors"):
        assert same_weights(run / name, whole.folder / name)
    assert (result.best, result.last, result.steps) == (whole.best, whole.last, whole.steps)


class KilledAt(Progress):
    """Ends the run when these words are said, as a second Ctrl-C does: nothing more is saved."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)
        if text.startswith(self.words):
            raise KeyboardInterrupt


@pytest.mark.parametrize(("steps", "over"), [(None, "3 epochs"), (7, "max_steps=7 updates")])
def test_an_evaluation_that_was_cut_off_comes_first(scored: Path, tmp_path: Path, steps: int | None, over: str) -> None:
    """Killed once the figures of epoch 2 are in the log and nothing else has happened; the epoch is not trained again."""
    config = settings(scored, tmp_path, "baseline", loop={"epochs": 3, "max_steps": steps, "device": "cpu"})
    whole = train(config, quiet=True)
    run = tmp_path / "002-baseline"
    with pytest.raises(StoppedError, match="go on from the last checkpoint"):
        train(config, display=KilledAt("epoch 2: "))
    saved = read_checkpoint(run / "state.safetensors").facts["place"]
    assert (saved["step"], saved["measuring"]) == (steps or 10, True)
    shown = KilledAt("never")
    done = train(resume=run, display=shown)
    where = (
        "this run is over after max_steps=7 updates, once it is measured" if steps else "going on with the evaluation"
    )
    assert any(note.startswith(where) for note in shown.notes)
    assert (done.over, done.best, done.last, done.best_epoch) == (over, whole.best, whole.last, whole.best_epoch)
    logs = [[(line["kind"], line["batch"], line.get("loss"), line.get("rsum")) for line in read_log(folder / "log.jsonl")]
            for folder in (run, whole.folder)]  # fmt: skip
    assert logs[0] == logs[1]
    for name in ("last.safetensors", "best.safetensors"):
        assert same_weights(run / name, whole.folder / name)
    assert not read_checkpoint(run / "state.safetensors").facts["place"]["measuring"]


def test_pieces_stay_when_a_run_is_made_longer(scored: Path, tmp_path: Path) -> None:
    """CRCL's last piece gets the new epochs and a learning rate for them; pieces that are over stay as they were."""
    method = {"name": "crcl", "freeze": 0}
    config = settings(scored, tmp_path, "crcl", method=method, loop={"epochs": 4, "device": "cpu", "evaluate_every": 0})
    first = train(config, quiet=True)
    assert [rate for (rate,) in curve(first.folder, "lr")][::5] == pytest.approx([1e-3, 1e-3, 1e-3, 5e-4]), "1, 1 and 2"
    longer = train(resume=first.folder, settings=["loop.epochs=6"], quiet=True)
    assert longer.over == "6 epochs"
    rates = [rate for (rate,) in curve(first.folder, "lr")][::5]
    assert rates[4:] == pytest.approx([5e-4, 1e-3 * (1 - 0.5**0.5) / 2]), "half and three quarters of a piece of 4"


@pytest.mark.parametrize(("name", "restarts", "column"), [("aum", 2, "aum"), ("deft", 1, "clean_probability")])
def test_samples_are_not_selected_again_when_a_run_is_made_longer(
    scored: Path, tmp_path: Path, name: str, restarts: int, column: str
) -> None:
    """After 4 epochs the new weights have learnt for 2; the other 4 go to these, not to finding right labels again."""
    target = {**TARGET, "classes": str(scored / "clean" / "classes.txt")}
    method = {"name": name, **({"warmup": 1} if name == "deft" else {})}
    tree = settings(
        scored, tmp_path, name, method=method, target=target, task={"name": "classification"}, loop__epochs=4
    )
    first = train(tree, quiet=True)
    longer = train(resume=first.folder, settings=["loop.epochs=8"], quiet=True)
    place = read_checkpoint(first.folder / "state.safetensors").facts["place"]
    assert (longer.over, place["restarts"], place["course"][:2]) == ("8 epochs", restarts, [2, 6])
    np.testing.assert_array_equal(longer.sample_columns[column], first.sample_columns[column])
    again = train(resume=first.folder, settings=["loop.epochs=9"], quiet=True)
    assert again.over == "9 epochs"
    np.testing.assert_array_equal(again.sample_columns[column], first.sample_columns[column])


def test_every_kind_of_state_comes_back(scored: Path, tmp_path: Path) -> None:
    """Momentum, accumulation and dropout's generator, from a checkpoint in the middle of an epoch."""
    target = json.loads(json.dumps(settings(scored, tmp_path)["target"]))
    target["architecture"]["vision_cfg"]["patch_dropout"] = 0.5
    config = settings(
        scored, tmp_path / "runs", "baseline", target=target, loop__accumulate=2, loop__evaluate_every=0,
        optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.9},
    )  # fmt: skip
    whole = train(config, quiet=True)
    part = train(config, settings=["loop.max_steps=2"], quiet=True)
    assert (part.over, part.steps) == ("max_steps=2 updates", 2)
    done = train(resume=part.folder, settings=["loop.max_steps=null"], quiet=True)
    assert (done.over, done.steps) == ("2 epochs", 6)
    assert curve(done.folder) == curve(whole.folder)
    assert same_weights(done.folder / "last.safetensors", whole.folder / "last.safetensors")


def test_a_finished_run_has_nothing_left_and_can_be_made_longer(scored: Path, tmp_path: Path) -> None:
    config = settings(scored, tmp_path, "baseline", loop__epochs=1, loop__evaluate_every=0)
    first = train(config, quiet=True)
    again = train(resume=first.folder, quiet=True)
    assert (again.steps, again.over, again.folder) == (5, "1 epoch", first.folder)
    notes: list[str] = []
    shown = Progress()
    shown.note = notes.append  # type: ignore[method-assign]
    train(resume=first.folder, display=shown)
    assert notes[-1] == "this run is over after 1 epoch; make it longer with, for example, --set loop.epochs=2"
    longer = train(resume=first.folder, settings=["loop.epochs=2"], quiet=True)
    assert (longer.steps, longer.over) == (10, "2 epochs")
    assert curve(first.folder, "lr")[5] == pytest.approx((0.5e-3,)), "in the middle of a cosine over two epochs"


def test_settings_of_a_resumed_run_stay(scored: Path, tmp_path: Path) -> None:
    config = settings(scored, tmp_path, loop={"epochs": 1, "evaluate_every": 0, "max_steps": 2, "device": "cpu"})
    first = train(config, quiet=True)
    train(resume=first.folder, settings=["loop.max_steps=3", "loop.epochs=2", "task.options.folds=2"], quiet=True)
    saved = yaml.safe_load((first.folder / "config.yaml").read_text())
    assert saved["task"]["options"] == {"folds": 2}, "how it is measured may change"
    assert (saved["loop"]["max_steps"], saved["loop"]["epochs"]) == (3, 2)
    assert saved["method"]["mode"] == "mean1", "defaults of the method are written out"


def test_another_table_is_refused(scored: Path, tmp_path: Path) -> None:
    tables = shutil.copytree(scored / "tables", tmp_path / "tables")
    config = settings(
        scored, tmp_path / "runs", data__table=str(tables), loop={"max_steps": 2, "evaluate_every": 0, "device": "cpu"}
    )
    first = train(config, quiet=True)
    before = (first.folder / "config.yaml").read_bytes()
    file = next(tables.glob("*.parquet"))
    table = pq.read_table(file)
    place = table.schema.get_field_index("osa_weight")
    weight = pa.array([0.1] * len(table), table.schema.field(place).type)
    pq.write_table(table.set_column(place, table.schema.field(place), weight), file)
    with refused("data.table", tables):
        train(resume=first.folder, settings=["loop.max_steps=4"], quiet=True)
    assert (first.folder / "config.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("how", "setting"),
    [
        ({"settings": ["loop.device_=1"]}, "loop.device_"),
        ({"settings": ["optimizer.lr=1"]}, "optimizer.lr"),
        ({"config": {"seed": 1}}, "resume"),
    ],
)
def test_what_cannot_be_changed_is_refused(scored: Path, tmp_path: Path, how: dict[str, object], setting: str) -> None:
    folder = tmp_path / "001-osa"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(settings(scored, tmp_path)))
    with refused(setting):
        train(resume=folder, **how)  # type: ignore[arg-type]


def test_there_must_be_something_to_resume(scored: Path, tmp_path: Path) -> None:
    with refused("run", str(tmp_path)):
        train(resume=tmp_path)
    (tmp_path / "config.yaml").write_text("[1, 2")
    with refused("config"):
        train(resume=tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings(scored, tmp_path)))
    with refused("resume", str(tmp_path)) as caught:
        train(resume=tmp_path)
    assert "has no checkpoint" in str(caught.value)
    (tmp_path / "state.safetensors").write_bytes(os.urandom(100))
    with refused("resume", str(tmp_path)) as caught:
        train(resume=tmp_path)
    assert "has no usable checkpoint" in str(caught.value)
