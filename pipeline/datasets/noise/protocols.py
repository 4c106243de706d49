"""Noise protocols by name, ids that identify the exact noise, and checks of noise rates."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from noisegate.pipeline.errors import ConfigError, did_you_mean

Value = bool | int | float | str
REQUIRED = object()


@dataclass(frozen=True)
class Protocol:
    """A noise protocol. parameters: its settings in the order of the id, with their defaults, or REQUIRED.

    sources: options that are not part of the id, because a parameter is computed from them.
    """

    name: str
    noises: Literal["captions", "labels"]
    parameters: Mapping[str, object]
    sources: tuple[str, ...] = ()
    version: int = 1  # part of the hash; raise it when the same seed no longer gives the same noise

    def settings(self, **given: object) -> dict[str, Value]:
        """Return all parameters in order, given or default.

        >>> PROTOCOLS["symmetric"].settings(seed=7, rate=1, classes=10)
        {'rate': 1.0, 'classes': 10, 'inclusive': False, 'seed': 7}
        """
        unknown = [name for name in given if name not in self.parameters]
        if unknown:
            problem = f"is no parameter of {self.name}; it has {', '.join(self.parameters)}"
            raise ConfigError.of(unknown[0], given[unknown[0]], problem)
        missing = [name for name, default in self.parameters.items() if default is REQUIRED and name not in given]
        if missing:
            example = EXAMPLES[missing[0]]
            raise ConfigError(f"{missing[0]} is needed by {self.name}; give for example {example!r}", missing[0])
        return {name: _value(name, given.get(name, default)) for name, default in self.parameters.items()}


# A class map, features or posteriors enter an id by name: the map's name, a digest, a file.
EXAMPLES: Mapping[str, Value] = {
    "rate": 0.4,
    "seed": 7,
    "derange": True,
    "inclusive": True,
    "classes": 10,
    "class_map": "cifar100",
    "features": "ViT-B-32",
    "posteriors": "probe",
    "temperature": "auto",
    "deviation": 0.1,
    "kind": "I",
    "factor": 1.2,
}
_PROTOCOLS = (
    # int(rate N) captions change places (NCR, NPC)
    Protocol("shuffle-captions", "captions", {"rate": REQUIRED, "derange": False, "seed": REQUIRED}),
    # int(rate images) images change places, each with all its captions (DECL)
    Protocol("shuffle-images", "captions", {"rate": REQUIRED, "derange": False, "seed": REQUIRED}),
    # to any other class with equal probability; inclusive: int(rate N) labels drawn from all classes
    Protocol("symmetric", "labels", {"rate": REQUIRED, "classes": REQUIRED, "inclusive": False, "seed": REQUIRED}),
    # to the class that the map names
    Protocol("asymmetric", "labels", {"rate": REQUIRED, "class_map": REQUIRED, "seed": REQUIRED}, ("classes",)),
    # to a class that follows from the sample's features (Xia et al. 2020)
    Protocol(
        "instance-dependent",
        "labels",
        dict.fromkeys(("rate", "classes", "features"), REQUIRED)
        | {"temperature": "auto", "deviation": 0.1, "seed": REQUIRED},
    ),
    # to the second class of a posterior; the larger the margin, the rarer (PLC)
    Protocol(
        "pmd",
        "labels",
        {"kind": REQUIRED, "posteriors": REQUIRED, "factor": 1.0, "seed": REQUIRED},
        ("rate", "classes"),
    ),
)
PROTOCOLS: Mapping[str, Protocol] = {protocol.name: protocol for protocol in _PROTOCOLS}


def find_protocol(name: str) -> Protocol:
    """Return the protocol of this name; raise a ConfigError that lists all of them."""
    if name not in PROTOCOLS:
        known = f"{', '.join(PROTOCOLS)}{did_you_mean(name, PROTOCOLS)}"
        raise ConfigError.of("protocol", name, f"is unknown; use one of {known}")
    return PROTOCOLS[name]


def check_options(name: str, given: Mapping[str, object]) -> None:
    """Refuse an option that only other protocols have; None and False count as not given.

    >>> check_options("symmetric", {"rate": 0.4, "inclusive": True, "class_map": None, "derange": False})
    """
    protocol = find_protocol(name)
    taken = [*protocol.parameters, *protocol.sources]
    for option, value in given.items():
        if option not in taken and value is not None and value is not False:
            users = [other for other, p in PROTOCOLS.items() if option in (*p.parameters, *p.sources)]
            problem = f"is not used by {name}, only by {' and '.join(users)}; {name} takes {', '.join(taken)}"
            raise ConfigError.of(option, value, problem)


def protocol_id(name: str, **params: object) -> str:
    """Make a protocol's id: name, every parameter, and 8 hexadecimal digits of the SHA-256 of both and of the version.

    Noise with this id is drawn from a fresh `np.random.default_rng(seed)`.

    >>> protocol_id("shuffle-captions", rate=0.4, seed=7)
    'shuffle-captions(rate=0.4,derange=False,seed=7)#a8576b23'
    """
    protocol = find_protocol(name)
    settings = protocol.settings(**params)
    canonical = json.dumps([name, protocol.version, settings], ensure_ascii=False, separators=(",", ":"))
    shown = ",".join(f"{key}={value}" for key, value in settings.items())
    return f"{name}({shown})#{hashlib.sha256(canonical.encode()).hexdigest()[:8]}"


def _value(name: str, value: object) -> Value:
    """Convert to a Python scalar of the parameter's type, so that 1, 1.0 and numpy's 1 give the same id."""
    if isinstance(value, np.generic):
        value = value.item()
    example = EXAMPLES[name]
    a_number = isinstance(example, float) or name == "temperature"
    if a_number and isinstance(value, int | float) and not isinstance(value, bool):
        return check_rate(value) if name == "rate" else float(value)
    if type(value) is type(example):
        return value
    raise ConfigError.of(name, value, f"is no {type(example).__name__}; use for example {example!r}")


def check_rate(rate: float) -> float:
    """Check that the rate lies in [0, 1], and return it as a float."""
    if not (math.isfinite(rate) and 0.0 <= rate <= 1.0):
        raise ConfigError.of("rate", rate, "is no noise rate; use a number between 0 and 1, such as 0.4")
    return float(rate)


def count_chosen(rate: float, count: int) -> int:
    """Compute int(rate * count) in decimal: 0.29 of 100 is 29, while binary floats give 28.

    >>> count_chosen(0.29, 100), int(0.29 * 100)
    (29, 28)
    """
    return min(count, int(check_rate(rate) * count * (1 + 1e-12) + 1e-9))
