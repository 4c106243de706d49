"""Everything that training needs to go on, in one safetensors file: tensors by name, and JSON in its metadata.

One file, because it appears whole or not at all. Nothing is pickled.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.output_files import write_atomically
from noisegate.trainers.targets import gather_tensor

__all__ = [
    "State",
    "load_optimizer",
    "load_state",
    "optimizer_state",
    "random_states",
    "save_state",
    "set_random_states",
]

VERSION = 1


@dataclass(frozen=True)
class State:
    """Tensors by `group/name`, and what fits in JSON."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    def group(self, name: str) -> dict[str, Tensor]:
        """The tensors of one group, by their own names."""
        start = f"{name}/"
        return {key.removeprefix(start): value for key, value in self.tensors.items() if key.startswith(start)}


def save_state(path: Path, groups: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Any]) -> None:
    """Write tensors or arrays by group and name, and facts."""
    tensors = {f"{group}/{name}": _stored(value) for group, values in groups.items() for name, value in values.items()}
    metadata = {"version": str(VERSION), "facts": json.dumps(facts)}
    write_atomically(path, save(tensors, metadata=metadata))


def load_state(path: Path) -> State:
    """The inverse of `save_state`; raises ConfigError where there is no such file."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["facts"])
            return State({name: file.get_tensor(name) for name in file.keys()}, facts)  # noqa: SIM118
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path.parent} cannot be resumed: it stopped before its first checkpoint; start anew"
        ) from error
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is no state of a training run ({error}); start anew") from error


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Tensors by `parameter number.name`, and the settings of the groups, which hold no tensors."""
    state = optimizer.state_dict()
    tensors = {
        f"{number}.{name}": torch.as_tensor(value)
        for number, values in state["state"].items()
        for name, value in values.items()
        if value is not None  # SGD without momentum keeps a None
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
    """torch's generators of every rank."""
    own = {"cpu": torch.get_rng_state()}
    if fabric.device.type == "cuda":
        own["cuda"] = torch.cuda.get_rng_state(fabric.device)
    found = {}
    for name, state in own.items():
        rows = gather_tensor(state[None].to(fabric.device)).cpu()
        found.update({f"{name}.{rank}": row for rank, row in enumerate(rows)})
    return found


def set_random_states(states: Mapping[str, Tensor], fabric: Fabric) -> None:
    """The inverse of `random_states`, on this rank."""
    rank = fabric.global_rank
    if f"cpu.{rank}" in states:
        torch.set_rng_state(states[f"cpu.{rank}"])
    if fabric.device.type == "cuda" and f"cuda.{rank}" in states:
        torch.cuda.set_rng_state(states[f"cuda.{rank}"], fabric.device)


def _stored(value: Any) -> Tensor:
    """A copy on the CPU, because safetensors refuses tensors that share memory."""
    tensor = torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else torch.as_tensor(value)
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
