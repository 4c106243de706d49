"""What all tests share: examples that never change, a cache folder of their own, drawn scenes and small shards."""

import os
from collections.abc import Iterator
from pathlib import Path

# before numpy and torch are loaded: with a test process on every core, threads of BLAS and OpenMP only wait for each other
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from noisegate.pipeline.datasets.scenes import write_scenes
from tests.fakes import pairs, write_tar

# the same examples on every machine and every run; no deadline, because machines are busy
settings.register_profile("noisegate", derandomize=True, deadline=None)
settings.load_profile("noisegate")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes what the user's own runs remember; processes that tests start inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 120 drawn scenes in three shards; tests only read it."""
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, 120, 3, seed=5, size=32)
    return folder


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Three shards of six good samples each."""
    for i in range(3):
        write_tar(tmp_path / "shards" / f"x-{i:02d}.tar", pairs(6, 10 * i))
    return tmp_path / "shards"
