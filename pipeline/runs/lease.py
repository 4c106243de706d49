"""Allow one job per run in a store: an object `_lock` says which job writes and until when, and is renewed meanwhile.

A lease is not as strong as a lock: it needs clocks that agree within a minute, and a writer that was stopped for longer than
its lease notices another one only with its next request. S3, Google's store and memory create the object only if there is none,
in one step; on other stores two jobs that start at the same instant can both get the lease.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from noisegate.pipeline.errors import LockedError, NoisegateError
from noisegate.pipeline.system.output_files import write_atomically
from noisegate.pipeline.system.stores import Store

LOCK = "_lock"
SECONDS = 120.0  # a job that dies elsewhere keeps others out for this long (chosen)
SECONDS_HF = 3600.0  # on hf:// every renewal is a commit
SETTLE_SECONDS = 2.0  # wait after taking over another machine's lease, before checking who owns it


class Lease:
    """This process's hold on a run. `copy` names the local copy of the run, which only one process at a time may use."""

    def __init__(self, store: Store, copy: str) -> None:
        self._store, self._copy, self._token = store, copy, uuid4().hex
        self._seconds = SECONDS_HF if store.protocol == "hf" else SECONDS
        self._until = 0.0
        self._problem: NoisegateError | None = None
        self._ended = threading.Event()

    def take(self) -> None:
        """Create the object, or take over one that has expired or whose process is dead; else raise LockedError."""
        other = self._read()
        if other is None:
            self._store.write(LOCK, self._text(), create=True)
        elif other.get("copy") != self._copy and float(other.get("until", 0)) > time.time():
            raise self._locked(other)
        else:
            self._store.write(LOCK, self._text())
            if other.get("copy") not in (None, self._copy):
                time.sleep(SETTLE_SECONDS)
        self._check_mine()

    def check(self) -> None:
        """Raise LockedError if another job has taken the run, NoisegateError if the lease could not be renewed."""
        if self._problem is None and time.time() > self._until:
            self._renew()
        if self._problem is not None:
            raise self._problem

    def keep(self) -> None:
        """Renew until `end`; runs in a thread."""
        while not self._ended.wait(self._seconds / 4):
            try:
                self._renew()
            except NoisegateError as error:  # raised by `check`, where the job runs
                if isinstance(error, LockedError) or time.time() > self._until:
                    self._problem = error
                    return

    def end(self) -> None:
        self._ended.set()

    def give_back(self) -> None:
        """Delete the object if this process still owns it."""
        other = self._read()
        if other is not None and other.get("token") == self._token:
            self._store.delete(LOCK)

    def _renew(self) -> None:
        self._check_mine()
        self._store.write(LOCK, self._text())

    def _check_mine(self) -> None:
        other = self._read() or {}
        if other.get("token") != self._token:
            raise self._locked(other)

    def _read(self) -> dict[str, Any] | None:
        """Read the object; empty if it is no lease, such as the lock file of a run that was copied into the store."""
        content = self._store.read(LOCK)
        try:
            values = None if content is None else json.loads(content)
        except ValueError:
            return {}
        return values if isinstance(values, dict) or values is None else {}

    def _text(self) -> bytes:
        self._until = time.time() + self._seconds
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        return json.dumps(
            {"holder": holder, "until": self._until, "copy": self._copy, "token": self._token}, indent=1
        ).encode()

    def _locked(self, other: dict[str, Any]) -> LockedError:
        holder, left = other.get("holder", "another process"), float(other.get("until", 0)) - time.time()
        ends = f" (if it died, its lease ends in {left:.0f} s)" if left > 0 else ""
        problem = f"is being written by {holder}{ends}; wait for it, or choose another"
        return LockedError.of(self._store.setting, self._store.url, problem)


@contextmanager
def hold_lease(store: Store, folder: Path) -> Iterator[Lease]:
    """Hold the run's lease; `folder` is the local copy, whose lock this process holds.

    So the process of a lease that names this copy must be dead, and the lease can be taken over before it expires.
    """
    identity = folder / ".copy"
    if not identity.exists():
        write_atomically(identity, uuid4().hex.encode())
    lease = Lease(store, identity.read_text(encoding="utf-8"))
    lease.take()
    thread = threading.Thread(target=lease.keep, name="lease", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        lease.end()
        thread.join()
        lease.give_back()
