"""One job per folder: a lock that the system frees by itself when its holder dies, however it dies."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import LockedError, NoisegateError

__all__ = ["folder_lock"]


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold `folder/_lock`; raises LockedError, naming the holder, when another job has it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "_lock"
    file = path.open("a+", encoding="utf-8")
    try:
        try:
            _lock(file.fileno())
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
                raise NoisegateError(
                    f"{folder} cannot be locked ({error.strerror}); use a folder on a local disk"
                ) from error
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise LockedError(f"{folder} is being written by {holder}; wait for it, or choose another --out") from error
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
        file.seek(0)
        file.truncate()
    finally:
        file.close()


if os.name == "nt":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
