"""Identify the client of a request for fair shares: the holder of a key, else an address."""

import hashlib
import ipaddress

from starlette.types import Scope


def client_of(scope: Scope) -> str:
    """Name the client of a request: by its key's digest if the server has keys, else by its address.

    >>> client_of({"client": ("192.0.2.7", 4711)}), client_of({"client": ("2001:db8::1:2", 1)}), client_of({"client": None})
    ('192.0.2.7', '2001:db8::', '')
    """
    key: str | None = scope.get("state", {}).get("key")
    return key or client_address(scope.get("client"))


def client_address(peer: tuple[str, int] | None) -> str:
    """Return the address of a peer; for IPv6 the network of its site, because a site has very many addresses."""
    if not peer:
        return ""
    try:
        address = ipaddress.ip_address(peer[0])
    except ValueError:
        return peer[0]
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False).network_address)
    return peer[0]


def name_key(key: bytes) -> str:
    """Make a name for the holder of a key that does not reveal the key."""
    return f"key {hashlib.sha256(key).hexdigest()[:16]}"
