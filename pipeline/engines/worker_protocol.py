"""The far end of an engine: a model in a process of its own, what it may be told and what it answers. All of it is small."""

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

from .local import LocalEngine
from .shard_task import Event, ShardTask, encode_shards

__all__ = ["Answer", "Ask", "Encode", "Failed", "NoMore", "Quit", "Ready", "Reply", "serve"]


@dataclass(frozen=True)
class Encode:
    """Shards follow, then `NoMore`. `mark` is what the run's lock file says: elsewhere it would be another folder."""

    task: ShardTask
    mark: str


@dataclass(frozen=True)
class NoMore:
    """The last shard was sent."""


@dataclass(frozen=True)
class Ask:
    """Call this method of the engine."""

    method: str
    argument: Any


@dataclass(frozen=True)
class Quit:
    """Nothing more is wanted."""


@dataclass(frozen=True)
class Ready:
    """The model is loaded."""

    identity: Identity
    process: int
    host: str


@dataclass(frozen=True)
class Answer:
    """What `Ask` asked for."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """An exception, pickled, with its traceback as a note; nothing follows."""

    error: bytes


Message = Encode | Shard | NoMore | Ask | Quit
Reply = Ready | Event | Answer | Failed


def serve(make: Callable[[], Any], inbox: "queue.SimpleQueue[Message]", send: Callable[[Reply], None]) -> None:
    """Load a model and do as told until `Quit`; whatever is raised is sent as `Failed`, and ends it."""
    try:
        model = as_estimator(make())
        engine = LocalEngine(model)
        send(Ready(model.identity, os.getpid(), socket.gethostname()))
        while not isinstance(message := inbox.get(), Quit):
            if isinstance(message, Ask):
                send(Answer(getattr(engine, message.method)(message.argument)))
            elif isinstance(message, Encode):
                _check_place(message)
                encode_shards(message.task, model, _shards(inbox), send, lambda: inbox.put(NoMore()))
    except BaseException as error:  # whatever it is, it is raised where the job runs
        send(Failed(_pickled(error)))


def _shards(inbox: "queue.SimpleQueue[Message]") -> Iterator[Shard]:
    while isinstance(message := inbox.get(), Shard):
        yield message


def _check_place(message: Encode) -> None:
    lock = message.task.out / "_lock"
    try:
        found = lock.read_text(encoding="utf-8")
    except OSError:
        found = None
    if found != message.mark:
        raise ConfigError(
            f"out {message.task.out} is another folder on {socket.gethostname()}; use one that all hosts share"
        )


def _pickled(error: BaseException) -> bytes:
    error.add_note(f"in process {os.getpid()} on {socket.gethostname()}:\n{''.join(traceback.format_exception(error))}")
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # some exceptions cannot be pickled, or not be made again
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return data
