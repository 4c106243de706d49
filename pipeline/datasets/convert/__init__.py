"""Convert the usual downloads of the papers' data sets to shards, each sample with what is known about its truth.

`kinds` lists the data sets and names the reader of each: `captioned`, `binary` (CIFAR, ANIMAL-10N) or `web_pictures`.
A reader turns a `Request` into a `SampleSource` (`source`), for captions by `pairs`; `job` writes it.
"""

from typing import TYPE_CHECKING, Any

from .kinds import KINDS, LAYOUTS, Kind

if TYPE_CHECKING:
    from .job import Converted, convert

__all__ = ["KINDS", "LAYOUTS", "Converted", "Kind", "convert"]


def __getattr__(name: str) -> Any:
    """Load the job on first use: the command's help needs only the kinds."""
    if name in ("Converted", "convert"):
        from . import job

        return getattr(job, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
