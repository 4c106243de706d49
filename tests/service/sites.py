"""A web site on loopback that says exactly what a test tells it to, bytes for bytes, and remembers what it was asked."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import httpcore
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def answer(body: bytes = b"", status: str = "200 OK", **headers: object) -> bytes:
    """A whole HTTP response; `content_length` and other headers are written as given."""
    said = {"content_length": len(body), **headers}
    lines = [f"HTTP/1.1 {status}", *(f"{k.replace('_', '-')}: {v}" for k, v in said.items() if v is not None)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Site:
    """`pages` by path. `connect` is what `fetch_image` dials with: it notes the address and comes here instead."""

    def __init__(self, pages: dict[str, Answer], tls: ssl.SSLContext | None = None) -> None:
        self.pages, self._tls = pages, tls
        self.asked: list[str] = []
        self.dialled: list[tuple[str, int]] = []
        self.gone = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def connect(self, address: str, port: int) -> httpcore.AsyncNetworkStream:
        ipaddress.ip_address(address)  # a name would be resolved a second time
        self.dialled.append((address, port))
        return await httpcore.AnyIOBackend().connect_tcp("127.0.0.1", self.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self.asked.append(head)
            page = self.pages[head.split(" ")[1]]
            if isinstance(page, bytes):
                writer.write(page)
                await writer.drain()
            else:
                await page(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.gone.set()
        finally:
            writer.close()


class Names:
    """A resolver: each look-up of a name takes the next of its answers, the last one for ever."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self._answers = {name.replace("_", "."): list(found) for name, found in answers.items()}
        self.lookups: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.lookups.append(host)
        found = self._answers.get(host)
        if found is None:
            raise OSError(-2, "Name or service not known")
        return found.pop(0) if len(found) > 1 else found[0]


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server that is called `name`, and of a client that trusts it and nobody else."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    start = datetime.datetime(2020, 1, 1)
    made: Any = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=36500))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "site.pem").write_bytes(secret + pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "site.pem")
    return server, ssl.create_default_context(cadata=pem.decode())
