"""NPC by hand: the bank, the trial update against a real one, the weights through the method, and a whole run."""

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from noisegate import train
from noisegate.trainers.checks import check_config
from noisegate.trainers.config import TrainConfig
from noisegate.trainers.losses import info_nce
from noisegate.trainers.methods import Stream
from noisegate.trainers.methods.npc import confidence_weight, loss_ratio, nearest_clean
from noisegate.trainers.targets import Target
from tests.errors import refused
from tests.trainers.methods.method_steps import MethodSteps, describe, opened
from tests.trainers.runs import curve, same_weights, settings


def test_the_bank_is_the_nearest_clean_row_by_loops() -> None:
    rng = np.random.default_rng(0)
    vectors, clean = rng.standard_normal((30, 4)).astype(np.float32), rng.random(30) < 0.4
    vectors[7] = np.nan
    found = nearest_clean(vectors, clean & (np.arange(30) != 7))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for i in range(30):
        best = max((j for j in range(30) if clean[j] and j != 7), key=lambda j: float(unit[i] @ unit[j]))
        assert found[i] == (-1 if i == 7 else best)
    assert nearest_clean(vectors, np.zeros(30, bool)).tolist() == [-1] * 30


def test_ratio_and_weight_by_hand() -> None:
    before = torch.tensor([[1.0, 2.0, 0.0], [1.0, 1.0, 0.0]])
    after = torch.tensor([[2.0, 1.0, 0.0], [4.0, 1.0, 0.0]])
    ratio = loss_ratio(before, after)
    assert ratio.tolist() == pytest.approx([(1 / 2 + 1 / 4) / 2, (2 + 1) / 2, 1.0])
    assert confidence_weight(ratio).tolist() == pytest.approx([math.tanh(0.375), 1.0, 1.0])


@pytest.mark.parametrize("optimizer", [{"name": "adamw", "weight_decay": 0.1}, {"name": "sgd", "momentum": 0.9}])
def test_a_trial_update_is_what_a_real_one_would_do(scored: Path, tmp_path: Path, optimizer: dict[str, object]) -> None:
    """With gradients clipped and the optimiser's memory of an earlier update; and nothing is changed by the trial."""
    tree = describe(scored, tmp_path, "baseline")
    with opened({**tree, "optimizer": {"lr": 1e-2, **optimizer}, "loop": {**tree["loop"], "clip": 0.1}}) as steps:
        steps.go_to(0)
        network = steps.context.networks[0].train()
        steps.loop.backward(steps.batches)
        steps.loop.update()
        loss = steps.method.loss(steps.batches, steps.context).loss
        assert loss is not None
        kept = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        tried = steps.context.try_update(loss)
        assert all(torch.equal(kept[name], tensor) for name, tensor in network.state_dict().items())
        steps.loop.backward(steps.batches)
        steps.loop.update()
        real = dict(network.named_parameters())
    assert len(tried) > 5
    for name, weights in tried.items():
        if name != "clip.logit_scale":  # held in its range after a real update
            torch.testing.assert_close(weights, real[name].detach())
        assert not torch.equal(weights, kept[name])


def bank_losses(steps: MethodSteps, network: Target, rows: np.ndarray) -> torch.Tensor:
    """(B,) InfoNCE of these rows among themselves by the network alone; equal pictures and captions are no negatives."""
    batch = steps.context.read(rows)
    assert batch.images is not None
    network.eval()
    with torch.no_grad():
        similarity = network.similarity(network.encode_images(batch.images), network.encode_texts(batch.texts))
        pictures = batch.fields["image_sha256"]
        same = torch.tensor(
            [
                [a == b or x == y for b, y in zip(pictures, batch.captions, strict=True)]
                for a, x in zip(pictures, batch.captions, strict=True)
            ]
        )
        return info_nce(similarity, network.temperature, same)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_step_weighs_by_a_siamese_network(scored: Path, tmp_path: Path, share: float) -> None:
    """The siamese network is a copy here, and its update plain gradient descent."""
    tree = describe(scored, tmp_path, "npc", warmup=0, bank_loss=share)
    optimizer = {"name": "sgd", "lr": 0.5, "momentum": 0.0, "weight_decay": 0.0}
    with opened({**tree, "optimizer": optimizer, "loop": {**tree["loop"], "clip": None}}) as steps:
        steps.go_to(0)
        npc, network = steps.method, steps.context.networks[0]
        rows = steps.batches["all"].rows.numpy()
        rng = np.random.default_rng(0)
        npc.image_bank, npc.text_bank = (rng.integers(0, 160, 160) for _ in range(2))  # type: ignore[attr-defined]
        banks = [bank[rows] for bank in (npc.image_bank, npc.text_bank)]  # type: ignore[attr-defined]
        siamese = copy.deepcopy(network).train()
        seen = steps.context.forward(steps.batches["all"])
        each = info_nce(seen.similarity, seen.temperature, seen.same)  # type: ignore[arg-type]
        gradients = torch.autograd.grad(each.mean(), list(network.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(siamese.parameters(), gradients, strict=True):
                parameter -= 0.5 * gradient
        before = [bank_losses(steps, network, bank) for bank in banks]
        after = [bank_losses(steps, siamese, bank) for bank in banks]
        ratio = (before[0] / after[0] + before[1] / after[1]) / 2
        weight = torch.where(ratio < 1, torch.tanh(ratio), torch.ones(()))
        expected = float((weight * each).mean().detach()) + share * float(before[0].mean() + before[1].mean())
        loss, _ = steps.step(None)
        assert 0 < (weight < 1).sum() < len(weight)
        assert loss == pytest.approx(expected, rel=1e-4)


def test_without_a_bank_it_is_plain_training(scored: Path, tmp_path: Path) -> None:
    with (
        opened(describe(scored, tmp_path, "npc", warmup=2)) as npc,
        opened(describe(scored, tmp_path, "baseline")) as b,
    ):
        npc.go_to(1)
        b.go_to(1)
        assert npc.step(None)[0] == b.step(None)[0]
        assert npc.method.sample_columns() == {}


@pytest.mark.parametrize(("rebuild", "again"), [(None, True), (1, True), (2, False), (0, False)])
def test_from_scratch_the_bank_is_built_again_every_epoch(
    scored: Path, tmp_path: Path, rebuild: int | None, again: bool
) -> None:
    with opened(describe(scored, tmp_path, "npc", warmup=0, rebuild=rebuild)) as steps:
        steps.go_to(0)
        npc = steps.method
        npc.image_bank = np.full(160, 7)  # type: ignore[attr-defined]
        steps.context.epoch = 1
        npc.begin_epoch(steps.context)
        assert (set(npc.image_bank.tolist()) != {7}) == again  # type: ignore[attr-defined]


def test_all_pairs_are_judged_among_as_many_others(scored: Path, tmp_path: Path) -> None:
    """Among few others the loss of any pair is small; so the rows left over by 160 / 52 would be the whole bank."""
    tree = describe(scored, tmp_path, "npc", warmup=0)
    with opened({**tree, "data": {**tree["data"], "batch_size": 52}}) as steps:
        among = steps.context.measure(lambda seen: {"among": torch.full((len(seen.rows),), float(len(seen.rows)))})
        assert set(among["among"].tolist()) == {52.0}
        steps.go_to(0)
        clean = steps.method.probability > 0.9  # type: ignore[attr-defined]
        assert clean.sum() > 4


def test_a_stream_of_one_row_is_left_out(scored: Path, tmp_path: Path) -> None:
    """Batch norm refuses a batch of one, and no loss among pairs has anything to compare it with."""
    with opened(describe(scored, tmp_path, "npc", warmup=0)) as steps:
        rows = np.arange(steps.context.total_rows)
        steps.streams.begin(0, {"one": Stream(rows == 3), "rest": Stream(rows != 3)})
        assert [set(batches) for batches in steps.streams.batches(0)] == [{"rest"}] * len(steps.streams)
        steps.streams.begin(0, {"two": Stream(rows < 2)})
        assert [len(batches["two"]) for batches in steps.streams.batches(0)] == [2]


def test_a_whole_run_goes_on_after_a_stop_as_if_it_had_not(scored: Path, tmp_path: Path) -> None:
    how = {"name": "npc", "warmup": 1}
    whole = train(settings(scored, tmp_path, method=how, loop__epochs=3), quiet=True)
    part = train(settings(scored, tmp_path, method=how, loop__epochs=3, loop__max_steps=8), quiet=True)
    rest = train(resume=part.folder, settings=["loop.max_steps=null"], quiet=True)
    assert same_weights(whole.folder / "last.safetensors", rest.folder / "last.safetensors")
    assert curve(rest.folder) == curve(whole.folder)
    columns = whole.sample_columns
    assert set(columns) == {"npc_weight", "npc_probability"}
    known = np.isfinite(columns["npc_weight"])
    assert known.mean() > 0.7 and (columns["npc_weight"][known] <= 1).all()


def test_a_warm_up_that_leaves_nothing_is_refused(scored: Path, tmp_path: Path) -> None:
    with refused("method.warmup", 2):
        check_config(TrainConfig.parse(settings(scored, tmp_path, method={"name": "npc", "warmup": 2})))
