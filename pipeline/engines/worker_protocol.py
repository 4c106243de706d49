"""Messages between a job and its encoder processes, and the loop that an encoder process runs. All messages are small."""

import os
import pickle
import queue
import socket
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators import as_estimator
from noisegate.pipeline.estimators.base import Identity
from noisegate.pipeline.shards.locate import Shard

from .engine import InProcessEngine
from .shard_task import Event, ShardTask, encode_shards


@dataclass(frozen=True)
class StartEncoding:
    """Shards follow, then `NoMoreShards`.

    `lock_text` is the content of the run's lock file: by it an encoder on another host sees whether `out` is the same folder.
    """

    task: ShardTask
    lock_text: str


@dataclass(frozen=True)
class NoMoreShards:
    """The last shard was sent."""


@dataclass(frozen=True)
class Call:
    """Call a method of the encoder's engine; a `Result` follows."""

    method: str
    argument: Any


@dataclass(frozen=True)
class Quit:
    """End the process."""


@dataclass(frozen=True)
class Ready:
    """The model is loaded."""

    identity: Identity
    process: int
    host: str


@dataclass(frozen=True)
class Result:
    """The value that a call returned."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """A pickled exception with its traceback as a note; the last message."""

    error: bytes


Message = StartEncoding | Shard | NoMoreShards | Call | Quit
Reply = Ready | Event | Result | Failed


def serve(make: Callable[[], Any], inbox: "queue.SimpleQueue[Message]", send: Callable[[Reply], None]) -> None:
    """Load a model and handle messages until `Quit`; an exception is sent as `Failed` and ends the loop."""
    try:
        model = as_estimator(make())
        engine = InProcessEngine(model)
        send(Ready(model.identity, os.getpid(), socket.gethostname()))
        while not isinstance(message := inbox.get(), Quit):
            if isinstance(message, Call):
                send(Result(getattr(engine, message.method)(message.argument)))
            elif isinstance(message, StartEncoding):
                _check_folder(message)
                encode_shards(message.task, model, _shards(inbox), send, lambda: inbox.put(NoMoreShards()))
    except BaseException as error:  # raised again where the job runs
        send(Failed(_pickle(error)))


def _shards(inbox: "queue.SimpleQueue[Message]") -> Iterator[Shard]:
    while isinstance(message := inbox.get(), Shard):
        yield message


def _check_folder(message: StartEncoding) -> None:
    """Raise ConfigError if `out` is another folder on this host."""
    lock = message.task.out / "_lock"
    try:
        text = lock.read_text(encoding="utf-8")
    except OSError:
        text = None
    if text != message.lock_text:
        raise ConfigError.of("out", str(message.task.out), f"is another on {socket.gethostname()}; use a shared folder")


def _pickle(error: BaseException) -> bytes:
    error.add_note(f"in process {os.getpid()} on {socket.gethostname()}:\n{''.join(traceback.format_exception(error))}")
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # some exceptions cannot be pickled or unpickled
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return data
