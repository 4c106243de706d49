import hashlib
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.pipeline.shards.read import RawSample
from noisegate.pipeline.shards.stream import CHUNK_SAMPLES, Chunk, ShardEnd, ShardFailed, stream
from noisegate.pipeline.shards.workers import DecodePool
from tests.pipeline.shards.tars import pairs, tar_bytes, write_tar


def pool(workers: int = 0) -> DecodePool:
    return DecodePool(workers, Preprocess(size=4), DecodeOptions())


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "noisegate-read"]


@pytest.fixture
def shards(tmp_path: Path) -> list[Shard]:
    return [Shard(str(write_tar(tmp_path / f"{i}.tar", pairs(count)))) for i, count in enumerate((40, 3, 0, 17))]


def story(shards: list[Shard], workers: int = 0, ahead: int = 2) -> list[tuple[str, str, list[int]]]:
    """What came out: kind, shard, and the samples' positions."""
    with pool(workers) as decoder, closing(stream(shards, decoder, ahead)) as items:
        return [
            (type(item).__name__, item.shard.stem, [s.index for s in item.samples] if isinstance(item, Chunk) else [])
            for item in items
        ]


class TestOrder:
    @pytest.mark.parametrize(("workers", "ahead"), [(0, 1), (0, 50), (2, 3)])
    def test_shards_and_samples_keep_their_order(self, shards: list[Shard], workers: int, ahead: int) -> None:
        assert story(shards, workers, ahead) == [
            ("Chunk", "0", list(range(16))),
            ("Chunk", "0", list(range(16, 32))),
            ("Chunk", "0", list(range(32, 40))),
            ("ShardEnd", "0", []),
            ("Chunk", "1", [0, 1, 2]),
            ("ShardEnd", "1", []),
            ("ShardEnd", "2", []),
            ("Chunk", "3", list(range(16))),
            ("Chunk", "3", [16]),
            ("ShardEnd", "3", []),
        ]

    def test_a_shard_ends_with_its_digest_and_its_damage(self, shards: list[Shard]) -> None:
        path = Path(shards[0].url)
        path.write_bytes(path.read_bytes()[:-20_000])
        with pool() as decoder, closing(stream(shards[:1], decoder, 2)) as items:
            *chunks, end = items
        assert isinstance(end, ShardEnd) and end.damage is not None and "breaks off" in end.damage
        assert (end.sha256, end.size) == (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size)
        positions = [chunk.position for chunk in chunks if isinstance(chunk, Chunk)]
        assert positions == sorted(positions) and 0 < positions[-1] <= end.size
        samples = [s for chunk in chunks if isinstance(chunk, Chunk) for s in chunk.samples]
        assert [s.status for s in samples[:-1]] == ["ok"] * (len(samples) - 1)

    def test_only_chosen_samples_are_decoded(self, shards: list[Shard]) -> None:
        def even(shard: Shard, raw: RawSample) -> bool:
            return raw.index % 2 == 0

        with pool() as decoder, closing(stream(shards[:1], decoder, 2, even)) as items:
            chunks = [item for item in items if isinstance(item, Chunk)]
        assert [s.index for chunk in chunks for s in chunk.samples] == list(range(0, 40, 2))
        assert [len(chunk.samples) for chunk in chunks] == [CHUNK_SAMPLES, 4]


class TestFailures:
    def test_a_shard_that_fails_in_the_middle_leaves_the_others(self, shards: list[Shard]) -> None:
        Path(shards[1].url).write_bytes(b"no tar" * 999)
        found = story([shards[0], shards[1], Shard("missing.tar"), shards[3]])
        assert [row[:2] for row in found if row[0] != "Chunk"] == [
            ("ShardEnd", "0"),
            ("ShardFailed", "1"),
            ("ShardFailed", "missing"),
            ("ShardEnd", "3"),
        ]
        assert sum(len(row[2]) for row in found) == 57

    def test_the_failure_names_the_shard(self) -> None:
        with pool() as decoder, closing(stream([Shard("missing.tar")], decoder, 2)) as items:
            [item] = items
        assert isinstance(item, ShardFailed)
        assert item.error == "shard missing.tar cannot be opened: No such file or directory"

    @pytest.mark.parametrize("error", [RuntimeError("the list ends badly"), KeyboardInterrupt("stop")])
    def test_what_goes_wrong_while_reading_reaches_the_consumer(
        self, shards: list[Shard], error: BaseException
    ) -> None:
        def some() -> Iterator[Shard]:
            yield shards[1]
            raise error

        with pool() as decoder, closing(stream(some(), decoder, 2)) as items:
            assert [type(next(items)), type(next(items))] == [Chunk, ShardEnd]
            with pytest.raises(type(error), match=str(error)):
                next(items)
        assert reading_threads() == []

    def test_what_goes_wrong_while_decoding_reaches_the_consumer(self, shards: list[Shard]) -> None:
        def broken(image: object) -> None:
            raise TypeError("a mistake in the preprocessing")

        decoder = DecodePool(0, broken, DecodeOptions())  # type: ignore[arg-type]
        with closing(stream(shards, decoder, 2)) as items, pytest.raises(TypeError, match="a mistake"):
            next(items)


class TestClosing:
    def test_closing_early_stops_the_thread(self, shards: list[Shard]) -> None:
        with pool() as decoder:
            items = stream(shards, decoder, 1)
            assert isinstance(next(items), Chunk)
            assert len(reading_threads()) == 1
            items.close()
        assert reading_threads() == []

    def test_a_consumer_that_fails_stops_the_thread(self, shards: list[Shard]) -> None:
        def consume() -> None:
            with pool() as decoder, closing(stream(shards, decoder, 1)) as items:
                for _ in items:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            consume()
        assert reading_threads() == []

    def test_reading_stays_no_further_ahead_than_asked(self, tmp_path: Path) -> None:
        seen: list[int] = []
        full = threading.Event()

        def select(shard: Shard, raw: RawSample) -> bool:
            seen.append(raw.index)
            if len(seen) == 4 * CHUNK_SAMPLES:
                full.set()
            return True

        path = tmp_path / "x.tar"
        path.write_bytes(tar_bytes(pairs(40 * CHUNK_SAMPLES)))
        with pool() as decoder, closing(stream([Shard(str(path))], decoder, 2, select)) as items:
            next(items)
            assert full.wait(30)  # one was taken, two wait, the fourth is in the reader's hands
            assert len(seen) <= 5 * CHUNK_SAMPLES
