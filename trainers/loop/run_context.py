"""A method's view of a run (`methods.Run`): networks, batches gathered over all ranks, passes over all data."""

import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system import Mask, counted
from noisegate.trainers.config import TrainConfig
from noisegate.trainers.data import Batch, WeightedShards
from noisegate.trainers.data.batch import map_tensors
from noisegate.trainers.methods import Method, Seen, Stream
from noisegate.trainers.targets import Encoded, Target, TargetConfig, build_target, gather, gather_tensor

REPEAT_OFFSET = 1_000_000
"""added to the epoch's number when a short stream starts over, so that its order changes"""
ORDER_OFFSET = 7_919
"""added to the seed for each further `Stream.order`"""


PICTURE = "image_sha256"
"""the field that identifies a picture"""
Array = NDArray[Any]


def network_seed(seed: int, network: int, restarts: int = 0) -> int:
    """Return the seed of a network's initial weights: different for each network and each restart."""
    return seed + 1_000 * network + 1_000_000 * restarts


PERTURBATION = 0.01
"""deviation of the noise on the weights of a further pretrained network, as a share of each tensor's own deviation; chosen"""


def build_network(config: TargetConfig, seed: int, network: int, restarts: int = 0, *, weights: bool = True) -> Target:
    """Build a run's network by number. Pretrained networks after the first are perturbed, so that networks differ.

    Normal noise of 1/100 of each weight matrix's own deviation is added; norms, biases and scales stay.
    """
    own_seed = network_seed(seed, network, restarts)
    target = build_target(config, seed=own_seed, weights=weights)
    if network and weights and not target.config.from_scratch:
        generator = torch.Generator().manual_seed(own_seed)
        with torch.no_grad():
            for parameter in target.trainable_parameters().values():
                if parameter.ndim > 1:
                    noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                    parameter.add_(PERTURBATION * parameter.std() * noise)
    return target


class RunContext:
    """The loop's implementation of `methods.Run`."""

    def __init__(
        self,
        config: TrainConfig,
        networks: Sequence[Target],
        data: WeightedShards,
        device: torch.device,
        world: int,
        note: Callable[[str], None],
    ) -> None:
        self.task: str = config.task.name
        self.seed = config.seed
        self.epoch = self.batch = 0
        self.done = 0.0
        self.total_rows = data.total_rows
        self.stems = [stem for stem, _ in data.row_keys()]
        self.device = device
        self.table: Path | None = config.data.table
        self.networks, self.data = networks, data
        self.restarts = 0
        self.on_restart: Callable[[int | None], None] = lambda epochs: None
        self.on_trial: Callable[
            [int, Mapping[str, Tensor]], dict[str, Tensor]
        ]  # set by the loop, which has the optimiser
        self._config, self._world = config, world
        self._note = note
        self._pass: WeightedShards | None = None

    # --- a step -----------------------------------------------------------------------------------------------------------

    def forward(self, batch: Batch, network: int = 0) -> Seen:
        return self._encode(self.on_device(batch), network, alone=False)

    def encode_images(self, images: Tensor, network: int = 0) -> Encoded:
        return self.networks[network].encode_images(images.to(self.device, non_blocking=True))

    def read(self, rows: Array) -> Batch:
        return self.data.read(np.asarray(rows, np.int64), self.epoch)

    @torch.no_grad()
    def observe(self, batch: Batch, network: int = 0, weights: Mapping[str, Tensor] | None = None) -> Seen:
        target, moved = self.networks[network], self.on_device(batch)
        was_training = target.training
        target.eval()
        module = _Encoder(target, lambda batch: self._encode(batch, network, alone=False))
        seen: Seen = functional_call(module, {f"target.{name}": w for name, w in (weights or {}).items()}, (moved,))
        target.train(was_training)
        return seen

    def try_update(self, loss: Tensor, network: int = 0) -> dict[str, Tensor]:
        named = {name: p for name, p in self.networks[network].named_parameters() if p.requires_grad}
        found = torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
        gradients = {name: gradient for name, gradient in zip(named, found, strict=True) if gradient is not None}
        if self._world > 1:
            for gradient in gradients.values():
                dist.all_reduce(gradient)
                gradient /= self._world
        return self.on_trial(network, gradients)

    def gather(self, rows: Tensor) -> Tensor:
        return gather_tensor(rows.to(self.device)) if self._world > 1 else rows

    def on_device(self, batch: Batch) -> Batch:
        self._check_labels(batch)
        return batch.to(self.device, non_blocking=True)

    def network(self, network: int = 0) -> Target:
        return self.networks[network]

    def random(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.epoch, self.batch, zlib.crc32(purpose.encode())])

    def note(self, text: str) -> None:
        self._note(text)

    # --- all data ---------------------------------------------------------------------------------------------------------

    def column(self, name: str) -> Array:
        return self.data.column(name)

    @cached_property
    def data_digest(self) -> str:
        """A digest that changes with the tables."""
        return self.data.digest()

    def row_mean(self, values: Array) -> float:
        return float(np.nan_to_num(values[self.data.ok_rows()].astype(np.float64), nan=0.0).mean())

    @torch.no_grad()
    def measure(
        self, function: Callable[[Seen], Mapping[str, Tensor]], network: int = 0, *, texts: bool = True
    ) -> dict[str, Array]:
        return self._measure(lambda seen, _: function(seen), [network], texts)[0]

    @torch.no_grad()
    def measure_each(
        self, function: Callable[[Seen, int], Mapping[str, Tensor]], *, texts: bool = True
    ) -> list[dict[str, Array]]:
        return self._measure(function, range(len(self.networks)), texts)

    def _measure(
        self, function: Callable[[Seen, int], Mapping[str, Tensor]], networks: Sequence[int], texts: bool
    ) -> list[dict[str, Array]]:
        """Pass over all data on each rank separately, so that no rank waits for a short last batch of another."""
        targets = [self.networks[network] for network in networks]
        if self._pass is None:
            self._pass = self.data.view(image=targets[0].image_transform(False), rank=0, world=1, fill_last=True)
        self._pass.load_state_dict({"epoch": self.epoch, "batch": 0})
        were_training = [target.training for target in targets]
        for target in targets:
            target.eval()
        results: list[dict[str, Array]] = [{} for _ in networks]
        for batch in self._pass:
            moved = self.on_device(batch if texts else replace(batch, texts=None))
            for network, arrays in zip(networks, results, strict=True):
                for name, values in function(self._encode(moved, network, alone=True, classes=texts), network).items():
                    array = values.detach().float().cpu().numpy()
                    if name not in arrays:
                        arrays[name] = np.full((self.total_rows, *array.shape[1:]), np.nan, np.float32)
                    arrays[name][batch.rows.numpy()] = array
        for target, was_training in zip(targets, were_training, strict=True):
            target.train(was_training)
        return results

    def restart(self, epochs: int | None = None) -> None:
        self.restarts += 1
        for i, network in enumerate(self.networks):
            fresh = build_network(network.config, self.seed, i, self.restarts)
            network.load_state_dict(fresh.state_dict())
        self.on_restart(epochs)

    def close(self) -> None:
        """Stop the data workers."""
        if self._pass is not None:
            self._pass.close()

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _check_labels(self, batch: Batch) -> None:
        """Raise ConfigError for a label without a class; checked on the CPU, where it needs no synchronisation."""
        classes = self.networks[0].classes if self.task == "classification" else None
        if classes is None or batch.labels is None or batch.labels.is_cuda or not len(batch):
            return
        at = int(batch.labels.argmax())
        if int(batch.labels[at]) >= len(classes):
            label = f"sample {batch.keys[at]} has the label {int(batch.labels[at])}"
            problem = f"target.classes has {counted(len(classes), 'name')}, and {label}; give a name for every label"
            raise ConfigError(problem, "target.classes", len(classes))

    def _encode(self, batch: Batch, network: int, alone: bool, classes: bool = True) -> Seen:
        """Encode a batch by one network; `alone`: without the samples of other ranks; without `classes` no logits."""
        target = self.networks[network]
        gather_encoded: Callable[[Encoded], Encoded] = (lambda encoded: encoded) if alone else gather
        gather_rows: Callable[[Tensor], Tensor] = (lambda tensor: tensor) if alone else gather_tensor
        assert batch.images is not None
        images = gather_encoded(target.encode_images(batch.images))
        rows = gather_rows(batch.rows)
        labels = None if batch.labels is None else gather_rows(batch.labels)
        columns = {
            name: gather_rows(values.to(torch.uint8)).bool() if values.dtype == torch.bool else gather_rows(values)
            for name, values in batch.columns.items()
        }
        texts = similarity = logits = same = None
        if self.task == "retrieval":
            if batch.texts is not None:
                texts = gather_encoded(target.encode_texts(batch.texts))
                similarity = target.similarity(images, texts)
                pictures = batch.fields.get(PICTURE, [None] * len(batch))
                for values in (batch.captions, pictures):  # mark pairs of the same caption, then of the same picture
                    ids = gather_rows(_text_ids(values, batch.rows).to(self.device))
                    equal = ids[:, None] == ids[None, :]
                    same = equal if same is None else same | equal
        elif self.task == "classification":
            logits = target.class_logits(images) if classes else None
        else:
            similarity = target.vector_similarity(images, images)
        return Seen(rows, images, target.temperature, texts, similarity, logits, labels, columns, same)


class _Encoder(nn.Module):
    """A target as a module whose weights `functional_call` can exchange for one call."""

    def __init__(self, target: Target, encode: Callable[[Batch], Seen]) -> None:
        super().__init__()
        self.target, self._encode = target, encode

    def forward(self, batch: Batch) -> Seen:
        return self._encode(batch)


class StepInput:
    """The batches of one step. Not a collection, because Fabric and DDP would convert the number types in it."""

    def __init__(self, batches: Mapping[str, Batch]) -> None:
        self.batches = batches


class StepModule(nn.Module):
    """All networks, the method's own modules and its loss as one module that Fabric and DDP wrap."""

    def __init__(
        self, networks: Sequence[Target], method_modules: nn.ModuleList, method: Method, run: RunContext
    ) -> None:
        super().__init__()
        self.networks, self.method_modules = nn.ModuleList(networks), method_modules
        self._method, self._run = method, run

    def forward(self, work: StepInput) -> tuple[Tensor | None, dict[str, float | Tensor]]:
        """Return the loss (None: skip this batch) and values to log."""
        step = self._method.loss(work.batches, self._run)
        return step.loss, dict(step.logs)


def trim_batch(batch: Batch, count: int) -> Batch:
    """Keep the first `count` samples of a batch: ranks need equal numbers, and a rank may have dropped samples."""
    if len(batch) == count:
        return batch
    changes: dict[str, Any] = {"keys": batch.keys[:count], "captions": batch.captions[:count]}
    changes["fields"] = {name: values[:count] for name, values in batch.fields.items()}
    for field in fields(batch):
        if field.name not in (*changes, "dropped"):
            changes[field.name] = map_tensors(getattr(batch, field.name), lambda tensor: tensor[:count])
    return replace(batch, **changes)


def _text_ids(values: Sequence[str | None], rows: Tensor) -> Tensor:
    """Return ids (B,) int64, equal for equal texts; None equals only its own row."""
    own = [f"\0row {row}" for row in rows.tolist()] if None in values else []
    texts = [own[i] if value is None else value for i, value in enumerate(values)]
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return torch.from_numpy(np.frombuffer(digests, np.int64).copy())


# --- the batches of an epoch: a step gets one of each stream that the method asks for ---------------------------------


class Streams:
    """Views of the training data, one per stream; the views and their workers live as long as the run."""

    def __init__(self, data: WeightedShards, seed: int) -> None:
        self._data, self._seed = data, seed
        self._views: dict[tuple[str, int, bool], WeightedShards] = {}
        self._allowed: Mask | None = None
        self._current: dict[str, WeightedShards] = {}
        self._epoch = self._least_steps = 0

    def begin(self, epoch: int, streams: Mapping[str, Stream]) -> None:
        """Select the rows of an epoch; a stream of no row, or of one, which has no others to be compared with, is left out."""
        self._epoch, self._current, self._least_steps = epoch, {}, 0
        for name, stream in streams.items():
            count = self._data.selected_rows if stream.rows is None else self._count_rows(stream.rows)
            if count < min(2, self._data.batch_size):
                continue
            view = self._view(name, stream.order, count < self._data.batch_size)
            view.set_selection(stream.rows)
            self._current[name] = view
            if stream.full:
                self._least_steps = len(self._view("", 0, False))

    def __len__(self) -> int:
        """Number of steps of the epoch: batches of the longest stream, or of all rows if a stream is full."""
        return max([self._least_steps, *(len(view) for view in self._current.values())])

    def batches(self, start: int) -> Iterator[dict[str, Batch]]:
        """Yield one batch of each stream, from step `start` of the epoch on; shorter streams start over."""
        sources = {name: self._repeat(view, start) for name, view in self._current.items()}
        for _ in range(start, len(self)):
            yield {name: next(source) for name, source in sources.items()}

    def close(self) -> None:
        """Stop the data workers."""
        for view in self._views.values():
            view.close()

    def _repeat(self, view: WeightedShards, start: int) -> Iterator[Batch]:
        turn, batch = divmod(start, len(view))
        while True:
            view.load_state_dict({"epoch": self._epoch + turn * REPEAT_OFFSET, "batch": batch})
            yield from view
            turn, batch = turn + 1, 0

    def _count_rows(self, rows: Mask) -> int:
        if self._allowed is None:
            self._allowed = np.zeros(self._data.total_rows, bool)
            self._allowed[self._data.ok_rows()] = True
        return int((rows & self._allowed).sum())

    def _view(self, name: str, order: int, short: bool) -> WeightedShards:
        key = (name, order, short)
        if key not in self._views:
            self._views[key] = self._data.view(seed=self._seed + ORDER_OFFSET * order, drop_last=not short)
        return self._views[key]
