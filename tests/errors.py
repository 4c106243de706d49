"""Expect an error by what it carries, not by its words."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from noisegate.pipeline.errors import ConfigError, NoisegateError

ANY = object()


@contextmanager
def refused(
    setting: str, value: Any = ANY, error: type[NoisegateError] = ConfigError
) -> Iterator[pytest.ExceptionInfo[NoisegateError]]:
    """The block must raise `error` about `setting`, with exactly `value` where one is given."""
    with pytest.raises(error) as caught:
        yield caught
    assert caught.type is error
    assert caught.value.setting == setting, str(caught.value)
    if value is not ANY:
        assert caught.value.value == value, str(caught.value)


@contextmanager
def failed(code: str, error: type[Exception]) -> Iterator[pytest.ExceptionInfo[Any]]:
    """The block must raise `error` with this `code`, as errors of the service and of its client carry one."""
    with pytest.raises(error) as caught:
        yield caught
    assert caught.value.code == code, str(caught.value)  # type: ignore[attr-defined]
