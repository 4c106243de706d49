"""Methods by name. Each file reads like its paper; `base.py` says how a new one is written."""

from collections.abc import Mapping
from typing import Any

from noisegate.pipeline.errors import ConfigError, did_you_mean

from .base import Method, MethodConfig, Run, Seen, StepLoss, Stream
from .baseline import Baseline, Select
from .crcl import Crcl
from .dividemix import DivideMix
from .gsl import Gsl
from .lnc import Lnc
from .ncr import Ncr
from .osa import Osa
from .ssr import Ssr
from .tango import Tango

__all__ = ["METHODS", "Method", "MethodConfig", "Run", "Seen", "StepLoss", "Stream", "method_class"]

METHODS: dict[str, type[Method]] = {
    "baseline": Baseline,
    "select": Select,
    "osa": Osa,
    "ncr": Ncr,
    "lnc": Lnc,
    "gsl": Gsl,
    "crcl": Crcl,
    "tango": Tango,
    "ssr": Ssr,
    "dividemix": DivideMix,
}
"""Every method by the name that `noisegate train --method` takes."""


def method_class(config: Mapping[str, Any]) -> type[Method]:
    """The class that `config["name"]` names; raises ConfigError with the names there are."""
    name = config.get("name")
    if name is None:
        raise ConfigError(f"method.name is not given; use one of {', '.join(METHODS)}", "method.name", None)
    if not isinstance(name, str) or name not in METHODS:
        raise ConfigError(
            f"method.name={name!r} is unknown; use one of {', '.join(METHODS)}{did_you_mean(name, METHODS)}",
            "method.name",
            name,
        )
    return METHODS[name]
