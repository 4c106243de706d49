"""Temporary folders that do not pile up: each new one deletes those that killed processes left behind."""

import contextlib
import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path

from noisegate.pipeline.errors import NoisegateError
from noisegate.pipeline.runs import folder_lock

PREFIX = "noisegate-"


class ScratchFolder:
    """A new folder in the system's temporary one, deleted with this object, at the latest with the interpreter.

    It is locked while in use. The lock ends with the process, also a killed one, so that others see it is abandoned.
    """

    def __init__(self, purpose: str = "data", within: Path | None = None) -> None:
        within = within or Path(tempfile.gettempdir())
        clear_abandoned(within)
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-", dir=within))
        held = contextlib.ExitStack()
        with contextlib.suppress(NoisegateError):  # a disk without locks: the folder then never counts as abandoned
            held.enter_context(folder_lock(self.path))
        self._end = weakref.finalize(self, _remove, self.path, held)

    def remove(self) -> None:
        self._end()


def clear_abandoned(within: Path) -> None:
    """Delete this user's scratch folders whose process is gone."""
    for folder in within.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, NoisegateError):  # deleted by another process, or locked and so in use
            if _is_own(folder) and (folder / "_lock").stat().st_size:  # empty: its process has only just made it
                with folder_lock(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    """Whether it is a folder of this user, not a link: anyone can write to the temporary folder."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and (os.name == "nt" or found.st_uid == os.getuid())


def _remove(folder: Path, held: contextlib.ExitStack) -> None:
    held.close()
    shutil.rmtree(folder, ignore_errors=True)
