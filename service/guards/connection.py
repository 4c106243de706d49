"""One client's connection: a request whose headers do not come in time is not waited for."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Connection"]


class Connection(H11Protocol):
    """uvicorn bounds the time between two requests, and the service that of a body; this is what is left.

    Without it whoever connects and says nothing, or is cut off without a goodbye, keeps a file open for ever. h11 bounds
    the size of headers, which httptools does not.
    """

    seconds = 30.0  # from the connection, or a request's first byte, to the end of its headers
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()  # a request is being answered
        elif self._late is None:
            self._late = self.loop.call_later(self.seconds, self.transport.close)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
