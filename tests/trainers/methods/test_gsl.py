"""GSL as reconstructed: its losses by hand, its labels through the method, switches, guards, and a whole run."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from noisegate import train
from noisegate.pipeline.methods import bmm_split
from noisegate.pipeline.methods.gsl import RECONSTRUCTION, anchor_labels
from noisegate.trainers.losses import info_nce, triplet
from noisegate.trainers.methods.co_teaching import standardise
from noisegate.trainers.methods.gsl import Gsl
from noisegate.trainers.methods.lnc import soft_margin
from tests.trainers.methods.two_networks import TwoNetworks, everything, noisy_run, prepared, units
from tests.trainers.runs import curve, same_weights, settings
from tests.trainers.small_targets import batch as rows_from


def sides(run: TwoNetworks, network: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    images, texts = run.images[network], run.texts[network]
    return images, texts, images @ texts.T


def constraint(run: TwoNetworks, network: int = 0, zeta: float = 1.0, eta: float = 0.1, sign: int = -1) -> torch.Tensor:
    """ζ L_intra + η L_inter by loops."""
    images, texts, s = sides(run, network)
    found = []
    for i in range(len(s)):
        intra = sum((images[i] @ images[j] - texts[i] @ texts[j]) ** 2 for j in range(len(s))) / len(s)
        inter = sum((s[i, j] - s[j, i]) ** 2 for j in range(len(s))) / len(s)
        found.append(zeta * intra + sign * eta * inter)
    return torch.stack(found)


@pytest.mark.parametrize("negatives", ["hardest", "mean"])
def test_the_warm_up_learns_by_the_triplet_alone_and_notes_the_whole_loss(negatives: str) -> None:
    run = noisy_run(9, 3)
    gsl = prepared(run, name="gsl", warmup_negatives=negatives)
    step = gsl.loss({"b": everything(run)}, run)
    _, _, s = sides(run, 1)
    assert step.loss.item() == pytest.approx(float(triplet(s, 0.2, hardest=negatives == "hardest").mean()))
    expected = standardise(triplet(s, 0.2, hardest=True) + constraint(run, 1))
    np.testing.assert_allclose(gsl.division[1], expected.numpy(), rtol=1e-4, atol=1e-5)
    assert np.isnan(gsl.division[0]).all()


def test_info_nce_in_place_of_the_triplet() -> None:
    run = noisy_run(9, 3)
    gsl = prepared(run, name="gsl", warmup=1, loss="info_nce", noisy_from=0)
    images, texts, s = sides(run)
    assert gsl.loss({"a": everything(run)}, run).loss.item() == pytest.approx(float(info_nce(s, 0.05).mean()))
    run.epoch = 1
    gsl.clean[1] = np.arange(9) >= 3
    stars = anchor_labels(images.numpy(), texts.numpy(), gsl.clean[1], np.eye(9, dtype=bool))
    label = torch.where(torch.from_numpy(gsl.clean[1]), 1.0, torch.from_numpy(stars))
    expected = (label * info_nce(s, 0.05) + constraint(run)).mean()
    assert gsl.loss({"a": everything(run)}, run).loss.item() == pytest.approx(float(expected), rel=1e-5)


def test_the_division_is_the_beta_mixture_of_the_whole_loss() -> None:
    run = noisy_run(9, 3)
    gsl = prepared(run, name="gsl", procedure="paper", warmup=1)
    run.epoch = 1
    gsl.begin_epoch(run)
    assert run.passes == 1
    for network in (0, 1):
        losses = (triplet(sides(run, network)[2], 0.2, hardest=True) + constraint(run, network)).numpy()
        np.testing.assert_allclose(gsl.division[network], losses, rtol=1e-4)
        np.testing.assert_allclose(gsl.confidence[network], bmm_split(losses).clean_probability, atol=1e-3)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"domain": "spatial", "centring": "none"},
        {"centring": "per_vector", "negative": "shift"},
        {"inter_sign": 1, "eta": 0.5, "zeta": 2.0},
        {"reduction": "sum"},
    ],
)
def test_a_step_learns_by_the_partners_halves_and_the_anchors_labels(how: dict[str, Any]) -> None:
    run = noisy_run(12, 4)
    gsl = prepared(run, name="gsl", warmup=1, noisy_from=0, **how)
    run.epoch = 1
    gsl.clean[0], gsl.clean[1] = True, np.arange(12) >= 4  # A must take B's
    step = gsl.loss({"a": everything(run)}, run)
    images, texts, s = sides(run)
    switches = {name: how[name] for name in ("domain", "centring", "negative") if name in how}
    stars = anchor_labels(images.numpy(), texts.numpy(), gsl.clean[1], np.eye(12, dtype=bool), **switches)
    label = torch.where(torch.from_numpy(gsl.clean[1]), 1.0, torch.from_numpy(stars))
    assert not label.isnan().any() and (label[4:] == 1).all()
    extra = constraint(run, 0, how.get("zeta", 1.0), how.get("eta", 0.1), how.get("inter_sign", -1))
    if how.get("reduction") == "sum":
        extra = extra * 12
    expected = (triplet(s, soft_margin(label), hardest=True) + extra).mean()
    assert step.loss.item() == pytest.approx(float(expected), rel=1e-4)
    np.testing.assert_allclose(gsl.prediction[0], label.numpy(), rtol=1e-5)
    assert run.forwards == [0], "its partner is not asked"


def test_noisy_pairs_are_held_back_for_half_of_the_training() -> None:
    """Of ten epochs with one of warm-up: up to the fifth."""
    run = noisy_run(12, 4)
    gsl = prepared(run, name="gsl", warmup=1)
    gsl.clean[1] = np.arange(12) >= 4
    _, _, s = sides(run)
    clean_alone = (triplet(s, 0.2, hardest=True) + constraint(run))[4:].sum() / 12
    run.epoch = 4
    assert gsl.loss({"a": everything(run)}, run).loss.item() == pytest.approx(float(clean_alone), rel=1e-4)
    run.epoch = 5
    assert gsl.loss({"a": everything(run)}, run).loss.item() > float(clean_alone) + 1e-3


def test_without_two_anchors_a_label_stays_or_is_a_half() -> None:
    run = noisy_run(6, 2)
    gsl = prepared(run, name="gsl", warmup=1)
    run.epoch = 1
    gsl.clean[1] = False
    gsl.prediction[0, :2] = 0.9, 0.1
    gsl.loss({"a": everything(run)}, run)
    np.testing.assert_allclose(gsl.prediction[0], [0.9, 0.1, 0.5, 0.5, 0.5, 0.5])


def test_paper_batches_of_noisy_pairs_find_their_anchors_in_the_clean_batch() -> None:
    """Algorithm 1, lines 12-13: the labels are those of one batch that holds both halves; a picture is no anchor for itself."""
    run = noisy_run(12, 4)
    run.images[0, 5] = run.images[0, 0]  # another caption of the same picture
    gsl = prepared(run, name="gsl", warmup=1, noisy_from=0, procedure="paper")
    run.epoch = 1
    clean = np.arange(12) >= 4
    gsl.clean[1] = clean
    gsl.loss({"a_clean": rows_from(4, 8), "a_noisy": rows_from(0, 4)}, run)
    images, texts, _ = sides(run)
    expected = anchor_labels(images.numpy(), texts.numpy(), clean)
    np.testing.assert_allclose(gsl.prediction[0], np.where(clean, 1, expected), rtol=1e-6)
    assert not (gsl.prediction[0, :4] == 0.5).any()
    gsl.prediction[0, :4] = np.nan
    gsl.loss({"a_noisy": rows_from(0, 4)}, run)
    assert (gsl.prediction[0, :4] == 0.5).all(), "anchors of the step before are not used again"


def test_paper_labels_are_made_in_evaluation_mode() -> None:
    """What the network sees with its dropout on is learnt from, but makes no label."""
    run = noisy_run(12, 4)
    generator = torch.Generator().manual_seed(7)
    run.observed_texts = units(run.texts + 0.2 * torch.randn(run.texts.shape, generator=generator))
    gsl = prepared(run, name="gsl", warmup=1, noisy_from=0, procedure="paper")
    run.epoch = 1
    clean = np.arange(12) >= 4
    gsl.clean[1] = clean
    gsl.loss({"a_clean": rows_from(4, 8), "a_noisy": rows_from(0, 4)}, run)
    images, texts, _ = sides(run)
    made, others = (anchor_labels(images.numpy(), side.numpy(), clean)[:4] for side in (run.observed_texts[0], texts))
    np.testing.assert_allclose(gsl.prediction[0, :4], made, rtol=1e-6)
    assert np.abs(made - others).max() > 0.01
    assert run.observed == [0, 0]


def test_all_clean_all_noisy_and_alone() -> None:
    run = noisy_run(8, 2)
    run.epoch = 1
    for clean, label in ((True, 1.0), (False, 0.5)):
        gsl = prepared(run, name="gsl", warmup=1)
        gsl.clean[:] = clean
        assert math.isfinite(gsl.loss({"a": everything(run), "b": everything(run)}, run).loss.item())
        assert (gsl.prediction == label).all()
    assert gsl.loss({"a": rows_from(0, 1)}, run).loss is None


def test_a_posterior_at_the_threshold_is_noisy() -> None:
    gsl = prepared(noisy_run(4, 0), name="gsl")
    assert gsl.choose_clean(np.array([0.5, 0.51, 0.2, np.nan], np.float32)).tolist() == [False, True, False, True]


def test_losses_that_make_no_mixture_are_told() -> None:
    run = TwoNetworks(units(torch.ones(2, 6, 3)), units(torch.ones(2, 6, 3)))
    gsl = prepared(run, name="gsl", warmup=1)
    gsl.loss({"a": everything(run), "b": everything(run)}, run)
    run.epoch = 1
    gsl.begin_epoch(run)
    assert gsl.clean.all()
    assert "epoch 2: network a cannot tell clean from noisy (none: losses do not differ)" in run.said


def test_captions_of_one_picture_are_no_anchors_for_one_another() -> None:
    """All clean pairs but one show the noisy pair's picture: one anchor is not enough."""
    generator = torch.Generator().manual_seed(0)
    images, texts = units(torch.randn(2, 2, 5, 8, generator=generator))
    run = TwoNetworks(images, texts, pictures=[0, 0, 0, 0, 1])
    gsl = prepared(run, name="gsl", warmup=1)
    run.epoch = 1
    gsl.clean[1] = [False, True, True, True, True]
    gsl.loss({"a": everything(run)}, run)
    assert gsl.prediction[0].tolist() == [0.5, 1, 1, 1, 1]


def test_it_says_what_it_is() -> None:
    run = noisy_run(4, 0)
    gsl = prepared(run, name="gsl")
    assert run.said == [RECONSTRUCTION]
    assert "reconstruction" in RECONSTRUCTION
    for text in (Gsl.__doc__, Gsl.Config.__doc__, gsl.provenance):
        assert "reconstruction" in text.lower()


def test_a_whole_run_and_going_on_with_it(scored: Path, tmp_path: Path) -> None:
    config = settings(scored, tmp_path, method={"name": "gsl", "warmup": 1}, loop__evaluate_every=2)
    whole = train(config, quiet=True)
    part = train(config, settings=["loop.max_steps=7"], quiet=True)
    done = train(resume=part.folder, settings=["loop.max_steps=null"], quiet=True)
    assert curve(done.folder) == curve(whole.folder)
    assert same_weights(done.folder / "last-1.safetensors", whole.folder / "last-1.safetensors")
    assert set(whole.sample_columns) == {"gsl_probability", "gsl_label"}
    for name, values in whole.sample_columns.items():
        assert values.shape == (160,) and np.nanmin(values) >= 0 and np.nanmax(values) <= 1
        np.testing.assert_array_equal(done.sample_columns[name], values)
