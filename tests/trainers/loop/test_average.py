"""The moving average of weights by hand."""

import torch
from torch import nn

from noisegate.trainers.loop.average import Average


def network(value: float) -> nn.Module:
    made = nn.BatchNorm1d(1)
    nn.init.constant_(made.weight, value)
    return made


def test_average_by_hand() -> None:
    """d = min(.5, (1 + n) / (10 + n)): .1, 2/11, 3/12."""
    net = network(1.0)
    average = Average([net], 0.5)
    expected = 1.0
    for n, value in enumerate((2.0, 4.0, 8.0)):
        nn.init.constant_(net.weight, value)  # type: ignore[arg-type]
        average.update()
        decay = min(0.5, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * value
    torch.testing.assert_close(average.weights["0.weight"], torch.tensor([expected]))
    late = Average([network(0.0)], 0.5)
    late.updates = 1000
    nn.init.constant_(late._networks[0].weight, 1.0)  # type: ignore[arg-type]
    late.update()
    torch.testing.assert_close(late.weights["0.weight"], torch.tensor([0.5]))


def test_counters_are_copied_and_networks_get_their_weights_back() -> None:
    net = network(1.0)
    average = Average([net], 0.9)
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
    average = Average([net], 0.9)
    nn.init.constant_(net.weight, 5.0)  # type: ignore[arg-type]
    average.update()
    kept = {name: tensor.clone() for name, tensor in average.weights.items()}
    average.restart()
    assert (average.updates, average.weights["0.weight"].item()) == (0, 5.0)
    average.load(kept, 1)
    assert average.updates == 1
    assert torch.equal(average.weights["0.weight"], kept["0.weight"])
