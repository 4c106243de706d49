"""The first readable pairs of shards."""

from pathlib import Path

import numpy as np

from noisegate.pipeline.pairs.pair_fit import sample_first_pairs
from noisegate.pipeline.shards.locate import Shard
from tests.errors import refused
from tests.fakes import estimator, pairs, picture, write_tar


def test_another_field_is_read(tmp_path: Path) -> None:
    files = [
        part
        for i in range(3)
        for part in ((f"{i}.png", picture((222, 36, 36))), (f"{i}.json", b'{"title": "an apple"}'))
    ]
    shards = [Shard(str(write_tar(tmp_path / "a.tar", files)))]
    assert len(sample_first_pairs(shards, estimator(), 25, workers=0, text_field="title").given) == 3
    with refused("shards", shards[0].url) as caught:
        sample_first_pairs(shards, estimator(), 25, workers=0)
    assert "no part txt and no caption or text in json" in str(caught.value)
    with refused("samples", 0):
        sample_first_pairs(shards, estimator(), 0, workers=0)


def test_what_cannot_be_read_is_skipped(tmp_path: Path) -> None:
    files = [("x.png", b"broken"), ("x.txt", b"a"), ("y.png", picture((222, 36, 36)))]
    shards = [Shard("missing.tar"), Shard(str(write_tar(tmp_path / "a.tar", files))), Shard(str(tmp_path / "b.tar"))]
    write_tar(tmp_path / "b.tar", pairs(30))
    model = estimator(batch_size=4)
    found = sample_first_pairs(shards, model, 25, workers=0)
    assert len(found.given) == 25 and np.all(np.abs(found.given) <= 1)
    again = sample_first_pairs(shards, model, 25, workers=0)
    assert np.array_equal(found.given, again.given) and np.array_equal(found.mismatched, again.mismatched)
    with refused("shards", "missing.tar"):
        sample_first_pairs(shards[:2], model, 25, workers=0)
