"""NCR: LNC without its additions, with the published code's prediction."""

from pathlib import Path

import numpy as np
import pytest
import torch

from noisegate import train
from noisegate.pipeline.methods import gmm_split
from noisegate.pipeline.methods.lnc import predict_match_by_hinges
from noisegate.trainers.losses import triplet
from noisegate.trainers.methods import METHODS
from noisegate.trainers.methods.lnc import soft_margin
from tests.trainers.methods.two_networks import everything, noisy_run, prepared
from tests.trainers.runs import settings


def test_the_warm_up_is_the_plain_triplet_over_everything() -> None:
    run = noisy_run(8, 2)
    ncr = prepared(run, name="ncr", warmup=3)
    step = ncr.loss({"a": everything(run), "b": everything(run)}, run)
    plain = sum(float(triplet(run.images[k] @ run.texts[k].T, 0.2).mean()) for k in (0, 1))
    assert step.loss.item() == pytest.approx(plain)
    assert (ncr.gamma == 1).all()
    run.epoch = 1
    ncr.begin_epoch(run)
    assert ncr.kept.all() and np.isnan(ncr.confidence).all(), "nothing is divided before the warm-up is over"


@pytest.mark.parametrize(("epoch", "noisy"), [(4, 0.0), (5, 1.0)])
def test_noisy_pairs_wait_for_the_second_half(epoch: int, noisy: float) -> None:
    """Of nine epochs after one of warm-up: four without, as the published code rounds down."""
    run = noisy_run()
    ncr = prepared(run, name="ncr", warmup=1)
    ncr.loss({"a": everything(run), "b": everything(run)}, run)
    run.epoch = epoch
    ncr.begin_epoch(run)
    step = ncr.loss({"a": everything(run)}, run)
    s = run.images[0] @ run.texts[0].T
    p = predict_match_by_hinges(s, 0.2)
    own = torch.stack([predict_match_by_hinges(run.images[k] @ run.texts[k].T, 0.2) for k in (0, 1)])
    w = torch.from_numpy(ncr.confidence[1])
    clean = w >= 0.5
    assert clean.tolist() == [False] * 6 + [True] * 14
    label = torch.where(clean, w + (1 - w) * p, own.mean(dim=0))
    each = triplet(s, soft_margin(label), hardest=True)
    assert step.loss.item() == pytest.approx(float(torch.where(clean, each, noisy * each).mean()), rel=1e-4)


def test_the_division_is_the_mixture_of_plain_losses() -> None:
    run = noisy_run()
    ncr = prepared(run, name="ncr", warmup=1, procedure="paper")
    run.epoch = 1
    ncr.begin_epoch(run)
    for network in (0, 1):
        losses = triplet(run.images[network] @ run.texts[network].T, 0.2).numpy()
        np.testing.assert_allclose(ncr.confidence[network], gmm_split(losses).clean_probability, atol=1e-5)


def test_a_whole_run(scored: Path, tmp_path: Path) -> None:
    method = {"name": "ncr", "warmup": 1}
    done = train(settings(scored, tmp_path, method=method, loop__evaluate_every=2), quiet=True)
    assert METHODS["ncr"].networks == 2
    assert set(done.sample_columns) == {"ncr_confidence", "ncr_prediction", "ncr_label"}
    assert all(((v >= 0) & (v <= 1) | np.isnan(v)).all() for v in done.sample_columns.values())
    assert done.steps == 10 and done.last["rsum"] > 0
