"""The usual downloads of the papers' data sets as webdataset shards, each sample with what is known about its truth."""

from typing import TYPE_CHECKING, Any

from .kinds import KINDS, LAYOUTS, Kind

if TYPE_CHECKING:
    from .job import Converted, convert

__all__ = ["KINDS", "LAYOUTS", "Converted", "Kind", "convert"]


def __getattr__(name: str) -> Any:
    """The job on first use: the command's help needs the kinds alone."""
    if name in ("Converted", "convert"):
        from . import job

        return getattr(job, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
