"""Run the server: bind the port, serve with uvicorn, report readiness, and shut down in order on a signal."""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from noisegate.pipeline.errors import ConfigError

from . import ray_serve
from .api.state import Service
from .app import create_app
from .guards.connection import Connection
from .logs import set_up_logging
from .settings import Settings


def run(settings: Settings) -> None:
    """Serve until a signal, then finish open requests. Raises NoisegateError if it cannot start."""
    if settings.engine == "ray":
        ray_serve.run(settings)
        return
    set_up_logging(settings.log_format)
    listening = bind(settings.host, settings.port)
    with contextlib.closing(listening):
        app = create_app(settings)
        asyncio.run(_serve(app, listening))


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket; raises ConfigError."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        problem = f"host {host!r} is not an address of this machine ({error}); use 127.0.0.1"
        raise ConfigError(problem, "host", host) from error
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(place)
        listening.listen(2048)  # from here on clients wait instead of being refused
    except OSError as error:
        listening.close()
        other = f"--port {port + 1}" if 0 < port < 65535 else "--port 8765"
        problem = f"host {host} port {port} cannot be used: {error.strerror}; try {other}"
        raise ConfigError(problem, "port", port) from error
    return listening


class _Server(uvicorn.Server):
    """Tells the service about a signal at once, and exits with code 0 after it."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.closing.set()
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


async def _serve(app: FastAPI, listening: socket.socket) -> None:
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(service.settings.drain_seconds) or 1,
    )
    server = _Server(config, service)
    watching = asyncio.create_task(_report_readiness(server, service, listening))
    await server.serve(sockets=[listening])
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching


async def _report_readiness(server: _Server, service: Service, listening: socket.socket) -> None:
    """Print when the service is ready; stop the server if the model can never be loaded."""
    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"noisegate listens on {url} and loads {service.scorer.spec.model}", file=sys.stderr, flush=True)
    while service.not_ready():
        if fatal := service.failure or getattr(service.engine, "fatal", None):
            server.should_exit = True
            raise ConfigError(fatal)
        await asyncio.sleep(0.1)
    key = " -H 'Authorization: Bearer KEY'" if service.settings.api_keys else ""
    run = f", from run {service.scorer.run}" if service.scorer.run else ""
    print(
        f"noisegate is ready: {service.engine.identity.model}, β {service.scorer.beta}{run}\n"
        f"  open {url}/ or try:  curl{key} -F image=@picture.jpg -F 'text=a red square' {url}/v1/score",
        file=sys.stderr,
        flush=True,
    )
