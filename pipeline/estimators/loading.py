"""Helpers to load models of other libraries: torchvision's import, the hub or its cache, quiet logs, safe weights."""

import contextlib
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # a schema lives only as long as its Library object


def allow_torchvision() -> None:
    """Import torchvision; if its operators cannot be loaded, declare the two schemas that it needs and try again.

    A CUDA build of torchvision beside a CPU build of torch fails at `torchvision::nms`. Transforms never call that
    operator, so a schema without a kernel is enough. Does nothing if torchvision imports without these schemas.

    >>> allow_torchvision()
    >>> "torchvision" in sys.modules
    True
    """
    if "torchvision" in sys.modules:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error) or _declared:
            raise
    else:
        return
    for name in [name for name in sys.modules if name.startswith("torchvision.")]:
        del sys.modules[name]  # left by the import that failed
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
    importlib.import_module("torchvision")


def torchvision_is_patched() -> bool:
    """Whether `allow_torchvision` had to declare torchvision's operators."""
    return bool(_declared)


_HUB_SECONDS = 5.0  # the hub's own client retries for a minute without a network


@contextlib.contextmanager
def hub_or_cache() -> Iterator[str | None]:
    """Load files from the hub if it answers, else from its cache; yield the hub's error, or None."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    problem = (
        f"{constants.ENDPOINT} may not be asked (HF_HUB_OFFLINE)" if before else _find_hub_problem(constants.ENDPOINT)
    )
    constants.HF_HUB_OFFLINE = problem is not None
    try:
        yield problem
    finally:
        constants.HF_HUB_OFFLINE = before


def _find_hub_problem(endpoint: str) -> str | None:
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    try:
        status = int(get_session().head(endpoint, timeout=_HUB_SECONDS).status_code)
    except Exception as error:  # error types depend on the HTTP library of the hub's client, which has changed
        return f"{endpoint} does not answer ({type(error).__name__})"
    return f"{endpoint} answers with status {status}" if status >= 500 else None


def find_mismatch(checkpoint: Path, build_model: Callable[[], torch.nn.Module]) -> str | None:
    """Say why a checkpoint file does not fit the model: no tensors, other names or other shapes; None if it seems to fit."""
    try:
        with quietly():
            loaded = (
                load_file(checkpoint)
                if checkpoint.suffix == ".safetensors"
                else torch.load(checkpoint, map_location="cpu", weights_only=True)
            )
    except Exception as error:  # a file of any kind; torch, zipfile and pickle raise errors of their own
        return f"it cannot be read as a file of weights ({type(error).__name__}); give a .pt or .safetensors file"
    loaded = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else {}
    given = {
        str(key).removeprefix("module."): tuple(value.shape) for key, value in loaded.items() if hasattr(value, "shape")
    }
    if not given:
        return "it holds no tensors"
    with quietly():
        wanted = {key: tuple(value.shape) for key, value in build_model().state_dict().items()}
    other = next((key for key in wanted if key in given and given[key] != wanted[key]), None)
    if other:
        return f"{other} has the shape {given[other]} there and {wanted[other]} in the model; is it of another model?"
    missing, unknown = [key for key in wanted if key not in given], [key for key in given if key not in wanted]
    if missing:
        extra = f", and has {unknown[0]}, which the model lacks" if unknown else ""
        return f"it lacks {len(missing)} of the model's {len(wanted)} tensors, such as {missing[0]}{extra}"
    return f"it has {unknown[0]}, which the model lacks" if unknown else None


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence open_clip's messages on the root logger, and warnings."""
    root, silent = logging.getLogger(), logging.NullHandler()

    def others(record: logging.LogRecord) -> bool:
        return "open_clip" not in record.pathname

    root.addFilter(others)
    root.addHandler(silent)  # without any handler, logging.info would install one for good
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeHandler(silent)
        root.removeFilter(others)


@contextlib.contextmanager
def weights_only() -> Iterator[None]:
    """Never run code of a pickle; open_clip forbids it too, but not when it retries a file that failed to load."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ.update({} if before is None else {name: before})
