"""Methods by name. Each file reads like its paper; `base.py` says how a new one is written."""

from collections.abc import Mapping
from typing import Any

from pipeline.errors import ConfigError

from .base import Method, MethodConfig, Run, Seen, StepLoss, Stream
from .baseline import Baseline
from .osa import Osa
from .select import Select

__all__ = ["METHODS", "Method", "MethodConfig", "Run", "Seen", "StepLoss", "Stream", "method_class"]

METHODS: dict[str, type[Method]] = {"baseline": Baseline, "select": Select, "osa": Osa}
"""Every method by the name that `noisegate train --method` takes."""


def method_class(config: Mapping[str, Any]) -> type[Method]:
    """The class that `config["name"]` names; raises ConfigError with the names there are."""
    name = config.get("name")
    if name not in METHODS:
        raise ConfigError(f"method.name={name!r} is unknown; use one of {', '.join(METHODS)}")
    return METHODS[str(name)]
