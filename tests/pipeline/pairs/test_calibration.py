"""Calibration on simulated similarities, where the truth is known: shapes of real spaces, noise rates 0 to 0.8."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gamma, loggamma, norm

from noisegate.pipeline.pairs.calibration import PairCalibration
from noisegate.pipeline.pairs.calibration_fit import _weights, calibrate_pairs, intersection
from noisegate.pipeline.pairs.density_ratio import MODELS, _log_gamma, choose_normals
from tests.errors import refused

Draw = Callable[[np.random.Generator, int], np.ndarray]


def bimodal(rng: np.random.Generator, n: int) -> np.ndarray:
    """Two humps and a third one that reaches into the clean mode; overall about .0 ± .32."""
    hump = rng.choice(3, n, p=[0.7, 0.22, 0.08])
    return rng.normal(np.array([-0.2, 0.35, 0.7])[hump], np.array([0.18, 0.1, 0.12])[hump]).clip(-1, 1)


SHAPES: dict[str, tuple[Draw, Draw]] = {
    "cone": (lambda rng, n: rng.normal(0.15, 0.03, n), lambda rng, n: rng.normal(0.30, 0.03, n)),
    "no-cone": (lambda rng, n: rng.normal(0.0, 0.15, n), lambda rng, n: rng.normal(0.45, 0.15, n)),
    "bimodal": (bimodal, lambda rng, n: rng.normal(0.8, 0.1, n).clip(-1, 1)),
    "skewed": (lambda rng, n: rng.normal(0.0, 0.25, n), lambda rng, n: 1 - rng.gamma(2.0, 0.08, n)),
    "leaning": (lambda rng, n: rng.normal(0.0, 0.15, n), lambda rng, n: 0.9 - rng.gamma(25.0, 0.015, n)),
}
RATES = [0.0, 0.05, 0.1, 0.4, 0.6, 0.8]


def simulate(shape: str, rate: float, n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Similarities of n given pairs, whether each is clean, and n mismatched similarities."""
    rng = np.random.default_rng(seed)
    wrong, right = SHAPES[shape]
    noisy = round(rate * n)
    return np.concatenate([wrong(rng, noisy), right(rng, n - noisy)]), np.arange(n) >= noisy, wrong(rng, n)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("shape", SHAPES)
def test_promises_hold_on_unseen_data(shape: str, rate: float) -> None:
    """P(clean) by decile, the noise rate's interval, and expected precision and recall, all against the truth."""
    similarity, _, mismatched = simulate(shape, rate, 8000, seed=1)
    calibration = calibrate_pairs(similarity, mismatched)
    unseen, clean, _ = simulate(shape, rate, 40000, seed=2)
    probability = calibration.clean_probability(unseen)
    decile = np.minimum((probability * 10).astype(int), 9)
    for d in range(10):
        inside = clean[decile == d]
        if len(inside) >= 100:
            slack = 0.05 + 2 * np.sqrt((d + 0.5) / 10 * (9.5 - d) / 10 / len(inside))
            assert d / 10 - slack <= inside.mean() <= (d + 1) / 10 + slack, (d, len(inside))
    low, high = calibration.noise_interval
    assert low <= rate <= high
    assert high - low < 0.12
    assert calibration.ece < 0.03
    if rate not in (0.1, 0.4, 0.6):
        return
    for cut in np.quantile(unseen, [0.1, 0.3, 0.5, 0.7]):
        expected = calibration.expected(float(cut))
        kept = unseen > cut
        assert expected.kept == pytest.approx(kept.mean(), abs=0.02)
        assert expected.clean_precision == pytest.approx(clean[kept].mean(), abs=0.03)
        assert expected.clean_recall == pytest.approx(kept[clean].mean(), abs=0.03)
        assert expected.noise_precision == pytest.approx((~clean[~kept]).mean(), abs=0.04)
        assert expected.noise_recall == pytest.approx((~kept[~clean]).mean(), abs=0.04)


def test_expected_at_the_ends() -> None:
    similarity, _, mismatched = simulate("cone", 0.4, 2000, seed=0)
    calibration = calibrate_pairs(similarity, mismatched)
    everything, nothing = calibration.expected(-1.0), calibration.expected(1.0)
    assert everything.kept == 1 and everything.clean_recall == 1 and np.isnan(everything.noise_precision)
    assert everything.clean_precision == pytest.approx(0.6, abs=0.03)
    assert nothing.kept == 0 and nothing.clean_recall == 0 and np.isnan(nothing.clean_precision)


@pytest.mark.parametrize("rate", [0.1, 0.6])
@pytest.mark.parametrize("shape", SHAPES)
def test_crossing_is_near_the_best_cut(shape: str, rate: float) -> None:
    similarity, _, mismatched = simulate(shape, rate, 5000, seed=5)
    cut = intersection(similarity, mismatched)
    assert cut.reason == "crossing"
    rng = np.random.default_rng(6)
    wrong, right = (np.sort(draw(rng, 20000)) for draw in SHAPES[shape])

    def balanced_accuracy(beta: np.ndarray) -> np.ndarray:
        return (np.searchsorted(wrong, beta) + 20000 - np.searchsorted(right, beta)) / 40000

    best = balanced_accuracy(np.linspace(-1, 1, 2001)).max()
    assert balanced_accuracy(np.array([cut.beta]))[0] > best - 0.02


def test_equal_posterior_moves_with_the_noise_rate_and_the_crossing_does_not() -> None:
    for rate in (0.1, 0.6):
        similarity, _, mismatched = simulate("no-cone", rate, 20000, seed=7)
        calibration = calibrate_pairs(similarity, mismatched)
        assert intersection(similarity, mismatched, 0, calibration).beta == pytest.approx(0.225, abs=0.015)
        # for two normals of equal spread the posterior is even at the midpoint + (σ²/Δ) log(ρ / (1 - ρ))
        even = np.interp(0.5, calibration.clean, calibration.knots)
        assert even == pytest.approx(0.225 + 0.05 * np.log(rate / (1 - rate)), abs=0.02)


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        (lambda rng: (rng.normal(0.45, 0.15, 5000), rng.normal(0, 0.15, 5000)), "all clean"),
        (lambda rng: (rng.normal(0, 0.15, 5000), rng.normal(0, 0.15, 5000)), "no clean component"),
        (lambda rng: (rng.normal(-0.5, 0.15, 5000), rng.normal(0, 0.15, 5000)), "no clean component"),
        (lambda rng: (np.full(50, 0.3), rng.normal(0, 0.15, 50)), "constant"),
        (lambda rng: (rng.normal(0.45, 0.15, 5), rng.normal(0, 0.15, 5)), "fewer than"),
    ],
)
def test_fall_back_says_why(pairs: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]], reason: str) -> None:
    similarity, mismatched = pairs(np.random.default_rng(0))
    cut = intersection(similarity, mismatched)
    assert reason in cut.reason
    assert cut.beta == pytest.approx(mismatched.mean() + 2 * mismatched.std())


def test_true_matches_among_the_mismatched_do_little_harm() -> None:
    rng = np.random.default_rng(8)
    similarity, clean, mismatched = simulate("no-cone", 0.4, 8000, seed=8)
    mismatched[:160] = rng.normal(0.45, 0.15, 160)  # 2 % of the captions occur twice
    calibration = calibrate_pairs(similarity, mismatched)
    probability = calibration.clean_probability(similarity)
    assert calibration.noise_rate == pytest.approx(0.4, abs=0.03)
    assert np.mean((probability - clean) ** 2) < 0.055  # 0.048 for the true posterior
    assert 0.19 < intersection(similarity, mismatched).beta < 0.26


def test_survives_json_and_refuses_a_damaged_one() -> None:
    similarity, _, mismatched = simulate("bimodal", 0.4, 2000, seed=9)
    calibration = calibrate_pairs(similarity, mismatched)
    text = json.dumps(calibration.to_dict(), allow_nan=False)
    again = PairCalibration.from_dict(json.loads(text))
    assert again == calibration and len(text) < 12000
    grid = np.linspace(-1, 1, 99)
    np.testing.assert_array_equal(again.clean_probability(grid), calibration.clean_probability(grid))
    damaged = calibration.to_dict()
    del damaged["knots"]
    with refused("calibration", ["knots"]):
        PairCalibration.from_dict(damaged)
    for named, name, value in (
        ("clean", "knots", calibration.to_dict()["knots"][:-1]),  # then the other curves are too long
        ("cosine_kept", "cosines", [0.1, 0.2]),
        ("clean", "clean", ["x"] * len(calibration.clean)),
        ("noise_interval", "noise_interval", [0.1]),
        ("noise_rate", "noise_rate", "much"),
        ("method", "method", 3),
    ):
        with refused("calibration", named):
            PairCalibration.from_dict(calibration.to_dict() | {name: value})


def test_same_seed_same_calibration() -> None:
    similarity, _, mismatched = simulate("skewed", 0.3, 200, seed=12)
    assert calibrate_pairs(similarity, mismatched, seed=4) == calibrate_pairs(similarity, mismatched, seed=4)


def test_no_crossing_survives_json() -> None:
    rng = np.random.default_rng(0)
    calibration = calibrate_pairs(rng.normal(-0.5, 0.1, 500), rng.normal(0, 0.1, 500))
    assert np.isnan(calibration.crossing)
    again = PairCalibration.from_dict(json.loads(json.dumps(calibration.to_dict(), allow_nan=False)))
    assert np.isnan(again.crossing)


def test_too_few_values_name_what_works() -> None:
    with refused("pairs", 2):
        calibrate_pairs([0.1, 0.2, 0.3, np.nan], [0.1, 0.2])


@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.floats(-1, 1), min_size=20, max_size=60),
    st.lists(st.floats(-1, 1), min_size=20, max_size=60),
    st.integers(0, 5),
)
def test_any_values_give_a_monotone_finite_map(similarity: list[float], mismatched: list[float], seed: int) -> None:
    calibration = calibrate_pairs(similarity, mismatched, seed)
    low, high = calibration.noise_interval
    assert 0 <= low <= calibration.noise_rate <= high <= 1
    probability = calibration.clean_probability(np.linspace(-2, 2, 50))
    assert np.isfinite(probability).all() and (np.diff(probability) >= 0).all()
    assert probability.min() >= 0 and probability.max() <= 1
    assert np.isnan(calibration.clean_probability([np.nan]))[0]


def test_every_model_recovers_the_rate_of_two_normals() -> None:
    """Each of the competing models on its own, on data that fits all of them."""
    similarity, _, mismatched = simulate("no-cone", 0.4, 20000, seed=10)
    edges = np.linspace(-0.8, 1.2, 501)
    g, m = (np.histogram(values, edges)[0].astype(float) for values in (similarity, mismatched))
    centres = (edges[1:] + edges[:-1]) / 2
    shape = choose_normals(centres, m)
    assert len(shape.mean) == 1
    truth = 0.6 * np.exp(-0.5 * ((centres - 0.45) / 0.15) ** 2)
    truth = truth / (truth + 0.4 * np.exp(-0.5 * (centres / 0.15) ** 2))
    for name, fit in MODELS.items():
        fitted = fit(centres, g, m, shape)
        assert fitted.rate == pytest.approx(0.4, abs=0.03), name
        assert np.average(np.abs(fitted.clean() - truth), weights=g) < 0.03, name
        assert (np.diff(fitted.ratio) >= 0).all(), name


@pytest.mark.parametrize("q", [-1.5, -0.3, -0.021, 0.021, 0.3, 1.0, 2.0])
def test_log_gamma_is_scipys_and_its_slopes_are_right(q: float) -> None:
    w, small = np.linspace(-3, 3, 13), 1e-5
    density, by_w, by_q = _log_gamma(w, q)
    # w = log(q² Γ(q⁻²)) / q
    np.testing.assert_allclose(density, loggamma.logpdf(q * w - np.log(q**2), q**-2) + np.log(abs(q)), atol=1e-6)
    ahead, behind = _log_gamma(w + small, q)[0], _log_gamma(w - small, q)[0]
    np.testing.assert_allclose(by_w, (ahead - behind) / (2 * small), rtol=1e-4, atol=1e-4)
    ahead, behind = _log_gamma(w, q + small)[0], _log_gamma(w, q - small)[0]
    np.testing.assert_allclose(by_q, (ahead - behind) / (2 * small), rtol=1e-4, atol=1e-4)


def test_log_gamma_turns_normal_smoothly() -> None:
    w = np.linspace(-3, 3, 13)
    np.testing.assert_allclose(_log_gamma(w, 0.0)[0], norm.logpdf(w))
    for inside, outside in zip(_log_gamma(w, 0.0199999), _log_gamma(w, 0.0200001), strict=True):
        np.testing.assert_allclose(inside, outside, atol=5e-3)


def test_right_pairs_that_lean_are_not_taken_as_normal() -> None:
    """At low noise the doubtful pairs are the tail of the right ones, which a normal density makes too thin."""
    similarity, _, mismatched = simulate("leaning", 0.05, 40000, seed=13)
    edges = np.linspace(-0.8, 1.2, 501)
    g, m = (np.histogram(values, edges)[0].astype(float) for values in (similarity, mismatched))
    centres = (edges[1:] + edges[:-1]) / 2
    right = 0.95 * gamma.pdf(0.9 - centres, 25, scale=0.015)
    truth = right / (right + 0.05 * norm.pdf(centres, 0, 0.15) + 1e-300)
    doubtful = (truth > 0.1) & (truth < 0.9) & (centres < 0.5)
    shape = choose_normals(centres, m)
    error = {name: np.abs(fit(centres, g, m, shape).clean() - truth)[doubtful].max() for name, fit in MODELS.items()}
    assert error["log-gamma"] < 0.05 < error["gaussian"]


@pytest.mark.parametrize(
    ("excess", "weights"),
    [
        ({"gaussian": (0.0, 0.0), "logistic": (1.0, 1.0), "isotonic": (1.0, 1.0)}, {"gaussian": 1, "logistic": 0.6065}),
        ({"gaussian": (5.0, 1.0), "logistic": (0.5, 1.0), "isotonic": (0.0, 0.0)}, {"logistic": 1}),
        ({"gaussian": (3.0, 1.0), "logistic": (9.0, 1.0), "isotonic": (0.0, 0.0)}, {"gaussian": 0.0111, "isotonic": 1}),
    ],
)
def test_models_count_by_how_far_they_are_behind(
    excess: dict[str, tuple[float, float]], weights: dict[str, float]
) -> None:
    total = sum(weights.values())
    found = _weights(excess)
    assert found == pytest.approx({name: weight / total for name, weight in weights.items()}, abs=1e-4)
