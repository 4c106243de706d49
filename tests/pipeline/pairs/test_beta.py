"""β by every mode, its cache, and the chance law of cosines."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from noisegate.pipeline.estimators.base import Identity
from noisegate.pipeline.pairs.beta import (
    Beta,
    PairSample,
    beta_cache_file,
    cached_beta,
    chance_within,
    estimate_beta,
    mismatch_pairs,
)
from noisegate.pipeline.settings import check_beta_mode
from tests.errors import refused

BETA = Beta(0.1 + 0.2, "random_inputs", "β", 0.024, 65536, 3, (0.29, 0.31))
MODEL = Identity("m", "sha", "p", "d", "float32", (("torch", "2"),))


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def sample(given: float, mismatched: float, count: int = 400) -> PairSample:
    rng = np.random.default_rng(0)
    return PairSample(rng.normal(given, 0.03, count), rng.normal(mismatched, 0.03, count))


def test_auto_takes_random_inputs_only_inside_a_cone() -> None:
    cone = estimate_beta(pairs=sample(0.30, 0.15), random_inputs=lambda: Beta(0.215, "random_inputs"))
    assert (cone.value, cone.mode) == (0.215, "random_inputs")
    assert cone.reason.startswith("the model has a cone")
    flat = estimate_beta(pairs=sample(0.30, 0.0), random_inputs=lambda: Beta(0.0, "random_inputs"))
    assert flat.mode == "intersection"
    assert 0.05 < flat.value < 0.25


def test_auto_makes_do_with_what_there_is() -> None:
    few = sample(0.3, 0.1, 5)
    assert estimate_beta(pairs=few, random_inputs=lambda: BETA).mode == "random_inputs"
    assert estimate_beta(pairs=sample(0.3, 0.1)).reason.startswith("embeddings alone")


def test_the_shuffled_mean_has_an_interval_around_it() -> None:
    beta = estimate_beta(pairs=sample(0.3, 0.1), mode="shuffled_mean")
    assert beta.value == pytest.approx(0.1, abs=0.01)
    assert beta.interval is not None
    assert beta.interval[0] < beta.value < beta.interval[1]


@pytest.mark.parametrize("mode", ["high", "fixed:VALUE", "fixed:", "fixed:x"])
def test_an_unknown_mode_is_refused(mode: str) -> None:
    with refused("beta", mode):
        check_beta_mode(mode)


def test_a_value_that_is_no_cosine_is_refused() -> None:
    with refused("beta", 7.0):
        check_beta_mode("fixed:7")


def test_modes_that_need_data_are_refused_without_any() -> None:
    assert check_beta_mode("intersection") == "intersection"
    for mode in ("intersection", "shuffled_mean"):
        with refused("beta", mode):
            check_beta_mode(mode, has_data=False)
        with refused("beta", mode):
            estimate_beta(mode=mode)
        with refused("beta", mode):
            estimate_beta(mode=mode, pairs=PairSample(np.zeros(1), np.zeros(0)))


def test_what_a_mode_lacks_is_said() -> None:
    with refused("beta", "random_inputs"):
        estimate_beta(mode="random_inputs")
    with refused("beta", "auto"):
        estimate_beta()
    with refused("beta", "auto"):
        estimate_beta(pairs=sample(0.3, 0.1, 5))
    with refused("beta", "auto") as caught:
        estimate_beta(images=np.ones((30, 2)), texts=np.ones((30, 2)))
    assert "only 0 can be made of 30 pairs" in str(caught.value)
    with refused("texts", (2, 3)):
        estimate_beta(images=np.eye(2), texts=np.ones((2, 3)))


def test_mismatched_pairs_are_never_given_pairs_nor_equal_to_them() -> None:
    images = np.eye(6)
    texts = images[[0, 0, 2, 3, 4, 5]]  # the first two captions are the same
    rows, partners = mismatch_pairs(images, texts, np.random.default_rng(0), rounds=5)
    assert (rows != partners).all()
    assert (texts[rows] != texts[partners]).any(axis=1).all()
    assert len(rows) == 6 * 5 - 2


# --- the cache ----------------------------------------------------------------------------------------------------------


def counted() -> tuple[Callable[[], Beta], list[int]]:
    calls: list[int] = []

    def compute() -> Beta:
        calls.append(1)
        return BETA

    return compute, calls


def test_it_is_computed_once_and_comes_back_the_same() -> None:
    compute, calls = counted()
    assert cached_beta(MODEL, 3, compute) == cached_beta(MODEL, 3, compute) == BETA
    assert len(calls) == 1


def test_another_scorer_or_seed_has_its_own() -> None:
    compute, calls = counted()
    other = Identity("m", "sha", "p", "d", "bfloat16", (("torch", "2"),))
    for model, seed in ((MODEL, 3), (MODEL, 4), (other, 3)):
        cached_beta(model, seed, compute)
    assert len(calls) == 3


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "{}", '{"value": 7, "mode": "x"}', '{"colour": 1}', '"a"'])
def test_a_damaged_entry_is_computed_and_written_again(text: str) -> None:
    path = beta_cache_file(MODEL, 3)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    compute, calls = counted()
    assert cached_beta(MODEL, 3, compute) == cached_beta(MODEL, 3, compute) == BETA
    assert len(calls) == 1


def test_a_cache_that_cannot_be_used_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "noisegate").write_text("a file where the folder should be")
    compute, calls = counted()
    assert cached_beta(MODEL, 3, compute) == BETA
    cache = tmp_path / "noisegate"
    cache.unlink()
    beta_cache_file(MODEL, 3).mkdir(parents=True)
    assert cached_beta(MODEL, 3, compute) == BETA
    assert len(calls) == 2


# --- chance -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dimensions", "exact"), [(1024, 0.9986526), (768, 0.9944889), (512, 0.9764938)])
def test_golden_chances(dimensions: int, exact: float) -> None:
    assert chance_within(0.1, dimensions) == pytest.approx(exact, abs=5e-8)


@pytest.mark.parametrize("dimensions", [2, 17])
def test_chances_are_those_of_random_directions(dimensions: int) -> None:
    rows = np.random.default_rng(0).normal(size=(40_000, dimensions))
    cosines = rows[:, 0] / np.linalg.norm(rows, axis=1)
    for limit in (0.1, 0.5, 0.9):
        assert chance_within(limit, dimensions) == pytest.approx((np.abs(cosines) <= limit).mean(), abs=0.01)
