"""Run the server: bind the port, serve with uvicorn, report readiness, and shut down in order on a signal."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
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

OTHER_FILES = 200  # open files besides connections: tables, pipes to workers, downloads
EXIT_SECONDS = 15.0  # after drain_seconds, for processes and jobs to end


def run(settings: Settings) -> None:
    """Serve until a signal, then finish open requests. Raises NoisegateError if it cannot start."""
    if settings.engine == "ray":
        ray_serve.run(settings)
        return
    set_up_logging(settings.log_format)
    listening = bind(settings.host, settings.port)
    with contextlib.closing(listening):
        app = create_app(settings)
        last_resort = threading.Timer(settings.drain_seconds + EXIT_SECONDS, _exit_now)
        last_resort.daemon = True
        try:
            asyncio.run(_serve(app, listening, last_resort.start))
        finally:
            last_resort.cancel()


def _exit_now() -> None:
    """End the process even if something in it hangs; decoders, encoders and jobs end with it."""
    logging.getLogger("noisegate.serve").error("not ended in time after a signal: exiting at once")
    os._exit(1)


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket; raise ConfigError if that fails."""
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
    """A uvicorn server that tells the service about a signal at once, and then exits with code 0."""

    def __init__(self, config: uvicorn.Config, service: Service, on_signal: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._on_signal = service, on_signal

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self._service.closing.is_set():
            self._service.closing.set()
            self._on_signal()
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


def _limit_connections(most: int) -> type[Connection]:
    """Make a class of connections that allows at most `most`, and fewer than the process's limit of open files."""
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows
        return type("Connection", (Connection,), {"most": most})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        most = min(most, max(2, soft - OTHER_FILES))
    return type("Connection", (Connection,), {"most": most})


async def _serve(app: FastAPI, listening: socket.socket, on_signal: Callable[[], None]) -> None:
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        http=_limit_connections(service.settings.max_connections),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(service.settings.drain_seconds) or 1,
    )
    server = _Server(config, service, on_signal)
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
