"""Refuse bodies while they arrive: too large, too slow, or too many bytes of all requests together."""

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noisegate.service.errors import ApiError, Overloaded, error_response

LINGER = 2.0  # seconds to read and drop the rest of a slow body; for other refusals at least this long


class _Refused(Exception):
    """Ends the request; the rest of its body is dropped."""


class BodyLimit:
    """Middleware: 413 over `most` bytes, 408 after `seconds`, 429 when all requests hold more than `together` bytes.

    A body with both Content-Length and Transfer-Encoding gets 400: a proxy may believe the other one. Bytes count from
    the start of the request if it announces them, so that an admitted request is not refused half-way, until its end.
    """

    def __init__(self, app: ASGIApp, most: int, seconds: float, together: int) -> None:
        self._app, self._most, self._seconds, self._together = app, most, seconds, together
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(self, receive)
        started = False

        async def send_unless_refused(message: Message) -> None:
            nonlocal started
            if body.refused is None:
                started = True
                await send(message)

        try:
            body.refused = self._check_headers(scope, body)
            if body.refused is None:
                with contextlib.suppress(_Refused):
                    await self._app(scope, body.receive, send_unless_refused)
        finally:
            self._held -= body.held  # before the rest is dropped: its bytes are not in memory
        if body.refused is not None and not started:
            seconds = LINGER if body.refused.status == 408 else max(LINGER, self._seconds)
            await _refuse(body.refused, scope, receive, send, self._most, seconds)

    def _check_headers(self, scope: Scope, body: "_Body") -> ApiError | None:
        """The error that a body's headers call for, or None; counts its announced bytes."""
        announced = _content_length(scope)
        if announced is None:
            return None
        if any(name == b"transfer-encoding" for name, _ in scope["headers"]):
            return ApiError(400, "bad_request", "give Content-Length or Transfer-Encoding, not both")
        if announced > self._most:
            return self.too_large(f"a body of {announced:,} bytes")
        if self._held + announced > self._together:
            return self.crowded()
        self._hold(body, announced)
        return None

    def take(self, body: "_Body") -> ApiError | None:
        """Count the bytes that arrived; an error when they are too many."""
        self._hold(body, body.seen)
        if body.seen > self._most:
            return self.too_large("the body")
        return self.crowded() if self._held > self._together else None

    def _hold(self, body: "_Body", size: int) -> None:
        more = max(0, size - body.held)
        self._held, body.held = self._held + more, body.held + more

    def too_large(self, what: str) -> ApiError:
        return ApiError(413, "too_large", f"{what} is over max_body_bytes={self._most}; send fewer items at once")

    def crowded(self) -> ApiError:
        return Overloaded("the bodies of all requests fill queue_bytes", 1)

    def too_slow(self) -> ApiError:
        return ApiError(408, "slow_body", f"the body did not come within {self._seconds:g} s")

    @property
    def seconds(self) -> float:
        return self._seconds


class _Body:
    """The body of one request."""

    def __init__(self, limit: BodyLimit, receive: Receive) -> None:
        self._limit, self._receive = limit, receive
        self._whole = False
        self._until: float | None = None
        self.seen = 0  # bytes that arrived
        self.held = 0  # bytes counted, announced or arrived
        self.refused: ApiError | None = None

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()  # can only be the disconnect
        loop = asyncio.get_running_loop()
        if self._until is None:
            self._until = loop.time() + self._limit.seconds
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            self.refused = self._limit.too_slow()
            raise _Refused from None
        if message["type"] == "http.request":
            self.seen += len(message.get("body", b""))
            self.refused = self._limit.take(self)
            if self.refused is not None:
                raise _Refused
            self._whole = not message.get("more_body", False)
        else:
            self._whole = True
        return message


def _content_length(scope: Scope) -> int | None:
    value = next((v for k, v in scope["headers"] if k == b"content-length"), None)
    return int(value) if value is not None and value.isdigit() else None


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send, most: int, seconds: float) -> None:
    """Answer at once, then read and drop the body for a moment: closing now would hide the answer from the sender."""
    dropped = 0
    scope["state"]["error_code"] = error.code
    response = error_response(error, scope["state"].get("request_id"), {"Connection": "close"})
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": bytes(response.body), "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while (
                (message := await receive())["type"] == "http.request" and message.get("more_body") and dropped < most
            ):
                dropped += len(message.get("body", b""))
    await send({"type": "http.response.body", "body": b"", "more_body": False})
