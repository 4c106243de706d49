"""Following a job: when its stream of events breaks, and when it is really over."""

from collections.abc import Callable, Mapping
from typing import Any

import httpx

from .events import Event, EventReader
from .retry import Outcome, Retry, error_of

__all__ = ["Watch"]

OVER = ("done", "failed", "cancelled")


class Watch:
    """The state of one `wait_job`: what was heard so far, and how many streams in a row brought nothing."""

    silence = 60.0  # seconds without an event or a sign of life, after which the stream is opened again

    def __init__(self, retry: Retry, draw: Callable[[], float], progress: Callable[[Event], object] | None) -> None:
        self._retry, self._draw, self._progress = retry, draw, progress
        self._reader = EventReader()
        self._failures = 0

    def headers(self) -> dict[str, str]:
        """Lets the service go on after the last event that was heard."""
        return {"Last-Event-ID": self._reader.last_id} if self._reader.last_id else {}

    def opened(self) -> None:
        """A stream begins: half an event of the one before is forgotten."""
        self._reader = EventReader(self._reader.last_id)

    def ends(self, line: str) -> bool:
        """Take a line of the stream; True when the job is over."""
        self._failures = 0
        event = self._reader.feed(line)
        if event is None:
            return False
        if self._progress is not None:
            self._progress(event)
        return event.kind == "done"

    def pause(self, outcome: Outcome, request: httpx.Request) -> float:
        """Seconds before the next stream; raises ServiceError where there is no point in one.

        A stream that ends without `done` is a service that is going down: it comes back, and its job goes on.
        """
        self._failures += 1
        ended = outcome if not isinstance(outcome, httpx.Response) or not outcome.is_success else None
        if ended is None or isinstance(ended, httpx.ReadTimeout):
            ended = httpx.RemoteProtocolError("the stream of events ended")
        wait = self._retry.wait(self._failures, ended, self._draw())
        if wait is None:
            raise error_of(outcome if ended is outcome else ended, request)
        return wait

    @staticmethod
    def over(job: Mapping[str, Any]) -> bool:
        """Whether a job's own record says that nothing more will happen."""
        return job.get("state", job.get("status")) in OVER
