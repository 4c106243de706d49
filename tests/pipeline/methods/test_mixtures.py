"""Mixture splits against scikit-learn, the published Beta moments and their degenerate cases."""

import json
import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from sklearn.mixture import GaussianMixture

from noisegate.pipeline.methods.mixtures import Split, all_clean_rule, beta_moments, bmm_split, gmm_split
from tests.errors import refused

small = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32 - 1)
SPLITS = [gmm_split, bmm_split]


def two_groups(rng: np.random.Generator, low: int = 200, high: int = 80) -> NDArray[np.float64]:
    return np.concatenate([rng.normal(1.0, 0.3, low), rng.normal(4.0, 0.8, high)])


# Gaussian


@small
@given(seeds)
def test_gmm_equals_sklearn_from_the_same_start(seed: int) -> None:
    losses = two_groups(np.random.default_rng(seed))
    x = (losses - losses.min()) / np.ptp(losses)
    low, high = np.quantile(x, [0.25, 0.75])
    for _ in range(100):  # 2-means, in the open
        below = x <= (low + high) / 2
        low, high = x[below].mean(), x[~below].mean()
    oracle = GaussianMixture(
        2,
        max_iter=10,
        tol=1e-2,
        reg_covar=5e-4,
        means_init=[[low], [high]],
        weights_init=[below.mean(), 1 - below.mean()],
        precisions_init=[[[1 / (x[below].var() + 5e-4)]], [[1 / (x[~below].var() + 5e-4)]]],
    ).fit(x[:, None])
    split = gmm_split(losses, monotone=False)
    np.testing.assert_allclose(split.clean_probability, oracle.predict_proba(x[:, None])[:, 0], atol=1e-6)
    np.testing.assert_allclose(split.means, oracle.means_.ravel() * np.ptp(losses) + losses.min(), rtol=1e-6)
    np.testing.assert_allclose(split.weights, oracle.weights_, rtol=1e-6)
    assert (split.kind, split.degenerate, split.fallbacks) == ("gmm", False, ())


def test_gmm_start_works_where_the_quartiles_are_equal() -> None:
    losses = np.concatenate([np.zeros(90), np.linspace(0.8, 1, 10)])
    split = gmm_split(losses)
    assert (split.clean_probability > 0.5).tolist() == [True] * 90 + [False] * 10
    assert split.means == pytest.approx((0, 0.9), abs=1e-3)


def test_gmm_cannot_tell_groups_apart_that_are_closer_than_its_floor() -> None:
    losses = np.concatenate([np.zeros(50), np.full(50, 0.005), [1.0]])
    split = gmm_split(losses)
    assert (split.clean_probability[:100] > 0.99).all()
    assert split.clean_probability[100] < 0.01


def test_a_wide_noisy_component_claims_the_smallest_losses_unless_monotone() -> None:
    rng = np.random.default_rng(0)
    losses = np.concatenate([rng.normal(0.5, 0.02, 700), rng.normal(0.8, 0.4, 300)])
    plain, held = gmm_split(losses, monotone=False), gmm_split(losses)
    smallest = int(np.argmin(losses))
    assert plain.clean_probability[smallest] < 0.5
    assert held.clean_probability[smallest] == 1


def test_components_that_do_not_come_apart_give_the_median_split() -> None:
    losses = np.array([0.0, 1.0, 2.0, 10.0, np.nan])
    split = gmm_split(losses, floor=1e6)
    np.testing.assert_array_equal(split.clean_probability, [1, 1, 0, 0, np.nan])
    assert (split.kind, split.degenerate) == ("median", True)
    assert split.fallbacks == ("gmm: the components do not come apart",)
    high = gmm_split(-losses, clean_side="high", floor=1e6)
    np.testing.assert_array_equal(high.clean_probability, split.clean_probability)


# Beta


def test_beta_moments_of_the_published_case_and_back() -> None:
    assert beta_moments(0.25, 0.03) == (1.3125, 3.9375)
    law = stats.beta(*beta_moments(0.7, 0.01))
    assert (law.mean(), law.var()) == (pytest.approx(0.7), pytest.approx(0.01))


def loop_bmm(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ten EM steps with scipy's Beta density."""
    x = np.clip((losses - losses.min()) / np.ptp(losses), 1e-4, 1 - 1e-4)
    laws, weight = [stats.beta(1, 2), stats.beta(2, 1)], [0.5, 0.5]

    def posterior() -> NDArray[np.float64]:
        joint = np.array([w * law.pdf(x) for w, law in zip(weight, laws, strict=True)])
        share = np.maximum(joint / joint.sum(axis=0), 1e-12)
        return np.asarray(share / share.sum(axis=0))

    for _ in range(10):
        share = posterior()
        for c in range(2):
            mean = np.average(x, weights=share[c])
            laws[c] = stats.beta(*beta_moments(mean, np.average((x - mean) ** 2, weights=share[c])))
            weight[c] = share[c].mean()
    return np.asarray(posterior()[0])


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_bmm_equals_a_plain_em(seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses = np.concatenate([rng.beta(2, 9, 120), rng.beta(7, 3, 60)])
    split = bmm_split(losses, monotone=False)
    assert split.kind == "bmm"
    np.testing.assert_allclose(split.clean_probability, loop_bmm(losses), atol=1e-8)


def test_bmm_finds_its_own_laws() -> None:
    rng = np.random.default_rng(1)
    noisy = np.arange(2000) >= 1400
    losses = np.where(noisy, rng.beta(20, 5, 2000), rng.beta(3, 20, 2000))
    split = bmm_split(losses)
    assert ((split.clean_probability > 0.5) == ~noisy).mean() > 0.99
    assert split.weights[0] == pytest.approx(0.7, abs=0.02)
    assert split.means == pytest.approx((3 / 23, 0.8), abs=0.02)
    assert split.deviations[0] == pytest.approx(stats.beta(3, 20).std(), abs=0.01)


@pytest.mark.parametrize(
    ("losses", "steps", "reason"),
    [
        (np.concatenate([[0], np.full(1000, 0.5), np.linspace(0.6, 1, 100)]), 10, "variance"),
        (np.append(np.linspace(0, 1e-3, 5000), 1.0), 10, "of the samples"),
        (np.repeat([0.0, 1.0], 50), 20, "the same mean"),
    ],
)
def test_bmm_hands_over_to_the_gmm_and_says_why(losses: NDArray[np.float64], steps: int, reason: str) -> None:
    split = bmm_split(losses, max_iter=steps)
    assert split.kind == "gmm"
    assert not split.degenerate
    assert len(split.fallbacks) == 1
    assert reason in split.fallbacks[0]
    np.testing.assert_array_equal(split.clean_probability, gmm_split(losses).clean_probability)


# Both


@small
@given(seeds, st.sampled_from(SPLITS), st.booleans())
def test_sides_mirror_and_scale_does_not_matter(seed: int, split: Callable[..., Split], monotone: bool) -> None:
    losses = two_groups(np.random.default_rng(seed))
    base = split(losses, monotone=monotone)
    mirrored = split(-losses, clean_side="high", monotone=monotone)
    scaled = split(1e-6 * losses - 3, monotone=monotone)
    np.testing.assert_allclose(mirrored.clean_probability, base.clean_probability, atol=1e-9)
    np.testing.assert_allclose(scaled.clean_probability, base.clean_probability, atol=1e-4)
    assert mirrored.means == pytest.approx((-base.means[0], -base.means[1]))
    assert base.means[0] < base.means[1]


@small
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.sampled_from(SPLITS))
def test_monotone_probabilities_fall_with_the_loss(values: list[float], split: Callable[..., Split]) -> None:
    losses = np.array(values)
    result = split(losses)
    ordered = result.clean_probability[np.argsort(losses)]
    assert ((ordered >= 0) & (ordered <= 1)).all()
    assert (np.diff(ordered) <= 1e-12).all()
    assert ordered[0] == 1
    assert result.degenerate == (result.kind in {"median", "none"})


@pytest.mark.parametrize("split", SPLITS)
def test_equal_losses_are_all_clean_and_degenerate(split: Callable[..., Split]) -> None:
    result = split([0.4, 0.4 + 1e-14, np.nan, np.inf])
    np.testing.assert_array_equal(result.clean_probability, [1, 1, np.nan, np.nan])
    assert (result.kind, result.degenerate, result.fallbacks) == ("none", True, ("losses do not differ",))
    assert result.means[0] == pytest.approx(0.4)
    assert split([]).clean_probability.shape == (0,)
    assert split([3.0]).kind == "none"
    assert math.isnan(split([np.nan]).means[0])


@pytest.mark.parametrize("split", SPLITS)
def test_invalid_losses_change_nothing_for_the_others(split: Callable[..., Split]) -> None:
    losses = two_groups(np.random.default_rng(5))
    with_holes = np.insert(losses, [0, 100], [np.nan, -np.inf])
    result = split(with_holes).clean_probability
    np.testing.assert_array_equal(np.isnan(result), ~np.isfinite(with_holes))
    np.testing.assert_array_equal(result[np.isfinite(with_holes)], split(losses).clean_probability)


def test_settings_that_cannot_work_are_named() -> None:
    with refused("clean_side", "left"):
        gmm_split([0.1, 0.2], clean_side="left")  # type: ignore[arg-type]
    with refused("losses", (2, 2)):
        bmm_split(np.zeros((2, 2)))
    with refused("max_iter", 0):
        bmm_split([0.1, 0.2], max_iter=0)


def test_all_clean_rule_gives_up_the_lowest_hundredth() -> None:
    probability = np.linspace(0.6, 1, 200)
    raised = all_clean_rule(probability)
    assert (probability > raised).sum() == 198
    assert all_clean_rule([*probability, 0.5]) == 0.5
    assert all_clean_rule(np.ones(50)) == 0.5  # all alike: raising it would drop everybody
    assert all_clean_rule([]) == 0.5
    assert all_clean_rule([np.nan, 0.9, 0.8]) == 0.8


@pytest.mark.parametrize(("tied", "lower", "threshold"), [(99, 0, 0.5), (2, 0, 0.5), (1, 0, 0.9), (99, 1, 0.8)])
def test_all_clean_rule_gives_up_a_hundredth_or_nobody(tied: int, lower: int, threshold: float) -> None:
    probability = [0.8] * lower + [0.9] * tied + [0.95] * (100 - tied - lower)
    assert all_clean_rule(probability) == threshold


def test_the_label_side_loads_without_torch_and_faiss() -> None:
    names = ("inspect.metrics", "neighbours.graph", "labels.tango", "methods.mixtures", "methods.columns")
    modules = [f"noisegate.pipeline.{name}" for name in names]
    code = f"import sys, json, {', '.join(modules)}; print(json.dumps(list(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
    assert set(modules) <= set(loaded)
    assert not {"torch", "faiss"} & set(loaded)
