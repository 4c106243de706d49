"""Messages between processes over a pipe; arrays cross as raw memory, without pickling."""

import pickle
from multiprocessing.connection import Connection
from typing import Any


def send(connection: "Connection[Any, Any]", message: Any) -> None:
    """Send one message; raises OSError if the other side is gone."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    connection.send_bytes(len(buffers).to_bytes(4, "little") + head)
    for buffer in buffers:
        with buffer.raw() as raw:
            connection.send_bytes(raw)


def receive(connection: "Connection[Any, Any]") -> Any:
    """Receive the next message; raises EOFError or OSError if the other side is gone."""
    head = connection.recv_bytes()
    count = int.from_bytes(head[:4], "little")
    return pickle.loads(head[4:], buffers=[connection.recv_bytes() for _ in range(count)])
