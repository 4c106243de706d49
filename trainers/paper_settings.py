"""Settings of the methods' papers, for `noisegate train --paper`."""

import copy
from collections.abc import Mapping
from typing import Any

from noisegate.pipeline.errors import ConfigError

from .config import merge_trees

_ADAM: dict[str, Any] = {"name": "adam", "lr": 2e-4, "weight_decay": 0.0, "betas": [0.9, 0.999], "eps": 1e-8}
_SGD: dict[str, Any] = {"name": "sgd", "lr": 0.02, "momentum": 0.9, "weight_decay": 5e-4}
_CLIP_ADAMW: dict[str, Any] = {"name": "adamw", "lr": 1e-5, "weight_decay": 0.2, "betas": [0.9, 0.98], "eps": 1e-6}


def _osa_settings(name: str, task: str) -> dict[str, Any]:
    """Return OSA's settings of a task, which its plain training shares; the paper's β is of random inputs for prompts too."""
    batch, rate, epochs = {"classification": (64, 1e-5, 10), "image_retrieval": (128, 5e-6, 10)}.get(
        task, (256, 1e-5, 5)
    )
    return {
        "method": {"beta": "random_inputs"} if (name, task) == ("osa", "classification") else {},
        "data": {"batch_size": batch},
        "optimizer": {**_CLIP_ADAMW, "lr": rate},
        "schedule": {"name": "cosine", "warmup": 500},
        "loop": {"epochs": epochs},
    }


def _ncr_family(warmup: int, epochs: int, every: int, **method: Any) -> dict[str, Any]:
    """Return the settings of NCR's code and of methods built on it; `epochs` and `every` count from the end of the warm-up."""
    return {
        "method": {"warmup": warmup, "procedure": "paper", "loss": "hardest_triplet", **method},
        "data": {"batch_size": 128},
        "optimizer": _ADAM,
        "schedule": {"name": "step", "every": warmup + every, "factor": 0.1},
        "loop": {"epochs": warmup + epochs, "clip": 2.0},
    }


_TANGO: dict[str, Any] = {"data": {"batch_size": 64}, "optimizer": {**_SGD, "lr": 5e-4}, "loop": {"epochs": 20}}

PAPER_SETTINGS: Mapping[str, dict[str, Any]] = {
    "ncr": _ncr_family(5, 40, 30, one_percent=True),
    "lnc": _ncr_family(3, 40, 30),
    "gsl": _ncr_family(10, 40, 30),
    "bicro": _ncr_family(10, 40, 30, one_percent=True, warmup_share=0.3),
    "in2r": {
        **_ncr_family(1, 40, 15, one_percent=True, memory=65_536, memory_of="partner", temperature=0.05),
        "optimizer": {**_ADAM, "name": "adamw", "lr": 5e-4, "weight_decay": 1e-4},
    },
    "crcl": {
        "method": {"pieces": [5, 5, 5, 30], "label": "probability"},
        "data": {"batch_size": 128},
        "optimizer": {**_ADAM, "name": "adamw", "lr": 5e-4, "weight_decay": 0.01},
        "schedule": {"name": "step", "every": 15, "factor": 0.1},
        "loop": {"clip": 2.0},
    },
    "npc": {
        "method": {"rebuild": 0},
        "data": {"batch_size": 256},
        "optimizer": {**_CLIP_ADAMW, "lr": 2e-7},
        "schedule": {"name": "cosine", "warmup": 500},
        "loop": {"epochs": 5, "clip": 10.0},
    },
    "decl": {
        "method": {"warmup": 5, "loss": "evidential"},
        "data": {"batch_size": 128},
        "optimizer": _ADAM,
        "schedule": {"name": "step", "every": 25, "factor": 0.1},
        "loop": {"epochs": 45, "clip": 2.0},
    },
    "tango": {"method": {"warmup": 0, "mixup": 4.0}, **_TANGO},
    "label_match": {"method": {"guard": False}, **_TANGO},  # as in TANGO's Table 9
    "deft": {"method": {"detect": 10, "warmup": 5}, **_TANGO},
    "ssr": {
        "method": {"warmup": 0},
        "data": {"batch_size": 128},
        "optimizer": _SGD,
        "schedule": {"name": "cosine"},
        "loop": {"epochs": 300},
    },
    "dividemix": {
        "method": {"warmup": 10, "mixup": 4.0},
        "data": {"batch_size": 64},
        "optimizer": _SGD,
        "schedule": {"name": "step", "every": 150, "factor": 0.1},
        "loop": {"epochs": 300},
    },
    "aum": {  # two turns of 150 epochs, up to the first fall of the learning rate, then 300
        "method": {"warmup": 150, "percentile": 99.0},
        "data": {"batch_size": 256},
        "optimizer": {**_SGD, "lr": 0.1, "weight_decay": 1e-4},
        "schedule": {"name": "step", "every": 150, "factor": 0.1},
        "loop": {"epochs": 600},
    },
}
"""Optimiser, batch size and epochs of each method's paper or code, for `noisegate train --paper`: those of Flickr30K for pairs,
of CIFAR for labels. `baseline`, `select` and `osa` have OSA's, by task."""


def with_paper_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the method's paper, changed by `values`; raise ConfigError for a method without paper settings.

    >>> with_paper_settings({"method": {"name": "tango"}, "optimizer": {"lr": 0.01}})["optimizer"]
    {'name': 'sgd', 'lr': 0.01, 'momentum': 0.9, 'weight_decay': 0.0005}
    """
    name = values.get("method", {}).get("name", "baseline")
    if name in ("baseline", "select", "osa"):
        return merge_trees(_osa_settings(name, values.get("task", {}).get("name", "retrieval")), values)
    if name not in PAPER_SETTINGS:
        problem = f"paper: no settings are known for method.name={name}; there are some for {', '.join(PAPER_SETTINGS)}"
        raise ConfigError(problem, "paper", name)
    settings = copy.deepcopy(PAPER_SETTINGS[name])
    if "epochs" in values.get("loop", {}):
        settings.get("method", {}).pop("pieces", None)  # CRCL's, which make the number of epochs
    return merge_trees(settings, values)
