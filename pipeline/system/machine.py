"""Processors, threads and memory to use, and processes that end with their parent."""

import ctypes
import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from noisegate.pipeline.errors import ConfigError

LEAST = 16_000_000  # bytes
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_BLOCK = 32 << 20  # bytes; the most that every 64-bit glibc accepts


def count_processors() -> int:
    """Return how many processors this process may use, or all if the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_threads() -> int:
    """Return OMP_NUM_THREADS if set, else one thread for each processor."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(given) if given.isdigit() and int(given) else count_processors()


def exit_with_parent() -> None:
    """End this process of `multiprocessing`, whatever it is doing, once the process that started it has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "the main process has no parent to watch"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def read_size(text: str, setting: str = "neighbour-memory") -> int:
    """Return the bytes of a size such as 8GB; raise ConfigError for anything else.

    >>> read_size("8GB"), read_size("1.5 GiB"), read_size("500M")
    (8000000000, 1610612736, 500000000)
    """
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?\s*", text.upper())
    size = 0.0
    if parts:
        number, unit, binary = parts.groups()
        step = 1024 if binary else 1000
        size = float(number) * step ** ("KMGT".index(unit) + 1 if unit else 0)
    if size < LEAST:
        raise ConfigError.of(setting, text, "is no size of 16MB or more; use 8GB, or leave it out")
    return int(size)


def format_size(size: float) -> str:
    """Format a size in bytes for people.

    >>> format_size(870), format_size(81_920), format_size(12_345_678), format_size(7.1e9)
    ('0.9 kB', '81.9 kB', '12.3 MB', '7.1 GB')
    """
    for unit, step in (("GB", 1e9), ("MB", 1e6)):
        if size >= step:
            return f"{size / step:,.1f} {unit}"
    return f"{size / 1e3:,.1f} kB"


def format_duration(seconds: float) -> str:
    """Format seconds with a readable unit.

    >>> format_duration(3.21), format_duration(90), format_duration(4 * 3600), format_duration(80 * 86400)
    ('3.2 s', '1.5 min', '4.0 h', '80 days')
    """
    for below, unit, name in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h"), (864_000, 86_400, "days")):
        if seconds < below:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds / 86_400:,.0f} days"


def default_memory(gpus: Sequence[int] = ()) -> int:
    """Return half of the bytes that this machine or container has free, at most what fits the given GPUs."""
    free = [_available()]
    if gpus:
        import torch

        free.append(int(1.4 * sum(torch.cuda.mem_get_info(gpu)[0] for gpu in gpus)))  # 0.7 of it after halving
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
        match = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    except OSError:
        match = None
    return int(match[1]) * 1024 if match else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def reuse_memory(block: int = LARGEST_BLOCK, spare: int = 1 << 30) -> bool:
    """Keep freed blocks of up to `block` bytes, and `spare` bytes at the end of the heap; return whether that is possible.

    glibc returns larger blocks to the system at once. A program that frees and allocates the same sizes over and over, such as
    batches and activations, then waits for the system to clear the same pages again (benchmarks/malloc.py).
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):  # musl does not have it
        return False
    return bool(libc.mallopt(_M_MMAP_THRESHOLD, block)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, spare))


def limit_memory(extra: int) -> None:
    """Limit this process to `extra` bytes more than now; beyond that it raises MemoryError. Only on Linux."""
    if sys.platform == "linux":
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
        most = pages * os.sysconf("SC_PAGE_SIZE") + extra
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def free_unused_memory() -> bool:
    """Return all free blocks, such as the cells of an inverted file, to the system; return whether there were any."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc is not None and hasattr(libc, "malloc_trim") and bool(libc.malloc_trim(0))
