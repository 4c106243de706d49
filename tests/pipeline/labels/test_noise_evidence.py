"""When disagreement counts as noise: the signs one at a time, and what is gathered by hand-worked cases."""

import numpy as np
import pytest

from noisegate.pipeline.labels.noise_evidence import NoiseEvidence, gather_evidence
from noisegate.pipeline.labels.pool import Pool, fit_pool

NOTHING = NoiseEvidence(
    claimed=0.3, least=0.2, assured=200, members=200, doubt=0.2, whole=-5, beyond=-1, likeliest=0.25, rival=0.05
)
SURE = NOTHING._replace(doubt=0.03, least=0.29)
LIKELY = NOTHING._replace(whole=3, beyond=9, members=400)


def test_nothing_is_shown_by_disagreement_alone() -> None:
    assert (NOTHING.shown, NOTHING.belief) == (False, 0)


@pytest.mark.parametrize(
    ("change", "sure"),
    [
        ({}, True),
        ({"doubt": 0.1}, False),  # the predictions doubt too much to blame the labels
        ({"least": 0.1}, False),  # the surest ones agree with their labels
        ({"least": 0.55}, False),
        ({"members": 10}, False),
        ({"assured": 4}, False),  # 29 % of four rows is nothing sure
        ({"claimed": 0.6, "least": 0.6}, True),  # most labels are wrong, but each in another way
        ({"claimed": 0.6, "least": 0.6, "rival": 0.3}, False),  # or is the commonest wrong one the right one?
    ],
)
def test_sure_predictions(change: dict[str, float], sure: bool) -> None:
    found = SURE._replace(**change)
    assert (found.sure_predictions, found.shown, found.belief) == (sure, sure, float(sure))


@pytest.mark.parametrize(
    ("change", "likely"),
    [
        ({}, True),
        ({"whole": 1}, False),  # some noise is likely, but not so much
        ({"beyond": 7}, False),
        ({"beyond": 7, "whole": 7}, False),
        ({"claimed": 0.5}, False),
        ({"least": 0.33}, False),  # the surest are the least right: no model of noise
        ({"least": 0.33, "whole": 20, "beyond": 20}, True),  # unless by chance, and beyond all doubt
        ({"members": 100}, False),  # some of it is likely, and T is learned from few labels
        ({"members": 100, "beyond": 17}, True),
        ({"members": 100, "whole": 9}, True),  # unless all of it is likely
        ({"members": 50, "whole": 9}, False),
        ({"members": 50, "whole": 12}, True),
    ],
)
def test_likelihood(change: dict[str, float], likely: bool) -> None:
    found = LIKELY._replace(**change)
    assert (found.likelihood, found.shown) == (likely, likely)


def test_a_hint_is_believed_in_part_and_repairs_nothing() -> None:
    hint = NOTHING._replace(whole=1, beyond=4)
    assert (hint.shown, hint.belief) == (False, 0.25)
    assert hint._replace(beyond=2).belief == 0


def test_what_is_gathered() -> None:
    """Two classes of ten rows each, known for certain but for one wrong label in each."""
    y = np.repeat([0, 1], 10)
    votes = np.log(np.eye(2)[y] * 0.98 + 0.01)[None]
    y[[0, 10]] = [1, 0]
    noise = np.array([[0.9, 0.1], [0.1, 0.9]])
    fixed = Pool(np.ones(1), np.zeros(2), noise, 0.0)
    blind = Pool(np.ones(1), np.zeros(2), np.eye(2), 0.0)
    found = gather_evidence(0.1, blind, {1.0: fixed}, votes, y)
    assert (found.claimed, found.members, found.assured, found.likeliest) == (0.1, 10, 2, 1.0)
    assert found.doubt == pytest.approx(0.01)
    assert found.rival == pytest.approx(0.1)  # of the ten rows that are equally sure, one has the other label
    right, wrong = np.log(0.9 * 0.99 + 0.1 * 0.01), np.log(0.9 * 0.01 + 0.1 * 0.99)
    gain = np.where(np.isin(np.arange(20), [0, 10]), wrong - np.log(0.01), right - np.log(0.99))
    assert found.whole == found.beyond == pytest.approx(gain.mean() / (gain.std() / np.sqrt(20)))
    assert fixed.log_likelihood(votes, y)[0] == pytest.approx(wrong)


def test_pool_finds_the_weight_of_the_source_that_knows() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 3000)
    knowing = np.log(0.7 * np.eye(3)[truth] + 0.1)
    y = np.array([rng.choice(3, p=p) for p in np.exp(knowing)])  # labels are drawn from its shares, so its weight is 1
    pool = fit_pool(np.stack([knowing, np.log(rng.dirichlet(np.ones(3), 3000))]), y, np.eye(3))
    assert pool.weights == pytest.approx([1, 0], abs=0.06)
