"""Checkpoints: everything that training needs to resume, in one safetensors file with JSON in its metadata.

It is one file, so that it is complete or absent. Nothing is pickled.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system import write_atomically
from noisegate.trainers.targets import gather_tensor

VERSION = 1


@dataclass
class LoopState:
    """Progress of a run."""

    epoch: int = 0
    batch: int = 0
    """batches done of this epoch"""
    batches: int = 0
    """batches done of all epochs"""
    step: int = 0
    """updates"""
    skipped: int = 0
    """batches without any weight"""
    not_finite: int = 0
    """batches whose loss or gradient was nan or infinite"""
    best: dict[str, float] = field(default_factory=dict)
    best_epoch: int = 0
    last: dict[str, float] = field(default_factory=dict)
    waited: int = 0
    """evaluations since the best"""
    course: tuple[int, int, float] | None = None
    """learning-rate schedule: its first epoch, its epochs, its warm-up in epochs (-1: not known yet)"""
    restarts: int = 0
    seconds: float = 0.0
    """of training, without evaluation and set-up"""
    over: str = ""
    """why the run is over; empty while it is not"""
    measuring: bool = False
    """the evaluation at this point is still due"""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by `group/name`, and facts that fit in JSON."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    def group(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of one group, by their own names."""
        start = f"{name}/"
        return {key.removeprefix(start): value for key, value in self.tensors.items() if key.startswith(start)}


def write_checkpoint(path: Path, groups: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Any]) -> None:
    """Write tensors or arrays by group and name, and facts as JSON."""
    tensors = {
        f"{group}/{name}": _to_storage(value) for group, values in groups.items() for name, value in values.items()
    }
    metadata = {"version": str(VERSION), "facts": json.dumps(facts)}
    write_atomically(path, save(tensors, metadata=metadata))


def read_checkpoint(path: Path) -> Checkpoint:
    """The inverse of `write_checkpoint`; raise ConfigError if there is no such file."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["facts"])
            return Checkpoint({name: file.get_tensor(name) for name in file.keys()}, facts)  # noqa: SIM118
    except FileNotFoundError as error:
        problem = "has no checkpoint: it stopped before its first one; start anew"
        raise ConfigError.of("resume", str(path.parent), problem) from error
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        problem = f"has no usable checkpoint ({error}); start anew"
        raise ConfigError.of("resume", str(path.parent), problem) from error


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Return tensors by `parameter number.name`, and the settings of the parameter groups without their tensors."""
    state = optimizer.state_dict()
    tensors = {
        f"{number}.{name}": torch.as_tensor(value)
        for number, values in state["state"].items()
        for name, value in values.items()
        if value is not None  # SGD without momentum stores None
    }
    groups = [{name: value for name, value in group.items() if name != "params"} for group in state["param_groups"]]
    return tensors, groups


def load_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], groups: list[dict[str, Any]]
) -> None:
    """The inverse of `optimizer_state`, into an optimiser over the same parameters."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = tensor
    present = optimizer.state_dict()["param_groups"]
    joined = [{**group, "params": own["params"]} for group, own in zip(groups, present, strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": joined})


def random_states(fabric: Fabric) -> dict[str, Tensor]:
    """Collect the state of torch's random generators on every rank."""
    own = {"cpu": torch.get_rng_state()}
    if fabric.device.type == "cuda":
        own["cuda"] = torch.cuda.get_rng_state(fabric.device)
    states = {}
    for name, state in own.items():
        rows = gather_tensor(state[None].to(fabric.device)).cpu()
        states.update({f"{name}.{rank}": row for rank, row in enumerate(rows)})
    return states


def set_random_states(states: Mapping[str, Tensor], fabric: Fabric) -> None:
    """The inverse of `random_states`, on this rank."""
    rank = fabric.global_rank
    if f"cpu.{rank}" in states:
        torch.set_rng_state(states[f"cpu.{rank}"])
    if fabric.device.type == "cuda" and f"cuda.{rank}" in states:
        torch.cuda.set_rng_state(states[f"cuda.{rank}"], fabric.device)


def _to_storage(value: Any) -> Tensor:
    """Copy to the CPU, because safetensors refuses tensors that share memory."""
    tensor = torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else torch.as_tensor(value)
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
