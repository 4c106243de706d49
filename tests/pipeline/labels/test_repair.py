"""The rule of the repair, worked by hand."""

import numpy as np
import pytest

from noisegate.pipeline.labels.repair import RepairPolicy
from noisegate.pipeline.settings import REPAIRS, ScoreSettings
from tests.errors import refused

POSTERIOR = np.array([[0.3, 0.7, 0.0], [0.3, 0.45, 0.25], [0.3, 0.39, 0.31], [0.5, 0.5, 0.0], [0.9, 0.1, 0.0]])
LABELS = np.array([0, 0, 0, 0, 1])


@pytest.mark.parametrize(
    ("repair", "changed"),
    [("never", [0, 0, 0, 0, 1]), ("sure", [1, 1, 1, 0, 0]), ("likely", [1, 1, 1, 0, 0])],
)
def test_a_label_is_changed_where_right_labels_are_expected_to_be_gained(repair: str, changed: list[int]) -> None:
    assert RepairPolicy(repair).repair_labels(POSTERIOR, LABELS, shown=True).tolist() == changed


@pytest.mark.parametrize("repair", REPAIRS)
def test_only_likely_changes_labels_where_noise_is_not_shown(repair: str) -> None:
    changed = RepairPolicy(repair).repair_labels(POSTERIOR, LABELS, shown=False) != LABELS
    assert changed.tolist() == [repair == "likely"] * 3 + [False, repair == "likely"]


def test_changes_of_a_run_must_gain_enough() -> None:
    """By hand: the first three and the last of these labels would be changed, and gain 0.4 + 0.15 + 0.09 + 0.8 = 1.44."""
    assert RepairPolicy(gain=0.35).gains_enough(POSTERIOR, LABELS)
    assert not RepairPolicy(gain=0.37).gains_enough(POSTERIOR, LABELS)
    assert RepairPolicy().gains_enough(POSTERIOR[4:], np.array([0]))  # nothing to change


def test_no_row_is_no_change() -> None:
    assert len(RepairPolicy().repair_labels(np.zeros((0, 3)), np.zeros(0, np.int64), shown=True)) == 0


def test_an_unknown_repair_is_refused() -> None:
    with refused("repair", "always"):
        ScoreSettings(repair="always")
