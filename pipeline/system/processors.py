"""How many processors there are to use."""

import os

__all__ = ["processors"]


def processors() -> int:
    """How many this process may use, where the system tells; else how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
