"""Follow a job by its server-sent events: parse the stream, reopen it when it breaks, detect the job's end."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from .requests import Outcome, Retry, to_error

OVER = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class Event:
    """One event of a job: `kind` is progress, note or done; `data` is its JSON object, or {"text": …} for other text."""

    kind: str
    data: dict[str, Any]
    id: str | None = None


@dataclass
class EventReader:
    """Parse server-sent events: take lines without line ends, return an event at the blank line that ends it.

    >>> reader = EventReader()
    >>> [event for line in ("event: note", 'data: {"text": "hi"}', "") if (event := reader.feed(line))]
    [Event(kind='note', data={'text': 'hi'}, id=None)]
    """

    last_id: str | None = None
    _id: str | None = None
    _kind: str = "message"
    _lines: list[str] = field(default_factory=list)

    def feed(self, line: str) -> Event | None:
        """Return the event that this line completes, or None; comments and unknown fields are ignored."""
        if not line:
            return self._complete()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._kind = value
        elif name == "data":
            self._lines.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _complete(self) -> Event | None:
        kind, lines = self._kind, self._lines
        self._kind, self._lines = "message", []
        if self._id is not None:  # only for a complete event: an incomplete one is sent again
            self.last_id = self._id
        if not lines:
            return None
        text = "\n".join(lines)
        try:
            data = json.loads(text)
        except ValueError:
            data = text
        return Event(kind, data if isinstance(data, dict) else {"text": text}, self.last_id)


class JobWatch:
    """State of one `wait_job`: the last event received, and how many streams in a row brought no event."""

    silence = 60.0  # seconds without an event or heartbeat, after which the stream is opened again

    def __init__(self, retry: Retry, draw: Callable[[], float], progress: Callable[[Event], object] | None) -> None:
        self._retry, self._draw, self._progress = retry, draw, progress
        self._reader = EventReader()
        self._failures = 0

    def headers(self) -> dict[str, str]:
        """Request headers that let the service continue after the last event that came."""
        return {"Last-Event-ID": self._reader.last_id} if self._reader.last_id else {}

    def start_stream(self) -> None:
        """Drop an incomplete event of the previous stream."""
        self._reader = EventReader(self._reader.last_id)

    def feed(self, line: str) -> bool:
        """Handle one line of the stream; return True when the job is over."""
        self._failures = 0
        event = self._reader.feed(line)
        if event is None:
            return False
        if self._progress is not None:
            self._progress(event)
        return event.kind == "done"

    def pause(self, outcome: Outcome, request: httpx.Request) -> float:
        """Return seconds to wait before the next stream; raise ServiceError for a final outcome.

        A stream that ends without `done` means that the service shuts down; its job goes on after the restart.
        """
        self._failures += 1
        ended = outcome if not isinstance(outcome, httpx.Response) or not outcome.is_success else None
        if ended is None or isinstance(ended, httpx.ReadTimeout):
            ended = httpx.RemoteProtocolError("the stream of events ended")
        wait = self._retry.wait(self._failures, ended, self._draw())
        if wait is None:
            raise to_error(outcome if ended is outcome else ended, request)
        return wait

    @staticmethod
    def is_over(job: Mapping[str, Any]) -> bool:
        """Return whether the job's record says that it has ended."""
        return job.get("state", job.get("status")) in OVER
