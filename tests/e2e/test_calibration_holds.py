"""What clean_probability promises holds on pairs it has not seen."""

from pathlib import Path

import numpy as np
import pytest

from noisegate.pipeline.pairs.calibration import QUALITY, PairCalibration
from noisegate.pipeline.pairs.pair_pool import read_pool
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from tests.embeddings import Rows, scored

COPIES = (10, 20)  # of each scene, blurred in its own way; more to check with, so that chance decides little
ENOUGH = 100  # pairs in a decile, where chance moves its share by .05 (one standard error) at most; it is allowed two


@pytest.fixture(scope="module")
def halves(labelled_run: Path) -> list[tuple[Rows, Rows]]:
    """Images and texts of two disjoint halves of the scenes, blurred so that some pairs are hard to tell.

    The embedded model parts right from shuffled captions so well that hardly any pair would be in doubt.
    """
    run, rng = RunFolder(labelled_run / "tables"), np.random.default_rng(2)
    sides = []
    for part in ("image", "text"):
        rows = np.concatenate([read_embeddings(run.embeddings(stem), part) for stem in run.stems()])
        sides.append(rows)
    found = []
    for half, copies in zip(rng.permutation(len(sides[0])).reshape(2, -1), COPIES, strict=True):
        many = np.tile(half, copies)
        blurred = [rows[many] + 0.15 * rng.standard_normal((len(many), rows.shape[1])) for rows in sides]
        images, texts = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in blurred)
        found.append((images.astype(np.float32), texts.astype(np.float32)))
    return found


@pytest.mark.parametrize("rate", [0.05, 0.6])
def test_each_decile_holds_as_many_clean_pairs_as_it_says(
    rate: float, halves: list[tuple[Rows, Rows]], tmp_path: Path
) -> None:
    rng = np.random.default_rng(int(100 * rate))
    shuffled = []
    for (images, texts), copies in zip(halves, COPIES, strict=True):
        chosen = rng.permutation(len(texts))[: int(rate * len(texts))]
        order = np.arange(len(texts))
        order[chosen] = np.roll(chosen, 1)
        scene = np.arange(len(texts)) % (len(texts) // copies)
        shuffled.append((images, texts[order], scene[order] != scene))
    (images, texts, seen), (new_images, new_texts, unseen) = shuffled
    scored(tmp_path, images, texts)
    calibration = PairCalibration.from_dict(read_metadata(tmp_path / "out" / "images.parquet")["calibration"])
    low, high = calibration.noise_interval
    assert low <= seen.mean() <= high
    score = (new_images * new_texts).sum(axis=1)
    if calibration.score == QUALITY:
        pool = read_pool(RunFolder(tmp_path / "out"))
        assert pool is not None
        score = pool.quality(new_images, new_texts, score)
    probability = calibration.clean_probability(score)
    decile = np.minimum((probability * 10).astype(int), 9)
    judged = [i for i in range(10) if (decile == i).sum() >= ENOUGH]
    assert len(judged) >= 4  # the ends and some between
    for i in judged:
        clean = ~unseen[decile == i]
        slack = 0.05 + 2 * np.sqrt((i + 0.5) / 10 * (9.5 - i) / 10 / len(clean))
        assert i / 10 - slack <= clean.mean() <= (i + 1) / 10 + slack, (i, clean.mean(), len(clean))
