"""Allow one job per folder, by a lock that the system frees when its holder dies, however it dies.

The nodes of one run share the lock: all hold it together, and no other job can take it meanwhile.
"""

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from noisegate.pipeline.errors import LockedError, NoisegateError

SCORING = "scoring for all nodes"
_HELD = (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)


@contextmanager
def folder_lock(folder: Path, doing: str = "", wait: bool = False, name: Path | str | None = None) -> Iterator[str]:
    """Hold `folder/_lock`, and yield its text, which names the holder. If it is taken, wait, or raise LockedError.

    `name` is the user's name for the folder, if it differs.
    """
    with _opened(folder) as file:
        if not _locked(file, folder, shared=False, wait=wait):
            problem = f"is being written by {_holder(file)}; wait for it, or choose another"
            raise LockedError.of("out", name or folder, problem)
        mark = f"process {os.getpid()} on {socket.gethostname()}{', ' if doing else ''}{doing}"
        _mark(file, f"{mark}\n")
        yield mark
        _mark(file, "")


@contextmanager
def shared_lock(folder: Path, begin: Callable[[bool], None], note: Callable[[str], None]) -> Iterator[None]:
    """Hold `folder/_lock` together with other nodes. `begin(alone)` runs first; `alone` is True if no other node holds it.

    If a node holds the lock to score, wait for it; for any other holder raise LockedError.
    """
    with _opened(folder) as file:
        while True:
            if alone := _locked(file, folder, shared=False):
                break
            if _locked(file, folder, shared=True):
                break
            holder = _holder(file)
            if holder.startswith("process ") and not holder.endswith(SCORING):
                raise LockedError.of("out", folder, f"is being written by {holder}; wait for it, or choose another")
            note(f"waiting for {holder}")
            _locked(file, folder, shared=True, wait=True)
        if alone:
            _mark(file, "the nodes of one run\n")
        begin(alone)
        _locked(file, folder, shared=True, wait=True)
        yield


@contextmanager
def _opened(folder: Path) -> Iterator[IO[str]]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "_lock").open("a+", encoding="utf-8") as file:
        yield file


def _locked(file: IO[str], folder: Path, shared: bool, wait: bool = False) -> bool:
    try:
        _lock(file.fileno(), shared, wait)
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise NoisegateError.of("out", folder, f"cannot be locked ({error.strerror}); use another disk") from error
    return True


def _holder(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip() or "another process"


def _mark(file: IO[str], text: str) -> None:
    file.seek(0)
    file.truncate()
    file.write(text)
    file.flush()
    os.fsync(file.fileno())  # other hosts read the file to check that they see the same folder


if os.name == "nt":
    import msvcrt

    def _lock(descriptor: int, shared: bool, wait: bool) -> None:
        if shared:
            raise OSError(errno.ENOTSUP, "Windows has no shared locks")
        msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
else:
    import fcntl

    def _lock(descriptor: int, shared: bool, wait: bool) -> None:
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, how if wait else how | fcntl.LOCK_NB)
