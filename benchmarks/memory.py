"""Peak memory of a program, for benchmarks that start one process for each figure."""

import re
from pathlib import Path

__all__ = ["peak_mb"]


def peak_mb() -> float:
    """Megabytes this program needed at most, from Linux; getrusage would also count what its parent had at the fork."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024
