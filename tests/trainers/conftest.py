"""Data that several tests of training only read, and one thread, so that sums come out the same everywhere."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.trainers.runs import write_data


@pytest.fixture(scope="session")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`clean`, `noisy`, `tables` and `held` (see `write_data`)."""
    return write_data(tmp_path_factory.mktemp("scored"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
