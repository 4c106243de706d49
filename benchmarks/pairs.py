"""Which score tells wrong pairs best, on embeddings of a real CLIP and of drawn scenes whose captions are spoilt on purpose.

python benchmarks/pairs.py FILE.npz … --scenes 2000   # arrays images and texts (N, d): right pairs, row by row
python benchmarks/pairs.py --cost                     # what pair_quality costs over encoding with ViT-B-32
python benchmarks/pairs.py --memory 40000             # peak memory of scoring that many pairs, and ten times as many

For every draw and noise rate some captions are replaced: by one another's, so that the right caption of a wrong pair is in the
pool, by captions of pairs that are left out, so that it is absent, or (scenes) by captions that are false in one attribute. The
AUROC of cosine, `pair_quality` (with the model's own τ, as a run has it, and with one chosen on the data), CSLS (10 neighbours)
and the score that a run takes P(clean) from (`judged`) is that of right against wrong pairs. The calibrations
know nothing of the truth; their error (ECE, ten bins), noise rate and interval are compared with it. The floor of the ECE
is what exact chances would have with as many pairs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.stats import mannwhitneyu

from noisegate.pipeline.estimators.base import normalise, paired_cosines
from noisegate.pipeline.inspect.metrics import calibration_error
from noisegate.pipeline.pairs.beta import PairSample, mismatch_pairs
from noisegate.pipeline.pairs.calibration import QUALITY, PairCalibration
from noisegate.pipeline.pairs.judge import choose_calibration
from noisegate.pipeline.pairs.pair_pool import POOL, TEMPERATURES, try_temperatures
from noisegate.pipeline.pairs.pair_quality import TEMPERATURE, Pool
from noisegate.pipeline.system.array_types import Float32, Floats, Mask

RATES = (0.1, 0.4, 0.6)
CSLS_NEIGHBOURS = 10
IN_POOL, ABSENT, HARD = "in the pool", "absent", "hard negatives"  # kinds of wrong pairs: where the right caption is
MOST = 1000  # pairs of one draw
SCENE_SEED = 991
EMBEDDED_TEMPERATURE = 1 / 43.87  # of the embedded model: exp of its logit_scale
FLOOR_DRAWS = 200  # truths drawn for the error of an exact calibration
NO_ERROR = 1e-5  # below it an error has no ratio


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


def embed_scenes(count: int, seed: int = SCENE_SEED) -> dict[str, Float32]:
    """Unit rows of drawn scenes under the embedded model: pictures, captions, and captions false in one attribute."""
    from noisegate.pipeline.datasets.scenes import caption, draw, random_scene, scene_rng
    from noisegate.pipeline.datasets.scenes.scene import hard_negative
    from noisegate.pipeline.estimators import load_estimator

    model = load_estimator("embedded", device="cpu")
    rngs = [scene_rng(seed, index) for index in range(count)]
    scenes = [random_scene(rng) for rng in rngs]
    captions = [caption(scene, rng) for scene, rng in zip(scenes, rngs, strict=True)]
    changed = [caption(hard_negative(scene, rng), rng) for scene, rng in zip(scenes, rngs, strict=True)]
    return {
        "images": normalise(model.encode_images([draw(scene) for scene in scenes])),
        "texts": normalise(model.encode_texts(captions)),
        "hard": normalise(model.encode_texts(changed)),
    }


def spoil(data: dict[str, Float32], rate: float, kind: str, rng: np.random.Generator) -> tuple[Float32, Float32, Mask]:
    """Pairs of which `rate` are wrong in the way that `kind` says, and which are right; at most MOST pairs."""
    chosen = rng.permutation(len(data["images"]))[:MOST]
    images, texts = data["images"][chosen], data["texts"][chosen]
    if kind != HARD:
        return swap_captions(images, texts, rate, kind == IN_POOL, rng)
    wrong = round(rate * len(chosen))
    texts[:wrong] = data["hard"][chosen][:wrong]
    return images, texts, np.arange(len(chosen)) >= wrong


def calibration_figures(fitted: PairCalibration, chance: Floats, right: Mask) -> dict[str, float]:
    """What a calibration without the truth says, compared with it.

    `ece_floor` is the mean error that these chances have where they are exactly true: right pairs are drawn by them. An ECE is
    never 0 with few pairs.
    """
    noise = 1 - float(right.mean())
    low, high = fitted.noise_interval
    drawn = np.random.default_rng(0).random((FLOOR_DRAWS, len(chance))) < chance
    return {
        "ece": calibration_error(chance, right),
        "ece_floor": float(np.mean([calibration_error(chance, truth) for truth in drawn])),
        "noise_error": abs(fitted.noise_rate - noise),
        "covers": float(low <= noise <= high),
        "group": float(fitted.apart_share > 0),
        "group_error": abs(fitted.apart_share - noise),
    }


def measure(
    images: Float32, texts: Float32, right: Mask, seed: int, own_temperature: float
) -> dict[str, dict[str, float]]:
    """Figures of each score for one draw; `judged` is the score that a run takes P(clean) from."""
    pool = Pool(images, texts)
    tried = try_temperatures(pool, images, texts, seed)
    best = max(TEMPERATURES, key=lambda temperature: tried[f"{temperature:g}"])
    first, second = mismatch_pairs(images, texts, np.random.default_rng(seed))
    rows = np.arange(len(images))
    cosine = PairSample(paired_cosines(images, texts, rows, rows), paired_cosines(images, texts, first, second))
    given, by_data = pool.quality(images, texts, (own_temperature, best))
    quality = PairSample(given, pool.quality(images[first], texts[second], (own_temperature,))[0])
    chosen = choose_calibration(cosine, quality)
    assert chosen is not None
    judged = quality.given if chosen.score == QUALITY else cosine.given
    scores = {"cosine": cosine.given, "pair_quality": given, "chosen_temperature": by_data, "csls": csls(images, texts)}
    figures = {name: {"error": 1 - auroc(score[right], score[~right])} for name, score in scores.items()}
    figures["judged"] = {
        "error": 1 - auroc(judged[right], judged[~right]),
        "by_quality": float(chosen.score == QUALITY),
        **calibration_figures(chosen, chosen.clean_probability(judged), right),
    }
    by_cosine = cosine.calibration
    assert by_cosine is not None
    figures["cosine"] |= calibration_figures(by_cosine, by_cosine.clean_probability(cosine.given), right)
    return figures


def compare(files: list[Path], draws: int, scenes: int, seed: int) -> list[dict[str, Any]]:
    """One row for each data set, noise rate and kind of wrong pair: means over the draws."""
    sets: dict[str, dict[str, Float32]] = {}
    for file in files:
        with np.load(file) as arrays:
            sets[file.stem] = {name: normalise(arrays[name]) for name in ("images", "texts")}
    if scenes:
        sets["scenes"] = embed_scenes(scenes)
    table = []
    for (name, data), rate in product(sets.items(), RATES):
        own = EMBEDDED_TEMPERATURE if name == "scenes" else TEMPERATURE
        for kind in (IN_POOL, ABSENT, *((HARD,) if "hard" in data else ())):
            rng = np.random.default_rng(seed)
            drawn = [measure(*spoil(data, rate, kind, rng), draw, own) for draw in range(draws)]
            means = {
                score: {figure: float(np.mean([one[score][figure] for one in drawn])) for figure in drawn[0][score]}
                for score in drawn[0]
            }
            gains = np.array([one["judged"]["error"] - one["cosine"]["error"] for one in drawn])
            known = means["cosine"]["error"] > NO_ERROR
            table.append(
                {
                    **{"data": name, "noise": rate, "wrong": kind, **means},
                    "ratio": means["judged"]["error"] / means["cosine"]["error"] if known else None,
                    "worse": float(gains.mean()),
                    "worse_sd": float(gains.std(ddof=1)) if draws > 1 else 0.0,
                }
            )
    return table


def print_comparison(table: list[dict[str, Any]]) -> None:
    names = ("cosine", "pair_quality", "chosen_temperature", "csls", "judged")
    heads = "AUROC cosine | quality | at chosen τ | CSLS | judged | by quality | error ratio"
    print(f"| data | noise | right caption | {heads} | ECE cosine → judged (floor) | noise off by | covers |")
    print("| --- " * 13 + "|")
    for row in table:
        cosine, judged = row["cosine"], row["judged"]
        print(
            f"| {row['data']} | {row['noise']:.0%} | {row['wrong']} | "
            + " | ".join(f"{1 - row[name]['error']:.4f}" for name in names)
            + f" | {judged['by_quality']:.0%} | {'–' if row['ratio'] is None else format(row['ratio'], '.2f')} "
            f"| {cosine['ece']:.3f} → {judged['ece']:.3f} ({judged['ece_floor']:.3f}) "
            f"| {judged['noise_error']:.3f} | {judged['covers']:.0%} |"
        )
    swapped = [row for row in table if row["wrong"] != HARD]
    ratios = [row["ratio"] for row in table if row["ratio"] is not None]
    worst = max(row["worse"] - row["worse_sd"] for row in table)
    print(
        f"error ratio: {np.mean(ratios):.3f} on average, {min(ratios):.3f} to {max(ratios):.3f} (goal: .6 on average)"
    )
    print(f"error above the cosine's by more than its deviation: {max(worst, 0):.5f} at worst (goal: 0)")
    for kind, rows in (("swapped captions", swapped), (HARD, [row for row in table if row["wrong"] == HARD])):
        if rows:
            ece, floor, covers = ([row["judged"][name] for row in rows] for name in ("ece", "ece_floor", "covers"))
            print(
                f"{kind}: ECE {np.mean(ece):.3f}, at worst {max(ece):.3f} (goal: .03; {np.mean(floor):.3f} for exact chances); "
                f"interval covers {np.mean(covers):.0%}"
            )
            group, off = ([row["judged"][name] for row in rows] for name in ("group", "group_error"))
            share = f", its share is {np.mean(off):.3f} off the noise" if kind == HARD else ""
            print(f"{kind}: a group apart is reported in {np.mean(group):.0%} of the draws{share}")
    own, best = (np.mean([row[name]["error"] for row in swapped]) for name in ("pair_quality", "chosen_temperature"))
    print(
        f"mean error of pair_quality, swapped captions: {own:.5f} with the model's own τ, {best:.5f} with a chosen one"
    )


def measure_memory(pairs: int, width: int = 64) -> dict[str, float]:
    """Peak memory (MB) of scoring arrays of `pairs` and of ten times as many pairs, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        rows = normalise(rng.standard_normal((pairs, width), np.float32))
        for times in (1, 10):
            for part in ("images", "texts"):
                place = Path(folder, f"{part}-{times}")
                place.mkdir()
                for number in range(times):
                    noise = 0.1 * rng.standard_normal(rows.shape, np.float32)
                    np.save(place / f"{part}_{number:02d}.npy", normalise(np.roll(rows, number, axis=1) + noise))
        peaks = {f"{times}x": _peak_of_scoring(Path(folder), times) for times in (1, 10)}
    return {"pairs": pairs, **peaks, "ratio": peaks["10x"] / peaks["1x"]}


def _peak_of_scoring(folder: Path, times: int) -> float:
    program = (
        "import resource, sys; from noisegate.pipeline.rescore import score_embeddings; "
        "score_embeddings(sys.argv[3], sys.argv[1], texts=sys.argv[2]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    places = [str(folder / f"{name}-{times}") for name in ("images", "texts", "out")]
    done = subprocess.run([sys.executable, "-c", program, *places], check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


def measure_cost(pairs: int) -> dict[str, float]:
    """Processor time (ms) per pair of noisegate's encoding with a ViT-B-32, and of `pair_quality`, by turns.

    Captions have twelve words, and the encoder reads no further; decoding is left out.
    """
    from noisegate.pipeline.estimators import load_estimator

    batch, compared = 32, 512
    model = load_estimator("ViT-B-32", "random:0", device="cpu")
    rng = np.random.default_rng(0)
    pixels = [model.preprocess(Image.fromarray(rng.integers(0, 256, (224, 224, 3), np.uint8))) for _ in range(batch)]
    captions = [f"a photo of {number} red and blue cars in front of an old house" for number in range(batch)]
    images, texts = (normalise(rng.standard_normal((POOL, 512), np.float32)) for _ in range(2))
    pool = Pool(images, texts)
    seconds = np.zeros(2)
    for start in range(-batch, pairs, batch):
        times = [time.process_time()]
        model.encode_pixels(pixels)
        model.encode_texts(captions)
        times.append(time.process_time())
        pool.quality(images[:compared], texts[:compared], TEMPERATURES[:1])
        times.append(time.process_time())
        if start >= 0:  # the first is a warm-up
            seconds += np.diff(times) / (batch, compared)
    encoding, quality = 1000 * seconds / len(range(0, pairs, batch))
    return {
        "encoding_ms": encoding,
        "pair_quality_ms": quality,
        "share": quality / encoding,
        "hours_for_a_million_pairs": quality / 3.6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="the rules were settled with seed 0")
    parser.add_argument("--scenes", type=int, default=0, help="also draw this many scenes")
    parser.add_argument("--memory", type=int, metavar="PAIRS")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--pairs", type=int, default=128, help="pairs that are encoded to measure the cost")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.cost:
        print(json.dumps(measure_cost(args.pairs), indent=1))
    if args.memory:
        print(json.dumps(measure_memory(args.memory), indent=1))
    if args.files or args.scenes:
        table = compare(args.files, args.draws, args.scenes, args.seed)
        print(json.dumps(table, indent=1)) if args.json else print_comparison(table)


if __name__ == "__main__":
    main()
