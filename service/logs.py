"""Logging: one line per request, as JSON or text, with its id; never bodies, captions, keys or query strings."""

import asyncio
import json
import logging
import re
import sys
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, ClientGone, Unavailable, error_response
from .metrics import Metrics

log = logging.getLogger("noisegate.access")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # a path may hold line breaks and terminal escapes
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "taskName", "color_message"}


class JsonLines(logging.Formatter):
    """A record as one JSON object: time, level, logger, message and the values in `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= _extra(record)
        if record.exc_info:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """A record as one line of text."""

    def format(self, record: logging.LogRecord) -> str:
        extra = " ".join(f"{name}={value}" for name, value in _extra(record).items())
        line = _CONTROL.sub(
            lambda match: repr(match[0])[1:-1], f"{record.levelname.lower()} {record.getMessage()} {extra}"
        )
        line = line.rstrip()
        return line if not record.exc_info else f"{line}\n{''.join(traceback.format_exception(*record.exc_info))}"


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """Return the values given in `extra`, without names with an underscore, which libraries such as Ray add to every record."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD and not name.startswith("_")}


class RepeatLimit(logging.Filter):
    """Let `most` warnings and errors of a kind through per minute; the next one says how many were left out.

    The access log is not limited: its level is INFO.
    """

    def __init__(self, most: int = 20, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most, self._clock = most, clock
        self._began = 0.0
        self._seen: Counter[tuple[str, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        kind = (record.name, str(record.msg)[:200])
        if self._clock() - self._began >= 60:
            if (left_out := self._seen[kind] - self._most) > 0:
                record.left_out = left_out
            self._began, self._seen = self._clock(), Counter()
        self._seen[kind] += 1
        return self._seen[kind] <= self._most


def set_up_logging(kind: str) -> None:
    """Send all logs to standard error as json, text, or auto (text on a terminal); turn uvicorn's access log off."""
    handler = logging.StreamHandler(sys.stderr)
    as_text = kind == "text" or (kind == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextLines() if as_text else JsonLines())
    handler.addFilter(RepeatLimit())
    for name, level in (("noisegate", logging.INFO), ("uvicorn", logging.WARNING), ("asyncio", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate, logger.level = [handler], False, level
    logging.getLogger("uvicorn.access").disabled = True


class RequestLog:
    """Middleware: give each request an id, log and count it, and answer 500 when it crashes."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((v.decode("latin-1") for k, v in scope["headers"] if k == b"x-request-id"), "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        began, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", [])
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        async def answer(error: ApiError) -> None:
            scope["state"]["error_code"] = error.code
            await error_response(error, request_id)(scope, receive, send_with_id)

        try:
            await self._app(scope, receive, send_with_id)
        except (ClientGone, ClientDisconnect):  # while waiting for the answer, or while sending the body
            status = 499  # as in nginx; used only in the log
            self._metrics.cancelled.inc()
        except asyncio.CancelledError:  # cancelled by the server at shutdown, after drain_seconds
            if status:
                raise
            await answer(Unavailable("draining", "the service is shutting down", 5))
        except Exception:
            log.exception("request failed", extra={"request_id": request_id, "path": scope["path"]})
            if status:
                raise
            await answer(ApiError(500, "internal", "something went wrong here; the log has it under this request's id"))
        finally:
            self._record(scope, request_id, status, time.perf_counter() - began)

    def _record(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        code = scope["state"].get("error_code")
        if code or status >= 400:
            self._metrics.errors.labels(code or f"http_{status}").inc()
        fields = {
            "request_id": request_id,
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "milliseconds": round(1000 * seconds, 1),
            "client": (scope.get("client") or ("",))[0],
        }
        quiet = route in ("/healthz", "/readyz", "/metrics") and status < 400
        log.log(logging.DEBUG if quiet else logging.INFO, "request", extra=fields | ({"code": code} if code else {}))
