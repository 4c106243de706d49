"""When labels are repaired: the signs of noise one at a time, tables of names worked by hand, and texts that object."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisegate.pipeline.labels.pool import Pool, fit_pool
from noisegate.pipeline.labels.repair import (
    NAMES,
    NoiseEvidence,
    disputed_changes,
    gather_evidence,
    open_names,
    vouched_changes,
    withheld_changes,
)

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


def labelled(table: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Labels and repaired ones of a table of counts [given, repaired]."""
    counts = np.array(table)
    pairs = np.repeat(np.arange(counts.size), counts.ravel())
    return pairs // len(counts), pairs % len(counts)


@pytest.mark.parametrize(
    ("table", "still"),
    [
        ([[80, 20], [20, 80]], []),
        ([[60, 40], [40, 60]], [(0, 1), (1, 0)]),  # or 60 % are wrong, and the names are exchanged
        ([[70, 28], [30, 72]], [(0, 1), (1, 0)]),  # as 38 % of a hundred may be 29 %
        ([[700, 280], [300, 720]], []),  # but not of a thousand
        ([[55, 24], [45, 80]], [(0, 1), (1, 0)]),  # one name is in doubt, and with it the one it would be exchanged for
        ([[55, 10], [45, 90]], [(1, 0)]),  # but nine of ten are not called by another name
        ([[90, 0, 30], [30, 100, 0], [0, 50, 60]], [(0, 2), (1, 0), (2, 1)]),  # a ring of three
        ([[90, 0, 30], [30, 100, 0], [0, 0, 60]], [(0, 2)]),  # no ring: 30 of 60 are in doubt, 30 of 90 not
        ([[900, 4], [300, 20]], [(1, 0)]),  # nothing much would be left of name 1
        ([[0, 5], [0, 90]], [(0, 1)]),
    ],
)
def test_names_in_doubt(table: list[list[int]], still: list[tuple[int, int]]) -> None:
    y, repaired = labelled(table)
    expected = np.zeros_like(table, dtype=bool)
    for change in still:
        expected[change] = True
    assert (open_names(y, repaired, len(table)) == expected).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(0, 10**6))
def test_what_classes_are_called_does_not_matter(classes: int, seed: int) -> None:
    """Names in another order are in doubt in that order, and a change that nobody makes is never in doubt."""
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 40, (classes, classes)) * (rng.random((classes, classes)) < 0.6) + 60 * np.eye(
        classes, dtype=int
    )
    y, repaired = labelled(table.tolist())
    order = rng.permutation(classes)
    found = open_names(y, repaired, classes)
    assert (open_names(order[y], order[repaired], classes)[np.ix_(order, order)] == found).all()
    assert not found[table == 0].any() and not np.diag(found).any()


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.floats(0.5, 0.62), st.integers(30, 400), st.integers(0, 10**6))
def test_a_ring_that_moved_is_left_alone(classes: int, rate: float, members: int, seed: int) -> None:
    """So many of each class are called the next one; the repair believes them."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(classes), members)
    y = np.where(rng.random(len(truth)) < rate, (truth + 1) % classes, truth)
    repaired = (truth + 1) % classes
    kept = np.where(open_names(y, repaired, classes)[y, repaired], y, repaired)
    assert (kept == y).all()


@pytest.mark.parametrize(
    ("kept", "changed", "for_given", "stopped"),
    [
        (30, 20, 20, True),
        (60, 60, 41, True),
        (60, 60, 40, False),  # not more than twice as many
        (30, 3, 3, False),  # and three to nothing may be chance
        (90, 20, 20, True),  # a rare label as well: nine tenths may have the other's name
    ],
)
def test_texts_stop_changes_against_which_they_speak(kept: int, changed: int, for_given: int, stopped: bool) -> None:
    """`changed` rows go from class 1 to class 0, in which `kept` rows stay; so many texts are for class 1."""
    y = np.repeat([0, 1], [kept, changed])
    favours = np.concatenate([np.zeros(kept, int), np.repeat([1, 0], [for_given, changed - for_given])])
    votes = np.log(np.eye(3)[favours] * 0.7 + 0.1)[None]
    found = disputed_changes(votes, y, np.zeros(len(y), int))
    expected = np.zeros((3, 3), dtype=bool)
    expected[1, 0] = stopped
    assert (found == expected).all()
    assert not disputed_changes(votes[:0], y, np.zeros(len(y), int)).any()  # no texts, no dispute


def favouring(names: np.ndarray, classes: int) -> np.ndarray:
    """Log votes (1, n, C) of texts for these names."""
    return np.log(np.eye(classes)[names] * 0.7 + 0.1)[None]


@pytest.mark.parametrize("agreeing", [NAMES, NAMES - 1])
def test_texts_vouch_for_names_if_they_agree_on_many(agreeing: int) -> None:
    """40 % of each class are called the next; the texts name so many classes as most labels do, and the others wrongly."""
    classes = NAMES + 4
    truth = np.repeat(np.arange(classes), 50)
    y = np.where(np.arange(len(truth)) % 5 < 2, (truth + 1) % classes, truth)
    texts = favouring(np.where(truth < agreeing, truth, (truth + 5) % classes), classes)
    assert open_names(y, truth, classes)[y, truth].sum() == (y != truth).sum()
    vouched = vouched_changes(texts, y, truth)
    assert vouched[y, truth].sum() == (20 * agreeing if agreeing == NAMES else 0)
    assert (withheld_changes(texts, y, truth)[y, truth] == ((y != truth) & ~vouched[y, truth])).all()
    most = favouring(np.where(truth < classes // 2, truth, (truth + 5) % classes), classes)
    assert not vouched_changes(most, y, truth).any()


def test_without_texts_only_labels_speak() -> None:
    y, repaired = labelled([[60, 40], [20, 80]])
    nothing = np.zeros((0, len(y), 2))
    assert not vouched_changes(nothing, y, repaired).any()
    assert (withheld_changes(nothing, y, repaired) == open_names(y, repaired, 2)).all()


@pytest.mark.parametrize(("against", "stopped"), [(20, False), (40, True)])
def test_texts_that_stop_many_changes_stop_all(against: int, stopped: bool) -> None:
    """Of the changes to class 0, those from class 1 are what the texts speak against; 60 from class 2 are what they favour."""
    y, repaired = np.repeat([[0, 1, 2, 1, 2], [0, 0, 0, 1, 2]], [300, against, 60, 100, 100], axis=1)
    texts = favouring(np.where(y == 1, 1, repaired), 3)
    expected = np.zeros((3, 3), dtype=bool)
    expected[1, 0] = True
    assert (disputed_changes(texts, y, repaired) == expected).all()
    assert withheld_changes(texts, y, repaired)[2, 0] == stopped
