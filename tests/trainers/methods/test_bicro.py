"""BiCro by hand: labels from anchors, the warm-up's small losses, the partner's part, and a whole run."""

from pathlib import Path

import numpy as np
import pytest
import torch

from noisegate import train
from noisegate.pipeline.methods import bmm_split, gmm_split
from noisegate.trainers.losses import info_nce, triplet
from noisegate.trainers.methods.bicro import choose_anchors, consistency, soft_labels
from noisegate.trainers.methods.lnc import soft_margin
from tests.trainers.methods.two_networks import TwoNetworks, everything, noisy_run, prepared, units
from tests.trainers.runs import curve, same_weights, settings
from tests.trainers.small_targets import batch as rows_from


def test_consistency_by_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    images, texts, near, far = (units(torch.randn(n, 5, generator=generator).abs()) for n in (7, 7, 3, 3))
    found = consistency(images, texts, near, far)
    for i in range(7):
        total = 0.0
        for own, anchors in ((images, near), (texts, far)):
            c = max(range(3), key=lambda j: float(own[i] @ anchors[j]))
            pair = sorted([float(images[i] @ near[c]), float(texts[i] @ far[c])])
            total += pair[0] / pair[1]
        assert float(found[i]) == pytest.approx(total / 2, rel=1e-5)


def test_a_pair_at_the_same_place_in_both_modalities_agrees_and_one_apart_does_not() -> None:
    """Image at 60° and text at 60° of the only anchor; then the text across it, whose cosine counts as 0."""
    anchor = torch.tensor([[1.0, 0.0]])
    image, same, across = (
        torch.tensor([[0.5, 0.75**0.5]]),
        torch.tensor([[0.5, -(0.75**0.5)]]),
        torch.tensor([[-1.0, 0.0]]),
    )
    assert consistency(image, same, anchor, anchor).item() == pytest.approx(1)
    assert consistency(image, across, anchor, anchor).item() == pytest.approx(0, abs=1e-5)


def test_anchors_are_the_surest_of_the_clean_ones() -> None:
    prediction = torch.tensor([0.1, 0.9, 0.5, 0.7, 1.0])
    clean = torch.tensor([True, True, True, True, False])
    assert choose_anchors(prediction, clean, 0.1).tolist() == [False, True, False, False, False]
    assert choose_anchors(prediction, clean, 0.25).tolist() == [False, True, False, True, False]
    assert choose_anchors(prediction, clean, 1.0).tolist() == clean.tolist()
    assert not choose_anchors(prediction, torch.zeros(5, dtype=torch.bool), 1.0).any()


def labels_of(run: TwoNetworks, network: int, clean: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
    anchors = choose_anchors(prediction, clean, 0.1)
    images, texts = run.images[network], run.texts[network]
    return soft_labels(consistency(images, texts, images[anchors], texts[anchors]), clean, anchors, 0.5)


@pytest.mark.parametrize("loss", ["auto", "info_nce"])
def test_the_warm_up_learns_from_the_smallest_losses(loss: str) -> None:
    run = noisy_run(10, 3)
    bicro = prepared(run, name="bicro", warmup_share=0.4, loss=loss)
    step = bicro.loss({"a": everything(run)}, run)
    s = run.images[0] @ run.texts[0].T
    each = triplet(s, 0.2) if loss == "auto" else info_nce(s, 0.05)
    assert step.loss.item() == pytest.approx(float(each.sort().values[:4].mean()))
    assert np.isnan(bicro.prediction).all()


@pytest.mark.parametrize("noisy_from", [0.0, 1.0])
def test_a_step_learns_by_the_partners_halves_and_the_anchors_labels(noisy_from: float) -> None:
    run = noisy_run(12, 4)
    bicro = prepared(run, name="bicro", warmup=1, noisy_from=noisy_from)
    run.epoch = 1
    bicro.clean[0], bicro.clean[1] = True, np.arange(12) >= 4  # A must take B's
    step = bicro.loss({"a": everything(run)}, run)
    s, clean = run.images[0] @ run.texts[0].T, torch.from_numpy(bicro.clean[1])
    _, prediction = bicro.measure_batch(run.forward(everything(run)), 0, run)
    label = labels_of(run, 0, clean, prediction)
    each = triplet(s, soft_margin(label), hardest=True)
    assert step.loss.item() == pytest.approx(float((each if noisy_from == 0 else each * clean).mean()), rel=1e-5)
    np.testing.assert_allclose(bicro.prediction[0], label.numpy(), rtol=1e-5)
    assert run.forwards[:1] == [0], "its partner is not asked"


def test_the_papers_procedure_takes_labels_and_anchors_from_the_partner() -> None:
    """Anchors of the clean batch serve the noisy one of the same step."""
    run = noisy_run(12, 4)
    bicro = prepared(run, name="bicro", warmup=1, procedure="paper", noisy_from=0.0)
    run.epoch = 1
    bicro.begin_epoch(run)
    losses = triplet(run.images[1] @ run.texts[1].T, 0.2)
    np.testing.assert_allclose(bicro.confidence[1], bmm_split(losses.numpy()).clean_probability, atol=1e-3)
    bicro.clean[1] = np.arange(12) >= 4
    bicro.loss({"a_clean": rows_from(4, 8), "a_noisy": rows_from(0, 4)}, run)
    assert (run.forwards, run.observed) == ([0, 0], [1, 1])
    images, texts = run.images[1][4:], run.texts[1][4:]
    _, prediction = bicro.measure_batch(run.forward(rows_from(4, 8), 1), 1, run)
    anchors = choose_anchors(prediction, torch.ones(8, dtype=torch.bool), 0.1)
    agreement = consistency(run.images[1][:4], run.texts[1][:4], images[anchors], texts[anchors])
    expected = torch.where(agreement > 0.5, agreement, torch.zeros(()))
    np.testing.assert_allclose(bicro.prediction[0, :4], expected.numpy(), rtol=1e-5)


def test_without_any_clean_pair_all_labels_are_0() -> None:
    run = noisy_run(8, 2)
    run.epoch = 1
    bicro = prepared(run, name="bicro", warmup=1)
    bicro.loss({"a": everything(run)}, run)
    bicro.clean[1] = False
    bicro.loss({"a": everything(run)}, run)
    assert bicro.prediction[0].tolist() == [0.0] * 8
    assert bicro.loss({"a": rows_from(0, 1)}, run).loss is None


def test_the_mixture_is_a_switch() -> None:
    losses = np.concatenate([np.linspace(0, 0.2, 30), np.linspace(0.6, 1, 20)]).astype(np.float32)
    run = noisy_run(8, 2)
    for kind, split in (("beta", bmm_split), ("gauss", gmm_split)):
        found = prepared(run, name="bicro", mixture=kind).split(losses)
        np.testing.assert_array_equal(found.clean_probability, split(losses).clean_probability)


@pytest.mark.parametrize("procedure", ["lean", "paper"])
def test_a_whole_run_and_going_on_with_it(scored: Path, tmp_path: Path, procedure: str) -> None:
    how = {"name": "bicro", "warmup": 1, "procedure": procedure, "noisy_from": 0.0}
    whole = train(settings(scored, tmp_path, method=how, loop__epochs=3), quiet=True)
    part = train(settings(scored, tmp_path, method=how, loop__epochs=3, loop__max_steps=7), quiet=True)
    rest = train(resume=part.folder, settings=["loop.max_steps=null"], quiet=True)
    assert same_weights(whole.folder / "last.safetensors", rest.folder / "last.safetensors")
    assert curve(rest.folder) == curve(whole.folder)
    assert set(whole.sample_columns) == {"bicro_probability", "bicro_label"}


def test_autocast_does_not_round_the_cosines() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = [units(torch.randn(n, 16, generator=generator)) for n in (7, 7, 3, 3)]
    exact = consistency(*vectors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert consistency(*vectors).equal(exact)
