"""Everything noisegate raises on purpose.

NoisegateError
├── ConfigError        a setting that cannot work: names the setting, the value given and one that works
│   └── AllFailedError the first samples of a job all fail alike, so that a setting must be wrong
├── ShardError         a shard that cannot be read at all
├── TableError         a weight table that is missing, damaged or of another version
│   └── MismatchError  a folder made by another scorer, or a table that does not belong to its shard
├── LockedError        another job writes the same folder
└── StoppedError       stopped on request with everything saved: says how to go on

A bad sample is never an exception: it is a row with a status. Every error carries the `setting` it is about and the `value`
that was given (None where there is none), so that callers and tests need not read its words.
"""

import difflib
from collections.abc import Iterable
from typing import Any, Self


class NoisegateError(Exception):
    """Base of all errors that noisegate raises on purpose; its text is meant for the user.

    >>> error = ConfigError.of("k", 0, "is too small; use 10")
    >>> str(error), error.setting, error.value
    ('k 0 is too small; use 10', 'k', 0)
    """

    def __init__(self, message: str, setting: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.setting = setting
        self.value = value

    @classmethod
    def of(cls, setting: str, value: object, problem: str) -> Self:
        """Make the error whose message is the setting, the value and the problem, in this order."""
        return cls(f"{setting} {repr(value) if isinstance(value, str) else value} {problem}", setting, value)


class ConfigError(NoisegateError):
    """A setting that cannot work."""


class AllFailedError(ConfigError):
    """The first samples of a job all fail alike; `setting` is what is most likely wrong, `value` their status."""


class ShardError(NoisegateError):
    """A shard that cannot be read at all."""


class TableError(NoisegateError):
    """A weight table that is missing, damaged or of another version."""


class MismatchError(TableError):
    """Made by another scorer, or from other data, than what is asked for now."""


class LockedError(NoisegateError):
    """Another job writes the same folder."""


class StoppedError(NoisegateError):
    """Stopped on request; the text says how to go on."""


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Return the hint at the end of a message about an unknown name: the nearest known name, or nothing if none is near.

    >>> did_you_mean("ossa", ["baseline", "osa"])
    '; did you mean osa?'
    >>> did_you_mean("magic", ["baseline", "osa"])
    ''
    """
    near = difflib.get_close_matches(str(given).lower(), list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
