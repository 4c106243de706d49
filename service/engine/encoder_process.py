"""The process that holds the model, one per device, and the messages between it and the service.

The service sends batches and the process answers in the same order; it receives the next batch while it encodes one.
"""

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
from PIL import Image

from noisegate.pipeline.errors import NoisegateError
from noisegate.pipeline.estimators import Estimator, Identity, ModelSpec, as_estimator, find_truncated, normalise
from noisegate.pipeline.pairs import Beta, measure_beta
from noisegate.pipeline.shards import Preprocessor
from noisegate.pipeline.system import exit_with_parent, receive, send, sigint_blocked, spawn_context

Kind = Literal["images", "texts"]
Rows = NDArray[np.float32]


@dataclass(frozen=True)
class ModelReady:
    """The model is loaded and warm. `seconds` are the times of one picture and of one text; `beta` is measured on request."""

    identity: Identity
    dimensions: int
    batch_size: int
    preprocess: Preprocessor
    beta: Beta | None
    seconds: dict[Kind, float]


@dataclass(frozen=True)
class ModelFailed:
    """The model could not be loaded; `fatal` if trying again cannot help."""

    reason: str
    fatal: bool


@dataclass
class EncodeRequest:
    """A batch of pixels (H, W, 3) or texts; pixels of one size are sent as one array (N, H, W, 3)."""

    number: int
    kind: Kind
    items: Any


@dataclass
class EncodeReply:
    """Unit rows (N, d), zeros if the model gave none; `errors` by row number for rows on which the model failed.

    `truncated` are the numbers of texts that are longer than the model's context.
    """

    number: int
    rows: Rows
    seconds: float
    errors: dict[int, str] = field(default_factory=dict)
    truncated: frozenset[int] = frozenset()


def run_encoder(connection: "Connection[Any, Any]", spec: Callable[[], Estimator], measure: bool, threads: int) -> None:
    """Main function of the process: load, warm up, report, encode until the service closes the pipe."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # before torch is imported
    for number in (signal.SIGINT, signal.SIGTERM):  # the service handles signals to the group
        signal.signal(number, signal.SIG_IGN)
    exit_with_parent()  # so that the device's memory is freed
    try:
        model = as_estimator(spec)
        send(connection, _warm(model, measure))
    except NoisegateError as error:
        send(connection, ModelFailed(str(error), fatal=True))
        return
    except Exception as error:  # the service decides whether to try again
        send(connection, ModelFailed(" ".join(f"{type(error).__name__}: {error}".split())[:500], fatal=False))
        return
    waiting: queue.SimpleQueue[EncodeRequest | None] = queue.SimpleQueue()
    threading.Thread(target=_receive_all, args=(connection, waiting), daemon=True).start()
    while (request := waiting.get()) is not None:
        began = time.perf_counter()
        rows, errors = encode_request(model, request)
        texts = list(request.items) if request.kind == "texts" and not errors else []
        truncated = frozenset(i for i, cut in enumerate(find_truncated(model, texts)) if cut)
        send(connection, EncodeReply(request.number, rows, time.perf_counter() - began, errors, truncated))


def _receive_all(connection: "Connection[Any, Any]", waiting: "queue.SimpleQueue[EncodeRequest | None]") -> None:
    try:
        while True:
            waiting.put(receive(connection))
    except (EOFError, OSError):
        waiting.put(None)


def _warm(model: Estimator, measure: bool) -> ModelReady:
    """Encode a picture and a text, so that the first request finds everything allocated and compiled."""
    pixels = model.preprocess(Image.new("RGB", (256, 256), (128, 128, 128)))
    images, image_seconds = _time_second(lambda: model.encode_pixels([pixels]))
    _, text_seconds = _time_second(lambda: model.encode_texts(["a photo"]))
    beta = measure_beta(model) if measure else None
    seconds: dict[Kind, float] = {"images": image_seconds, "texts": text_seconds}
    return ModelReady(model.identity, images.shape[1], model.batch_size, model.preprocess, beta, seconds)


def _time_second(encode: Callable[[], Rows]) -> tuple[Rows, float]:
    """Encode twice and time the second run: the first one compiles and allocates."""
    encode()
    began = time.perf_counter()
    return encode(), time.perf_counter() - began


def encode_request(model: Estimator, request: EncodeRequest) -> tuple[Rows, dict[int, str]]:
    """Encode a batch to unit rows and errors; if the model fails, try each item alone; failing items get zeros."""
    encode: Callable[[Any], Rows] = model.encode_pixels if request.kind == "images" else model.encode_texts
    try:
        return normalise(encode(list(request.items))), {}
    except Exception as error:  # a model may raise anything
        if _device_is_lost(error):
            raise
    rows: list[Rows | None] = []
    errors: dict[int, str] = {}
    for i, item in enumerate(request.items):
        try:
            rows.append(normalise(encode([item])))
        except Exception as error:
            if _device_is_lost(error):
                raise
            errors[i] = " ".join(f"the model failed: {type(error).__name__}: {error}".split())[:300]
            rows.append(None)
    width = max((row.shape[1] for row in rows if row is not None), default=0)
    empty = np.zeros((1, width), np.float32)
    return np.concatenate([empty if row is None else row for row in rows]), errors


def _device_is_lost(error: Exception) -> bool:
    """Return whether a CUDA kernel failed: then this process cannot continue, and a new one must replace it."""
    return type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error)


class EncoderProcess:
    """The service's handle of one encoder process. `submit` never blocks; callbacks come from threads of this object.

    `on_message` gets ModelReady, ModelFailed and every EncodeReply; `on_end` is called once, when the process has ended.
    """

    def __init__(
        self,
        spec: ModelSpec,
        measure: bool,
        threads: int,
        on_message: Callable[[Any], None],
        on_end: Callable[[], None],
    ) -> None:
        self._on_message, self._on_end = on_message, on_end
        self._outbox: queue.SimpleQueue[EncodeRequest | None] = queue.SimpleQueue()
        context = spawn_context()  # this process has threads, which do not survive a fork
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=run_encoder,
            args=(theirs, spec, measure, threads),
            name="noisegate-encoder",
            daemon=True,
        )
        with sigint_blocked():
            self._process.start()
        theirs.close()  # so that the stream ends with the process
        threading.Thread(target=self._send_all, daemon=True).start()
        threading.Thread(target=self._receive_all, daemon=True).start()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def submit(self, request: EncodeRequest) -> None:
        self._outbox.put(request)

    def stop(self, timeout: float = 2) -> None:
        """End the process by closing its input, or by force after `timeout` seconds. Blocks."""
        self._outbox.put(None)
        self._process.join(timeout)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def _send_all(self) -> None:
        try:
            while (request := self._outbox.get()) is not None:
                send(self._connection, stack_pixels(request))
            with socket.socket(fileno=os.dup(self._connection.fileno())) as end:
                end.shutdown(socket.SHUT_WR)  # replies may still come, so the pipe stays open for reading
        except OSError:
            return  # the process is gone; the receiving thread reports it

    def _receive_all(self) -> None:
        try:
            while True:
                self._on_message(receive(self._connection))
        except (EOFError, OSError, pickle.UnpicklingError, RuntimeError):  # RuntimeError: the event loop is closed
            self._on_end()


def stack_pixels(request: EncodeRequest) -> EncodeRequest:
    """Stack pixels of one size into one array; done in the sending thread, because it takes a while."""
    if request.kind == "images" and len({array.shape for array in request.items}) == 1:
        return replace(request, items=np.stack(request.items))
    return request
