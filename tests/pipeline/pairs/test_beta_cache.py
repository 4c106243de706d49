"""β of a model is remembered per scorer and seed, and nothing that happens to the cache can stop a run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from noisegate.pipeline.estimators.base import Identity
from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.pairs.beta_cache import cache_file, cached_beta

BETA = Beta(0.1 + 0.2, "random_inputs", "β", 0.024, 65536, 3, (0.29, 0.31))
MODEL = Identity("m", "sha", "p", "d", "float32", (("torch", "2"),))


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def counted() -> tuple[Callable[[], Beta], list[int]]:
    calls: list[int] = []

    def compute() -> Beta:
        calls.append(1)
        return BETA

    return compute, calls


def test_it_is_computed_once_and_comes_back_the_same() -> None:
    compute, calls = counted()
    assert cached_beta(MODEL, 3, compute) == cached_beta(MODEL, 3, compute) == BETA
    assert len(calls) == 1


def test_another_scorer_or_seed_has_its_own() -> None:
    compute, calls = counted()
    other = Identity("m", "sha", "p", "d", "bfloat16", (("torch", "2"),))
    for model, seed in ((MODEL, 3), (MODEL, 4), (other, 3)):
        cached_beta(model, seed, compute)
    assert len(calls) == 3


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "{}", '{"value": 7, "mode": "x"}', '{"colour": 1}', '"a"'])
def test_a_damaged_entry_is_computed_and_written_again(text: str) -> None:
    path = cache_file(MODEL, 3)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    compute, calls = counted()
    assert cached_beta(MODEL, 3, compute) == cached_beta(MODEL, 3, compute) == BETA
    assert len(calls) == 1


def test_a_cache_that_cannot_be_used_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "noisegate").write_text("a file where the folder should be")
    compute, calls = counted()
    assert cached_beta(MODEL, 3, compute) == BETA
    cache = tmp_path / "noisegate"
    cache.unlink()
    cache_file(MODEL, 3).mkdir(parents=True)
    assert cached_beta(MODEL, 3, compute) == BETA
    assert len(calls) == 2
