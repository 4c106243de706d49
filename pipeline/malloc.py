"""Lets a process use the memory that it frees again, instead of giving it back and asking for it anew."""

import ctypes
import sys

__all__ = ["reuse_memory"]

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
