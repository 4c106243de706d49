"""Bearer keys: the service knows only their SHA-256, and compares in constant time."""

import getpass
import hashlib
import hmac
from collections.abc import Sequence
from typing import TextIO

from starlette.types import ASGIApp, Receive, Scope, Send

from noisegate.pipeline.errors import ConfigError
from noisegate.service.errors import ApiError, error_response

OPEN_PATHS = frozenset(("/", "/healthz", "/readyz", "/favicon.ico"))
OPEN_BELOW = "/static/"  # the page holds no data; it asks for data with a key
MIN_CHARS = 16  # of a key; 64 bits where they are hexadecimal


def hash_key(key: str) -> str:
    """Hash a key for the setting `api_keys`.

    >>> hash_key("a key of many letters")[:20]
    'sha256:6f3ec2dee8e2b'
    """
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def read_key(source: TextIO) -> str:
    """Read a key from one line, hidden on a terminal; raises ConfigError for one short enough to be guessed."""
    key = (getpass.getpass("key: ") if source.isatty() else source.readline()).strip()
    if len(key) < MIN_CHARS:
        raise ConfigError(
            f"a key of {len(key)} characters can be guessed; use at least {MIN_CHARS}, for example from: openssl rand -hex 24",
            "hash_key",
        )
    return key


class Keys:
    """The keys that the service accepts."""

    def __init__(self, hashed: Sequence[str]) -> None:
        self._digests = [bytes.fromhex(key.removeprefix("sha256:")) for key in hashed]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def is_known(self, key: bytes) -> bool:
        """Whether this is one of the keys; all are compared, so that the time taken reveals nothing."""
        digest = hashlib.sha256(key).digest()
        known = False
        for key_digest in self._digests:
            known |= hmac.compare_digest(digest, key_digest)
        return known


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
        return kind.lower() == b"bearer" and self._keys.is_known(key.strip())
