"""Work for a request that ends when its client goes away."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

__all__ = ["ClientGone", "while_connected"]

T = TypeVar("T")


class ClientGone(Exception):
    """Nobody is left to answer."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; it is cancelled, and ClientGone raised, when the client disconnects first.

    The body must have been read to its end: after it the connection has nothing to say but its own end.
    """
    job, gone = asyncio.ensure_future(work), asyncio.ensure_future(_end(request))
    try:
        await asyncio.wait({job, gone}, return_when=asyncio.FIRST_COMPLETED)
        if job.done():
            return job.result()
        raise ClientGone
    finally:
        for task in (job, gone):
            task.cancel()
        await asyncio.gather(job, gone, return_exceptions=True)


async def _end(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
