"""The proof that a sample is the one its row was made from."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from noisegate.pipeline.errors import MismatchError, NoisegateError
from noisegate.pipeline.settings import DecodeOptions
from noisegate.trainers.data import WeightedShards
from tests.fakes import Member, picture, tar_bytes
from tests.jobs import score
from tests.trainers import scored_shards as made
from tests.trainers.scored_shards import members, write_scored

EVERYTHING: dict[str, Any] = {"image": made.pixels, "text": made.lengths, "label": True}
OTHER = picture("white", (9, 9))
Change = Callable[[list[Member]], list[Member]]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scored(tmp_path_factory.mktemp("original"), 2, 20)


@pytest.fixture
def scored(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original / "shards", tmp_path / "shards")
    shutil.copytree(original / "run", tmp_path / "run")
    return tmp_path


def change(scored: Path, how: Change) -> None:
    (scored / "shards" / "x-01.tar").write_bytes(tar_bytes(how(members(1, 20))))


def replaced(**new: bytes) -> Change:
    """Parts of sample 0025 with other bytes."""
    return lambda files: [(n, new.get(n.partition(".")[2], d) if n.startswith("0025") else d) for n, d in files]


def load(scored: Path, **settings: Any) -> WeightedShards:
    return WeightedShards(scored / "shards", scored / "run", **{"batch_size": 4, "sampler": "sequential", **settings})


def stopped(scored: Path, **settings: Any) -> str:
    with pytest.raises(MismatchError) as raised:
        list(load(scored, **settings))
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("how", "what"),
    [
        (replaced(png=OTHER), "x-01.tar: sample 0025: the image's bytes have changed"),
        (replaced(txt=b"a caption that nobody scored"), "x-01.tar: sample 0025: the caption's bytes have changed"),
        (replaced(cls=b"3"), "x-01.tar: sample 0025: the label is 3, 0 in the table"),
    ],
)
def test_a_changed_part_stops_with_example_and_rate(scored: Path, how: Change, what: str) -> None:
    change(scored, how)
    message = stopped(scored, **EVERYTHING)
    assert message.startswith("1 of the 24 samples read so far (4.17%) are not what their rows in table")
    assert what in message and "max_mismatch (now 0)" in message


def test_swapped_captions_stop(scored: Path) -> None:
    def swap(files: list[Member]) -> list[Member]:
        texts = {"0025.txt": dict(files)["0026.txt"], "0026.txt": dict(files)["0025.txt"]}
        return [(name, texts.get(name, data)) for name, data in files]

    change(scored, swap)
    message = stopped(scored, **EVERYTHING)
    assert "1 of the 24 samples" in message and "sample 0025: the caption's bytes have changed" in message


def test_what_is_not_delivered_is_not_read(scored: Path) -> None:
    change(scored, replaced(png=OTHER))
    assert sum(len(batch) for batch in load(scored, text=made.lengths)) == 38


def test_a_renamed_key_stops_when_the_shard_is_opened(scored: Path) -> None:
    change(scored, lambda files: [(name.replace("0025", "other"), data) for name, data in files])
    message = stopped(scored)
    assert message.startswith("shard x-01.tar is not the one that was scored: 1 of its table's 20 samples (5.00%)")
    assert "are not in it, such as 0025; 1 are in it and not in the table, such as other" in message


def test_another_shard_under_the_same_name_stops(scored: Path) -> None:
    shutil.copy(scored / "shards" / "x-00.tar", scored / "shards" / "x-01.tar")
    assert "20 of its table's 20 samples (100.00%) are not in it, such as 0020, 0021, 0022;" in stopped(scored)


def test_a_shard_that_breaks_off_stops_and_says_where(scored: Path) -> None:
    path = scored / "shards" / "x-01.tar"
    path.write_bytes(path.read_bytes()[:40_000])
    message = stopped(scored)
    assert "of its table's 20 samples" in message and "the tar breaks off after 40,000 bytes" in message


def test_another_order_of_the_same_samples_is_joined_by_key(scored: Path) -> None:
    change(scored, lambda files: [part for at in range(95, -1, -5) for part in files[at : at + 5]])
    batches = list(load(scored, **EVERYTHING))
    assert [key for batch in batches for key in batch.keys] == [f"{i:04d}" for i in range(40) if i % 20 != 2]
    assert [c for batch in batches for c in batch.captions][-1] == "number 39 is purple"


class TestUpToARate:
    def test_differing_samples_are_dropped_and_counted(self, scored: Path) -> None:
        change(scored, replaced(png=OTHER))
        data = load(scored, **EVERYTHING, max_mismatch=0.03)
        batches = list(data)
        rows = [row for batch in batches for row in batch.rows.tolist()]
        assert rows == [row for row in range(40) if row % 20 != 2 and row != 25]
        assert (data.dropped_samples, data.read_samples) == (1, 38)
        dropped = [problem for batch in batches for problem in batch.dropped]
        assert [(d.row, d.shard, d.key) for d in dropped] == [(25, "x-01.tar", "0025")]

    def test_missing_samples_are_dropped_and_the_others_keep_their_rows(self, scored: Path) -> None:
        change(scored, lambda files: files[10:])
        data = load(scored, **EVERYTHING, max_mismatch=0.06)
        batches = list(data)
        captions = {row: c for batch in batches for row, c in zip(batch.rows.tolist(), batch.captions, strict=True)}
        assert captions[25] == "number 25 is red" and captions[39] == "number 39 is purple"
        assert {row for batch in batches for row in batch.rows.tolist()}.isdisjoint({20, 21})
        assert "in the table, but not in the shard" in str(batches[4].dropped[-1])
        assert data.dropped_samples == 2

    def test_one_more_than_allowed_stops(self, scored: Path) -> None:
        change(scored, lambda files: files[10:])
        message = stopped(scored, **EVERYTHING, max_mismatch=0.04)
        assert "2 of the 2" in message and "(now 0.04)" in message

    def test_counts_begin_again_with_each_epoch(self, scored: Path) -> None:
        change(scored, replaced(png=OTHER))
        data = load(scored, **EVERYTHING, max_mismatch=0.03)
        for _ in range(3):
            list(data)
            assert data.dropped_samples == 1


def test_captions_of_a_json_field_are_proven_as_they_were_scored(tmp_path: Path) -> None:
    def files(caption: str) -> list[Member]:
        return [
            part
            for i in range(4)
            for part in (
                (f"{i}.png", picture("red")),
                (f"{i}.txt", b"not this one"),
                (f"{i}.json", json.dumps({"alt": f"{caption} {i}", "other": f"other {i}"}).encode()),
            )
        ]

    shard = tmp_path / "x.tar"
    shard.write_bytes(tar_bytes(files("red")))
    score([shard], tmp_path / "run", options=DecodeOptions(text_field="alt"))
    data = WeightedShards(shard, tmp_path / "run", batch_size=4, captions="read", sampler="sequential")
    assert next(iter(data)).captions == ["red 0", "red 1", "red 2", "red 3"]
    elsewhere = data.view(text_field="other")
    assert next(iter(elsewhere)).captions[0] == "other 0"
    shard.write_bytes(tar_bytes(files("blue")))
    for late in (data.view(), elsewhere.view()):
        with pytest.raises(MismatchError, match=r"4 of the 4 samples .*: x.tar: sample 0: the caption's bytes have"):
            list(late)


def test_a_worker_sends_the_same_one_line(scored: Path) -> None:
    change(scored, replaced(png=OTHER))
    data = load(scored, **EVERYTHING, workers=1)
    with pytest.raises(NoisegateError, match=r"^1 of the 24 samples read so far \(4.17%\) .*[)]$"):
        list(data)
    data.close()
    write_scored(scored / "later", 1, 4)
    other = WeightedShards(scored / "later" / "shards", scored / "later" / "run", batch_size=2, workers=1)
    (scored / "later" / "shards" / "x-00.tar").unlink()
    with pytest.raises(NoisegateError, match=r"^shard .*x-00.tar cannot be opened: No such file or directory$"):
        list(other)
    other.close()


def test_what_is_asked_for_wrongly_is_no_other_data(original: Path) -> None:
    message = stopped(original, captions="json:titles", text=made.lengths)
    assert "cannot be read as asked: x-00.tar: sample 0000: json field 'titles' is not a list of captions" in message
    assert "check captions, text_field and label_field" in message and "annotate" not in message
