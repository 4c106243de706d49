"""Samples held in memory are those that reading gives, and are read once."""

from pathlib import Path

from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.trainers.data import WeightedShards
from noisegate.trainers.targets.pictures import PictureTransform
from tests.errors import refused
from tests.trainers.scored_shards import flat, lengths, with_noise, write_scored


def test_batches_are_those_that_reading_gives_and_the_next_epoch_reads_nothing(tmp_path: Path) -> None:
    data = write_scored(tmp_path)
    shards = sorted((data / "shards").glob("*.tar"))
    plain = WeightedShards(
        shards, data / "run", batch_size=4, columns=("similarity",), image=PictureTransform(Preprocess(size=6)), text=lengths,
        label=True, seed=3, drop_last=False,
    )  # fmt: skip
    kept = plain.view(keep_decoded=True)
    expected = [[flat(batch) for batch in plain] for _ in range(2)]
    assert [flat(batch) for batch in kept] == expected[0]
    for path in shards:
        path.write_bytes(b"")  # files that are open see it too: nothing can be read any more
    assert [flat(batch) for batch in kept] == expected[1]
    kept.close()
    plain.close()


def test_what_is_drawn_anew_in_each_epoch_cannot_be_kept(tmp_path: Path) -> None:
    data = write_scored(tmp_path, shards=1)
    with refused("keep_decoded", True):
        WeightedShards(None, data / "run", batch_size=4, image=with_noise, keep_decoded=True)
    with refused("captions", "json:captions"):
        WeightedShards(None, data / "run", batch_size=4, captions="json:captions", keep_decoded=True)
