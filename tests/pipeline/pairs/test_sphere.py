"""The chance law of cosines against published values and against a simulation."""

import numpy as np
import pytest

from noisegate.pipeline.pairs.sphere import chance_within, chance_within_normal


@pytest.mark.parametrize(
    ("dimensions", "normal", "exact"),
    [(1024, 0.9986257, 0.9986526), (768, 0.9944164, 0.9944889), (512, 0.9763484, 0.9764938)],
)
def test_golden_values(dimensions: int, normal: float, exact: float) -> None:
    assert chance_within_normal(0.1, dimensions) == pytest.approx(normal, abs=5e-8)
    assert chance_within(0.1, dimensions) == pytest.approx(exact, abs=5e-8)


@pytest.mark.parametrize("dimensions", [2, 3, 17])
def test_against_random_directions(dimensions: int) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40_000, dimensions))
    cosines = rows[:, 0] / np.linalg.norm(rows, axis=1)
    for limit in (0.1, 0.5, 0.9):
        assert chance_within(limit, dimensions) == pytest.approx((np.abs(cosines) <= limit).mean(), abs=0.01)
