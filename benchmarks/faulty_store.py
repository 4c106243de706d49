"""A local web server that serves a folder slowly and sometimes fails: waits, answers 503, drops the connection."""

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

__all__ = ["Faults", "serving"]

PIECE = 64_000


@dataclass
class Faults:
    """How bad the store is; `counts` tells what it did. Shares are of the requests, the rate is for each of them."""

    bytes_per_second: float
    unavailable: float = 0.03  # answered by 503
    dropped: float = 0.03  # broken off in the middle
    stalled: float = 0.05  # pause of up to three seconds in the middle
    shortened: float = 0.01  # ended early without a word, as by a proxy that gives no length
    active: bool = True
    seed: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._rng, self._lock = random.Random(self.seed), threading.Lock()

    def draw(self) -> tuple[str, float]:
        """What happens to the next request, and at which share of its bytes."""
        with self._lock:
            self.counts["requests"] += 1
            where, what = self._rng.random(), self._rng.random()
            for name in ("unavailable", "dropped", "stalled", "shortened"):
                share: float = getattr(self, name)
                if self.active and what < share:
                    self.counts[name] += 1
                    return name, where
                what -= share
            return "fine", where

    def pause(self) -> float:
        with self._lock:
            return self._rng.uniform(0.5, 3.0)


@contextmanager
def serving(folder: Path, faults: Faults) -> Iterator[str]:
    """Serve the files of `folder` from threads of this process; yields the address, which ends in `/`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            what, share = faults.draw()
            path = folder / Path(self.path).name
            if what == "unavailable" or not path.is_file():
                self.send_response(503 if what == "unavailable" else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            data = path.read_bytes()
            self.send_response(200)
            if body and what == "shortened":
                data = data[: int(share * len(data))]
                self.close_connection = True  # which is how the reader knows the end
                self.send_header("Connection", "close")
            else:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self._send(data, what, int(share * len(data)))

        def _send(self, data: bytes, what: str, point: int) -> None:
            sent = 0
            while sent < len(data):
                if what == "dropped" and sent >= point:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                if what == "stalled" and sent >= point:
                    time.sleep(faults.pause())
                    what = "fine"
                piece = data[sent : sent + PIECE]
                try:
                    self.wfile.write(piece)
                except OSError:  # the reader was killed
                    self.close_connection = True
                    return
                sent += len(piece)
                time.sleep(len(piece) / faults.bytes_per_second)

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionResetError:  # likewise
                self.close_connection = True

        def log_message(self, format: str, *arguments: object) -> None:
            """The figures at the end say enough."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
