"""Votes that are counted through a file are those that are counted in memory."""

import numpy as np
import pytest

from noisegate.pipeline.labels.tango.row_votes import RowVotes


@pytest.mark.parametrize("held", [1000, 40, 7, 1])
def test_any_number_of_spans_counts_what_a_loop_counts(held: int) -> None:
    rng = np.random.default_rng(held)
    weight, wanted = np.array([1.0, 0.5, 0.25]), np.zeros((23, 3))
    votes = RowVotes(23, weight, 100, held)
    for _ in range(5):
        row, choice = rng.integers(0, 23, 20), rng.integers(0, 3, 20)
        votes.add(row, choice)
        np.add.at(wanted, (row, choice), weight[choice])
    for start in range(0, 23, 4):
        part = slice(start, min(start + 4, 23))
        np.testing.assert_array_equal(votes[part].toarray(), wanted[part])
    np.testing.assert_array_equal(votes[slice(0, 23)].toarray(), wanted)


def test_rows_without_votes_have_none() -> None:
    votes = RowVotes(5, np.ones(2), 0)
    votes.add(np.empty(0, np.int64), np.empty(0, np.int64))
    assert votes[slice(1, 5)].toarray().tolist() == [[0, 0]] * 4
