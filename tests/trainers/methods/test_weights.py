"""`method.weights`: a column of the table on the per-sample loss of every method."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from noisegate import train
from noisegate.trainers.checks import check_config
from noisegate.trainers.config import TrainConfig
from noisegate.trainers.data import Batch, WeightedShards
from noisegate.trainers.loop.run_context import PICTURE, RunContext, Streams
from noisegate.trainers.methods import METHODS, Method
from noisegate.trainers.targets import build_target, resolve_target
from tests.errors import refused
from tests.trainers.runs import TARGET, curve, settings

Weights = NDArray[np.float32]


def describe(data: Path, out: Path, name: str, **how: Any) -> dict[str, Any]:
    """Settings of a run of seconds by any method, with a warm-up of one epoch where the method has one."""
    kind = METHODS[name]
    task = kind.tasks[0]
    how = {"name": name, **({"warmup": 1} if "warmup" in kind.Config.model_fields else {}), **how}
    target = TARGET if task == "retrieval" else {**TARGET, "classes": str(data / "clean" / "classes.txt")}
    return settings(data, out, method=how, target=target, task={"name": task}, loop__epochs=3)


class MethodSteps:
    """A method with its networks and data, whose steps can be repeated with other weights."""

    def __init__(self, config: TrainConfig, context: RunContext, method: Method, streams: Streams) -> None:
        self.context, self.method, self.streams = context, method, streams
        self.batches: dict[str, Batch] = {}
        method.epochs(config.loop.epochs)
        method.start(context)

    def go_to(self, epoch: int) -> None:
        """Take the steps of all epochs before without learning, and the first batches of this one."""
        ones = np.ones(self.context.total_rows, np.float32)
        self.method.set_weights(ones)
        for number in range(epoch + 1):
            self.context.epoch = number
            self.method.begin_epoch(self.context)
            self.streams.begin(number, self.method.streams(self.context))
            for batches in self.streams.batches(0):
                if number == epoch:
                    self.batches = batches
                    return
                self.method.loss(batches, self.context)

    def step(self, weights: Weights | None) -> tuple[float, list[torch.Tensor]]:
        """Loss and gradients of all parameters; what the method remembers stays as it was."""
        before = {name: np.array(value) for name, value in self.method.state_dict().items()}
        for network in self.context.networks:
            network.train().zero_grad()
        self.method._weights = None
        if weights is not None:
            self.method.set_weights(weights)
        loss = self.method.loss(self.batches, self.context).loss
        assert loss is not None
        loss.backward()
        self.method.load_state_dict(before)
        parameters = [p for network in self.context.networks for p in network.parameters() if p.requires_grad]
        return float(loss.detach()), [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]


@contextmanager
def opened(tree: dict[str, Any]) -> Iterator[MethodSteps]:
    """The steps of a method by its settings."""
    config = TrainConfig.parse(tree)
    checked = check_config(config)
    retrieval = config.task.name == "retrieval"
    data = WeightedShards(
        config.data.shards,
        config.data.table,
        **config.data.read_options(config.task.name),
        batch_size=config.data.batch_size,
        columns=checked.method.columns(),
        where=checked.where,
    )

    def captions() -> list[str]:
        return [caption for batch in data.view(sampler="sequential") for caption in batch.captions]

    target = resolve_target(checked.target, captions)
    networks = [build_target(target, seed=i) for i in range(checked.method.networks)]
    view = data.view(
        image=networks[0].image_transform(True),
        text=networks[0].tokenizer if retrieval else None,
        fields=(PICTURE,) if retrieval else (),
    )
    context = RunContext(config, networks, view, torch.device("cpu"), 1, lambda text: None)
    streams = Streams(view, config.seed)
    yield MethodSteps(config, context, checked.method, streams)
    for part in (streams, context, view, data):
        part.close()


@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize("name", METHODS)
def test_a_weight_multiplies_the_loss_of_each_sample(scored: Path, tmp_path: Path, name: str, epoch: int) -> None:
    """None at 0, nothing changed at 1, and the sum of two parts of the samples is the whole."""
    with opened(describe(scored, tmp_path, name)) as steps:
        steps.go_to(epoch)
        rows = steps.context.total_rows
        part = (np.random.default_rng(0).random(rows) < 0.5).astype(np.float32)
        plain, gradients = steps.step(None)
        none, no_gradients = steps.step(np.zeros(rows, np.float32))
        same, same_gradients = steps.step(np.ones(rows, np.float32))
        halves = [steps.step(weights)[0] for weights in (part, 1 - part)]
    assert plain > 0 and any(bool(gradient.any()) for gradient in gradients)
    assert none == 0 and not any(bool(gradient.any()) for gradient in no_gradients)
    assert same == pytest.approx(plain, rel=1e-6)
    for one, other in zip(same_gradients, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
    if not (name == "dividemix" and epoch):  # its L_reg is of all samples together
        assert sum(halves) == pytest.approx(plain, rel=1e-5)
        assert min(halves) > 0


def test_plain_training_with_osa_weights_is_osa(scored: Path, tmp_path: Path) -> None:
    """The weights of Eq. 6 on the baseline, scaled to a mean of 1, are what `osa` does; in the words of the command."""
    osa = train(settings(scored, tmp_path, "osa", loop__epochs=1), quiet=True)
    weighted = settings(scored, tmp_path, "baseline", loop__epochs=1)
    weighted["method"]["weights"] = "osa_weight"
    found = train(weighted, quiet=True)
    np.testing.assert_allclose(curve(found.folder, "loss"), curve(osa.folder, "loss"), rtol=1e-5)


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ({"weights": "key"}, "key"),
        ({"weights": "index"}, "index"),
        ({"weights": "label"}, "label"),
        ({"weights": "osa_weigth"}, "osa_weigth"),
        ({"weights": "lnc_label"}, "lnc_label"),  # empty in this table
        ({"name": "osa", "weights": "osa_weight"}, "osa_weight"),
    ],
)
def test_columns_that_are_no_weights_are_refused(scored: Path, tmp_path: Path, how: dict[str, Any], value: str) -> None:
    with refused("method.weights", value):
        check_config(TrainConfig.parse(settings(scored, tmp_path, method={"name": "baseline", **how})))


def test_weights_need_a_table(scored: Path, tmp_path: Path) -> None:
    tree = settings(scored, tmp_path, method={"name": "baseline", "weights": "osa_weight"}, data__table=None)
    with refused("data.table", None):
        check_config(TrainConfig.parse(tree))
