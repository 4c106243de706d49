"""OSA's weight against the paper's numbers, on every kind of input."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from noisegate.pipeline.pairs.osa import osa_weight, reference_weight

PEAK = 4 / 27
KINDS: dict[str, Callable[[float], Any]] = {
    "float": float,
    "float64": lambda s: np.array([s]),
    "float32": lambda s: np.array([s], np.float32),
    "float16": lambda s: np.array([s], np.float16),
    "scalar": np.float32,
    "list": lambda s: [s],
    "tensor": lambda s: torch.tensor([s], dtype=torch.float64),
    "tensor32": lambda s: torch.tensor([s]),
}
cosines = st.floats(-1, 1)

GOLDEN = [  # similarity, beta, weight
    (0.30, 0.215, 0.006610875),
    (0.25, 0.215, 0.001182125),
    (0.35, 0.215, 0.015764625),
    (0.40, 0.215, 0.027893375),
    (0.30, 0.087, 0.035705403),
    (2 / 3, 0.0, PEAK),
    (1 / 3, 0.0, 2 / 27),
    (1.0, 0.0, 0.0),
    (0.215, 0.215, 0.0),
    (0.1, 0.215, 0.0),
]


def number(value: Any) -> float:
    return float(np.asarray(value).reshape(-1)[0])


@pytest.mark.parametrize(("similarity", "beta", "weight"), GOLDEN)
@pytest.mark.parametrize("kind", KINDS)
def test_the_papers_values_on_every_kind_of_input(kind: str, similarity: float, beta: float, weight: float) -> None:
    tolerance = 1e-9 if kind in ("float", "float64", "tensor") else 2e-4 if kind == "float16" else 1e-7
    if kind == "list":
        tolerance = 1e-9
    assert number(osa_weight(KINDS[kind](similarity), beta)) == pytest.approx(weight, abs=tolerance)


@pytest.mark.parametrize(("x", "weight"), [(0.70710678, 0.25), (0.5, 0.1875), (1.0, 0.0), (0.0, 0.0), (-0.3, 0.0)])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "float16"])
def test_the_published_codes_quartic(kind: str, x: float, weight: float) -> None:
    assert number(reference_weight(KINDS[kind](x))) == pytest.approx(weight, abs=1e-6)


def test_what_goes_in_comes_out() -> None:
    assert type(osa_weight(0.3, 0.2)) is float
    assert type(osa_weight(np.float32(0.3), 0.2)) is np.float32
    for dtype in (np.float32, np.float64):
        out = osa_weight(np.full((2, 3), 0.3, dtype), 0.2)
        assert (out.shape, out.dtype) == ((2, 3), np.dtype(dtype))
    tensor = osa_weight(torch.full((2, 3), 0.3), 0.2)
    assert (tuple(tensor.shape), tensor.dtype) == ((2, 3), torch.float32)
    assert osa_weight(np.zeros((0, 4), np.float32), 0.2).shape == (0, 4)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_drown_cosines_near_beta(half: torch.dtype) -> None:
    near = torch.tensor([0.25]).to(half)
    out = osa_weight(near, float(near) - 1e-5)
    assert out.dtype == torch.float32
    assert float(out) == pytest.approx(1e-10, rel=1e-2)


@given(cosines, cosines)
def test_the_weight_is_within_its_range_and_zero_up_to_beta(similarity: float, beta: float) -> None:
    weight = osa_weight(similarity, beta)
    assert 0 <= weight <= PEAK + 1e-12
    if similarity <= beta:
        assert weight == 0
    x = similarity - beta
    if 1e-6 < x < 1:
        assert weight == pytest.approx(x * x * (1 - x), rel=1e-12)


@given(cosines, cosines, cosines)
def test_monotone_never_falls_and_agrees_below_the_peak(one: float, other: float, beta: float) -> None:
    low, high = sorted([one, other])
    assert osa_weight(low, beta, monotone=True) <= osa_weight(high, beta, monotone=True) + 1e-15
    if low - beta <= 2 / 3:
        assert osa_weight(low, beta, monotone=True) == pytest.approx(osa_weight(low, beta), abs=1e-15)
    else:
        assert osa_weight(low, beta, monotone=True) == pytest.approx(PEAK)


@given(st.floats(-1, -1e-3))
def test_below_beta_zero_equation_5_would_turn_negative(beta: float) -> None:
    assert osa_weight(1.0, beta) == 0
    assert osa_weight(np.array([1.0]), beta)[0] == 0
    assert float(osa_weight(torch.tensor([1.0]), beta)) == 0


@pytest.mark.parametrize("kind", ["float", "float64", "float32", "tensor", "tensor32"])
def test_not_a_number_weighs_nothing(kind: str) -> None:
    assert number(osa_weight(KINDS[kind](float("nan")), 0.2)) == 0
    assert number(reference_weight(KINDS[kind](float("nan")))) == 0


@given(st.floats(0.01, 0.99))
def test_the_gradient_is_that_of_the_equation(x: float) -> None:
    similarity = torch.tensor([x + 0.2, 0.1, float("nan")], dtype=torch.float64, requires_grad=True)
    torch.autograd.backward(osa_weight(similarity, 0.2).sum())
    assert similarity.grad is not None
    assert similarity.grad.tolist() == pytest.approx([2 * x - 3 * x * x, 0, 0])
