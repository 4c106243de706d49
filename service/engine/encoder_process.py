"""The process that holds the model, one per device, and how the front talks to it.

The front sends batches and the process answers in the same order; it receives the next batch while it encodes one.
"""

import multiprocessing
import os
import pickle
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import NoisegateError
from noisegate.pipeline.estimators import ModelSpec, as_estimator
from noisegate.pipeline.estimators.base import Estimator, Identity, normalise
from noisegate.pipeline.pairs.beta import Beta, measure_beta
from noisegate.pipeline.shards.decode import Preprocessor
from noisegate.pipeline.system.processes import exit_with_parent

__all__ = ["Answer", "Batch", "EncoderProcess", "Failed", "Ready"]

Kind = Literal["images", "texts"]
Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Ready:
    """What the front must know of a model that is loaded and warm; `beta` is measured where that was asked for."""

    identity: Identity
    dimensions: int
    batch_size: int
    preprocess: Preprocessor
    beta: Beta | None


@dataclass(frozen=True)
class Failed:
    """The model could not be loaded; `fatal` where trying again cannot help."""

    reason: str
    fatal: bool


@dataclass
class Batch:
    """Pixels (H, W, 3), or texts. On the way, pixels of one size are one array (N, H, W, 3)."""

    number: int
    kind: Kind
    items: Any


@dataclass
class Answer:
    """Unit rows (N, d), zeros where the model gave none; `errors` says why by row, where the model itself failed on one."""

    number: int
    rows: Rows
    seconds: float
    errors: dict[int, str] = field(default_factory=dict)


def send(connection: "Connection[Any, Any]", message: Any) -> None:
    """One message; arrays go as they lie in memory, without being pickled."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    connection.send_bytes(len(buffers).to_bytes(4, "little") + head)
    for buffer in buffers:
        with buffer.raw() as raw:
            connection.send_bytes(raw)


def receive(connection: "Connection[Any, Any]") -> Any:
    """The next message; EOFError when the other side is gone."""
    head = connection.recv_bytes()
    count = int.from_bytes(head[:4], "little")
    return pickle.loads(head[4:], buffers=[connection.recv_bytes() for _ in range(count)])


def run_encoder(connection: "Connection[Any, Any]", parent: int, spec: Callable[[], Estimator], measure: bool) -> None:
    """The process itself: load, warm up, report, encode until the front closes the pipe."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a signal to the whole group is the front's to handle: it drains
        signal.signal(number, signal.SIG_IGN)
    exit_with_parent(parent)  # and its device's memory is free again
    try:
        model = as_estimator(spec)
        send(connection, _warm(model, measure))
    except NoisegateError as error:
        send(connection, Failed(str(error), fatal=True))
        return
    except Exception as error:  # the front decides what to do about it; this process cannot
        send(connection, Failed(" ".join(f"{type(error).__name__}: {error}".split())[:500], fatal=False))
        return
    waiting: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
    threading.Thread(target=_receive_all, args=(connection, waiting), daemon=True).start()
    while (batch := waiting.get()) is not None:
        began = time.perf_counter()
        rows, errors = encode_batch(model, batch)
        send(connection, Answer(batch.number, rows, time.perf_counter() - began, errors))


def _receive_all(connection: "Connection[Any, Any]", waiting: "queue.SimpleQueue[Batch | None]") -> None:
    try:
        while True:
            waiting.put(receive(connection))
    except (EOFError, OSError):
        waiting.put(None)


def _warm(model: Estimator, measure: bool) -> Ready:
    """Encode a picture and a text, so that the first request finds everything allocated and compiled."""
    from PIL import Image

    pixels = model.preprocess(Image.new("RGB", (256, 256), (128, 128, 128)))
    images = model.encode_pixels([pixels])
    model.encode_texts(["a photo"])
    beta = measure_beta(model) if measure else None
    return Ready(model.identity, images.shape[1], model.batch_size, model.preprocess, beta)


def encode_batch(model: Estimator, batch: Batch) -> tuple[Rows, dict[int, str]]:
    """Unit rows of a batch; where the model fails, each item is tried alone and only the ones that fail have none."""
    encode: Callable[[Any], Rows] = model.encode_pixels if batch.kind == "images" else model.encode_texts
    try:
        return normalise(encode(list(batch.items))), {}
    except Exception as error:  # a model may raise anything
        if _device_is_lost(error):
            raise
    found: list[Rows | None] = []
    errors: dict[int, str] = {}
    for i, item in enumerate(batch.items):
        try:
            found.append(normalise(encode([item])))
        except Exception as error:
            if _device_is_lost(error):
                raise
            errors[i] = " ".join(f"the model failed: {type(error).__name__}: {error}".split())[:300]
            found.append(None)
    width = max((row.shape[1] for row in found if row is not None), default=0)
    empty = np.zeros((1, width), np.float32)
    return np.concatenate([empty if row is None else row for row in found]), errors


def _device_is_lost(error: Exception) -> bool:
    """After an error inside a CUDA kernel nothing works any more in this process: end it, and the next one will do."""
    return type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error)


class EncoderProcess:
    """One encoder process, from the front. `submit` never blocks; callbacks come from threads of this object.

    `on_message` gets Ready, Failed and every Answer; `on_end` is called once, when the process is gone, whatever the reason.
    """

    def __init__(
        self,
        spec: ModelSpec,
        measure: bool,
        on_message: Callable[[Any], None],
        on_end: Callable[[], None],
    ) -> None:
        self._on_message, self._on_end = on_message, on_end
        self._outbox: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        context = multiprocessing.get_context("spawn")  # the front has threads, which do not survive a fork
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=run_encoder, args=(theirs, os.getpid(), spec, measure), name="noisegate-encoder", daemon=True
        )
        self._process.start()
        theirs.close()  # so that the end of the process is the end of the stream
        threading.Thread(target=self._send_all, daemon=True).start()
        threading.Thread(target=self._receive_all, daemon=True).start()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def submit(self, batch: Batch) -> None:
        self._outbox.put(batch)

    def stop(self, timeout: float = 2) -> None:
        """End the process: by closing its input, and by force where that does not help. Blocks."""
        self._outbox.put(None)
        self._process.join(timeout)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def _send_all(self) -> None:
        try:
            while (batch := self._outbox.get()) is not None:
                send(self._connection, stacked(batch))
            with socket.socket(fileno=os.dup(self._connection.fileno())) as end:
                end.shutdown(socket.SHUT_WR)  # answers may still come, so the pipe stays open for reading
        except OSError:
            return  # the process is gone; the receiving side tells about it

    def _receive_all(self) -> None:
        try:
            while True:
                self._on_message(receive(self._connection))
        except (EOFError, OSError, pickle.UnpicklingError, RuntimeError):  # the last: the front's loop is closed
            self._on_end()


def stacked(batch: Batch) -> Batch:
    """The batch with its pixels as one array, where all are of one size; here, because it takes a while."""
    if batch.kind == "images" and len({array.shape for array in batch.items}) == 1:
        return replace(batch, items=np.stack(batch.items))
    return batch
