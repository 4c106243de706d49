"""The settings around a method in its own paper or code: optimiser, batch size, epochs. `noisegate train --paper` takes them.

They are for the papers' targets and data sets (METHODS 4 and 6); a setting that is given otherwise goes first. What a paper
does not say, such as TANGO's learning-rate course, stays as it is everywhere.
"""

import copy
from collections.abc import Mapping
from typing import Any

from noisegate.pipeline.errors import ConfigError

__all__ = ["PAPER_SETTINGS", "with_paper_settings"]

PAPER_SETTINGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "crcl": {
        "method": {"pieces": [5, 5, 5, 30]},
        "data": {"batch_size": 128},
        "optimizer": {"name": "adamw", "lr": 5e-4, "weight_decay": 0.01, "betas": [0.9, 0.999], "eps": 1e-8},
        "schedule": {"name": "step", "every": 15, "factor": 0.1},
        "loop": {"clip": 2.0},
    },
    "tango": {
        "data": {"batch_size": 64},
        "optimizer": {"name": "sgd", "lr": 5e-4, "momentum": 0.9, "weight_decay": 5e-4},
        "loop": {"epochs": 20},
    },
}
"""By method, as the sections of a configuration."""


def with_paper_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's tree with those of its method's paper beneath; raises ConfigError where none are known.

    >>> with_paper_settings({"method": {"name": "tango"}, "optimizer": {"lr": 0.01}})["optimizer"]
    {'name': 'sgd', 'lr': 0.01, 'momentum': 0.9, 'weight_decay': 0.0005}
    """
    name = values.get("method", {}).get("name", "baseline")
    if name not in PAPER_SETTINGS:
        raise ConfigError(
            f"paper: no settings are known for method.name={name}; there are some for {', '.join(PAPER_SETTINGS)}"
        )
    found: dict[str, Any] = copy.deepcopy({section: dict(inside) for section, inside in PAPER_SETTINGS[name].items()})
    for section, inside in values.items():
        found[section] = {**found.get(section, {}), **inside} if isinstance(inside, Mapping) else inside
    return found
