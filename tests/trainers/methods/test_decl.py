"""DECL by hand and against torch's own Dirichlet laws: evidence, losses, hardness, what is believed, and a whole run."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Dirichlet, kl_divergence

from noisegate import train
from noisegate.trainers.checks import check_config
from noisegate.trainers.config import TrainConfig
from noisegate.trainers.losses import info_nce
from noisegate.trainers.methods.decl import (
    Decl,
    DeclConfig,
    divergence_from_uniform,
    dynamic_hinge,
    evidence,
    evidential_loss,
    predict_clean,
    soft_belief,
    uncertainty,
)
from tests.errors import refused
from tests.trainers.methods.method_steps import describe, opened
from tests.trainers.runs import curve, same_weights, settings


def test_divergence_is_that_of_torch() -> None:
    alpha = torch.tensor([[1.0, 2.5, 7.0], [1.0, 1.0, 1.0], [30.0, 1.2, 400.0]], dtype=torch.float64)
    expected = kl_divergence(Dirichlet(alpha), Dirichlet(torch.ones_like(alpha)))
    assert divergence_from_uniform(alpha).tolist() == pytest.approx(expected.tolist(), abs=1e-12)


def test_the_evidential_loss_is_the_expected_squared_error_of_the_dirichlet_law() -> None:
    """E Σ_j (y_j - p_j)² = Σ_j (y_j - E p_j)² + Var p_j, both known to torch; a pair not believed has no y."""
    found = torch.tensor([[3.0, 0.5, 0.0], [0.2, 1.0, 4.0], [0.0, 2.0, 6.0]], dtype=torch.float64)
    believed = torch.tensor([True, False, True])
    loss = evidential_loss(found, believed, divergence=0.1)
    for i in range(3):
        law, y = Dirichlet(found[i] + 1), torch.zeros(3, dtype=torch.float64)
        y[i] = float(believed[i])
        kept = found[i] * (1 - y) + 1
        expected = (y - law.mean).square().sum() + law.variance.sum()
        expected = expected + 0.1 * kl_divergence(Dirichlet(kept), Dirichlet(torch.ones_like(kept)))
        assert float(loss[i]) == pytest.approx(float(expected), rel=1e-9)


def test_evidence_and_uncertainty() -> None:
    same = torch.tensor([[True, True], [True, True]])
    scores = torch.tensor([[0.3, 0.1], [0.2, -0.1]])
    assert evidence(scores, 0.1).flatten().tolist() == pytest.approx([math.exp(x) for x in (3, 1, 2, -1)], rel=1e-5)
    masked = evidence(scores, 0.1, same)
    assert masked[0, 1] == masked[1, 0] == 0 and masked[0, 0] == evidence(scores, 0.1)[0, 0]
    assert uncertainty(torch.zeros(2, 5)).tolist() == [1, 1]
    assert uncertainty(torch.tensor([[8.0, 0.0]])).tolist() == pytest.approx([0.2])


def test_a_pair_is_believed_where_both_ways_together_speak_for_it() -> None:
    """Row 1 prefers text 0, but image 0 does not prefer text 1: 2 + 2 against 3 + 0."""
    assert predict_clean(torch.tensor([[9.0, 0.0], [3.0, 2.0]])).tolist() == [True, True]
    assert predict_clean(torch.tensor([[9.0, 2.0], [3.0, 2.0]])).tolist() == [True, False]


def test_hinges_of_the_hardest_by_loops() -> None:
    scores = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)) / 3
    found = dynamic_hinge(scores, 2, 0.2)
    for i in range(6):
        total = 0.0
        for line in (scores[i], scores[:, i]):
            costs = sorted((max(0.0, float(0.2 + line[j] - scores[i, i])) for j in range(6) if j != i), reverse=True)
            total += sum(costs[:2]) / 2
        assert float(found[i]) == pytest.approx(total, abs=1e-6)


def test_negatives_get_fewer(scored: Path, tmp_path: Path) -> None:
    """From all 31 to 5 in the first tenth of the training."""
    with opened(describe(scored, tmp_path, "decl")) as steps:
        assert isinstance(steps.method, Decl)
        for done, negatives in ((0, 31), (0.05, 18), (0.1, 5), (0.9, 5)):
            steps.context.done = done
            assert steps.method.hardness(32, steps.context) == negatives
            assert steps.method.hardness(4, steps.context) == 3


@pytest.mark.parametrize(("accumulate", "negatives"), [(1, [31, 28, 25, 23, 20, 18, 15, 12, 10, 7]), (5, [20, 7])])
def test_negatives_get_fewer_by_the_batch_however_many_make_an_update(
    scored: Path, tmp_path: Path, accumulate: int, negatives: list[int]
) -> None:
    """Ten batches in two epochs: int(31 - 26 k / 10) in batch k, of which the log has the last one of each update."""
    tree = {**describe(scored, tmp_path, "decl", anneal=1.0), "loop": {"epochs": 2, "device": "cpu"}}
    result = train({**tree, "loop": {**tree["loop"], "accumulate": accumulate}}, quiet=True)
    assert curve(result.folder, "negatives") == [(count,) for count in negatives]


@pytest.mark.parametrize("how", [{}, {"hinge": 2.0, "temperature": 0.2}])
def test_a_step_by_hand(scored: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    with opened(describe(scored, tmp_path, "decl", **{"warmup": 0, **how})) as steps:
        steps.go_to(0)
        believed = torch.rand(160, generator=torch.Generator().manual_seed(1)) < 0.6
        steps.method.clean = believed.numpy()  # type: ignore[attr-defined]
        seen = steps.context.forward(steps.batches["all"])
        s, here = seen.similarity.detach(), believed[seen.rows]  # type: ignore[union-attr]
        found = evidence(s, how.get("temperature", 0.1), seen.same)
        expected = evidential_loss(found, here).mean() + evidential_loss(found.T, here).mean()
        hinge = (dynamic_hinge(s, 31, 0.2, seen.same) * here).sum()
        loss, _ = steps.step(None)
        assert loss == pytest.approx(float(expected + how.get("hinge", 0.8) * hinge), rel=1e-5)


def test_a_pretrained_target_learns_by_info_nce_weighed_by_soft_belief(scored: Path, tmp_path: Path) -> None:
    with opened(describe(scored, tmp_path, "decl", warmup=0)) as steps:
        method = steps.method
        method.target_settings(SimpleNamespace(from_scratch=False))  # type: ignore[arg-type]
        assert method.loss_name == "info_nce"
        steps.go_to(0)
        seen = steps.context.observe(steps.batches["all"])
        belief = method.belief[seen.rows.numpy()]  # type: ignore[attr-defined]
        assert (belief == 1).sum() == method.clean[seen.rows.numpy()].sum() and belief.min() < 1  # type: ignore[attr-defined]
        s = steps.context.forward(steps.batches["all"]).similarity.detach()  # type: ignore[union-attr]
        each = info_nce(s, seen.temperature, seen.same)
        assert steps.step(None)[0] == pytest.approx(float((torch.from_numpy(belief) * each).mean()), rel=1e-5)


def test_soft_belief_by_loops() -> None:
    found = torch.rand(5, 5, generator=torch.Generator().manual_seed(3))
    for i, belief in enumerate(soft_belief(found).tolist()):
        best = max(float(found[i, j] + found[j, i]) for j in range(5))
        assert belief == pytest.approx(2 * float(found[i, i]) / best)
    assert ((soft_belief(found) == 1) == predict_clean(found)).all()


def test_a_whole_run_and_going_on_with_it(scored: Path, tmp_path: Path) -> None:
    how = {"name": "decl", "warmup": 1}
    whole = train(settings(scored, tmp_path, method=how, loop__epochs=3), quiet=True)
    part = train(settings(scored, tmp_path, method=how, loop__epochs=3, loop__max_steps=7), quiet=True)
    rest = train(resume=part.folder, settings=["loop.max_steps=null"], quiet=True)
    assert same_weights(whole.folder / "last.safetensors", rest.folder / "last.safetensors")
    assert curve(rest.folder) == curve(whole.folder)
    assert set(whole.sample_columns) == {"clean", "decl_uncertainty"}
    assert 0 < np.nanmin(whole.sample_columns["decl_uncertainty"]) < 1


@pytest.mark.parametrize(
    ("how", "setting", "value"),
    [({"warmup": 2}, "method.warmup", 2), ({"loss": "triplet"}, "method.loss", "triplet"),
     ({"temperature": 0.05}, "method.temperature", 0.05)],
)  # fmt: skip
def test_settings_that_cannot_work(scored: Path, tmp_path: Path, how: dict[str, Any], setting: str, value: Any) -> None:
    with refused(setting, value):
        check_config(TrainConfig.parse(settings(scored, tmp_path, method={"name": "decl", **how})))


def test_the_gradient_is_right_in_float32_down_to_the_smallest_temperature() -> None:
    """The divergence subtracts logarithms of the gamma function of up to e^(1 / τ)."""
    rng = torch.Generator().manual_seed(0)
    scores = torch.rand(64, 64, generator=rng, dtype=torch.float64) * 0.6 - 0.1
    scores.diagonal().add_(0.3)
    scores[0, 5] = 0.95
    believed = torch.rand(64, generator=rng) < 0.6
    smallest = DeclConfig.model_json_schema()["properties"]["temperature"]["anyOf"][0]["minimum"]
    gradients = []
    for kind in (torch.float64, torch.float32):
        given = scores.to(kind, copy=True).requires_grad_()
        evidential_loss(evidence(given, smallest), believed).mean().backward()
        assert given.grad is not None
        gradients.append(given.grad.double())
    error = float((gradients[1] - gradients[0]).norm() / gradients[0].norm())
    assert error < 0.05  # .0007 to .006 over eight seeds: rounding, which differs by processor; .26 to 1.6 at τ = .05
