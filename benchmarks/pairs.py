"""Which score tells wrong pairs best, on embeddings of a real CLIP whose captions are swapped on purpose.

python benchmarks/pairs.py FILE.npz … --json       # arrays images and texts (N, d): right pairs, row by row
python benchmarks/pairs.py --cost                  # what pair_quality costs over encoding with ViT-B-32

For every draw and noise rate some captions are replaced: by one another's, so that the right caption of a wrong pair is in the
pool, or by captions of pairs that are left out, so that it is absent. The AUROC of cosine, `pair_quality` (with τ chosen on the
data without the truth, as a run does) and CSLS (10 neighbours) is that of right against wrong pairs. Both calibrations know
nothing of the truth; their error (ECE, ten bins), noise rate and interval are compared with it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu

from noisegate.pipeline.estimators.base import normalise, paired_cosines
from noisegate.pipeline.pairs.beta import mismatch_pairs
from noisegate.pipeline.pairs.calibration import calibrate_pairs
from noisegate.pipeline.pairs.pair_pool import POOL, TEMPERATURES, try_temperatures
from noisegate.pipeline.pairs.pair_quality import Pool
from noisegate.pipeline.system.array_types import Float32, Floats, Mask

RATES = (0.1, 0.4, 0.6)
CSLS_NEIGHBOURS = 10


def swap_captions(
    images: Float32, texts: Float32, rate: float, present: bool, rng: np.random.Generator
) -> tuple[Float32, Float32, Mask]:
    """Pairs of which `rate` are wrong, and which are right; `present`: the captions of wrong pairs stay in the data."""
    order = rng.permutation(len(images))
    if present:
        wrong = order[: round(rate * len(order))]
        given = texts.copy()
        given[wrong] = texts[np.roll(wrong, 1)]
        right = np.ones(len(images), bool)
        right[wrong] = False
        return images, given, right
    count = int(len(order) / (1 + rate))
    kept, others = order[:count], order[count:][: round(rate * count)]
    given = texts[kept]
    given[: len(others)] = texts[others]
    return images[kept], given, np.arange(count) >= len(others)


def csls(images: Float32, texts: Float32) -> Float32:
    """(N,) 2 s_ii minus the mean cosines of picture and caption with their nearest others (Conneau et al. 2018)."""
    cosines = images @ texts.T
    own = cosines.diagonal().copy()
    np.fill_diagonal(cosines, -np.inf)
    nearest = [np.sort(side, axis=1)[:, -CSLS_NEIGHBOURS:].mean(axis=1) for side in (cosines, cosines.T)]
    return 2 * own - nearest[0] - nearest[1]


def auroc(high: Floats, low: Floats) -> float:
    """The chance that one of `high` is above one of `low`."""
    return float(mannwhitneyu(high, low).statistic / (len(high) * len(low)))


def calibration_figures(given: Floats, wrong: Floats, right: Mask) -> dict[str, float]:
    """What a calibration without the truth says, compared with it."""
    fitted, noise = calibrate_pairs(given, wrong), 1 - float(right.mean())
    chance = fitted.clean_probability(given)
    bins = np.minimum((chance * 10).astype(int), 9)
    low, high = fitted.noise_interval
    return {
        "ece": float(np.abs(np.bincount(bins, chance - right, 10)).sum() / len(right)),
        "noise_error": abs(fitted.noise_rate - noise),
        "covers": float(low <= noise <= high),
    }


def measure(images: Float32, texts: Float32, right: Mask, seed: int) -> dict[str, dict[str, float]]:
    """Figures of each score for one draw."""
    pool = Pool(images, texts)
    tried = try_temperatures(pool, images, texts, seed)
    best = max(TEMPERATURES, key=lambda temperature: tried[f"{temperature:g}"])
    first, second = mismatch_pairs(images, texts, np.random.default_rng(seed))
    rows = np.arange(len(images))
    scores = {
        "cosine": (paired_cosines(images, texts, rows, rows), paired_cosines(images, texts, first, second)),
        "pair_quality": (
            pool.quality(images, texts, (best,))[0],
            pool.quality(images[first], texts[second], (best,))[0],
        ),
    }
    figures = {
        name: {"error": 1 - auroc(given[right], given[~right]), **calibration_figures(given, wrong, right)}
        for name, (given, wrong) in scores.items()
    }
    figures["pair_quality"]["temperature"] = best
    figures["pair_quality"]["preferred"] = float(tried[f"{best:g}"] > tried["cosine"])
    by_csls = csls(images, texts)
    return figures | {"csls": {"error": 1 - auroc(by_csls[right], by_csls[~right])}}


def compare(files: list[Path], draws: int) -> list[dict[str, Any]]:
    """One row for each file, noise rate and kind of swap: means over the draws."""
    table = []
    for file in files:
        with np.load(file) as arrays:
            images, texts = normalise(arrays["images"]), normalise(arrays["texts"])
        for rate in RATES:
            for present in (True, False):
                rng = np.random.default_rng(0)
                drawn = [measure(*swap_captions(images, texts, rate, present, rng), seed=draw) for draw in range(draws)]
                means = {
                    score: {name: float(np.mean([one[score][name] for one in drawn])) for name in drawn[0][score]}
                    for score in drawn[0]
                }
                gains = np.array([one["pair_quality"]["error"] - one["cosine"]["error"] for one in drawn])
                ratio = means["pair_quality"]["error"] / max(means["cosine"]["error"], 1e-12)
                row = {"data": file.stem, "noise": rate, "caption": "in the pool" if present else "absent", **means}
                table.append({**row, "ratio": ratio, "gain": float(gains.mean()), "gain_sd": float(gains.std(ddof=1))})
    return table


def print_comparison(table: list[dict[str, Any]]) -> None:
    print(
        "| data | noise | right caption | AUROC cosine | pair_quality | CSLS | error ratio | ECE cos → quality | covers |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in table:
        cosine, quality = row["cosine"], row["pair_quality"]
        aurocs = " | ".join(f"{1 - row[name]['error']:.4f}" for name in ("cosine", "pair_quality", "csls"))
        print(
            f"| {row['data']} | {row['noise']:.0%} | {row['caption']} | {aurocs} | {row['ratio']:.2f} "
            f"| {cosine['ece']:.3f} → {quality['ece']:.3f} | {cosine['covers']:.0%} → {quality['covers']:.0%} |"
        )
    for name, values in {
        "error ratio": [row["ratio"] for row in table],
        "ECE of pair_quality": [row["pair_quality"]["ece"] for row in table],
        "coverage of pair_quality": [row["pair_quality"]["covers"] for row in table],
        "pair_quality preferred without the truth": [row["pair_quality"]["preferred"] for row in table],
    }.items():
        print(f"mean {name}: {np.mean(values):.3f} (worst {min(values):.3f} … {max(values):.3f})")


def measure_cost(pairs: int) -> dict[str, float]:
    """Seconds per pair of encoding with ViT-B-32 (weights do not matter) and of `pair_quality`, on this machine."""
    import torch

    from noisegate.pipeline.estimators.loading import allow_torchvision

    allow_torchvision()
    import open_clip

    model = open_clip.create_model("ViT-B-32").eval()
    pixels, tokens = torch.randn(32, 3, 224, 224), torch.randint(1, 49_000, (32, 16))
    tokens = torch.nn.functional.pad(tokens, (0, model.context_length - 16))
    rng = np.random.default_rng(0)
    images, texts = (normalise(rng.standard_normal((POOL, 512), np.float32)) for _ in range(2))
    pool = Pool(images, texts)
    seconds = {"encode": 0.0, "pair_quality": 0.0}
    with torch.inference_mode():
        for start in range(-32, pairs, 32):
            began = time.perf_counter()
            model.encode_image(pixels)
            model.encode_text(tokens)
            middle = time.perf_counter()
            pool.quality(images[:512], texts[:512], TEMPERATURES[:1])
            if start >= 0:  # the first is a warm-up
                seconds["encode"] += (middle - began) / 32
                seconds["pair_quality"] += (time.perf_counter() - middle) / 512
    rounds = -(-pairs // 32)
    result = {f"{name}_ms": 1000 * total / rounds for name, total in seconds.items()}
    million = 1e6 * result["pair_quality_ms"] / 3.6e6
    return result | {
        "share": result["pair_quality_ms"] / result["encode_ms"],
        "hours_for_a_million_pairs": million,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--pairs", type=int, default=128, help="pairs that are encoded to measure the cost")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.cost:
        print(json.dumps(measure_cost(args.pairs), indent=1))
    if args.files:
        table = compare(args.files, args.draws)
        print(json.dumps(table, indent=1)) if args.json else print_comparison(table)


if __name__ == "__main__":
    main()
