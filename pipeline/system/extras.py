"""What noisegate's extras bring, so that a missing package is answered with the one line that installs it."""

import importlib.util
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

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
                *("fastapi", "fastapi_offline", "uvicorn", "pydantic_settings", "python_multipart"),
                *("prometheus_client", "httpx", "yaml", "starlette", "pydantic"),
            ),
        ),
        "trainers": Extra(
            "noisegate train, evaluate-model and bench", ("lightning_fabric", "tensorboard", "timm", "pydantic", "yaml")
        ),
        "hf": Extra("models of transformers: --model hf:NAME", ("transformers",)),
        "ray": Extra("noisegate annotate, rescore and serve with --engine ray", ("ray",)),
        "lance": Extra("noisegate export --as lance", ("lance",)),
        "s3": Extra("shards and runs at s3://", ("s3fs",)),
        "gs": Extra("shards and runs at gs://", ("gcsfs",)),
    }
)
"""By name; `gpu` is left out, because it replaces a package instead of adding one (see `noisegate doctor`)."""


def install_line(extra: str, installed: Distribution | None = None) -> str:
    """The command that adds an extra to noisegate, from where it was installed: an index, a wheel, a folder, a repository."""
    installed = installed or distribution("noisegate")
    origin = json.loads(installed.read_text("direct_url.json") or "{}")  # PEP 610; absent after an install by name
    url = origin.get("url", "")
    if "vcs_info" in origin:
        wanted = f"noisegate[{extra}] @ {origin['vcs_info']['vcs']}+{url}"
    elif url.startswith("file:"):
        wanted = f"{unquote(urlsplit(url).path)}[{extra}]"
    else:
        wanted = f"noisegate[{extra}]" + (f" @ {url}" if url else "")
    editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}{shlex.quote(wanted)}"


def require_extra(name: str, command: str) -> None:
    """Raises ConfigError, in one line that says what to install, where a package of the extra is absent.

    Commands ask before they begin, so that none stops half-way. What other packages happen to bring does not count as absent.
    """
    absent = EXTRAS[name].absent()
    if absent:
        raise ConfigError(f"{command} needs {', '.join(absent)}; {install_line(name)}", name, absent)
