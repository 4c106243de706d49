"""What interrupts a training: Ctrl-C and SIGTERM stop it after a checkpoint, a second Ctrl-C or a full disk end it at once."""

import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from noisegate.pipeline.errors import NoisegateError, StoppedError

from .run_folder import TrainFolder

STOPPING = b"\nstopping as soon as this batch or evaluation is done, after a checkpoint; once more stops at once\n"


class StopRequest:
    """Whether the user asked to stop. Unless `quiet`, the request is confirmed on standard error."""

    def __init__(self, quiet: bool = True) -> None:
        self.asked, self._quiet = False, quiet

    def ask(self, number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
        """Ask to stop; a signal handler."""
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.asked and not self._quiet:
            with suppress(OSError):
                os.write(2, STOPPING)  # not print: the signal may interrupt another print
        self.asked = True


@contextmanager
def stop_on_signals(quiet: bool = True) -> Iterator[StopRequest]:
    """A request that SIGINT and SIGTERM set; outside the main thread Python allows no signal handlers."""
    request = StopRequest(quiet)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def explain_interrupts(folder: TrainFolder) -> Iterator[None]:
    """Turn a full disk or a second Ctrl-C into a message that says how to resume."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise StoppedError(f"at once; {_next_step(folder)}") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise NoisegateError(
            f"no space left for {folder.path}; free some, and {_next_step(folder)}", "out", str(folder.path)
        ) from error


def _next_step(folder: TrainFolder) -> str:
    if not folder.state_file.exists():
        return "start anew: there is no checkpoint yet"
    return f"go on from the last checkpoint with: noisegate train --resume {folder.path}"
