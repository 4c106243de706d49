"""Whole runs of seconds: what they leave behind, what they count, when they stop, and a method that asks for everything."""

import io
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from numpy.typing import NDArray

from noisegate import METHODS, Batch, TrainResult, WeightedShards, evaluate_model, load_estimator, load_target, train
from noisegate.pipeline.errors import NoisegateError
from noisegate.pipeline.inspect.metrics import BlockRecall, rsum
from noisegate.pipeline.runs.table import RunFolder, read_metadata, read_table, replace_columns
from noisegate.pipeline.system.progress import Progress
from noisegate.trainers.config import TrainConfig
from noisegate.trainers.loop.log import read_log
from noisegate.trainers.loop.run_context import build_network
from noisegate.trainers.losses import info_nce, triplet
from noisegate.trainers.methods import Method, MethodConfig, Run, StepLoss, Stream
from noisegate.trainers.targets import build_target, save_target, target_config
from tests.errors import refused
from tests.fakes import tar_bytes
from tests.trainers.runs import BATCH, TARGET, curve, same_weights, settings, weights

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_run_leaves_all_that_is_needed(scored: Path, tmp_path: Path) -> None:
    config = settings(scored, tmp_path, loop__epochs=2, logging={"every": 2})
    result = train(config, quiet=True)
    assert result.folder == tmp_path / "001-osa"
    assert {path.name for path in result.folder.iterdir()} == {
        "_lock", "best.safetensors", "config.yaml", "last.safetensors", "log.jsonl", "open_clip", "result.json",
        "state.safetensors", "tensorboard",
    }  # fmt: skip
    assert (result.steps, result.epochs, result.over, result.stopped) == (10, 2, "2 epochs", False)
    assert [step for (step,) in curve(result.folder, "step")] == [1, 2, 4, 6, 8, 10]
    evaluations = read_log(result.folder / "log.jsonl", "eval")
    assert [line["epoch"] for line in evaluations] == [1, 2]
    assert result.best["rsum"] == max(line["rsum"] for line in evaluations)
    assert json.loads((result.folder / "result.json").read_text())["best"] == result.best
    resolved = TrainConfig.parse(yaml.safe_load((result.folder / "config.yaml").read_text()))
    assert resolved.optimizer.betas == (0.9, 0.98), "defaults are written out"
    assert resolved.target["vocabulary"]["ids"], "and what the data decided"
    again = train(config, quiet=True)
    assert again.folder == tmp_path / "002-osa"
    assert curve(again.folder) == curve(result.folder), "the same seed gives the same run"
    assert same_weights(again.folder / "last.safetensors", result.folder / "last.safetensors")


def test_best_weights_measure_as_recorded_and_open_clip_loads_them(scored: Path, baseline: TrainResult) -> None:
    assert evaluate_model(baseline.folder).figures == baseline.best
    file = baseline.folder / "best.safetensors"
    assert evaluate_model(file, str(scored / "held" / "*.tar")).figures == baseline.best
    estimator = load_estimator(f"local-dir:{baseline.folder / 'open_clip'}", device="cpu", dtype="float32")
    captions = ["one red circle", "two blue squares"]
    target = load_target(file).eval()
    with torch.no_grad():
        ours = target.encode_texts(target.tokenize(captions))["vectors"]
    theirs = torch.from_numpy(estimator.encode_texts(captions))
    torch.testing.assert_close(torch.nn.functional.normalize(theirs, dim=-1), ours, atol=2e-3, rtol=0)


def test_two_pretrained_networks_differ_a_little_and_learn_by_a_loss_they_survive(
    scored: Path, baseline: TrainResult, tmp_path: Path
) -> None:
    """The first is the pretrained one; matrices of the second differ by a hundredth of their deviation, the rest not at all."""
    described = target_config({"name": "clip", "model": f"local-dir:{baseline.folder / 'open_clip'}"})
    given, first, second = (
        {name: parameter.detach() for name, parameter in network.named_parameters()}
        for network in (build_target(described), build_network(described, 0, 0), build_network(described, 0, 1))
    )
    for name, weight in given.items():
        assert torch.equal(first[name], weight)
        if weight.ndim < 2:
            assert torch.equal(second[name], weight), name
        else:
            moved = float((second[name] - weight).std() / weight.std())
            assert moved == pytest.approx(0.01, rel=0.5 if weight.numel() < 500 else 0.1), name
    notes: list[str] = []
    shown = Progress()
    shown.note = notes.append  # type: ignore[method-assign]
    method = {"name": "ncr", "warmup": 1}
    config = settings(scored, tmp_path, target=described.model_dump(), method=method, loop__max_steps=1)
    result = train(config, settings=["optimizer.lr=1e-9"], display=shown)
    assert notes[0].startswith("ncr: the target is pretrained, so pairs learn by info_nce weighed by their labels")
    plain = settings(scored, tmp_path, "baseline", target=described.model_dump(), loop__max_steps=1)
    alone = train(plain, settings=["optimizer.lr=1e-9"], quiet=True)
    both = curve(result.folder, "loss")[0][0]
    assert both == pytest.approx(2 * curve(alone.folder, "loss")[0][0], rel=0.1), "two networks, by InfoNCE"


def write_other(folder: Path) -> Path:
    """Weights of a network that reads larger pictures."""
    larger = {**TARGET["architecture"], "vision_cfg": {**TARGET["architecture"]["vision_cfg"], "image_size": 32}}
    folder.mkdir()
    save_target(
        build_target({**TARGET, "architecture": larger, "vocabulary": {"kind": "full"}}), folder / "x.safetensors"
    )
    return folder / "x.safetensors"


def test_other_seeds_are_other_runs_and_several_are_measured_together(
    scored: Path, baseline: TrainResult, tmp_path: Path
) -> None:
    other = train(settings(scored, tmp_path, "baseline", loop__epochs=1, loop__evaluate_every=0, seed=1), quiet=True)
    held = str(scored / "held" / "*.tar")
    found = evaluate_model([baseline.folder, other.folder], held)
    assert [Path(file).parent for file in found.weights] == [baseline.folder, other.folder]
    targets = [load_target(folder / "best.safetensors").eval() for folder in (baseline.folder, other.folder)]
    shards = WeightedShards(
        held, None, image=targets[0].image_transform(False), captions="read", batch_size=40, sampler="sequential"
    )
    (batch,) = list(shards)
    with torch.no_grad():
        each = [
            target.similarity(target.encode_images(batch.images), target.encode_texts(target.tokenize(batch.captions)))
            for target in targets
        ]
    recall = BlockRecall(40, np.arange(40))
    recall.add(0, (sum(each) / 2).numpy())
    assert found.figures["rsum"] == pytest.approx(rsum(recall.result()))
    assert found.figures != baseline.best and found.figures != evaluate_model(other.folder, held).figures
    clip = str(write_other(tmp_path / "other"))
    with refused("source", clip):
        evaluate_model([baseline.folder, clip], held)
    with refused("source", ()):
        evaluate_model([], held)
    assert curve(other.folder) != curve(baseline.folder)


@pytest.fixture
def few_weights(scored: Path, tmp_path: Path) -> Path:
    """The same tables with only rows 3 and 90 above β."""
    for path in [RunFolder(scored / "tables").run_file, *(scored / "tables").glob("*.parquet")]:
        (tmp_path / "few" / path.name).parent.mkdir(exist_ok=True)
        (tmp_path / "few" / path.name).write_bytes(path.read_bytes())
    run, start = RunFolder(tmp_path / "few"), 0
    for stem in run.stems():
        table = run.read(stem)
        rows = np.arange(start, start + len(table))
        weight = np.where(np.isin(rows, (3, 90)), 0.1, 0).astype(np.float32)
        run.write_table(stem, replace_columns(table, {"osa_weight": weight}, read_metadata(run.table(stem))))
        start += len(table)
    return tmp_path / "few"


def test_batches_without_weight_are_skipped_and_counted(scored: Path, few_weights: Path, tmp_path: Path) -> None:
    """Which batches those are follows from the data's order alone."""
    data = WeightedShards(str(scored / "noisy" / "*.tar"), few_weights, batch_size=16, columns=["osa_weight"], seed=0)
    empty = [not batch.columns["osa_weight"].any() for epoch in range(2) for batch in data]
    assert 14 <= sum(empty) <= 18
    config = settings(scored, tmp_path, data__table=str(few_weights), data__batch_size=16, loop__evaluate_every=0)
    result = train(config, quiet=True)
    assert (result.skipped, result.steps) == (sum(empty), len(empty) - sum(empty))
    assert [batch for (batch,) in curve(result.folder, "batch")] == [i + 1 for i, none in enumerate(empty) if not none]
    assert curve(result.folder, "skipped")[-1] == (sum(empty[: curve(result.folder, "batch")[-1][0]]),)


def test_select_reads_the_clean_rows_only(scored: Path, tmp_path: Path) -> None:
    clean = sum(read_table(scored / "tables", ["clean"])["clean"].to_pylist())
    result = train(settings(scored, tmp_path, "select", loop__epochs=1, loop__evaluate_every=0), quiet=True)
    assert result.steps == clean // BATCH > 0


def test_training_from_shards_alone(scored: Path, baseline: TrainResult, tmp_path: Path) -> None:
    config = settings(scored, tmp_path, "baseline", data__table=None, loop__epochs=1, loop__evaluate_every=0)
    alone = train(config, quiet=True)
    assert curve(alone.folder) == curve(baseline.folder), "a table that no method reads changes nothing"


def test_accumulation_averages_the_gradients_of_its_batches(scored: Path, tmp_path: Path) -> None:
    """With SGD and no clipping: the first update by hand, from the two batches' own gradients."""
    plain = {"optimizer": {"name": "sgd", "lr": 1.0, "momentum": 0.0, "weight_decay": 0.0}, "loop__clip": None}
    config = settings(
        scored, tmp_path, "baseline", loop__evaluate_every=0, schedule={"name": "constant"},
        target={**TARGET, "learn_scale": False}, **plain,
    )  # fmt: skip
    both = train(config, settings=["loop.accumulate=2", "loop.max_steps=1"], quiet=True)
    assert (both.steps, both.epochs) == (1, 0)
    start = train(config, settings=["optimizer.lr=1e-30", "loop.max_steps=1"], quiet=True)
    before, after = (weights(run.folder / "last.safetensors") for run in (start, both))
    target = load_target(start.folder / "last.safetensors")
    data = WeightedShards(
        str(scored / "noisy" / "*.tar"), scored / "tables", batch_size=BATCH, image=target.image_transform(True),
        text=target.tokenizer, fields=("image_sha256",),
    )  # fmt: skip
    total = torch.zeros(())
    for _, batch in zip(range(2), data, strict=False):
        similarity = target.similarity(target.encode_images(batch.images), target.encode_texts(batch.texts))  # type: ignore[arg-type]
        same = [[a == b for b in batch.captions] for a in batch.captions]
        total = total + info_nce(similarity, target.temperature, torch.tensor(same)).mean() / 2
    name = "model.visual.proj"
    (gradient,) = torch.autograd.grad(total, [dict(target.named_parameters())[name]])
    torch.testing.assert_close(after[name], before[name] - gradient, rtol=1e-4, atol=1e-6)


def test_the_last_update_of_an_epoch_averages_the_batches_that_are_left(scored: Path, tmp_path: Path) -> None:
    """Five batches by two: the fifth is an update of its own, by its whole gradient."""
    config = settings(
        scored, tmp_path, "baseline", loop__epochs=1, loop__evaluate_every=0, optimizer__lr=1e-30, loop__clip=None
    )
    each, pairs = (train(config, settings=[f"loop.accumulate={n}"], quiet=True) for n in (1, 2))
    assert (each.steps, pairs.steps) == (5, 3)
    assert curve(pairs.folder, "grad_norm")[2] == pytest.approx(curve(each.folder, "grad_norm")[4], rel=1e-5)


def test_it_stops_when_nothing_gets_better(scored: Path, tmp_path: Path) -> None:
    config = settings(
        scored, tmp_path, "baseline", optimizer__lr=1e-30, loop={"epochs": 9, "patience": 2, "device": "cpu"}
    )
    result = train(config, quiet=True)
    assert (result.epochs, result.best_epoch, result.over) == (3, 1, "no better rsum for 2 evaluations")
    resumed = train(resume=result.folder, quiet=True)
    assert resumed.epochs == 3, "it stays over"


def test_patience_waits_for_the_last_piece(scored: Path, tmp_path: Path) -> None:
    """CRCL begins again after two epochs, whose second is no better: that says nothing of the piece to come."""
    config = settings(
        scored, tmp_path, method={"name": "crcl", "pieces": [2, 3], "freeze": 0}, optimizer__lr=1e-30,
        loop={"patience": 1, "device": "cpu"},
    )  # fmt: skip
    result = train(config, quiet=True)
    assert (result.epochs, result.best_epoch, result.over) == (4, 3, "no better rsum for 1 evaluation")


@pytest.mark.parametrize(("how", "epochs"), [({"name": "aum", "warmup": 2}, 6), ({"name": "deft", "detect": 4}, 5)])
def test_patience_waits_until_the_clean_samples_are_found(
    scored: Path, tmp_path: Path, how: dict[str, Any], epochs: int
) -> None:
    """AUM's two turns take four epochs, after which new weights are measured twice; DeFT finds nothing, and goes on."""
    target = {**TARGET, "classes": str(scored / "clean" / "classes.txt")}
    config = settings(
        scored, tmp_path, method=how, target=target, task={"name": "classification"}, optimizer__lr=1e-30,
        loop={"epochs": 8, "patience": 1, "device": "cpu"},
    )  # fmt: skip
    result = train(config, quiet=True)
    assert result.epochs == epochs
    assert result.over.startswith("no better accuracy")


def test_the_average_is_what_is_measured(scored: Path, baseline: TrainResult, tmp_path: Path) -> None:
    averaged = train(settings(scored, tmp_path, "baseline", loop__epochs=1, loop__ema=0.999), quiet=True)
    assert curve(averaged.folder) == curve(baseline.folder)
    assert same_weights(averaged.folder / "last.safetensors", baseline.folder / "last.safetensors")
    assert not same_weights(averaged.folder / "best.safetensors", baseline.folder / "best.safetensors")
    assert evaluate_model(averaged.folder).figures == averaged.best


def test_bfloat16_is_close(scored: Path, tmp_path: Path) -> None:
    config = settings(scored, tmp_path, loop__epochs=1, loop__evaluate_every=0)
    exact, rounded = (
        np.array(curve(train(config, settings=[f"loop.precision={name}"], quiet=True).folder, "loss"))
        for name in ("32-true", "bf16-mixed")
    )
    assert (exact != rounded).any()
    np.testing.assert_allclose(rounded, exact, rtol=0.05)


# --- what goes wrong -------------------------------------------------------------------------------------------------


class Unlucky(Method):
    """Every third batch has no finite loss."""

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        loss = self.losses(run.forward(batches["all"])).mean()
        return StepLoss(loss * float("nan") if run.batch % 3 == 0 else loss)  # type: ignore[attr-defined]


class UnluckyConfig(MethodConfig):
    name: str = "unlucky"


Unlucky.Config = UnluckyConfig


def test_a_loss_that_is_no_number(scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "unlucky", Unlucky)
    config = settings(scored, tmp_path, "unlucky", loop__evaluate_every=0)
    with refused("loop.nan_limit", 0, NoisegateError) as caught:
        train(config, quiet=True)
    problem, advice = (
        "the loss is nan in batch 3 of epoch 1",
        "try optimizer.lr=0.0001 (now 0.001), or loop.nan_limit=10",
    )
    assert str(caught.value).startswith(f"{problem}; {advice}")
    result = train(config, settings=["loop.nan_limit=3"], quiet=True)
    assert (result.steps, result.skipped) == (7, 0)
    with refused("loop.nan_limit", 2, NoisegateError) as caught:
        train(config, settings=["loop.nan_limit=2"], quiet=True)
    assert "batch 4 of epoch 2" in str(caught.value)


def test_what_fails_before_the_first_step_leaves_no_folder(scored: Path, tmp_path: Path) -> None:
    heavy = settings(scored, tmp_path, method={"name": "osa", "weight": "images", "beta": "fixed:0.999999"})
    with refused("method.weight", "images"):
        train(heavy, quiet=True)
    features = {"name": "video", "features": 4, "frames": 2, "width": 8, "word_width": 8, "sentence_width": 8}
    config = settings(scored, tmp_path, "baseline", target=features, data__image_part="npy")
    with refused("data.eval_shards") as caught:
        train(config, quiet=True)
    assert "none of the 40 samples has what is needed (npy and txt/json)" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_people_and_logs_count_epochs_from_one(scored: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    shown = Progress()
    shown.note = notes.append  # type: ignore[method-assign]
    config = settings(scored, tmp_path, "baseline", loop={"max_steps": 2, "device": "cpu"}, schedule={"warmup": 25})
    result = train(config, display=shown)
    assert (result.best_epoch, curve(result.folder, "epoch")) == (1, [(1,), (1,)])
    assert notes[0] == f"run {result.folder}: 160 of 160 rows, 5 batches an epoch"
    assert notes[1].startswith("schedule.warmup=25 updates, and there will be 25: the learning rate will hardly reach")
    assert notes[2].startswith("epoch 1: i2t_r1 ")


class LooksConfig(MethodConfig):
    name: str = "looks"


class Looks(Method):
    """Counts pairs of a batch that show the same picture or caption."""

    Config = LooksConfig
    same = 0

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        seen = run.forward(batches["all"])
        assert seen.same is not None
        Looks.same = int(seen.same.sum())
        return StepLoss(self.losses(seen).mean())


def test_features_are_told_apart_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 captions of 12 videos, of which nothing but the features says which is which."""
    monkeypatch.setitem(METHODS, "looks", Looks)
    members = []
    for i in range(24):
        content = io.BytesIO()
        np.save(content, np.random.default_rng(i // 2).standard_normal((2, 4)).astype(np.float32))
        members += [(f"{i:03d}.npy", content.getvalue()), (f"{i:03d}.txt", f"caption number {i}".encode())]
    (tmp_path / "x.tar").write_bytes(tar_bytes(members))
    target = {"name": "video", "features": 4, "frames": 2, "width": 8, "word_width": 8, "sentence_width": 8}
    data = {"shards": [str(tmp_path / "x.tar")], "batch_size": 24, "image_part": "npy"}
    data["eval_shards"] = data["shards"]
    config = {"data": data, "target": target, "method": {"name": "looks"}, "out": str(tmp_path / "runs")}
    result = train({**config, "loop": {"epochs": 1, "device": "cpu"}}, quiet=True)
    assert (result.best["images"], result.best["captions"]) == (12, 24)
    assert Looks.same == 12 * 2 * 2, "each is its own, and its twin's, picture"


# --- classes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "figure", "method"),
    [
        ("classification", "accuracy", "osa"),
        ("image_retrieval", "map_at_r", "osa"),
        ("image_retrieval", "map_at_r", "baseline"),
    ],
)
def test_tasks_about_classes(scored: Path, tmp_path: Path, method: str, task: str, figure: str) -> None:
    target = {**TARGET, "classes": str(scored / "clean" / "classes.txt")}
    result = train(settings(scored, tmp_path, method, target=target, task__name=task, loop__epochs=1), quiet=True)
    assert result.monitor == figure
    assert 0 <= result.best[figure] <= 100
    assert ("osa_weight" in result.sample_columns) == (method == "osa")


# --- a method that asks for everything -------------------------------------------------------------------------------


class EverythingConfig(MethodConfig):
    name: str = "everything"


class Everything(Method):
    """Two networks with swapped losses, clean and noisy streams, a memory by row, and a restart after the first epoch."""

    Config = EverythingConfig
    networks = 2

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        self.loss_of = np.zeros((2, 0), np.float32)
        self.seen = np.zeros(0, np.int64)
        self.begun: list[int] = []

    def epochs(self, wanted: int) -> int:
        return wanted + 1

    def begin_epoch(self, run: Run) -> None:
        self.begun.append(run.epoch)
        if run.epoch == 0:
            self.seen = np.zeros(run.total_rows, np.int64)
        if run.epoch == 1:
            run.restart(epochs=2)
        found = [
            run.measure(lambda seen: {"loss": triplet(seen.similarity, 0.2, same=seen.same)}, k)["loss"]  # type: ignore[arg-type]
            for k in (0, 1)
        ]
        self.loss_of = np.stack([found[1], found[0]])

    def streams(self, run: Run) -> dict[str, Stream]:
        chosen = {}
        for k, name in enumerate("ab"):
            clean = self.loss_of[k] <= np.quantile(self.loss_of[k], 0.75)
            chosen[f"{name}_clean"] = Stream(clean, order=k)
            chosen[f"{name}_noisy"] = Stream(~clean, order=k)
        return {**chosen, "none": Stream(np.zeros(run.total_rows, bool))}

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        assert set(batches) == {"a_clean", "a_noisy", "b_clean", "b_noisy"}
        total = torch.zeros(())
        for k, name in enumerate("ab"):
            clean, noisy = (batches[f"{name}_{kind}"] for kind in ("clean", "noisy"))
            assert (self.loss_of[k][clean.rows] <= self.loss_of[k][noisy.rows].min()).all()
            np.add.at(self.seen, clean.rows.numpy(), 1)
            total = total + self.losses(run.forward(clean, k)).mean()
        return StepLoss(total, {"drawn": float(run.random("x").random())})

    def state_dict(self) -> dict[str, Any]:
        return {"loss_of": self.loss_of, "seen": self.seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loss_of, self.seen = state["loss_of"], state["seen"]

    def sample_columns(self) -> dict[str, Any]:
        return {"seen": self.seen}


def test_two_networks_passes_streams_and_restarts(
    scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "everything", Everything)
    config = settings(scored, tmp_path, "everything", schedule={"warmup": 2}, loop__save_every=2)
    whole = train(config, quiet=True)
    lengths = 120 // BATCH  # three quarters are clean; the noisy 40 start over
    assert (whole.epochs, whole.steps) == (3, 3 * lengths)
    rates = [rate for (rate,) in curve(whole.folder, "lr")]
    assert rates[:2] == rates[lengths : lengths + 2] == pytest.approx([5e-4, 1e-3]), "the warm-up comes again"
    assert whole.sample_columns["seen"].sum() == 3 * lengths * 2 * BATCH
    ours = [weights(whole.folder / name) for name in ("last.safetensors", "last-1.safetensors")]
    assert not torch.equal(ours[0]["model.visual.proj"], ours[1]["model.visual.proj"])
    assert evaluate_model(whole.folder).figures == whole.best, "both networks together"
    part = train(config, settings=[f"loop.max_steps={lengths + 1}"], quiet=True)
    assert part.epochs == 1
    done = train(resume=part.folder, settings=["loop.max_steps=null"], quiet=True)
    assert curve(done.folder, "loss", "lr", "drawn") == curve(whole.folder, "loss", "lr", "drawn")
    for name in ("last.safetensors", "last-1.safetensors"):
        assert same_weights(done.folder / name, whole.folder / name)
    assert done.sample_columns["seen"].tolist() == whole.sample_columns["seen"].tolist()


def test_repaired_labels_of_the_table_are_learnt_without_new_shards(scored: Path, tmp_path: Path) -> None:
    run = RunFolder(shutil.copytree(scored / "tables", tmp_path / "tables"))

    def losses(repair: Callable[[NDArray[Any]], NDArray[Any]], **changes: Any) -> list[tuple[Any, ...]]:
        for stem in run.stems():
            table = pq.read_table(run.table(stem))
            columns = {"refined_label": repair(table["label"].to_numpy())}
            run.write_table(stem, replace_columns(table, columns, read_metadata(run.table(stem))))
        target = {**TARGET, "classes": str(scored / "clean" / "classes.txt")}
        config = settings(
            scored, tmp_path, "baseline", target=target, task={"name": "classification"}, loop__epochs=1,
            data__table=str(run.path), **changes,
        )  # fmt: skip
        result = train(config, quiet=True)
        assert result.last["accuracy"] == evaluate_model(result.folder).figures["accuracy"], "by the shards' own labels"
        return curve(result.folder, "loss")

    given = losses(lambda label: label)
    assert losses(lambda label: label, data__label_column="refined_label") == given
    assert losses(lambda label: (label + 1) % 36, data__label_column="refined_label") != given
    assert losses(lambda label: (label + 1) % 36) == given, "only where it is asked for"
