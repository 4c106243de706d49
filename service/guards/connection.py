"""One client's connection: close it when headers come too slowly, cancel the work when the client goes away."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from noisegate.service.errors import ClientGone

T = TypeVar("T")


class Connection(H11Protocol):
    """Closes connections whose headers do not arrive in time, which would otherwise stay open for ever.

    uvicorn limits the time between two requests, and BodyLimit that of a body. h11 limits the size of headers, which
    httptools does not.
    """

    seconds = 30.0  # from the connection, or a request's first byte, to the end of its headers
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _set_timer(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()  # a request is being answered
        elif self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; when the client disconnects first, cancel it and raise ClientGone.

    The body must have been read to its end, so that the next message can only be the disconnect.
    """
    job, gone = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait({job, gone}, return_when=asyncio.FIRST_COMPLETED)
        if job.done():
            return job.result()
        raise ClientGone
    finally:
        for task in (job, gone):
            task.cancel()
        await asyncio.gather(job, gone, return_exceptions=True)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
