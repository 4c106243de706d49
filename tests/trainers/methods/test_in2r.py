"""IN2R by hand: its loss, the memory, prototypes of neighbours, a step, and a whole run."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from noisegate import train
from noisegate.pipeline.methods import gmm_split
from noisegate.trainers.checks import check_config
from noisegate.trainers.config import TrainConfig
from noisegate.trainers.loop.checkpoint import read_checkpoint
from noisegate.trainers.losses import info_nce, triplet
from noisegate.trainers.methods.in2r import GraphRefiner, symmetric_cross_entropy
from tests.errors import refused
from tests.trainers.methods.method_steps import describe, opened
from tests.trainers.methods.two_networks import TwoNetworks, everything, noisy_run, prepared, units
from tests.trainers.runs import curve, same_weights, settings, weights
from tests.trainers.small_targets import CONFIGS
from tests.trainers.small_targets import batch as rows_from


class Mean(nn.Module):
    """A refiner that learns nothing: the unit vector of the neighbours' mean."""

    def forward(self, neighbours: Tensor) -> Tensor:
        return units(neighbours.mean(dim=1))


def with_means(run: TwoNetworks, **how: Any) -> Any:
    """IN2R in the first epoch after its warm-up, with means for refiners."""
    in2r = prepared(run, name="in2r", warmup=1, **how)
    in2r.refiners = nn.ModuleList(nn.ModuleList([Mean(), Mean()]) for _ in range(2))
    run.epoch = 1
    return in2r


def fill(in2r: Any, network: int, images: Tensor, texts: Tensor) -> None:
    """Put these pairs into a network's memory."""
    in2r.memory[network, 0, : len(images)] = images
    in2r.memory[network, 1, : len(texts)] = texts
    in2r.remembered[network] = len(images)
    in2r.remembered_rows[network, : len(images)] = 1000 + np.arange(len(images))  # of no row of the batch


def by_logarithms(s: np.ndarray, tau: float) -> np.ndarray:
    """Both ways, cross-entropy and reverse cross-entropy whose targets are 1 and 1e-7."""
    wanted = np.log(np.eye(len(s)) + 1e-7)
    total = np.zeros(len(s))
    for one_way in (s, s.T):
        p = np.exp(one_way / tau)
        p /= p.sum(axis=1, keepdims=True)
        total += -np.log(np.diagonal(p)) - (wanted * p).sum(axis=1)
    return total / 2


# --- the loss ----------------------------------------------------------------------------------------------------------


def test_symmetric_cross_entropy_by_logarithms() -> None:
    s = np.random.default_rng(0).uniform(-1, 1, (6, 6))
    found = symmetric_cross_entropy(torch.from_numpy(s), 0.3)
    np.testing.assert_allclose(found.numpy(), by_logarithms(s, 0.3), rtol=1e-5)


def test_other_captions_of_a_picture_are_no_negatives() -> None:
    """Rows 0 and 1 show one picture: with the third row alone, each has p = ½."""
    same = torch.eye(3, dtype=torch.bool)
    same[0, 1] = same[1, 0] = True
    found = symmetric_cross_entropy(torch.zeros(3, 3), 1.0, same)
    a = -math.log(1e-7)
    assert found.tolist() == pytest.approx([math.log(2) + a / 2] * 2 + [math.log(3) + a * 2 / 3])


# --- the division and the memory ---------------------------------------------------------------------------------------


def test_the_division_and_how_sure_it_is() -> None:
    run = noisy_run(20, 6)
    in2r = prepared(run, name="in2r", warmup=1, procedure="paper")
    run.epoch = 1
    in2r.begin_epoch(run)
    for network in (0, 1):
        each = triplet(run.images[network] @ run.texts[network].T, 0.2).numpy()
        posterior = gmm_split(each).clean_probability
        np.testing.assert_allclose(in2r.confidence[network], posterior, atol=1e-5)
        assert (in2r.clean[network] == (posterior > 0.5)).all()
        assert in2r.sure[network] == pytest.approx(posterior[posterior > 0.5].mean(), rel=1e-5)
    assert (
        in2r.sample_columns()["in2r_probability"][:6].max() < 0.5 < in2r.sample_columns()["in2r_probability"][6:].min()
    )


def test_the_memory_replaces_the_oldest_pairs() -> None:
    run = noisy_run(8, 2)
    in2r = with_means(run, memory=3, neighbours=2)
    seen = run.forward(everything(run))
    for rows, expected in (([0, 1], [0, 1]), ([4, 5], [5, 1, 4]), ([2, 3, 6, 7], [7, 3, 6])):
        in2r.remember(seen, 1, torch.isin(torch.arange(8), torch.tensor(rows)))
        assert in2r.memory[1, 0, : len(expected)].equal(run.images[0][expected])
        assert in2r.memory[1, 1, : len(expected)].equal(run.texts[0][expected])
    assert in2r.remembered.tolist() == [0, 7]
    assert not in2r.memory[0].any()


def test_the_memory_holds_a_pair_once() -> None:
    """The newer vectors count: those of the second time, which are the partner's here."""
    run = noisy_run(8, 2)
    in2r = with_means(run, memory=6, neighbours=2)
    for network, rows in ((0, [0, 1, 2]), (1, [1, 3])):
        in2r.remember(run.forward(everything(run), network), 0, torch.isin(torch.arange(8), torch.tensor(rows)))
    assert in2r.remembered_rows.tolist() == [[0, -1, 2, 1, 3, -1], [-1] * 6]
    assert in2r.memory[0, 0, 3:5].equal(run.images[1][[1, 3]])


def test_a_pair_that_was_not_judged_is_not_remembered() -> None:
    """It counts as clean, but nobody is sure of it."""
    run = noisy_run(6, 0)
    in2r = with_means(run)
    in2r.confidence[1] = [0.9, np.nan, 0.95, np.nan, 0.99, 0.7]
    in2r.clean[1] = True
    in2r.sure[:] = 0.0, 0.8
    in2r.loss({"a": everything(run)}, run)
    assert in2r.remembered_rows[0].tolist() == [0, 2, 4, -1, -1, -1]


def test_a_pair_is_no_neighbour_of_itself() -> None:
    """Or a noisy pair that once counted as clean would learn from its own text."""
    run = noisy_run(6, 2)
    in2r = with_means(run, neighbours=1)
    seen, noisy = run.forward(everything(run)), torch.tensor([0, 5])
    fill(in2r, 0, run.images[0][2:], run.texts[0][2:])
    expected = in2r.rectified_loss(seen, noisy, 0)
    in2r.remember(seen, 0, torch.arange(6) == 0)
    assert in2r.remembered_rows[0].tolist() == [1000, 1001, 1002, 1003, 0, -1]
    assert in2r.rectified_loss(seen, noisy, 0).equal(expected)
    in2r.remembered_rows[0, 4] = 1004  # another pair with the same vectors is a neighbour
    assert not in2r.rectified_loss(seen, noisy, 0).allclose(expected)


def test_a_memory_smaller_than_the_number_of_neighbours_is_refused() -> None:
    with refused("method.memory", 3):
        prepared(noisy_run(6, 2), name="in2r", warmup=1, memory=3)


def test_a_network_remembers_pairs_as_sure_as_its_partners_clean_ones() -> None:
    run = noisy_run(6, 0)
    in2r = with_means(run)
    in2r.confidence[1] = [0.9, 0.6, 0.95, 0.8, 0.99, 0.2]
    in2r.clean[1] = [True, True, True, True, False, False]
    in2r.sure[:] = 0.0, 0.8
    in2r.loss({"a": everything(run)}, run)
    assert in2r.remembered.tolist() == [3, 0]
    assert in2r.memory[0, 0, :3].equal(run.images[0][[0, 2, 3]])


# --- prototypes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("memory_of", "asked"), [("own", 0), ("partner", 1)])
def test_prototypes_of_the_nearest_remembered_pairs(memory_of: str, asked: int) -> None:
    """Texts of the two pairs with the nearest images, images of the two with the nearest texts; all in one memory."""
    generator = torch.Generator().manual_seed(1)
    run = TwoNetworks(*(units(torch.randn(2, 7, 5, generator=generator)) for _ in range(2)))
    known_images, known_texts = (units(torch.randn(6, 5, generator=generator)) for _ in range(2))
    in2r = with_means(run, neighbours=2, memory_of=memory_of)
    fill(in2r, asked, known_images, known_texts)
    noisy = torch.tensor([0, 2, 3, 6])
    found = in2r.rectified_loss(run.forward(everything(run)), noisy, 0)

    images, texts = run.images[0][noisy].numpy(), run.texts[0][noisy].numpy()
    expected = np.zeros(4)
    for queries, near, far in ((images, known_images, known_texts), (texts, known_texts, known_images)):
        prototypes = []
        for query in queries:
            order = sorted(range(6), key=lambda n: -float(query @ near[n].numpy()))[:2]
            mean = far[order].numpy().mean(axis=0)
            prototypes.append(mean / np.linalg.norm(mean))
        expected += by_logarithms(queries @ np.stack(prototypes).T, 0.05)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)


def test_without_enough_pairs_there_are_no_prototypes() -> None:
    run = noisy_run(6, 2)
    in2r = with_means(run, neighbours=3)
    seen, some = run.forward(everything(run)), torch.tensor([0, 1])
    fill(in2r, 0, run.images[0][:2], run.texts[0][:2])
    assert in2r.rectified_loss(seen, some, 0).tolist() == [0, 0]
    fill(in2r, 0, run.images[0][:3], run.texts[0][:3])
    assert in2r.rectified_loss(seen, some, 0).min() > 0
    assert in2r.rectified_loss(seen, some[:1], 0).tolist() == [0], "one pair has no negatives"


def test_the_refiner_by_its_own_attention() -> None:
    """One head: softmax of scaled products, the residual, the norm, the mean, the unit length."""
    torch.manual_seed(0)
    refiner = GraphRefiner(3)
    assert refiner.attention.num_heads == 1 and GraphRefiner(8).attention.num_heads == 4
    neighbours = torch.randn(2, 4, 3)
    query, key, value = nn.functional.linear(
        neighbours, refiner.attention.in_proj_weight, refiner.attention.in_proj_bias
    ).chunk(3, dim=-1)
    context = refiner.attention.out_proj((query @ key.mT / 3**0.5).softmax(dim=-1) @ value)
    expected = units(nn.functional.layer_norm(neighbours + context, (3,)).mean(dim=1))
    torch.testing.assert_close(refiner(neighbours), expected)


# --- steps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", [True, False])
def test_the_warm_up_compares_pairs_and_views(views: bool) -> None:
    run = noisy_run(10, 3)
    in2r = prepared(run, name="in2r", views=views)
    step = in2r.loss({"b": everything(run)}, run)
    images, texts = run.images[1].numpy(), run.texts[1].numpy()
    sides = (images @ texts.T, images @ images.T, texts @ texts.T)[: 3 if views else 1]
    expected = sum(by_logarithms(s, 0.05) for s in sides)
    assert step.loss.item() == pytest.approx(float(np.mean(expected)), rel=1e-5)
    assert run.forwards == ([1, 1] if views else [1]), "two views of each sample"
    assert not in2r.remembered.any()


@pytest.mark.parametrize("loss", ["hardest_triplet", "triplet", "info_nce"])
@pytest.mark.parametrize(("correction", "views"), [(0.0, True), (0.7, True), (0.7, False)])
def test_a_step_learns_clean_pairs_and_prototypes_of_noisy_ones(loss: str, correction: float, views: bool) -> None:
    run = noisy_run(12, 4)
    in2r = with_means(run, loss=loss, correction=correction, views=views, neighbours=2)
    fill(in2r, 0, run.images[0][4:], run.texts[0][4:])
    in2r.clean[0], in2r.clean[1] = True, np.arange(12) >= 4  # A must take B's
    step = in2r.loss({"a": everything(run)}, run)
    images, texts = run.images[0], run.texts[0]
    sides = [(images @ texts.T, 0.2), (images @ images.T, 0.3), (texts @ texts.T, 0.3)][: 3 if views else 1]
    if loss == "info_nce":
        clean = sum(info_nce(s, 0.05) for s, _ in sides)
    else:
        clean = sum(triplet(s, margin, hardest=loss == "hardest_triplet") for s, margin in sides)
    rectified = in2r.rectified_loss(run.forward(everything(run)), torch.arange(4), 0)
    c = correction if loss == "info_nce" else correction / 12  # hinges are added, the others averaged
    expected = (clean[4:].sum() + c * rectified.sum()) / 12  # type: ignore[index]
    assert step.loss.item() == pytest.approx(float(expected), rel=1e-5)
    assert rectified.min() > 0


def test_noisy_pairs_can_wait() -> None:
    run = noisy_run(12, 4)
    in2r = with_means(run, noisy_from=1.0, neighbours=2)
    fill(in2r, 0, run.images[0][4:], run.texts[0][4:])
    in2r.clean[1] = False
    assert in2r.loss({"a": everything(run)}, run).loss.item() == 0
    assert in2r.loss({"a": rows_from(0, 1)}, run).loss is None


def test_refiners_and_the_network_learn_from_noisy_pairs(scored: Path, tmp_path: Path) -> None:
    """No pair is clean: all gradients of network A come from prototypes, also those of its refiners; B's have none."""
    with opened(describe(scored, tmp_path, "in2r", neighbours=2)) as steps:
        steps.go_to(2)
        in2r: Any = steps.method
        assert (in2r.remembered > 2).all()
        steps.batches = {"a": steps.batches["a"]}
        in2r.clean[1] = False
        steps.step(None)
        touched = [
            [any(p.grad is not None and bool(p.grad.any()) for p in module.parameters()) for module in modules]
            for modules in (steps.context.networks, *in2r.refiners)
        ]
    assert touched == [[True, False], [True, True], [False, False]]


def test_gradients_of_refiners_are_clipped(scored: Path, tmp_path: Path) -> None:
    """With plain descent at rate 1, the refiners of a network move by the clipped norm, together."""
    tree = describe(scored, tmp_path, "in2r", neighbours=2)
    optimizer = {"name": "sgd", "lr": 1.0, "momentum": 0.0, "weight_decay": 0.0}
    with opened({**tree, "optimizer": optimizer, "loop": {**tree["loop"], "clip": 1e-3}}) as steps:
        steps.go_to(2)
        modules = list(steps.method.refiners)  # type: ignore[attr-defined]
        before = [nn.utils.parameters_to_vector(module.parameters()).detach().clone() for module in modules]
        steps.loop.backward(steps.batches)
        assert steps.loop.update() > 1e-3
        moved = [
            float((nn.utils.parameters_to_vector(module.parameters()).detach() - old).norm())
            for module, old in zip(modules, before, strict=True)
        ]
    assert moved == pytest.approx([1e-3, 1e-3], rel=1e-2)


# --- a run -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("procedure", "memory_of"), [("lean", "own"), ("paper", "partner")])
def test_a_whole_run_and_going_on_with_it(scored: Path, tmp_path: Path, procedure: str, memory_of: str) -> None:
    """Refiners and memory, too, are those of the unbroken run."""
    own = {"procedure": procedure, "memory_of": memory_of, "neighbours": 2, "memory": 50}
    how = {"name": "in2r", "warmup": 1, **own}
    whole = train(settings(scored, tmp_path, method=how, loop__epochs=3), quiet=True)
    part = train(settings(scored, tmp_path, method=how, loop__epochs=3, loop__max_steps=8), quiet=True)
    stopped = read_checkpoint(part.folder / "state.safetensors").group("method_modules")
    rest = train(resume=part.folder, settings=["loop.max_steps=null"], quiet=True)
    for name in ("last", "last-1"):
        assert same_weights(whole.folder / f"{name}.safetensors", rest.folder / f"{name}.safetensors")
    assert curve(rest.folder) == curve(whole.folder)
    expected, found = (read_checkpoint(run.folder / "state.safetensors") for run in (whole, rest))
    modules = found.group("method_modules")
    assert len(modules) == 2 * 2 * 6
    for group in ("method", "method_modules"):
        torch.testing.assert_close(found.group(group), expected.group(group), rtol=0, atol=0, equal_nan=True)
    assert not any(modules[name].equal(old) for name, old in stopped.items() if old.ndim > 1), "they learn"
    assert found.group("method")["memory"].any(dim=-1).all()
    assert set(whole.sample_columns) == {"in2r_probability"}


@pytest.mark.parametrize(("memory_of", "same"), [("partner", True), ("own", False)])
def test_networks_that_ask_each_other_start_from_the_same_weights(
    scored: Path, tmp_path: Path, memory_of: str, same: bool
) -> None:
    """Neither has moved, at a rate of nearly 0."""
    how = {"name": "in2r", "warmup": 1, "memory_of": memory_of}
    run = train(settings(scored, tmp_path, method=how, optimizer__lr=1e-30), quiet=True)
    first, second = (dict(weights(run.folder / f"{name}.safetensors")) for name in ("last", "last-1"))
    assert all(torch.allclose(first[name], second[name], rtol=0, atol=1e-20) for name in first) == same


def test_a_method_without_modules_saves_none(scored: Path, tmp_path: Path) -> None:
    """So older checkpoints are no different."""
    run = train(settings(scored, tmp_path, "baseline", loop__epochs=1), quiet=True)
    groups = {name.partition("/")[0] for name in read_checkpoint(run.folder / "state.safetensors").tensors}
    assert groups == {"network0", "optimizer", "rng"}


@pytest.mark.parametrize("name", ["sgraf", "scan"])
def test_a_target_of_regions_and_words_is_refused(scored: Path, tmp_path: Path, name: str) -> None:
    tree = settings(
        scored, tmp_path, method={"name": "in2r", "warmup": 1}, data__image_part="npy", target=CONFIGS[name]
    )
    with refused("target.name", name) as caught:
        check_config(TrainConfig.parse(tree))
    assert "use dual or clip" in str(caught.value)
