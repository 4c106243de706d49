"""One encoder process per GPU, or per group of processors, on this host."""

import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.system.machine import count_processors
from noisegate.pipeline.system.processes import UNGUARDED, is_of_main, sigint_blocked, spawn_context

from .fleet import Fleet, Link, Lost, Message, Reply, serve

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Devices:
    """One encoder process per name: `cuda:0`, `cuda:1`, or `cpu` for an equal share of the processors; names may repeat."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.names or ("",):
            kind, _, number = name.partition(":")
            if name != "cpu" and not (kind == "cuda" and number.isascii() and number.isdigit()):
                raise ConfigError.of("devices", name, "is unknown; use all, cuda:0,cuda:1, or 2 for two CPU processes")

    @classmethod
    def read(cls, text: str) -> "Devices":
        """Read `all` (GPUs of this host), names with commas, or a number of processes on the CPU.

        >>> Devices.read("2")
        Devices(names=('cpu', 'cpu'))
        """
        if text.isascii() and text.isdigit() and int(text):
            return cls(("cpu",) * int(text))
        if text != "all":
            return cls(tuple(name.strip() for name in text.split(",")))
        count = _gpus()
        if not count:
            raise ConfigError.of("devices", text, "needs a GPU, and torch sees none; use --devices 2 for the CPU")
        return cls(tuple(f"cuda:{i}" for i in range(count)))

    def workers(self, requested: int | None) -> int:
        """Return the number of decoding processes per encoder: an equal share of those requested, or of the processors; at
        least 1 unless 0 were requested.
        """
        count = len(self.names)
        if requested is None:
            return max(1, min(16, count_processors() // count))
        return requested if requested <= 0 else max(1, requested // count)

    @contextmanager
    def start(self, estimator: Any, shards: int, note: Callable[[str], None]) -> Iterator[Fleet]:
        seen = _gpus() if any(name != "cpu" for name in self.names) else 0
        for name in self.names:
            if name != "cpu" and int(name.partition(":")[2]) >= seen:
                raise ConfigError.of("devices", name, f"is not among the {seen} GPUs here; use --devices 2 for the CPU")
        names = self.names[: max(1, shards)]
        threads = max(1, count_processors() // len(names)) if set(names) == {"cpu"} else None
        with Fleet(_Processes(estimator, threads), names, self.workers, note) as fleet:
            yield fleet


def pickle_factory(estimator: Any, dumps: Callable[[Any], bytes] = pickle.dumps) -> bytes:
    """Pickle a function that makes the estimator in another process; raise ConfigError if it cannot be pickled."""
    hint = "give a function of a module that makes one, or ModelSpec('ViT-B-32', …)"
    if not callable(estimator) or (hasattr(estimator, "encode_images") and not isinstance(estimator, type)):
        name = type(estimator).__name__
        raise ConfigError.of("estimator", name, f"lives in this process, and several encode; {hint}")
    try:
        return dumps(estimator)
    except Exception as error:  # pickle runs code of the object, which may raise anything
        raise ConfigError.of("estimator", repr(estimator), f"cannot be pickled ({error}); {hint}") from error


def place_on(estimator: Any, device: str) -> Any:
    """Set the device of an estimator given by name; a user's own is unchanged, because its process sees only this GPU."""
    if not isinstance(estimator, ModelSpec) or estimator.model.startswith("python:"):
        return estimator
    if estimator.device != "auto":
        raise ConfigError.of("device", estimator.device, "does not go with --devices; leave out --device")
    return replace(estimator, device=device.partition(":")[0])


class _Process:
    def __init__(self, process: BaseProcess, connection: "Connection[Message, Reply]", of_main: bool) -> None:
        self.process, self.connection, self.of_main = process, connection, of_main

    def send(self, message: Message) -> None:
        try:
            self.connection.send(message)
        except OSError:
            return  # the encoder is gone; `receive` reports it

    def end(self, at_once: bool) -> None:
        self.process.join(0 if at_once else 10)
        self.process.kill()
        self.process.join()
        self.connection.close()


class _Processes:
    """Transport by spawned processes and pipes."""

    def __init__(self, estimator: Any, threads: int | None) -> None:
        self._estimator, self._threads = estimator, threads

    def start(self, place: str) -> _Process:
        make = pickle_factory(place_on(self._estimator, place))
        context = spawn_context(make)
        here, there = context.Pipe()
        process = context.Process(target=_main, args=(there, make, _environment(place, self._threads)))
        with sigint_blocked():
            process.start()
        there.close()
        return _Process(process, here, is_of_main(make))

    def receive(self, links: Sequence[Link]) -> list[tuple[Link, list[Reply | Lost]]]:
        by_connection = {link.connection: link for link in links if isinstance(link, _Process)}
        received: list[tuple[Link, list[Reply | Lost]]] = []
        for connection in wait(list(by_connection)):
            link = by_connection[connection]  # type: ignore[index]
            replies: list[Reply | Lost] = []
            try:
                while link.connection.poll():
                    replies.append(link.connection.recv())
            except (EOFError, OSError):
                link.process.join(10)
                replies.append(Lost(_reason(link.process.exitcode, link.of_main)))
            received.append((link, replies))
        return received


def _main(connection: "Connection[Reply, Message]", make: bytes, environment: dict[str, str]) -> None:
    """Run the encoder process: ignore Ctrl-C, which the job handles, and exit when the job is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(environment)  # before the libraries that read it are imported
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def receive() -> None:
        try:
            while True:
                inbox.put(connection.recv())
        except (EOFError, OSError):
            os._exit(1)  # files are written atomically, so a new start finds no partial ones

    def send(reply: Reply) -> None:
        try:
            connection.send(reply)
        except OSError:
            os._exit(1)

    def load() -> Any:
        made = pickle.loads(make)()
        if "torch" in sys.modules and "OMP_NUM_THREADS" in environment:
            sys.modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))
        return made

    threading.Thread(target=receive, daemon=True).start()
    serve(load, inbox, send)


def _environment(place: str, threads: int | None) -> dict[str, str]:
    """Return environment variables that show a process only its own GPU, or limit it to its share of CPU threads."""
    environment: dict[str, str] = {}
    if place == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    else:
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
        number = int(place.partition(":")[2])
        environment["CUDA_VISIBLE_DEVICES"] = visible[number].strip() if visible else str(number)
    if threads is not None and "OMP_NUM_THREADS" not in os.environ:
        environment |= dict.fromkeys(_THREADS, str(threads))
    return environment


def _reason(code: int | None, of_main: bool) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}; {UNGUARDED}" if of_main else f"exit code {code}"


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()
