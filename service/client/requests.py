"""Build the requests of both clients, decide when to send them again, and interpret failures. No network here."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import httpx

from noisegate.pipeline.errors import ConfigError

from .answers import ServiceError, as_object
from .batches import BatchSizes, RequestBatch

Outcome = httpx.Response | httpx.TransportError
Flow = Generator[httpx.Request | float, Outcome | None, dict[str, Any]]

BUSY = (429, 503)
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
BROKEN = (httpx.NetworkError, httpx.RemoteProtocolError)


@dataclass(frozen=True)
class Retry:
    """Exponential back-off: `retries` more tries, after `first` seconds, then twice as many each time, up to `longest`.

    Half of each wait is random, so that clients refused together do not come back together. A Retry-After of more than
    `patience` seconds ends the tries. Tries are counted from the client's latest answer, because a service that is busy with
    its other requests still answers them.
    """

    retries: int = 5
    first: float = 0.25
    longest: float = 15.0
    patience: float = 60.0

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ConfigError.of("retries", self.retries, "is negative; use 5, or 0 for none")

    def wait(self, tries: int, outcome: Outcome, draw: float) -> float | None:
        """Return seconds to wait after try number `tries` ended with `outcome`; None: give up. `draw` is random in [0, 1).

        A request whose connection broke after sending is repeated too: every request of the service may be repeated.
        """
        if tries > self.retries or not _is_temporary(outcome):
            return None
        back_off = min(self.longest, self.first * 2.0 ** (tries - 1)) * (0.5 + draw / 2)
        requested = retry_after(outcome) if isinstance(outcome, httpx.Response) else None
        if requested is None:
            return back_off
        return None if requested > self.patience else max(requested, back_off)


def _is_temporary(outcome: Outcome) -> bool:
    if isinstance(outcome, httpx.Response):
        return outcome.status_code in BUSY
    return isinstance(outcome, (*NOT_SENT, *BROKEN))


def _is_answer_lost(outcome: Outcome) -> bool:
    """Return whether the request may have reached the service although no answer came back."""
    return isinstance(outcome, BROKEN) and not isinstance(outcome, NOT_SENT)


def retry_after(response: httpx.Response, now: datetime | None = None) -> float | None:
    """Read the seconds to wait from the Retry-After header, a number or a date; None without one."""
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal():
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())


@dataclass
class Answers:
    """Counter of a client's answered requests."""

    count: int = 0


def send_until_answered(
    request: httpx.Request, retry: Retry, draw: Callable[[], float], answers: Answers, carried_out: str | None = None
) -> Flow:
    """Yield the request to send, or seconds to wait, until it is answered; return the answer's JSON.

    `carried_out` is an error code that means success after a lost answer: an earlier try did the work.
    """
    lost, tries, answered = False, 0, answers.count
    while True:
        outcome = yield request
        assert outcome is not None
        if isinstance(outcome, httpx.Response) and outcome.is_success:
            answers.count += 1
            return {} if outcome.status_code == httpx.codes.NO_CONTENT else _json(outcome)
        if lost and to_error(outcome, request).code == carried_out:
            return {}
        lost = lost or _is_answer_lost(outcome)
        tries, answered = tries + 1 if answers.count == answered else 1, answers.count
        wait = retry.wait(tries, outcome, draw())
        if wait is None:
            raise to_error(outcome, request)
        yield wait


def to_error(outcome: Outcome, request: httpx.Request) -> ServiceError:
    """Turn a failed outcome into an error."""
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


class ClientBase:
    """Common base of both clients, which builds requests; the clients differ only in how they send them."""

    _http: httpx.Client | httpx.AsyncClient

    def __init__(self, retry: Retry, batch_items: int, in_flight: int, draw: Callable[[], float]) -> None:
        if in_flight < 1:
            raise ConfigError.of("in_flight", in_flight, "is too small; use 4")
        self._retry, self._draw, self._in_flight = retry, draw, in_flight
        self._answers = Answers()
        self._wanted = BatchSizes(batch_items)
        self._sizes: BatchSizes | None = None

    def _send_again(self, request: httpx.Request, carried_out: str | None = None) -> Flow:
        return send_until_answered(request, self._retry, self._draw, self._answers, carried_out)

    def _get(self, path: str) -> Flow:
        return self._send_again(self._http.build_request("GET", path))

    def _post(self, path: str, body: Any) -> Flow:
        return self._send_again(self._http.build_request("POST", path, json=body))

    def _forget_job(self, job: str) -> Flow:
        return self._send_again(self._http.build_request("DELETE", job_path(job)), "unknown_job")

    def _post_batch(self, path: str, batch: RequestBatch) -> Flow:
        headers = {"Content-Type": "application/json"}
        return self._send_again(self._http.build_request("POST", path, content=batch.body, headers=headers))

    def _start_job(self, shards: str | Sequence[str], name: str, settings: Mapping[str, Any]) -> Flow:
        body = {"shards": [shards] if isinstance(shards, str) else list(shards), "name": name, **settings}
        return self._post("v1/jobs", body)

    def _limit_sizes(self, scorer: Mapping[str, Any]) -> BatchSizes:
        """Return batch sizes within the limits that /v1/scorer reports."""
        limits = scorer.get("limits")
        self._sizes = self._wanted.limit_to(limits if isinstance(limits, Mapping) else {})
        return self._sizes

    def _events(self, job: str, headers: Mapping[str, str], silence: float) -> httpx.Request:
        timeout = httpx.Timeout(self._http.timeout.connect, read=silence)
        return self._http.build_request(
            "GET", f"{job_path(job)}/events", headers={"Accept": "text/event-stream", **headers}, timeout=timeout
        )


def job_path(job: str) -> str:
    """Return the path of a job, with its id quoted."""
    return f"v1/jobs/{quote(job, safe='')}"


def comparison(classes: str | None, against: str | None) -> dict[str, str]:
    """Make the settings of /v1/score that name a class set and a finished run."""
    return {name: value for name, value in (("classes", classes), ("against", against)) if value is not None}


def connection_options(url: str, api_key: str | None, timeout: float) -> dict[str, Any]:
    """Make options of the httpx client; the key is sent to this service only, because httpx follows no redirects."""
    if not url.lower().startswith(("http://", "https://")):
        raise ConfigError.of("url", url, "is not the address of a service; use one such as http://127.0.0.1:8765")
    try:
        base = httpx.URL(url if url.endswith("/") else f"{url}/")
    except httpx.InvalidURL as error:
        raise ConfigError(f"url {url!r}: {error}; use one such as http://127.0.0.1:8765", "url", url) from error
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return {"base_url": base, "headers": headers, "timeout": httpx.Timeout(timeout, connect=min(timeout, 10.0))}
