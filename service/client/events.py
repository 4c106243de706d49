"""Server-sent events, line by line, as the standard has them."""

import json
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Event", "EventReader"]


@dataclass(frozen=True)
class Event:
    """One event of a job: `kind` is progress, note or done; `data` is its JSON object, or {"text": …} for other text."""

    kind: str
    data: dict[str, Any]
    id: str | None = None


@dataclass
class EventReader:
    """Feeds on lines without their ends and gives an event at each blank line that ends one.

    >>> reader = EventReader()
    >>> [found for line in ("event: note", 'data: {"text": "hi"}', "") if (found := reader.feed(line))]
    [Event(kind='note', data={'text': 'hi'}, id=None)]
    """

    last_id: str | None = None
    _id: str | None = None
    _kind: str = "message"
    _lines: list[str] = field(default_factory=list)

    def feed(self, line: str) -> Event | None:
        """The event that this line completes, if it does; comments and unknown fields are passed over."""
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
        self.last_id = self._id if self._id is not None else self.last_id  # not before: half an event was not heard
        if not lines:
            return None
        text = "\n".join(lines)
        try:
            data = json.loads(text)
        except ValueError:
            data = text
        return Event(kind, data if isinstance(data, dict) else {"text": text}, self.last_id)
