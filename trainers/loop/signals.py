"""Ctrl-C and SIGTERM while training: finish the update, save, and stop; a second Ctrl-C stops at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

__all__ = ["StopRequest", "stop_on_signals"]


HEARD = b"\nstopping as soon as this batch or evaluation is done, after a checkpoint; once more stops at once\n"


class StopRequest:
    """Whether somebody asked to stop. Unless `quiet`, standard error says at once that it was heard."""

    def __init__(self, quiet: bool = True) -> None:
        self.asked, self._quiet = False, quiet

    def ask(self, number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
        """As a signal handler."""
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.asked and not self._quiet:
            with suppress(OSError):
                os.write(2, HEARD)  # print could be in the middle of its own work
        self.asked = True


@contextmanager
def stop_on_signals(quiet: bool = True) -> Iterator[StopRequest]:
    """A request that SIGINT and SIGTERM make; outside the main thread, where Python allows no handlers, nobody does."""
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
