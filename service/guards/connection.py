"""One client's connection: close it if headers or reading are too slow, or there are too many; cancel work when it ends."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import h11
from fastapi import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from noisegate.service.errors import ClientGone

from .clients import client_address

T = TypeVar("T")
FREE_CHUNKS, CHUNK_BYTES = 1000, 256  # chosen; a body with more chunks must have this many bytes in each on average
FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n"


class Connection(H11Protocol):
    """Close connections that would stay open for ever: headers do not arrive in time, or the answer is not read.

    uvicorn limits the time between two requests, and BodyLimit the time of a body. h11 limits the size of headers, httptools
    does not. An address may have at most as many connections as are still free of `most`; more get 503. A body of thousands of
    tiny chunks gets 400, because each chunk takes as long as a large one.
    """

    seconds = 30.0  # from the connection, or a request's first byte, to the end of its headers; also to read a piece
    most = 1000
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._next_event = self.conn.next_event
        self.conn.next_event = self._count_chunks  # type: ignore[method-assign]
        self._chunks = self._bytes = 0

    def _count_chunks(self) -> Any:
        event = self._next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks, self._bytes = self._chunks + event.chunk_start, self._bytes + len(event.data)
            if self._chunks > FREE_CHUNKS and self._bytes < CHUNK_BYTES * self._chunks:
                raise h11.RemoteProtocolError("too many small chunks")
        return event

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = client_address(self.client)
        # senders wait until the system has taken all bytes; until then `pause_writing` stays in effect
        transport.set_write_buffer_limits(high=0)
        if self._is_one_too_many():
            transport.write(FULL)
            transport.close()
            return
        self._set_timer()

    def _is_one_too_many(self) -> bool:
        free = self.most - len(self.connections)
        of_address = sum(getattr(other, "address", None) == self.address for other in self.connections)
        return free < 0 or (of_address > 1 and of_address > free)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread()

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_unread()
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
