"""Decide which image URLs may be fetched, by the text of the URL and the addresses of its host. No network here."""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import quote, urlsplit

import idna

from noisegate.pipeline.errors import ConfigError

PORTS = {"http": 80, "https": 443}
MAX_CHARS = 4096  # of a URL
_UNSAFE = re.compile(
    r"[\x00-\x20\x7f-\xa0\\\ud800-\udfff\u2028\u2029]"
)  # stripped, or read differently, by some parsers
_PLACE = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:@%]+)(?::(?P<port>[0-9]{1,5}))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)")
_REFUSED = [  # public by the registries, but never a host of pictures, or unknown to some versions of ipaddress
    ipaddress.ip_network(block)
    for block in (
        "192.0.0.0/24",  # protocol assignments; also a cloud's metadata service
        "168.63.129.16/32",  # a cloud's host service, which answers only its own machines
        "192.88.99.0/24",  # 6to4 relays
        "2001:db8::/32",
        "3fff::/20",  # documentation
    )
]
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class UrlError(Exception):
    """The reason why a URL gave no picture; `code` is the item's status, and the text is safe to show to the client.

    `bad_url`: not a URL of a picture. `url_refused`: not allowed here. `url_failed`: allowed, but the download failed.
    `too_large`: more bytes than allowed.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Target:
    """The parts of a checked URL; `host` is a lower-case ASCII name or an IP address."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def host_header(self) -> str:
        """The Host header: brackets around IPv6, the port only if it is not the scheme's default."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == PORTS[self.scheme] else f"{name}:{self.port}"

    @property
    def address(self) -> str | None:
        """The host if it is an IP address, else None."""
        return self.host if ":" in self.host or _NUMBER.fullmatch(self.host.rpartition(".")[2]) else None


@dataclass(frozen=True)
class UrlPolicy:
    """The URLs that may be fetched: only from named hosts, `pictures.example.org`, or `*.example.org` for all names below it.

    `max_bytes` is per picture; `timeout` in seconds covers look-up, redirects and the whole download.
    """

    hosts: Sequence[str] = ()
    ports: Sequence[int] = (80, 443)
    max_bytes: int = 20_000_000
    timeout: float = 10.0
    redirects: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", tuple(_normalise_pattern(host) for host in self.hosts))

    def check(self, url: str) -> Target:
        """Parse a URL and check its host and port; raises UrlError. Resolves no name."""
        if not self.hosts:
            raise UrlError("url_refused", "image URLs are off on this server; send the image itself")
        target = parse_url(url)
        if not any(_matches(target.host, pattern) for pattern in self.hosts):
            raise UrlError("url_refused", f"host {target.host[:100]} is not among those this server fetches from")
        if target.port not in self.ports:
            raise UrlError("url_refused", f"port {target.port} is not among those this server fetches from")
        return target


def parse_url(url: str) -> Target:
    """Parse an http or https URL strictly: refuse any URL that two parsers could read differently.

    >>> parse_url("https://Bücher.example:8443/a b.png".replace(" ", "%20"))
    Target(scheme='https', host='xn--bcher-kva.example', port=8443, path='/a%20b.png')
    """
    if len(url) > MAX_CHARS:
        raise UrlError("bad_url", f"a URL of {len(url):,} characters; at most {MAX_CHARS:,} are read")
    if not url or _UNSAFE.search(url):
        raise UrlError("bad_url", "a URL has no spaces, control characters or backslashes; write them as %20")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UrlError("bad_url", "the URL cannot be read; use one such as https://example.org/a.jpg") from error
    if parts.scheme not in PORTS:
        raise UrlError("bad_url", "only http and https URLs are fetched, such as https://example.org/a.jpg")
    if "@" in parts.netloc:
        raise UrlError("bad_url", "a URL must not carry a user name or password")
    place = _PLACE.fullmatch(parts.netloc)
    if place is None:
        raise UrlError("bad_url", "host or port of the URL cannot be read; use one such as https://example.org/a.jpg")
    port = int(place["port"] or PORTS[parts.scheme])
    if not 1 <= port <= 65535:
        raise UrlError("bad_url", f"port {port} is no port; leave it out, or use one of 1 to 65535")
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    query = quote(parts.query, safe="/%:@!$&'()*+,;=~?")
    return Target(parts.scheme, _normalise_host(place["host"]), port, f"{path}?{query}" if query else path)


def _normalise_host(text: str) -> str:
    """Normalise a host: lower-case ASCII, no trailing dot, IP addresses as `ipaddress` writes them.

    Decimal, octal, hexadecimal and shortened IPv4, which the system's resolver would accept, are refused.
    """
    bad = UrlError("bad_url", "the host is no name and no IP address; use one such as example.org")
    if text.startswith("["):
        try:
            return str(IPv6Address(text[1:-1]))
        except ValueError:
            raise bad from None
    if not text.isascii():
        try:
            text = idna.encode(text, uts46=True, std3_rules=True).decode("ascii")
        except UnicodeError:
            raise bad from None
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise bad
    if not _NUMBER.fullmatch(labels[-1]):
        return name
    try:
        return str(IPv4Address(name))
    except ValueError:
        raise bad from None


def _normalise_pattern(host: str) -> str:
    """Bring a host of the allow-list to the spelling of `_normalise_host`."""
    star, name = ("*.", host[2:]) if host.startswith("*.") else ("", host)
    place = _PLACE.fullmatch(name)
    try:
        if place is None or place["port"] is not None:
            raise UrlError("bad_url", "a host without a port is wanted")
        normal = _normalise_host(place["host"])
        if star and Target("http", normal, 80, "/").address is not None:
            raise UrlError("bad_url", "an IP address has no names below it")
        return star + normal
    except UrlError as error:
        problem = f"is not a host: {error}; use pictures.example.org, or *.example.org"
        raise ConfigError.of("url_hosts", host, problem) from error


def _matches(host: str, pattern: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def public_addresses(answer: Iterable[str]) -> list[str]:
    """Return the resolver's addresses without repeats; raise UrlError if any is not public."""
    addresses = list(dict.fromkeys(answer))
    if not addresses:
        raise UrlError("url_failed", "the host has no address")
    for text in addresses:
        try:
            public = is_public(ipaddress.ip_address(text))
        except ValueError:
            public = False
        if not public:
            raise UrlError("url_refused", "the host has an address that is not public")
    return addresses


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is plain public unicast, and so is every IPv4 address inside it.

    >>> [is_public(ipaddress.ip_address(a)) for a in ("8.8.8.8", "::ffff:8.8.8.8", "::ffff:10.0.0.1", "2002:7f00:1::")]
    [True, True, False, False]
    """
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _NAT64:
            return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
        if address not in _GLOBAL_UNICAST or not all(is_public(inner) for inner in _embedded(address)):
            return False
    return (
        address.is_global
        and not (address.is_private or address.is_multicast or address.is_reserved or address.is_unspecified)
        and not (address.is_loopback or address.is_link_local)
        and not any(address.version == block.version and address in block for block in _REFUSED)
    )


def _embedded(address: IPv6Address) -> list[IPv4Address]:
    """Return the IPv4 addresses to which a tunnel would deliver: 6to4, Teredo's server and client, ISATAP."""
    embedded = [*(address.teredo or ())]
    if address.sixtofour is not None:
        embedded.append(address.sixtofour)
    if (int(address) >> 32) & 0xFDFFFFFF == 0x00005EFE:
        embedded.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return embedded
