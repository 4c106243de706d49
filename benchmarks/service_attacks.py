"""Workers that hang, and requests made to fill the memory: time until the service works again, and peak memory."""

import base64
import io
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from PIL import Image

from benchmarks.serving import Server, bodies, serving
from noisegate.pipeline.system.machine import read_size

ATTACKERS = 16
CONNECTIONS = 1100
GOALS = {
    "encoder_hang_seconds": "≤ 10",
    "decoder_hang_seconds": "≤ 10",
    "peak_over_budget": "≤ 1",
    "others_refused": "0",
}


def hangs(model: Sequence[str], pattern: str) -> dict[str, float]:
    """Seconds from a killed encoder, a stopped one, and stopped decoders, until a request is answered again.

    A killed one shows how long the model takes to load here; it is no part of the time to notice a hang.
    """
    body = bodies(pattern, 1)[0]
    with serving(*model) as server:
        server.post(body)
        figures = {}
        for name, pids, number in (
            ("encoder_kill", server.encoders, signal.SIGKILL),
            ("encoder_hang", None, signal.SIGSTOP),
            ("decoder_hang", server.decoders, signal.SIGSTOP),
        ):
            for pid in server.encoders if pids is None else pids:
                os.kill(pid, number)
            began = time.perf_counter()
            while server.post(body)[0] != 200:
                time.sleep(0.05)
            figures[f"{name}_seconds"] = time.perf_counter() - began
    return figures


def memory(budget: str) -> dict[str, float]:
    """Peak memory of front and decoders under each attack, and how long a request of another client takes meanwhile."""
    attacks: dict[str, Callable[[Server], None]] = {
        "bombs": _send_bombs,
        "unread_answers": _leave_answers_unread,
        "unsent_bodies": _announce_bodies,
        "large_bodies": _send_large_bodies,
        "idle_connections": _open_connections,
        "long_captions": _send_long_captions,
    }
    figures: dict[str, float] = {}
    worst, refused = 0.0, 0
    with serving("--model", "embedded", "--memory-budget", budget) as server:
        small = json.dumps({"pairs": [{"image": _encode(_picture((64, 64), "PNG")), "text": "a red square"}]}).encode()
        server.post(small)
        log_bytes = server.log.stat().st_size
        for name, attack in attacks.items():
            with _watch(server) as peaks:
                attacker = threading.Thread(target=attack, args=(server,))
                attacker.start()
                while attacker.is_alive():
                    code, seconds, _ = server.post(small)
                    refused += code != 200
                    worst = max(worst, seconds)
                    attacker.join(0.2)
            figures[f"peak_mb_{name}"] = max(peaks) / 1e6
            print(name, code, round(max(peaks) / 1e6), "MB", round(1000 * worst), "ms", flush=True)
        figures["log_mb"] = (server.log.stat().st_size - log_bytes) / 1e6
        with _watch(server) as after:
            time.sleep(1)
        figures["after_mb"] = after[-1] / 1e6
    figures["budget_mb"] = read_size(budget) / 1e6
    figures["peak_over_budget"] = max(v for n, v in figures.items() if n.startswith("peak_mb")) / figures["budget_mb"]
    figures["others_refused"] = refused
    figures["others_worst_ms"] = 1000 * worst
    return figures


@contextmanager
def _watch(server: Server) -> Iterator[list[int]]:
    """Bytes of front and decoders, every 20 ms; shared pages are counted once."""
    ended, sizes = threading.Event(), [0]

    def look() -> None:
        pids = [server.pid, *server.decoders]
        turn = 0
        while not ended.wait(0.02):
            turn += 1
            if turn % 50 == 0:
                pids = [server.pid, *server.decoders]  # some may have been replaced
            sizes.append(sum(map(_resident, pids)))

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield sizes
    finally:
        ended.set()
        watching.join()


def _resident(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _picture(size: tuple[int, int], kind: str, **how: object) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", size, (255, 0, 0)).save(data, kind, **how)
    return data.getvalue()


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _send_bombs(server: Server) -> None:
    """256 pictures of 40 megapixels in a request, and as many as one may have, from several clients."""
    pictures = [_encode(_picture((8000, 5000 - i), "WEBP", lossless=True, quality=0, method=0)) for i in range(25)]
    many = json.dumps({"pairs": [{"image": p} for p in pictures * 10]}).encode()
    some = json.dumps({"pairs": [{"image": p} for p in pictures[:20]]}).encode()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: server.post([many, some][i % 2], address=f"127.0.2.{i + 1}"), range(4)))


def _leave_answers_unread(server: Server) -> None:
    body = json.dumps({"texts": [f"a red square number {i}" for i in range(256)]}).encode()
    with ExitStack() as stack:
        for i in range(ATTACKERS):
            client = stack.enter_context(_connect(server, i))
            for _ in range(4):
                _send_head(client, "/v1/embed", len(body))
                client.sendall(body)
        time.sleep(10)


def _announce_bodies(server: Server) -> None:
    with ExitStack() as stack:
        for i in range(ATTACKERS):
            _send_head(stack.enter_context(_connect(server, i)), "/v1/score", 60 << 20)
        time.sleep(5)


def _send_large_bodies(server: Server) -> None:
    """Bodies as large as they may be, of many small values."""
    body = b'{"pairs": [' + b'{"text": "a"},' * 2_000_000 + b'{"text": "a"}]}'
    with ThreadPoolExecutor(ATTACKERS) as pool:
        list(pool.map(lambda i: server.post(body, address=f"127.0.2.{i + 1}"), range(ATTACKERS)))


def _open_connections(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(_connect(server, 0))
        time.sleep(3)


def _send_long_captions(server: Server) -> None:
    with ThreadPoolExecutor(4) as pool:

        def send(i: int) -> None:
            captions = [f"{i} {j} {'a red square ' * 1500}" for j in range(64)]
            server.post(json.dumps({"texts": captions}).encode(), "/v1/embed", f"127.0.2.{i % 4 + 1}")

        list(pool.map(send, range(16)))


def _connect(server: Server, number: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), 30, (f"127.0.2.{number + 1}", 0))


def _send_head(client: socket.socket, path: str, length: int) -> None:
    client.sendall(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n".encode()
    )
