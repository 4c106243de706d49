"""Training methods by name.

Each file begins with its paper's equations and the function for each; equations that a frozen model can answer too are in
noisegate.pipeline.methods. baseline.py is plain training, base.py defines the protocol of methods, co_teaching.py is the base
of methods with two networks, mixup.py is shared by several methods.
"""

from collections.abc import Mapping
from typing import Any

from noisegate.pipeline.errors import ConfigError, did_you_mean

from .base import Method, MethodConfig, Run, Seen, StepLoss, Stream
from .baseline import Baseline, Select
from .bicro import BiCro
from .crcl import Crcl
from .decl import Decl
from .deft import Deft
from .dividemix import DivideMix
from .gsl import Gsl
from .in2r import In2r
from .label_selection import Aum, LabelMatch
from .lnc import Lnc, Ncr
from .npc import Npc
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
    "npc": Npc,
    "bicro": BiCro,
    "in2r": In2r,
    "decl": Decl,
    "tango": Tango,
    "ssr": Ssr,
    "dividemix": DivideMix,
    "label_match": LabelMatch,
    "aum": Aum,
    "deft": Deft,
}
"""Every method by the name that `noisegate train --method` takes."""


def method_class(config: Mapping[str, Any]) -> type[Method]:
    """Return the class that `config["name"]` names; raise ConfigError with the known names."""
    name = config.get("name")
    if name is None:
        raise ConfigError(f"method.name is not given; use one of {', '.join(METHODS)}", "method.name", None)
    if not isinstance(name, str) or name not in METHODS:
        problem = f"is unknown; use one of {', '.join(METHODS)}{did_you_mean(name, METHODS)}"
        raise ConfigError.of("method.name", name, problem)
    return METHODS[name]
