"""Sizes, and parts that fit them."""

from dataclasses import replace

import pytest

from noisegate.pipeline.neighbours.plan import Plan, cut
from noisegate.pipeline.system.machine import default_memory, read_size
from tests.errors import refused

PLAN = Plan("rows", "image", (), (), 512, 100_000_000, 21, "flat", 1024, 4096, 0, "cpu", 0)


@pytest.mark.parametrize("kind", ["flat", "ivf", "ivf-pq"])
@pytest.mark.parametrize("memory", [300_000_000, 8_000_000_000, 64_000_000_000])
def test_a_task_keeps_to_its_memory_and_uses_it(kind: str, memory: int) -> None:
    plan = cut(replace(PLAN, kind=kind), memory, threads=4)  # type: ignore[arg-type]
    assert plan.need <= memory
    assert plan.part % 1024 == plan.span % 4096 == 0
    assert sum(end - begin for begin, end in map(plan.bounds, range(plan.parts))) == 100_000_000
    assert plan.parts == 1 or plan.need > 0.6 * memory
    assert plan.spans()[0] == (0, plan.span)
    assert plan.spans()[-1][1] == 100_000_000


def test_a_machine_with_more_threads_than_the_one_that_planned_keeps_to_the_memory_too() -> None:
    near, far = (cut(PLAN, 8_000_000_000, 2, remote=remote) for remote in (False, True))
    each = 4 * 4096 * 1024 + 4096 * (8 * 512 + 36 * 21 + 96)  # as docs/neighbours.md has it
    assert near.threads == 2
    assert far.threads == 1_000_000_000 // each > 20
    assert far.need <= 8_000_000_000
    assert far.need - near.need == pytest.approx((far.threads - 2) * each - 2048 * (near.part - far.part), abs=1)
    assert cut(PLAN, 300_000_000, 4, remote=True).threads == 4  # never fewer than here


def test_more_memory_means_fewer_parts() -> None:
    parts = [cut(PLAN, memory, threads=4).parts for memory in (10**9, 10**10, 10**11, 10**12)]
    assert parts == sorted(parts, reverse=True)
    assert parts[-1] == 1
    assert parts[0] > 200


def test_a_small_search_is_one_part() -> None:
    plan = cut(replace(PLAN, distinct=5000), 10**9, threads=2)
    assert (plan.part, plan.parts) == (5120, 1)


def test_too_little_memory_says_how_much_would_do() -> None:
    with refused("neighbour-memory", 20_000_000) as found:
        cut(PLAN, 20_000_000, threads=4)
    enough = int(str(found.value).rpartition("use ")[2].split("MB")[0])
    assert cut(PLAN, enough * 1_000_000, threads=4).need <= enough * 1_000_000


@pytest.mark.parametrize("text", ["8 apples", "", "1MB", "-8GB", "GB"])
def test_a_size_that_is_none_is_named(text: str) -> None:
    with refused("neighbour-memory", text):
        read_size(text)


def test_the_default_is_some_of_what_the_machine_has() -> None:
    assert 16_000_000 <= default_memory() < 10**14
