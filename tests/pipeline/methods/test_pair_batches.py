"""Batches of pairs: every row once, never a short one, and settings that cannot work."""

import numpy as np
import pytest

from noisegate.pipeline.methods.crcl import crcl_columns
from noisegate.pipeline.methods.gsl import gsl_columns
from noisegate.pipeline.methods.lnc import lnc_columns
from noisegate.pipeline.methods.pair_batches import permuted_batches
from tests.errors import refused


@pytest.mark.parametrize(("count", "sizes"), [(3, [3]), (4, [4]), (7, [7]), (8, [4, 4]), (13, [4, 4, 5])])
def test_batches_hold_every_row_once_and_are_never_short(count: int, sizes: list[int]) -> None:
    found = list(permuted_batches(count, 4, permutations=2, seed=3))
    assert [(number, len(rows)) for number, rows in found] == [(i, size) for i in (0, 1) for size in sizes]
    for permutation in (0, 1):
        rows = np.concatenate([rows for number, rows in found if number == permutation])
        assert sorted(rows.tolist()) == list(range(count))


@pytest.mark.parametrize("columns", [lnc_columns, crcl_columns, gsl_columns])
@pytest.mark.parametrize(("setting", "value"), [("batch", 1), ("permutations", 0)])
def test_settings_that_cannot_work(columns: object, setting: str, value: int) -> None:
    with refused(setting, value):
        columns(np.eye(4), np.eye(4), **{setting: value})  # type: ignore[operator]


@pytest.mark.parametrize("columns", [lnc_columns, crcl_columns, gsl_columns])
def test_images_and_texts_must_be_pairs(columns: object) -> None:
    with refused("texts", (2, 2)):
        columns(np.zeros((3, 2)), np.zeros((2, 2)))  # type: ignore[operator]
