"""Data that several tests of training only read, and one thread, so that sums come out the same everywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from noisegate import TrainResult, train
from tests.trainers.runs import settings, write_data


@pytest.fixture(scope="session")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`clean`, `noisy`, `tables` and `held` (see `write_data`)."""
    return write_data(tmp_path_factory.mktemp("scored"))


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_thread() -> Iterator[None]:
    with _one_thread():
        yield


@pytest.fixture(scope="session")
def baseline(scored: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A finished run of one epoch by `baseline`, for tests that compare with it."""
    with _one_thread():
        return train(settings(scored, tmp_path_factory.mktemp("baseline"), "baseline", loop__epochs=1), quiet=True)
