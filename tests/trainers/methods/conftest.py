"""Small networks learn faster on one thread."""

import pytest


@pytest.fixture(autouse=True)
def _always_one_thread(one_thread: None) -> None:
    """For every test here."""
