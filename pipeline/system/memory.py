"""How much memory a neighbour search may take."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from noisegate.pipeline.errors import ConfigError

__all__ = ["default_memory", "read_size"]

LEAST = 16_000_000


def read_size(text: str) -> int:
    """Bytes of a size as people write it; raises ConfigError for anything else.

    >>> read_size("8GB"), read_size("1.5 GiB"), read_size("500M")
    (8000000000, 1610612736, 500000000)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?\s*", text.upper())
    size = 0.0
    if found:
        number, unit, binary = found.groups()
        step = 1024 if binary else 1000
        size = float(number) * step ** ("KMGT".index(unit) + 1 if unit else 0)
    if size < LEAST:
        raise ConfigError(f"neighbour-memory {text!r} is no size of 16MB or more; use 8GB, or leave it out")
    return int(size)


def default_memory(gpus: Sequence[int] = ()) -> int:
    """Half of what this machine, or the container it is, has free; no more than fits the GPUs of these numbers."""
    free = [_available()]
    if gpus:
        import torch

        free.append(int(1.4 * sum(torch.cuda.mem_get_info(gpu)[0] for gpu in gpus)))  # 0.7 of it, once halved
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        words = [Path(name).read_text(encoding="ascii").strip() for name in (limit, used) if Path(name).exists()]
        if len(words) == 2 and all(word.isdigit() for word in words):
            free.append(int(words[0]) - int(words[1]))
    return max(LEAST, min(free) // 2)


def _available() -> int:
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
