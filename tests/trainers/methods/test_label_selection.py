"""Label-match and AUM: margins and cuts by hand, and wrong labels found among features around centres."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from noisegate import train
from noisegate.trainers.methods.label_selection import (
    Aum,
    choose_percentile,
    draw_wrong,
    margins,
    says_what_neighbours_say,
)
from tests.errors import refused
from tests.trainers.methods.method_steps import describe, opened
from tests.trainers.methods.test_learning import trained, write_features
from tests.trainers.runs import TARGET, curve, same_weights, settings


def test_margins_are_over_the_best_other_class() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [0.0, 0.0, 0.0]])
    assert margins(logits, torch.tensor([0, 1, 2])).tolist() == [1.0, -2.0, 0.0]


def test_wrong_labels_are_other_rows_in_each_turn() -> None:
    wrong = draw_wrong(100, 9, np.random.default_rng(0))
    assert (wrong >= 0).sum(axis=1).tolist() == [10, 10]
    assert not ((wrong[0] >= 0) & (wrong[1] >= 0)).any()
    assert wrong.max() < 8


def test_aum_is_the_mean_margin_less_the_cut_of_the_known_wrong(scored: Path, tmp_path: Path) -> None:
    """Rows 0-3 are wrong on purpose in the first turn, rows 4-7 in the second; a row counts where it had its own label."""
    with opened(describe(scored, tmp_path, "aum", percentile=50.0)) as steps:
        aum = steps.method
        assert isinstance(aum, Aum)
        aum.wrong[:] = -1
        aum.wrong[0, :4] = aum.wrong[1, 4:8] = 0
        aum.total[:], aum.count[:] = 6.0, 2.0
        aum.total[0, :4], aum.total[1, 4:8] = [2.0, 4.0, 6.0, 100.0], 8.0  # means 1, 2, 3, 50: median 2.5; and 4
        aum.total[0, 8], aum.count[:, 9] = 2.0, 0.0
        aum._select(steps.context)
    assert aum.aum[10] == pytest.approx((3 - 2.5 + 3 - 4) / 2), "the mean of both turns"
    assert aum.aum[0] == pytest.approx(3 - 4) and aum.aum[4] == pytest.approx(3 - 2.5)
    assert aum.aum[8] == pytest.approx((1 - 2.5 + 3 - 4) / 2)
    assert np.isnan(aum.aum[9]) and aum.clean[9], "never seen: as given"
    assert aum.clean.tolist()[:9] == [False] * 4 + [True] * 4 + [False]


def test_a_cut_that_loses_most_right_labels_gives_way_to_the_median() -> None:
    """Of 100 others 40 are as the known-wrong ones, one to a hundred, so half of them are below their median."""
    known = np.arange(100.0).astype(np.float32)
    alike = np.linspace(0, 99, 40)
    for right, expected in (
        (np.full(60, 120.0), 99.0),
        (np.full(60, 90.0), 50.0),
        (np.r_[np.full(31, 120.0), np.full(29, 60.0)], 99.0),
    ):
        others = np.r_[alike, right, np.nan].astype(np.float32)
        assert choose_percentile([known, known], [others, others]) == expected
    assert choose_percentile([known[:0]], [known]) == 99.0, "no known-wrong sample, nothing to judge by"


def test_known_wrong_labels_are_learnt_as_others(scored: Path, tmp_path: Path) -> None:
    with opened(describe(scored, tmp_path, "aum")) as steps:
        aum = steps.method
        assert isinstance(aum, Aum)
        steps.go_to(0)
        batch = steps.batches["all"]
        aum.wrong[0] = 3
        loss, _ = steps.step(None)
        assert batch.labels is not None
        labels = torch.where(batch.labels <= 3, 4, 3)
        seen = steps.context.observe(batch)
        assert seen.logits is not None
        assert loss == pytest.approx(float(torch.nn.functional.cross_entropy(seen.logits, labels)), rel=1e-5)


def test_label_match_keeps_what_the_network_says_itself(scored: Path, tmp_path: Path) -> None:
    with opened(describe(scored, tmp_path, "label_match", guard=False)) as steps:
        steps.go_to(0)
        columns = steps.method.sample_columns()
        given = steps.context.column("label")
        assert columns["clean"].tolist() == (columns["predicted_label"] == given).tolist()
        assert set(steps.batches["all"].rows.tolist()) <= set(np.flatnonzero(columns["clean"]).tolist())


@pytest.mark.parametrize(("name", "how"), [("label_match", {}), ("deft", {"warmup": None})])
def test_a_network_that_does_not_know_the_classes_selects_nothing(
    name: str, how: dict[str, None], scored: Path, tmp_path: Path
) -> None:
    """An untrained network: the steps are those of plain training, up to the last epoch."""
    baseline = {**describe(scored, tmp_path, name), "method": {"name": "baseline"}}
    with opened(describe(scored, tmp_path, name, **how)) as steps, opened(baseline) as plain:
        for one in (steps, plain):
            one.go_to(2)
        assert steps.batches["all"].rows.tolist() == plain.batches["all"].rows.tolist()
        assert steps.step(None)[0] == plain.step(None)[0]
        assert steps.method.sample_columns() == {}


def test_what_the_network_and_the_neighbours_say_is_compared_by_hand(scored: Path, tmp_path: Path) -> None:
    """Two directions of ten samples, three labels of each wrong: among any five neighbours the right label is ahead."""
    along = np.arange(10) / 100
    vectors = np.stack([np.r_[np.ones(10), along], np.r_[along, np.ones(10)]], axis=1)
    truth, labels = np.repeat([0.0, 1.0], 10), np.repeat([0.0, 1.0], 10)
    labels[[0, 4, 9, 10, 14, 19]] = 1 - labels[[0, 4, 9, 10, 14, 19]]
    unknown = np.full((1, 2), np.nan)
    measured = {"vectors": np.r_[vectors, unknown].astype(np.float32), "labels": np.r_[labels, 0]}
    with opened(describe(scored, tmp_path, "label_match")) as steps:
        for right, known in ((20, True), (14, True), (13, False)):
            predicted = np.r_[truth[:right], 1 - truth[right:], 0]
            assert says_what_neighbours_say({**measured, "predicted": predicted}, steps.context) == known


def test_aum_finds_wrong_labels_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    """Two labels in five are wrong; of those it keeps right ones are 0.6 before."""
    truth, given = write_features(tmp_path / "train.tar", 640, 0.4, seed=1)
    write_features(tmp_path / "held.tar", 200, 0.0, seed=2)
    result = trained(tmp_path, tmp_path / "runs", name="aum", percentile=90.0)
    clean, right = result.sample_columns["clean"], truth == given
    assert right[clean].mean() > 0.8 and clean[right].mean() > 0.5
    again = train(result.folder / "config.yaml", settings=["loop.max_steps=50"], quiet=True)
    rest = train(resume=again.folder, settings=["loop.max_steps=null"], quiet=True)
    assert same_weights(result.folder / "last.safetensors", rest.folder / "last.safetensors")


def test_margins_of_both_turns_are_noted_at_a_high_learning_rate(scored: Path, tmp_path: Path) -> None:
    """Each turn is an epoch of five updates here; the second has the schedule of the three epochs that are left."""
    target = {**TARGET, "classes": str(scored / "clean" / "classes.txt")}
    tree = settings(scored, tmp_path, "aum", target=target, task={"name": "classification"}, loop__epochs=4)
    rates = [rate for (rate,) in curve(train(tree, quiet=True).folder, "lr")]
    first, second = rates[:5], rates[5:10]
    assert second == pytest.approx([5e-4 * (1 + math.cos(math.pi * step / 15)) for step in range(5)])
    assert min(first) > min(second) > 0.8e-3


def test_two_turns_must_leave_epochs(scored: Path, tmp_path: Path) -> None:
    with refused("method.warmup", 2), opened(describe(scored, tmp_path, "aum", warmup=2)):
        pass
