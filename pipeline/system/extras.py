"""The packages of noisegate's extras, so that the error for a missing package can name the install command."""

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
    """One extra: its purpose, and the modules it installs."""

    gives: str
    modules: tuple[str, ...]

    def absent(self) -> list[str]:
        """List its modules that cannot be imported here."""
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
    """Return the command that installs an extra from noisegate's own origin: an index, a wheel, a folder, a repository."""
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
    """Raise ConfigError with a one-line install command if a package of the extra is absent.

    Commands call this before they begin, so that none stops half-way. Modules installed by other packages count as present.
    """
    absent = EXTRAS[name].absent()
    if absent:
        raise ConfigError(f"{command} needs {', '.join(absent)}; {install_line(name)}", name, absent)
