"""What noisegate's extras bring, so that a missing package is answered with the one line that installs it."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType

__all__ = ["EXTRAS", "Extra", "missing_package"]


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
            "noisegate train, evaluate-model and bench",
            ("lightning_fabric", "tensorboard", "timm", "pydantic", "yaml"),
        ),
        "hf": Extra("models of transformers: --model hf:NAME", ("transformers",)),
        "ray": Extra("noisegate serve --engine ray", ("ray",)),
        "s3": Extra("shards at s3://", ("s3fs",)),
        "gs": Extra("shards at gs://", ("gcsfs",)),
    }
)
"""By name; `gpu` is left out, because it replaces a package instead of adding one (see `noisegate doctor`)."""


def missing_package(error: ModuleNotFoundError) -> str | None:
    """One line for a module that an extra would have brought; None for any other, whose absence is a defect.

    Which extra is meant where several bring the module follows from the package that asked for it.

    >>> missing_package(ModuleNotFoundError("No module named 'timm'", name="timm"))
    "the package timm is not installed; noisegate train, evaluate-model and bench: pip install 'noisegate[trainers]'"
    >>> missing_package(ModuleNotFoundError("No module named 'pipelin'", name="pipelin")) is None
    True
    """
    module = (error.name or "").partition(".")[0]
    bringing = [name for name, extra in EXTRAS.items() if module in extra.modules]
    if not bringing:
        return None
    asked = _packages(error.__traceback__)
    name = next((name for name in bringing if name in asked), bringing[0])
    return f"the package {module} is not installed; {EXTRAS[name].gives}: pip install 'noisegate[{name}]'"


def _packages(trace: TracebackType | None) -> set[str]:
    """The top packages that a traceback goes through."""
    found = set()
    while trace is not None:
        found.add(str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0])
        trace = trace.tb_next
    return found
