"""A process that keeps freed memory asks the system for none when it takes the same sizes again."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource
from noisegate.pipeline.system.machine import reuse_memory
assert not {reuse} or reuse_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def once():
    blocks = [libc.malloc(20 << 20) for _ in range(4)]
    for block in blocks:
        ctypes.memset(block, 1, 20 << 20)
    for block in blocks:
        libc.free(block)
once()
once()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    once()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallopt")
def test_freed_blocks_are_used_again() -> None:
    def faults(reuse: bool) -> int:
        program = PROGRAM.format(reuse=reuse)
        return int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)

    assert faults(reuse=True) < 100
    assert faults(reuse=False) > 10 * faults(reuse=True), "the test's sizes no longer make glibc give memory back"


GIVEN_BACK = """
import ctypes, re
from pathlib import Path
from noisegate.pipeline.system.machine import free_unused_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
blocks = [libc.malloc(64 << 10) for _ in range(800)]
for block in blocks:
    ctypes.memset(block, 1, 64 << 10)
for block in blocks[:-1]:  # the last one keeps the heap's end where it is
    libc.free(block)
before = anonymous()
assert free_unused_memory()
print(before - anonymous())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc_trim")
def test_freed_blocks_below_one_in_use_are_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", GIVEN_BACK], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 40_000  # of 51,200 kB
