"""Steps of any method outside a training run: its loss and gradients on real batches, as often as a test likes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray

from noisegate.pipeline.system import Progress
from noisegate.trainers.checks import check_config
from noisegate.trainers.config import TrainConfig
from noisegate.trainers.data import Batch, WeightedShards
from noisegate.trainers.loop.loop import Loop
from noisegate.trainers.loop.run_context import PICTURE, RunContext, Streams
from noisegate.trainers.loop.run_folder import TrainFolder
from noisegate.trainers.methods import METHODS
from noisegate.trainers.targets import build_target, resolve_target
from tests.trainers.runs import TARGET, settings

Weights = NDArray[np.float32]


def describe(data: Path, out: Path, name: str, /, **how: Any) -> dict[str, Any]:
    """Settings of a run of seconds by any method, with a warm-up of one epoch where the method has one."""
    kind = METHODS[name]
    task = kind.tasks[0]
    how = {"name": name, **({"warmup": 1} if "warmup" in kind.Config.model_fields else {}), **how}
    target = TARGET if task == "retrieval" else {**TARGET, "classes": str(data / "clean" / "classes.txt")}
    return settings(data, out, method=how, target=target, task={"name": task}, loop__epochs=3)


class MethodSteps:
    """A method with its networks and data, whose steps can be repeated with other weights."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.context, self.method, self.streams = loop, loop.context, loop.method, loop.streams
        self.batches: dict[str, Batch] = {}
        self.method.start(self.context)

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
        """Loss and gradients of all parameters, the method's own included; what the method remembers stays as it was."""
        before = {name: np.array(value) for name, value in self.method.state_dict().items()}
        modules = [*self.context.networks, *self.loop._method_modules]
        for module in modules:
            module.train().zero_grad()
        self.method._weights = None
        if weights is not None:
            self.method.set_weights(weights)
        loss = self.method.loss(self.batches, self.context).loss
        assert loss is not None
        loss.backward()
        self.method.load_state_dict(before)
        parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
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
    fabric = Fabric(accelerator="cpu", devices=1)
    folder = TrainFolder(config.out)
    yield MethodSteps(
        Loop(config, fabric, checked.method, networks, context, streams, folder, None, Progress(), None, "rsum")
    )
    for part in (streams, context, view, data):
        part.close()
