"""Several encoders as one engine: idle encoders get shards; the shards of an encoder that dies go to another.

A transport starts encoders, which run `serve`, and passes small messages to and from them. The transports are processes of this
host (`devices`) and Ray actors (`ray_workers`).
"""

import os
import pickle
import queue
import socket
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, cast

from noisegate.pipeline.errors import ConfigError, MismatchError, NoisegateError
from noisegate.pipeline.estimators import as_estimator
from noisegate.pipeline.estimators.base import Identity
from noisegate.pipeline.labels.anchors import Anchors
from noisegate.pipeline.labels.classes import ClassSet
from noisegate.pipeline.neighbours import RunTasks, Task, run_in_turn
from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.shards.locate import Shard

from .engine import InProcessEngine
from .shard_task import Event, ProgressTotals, ShardTask, Unreadable, Written, encode_shards

TRIES = 3  # give up after this many failed starts of an encoder, or this many encoders that died on the same shard
SHARDS_AHEAD = 2  # one shard is encoded while the next is read


@dataclass(frozen=True)
class StartEncoding:
    """Shards follow, then `NoMoreShards`.

    `lock_text` is the content of the run's lock file; with it an encoder on another host checks that `out` is the same folder.
    """

    task: ShardTask
    lock_text: str


@dataclass(frozen=True)
class NoMoreShards:
    """All shards were sent."""


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


@dataclass(frozen=True)
class Result:
    """The value that a call returned."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """A pickled exception with its traceback as a note; the encoder's last message."""

    error: bytes


Message = StartEncoding | Shard | NoMoreShards | Call | Quit
Reply = Ready | Event | Result | Failed


def serve(
    make: Callable[[], Any],
    inbox: "queue.SimpleQueue[Message]",
    send: Callable[[Reply], None],
    shares_disk: bool = True,
) -> None:
    """Load a model and handle messages until `Quit`; an exception is sent as `Failed` and ends the loop.

    Without `shares_disk`, files of a run in a store are made in a temporary folder of this encoder.
    """
    try:
        model = as_estimator(make())
        engine = InProcessEngine(model)
        send(Ready(model.identity))
        while not isinstance(message := inbox.get(), Quit):
            if isinstance(message, Call):
                send(Result(getattr(engine, message.method)(message.argument)))
            elif isinstance(message, StartEncoding):
                with _open_folder(message, shares_disk) as task:
                    encode_shards(task, model, _shards(inbox), send, lambda: inbox.put(NoMoreShards()))
    except BaseException as error:  # raised again where the job runs
        send(Failed(_pickle(error)))


def _shards(inbox: "queue.SimpleQueue[Message]") -> Iterator[Shard]:
    while isinstance(message := inbox.get(), Shard):
        yield message


@contextmanager
def _open_folder(message: StartEncoding, shares_disk: bool) -> Iterator[ShardTask]:
    """Yield the task with its folder on this host; raise ConfigError if `out` is not the job's folder here."""
    if message.task.store and not shares_disk:
        with TemporaryDirectory(prefix="noisegate-") as folder:
            yield replace(message.task, out=Path(folder), scratch=True)
        return
    lock = message.task.out / "_lock"
    try:
        text = lock.read_text(encoding="utf-8")
    except OSError:
        text = None
    if text != message.lock_text:
        raise ConfigError.of("out", str(message.task.out), f"is another on {socket.gethostname()}; use a shared folder")
    yield message.task


def _pickle(error: BaseException) -> bytes:
    error.add_note(f"in process {os.getpid()} on {socket.gethostname()}:\n{''.join(traceback.format_exception(error))}")
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # some exceptions cannot be pickled or unpickled
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return data


class Link(Protocol):
    """The connection to one encoder."""

    def send(self, message: Message) -> None:
        """Send without waiting; do nothing if the encoder is gone."""

    def end(self, at_once: bool) -> None:
        """End the encoder; unless `at_once`, give it time to exit by itself."""


@dataclass(frozen=True)
class Lost:
    """An encoder is gone; `reason` if known."""

    reason: str


class Transport(Protocol):
    """Starts encoders and receives their messages."""

    def start(self, place: str) -> Link: ...
    def receive(self, links: Sequence[Link]) -> list[tuple[Link, list[Reply | Lost]]]:
        """Wait for replies and return all there are. `Lost` is the last reply of a link."""


@dataclass(eq=False)
class _Encoder:
    place: str
    link: Link
    failures: int  # consecutive encoders in this place that ended before they were ready
    ready: bool = False
    shards: list[Shard] = field(default_factory=list)  # handed out and not done, oldest first


class Fleet:
    """An engine with one encoder per place. It re-raises an encoder's exception; a `with` block ends all encoders.

    `workers` maps the requested number of decoding processes to those of each encoder; `search` carries out the tasks of a
    neighbour search after the encoders have ended.
    """

    def __init__(
        self,
        transport: Transport,
        places: Sequence[str],
        workers: Callable[[int | None], int],
        note: Callable[[str], None],
        search: RunTasks = run_in_turn,
    ) -> None:
        self._transport, self._workers, self._note = transport, workers, note
        self._places, self._search = tuple(places), search
        self._encoders: list[_Encoder] = []
        self._identity: Identity | None = None
        self._encode: StartEncoding | None = None
        self._todo: deque[Shard] = deque()
        self._totals: ProgressTotals | None = None
        self._results: list[Result] = []
        self._tries: Counter[str] = Counter()
        try:
            for place in places:
                self._start(place)
        except BaseException:
            self.end(at_once=True)
            raise

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.end(at_once=kind is not None)

    def end(self, at_once: bool) -> None:
        """End all encoders; all are told first, so that they exit at the same time."""
        for encoder in self._encoders:
            encoder.link.send(Quit())
        for encoder in self._encoders:
            encoder.link.end(at_once)
        self._encoders = []

    @property
    def searches_remotely(self) -> bool:
        return self._search is not run_in_turn

    @property
    def identity(self) -> Identity:
        while self._identity is None:
            self._receive()
        return self._identity

    def random_inputs(self, seed: int) -> Beta:
        return cast(Beta, self._call("random_inputs", seed))

    def anchors(self, classes: ClassSet) -> Anchors:
        return cast(Anchors, self._call("anchors", classes))

    def search(self, tasks: Iterable[Task]) -> Iterable[Task]:
        self.end(at_once=False)  # the search tasks need the encoders' processors and memory
        return self._search(tasks)

    def encode(self, task: ShardTask, shards: Sequence[Shard], totals: ProgressTotals) -> None:
        remote_task = replace(task, out=task.out.absolute(), workers=self._workers(task.workers))
        self._encode = StartEncoding(remote_task, (task.out / "_lock").read_text(encoding="utf-8"))
        self._todo, self._totals = deque(shards), totals
        for encoder in self._encoders:
            if encoder.ready:
                encoder.link.send(self._encode)
        self._hand_out()
        while self._todo or any(encoder.shards for encoder in self._encoders):
            self._receive()
            self._hand_out()
        self._encode = None
        for encoder in self._encoders:
            if encoder.ready:
                encoder.link.send(NoMoreShards())

    def _start(self, place: str, failures: int = 0) -> None:
        self._encoders.append(_Encoder(place, self._transport.start(place), failures))

    def _hand_out(self) -> None:
        """Give one shard to each idle encoder, then one ahead; a shard that ended an encoder before is sent alone."""
        for load in range(SHARDS_AHEAD):
            for encoder in self._encoders:
                if not encoder.ready or len(encoder.shards) != load or not self._todo:
                    continue
                suspect = any(self._tries[shard.url] for shard in (self._todo[0], *encoder.shards))
                if load and (suspect or len(self._todo) < len(self._encoders)):
                    continue
                shard = self._todo.popleft()
                encoder.shards.append(shard)
                encoder.link.send(shard)

    def _receive(self) -> None:
        by_link = {id(encoder.link): encoder for encoder in self._encoders}
        for link, replies in self._transport.receive([encoder.link for encoder in self._encoders]):
            for reply in replies:
                self._handle(by_link[id(link)], reply)

    def _handle(self, encoder: _Encoder, reply: Reply | Lost) -> None:
        match reply:
            case Ready(identity):
                self._join(encoder, identity)
            case Lost(reason):
                self._replace(encoder, reason)
            case Failed(error):
                raise pickle.loads(error)
            case Result():
                self._results.append(reply)
            case event:
                if isinstance(event, Written | Unreadable):
                    encoder.shards.remove(event.shard)
                if self._totals:
                    self._totals.add(event)

    def _join(self, encoder: _Encoder, identity: Identity) -> None:
        self._identity = self._identity or identity
        differences = self._identity.differences(identity)
        if differences:
            raise MismatchError.of(
                "engine", encoder.place, "\n  ".join(("has other versions; install the same on all:", *differences))
            )
        encoder.ready = True
        if self._encode:
            encoder.link.send(self._encode)

    def _replace(self, encoder: _Encoder, reason: str) -> None:
        """Put a lost encoder's shards back into the queue; start another encoder in its place if there is work."""
        self._encoders.remove(encoder)
        encoder.link.end(at_once=True)
        failures = 0 if encoder.ready else encoder.failures + 1
        if failures >= TRIES:
            raise NoisegateError.of("device", encoder.place, f"ended before its model was loaded: {reason}")
        for shard in reversed(encoder.shards):
            assert self._totals
            self._totals.discard(shard)
            self._tries[shard.url] += 1
            if self._tries[shard.url] < TRIES:
                self._todo.appendleft(shard)
            else:
                ended = f"shard {shard.url} ended its encoder {TRIES} times, the last time with {reason}"
                self._totals.add(Unreadable(shard, ended))
        requeued = ", ".join(shard.stem for shard in encoder.shards)
        self._note(
            f"lost the encoder on {encoder.place} ({reason}){f'; encoding again: {requeued}' if requeued else ''}"
        )
        if self._todo or not self._encoders:
            self._start(encoder.place, failures)

    def _call(self, method: str, argument: Any) -> Any:
        """Call a method of the first encoder that is ready, and again of another encoder if that one is lost."""
        called: _Encoder | None = None
        tries = 0
        if not self._encoders:  # ended for a neighbour search
            self._start(self._places[0])
        while not self._results:
            if called not in self._encoders:
                if tries >= TRIES:
                    raise NoisegateError.of("device", self._places[0], f"ended {tries} times in {method}; run it again")
                called = next((encoder for encoder in self._encoders if encoder.ready), None)
                if called:
                    called.link.send(Call(method, argument))
                    tries += 1
            self._receive()
        return self._results.pop().value
