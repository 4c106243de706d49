"""Poolings against hand-computed cases, loops and finite differences."""

import pytest
import torch

from noisegate.trainers.targets.pooling import GPO, build_pooling, last_pool, lengths, max_pool, mean_pool, packed_gru

PARTS = torch.tensor([[[1.0, 8.0], [3.0, 2.0], [5.0, 5.0]], [[4.0, -6.0], [9.0, 9.0], [9.0, 9.0]]])
MASK = torch.tensor([[True, True, True], [True, False, False]])


def test_mean_max_and_last_by_hand() -> None:
    assert mean_pool(PARTS, MASK).tolist() == [[3.0, 5.0], [4.0, -6.0]]
    assert max_pool(PARTS, MASK).tolist() == [[5.0, 8.0], [4.0, -6.0]]
    assert last_pool(PARTS, MASK).tolist() == [[5.0, 5.0], [4.0, -6.0]]


def test_length_is_the_place_of_the_last_real_part() -> None:
    assert lengths(torch.tensor([[True, False, True], [False, False, False]])).tolist() == [3, 0]


class Known(GPO):
    """With coefficients given by hand."""

    def __init__(self, theta: list[list[float]]) -> None:
        super().__init__()
        self.theta = torch.tensor(theta)

    def coefficients(self, sizes: torch.Tensor, longest: int) -> torch.Tensor:
        return self.theta


@pytest.mark.parametrize(
    ("theta", "expected"),
    [
        ([[1 / 3, 1 / 3, 1 / 3], [1.0, 0, 0]], [[3.0, 5.0], [4.0, -6.0]]),  # the mean
        ([[1.0, 0, 0], [1.0, 0, 0]], [[5.0, 8.0], [4.0, -6.0]]),  # the max
        ([[0.5, 0.25, 0.25], [1.0, 0, 0]], [[3.5, 5.75], [4.0, -6.0]]),  # 5/2 + 3/4 + 1/4, 8/2 + 5/4 + 2/4
    ],
)
def test_gpo_with_known_coefficients(theta: list[list[float]], expected: list[list[float]]) -> None:
    torch.testing.assert_close(Known(theta)(PARTS, MASK), torch.tensor(expected))


def test_gpo_coefficients_sum_to_one_and_depend_on_the_size_alone() -> None:
    torch.manual_seed(0)
    gpo = GPO()
    theta = gpo.coefficients(torch.tensor([3, 1, 3, 0]), 5)
    torch.testing.assert_close(theta.sum(dim=1), torch.ones(4))
    assert torch.equal(theta[0], theta[2])
    assert not theta[0, 3:].any() and theta[1].tolist() == [1.0, 0, 0, 0, 0]
    torch.testing.assert_close(gpo.coefficients(torch.tensor([3]), 3)[0], theta[0, :3])  # the padding is not read


def test_untrained_gpo_is_near_the_mean_and_sharpens_with_its_score() -> None:
    torch.manual_seed(0)
    gpo = GPO(temperature=1e6)
    torch.testing.assert_close(gpo(PARTS, MASK), mean_pool(PARTS, MASK), rtol=1e-4, atol=1e-4)


def test_gpo_has_the_gradient_of_finite_differences() -> None:
    torch.manual_seed(0)
    gpo = GPO(4, 3).double()
    parts = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: gpo(x, MASK), (parts,), atol=1e-4, rtol=1e-3, eps=1e-4)
    weight = gpo.score.weight
    gpo(parts, MASK).sum().backward()
    step = torch.zeros_like(weight)
    step[0, 1] = 1e-3
    with torch.no_grad():
        weight += step
        above = gpo(parts, MASK).sum()
        weight -= 2 * step
        below = gpo(parts, MASK).sum()
    assert float(above - below) / 2e-3 == pytest.approx(float(weight.grad[0, 1]), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("kind", ["mean", "max", "last", "gpo"])
def test_padding_never_changes_a_pooled_vector(kind: str) -> None:
    torch.manual_seed(0)
    pool = build_pooling(kind)  # type: ignore[arg-type]
    padded = torch.cat([PARTS, torch.full((2, 2, 2), 1e3)], dim=1)
    longer = torch.cat([MASK, torch.zeros(2, 2, dtype=torch.bool)], dim=1)
    torch.testing.assert_close(pool(padded, longer), pool(PARTS, MASK))


@pytest.mark.parametrize("kind", ["mean", "max", "last", "gpo"])
def test_a_sample_without_parts_is_zero_and_has_a_finite_gradient(kind: str) -> None:
    parts = PARTS.clone().requires_grad_()
    pooled = build_pooling(kind)(parts, torch.tensor([[True, True, False], [False, False, False]]))  # type: ignore[arg-type]
    assert pooled[1].tolist() == [0.0, 0.0] and pooled[0].any()
    pooled.sum().backward()
    assert torch.isfinite(parts.grad).all() and not parts.grad[1].any()


def test_a_packed_gru_reads_each_row_as_if_alone() -> None:
    torch.manual_seed(0)
    gru = torch.nn.GRU(2, 3, batch_first=True, bidirectional=True)
    states = packed_gru(gru, PARTS, torch.tensor([3, 1]))
    alone = gru(PARTS[1:, :1])[0]
    torch.testing.assert_close(states[1, :1], (alone[0, :, :3] + alone[0, :, 3:]) / 2)
    assert not states[1, 1:].any()
