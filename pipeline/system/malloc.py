"""Memory that a process frees: kept, to be used again, or given back to the system."""

import ctypes
import sys

__all__ = ["give_back", "reuse_memory"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_BLOCK = 32 << 20  # the most that every glibc of 64 bits takes


def reuse_memory(block: int = LARGEST_BLOCK, spare: int = 1 << 30) -> bool:
    """Keep freed blocks of up to `block` bytes, at most `spare` of them at the end of the heap; whether that is possible here.

    glibc hands larger blocks back to the system at once. A program that frees and takes the same sizes over and over, as
    batches and activations are, then has the system clear the same pages again and again (benchmarks/train.py).
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):  # musl has none
        return False
    return bool(libc.mallopt(_M_MMAP_THRESHOLD, block)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, spare))


def give_back() -> bool:
    """Hand all that is free back to the system, also what lies between blocks in use; whether there was anything.

    glibc keeps many small blocks that were freed, such as the cells of an inverted file.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc is not None and hasattr(libc, "malloc_trim") and bool(libc.malloc_trim(0))
