"""What noisegate's extras bring, so that a missing package is answered with the one line that installs it."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from noisegate.pipeline.errors import ConfigError


@dataclass(frozen=True)
class Extra:
    """One extra: what it is for, and the modules it brings."""

    gives: str
    modules: tuple[str, ...]

    def absent(self) -> list[str]:
        """Its modules that cannot be imported here."""
        return [name for name in self.modules if importlib.util.find_spec(name) is None]


EXTRAS: Mapping[str, Extra] = MappingProxyType(
    {
        "service": Extra(
            "noisegate serve, noisegate score --url, the client",
            (
                *("fastapi", "uvicorn", "pydantic_settings", "python_multipart"),
                *("prometheus_client", "httpx", "yaml", "starlette", "pydantic"),
            ),
        ),
        "trainers": Extra(
            "noisegate train, evaluate-model and bench", ("lightning_fabric", "tensorboard", "timm", "pydantic", "yaml")
        ),
        "hf": Extra("models of transformers: --model hf:NAME", ("transformers",)),
        "ray": Extra("noisegate annotate, rescore and serve with --engine ray", ("ray",)),
        "s3": Extra("shards at s3://", ("s3fs",)),
        "gs": Extra("shards at gs://", ("gcsfs",)),
    }
)
"""By name; `gpu` is left out, because it replaces a package instead of adding one (see `noisegate doctor`)."""


def require_extra(name: str, command: str) -> None:
    """Raises ConfigError, in one line that says what to install, where a package of the extra is absent.

    Commands ask before they begin, so that none stops half-way. What other packages happen to bring does not count as absent.
    """
    absent = EXTRAS[name].absent()
    if absent:
        raise ConfigError(f"{command} needs {', '.join(absent)}; pip install 'noisegate[{name}]'", name, absent)
