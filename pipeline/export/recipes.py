"""Published recipes to select training data by columns of the tables: `export --recipe`.

A recipe gives every row a count: how often the row goes into the export. To add one, write a function from columns to counts
and name it in `RECIPES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from noisegate.pipeline.errors import ConfigError, did_you_mean
from noisegate.pipeline.system.array_types import Float32, Float64, Index

TARGET_TOP = 2 / 3  # share of the pairs kept by negCLIPLoss: those nearest to the target pictures
PENALTY = 0.15  # subtracted from the log of a row's probability each time it is drawn
BATCH = 1 / 200  # share of the rows drawn at a time

Columns = Mapping[str, Float32]


@dataclass(frozen=True)
class Recipe:
    """A recipe: `count(columns, share, rng)` returns how often each row is taken, (N,).

    `columns` are (N,), NaN for rows left out.

    `share` is the default share of the scored rows to take. `repeats`: a row may be taken more than once.
    """

    columns: tuple[str, ...]
    count: Callable[[Columns, float, np.random.Generator], Index]
    share: float
    source: str
    repeats: bool = False


def top_share(scores: Float32, share: float) -> Index:
    """Return 1 for the `share` of scored rows with the highest scores, else 0, (N,); ties go to the earlier row.

    >>> top_share(np.array([0.1, 0.4, np.nan, 0.3, 0.2]), 0.5).tolist()
    [0, 1, 0, 1, 0]
    """
    scored = np.flatnonzero(~np.isnan(scores))
    order = scored[np.argsort(-scores[scored], kind="stable")]
    counts = np.zeros(len(scores), np.int64)
    counts[order[: round(share * len(scored))]] = 1
    return counts


def soft_cap(log_probability: Float64, draws: int, penalty: float, rng: np.random.Generator) -> Index:
    """Return how often each row is drawn, (N,), by probabilities exp(log_probability) that each draw lowers by `penalty`.

    A BATCH is drawn without replacement, by the largest log-probability plus Gumbel noise; the penalty
    is applied after each. NaN and -inf are never drawn. (Soft Cap Sampling of FLYT, Shechter and Carmon 2025.)
    """
    left = np.where(np.isnan(log_probability), -np.inf, log_probability.astype(np.float64))
    counts = np.zeros(len(left), np.int64)
    usable = int(np.isfinite(left).sum())
    batch = max(1, round(BATCH * usable))
    while usable and draws > 0:
        size = min(batch, draws)
        keys = left + rng.gumbel(size=len(left))
        chosen = np.argpartition(-keys, size - 1)[:size]
        counts[chosen] += 1
        left[chosen] -= penalty
        draws -= size
    return counts


def _clip_score(columns: Columns, share: float, rng: np.random.Generator) -> Index:
    return top_share(columns["similarity"], share)


def _quality_and_target(columns: Columns, share: float, rng: np.random.Generator) -> Index:
    kept = top_share(columns["negcliploss"], share)
    return kept * top_share(np.where(kept > 0, columns["normsim"], np.float32(np.nan)), TARGET_TOP)


def _soft_cap(columns: Columns, share: float, rng: np.random.Generator) -> Index:
    """Draw each pair with a probability proportional to its P(clean)."""
    chance = columns["clean_probability"].astype(np.float64)
    with np.errstate(divide="ignore"):  # a row of probability 0 is never drawn
        logs = np.log(chance)
    return soft_cap(logs, round(share * int((~np.isnan(chance)).sum())), PENALTY, rng)


RECIPES: dict[str, Recipe] = {
    "clip-score": Recipe(
        ("similarity",), _clip_score, 0.3, "the top 30 % by CLIP score, DataComp's baseline (arXiv 2304.14108)"
    ),
    "negcliploss-normsim": Recipe(
        ("negcliploss", "normsim"),
        _quality_and_target,
        0.3,
        "the top 30 % by negCLIPLoss, and of these the two thirds nearest to the target pictures (arXiv 2405.19547)",
    ),
    "soft-cap": Recipe(
        ("clean_probability",),
        _soft_cap,
        1.0,
        "as many draws as rows, by P(clean), with a penalty for repetition (FLYT, arXiv 2503.08805)",
        repeats=True,
    ),
}


def find_recipe(name: str) -> Recipe:
    """Return the recipe of this name; raise ConfigError if there is none."""
    if name not in RECIPES:
        raise ConfigError.of("recipe", name, f"is unknown; use {', '.join(RECIPES)}{did_you_mean(name, RECIPES)}")
    return RECIPES[name]
