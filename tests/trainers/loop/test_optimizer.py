"""Learning rates by hand, and which parameters decay."""

import math

import pytest
import torch
from torch import nn

from noisegate.trainers.config import OptimizerConfig, ScheduleConfig
from noisegate.trainers.loop.optimizer import LearningRate, WeightAverage, build_optimizer, parameter_groups


def test_warm_up_then_cosine() -> None:
    """Two epochs of ten updates, four of warm-up: 1/4, 2/4, 3/4, 1, then half a cosine over the other sixteen."""
    course = LearningRate(ScheduleConfig(warmup=4), epochs=2, warmup=0.4)
    found = [course.factor(update / 10) for update in range(20)]
    expected = [0.25, 0.5, 0.75, 1.0] + [(1 + math.cos(math.pi * i / 16)) / 2 for i in range(16)]
    assert found == pytest.approx(expected)
    assert course.factor(2.0) == pytest.approx(0.0)


def test_a_floor_is_where_it_ends() -> None:
    course = LearningRate(ScheduleConfig(floor=0.1), epochs=4, warmup=0)
    assert [course.factor(t) for t in (0, 2, 4, 9)] == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_constant_and_steps() -> None:
    assert LearningRate(ScheduleConfig(name="constant"), 3, 0).factor(2.9) == 1
    course = LearningRate(ScheduleConfig(name="step", every=2, factor=0.1), epochs=6, warmup=0)
    assert [course.factor(t) for t in (0, 1.9, 2, 3.99, 4)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])


def test_a_restart_begins_anew() -> None:
    first, again = (LearningRate(ScheduleConfig(warmup=2), 3, 0.2, start) for start in (0, 5))
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


def network(value: float) -> nn.Module:
    made = nn.BatchNorm1d(1)
    nn.init.constant_(made.weight, value)
    return made


def test_average_by_hand() -> None:
    """d = min(.5, (1 + n) / (10 + n)): .1, 2/11, 3/12."""
    net = network(1.0)
    average = WeightAverage([net], 0.5)
    expected = 1.0
    for n, value in enumerate((2.0, 4.0, 8.0)):
        nn.init.constant_(net.weight, value)  # type: ignore[arg-type]
        average.update()
        decay = min(0.5, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * value
    torch.testing.assert_close(average.weights["0.weight"], torch.tensor([expected]))
    late = WeightAverage([network(0.0)], 0.5)
    late.updates = 1000
    nn.init.constant_(late._networks[0].weight, 1.0)  # type: ignore[arg-type]
    late.update()
    torch.testing.assert_close(late.weights["0.weight"], torch.tensor([0.5]))


def test_counters_are_copied_and_networks_get_their_weights_back() -> None:
    net = network(1.0)
    average = WeightAverage([net], 0.9)
    net.num_batches_tracked.fill_(7)  # type: ignore[operator, union-attr]
    nn.init.constant_(net.weight, 3.0)  # type: ignore[arg-type]
    average.update()
    assert int(average.weights["0.num_batches_tracked"]) == 7
    mean = average.weights["0.weight"].clone()
    assert mean.item() != 3.0
    with average.applied():
        assert torch.equal(net.weight, mean)  # type: ignore[arg-type]
    assert net.weight.item() == 3.0  # type: ignore[operator, union-attr]
    assert torch.equal(average.weights["0.weight"], mean)


def test_restart_and_load() -> None:
    net = network(1.0)
    average = WeightAverage([net], 0.9)
    nn.init.constant_(net.weight, 5.0)  # type: ignore[arg-type]
    average.update()
    kept = {name: tensor.clone() for name, tensor in average.weights.items()}
    average.restart()
    assert (average.updates, average.weights["0.weight"].item()) == (0, 5.0)
    average.load(kept, 1)
    assert average.updates == 1
    assert torch.equal(average.weights["0.weight"], kept["0.weight"])
