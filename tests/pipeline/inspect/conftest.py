"""Runs that several test modules look at."""

from pathlib import Path

import numpy as np
import pytest

from noisegate.pipeline.rescore import score_embeddings


@pytest.fixture(scope="session")
def array_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs from arrays, a third of the pairs mismatched: `joint` in one space, `apart` with texts of another width."""
    folder, rng = tmp_path_factory.mktemp("arrays"), np.random.default_rng(0)
    images = rng.standard_normal((300, 16)).astype(np.float32)
    texts = images + 0.3 * rng.standard_normal((300, 16)).astype(np.float32)
    texts[::3] = rng.permutation(texts[::3])
    np.save(folder / "i.npy", images)
    for name, captions in (("joint", texts), ("apart", texts[:, :9])):
        np.save(folder / "t.npy", captions)
        score_embeddings(folder / name, folder / "i.npy", texts=folder / "t.npy")
    return folder
