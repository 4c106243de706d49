"""Learning rates by hand, and which parameters decay."""

import math

import pytest
import torch
from torch import nn

from noisegate.trainers.config import OptimizerConfig, ScheduleConfig
from noisegate.trainers.loop.schedule import Course, build_optimizer, parameter_groups


def test_warm_up_then_cosine() -> None:
    """Two epochs of ten updates, four of warm-up: 1/4, 2/4, 3/4, 1, then half a cosine over the other sixteen."""
    course = Course(ScheduleConfig(warmup=4), epochs=2, warmup=0.4)
    found = [course.factor(update / 10) for update in range(20)]
    expected = [0.25, 0.5, 0.75, 1.0] + [(1 + math.cos(math.pi * i / 16)) / 2 for i in range(16)]
    assert found == pytest.approx(expected)
    assert course.factor(2.0) == pytest.approx(0.0)


def test_a_floor_is_where_it_ends() -> None:
    course = Course(ScheduleConfig(floor=0.1), epochs=4, warmup=0)
    assert [course.factor(t) for t in (0, 2, 4, 9)] == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_constant_and_steps() -> None:
    assert Course(ScheduleConfig(name="constant"), 3, 0).factor(2.9) == 1
    course = Course(ScheduleConfig(name="step", every=2, factor=0.1), epochs=6, warmup=0)
    assert [course.factor(t) for t in (0, 1.9, 2, 3.99, 4)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])


def test_a_restart_begins_anew() -> None:
    first, again = (Course(ScheduleConfig(warmup=2), 3, 0.2, start) for start in (0, 5))
    assert [again.factor(5 + i / 10) for i in range(30)] == pytest.approx([first.factor(i / 10) for i in range(30)])


def test_matrices_decay_and_nothing_else() -> None:
    network = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2), nn.Linear(2, 2))
    network[2].weight.requires_grad_(False)
    decayed, plain = parameter_groups([network], 0.2)
    assert [p.shape for p in decayed["params"]] == [(2, 3)]
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.2, 0.0)
    assert len(plain["params"]) == 4


@pytest.mark.parametrize(
    ("name", "kind"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)]
)
def test_optimisers_by_name(name: str, kind: type[torch.optim.Optimizer]) -> None:
    config = OptimizerConfig.model_validate({"name": name, "lr": 0.5, "betas": (0.8, 0.9), "momentum": 0.7})
    found = build_optimizer(config, [nn.Linear(2, 2)])
    assert type(found) is kind
    assert found.defaults["lr"] == 0.5
    assert found.defaults.get("betas", (0.8, 0.9)) == (0.8, 0.9)
    assert found.defaults.get("momentum", 0.7) == 0.7
