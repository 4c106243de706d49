"""Loading models of other libraries: torchvision's import, the hub or its cache, quiet logs, weights without code."""

import contextlib
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator

import torch

__all__ = ["allow_torchvision", "hub_or_cache", "quietly", "torchvision_is_patched", "weights_only"]

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # a schema lives only as long as its Library object


def allow_torchvision() -> None:
    """Import torchvision; where its operators cannot be loaded, declare the two schemas it insists on and try again.

    A CUDA build of torchvision beside a CPU build of torch stops at `torchvision::nms`. Transforms never call that
    operator, so a schema without a kernel is enough; calling it still fails, by name. Where torchvision imports by
    itself nothing is declared, and a second call does nothing.

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
        del sys.modules[name]  # left over from the import that stopped half-way
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
    importlib.import_module("torchvision")


def torchvision_is_patched() -> bool:
    """Whether torchvision's operators had to be declared here, because they could not be loaded."""
    return bool(_declared)


_SECONDS = 5.0


@contextlib.contextmanager
def hub_or_cache() -> Iterator[str | None]:
    """Within, files come from the hub where it answers, else at once from its cache; then it yields what is wrong."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    problem = f"{constants.ENDPOINT} may not be asked (HF_HUB_OFFLINE)" if before else _problem(constants.ENDPOINT)
    constants.HF_HUB_OFFLINE = problem is not None
    try:
        yield problem
    finally:
        constants.HF_HUB_OFFLINE = before


def _problem(endpoint: str) -> str | None:
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    try:
        status = int(get_session().head(endpoint, timeout=_SECONDS).status_code)
    except Exception as error:  # the hub's client changed its HTTP library, and with it its errors, more than once
        return f"{endpoint} does not answer ({type(error).__name__})"
    return f"{endpoint} answers with status {status}" if status >= 500 else None


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Loading without the steps that open_clip reports on the root logger; what matters of them is an exception here."""
    root, silent = logging.getLogger(), logging.NullHandler()

    def others(record: logging.LogRecord) -> bool:
        return "open_clip" not in record.pathname

    root.addFilter(others)
    root.addHandler(silent)  # without any handler, logging.info would set up one that stays
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeHandler(silent)
        root.removeFilter(others)


@contextlib.contextmanager
def weights_only() -> Iterator[None]:
    """No code of a pickle is run: open_clip asks for that, but not in its second attempt at a file that fails."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ.update({} if before is None else {name: before})
