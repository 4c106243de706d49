"""Several encoders as one engine: shards go to whoever is free, and those of an encoder that dies go to another.

How encoders are started and heard is the transport's business: processes of this host, or Ray.
"""

import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from noisegate.pipeline.errors import MismatchError, NoisegateError
from noisegate.pipeline.estimators.base import Identity
from noisegate.pipeline.labels.anchors import Anchors
from noisegate.pipeline.labels.classes import ClassSet
from noisegate.pipeline.neighbours import RunTasks, Task, run_in_turn
from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.shards.locate import Shard

from .progress_totals import Tally
from .shard_task import ShardTask, Unreadable, Written
from .worker_protocol import Answer, Ask, Encode, Failed, Message, NoMore, Quit, Ready, Reply

__all__ = ["Fleet", "Link", "Lost", "Transport"]

TRIES = 3
AHEAD = 2  # one shard is encoded while the next is read


class Link(Protocol):
    """One encoder as the job sees it."""

    def send(self, message: Message) -> None:
        """Returns at once, also where the encoder is gone."""
        ...

    def end(self, at_once: bool) -> None:
        """Make sure that it is gone; a polite end lets it leave by itself first."""
        ...


@dataclass(frozen=True)
class Lost:
    """An encoder is gone, and why, as far as anybody knows."""

    reason: str


class Transport(Protocol):
    """Starts encoders and waits for what they say."""

    def start(self, place: str) -> Link: ...
    def hear(self, links: Sequence[Link]) -> list[tuple[Link, list[Reply | Lost]]]:
        """What was said since the last call; waits until somebody says something. After `Lost` a link says no more."""
        ...


@dataclass(eq=False)
class _Encoder:
    place: str
    link: Link
    failures: int  # of those before it in this place that were never ready
    ready: bool = False
    has: list[Shard] = field(default_factory=list)  # handed out and not done, the oldest first


class Fleet:
    """An engine of one encoder per place. Raises what any of them raises; a `with` block ends them all.

    `workers` says how many processes decode beside each encoder, of those asked for; `search` carries out the tasks of a
    neighbour search once the encoders have made room.
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
        self._encode: Encode | None = None
        self._todo: deque[Shard] = deque()
        self._tally: Tally | None = None
        self._answers: list[Answer] = []
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
        """No encoder is left; told first, so that all of them leave at the same time."""
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
            self._hear()
        return self._identity

    def random_inputs(self, seed: int) -> Beta:
        return cast(Beta, self._ask("random_inputs", seed))

    def anchors(self, classes: ClassSet) -> Anchors:
        return cast(Anchors, self._ask("anchors", classes))

    def search(self, tasks: Iterable[Task]) -> Iterable[Task]:
        self.end(at_once=False)  # tasks need the processors and the memory that the encoders have
        return self._search(tasks)

    def encode(self, task: ShardTask, shards: Sequence[Shard], tally: Tally) -> None:
        there = replace(task, out=task.out.absolute(), workers=self._workers(task.workers))
        self._encode = Encode(there, (task.out / "_lock").read_text(encoding="utf-8"))
        self._todo, self._tally = deque(shards), tally
        for encoder in self._encoders:
            if encoder.ready:
                encoder.link.send(self._encode)
        self._hand_out()
        while self._todo or any(encoder.has for encoder in self._encoders):
            self._hear()
            self._hand_out()
        self._encode = None
        for encoder in self._encoders:
            if encoder.ready:
                encoder.link.send(NoMore())

    def _start(self, place: str, failures: int = 0) -> None:
        self._encoders.append(_Encoder(place, self._transport.start(place), failures))

    def _hand_out(self) -> None:
        """One shard to each that has none, then one ahead; a shard that was lost with its encoder goes alone."""
        for load in range(AHEAD):
            for encoder in self._encoders:
                if not encoder.ready or len(encoder.has) != load or not self._todo:
                    continue
                suspects = any(self._tries[shard.url] for shard in (self._todo[0], *encoder.has))
                if load and (suspects or len(self._todo) < len(self._encoders)):
                    continue
                shard = self._todo.popleft()
                encoder.has.append(shard)
                encoder.link.send(shard)

    def _hear(self) -> None:
        by_link = {id(encoder.link): encoder for encoder in self._encoders}
        for link, replies in self._transport.hear([encoder.link for encoder in self._encoders]):
            for reply in replies:
                self._take(by_link[id(link)], reply)

    def _take(self, encoder: _Encoder, reply: Reply | Lost) -> None:
        match reply:
            case Ready(identity):
                self._join(encoder, identity)
            case Lost(reason):
                self._replace(encoder, reason)
            case Failed(error):
                raise pickle.loads(error)
            case Answer():
                self._answers.append(reply)
            case event:
                if isinstance(event, Written | Unreadable):
                    encoder.has.remove(event.shard)
                if self._tally:
                    self._tally.take(event)

    def _join(self, encoder: _Encoder, identity: Identity) -> None:
        self._identity = self._identity or identity
        differences = self._identity.differences(identity)
        if differences:
            raise MismatchError(
                f"the encoders are not alike; {encoder.place} has\n  "
                + "\n  ".join(differences)
                + "\nInstall the same on all."
            )
        encoder.ready = True
        if self._encode:
            encoder.link.send(self._encode)

    def _replace(self, encoder: _Encoder, reason: str) -> None:
        """Hand its shards out again, and start another in its place where there is work for it."""
        self._encoders.remove(encoder)
        encoder.link.end(at_once=True)
        failures = 0 if encoder.ready else encoder.failures + 1
        if failures >= TRIES:
            raise NoisegateError(f"the encoder on {encoder.place} ended before its model was loaded: {reason}")
        for shard in reversed(encoder.has):
            assert self._tally
            self._tally.lost(shard)
            self._tries[shard.url] += 1
            if self._tries[shard.url] < TRIES:
                self._todo.appendleft(shard)
            else:
                ended = f"shard {shard.url} ended its encoder {TRIES} times, the last time with {reason}"
                self._tally.take(Unreadable(shard, ended))
        again = ", ".join(shard.stem for shard in encoder.has)
        self._note(f"lost the encoder on {encoder.place} ({reason}){f'; once more: {again}' if again else ''}")
        if self._todo or not self._encoders:
            self._start(encoder.place, failures)

    def _ask(self, method: str, argument: Any) -> Any:
        """Of the first that is ready; of another where that one is lost."""
        asked: _Encoder | None = None
        tries = 0
        if not self._encoders:  # they made room for a search
            self._start(self._places[0])
        while not self._answers:
            if asked not in self._encoders:
                if tries >= TRIES:
                    raise NoisegateError(f"{method} ended {tries} encoders; run the same command again")
                asked = next((encoder for encoder in self._encoders if encoder.ready), None)
                if asked:
                    asked.link.send(Ask(method, argument))
                    tries += 1
            self._hear()
        return self._answers.pop().value
