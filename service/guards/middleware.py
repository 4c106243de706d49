"""Middleware that every request passes: security headers, keys, and limits of the body.

Keys: the service stores only their SHA-256, and compares in constant time. Bodies are refused while they arrive if they are too
large or too slow, or if all requests and answers together have too many bytes.
"""

import asyncio
import contextlib
import getpass
import hashlib
import hmac
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system import free_unused_memory
from noisegate.service.errors import ApiError, Overloaded, error_response

from .clients import client_of, name_key

HEADERS = {
    # only own scripts, styles and pictures; nothing from other sites, nothing inline
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
OPEN_PATHS = frozenset(("/", "/docs", "/healthz", "/readyz", "/favicon.ico"))
OPEN_BELOW = "/static/"  # the page contains no data; it requests data with a key
MIN_CHARS = 16  # of a key; 64 bits if they are hexadecimal
PIECE = 64 << 10  # bytes of an answer written at a time
TRIM_BYTES = 32 << 20  # of bodies and answers at a time; after a higher peak, free memory is returned to the system
LARGE_BODIES = frozenset(("/v1/score", "/v1/embed"))  # paths whose bodies hold pictures, and are parsed in a thread
SMALL_BODY = 1 << 20  # bytes of a body on any other path
LINGER = 2.0  # seconds to read and drop the rest of a slow body; for other refusals at least this long


class SecurityHeaders:
    """Middleware that adds the security headers that a route has not set itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def hash_key(key: str) -> str:
    """Hash a key for the setting `api_keys`.

    >>> hash_key("a key of many letters")[:20]
    'sha256:6f3ec2dee8e2b'
    """
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def read_key(source: TextIO) -> str:
    """Read a key from one line, hidden on a terminal; raise ConfigError for a key that is short enough to guess."""
    key = (getpass.getpass("key: ") if source.isatty() else source.readline()).strip()
    if len(key) < MIN_CHARS:
        problem = (
            f"a key of {len(key)} characters can be guessed; use at least {MIN_CHARS}, as from: openssl rand -hex 24"
        )
        raise ConfigError(problem, "hash_key")
    return key


class Keys:
    """The keys that the service accepts."""

    def __init__(self, hashed: Sequence[str]) -> None:
        self._digests = [bytes.fromhex(key.removeprefix("sha256:")) for key in hashed]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def is_known(self, key: bytes) -> bool:
        """Return whether this is one of the keys; all are compared, so that the time reveals nothing."""
        digest = hashlib.sha256(key).digest()
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


class RequireKey:
    """Middleware that refuses requests without a key before their body is read."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        given = any(name == b"authorization" for name, _ in scope["headers"])
        message = "this key is not known here" if given else "send a key as: Authorization: Bearer KEY"
        scope["state"]["error_code"] = "unauthorized"
        response = error_response(
            ApiError(401, "unauthorized", message),
            scope["state"].get("request_id"),
            {"WWW-Authenticate": "Bearer", "Connection": "close"},
        )
        await response(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        path: str = scope["path"]
        if path in OPEN_PATHS or path.startswith(OPEN_BELOW):
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        kind, _, key = given[0].partition(b" ")
        if kind.lower() != b"bearer" or not self._keys.is_known(key.strip()):
            return False
        scope.setdefault("state", {})["key"] = name_key(key.strip())
        return True


class _Refused(Exception):
    """Raised to end the request; the rest of its body is dropped."""


class BodyLimit:
    """Middleware: 413 over `most` bytes, 408 after `seconds`, 429 when all requests hold more than `together` bytes.

    Requests without pictures may have `SMALL_BODY` bytes. A body with both Content-Length and Transfer-Encoding gets 400,
    because a proxy may obey the other one. Bytes count while they are in memory: a body's as they arrive, an answer's until the
    client has read them. A client with several requests at a time must leave as many bytes free as it holds.
    """

    def __init__(self, app: ASGIApp, most: int, seconds: float, together: int) -> None:
        self._app, self._most, self.seconds, self._together = app, most, seconds, together
        self._held = self._peak = 0
        self._by_client: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._most if scope["path"] in LARGE_BODIES else min(self._most, SMALL_BODY)
        body = _Body(self, receive, client_of(scope), most)
        started = False

        async def send_unless_refused(message: Message) -> None:
            nonlocal started
            if body.refused is None:
                started = True
                await self._send(body, message, send)

        try:
            body.refused = self._check_headers(scope, body)
            if body.refused is None:
                with contextlib.suppress(_Refused):
                    await self._app(scope, body.receive, send_unless_refused)
        finally:
            self._release(body)  # before the rest is read and dropped: the dropped bytes do not count
        if body.refused is not None and not started:
            seconds = LINGER if body.refused.status == 408 else max(LINGER, self.seconds)
            await _refuse(body.refused, scope, receive, send, body.most, seconds)

    def _check_headers(self, scope: Scope, body: "_Body") -> ApiError | None:
        """Return the error for a body's headers, or None."""
        announced = _content_length(scope)
        if announced is None:
            return None
        if any(name == b"transfer-encoding" for name, _ in scope["headers"]):
            return ApiError(400, "bad_request", "give Content-Length or Transfer-Encoding, not both")
        if announced > body.most:
            return _too_large(f"a body of {announced:,} bytes", body.most)
        return self._check_room(body, announced)

    def take(self, body: "_Body", size: int) -> ApiError | None:
        """Count bytes that arrived; return an error if they are too many."""
        self._hold(body, size)
        return _too_large("the body", body.most) if body.seen > body.most else self._check_room(body, 0)

    def _check_room(self, body: "_Body", more: int) -> ApiError | None:
        free = self._together - self._held - more
        held = self._by_client[body.client] + more
        several = self._by_client[body.client] > body.held
        return self._crowded() if free < 0 or (several and held > free) else None

    async def _send(self, body: "_Body", message: Message, send: Send) -> None:
        """Send a message; a body is sent in pieces, each after the client has read the last one."""
        if message["type"] != "http.response.body":
            await send(message)
            return
        content = message.get("body", b"")
        self._hold(body, len(content))
        for start in range(0, len(content), PIECE):
            await send({**message, "body": content[start : start + PIECE], "more_body": True})
        if not message.get("more_body"):
            await send({**message, "body": b"", "more_body": False})
        self._hold(body, -len(content))

    def _hold(self, body: "_Body", size: int) -> None:
        body.held += size
        self._by_client[body.client] += size
        self._held += size
        self._peak = max(self._peak, self._held)

    def _release(self, body: "_Body") -> None:
        self._hold(body, -body.held)
        if not self._by_client[body.client]:
            del self._by_client[body.client]
        if not self._held and self._peak > TRIM_BYTES:  # after a burst
            self._peak = 0
            asyncio.get_running_loop().run_in_executor(None, free_unused_memory)

    def _crowded(self) -> ApiError:
        return Overloaded("the bodies and answers of all requests fill queue_bytes", 1)

    def too_slow(self) -> ApiError:
        return ApiError(408, "slow_body", f"the body did not come within {self.seconds:g} s")


class _Body:
    """The body of one request."""

    def __init__(self, limit: BodyLimit, receive: Receive, client: str, most: int) -> None:
        self._limit, self._receive, self.client, self.most = limit, receive, client, most
        self._whole = False
        self._until: float | None = None
        self.seen = 0  # bytes that arrived
        self.held = 0  # bytes of body and answer in memory
        self.refused: ApiError | None = None

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()  # the next message can only be the disconnect
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
            size = len(message.get("body", b""))
            self.seen += size
            self.refused = self._limit.take(self, size)
            if self.refused is not None:
                raise _Refused
            self._whole = not message.get("more_body", False)
        else:
            self._whole = True
        return message


def _too_large(what: str, most: int) -> ApiError:
    return ApiError(413, "too_large", f"{what} is over the limit of {most:,} bytes; send less at once")


def _content_length(scope: Scope) -> int | None:
    value = next((v for k, v in scope["headers"] if k == b"content-length"), None)
    return int(value) if value is not None and value.isdigit() else None


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send, most: int, seconds: float) -> None:
    """Answer at once, then read and drop the body for a moment: closing at once would hide the answer from the client."""
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
