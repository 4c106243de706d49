"""Errors of the HTTP API; the body is always `{"error": {"code", "message", "request_id"}}`.

ApiError(status, code, message, retry_after)
├── Overloaded       429 overloaded: it would wait too long, or the queue is full; try again after Retry-After seconds
├── Unavailable      503 not_ready, draining, worker_lost: the same request works later
├── TimedOut         504 timeout: admitted, but not done in request_timeout
└── InvalidRequest   422 invalid_request: the body does not fit the schema
"""

import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

CODES = {
    400: "bad_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed",
    406: "not_acceptable", 413: "too_large", 415: "unsupported_media_type", 422: "invalid_request",
}  # fmt: skip


NO_ROUTE = "there is no such route; / is the page, and /docs shows all routes"


class ApiError(Exception):
    """An error answer: `code` is stable and meant for programs, `message` is for people and may change."""

    def __init__(self, status: int, code: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after


class ClientGone(Exception):
    """The client disconnected before its answer was ready."""


class Overloaded(ApiError):
    """The queue is full."""

    def __init__(self, message: str, retry_after: float = 1) -> None:
        super().__init__(429, "overloaded", message, retry_after)


class Unavailable(ApiError):
    """The service cannot work at the moment; `code` says why."""

    def __init__(self, code: str, message: str, retry_after: float = 1) -> None:
        super().__init__(503, code, message, retry_after)


class TimedOut(ApiError):
    """Admitted, but not done in time."""

    def __init__(self, message: str) -> None:
        super().__init__(504, "timeout", message, 1)


class InvalidRequest(ApiError):
    """The body does not fit the schema; the message names the place."""

    def __init__(self, message: str) -> None:
        super().__init__(422, "invalid_request", message)


def error_response(error: ApiError, request_id: str | None, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Make the HTTP answer for an error."""
    body = {"error": {"code": error.code, "message": error.message, "request_id": request_id}}
    extra = dict(headers or {})
    if error.retry_after is not None:
        extra["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    return JSONResponse(body, error.status, extra)


def describe(problems: Any) -> str:
    """Format pydantic's list of problems as one line of places and reasons, without the values."""
    lines = [
        f"{'.'.join(str(part)[:60] for part in p['loc']) or 'body'}: {p['msg'].removeprefix('Value error, ')}"
        for p in problems[:5]
    ]
    return "; ".join(lines)


def add_handlers(app: FastAPI) -> None:
    """Give every error that leaves a route the same shape."""

    @app.exception_handler(ApiError)
    async def _(request: Request, error: ApiError) -> JSONResponse:
        return _answer(request, error)

    @app.exception_handler(RequestValidationError)
    async def _(request: Request, error: RequestValidationError) -> JSONResponse:
        return _answer(request, InvalidRequest(describe(error.errors())))

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> JSONResponse:
        code = CODES.get(error.status_code, f"http_{error.status_code}")
        headers, message = error.headers, NO_ROUTE if error.status_code == 404 else str(error.detail)
        if error.status_code == 405:
            allowed = _allowed_methods(request, (headers or {}).get("Allow", ""))
            headers, message = {"Allow": allowed}, f"this route takes {allowed}"
        return _answer(request, ApiError(error.status_code, code, message), headers)


def _allowed_methods(request: Request, first: str) -> str:
    """List all methods of a path; the router itself names only the methods of the first matching route, `first`."""
    methods = set(filter(None, first.split(", ")))
    for path, operations in request.app.openapi()["paths"].items():
        if compile_path(path)[0].match(request.scope["path"]):
            methods |= {method.upper() for method in operations}
    return ", ".join(sorted(methods))


def _answer(request: Request, error: ApiError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    request.state.error_code = error.code  # for the log and the counters
    return error_response(error, getattr(request.state, "request_id", None), headers)
