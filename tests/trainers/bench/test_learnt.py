"""What methods say of the samples, against a truth of eight."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noisegate.trainers.bench.learnt import judge_learnt, kept_by

NOISY = [True, True, True, False, False, False, False, False]
CLEAN_LABEL = [0, 1, 2, 0, 1, 2, 0, None]


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    path = tmp_path / "noise.parquet"
    pq.write_table(pa.table({"noisy": NOISY, "clean_label": pa.array(CLEAN_LABEL, pa.int32())}), path)
    return path


def test_noise_is_the_positive_class(truth: Path) -> None:
    clean = np.array([False, False, True, False, True, True, True, True])  # rejects 3: two of them rightly, of 3
    found = judge_learnt({"clean": clean}, truth)
    assert found == pytest.approx({"noise_precision": 200 / 3, "noise_recall": 200 / 3, "noise_f1": 200 / 3})


def test_repaired_labels_are_counted_where_the_right_one_is_known(truth: Path) -> None:
    refined = np.array([0, 1, 0, 0, 1, 2, 1, 5])  # right: 0, 1, 3, 4, 5 of the seven known
    assert judge_learnt({"refined_label": refined}, truth) == pytest.approx({"relabel_accuracy": 500 / 7})


def test_weights_and_probabilities_are_judgements_too() -> None:
    np.testing.assert_array_equal(kept_by({"osa_weight": np.array([0.0, 0.1])}), [False, True])
    np.testing.assert_array_equal(kept_by({"gsl_probability": np.array([0.4, 0.6, np.nan])}), [False, True, True])
    np.testing.assert_array_equal(
        kept_by({"clean": np.array([1, 0]), "x_probability": np.array([0, 1])}), [True, False]
    )
    assert kept_by({"crcl_label": np.array([0.4])}) is None


def test_nothing_learnt_is_nothing_told(truth: Path) -> None:
    assert judge_learnt({}, truth) == {}
    assert "noise_precision" not in judge_learnt({"clean": np.ones(8, bool)}, truth)  # nothing rejected: 0 / 0
