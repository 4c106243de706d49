"""When to ask again, and how long to wait before; the flow of a request without the network, for both clients."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import count
from typing import Any

import httpx

from noisegate.pipeline.errors import ConfigError

from .answers import ServiceError, as_object

__all__ = ["Flow", "Outcome", "Retry", "ask", "error_of", "retry_after"]

Outcome = httpx.Response | httpx.TransportError
Flow = Generator[httpx.Request | float, Outcome | None, dict[str, Any]]

BUSY = (429, 503)
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
BROKEN = (httpx.NetworkError, httpx.RemoteProtocolError)


@dataclass(frozen=True)
class Retry:
    """Up to `retries` further tries after `first`, twice, four times as many seconds, none above `longest`.

    Half of each wait is random, so that clients who were refused together do not come back together. A service that
    asks for more time than `patience` is not waited for.
    """

    retries: int = 5
    first: float = 0.25
    longest: float = 15.0
    patience: float = 60.0

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ConfigError(f"retries {self.retries} is negative; use 5, or 0 for none")

    def wait(self, tries: int, outcome: Outcome, draw: float) -> float | None:
        """Seconds to wait after the `tries`-th try ended so; None: it is final. `draw` is random in [0, 1).

        A connection that broke after sending is tried again as well: every request of the service may be repeated.
        """
        if tries > self.retries or not _may_pass(outcome):
            return None
        back_off = min(self.longest, self.first * 2.0 ** (tries - 1)) * (0.5 + draw / 2)
        asked = retry_after(outcome) if isinstance(outcome, httpx.Response) else None
        if asked is None:
            return back_off
        return None if asked > self.patience else max(asked, back_off)


def _may_pass(outcome: Outcome) -> bool:
    if isinstance(outcome, httpx.Response):
        return outcome.status_code in BUSY
    return isinstance(outcome, (*NOT_SENT, *BROKEN))


def _answer_lost(outcome: Outcome) -> bool:
    """Whether the request may have reached the service though no answer came back."""
    return isinstance(outcome, BROKEN) and not isinstance(outcome, NOT_SENT)


def retry_after(response: httpx.Response, now: datetime | None = None) -> float | None:
    """Seconds that the service asks to wait, given as a number or as a date; None where it does not say."""
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal():
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())


def ask(request: httpx.Request, retry: Retry, draw: Callable[[], float], carried_out: str | None = None) -> Flow:
    """Send until it is answered: yields the request to send or the seconds to wait, and returns the answer's JSON.

    `carried_out` is the refusal that says, once an answer was lost, that an earlier try did what was asked.
    """
    lost = False
    for tries in count(1):
        outcome = yield request
        assert outcome is not None
        if isinstance(outcome, httpx.Response) and outcome.is_success:
            return {} if outcome.status_code == httpx.codes.NO_CONTENT else _json(outcome)
        if lost and error_of(outcome, request).code == carried_out:
            return {}
        lost = lost or _answer_lost(outcome)
        wait = retry.wait(tries, outcome, draw())
        if wait is None:
            raise error_of(outcome, request)
        yield wait
    raise AssertionError("unreachable")


def error_of(outcome: Outcome, request: httpx.Request) -> ServiceError:
    """What an outcome that is no success means."""
    if isinstance(outcome, httpx.TimeoutException) and not isinstance(outcome, NOT_SENT):
        return ServiceError("timeout", f"no answer from {_place(request)} in time; use a longer timeout")
    if not isinstance(outcome, httpx.Response):
        reason = str(outcome) or type(outcome).__name__
        return ServiceError("unreachable", f"{_place(request)}: {reason}; is `noisegate serve` running there?")
    try:
        error = outcome.json()["error"]
        return ServiceError(
            str(error["code"]), str(error["message"]), _text(error.get("request_id")), outcome.status_code
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"{_place(request)} answered {outcome.status_code} {outcome.reason_phrase}"
        return ServiceError(
            f"http_{outcome.status_code}", message, outcome.headers.get("x-request-id"), outcome.status_code
        )


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        return as_object(response.json(), "the answer")
    except ValueError as error:
        raise ServiceError("bad_answer", "the answer is no JSON; is this a noisegate service?") from error


def _place(request: httpx.Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
