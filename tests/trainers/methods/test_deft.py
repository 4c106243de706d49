"""DeFT: its two losses by hand, what reaches the negative texts, and wrong labels found among features around centres."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from noisegate import train
from noisegate.trainers.methods.deft import Deft, clean_probability, dual_prompt_loss
from tests.errors import refused
from tests.trainers.methods.method_steps import describe, opened
from tests.trainers.methods.test_learning import trained, write_features
from tests.trainers.runs import same_weights


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_the_probability_compares_a_classs_two_texts_at_the_scale_of_the_logits() -> None:
    logits, vectors = torch.tensor([[6.0, 3.0]]), torch.tensor([[0.6, 0.8]])
    negative = torch.tensor([[2.0, 0.0], [0.0, 0.5]])  # taken as unit rows
    p = clean_probability(logits, vectors, negative, torch.tensor(0.1))
    assert p[0].tolist() == pytest.approx([0.5, sigmoid(3 - 8)])


def test_the_dual_prompt_loss_believes_one_class_and_denies_another() -> None:
    p = torch.tensor([[0.8, 0.3, 0.1], [0.2, 0.5, 1.0]])
    loss = dual_prompt_loss(p, torch.tensor([0, 1]), torch.tensor([1, 2]))
    assert loss.tolist() == pytest.approx([-math.log(0.8) - math.log(0.7), -math.log(0.5) - math.log(1e-5)], rel=1e-5)


def test_a_step_learns_the_negative_texts_by_hand(scored: Path, tmp_path: Path) -> None:
    """In the warm-up every sample counts for L_sim, and y' is the given class."""
    with opened(describe(scored, tmp_path, "deft")) as steps:
        deft = steps.method
        assert isinstance(deft, Deft)
        steps.go_to(0)
        batch, before = steps.batches["all"], torch.from_numpy(deft.negative.copy()).requires_grad_()
        seen = steps.context.observe(batch)
        assert seen.logits is not None and seen.labels is not None
        count = seen.logits.shape[1]
        drawn = steps.context.random("other class").integers(1, count, len(seen.labels))
        others = (seen.labels + torch.from_numpy(drawn)) % count
        p = torch.sigmoid(seen.logits - seen.images["vectors"] @ before.T / seen.temperature)
        rows = torch.arange(len(p))
        loss = (-p[rows, seen.labels].log() - (1 - p[rows, others]).log()).mean()
        (gradient,) = torch.autograd.grad(loss, before)
        along = (gradient * before).sum(dim=1, keepdim=True) * before  # the length of T- does not count
        step = deft.loss(steps.batches, steps.context).loss
        assert step is not None
        plain = torch.nn.functional.cross_entropy(seen.logits, seen.labels)
        assert float(step.detach()) == pytest.approx(float(plain), rel=1e-5)
        moved = before - 0.03 * (gradient - along)
        expected = moved / moved.norm(dim=1, keepdim=True)
        np.testing.assert_allclose(deft.negative, expected.detach().numpy(), atol=1e-5)
        assert not (others == seen.labels).any()


def test_deft_finds_wrong_labels_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    """Two labels in five are wrong; the warm-up is the published one for made noise."""
    truth, given = write_features(tmp_path / "train.tar", 640, 0.4, seed=1)
    write_features(tmp_path / "held.tar", 200, 0.0, seed=2)
    result = trained(tmp_path, tmp_path / "runs", name="deft", warmup=1)
    clean, right = result.sample_columns["clean"], truth == given
    assert right[clean].mean() > 0.8 and clean[right].mean() > 0.7
    again = train(result.folder / "config.yaml", settings=["loop.max_steps=50"], quiet=True)
    rest = train(resume=again.folder, settings=["loop.max_steps=null"], quiet=True)
    assert same_weights(result.folder / "last.safetensors", rest.folder / "last.safetensors")


def test_finding_must_leave_epochs(scored: Path, tmp_path: Path) -> None:
    with refused("method.detect", 4), opened(describe(scored, tmp_path, "deft", detect=4)):
        pass


def test_autocast_does_not_round_the_cosines() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, vectors, negative = (torch.randn(n, 16, generator=generator) for n in (5, 5, 16))
    exact = clean_probability(logits, vectors, negative, torch.tensor(0.01))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert clean_probability(logits, vectors, negative, torch.tensor(0.01)).equal(exact)
