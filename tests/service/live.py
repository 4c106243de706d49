"""An ASGI application on a port of loopback, in a thread of this process, for clients that need a real one."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn


class _Server(uvicorn.Server):
    """Says when it listens; signals stay with the tests."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@contextmanager
def serving(app: Any, **config: Any) -> Iterator[str]:
    """The URL of the running application; it is stopped, and its lifespan over, at the end."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = _Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5, **config))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        assert server.ready.wait(60), "the application did not start"
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()


def over_http(handler: Callable[[httpx.Request], httpx.Response]) -> Any:
    """A handler of httpx.MockTransport as an application, so that it can be `serving`."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        url = f"http://{scope['server'][0]}:{scope['server'][1]}{scope['raw_path'].decode()}"
        answer = handler(httpx.Request(scope["method"], url, headers=scope["headers"], content=body))
        headers = [(k.encode(), v.encode()) for k, v in answer.headers.items()]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": answer.content})

    return app
