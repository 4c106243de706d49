"""Bearer keys: only their SHA-256 is known here, and comparing takes the same time whatever is wrong with one."""

import getpass
import hashlib
import hmac
from collections.abc import Sequence
from typing import TextIO

from starlette.types import ASGIApp, Receive, Scope, Send

from noisegate.pipeline.errors import ConfigError
from noisegate.service.errors import ApiError, error_response

__all__ = ["Keys", "RequireKey", "hash_key", "read_key"]

OPEN = frozenset(("/", "/healthz", "/readyz", "/favicon.ico"))
OPEN_BELOW = "/static/"  # the page's shell holds nothing; what it shows it asks for with a key
SHORTEST = 16


def hash_key(key: str) -> str:
    """As `api_keys` wants it.

    >>> hash_key("a key of many letters")[:20]
    'sha256:6f3ec2dee8e2b'
    """
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def read_key(source: TextIO) -> str:
    """A key from one line, unseen where somebody types it; raises ConfigError for one that could be guessed."""
    key = (getpass.getpass("key: ") if source.isatty() else source.readline()).strip()
    if len(key) < SHORTEST:
        raise ConfigError(
            f"a key of {len(key)} characters can be guessed; use at least {SHORTEST}, for example from: openssl rand -hex 24"
        )
    return key


class Keys:
    """The keys that open the service."""

    def __init__(self, hashed: Sequence[str]) -> None:
        self._known = [bytes.fromhex(key.removeprefix("sha256:")) for key in hashed]

    def __bool__(self) -> bool:
        return bool(self._known)

    def opens(self, key: bytes) -> bool:
        """Whether it is one of them; every one is compared, so that time tells nothing."""
        digest = hashlib.sha256(key).digest()
        found = False
        for known in self._known:
            found |= hmac.compare_digest(digest, known)
        return found


class RequireKey:
    """Refuses requests without a key, before anything of their body is read."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or self._allowed(scope):
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

    def _allowed(self, scope: Scope) -> bool:
        path: str = scope["path"]
        if path in OPEN or path.startswith(OPEN_BELOW):
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        kind, _, key = given[0].partition(b" ")
        return kind.lower() == b"bearer" and self._keys.opens(key.strip())
