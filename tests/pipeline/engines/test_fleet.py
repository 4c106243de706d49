"""Who gets which shard, and what happens when an encoder is lost: with encoders that say what the test lets them say."""

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from noisegate.pipeline.engines.fleet import (
    Call,
    Failed,
    Fleet,
    Link,
    Lost,
    Message,
    NoMoreShards,
    Quit,
    Ready,
    Reply,
    Result,
    StartEncoding,
)
from noisegate.pipeline.engines.shard_task import Advanced, Note, ProgressTotals, ShardTask, Unreadable, Written
from noisegate.pipeline.errors import ConfigError, MismatchError, NoisegateError
from noisegate.pipeline.neighbours import Task
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import Shard
from tests.errors import refused
from tests.fakes import estimator
from tests.jobs import Notes, said

IDENTITY = estimator().identity
READY = Ready(IDENTITY)


class Puppet:
    """An encoder that remembers what it was told."""

    def __init__(self, place: str) -> None:
        self.place, self.told, self.gone = place, list[Message](), False

    def send(self, message: Message) -> None:
        self.told.append(message)

    def end(self, at_once: bool) -> None:
        self.gone = True

    @property
    def shards(self) -> list[str]:
        return [message.stem for message in self.told if isinstance(message, Shard)]


class Stage:
    """A transport whose encoders speak in turns: at each `receive` the next scene is played, by `play(puppets)`."""

    def __init__(self) -> None:
        self.puppets: list[Puppet] = []

    def start(self, place: str) -> Puppet:
        self.puppets.append(Puppet(place))
        return self.puppets[-1]

    def receive(self, links: Sequence[Link]) -> list[tuple[Link, list[Reply | Lost]]]:
        alive = [link for link in links if isinstance(link, Puppet)]
        assert alive, "nobody is left to say anything"
        return self.play(alive)

    def play(self, alive: list[Puppet]) -> list[tuple[Link, list[Reply | Lost]]]:
        raise NotImplementedError


def written(name: str) -> Written:
    return Written(Shard(f"{name}.tar"), 10, 1, 10)


class Diligent(Stage):
    """Each is ready at once and does its oldest shard, one encoder after the other; `deadly` shards kill theirs."""

    def __init__(self, deadly: dict[str, int] | None = None) -> None:
        super().__init__()
        self.deadly = dict(deadly or {})
        self.done: dict[int, int] = {}
        self.spoken: set[int] = set()

    def play(self, alive: list[Puppet]) -> list[tuple[Link, list[Reply | Lost]]]:
        for puppet in alive:
            if id(puppet) not in self.spoken:
                self.spoken.add(id(puppet))
                return [(puppet, [READY])]
        for puppet in sorted(alive, key=lambda p: self.done.get(id(p), 0)):
            number = self.done.get(id(puppet), 0)
            if number < len(puppet.shards):
                name = puppet.shards[number]
                if self.deadly.get(name, 0):
                    self.deadly[name] -= 1
                    return [(puppet, [Advanced(Shard(f"{name}.tar"), 4, 40), Lost("killed by SIGKILL")])]
                self.done[id(puppet)] = number + 1
                return [(puppet, [Advanced(Shard(f"{name}.tar"), 10, 90), written(name)])]
        raise AssertionError("everybody waits")


def shards(*names: str) -> list[Shard]:
    return [Shard(f"{name}.tar") for name in names]


def run(stage: Stage, names: str, out: Path, places: int = 2) -> tuple[ProgressTotals, Notes]:
    (out / "_lock").write_text("it is I")
    progress = Notes()
    totals = ProgressTotals(progress, {f"{name}.tar": 100 for name in names})
    task = ShardTask(out, DecodeOptions(), None)
    with Fleet(stage, [f"place {i}" for i in range(places)], lambda requested: 3, progress.note) as fleet:
        assert fleet.identity == IDENTITY
        fleet.encode(task, shards(*names), totals)
    return totals, progress


# --- handing out --------------------------------------------------------------------------------------------------------
def test_each_shard_goes_to_one_encoder_with_one_ahead_while_there_are_many(tmp_path: Path) -> None:
    stage = Diligent()
    totals, progress = run(stage, "abcdefg", tmp_path)
    first, second = stage.puppets
    assert sorted(first.shards + second.shards) == list("abcdefg")
    assert first.told[:3] == [StartEncoding(ShardTask(tmp_path, DecodeOptions(), 3), "it is I"), *shards("a", "b")]
    assert (first.told[-2:], second.told[-2:]) == ([NoMoreShards(), Quit()], [NoMoreShards(), Quit()])
    assert (first.gone, second.gone) == (True, True)
    assert (totals.encoded, totals.failed, progress.size) == (70, {}, 700)


def test_the_last_shards_are_not_hoarded(tmp_path: Path) -> None:
    class Slow(Diligent):
        def play(self, alive: list[Puppet]) -> list[tuple[Link, list[Reply | Lost]]]:
            if len(self.spoken) == 2 and len(alive[0].shards) < 2:  # both have one of two shards
                assert [puppet.shards for puppet in alive] == [["a"], ["b"]]
            return super().play(alive)

    run(Slow(), "ab", tmp_path)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    class Broken(Diligent):
        def play(self, alive: list[Puppet]) -> list[tuple[Link, list[Reply | Lost]]]:
            if alive[0].shards:
                return [(alive[0], [Note("look"), Unreadable(Shard("a.tar"), "a.tar is no tar")])]
            return super().play(alive)

    totals, progress = run(Broken(), "a", tmp_path, places=1)
    assert totals.failed == {"a.tar": "a.tar is no tar"}
    assert progress.said == ["look", "a.tar is no tar"]


# --- losses -------------------------------------------------------------------------------------------------------------
def test_the_shards_of_a_lost_encoder_go_out_again_and_the_progress_adds_up(tmp_path: Path) -> None:
    stage = Diligent({"a": 1})
    totals, progress = run(stage, "abcdef", tmp_path)
    assert stage.puppets[0].shards == ["a", "b"]
    assert stage.puppets[0].gone
    assert sorted(name for puppet in stage.puppets[1:] for name in puppet.shards) == list("abcdef")
    assert stage.puppets[2].place == "place 0"
    assert "lost the encoder on place 0 (killed by SIGKILL); encoding again: a, b" in said(progress)
    assert (totals.encoded, totals.failed, progress.size) == (60, {}, 600)


def test_a_shard_that_ends_its_encoder_three_times_is_given_up_and_takes_no_other_along(tmp_path: Path) -> None:
    stage = Diligent({"b": 9})
    totals, progress = run(stage, "abcdefgh", tmp_path)
    assert list(totals.failed) == ["b.tar"]
    assert totals.failed["b.tar"] == "shard b.tar ended its encoder 3 times, the last time with killed by SIGKILL"
    assert totals.encoded == 70
    assert progress.size == 800
    losers = [puppet for puppet in stage.puppets if puppet.shards[-1:] == ["b"] or puppet.shards[-2:-1] == ["b"]]
    assert sum(len(puppet.shards) > 1 and puppet.shards[-1] != "b" for puppet in losers) <= 1  # only the first time


def test_an_encoder_that_never_gets_ready_ends_the_job(tmp_path: Path) -> None:
    class Stillborn(Stage):
        def play(self, alive: list[Puppet]) -> list[tuple[Link, list[Reply | Lost]]]:
            return [(alive[-1], [Lost("exit code 1")])]

    stage = Stillborn()
    with refused("device", "place 0", NoisegateError):
        run(stage, "a", tmp_path, places=1)
    assert len(stage.puppets) == 3
    assert all(puppet.gone for puppet in stage.puppets)


# --- what encoders say --------------------------------------------------------------------------------------------------
def test_an_error_is_raised_as_it_was_and_ends_the_others(tmp_path: Path) -> None:
    class Refusing(Stage):
        def play(self, alive: list[Puppet]) -> list[tuple[Link, list[Reply | Lost]]]:
            return [(alive[0], [Failed(pickle.dumps(ConfigError("dtype 'x' is unknown", "dtype", "x")))])]

    stage = Refusing()
    with refused("dtype", "x"):
        run(stage, "abc", tmp_path)
    assert [puppet.gone for puppet in stage.puppets] == [True, True]


def test_encoders_must_be_alike(tmp_path: Path) -> None:
    class Mixed(Stage):
        def play(self, alive: list[Puppet]) -> list[tuple[Link, list[Reply | Lost]]]:
            other = replace(IDENTITY, weights="others")
            return [(alive[0], [READY]), (alive[1], [Ready(other)])]

    with refused("engine", "place 1", MismatchError):
        run(Mixed(), "abc", tmp_path)


def test_a_question_is_asked_again_where_the_one_who_was_asked_is_lost() -> None:
    class Oracle(Stage):
        def play(self, alive: list[Puppet]) -> list[tuple[Link, list[Reply | Lost]]]:
            if not alive[0].told:
                return [(puppet, [READY]) for puppet in alive]
            if alive[0].place == "place 0":
                return [(alive[0], [Lost("the host is gone")])]
            assert alive[0].told == [Call("random_inputs", 7)]
            return [(alive[0], [Result("β")])]

    with Fleet(Oracle(), ["place 0", "place 1"], lambda requested: 0, lambda text: None) as fleet:
        assert fleet.identity == IDENTITY
        assert fleet.random_inputs(7) == "β"  # type: ignore[comparison-overlap]


def test_encoders_make_room_for_a_search_and_one_comes_back_for_a_question(tmp_path: Path) -> None:
    class Stagehands(Stage):
        def play(self, alive: list[Puppet]) -> list[tuple[Link, list[Reply | Lost]]]:
            asked = [puppet for puppet in alive if puppet.told]
            return [(asked[0], [Result("β")])] if asked else [(puppet, [READY]) for puppet in alive]

    stage, left = Stagehands(), list[bool]()

    def search(tasks: Iterable[Task]) -> Iterable[Task]:
        left.extend(puppet.gone for puppet in stage.puppets)
        return tasks

    task = Task(str(tmp_path), "exact", 0)
    with Fleet(stage, ["place 0", "place 1"], lambda requested: 0, lambda text: None, search) as fleet:
        assert fleet.identity == IDENTITY
        assert list(fleet.search([task])) == [task]
        assert left == [True, True]
        assert fleet.random_inputs(7) == "β"  # type: ignore[comparison-overlap]
    assert [puppet.place for puppet in stage.puppets] == ["place 0", "place 1", "place 0"]
    assert all(puppet.gone for puppet in stage.puppets)


def test_a_question_that_ends_whoever_is_asked_is_not_asked_for_ever() -> None:
    class Sphinx(Diligent):
        def play(self, alive: list[Puppet]) -> list[tuple[Link, list[Reply | Lost]]]:
            if alive[0].told:
                return [(alive[0], [Lost("killed by SIGKILL")])]
            return [(alive[0], [READY])]

    with (
        refused("device", "place 0", NoisegateError),
        Fleet(Sphinx(), ["place 0"], lambda requested: 0, lambda text: None) as fleet,
    ):
        fleet.random_inputs(0)
