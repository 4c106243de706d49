"""Read inputs of methods from a weight table: checks of its columns, and OSA's weights of labels.

A table holds the OSA weight of image-caption pairs. For labels s_i is the mean cosine of an image to its class's prompts, or to
the other images of its class, from the embeddings kept beside the tables; β is the cosine where right and shuffled labels are
equally dense, or for prompts the β of random inputs, as in the paper.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.labels import Anchors, anchors_file
from noisegate.pipeline.pairs import PAIRS, Beta, PairSample, estimate_beta, load_scorer, model_of_run, osa_weight
from noisegate.pipeline.runs import COLUMNS, READ_BY_NAME, REVIEW_COLUMNS, RunFolder, read_embeddings
from noisegate.pipeline.system import Float32, Floats, Index

_PAIRS = "noisegate annotate SHARDS --out TABLE"
_MADE_BY = {
    **dict.fromkeys(("similarity", "osa_weight", "pair_quality", "clean", "clean_probability"), _PAIRS),
    "neighbourhood": "noisegate rescore TABLE --neighbourhood",
}
_LABELS = "noisegate annotate SHARDS --task labels --classes NAMES --out TABLE"


def open_finished_run(table: Path | None, setting: str) -> RunFolder:
    """Open the run in `table`; raise ConfigError if there is none or it is not finished."""
    if table is None:
        problem = f"{setting} needs a weight table; give data.table, made by: noisegate annotate SHARDS --out tables"
        raise ConfigError(problem, "data.table")
    run = RunFolder.to_read(table)
    recorded = run.read_run()
    if recorded is None:
        problem = f"holds no run; make one with: noisegate annotate SHARDS --out {table}, or give its folder"
        raise ConfigError.of("data.table", table, problem)
    if recorded.get("finished") is False:
        problem = "holds a run that is not finished; run the same annotate command again, it goes on"
        raise ConfigError.of("data.table", table, problem)
    if next(run.stems(), None) is None:
        raise ConfigError.of("data.table", table, "holds no tables; run the same annotate command again")
    return run


def require_columns(table: Path | None, columns: Iterable[str], setting: str) -> None:
    """Raise ConfigError if a column does not exist or is empty in all tables; `setting` is NAME=VALUE."""
    run = open_finished_run(table, setting)
    for name in columns:
        if name == "shard":
            continue
        if name not in READ_BY_NAME:
            problem = f"{setting}: a table has no column {name!r}; it has {', '.join(COLUMNS)}"
            raise ConfigError(problem, setting.partition("=")[0], name)
        if not has_values(run, name):
            problem = f"{setting}: the column {name} of data.table={table} is empty; fill it with: {_made_by(name)}"
            raise ConfigError(problem, setting.partition("=")[0], name)


def has_values(run: RunFolder, name: str) -> bool:
    """Return whether a column has a value in any table."""
    return any(pc.any(run.read(stem, [name])[name].is_valid()).as_py() for stem in run.stems())


def _made_by(column: str) -> str:
    if column in REVIEW_COLUMNS:
        return "noisegate serve --run TABLE, and mark samples in Browse"
    if column in COLUMNS:
        return _MADE_BY.get(column, _LABELS)
    return f"noisegate rescore TABLE --with {column.partition('_')[0]}"


# --- OSA's weights of labels ----------------------------------------------------------------------------------------------

LABEL_WEIGHT = {"classification": "prompts", "image_retrieval": "images"}
"""what the weight of a label comes from, by task"""


@dataclass(frozen=True)
class LabelWeights:
    """weights: (total_rows,) in the order of the tables, 0 for failed and unlabelled samples; beta: the β of Eq. 5."""

    weights: Float32
    beta: Beta


def describe_missing(table: Path, source: str) -> str | None:
    """Name the missing file that weights of labels by `source` (prompts or images) need; None if all exist."""
    run = RunFolder.to_read(table)
    lost = next((stem for stem in run.stems() if not run.has_embeddings(stem)), None)
    if lost is not None:
        return f"{run.embeddings(lost)} is not there; annotate without --drop-embeddings"
    if source == "prompts" and not anchors_file(run).exists():
        return f"{anchors_file(run)} is not there; annotate with --task labels --classes NAMES"
    return None


def label_weights(
    table: Path,
    stems: Sequence[str],
    source: str,
    beta: str = "intersection",
    monotone: bool | None = None,
    seed: int = 0,
) -> LabelWeights:
    """Compute weights by `prompts` or `images`; monotone None: only for images, whose cosines exceed the largest weight's."""
    if source == "prompts":
        return prompt_weights(table, stems, beta, seed)
    return image_weights(table, stems, beta, monotone is not False, seed)


def prompt_weights(table: Path, stems: Sequence[str], beta: str = "intersection", seed: int = 0) -> LabelWeights:
    """Compute w of s_i = mean cosine of image i to the prompts of its given class (OSA Eq. 3-5, image and class prompt)."""
    run = RunFolder.to_read(table, embeddings=True)
    anchors = Anchors.load(anchors_file(run))
    count = np.bincount(anchors.labels, minlength=len(anchors.names))
    centres = np.zeros((len(anchors.names), anchors.embeddings.shape[1]))
    np.add.at(centres, anchors.labels, anchors.embeddings)
    return _weigh_labels(run, stems, centres / count[:, None], None, beta, False, seed)


def image_weights(
    table: Path, stems: Sequence[str], beta: str = "intersection", monotone: bool = True, seed: int = 0
) -> LabelWeights:
    """Compute w of s_i = mean cosine of image i to the other images of its given class (OSA, image retrieval)."""
    run = RunFolder.to_read(table, embeddings=True)
    sums: dict[int, Floats] = {}
    counts: dict[int, int] = {}
    for images, labels in _read_images(run, stems):
        for label in np.unique(labels[labels >= 0]):
            rows = images[labels == label]
            sums[int(label)] = sums.get(int(label), np.zeros(rows.shape[1])) + rows.sum(axis=0, dtype=np.float64)
            counts[int(label)] = counts.get(int(label), 0) + len(rows)
    if not sums:
        problem = "has no sample with a label; the shards need a part cls or a json field label"
        raise ConfigError.of("data.table", table, problem)
    centres = np.zeros((max(sums) + 1, len(next(iter(sums.values())))))
    size = np.zeros(len(centres))
    for label, total in sums.items():
        centres[label], size[label] = total, counts[label]
    return _weigh_labels(run, stems, centres, size, beta, monotone, seed)


def _weigh_labels(
    run: RunFolder, stems: Sequence[str], centres: Floats, size: Floats | None, mode: str, monotone: bool, seed: int
) -> LabelWeights:
    """Compute cosines to the own class, and to a random class for β; then the weights.

    centres: (C, d), means of anchors, or with `size` (C,) sums of the classes' images, the image itself among them.
    """
    rng = np.random.default_rng(seed)
    present = np.flatnonzero(np.ones(len(centres)) if size is None else size > 0)
    given, other = [], []
    for images, labels in _read_images(run, stems):
        known = labels >= 0
        own = np.where(known, labels, present[0])
        if own.max(initial=0) >= len(centres):
            problem = f"has the label {own.max()} without anchors; annotate with all class names"
            raise ConfigError.of("data.table", run.path, problem)
        drawn = rng.choice(present, len(own))
        to_own, to_drawn = (np.einsum("nd,nd->n", images, centres[classes]) for classes in (own, drawn))
        if size is not None:
            to_own = (to_own - 1) / np.maximum(size[own] - 1, 1)  # subtract the image's cosine with itself, which is 1
            known &= size[own] > 1
            to_drawn = to_drawn / size[drawn]
        given.append(np.where(known, to_own, np.nan))
        other.append(np.where(known & (drawn != own), to_drawn, np.nan))
    cosines, shuffled = np.concatenate(given), np.concatenate(other)
    sample = PairSample(*(_draw_some(values[np.isfinite(values)], rng) for values in (cosines, shuffled)))
    beta = _estimate_beta(sample, mode, seed, None if size is not None else lambda: _beta_of_model(run, seed))
    return LabelWeights(osa_weight(cosines.astype(np.float32), beta.value, monotone), beta)


def _beta_of_model(run: RunFolder, seed: int) -> Beta:
    """Return β of random inputs of the tables' model: recorded, from the cache, or measured now."""
    recorded = (run.read_run() or {}).get("random_inputs")
    if recorded:
        return Beta.from_dict(recorded)
    model = model_of_run(run.recorded(), trust=True)  # not loaded yet
    if effect := model.describe_outside():
        problem = f"needs {model.model} measured, and loading it {effect}; annotate with --beta random_inputs"
        raise ConfigError.of("method.beta", "random_inputs", f"{problem}, or use another method.beta")
    return load_scorer(run.path, beta="random_inputs").beta


def _estimate_beta(sample: PairSample, mode: str, seed: int, random_inputs: Callable[[], Beta] | None) -> Beta:
    """Estimate β by a mode of `pairs.beta`, but `intersection` uses the crossing even if all labels look right.

    In that case the rule for pairs cuts at the mean plus two deviations of the shuffled pairs. This is harmless if captions
    differ as much as pictures do, but would drop half of the right labels if classes are similar (orange circle, red circle).
    """
    learnt = sample.calibration if mode == "intersection" else None
    if learnt is not None and np.isfinite(learnt.crossing) and learnt.crossing > np.mean(sample.mismatched):
        spread = learnt.crossing_sd
        interval = (max(-1.0, learnt.crossing - 1.96 * spread), min(1.0, learnt.crossing + 1.96 * spread))
        return Beta(learnt.crossing, mode, "crossing", spread, len(sample.given), seed, interval)
    return estimate_beta(pairs=sample, mode=mode, seed=seed, random_inputs=random_inputs)


def _read_images(run: RunFolder, stems: Sequence[str]) -> Iterator[tuple[Float32, Index]]:
    """Yield unit image rows and given labels of each table; -1 for no label and for failed samples."""
    for stem in stems:
        table = run.read(stem, ["status", "label"])
        ok = pc.equal(table["status"], "ok").to_numpy()
        labels = np.where(ok, pc.fill_null(table["label"].cast(pa.int64()), -1).to_numpy(), -1)
        images = read_embeddings(run.embeddings(stem), "image")
        length = np.linalg.norm(images, axis=1, keepdims=True)
        yield images / np.maximum(length, 1e-12), np.where(length[:, 0] > 0, labels, -1)


def _draw_some(values: Floats, rng: np.random.Generator) -> Floats:
    return values if len(values) <= PAIRS else rng.choice(values, PAIRS, replace=False)
