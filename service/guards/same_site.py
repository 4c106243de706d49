"""Middleware against web pages that use a visitor's browser to reach this server: checks of Host and Origin.

A page can rebind its own name to 127.0.0.1; its requests then have that name as Host. A page can also post a form or a
multipart body to any address; browsers then send the page's Origin.
"""

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from noisegate.service.errors import ApiError, error_response

READING = ("GET", "HEAD", "OPTIONS")
ANY = "*"
HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\[\]:/@?#\s,]+)(:(?P<port>[0-9]{1,5}))?")
PORTS = {"http": "80", "https": "443"}


class SameSite:
    """Refuse requests for other hosts than this server's (421), and changes requested by pages of other sites (403).

    Hosts of this server are localhost, the host it is bound to, every IP address (a page cannot rebind one) and the
    `allowed` names; `*` allows all. The Origin of a POST, PUT, PATCH or DELETE must be the Host itself or an `allowed` name.
    """

    def __init__(self, app: ASGIApp, bound: str, allowed: Iterable[str]) -> None:
        self._app = app
        self._allowed = frozenset(name.lower().rstrip(".") for name in allowed)
        self._hosts = self._allowed | {"localhost", bound.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._find_error(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
            return
        scope["state"]["error_code"] = error.code
        response = error_response(error, scope["state"].get("request_id"), {"Connection": "close"})
        await response(scope, receive, send)

    def _find_error(self, scope: Scope) -> ApiError | None:
        hosts, origins = (
            [value for name, value in scope["headers"] if name == wanted] for wanted in (b"host", b"origin")
        )
        host = HOST.fullmatch(hosts[0].decode("latin-1")) if len(hosts) == 1 else None
        if host is None:
            return ApiError(400, "bad_host", "send one Host header with the name or address of this server")
        name = host["name"].lower().rstrip(".")
        if not (name in self._hosts or ANY in self._allowed or _is_address(name)):
            problem = f"this server is not {name[:100]}; if it should be, start it with --allowed-host {name[:100]}"
            return ApiError(421, "unknown_host", problem)
        if scope["method"] in READING or not origins:
            return None
        if len(origins) == 1 and self._is_own(origins[0].decode("latin-1"), name, host["port"]):
            return None
        problem = "pages of other sites may not change anything here; use --allowed-host NAME for a proxy's public name"
        return ApiError(403, "foreign_origin", problem)

    def _is_own(self, origin: str, name: str, port: str | None) -> bool:
        """Return whether an Origin is this server's: the same name and port as the Host, or the name of a proxy in front."""
        try:
            parts = urlsplit(origin)
            given = HOST.fullmatch(parts.netloc)
        except ValueError:  # invalid address in brackets
            return False
        if parts.scheme not in PORTS or given is None:
            return False
        theirs, default = given["name"].lower().rstrip("."), PORTS[parts.scheme]
        return theirs in self._allowed or (theirs, given["port"] or default) == (name, port or default)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
