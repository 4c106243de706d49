"""OSA's weight of a label: how well an image goes with its class's prompts, or with the other images of its class.

Tables hold the weight of image-caption pairs. For labels the same estimator's embeddings, kept beside the tables, give the
cosine that Eq. 5 wants; β is where right and shuffled labels are equally dense (METHODS 1.2, `intersection`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.labels.anchors import Anchors, anchors_file
from noisegate.pipeline.pairs.beta import PAIRS, Beta, PairSample, estimate_beta
from noisegate.pipeline.pairs.osa import osa_weight
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.system.array_types import Float32, Floats, Index

__all__ = ["LabelWeights", "image_weights", "missing_for", "prompt_weights"]


@dataclass(frozen=True)
class LabelWeights:
    """(total_rows,) float32 in the order of the tables asked for, 0 for failed and unlabelled samples; the β behind them."""

    weights: Float32
    beta: Beta


def missing_for(table: Path, prompts: bool) -> str | None:
    """What the weights cannot do without, in words; None when all is there."""
    run = RunFolder(table)
    lost = next((stem for stem in run.stems() if not run.embeddings(stem).exists()), None)
    if lost is not None:
        return f"{run.embeddings(lost)} is not there; annotate without --drop-embeddings"
    if prompts and not anchors_file(run).exists():
        return f"{anchors_file(run)} is not there; annotate with --task labels --classes NAMES"
    return None


def prompt_weights(table: Path, stems: Sequence[str], beta: str = "intersection", seed: int = 0) -> LabelWeights:
    """w of s_i = mean cosine of image i to the prompts of its given class (OSA Eq. 3-5, image and class prompt)."""
    run = RunFolder(table)
    anchors = Anchors.load(anchors_file(run))
    count = np.bincount(anchors.labels, minlength=len(anchors.names))
    centres = np.zeros((len(anchors.names), anchors.embeddings.shape[1]))
    np.add.at(centres, anchors.labels, anchors.embeddings)
    return _weigh(run, stems, centres / count[:, None], None, beta, False, seed)


def image_weights(
    table: Path, stems: Sequence[str], beta: str = "intersection", monotone: bool = True, seed: int = 0
) -> LabelWeights:
    """w of s_i = mean cosine of image i to the other images of its given class (METHODS 2, image retrieval)."""
    run = RunFolder(table)
    sums: dict[int, Floats] = {}
    counts: dict[int, int] = {}
    for images, labels in _blocks(run, stems):
        for label in np.unique(labels[labels >= 0]):
            rows = images[labels == label]
            sums[int(label)] = sums.get(int(label), np.zeros(rows.shape[1])) + rows.sum(axis=0, dtype=np.float64)
            counts[int(label)] = counts.get(int(label), 0) + len(rows)
    if not sums:
        raise ConfigError(
            f"data.table={table}: no sample has a label; the shards need a part cls or a json field label"
        )
    centres = np.zeros((max(sums) + 1, len(next(iter(sums.values())))))
    size = np.zeros(len(centres))
    for label, total in sums.items():
        centres[label], size[label] = total, counts[label]
    return _weigh(run, stems, centres, size, beta, monotone, seed)


def _weigh(
    run: RunFolder, stems: Sequence[str], centres: Floats, size: Floats | None, mode: str, monotone: bool, seed: int
) -> LabelWeights:
    """Cosines to the own class, and to one drawn at random for β; then the weights.

    centres: (C, d), means of anchors, or with `size` (C,) sums of the classes' images, the image itself among them.
    """
    rng = np.random.default_rng(seed)
    present = np.flatnonzero(np.ones(len(centres)) if size is None else size > 0)
    given, other = [], []
    for images, labels in _blocks(run, stems):
        known = labels >= 0
        own = np.where(known, labels, present[0])
        if own.max(initial=0) >= len(centres):
            raise ConfigError(f"data.table={run.path}: label {own.max()} has no anchors; annotate with all class names")
        drawn = rng.choice(present, len(own))
        to_own, to_drawn = (np.einsum("nd,nd->n", images, centres[classes]) for classes in (own, drawn))
        if size is not None:
            to_own = (to_own - 1) / np.maximum(size[own] - 1, 1)  # rows are units: less the image with itself
            known &= size[own] > 1
            to_drawn = to_drawn / size[drawn]
        given.append(np.where(known, to_own, np.nan))
        other.append(np.where(known & (drawn != own), to_drawn, np.nan))
    cosines, shuffled = np.concatenate(given), np.concatenate(other)
    sample = PairSample(*(_some(values[np.isfinite(values)], rng) for values in (cosines, shuffled)))
    found = _beta(sample, mode, seed)
    return LabelWeights(osa_weight(cosines.astype(np.float32), found.value, monotone), found)


def _beta(sample: PairSample, mode: str, seed: int) -> Beta:
    """By one of the modes of `pairs.beta`, but `intersection` keeps to the crossing also where all labels look right.

    There the pairs' rule cuts at the mean plus two deviations of the shuffled, which is harmless where captions differ as
    much as pictures do, and would drop half of the right labels where classes are alike (orange circle, red circle).
    """
    learnt = sample.calibration if mode == "intersection" else None
    if learnt is not None and np.isfinite(learnt.crossing) and learnt.crossing > np.mean(sample.mismatched):
        spread = learnt.crossing_sd
        interval = (max(-1.0, learnt.crossing - 1.96 * spread), min(1.0, learnt.crossing + 1.96 * spread))
        return Beta(learnt.crossing, mode, "crossing", spread, len(sample.given), seed, interval)
    return estimate_beta(pairs=sample, mode=mode, seed=seed)


def _blocks(run: RunFolder, stems: Sequence[str]) -> Iterator[tuple[Float32, Index]]:
    """Unit image rows and given labels of each table; -1 for none and for samples that failed."""
    for stem in stems:
        table = run.read(stem, ["status", "label"])
        ok = pc.equal(table["status"], "ok").to_numpy()
        labels = np.where(ok, pc.fill_null(table["label"].cast(pa.int64()), -1).to_numpy(), -1)
        images = read_embeddings(run.embeddings(stem), "image")
        length = np.linalg.norm(images, axis=1, keepdims=True)
        yield images / np.maximum(length, 1e-12), np.where(length[:, 0] > 0, labels, -1)


def _some(values: Floats, rng: np.random.Generator) -> Floats:
    return values if len(values) <= PAIRS else rng.choice(values, PAIRS, replace=False)
