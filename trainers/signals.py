"""Ctrl-C and SIGTERM while training: finish the update, save, and stop; a second Ctrl-C stops at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["StopRequest", "stop_on_signals"]


class StopRequest:
    """Whether somebody asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self, number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
        """As a signal handler."""
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """A request that SIGINT and SIGTERM make; outside the main thread, where Python allows no handlers, nobody does."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
