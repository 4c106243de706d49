"""Lets torchvision, and open_clip on top of it, import beside a torch that its compiled operators do not fit."""

import importlib
import sys

import torch

__all__ = ["allow_torchvision", "declared"]

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


def declared() -> bool:
    """Whether torchvision's operators had to be declared here, because they could not be loaded."""
    return bool(_declared)
