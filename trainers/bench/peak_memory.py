"""The most memory that this process held since it was last asked to forget."""

import math
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["forget_peak", "peak_megabytes"]

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak() -> None:
    """Begin anew, where the system can: a process that runs several cells would report the largest of them for all."""
    with suppress(OSError):
        CLEAR.write_text("5", encoding="ascii")


def peak_megabytes() -> float:
    """Resident memory at its largest, libraries included; nan where the system does not tell."""
    if STATUS.exists():
        for line in STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    if sys.platform == "win32":
        return math.nan
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1024**2 if sys.platform == "darwin" else 1024)
