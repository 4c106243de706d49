"""Cutting, joining and gathering of encoded batches."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from noisegate.trainers.targets import Encoded, concat, count, gather, gather_tensor, take


def encoded(samples: int, length: int, seed: int) -> Encoded:
    generator = torch.Generator().manual_seed(seed)
    return {
        "vectors": torch.randn(samples, 3, generator=generator),
        "parts": torch.randn(samples, length, 3, generator=generator),
        "mask": torch.ones(samples, length, dtype=torch.bool),
    }


def test_take_accepts_indices_masks_and_slices() -> None:
    given = encoded(4, 2, 0)
    for rows in ([3, 1], torch.tensor([3, 1])):
        assert torch.equal(take(given, rows)["vectors"], given["vectors"][[3, 1]])
    assert torch.equal(take(given, torch.tensor([False, True, False, True]))["mask"], given["mask"][[1, 3]])
    assert count(take(given, slice(1, 3))) == 2


def test_concat_fills_shorter_ones_with_parts_that_are_not_real() -> None:
    joined = concat([encoded(2, 4, 0), encoded(3, 2, 1)])
    assert joined["parts"].shape == (5, 4, 3)
    assert joined["mask"].sum(dim=1).tolist() == [4, 4, 2, 2, 2]
    assert not joined["parts"][2:, 2:].any()
    assert torch.equal(joined["vectors"][2:], encoded(3, 2, 1)["vectors"])


def test_one_process_gathers_nothing() -> None:
    given = encoded(2, 2, 0)
    assert gather(given) is given
    assert gather_tensor(given["vectors"]) is given["vectors"]


def _loss(whole: Encoded) -> torch.Tensor:
    """Not symmetric in the samples, and with every pair of them in it."""
    order = torch.arange(1.0, len(whole["vectors"]) + 1)
    similarity = whole["vectors"] @ whole["vectors"].T
    parts = (whole["parts"] * whole["mask"].unsqueeze(-1)).sum(dim=(1, 2))
    return (similarity.exp() * order * order[:, None].sqrt()).mean() + (parts * order).square().mean()


def _on_one_rank(rank: int, folder: str) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    own = encoded(2, 2 + rank, rank)  # the second rank has longer texts
    leaves = {name: t.requires_grad_() if t.is_floating_point() else t for name, t in own.items()}
    whole = gather(leaves)
    _loss(whole).backward()
    torch.save(
        {
            "mask": whole["mask"],
            "vectors": leaves["vectors"].grad / 2,  # DDP's mean over ranks
            "parts": leaves["parts"].grad / 2,
        },
        f"{folder}/{rank}.pt",
    )
    dist.destroy_process_group()


def test_two_processes_have_the_gradient_of_one(tmp_path: Path) -> None:
    mp.spawn(_on_one_rank, args=(str(tmp_path),), nprocs=2)
    both = [encoded(2, 2, 0), encoded(2, 3, 1)]
    leaves = [{n: t.requires_grad_() if t.is_floating_point() else t for n, t in one.items()} for one in both]
    _loss(concat(leaves)).backward()
    for rank, own in enumerate(leaves):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found["mask"].sum(dim=1).tolist() == [2, 2, 3, 3]
        for name in ("vectors", "parts"):
            torch.testing.assert_close(found[name], own[name].grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [[], torch.zeros(4, dtype=torch.bool)])
def test_taking_nothing_keeps_the_shapes(rows: object) -> None:
    assert take(encoded(4, 2, 0), rows)["parts"].shape == (0, 2, 3)  # type: ignore[arg-type]
