"""OSA, One-Step Anti-noise: the table's weights on any per-sample loss.

    s_i  = cos(image i, text i)                            Eq. 3   by `noisegate annotate`; `prompt_weights`, `image_weights`
    β    = the cosine of pairs that do not match           Eq. 4   pipeline.pairs.beta: `estimate_beta`
    w_i  = x² (1 - x) where x = s_i - β > 0, else 0        Eq. 5   pipeline.pairs.osa: `osa_weight`
    L_re = w_i L_i                                         Eq. 6   `Osa.loss`

Tables hold the weight of image-caption pairs. For labels, s_i is the mean cosine of an image to its class's prompts, or to the
other images of its class, from the embeddings kept beside the tables; β is where right and shuffled labels are equally dense,
or for prompts that of random inputs, as in the paper.

Where a loss puts the images of a class together (image retrieval), L_i is a mean over the others of the class, in which each
counts by its own weight: the paper does not say so, but otherwise a
wrong label would enter the losses of all images that share it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.labels import Anchors, anchors_file
from noisegate.pipeline.pairs import PAIRS, Beta, PairSample, estimate_beta, load_scorer, model_of_run, osa_weight
from noisegate.pipeline.runs import RunFolder, read_embeddings, read_metadata
from noisegate.pipeline.settings import check_beta_mode
from noisegate.pipeline.system import Float32, Floats, Index
from noisegate.trainers.data import Batch
from noisegate.trainers.losses import weighted

from .base import ALL, Array, Method, MethodConfig, Run, StepLoss, open_finished_run, require_columns

FEW_WEIGHTED = 0.1
"""share of samples with a weight, below which a note warns that β may be too high; chosen"""
AUTO = {"retrieval": "osa_weight", "classification": "prompts", "image_retrieval": "images"}


class OsaConfig(MethodConfig):
    """Weights and how they enter the loss."""

    name: Literal["osa"] = "osa"
    weight: str = "auto"
    """a column such as clean_probability; prompts or images: Eq. 5 of the labels, from the kept embeddings; auto: osa_weight
    for retrieval, prompts for classification, images for image_retrieval"""
    mode: Literal["mean1", "raw", "batch_sum", "max1", "reference"] = "mean1"
    monotone: bool | None = None
    """hold Eq. 5 at its largest beyond x = 2/3; None: for image-image pairs only, whose cosines reach so far"""
    beta: str = "intersection"
    """of labels, where weight is prompts or images: intersection, fixed:VALUE, and for prompts random_inputs (the paper's) or
    auto, which takes random_inputs where that lies clearly between shuffled and given labels"""
    drop_negatives: bool = False
    """samples without weight are no negatives for the others either"""


class Osa(Method):
    """L_re = w_i L_i (Eq. 6), scaled by `mode` so that the learning rate keeps its meaning."""

    Config: ClassVar[type[MethodConfig]] = OsaConfig
    needs_table: ClassVar[bool] = True
    config: OsaConfig

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        weight = self.config.weight
        self.source = AUTO[task] if weight == "auto" else weight
        self.by_row: Tensor | None = None
        """(total_rows,) weights that no column holds"""
        self.beta = 0.0
        self.mean_weight: float | None = None
        if self.config.mode == "reference" and self.source != "osa_weight":
            problem = f"is about image-text pairs, and the weight is {self.source}; use method.mode=mean1"
            raise ConfigError.of("method.mode", "reference", problem)
        if self.source in ("prompts", "images"):
            check_beta_mode(self.config.beta)
        if self.source == "images" and self.config.beta == "random_inputs":
            problem = "compares random pictures with random texts, and the weight is images; use intersection"
            raise ConfigError.of("method.beta", self.config.beta, problem)

    def columns(self) -> tuple[str, ...]:
        if self.source in ("prompts", "images"):
            return ()
        return ("similarity",) if self._from_similarity else (self.source,)

    @property
    def _from_similarity(self) -> bool:
        """The published code's margins, and a monotone Eq. 5, are computed from cosine and β."""
        return self.source == "osa_weight" and (self.config.mode == "reference" or bool(self.config.monotone))

    def check(self, table: Path | None) -> None:
        setting = f"method.weight={self.config.weight}"
        if self.source in ("prompts", "images"):
            run = open_finished_run(table, setting)
            missing = _describe_missing(run.path, self.source == "prompts")
            if missing:
                problem = f"{setting} ({self.source}): {missing}, or use method.weight=label_quality"
                raise ConfigError(problem, "method.weight", self.config.weight)
        else:
            require_columns(table, self.columns(), setting)

    def start(self, run: Run) -> None:
        """Leave `method.weights` alone where it is what this method weighs by: no loss is weighed twice by one column."""
        if self.config.weights != self.source:
            super().start(run)
            return
        run.note(f"osa weighs by {self.source} already; method.weights adds nothing")
        self.prepare(run)

    def prepare(self, run: Run) -> None:
        assert run.table is not None
        if self.source in ("prompts", "images"):
            monotone = self.config.monotone if self.config.monotone is not None else self.source == "images"
            of_labels = (
                prompt_weights(run.table, run.stems, self.config.beta, run.seed)
                if self.source == "prompts"
                else image_weights(run.table, run.stems, self.config.beta, monotone, run.seed)
            )
            run.note(f"weights of labels by {self.source}: β {of_labels.beta}")
            self.by_row, values = torch.from_numpy(of_labels.weights), of_labels.weights
        elif self._from_similarity:
            tables = open_finished_run(run.table, "method")
            self.beta = float(read_metadata(tables.table(next(tables.stems())))["beta"]["value"])
            values = self._weight(torch.from_numpy(run.column("similarity"))).numpy()
        else:
            values = self._weight(torch.from_numpy(run.column(self.source))).numpy()
        self.mean_weight, share = run.row_mean(values), run.row_mean(values > 0)
        if self.mean_weight > 0:
            effective = self.mean_weight**2 / run.row_mean(
                values.astype(np.float64) ** 2
            )  # Kish: 1 where all are equal
            run.note(f"the weights by {self.source} leave an effective sample size of {effective:.0%} of the data")
        if share == 1:
            run.note(f"every sample has a weight by {self.source}: nothing is taken for wrong")
        elif share < FEW_WEIGHTED:
            run.note(f"only {share:.1%} of the samples have a weight by {self.source}: β may be too high")
        if not self.mean_weight > 0:
            problem = (
                f"is 0 for all samples; see the cut by: noisegate show {run.table}, or rescore with a smaller --beta"
            )
            raise ConfigError.of("method.weight", self.config.weight, problem)

    def uses_all_parameters(self) -> bool:
        return self.loss_name == "info_nce" and self.config.temperature is None

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        batch = batches[ALL]
        weight = run.gather(self.weights(batch))
        held = int((weight > 0).sum())
        if held == 0:
            return StepLoss(None)
        seen = run.forward(batch)
        weight = weight.to(seen.rows.device, non_blocking=True)
        each = self.losses(seen, negatives=weight > 0 if self.config.drop_negatives else None, trust=weight)
        total = weighted(self.weigh(each, seen.rows), weight, mode=self.config.mode, mean_weight=self.mean_weight)
        return StepLoss(total, {"weighted_share": held / len(weight)})

    def weights(self, batch: Batch) -> Tensor:
        """(B,) of this rank's samples, never negative; the margins s - β for the mode reference."""
        if self.by_row is not None:
            return self.by_row[batch.rows.cpu()]
        return self._weight(batch.columns[self.columns()[0]])

    def _weight(self, values: Tensor) -> Tensor:
        if not self._from_similarity:
            return values.float().nan_to_num(0.0).clamp(min=0)
        if self.config.mode == "reference":
            return (values - self.beta).nan_to_num(0.0).clamp(min=0)
        return osa_weight(values, self.beta, monotone=True)

    def sample_columns(self) -> dict[str, Array]:
        return {} if self.by_row is None else {"osa_weight": self.by_row.numpy()}


@dataclass(frozen=True)
class LabelWeights:
    """weights: (total_rows,) in the order of the tables, 0 for failed and unlabelled samples; beta: the β of Eq. 5."""

    weights: Float32
    beta: Beta


def _describe_missing(table: Path, prompts: bool) -> str | None:
    """The file that weights of labels need and do not find, in words; None where all are there."""
    run = RunFolder.to_read(table)
    lost = next((stem for stem in run.stems() if not run.has_embeddings(stem)), None)
    if lost is not None:
        return f"{run.embeddings(lost)} is not there; annotate without --drop-embeddings"
    if prompts and not anchors_file(run).exists():
        return f"{anchors_file(run)} is not there; annotate with --task labels --classes NAMES"
    return None


def prompt_weights(table: Path, stems: Sequence[str], beta: str = "intersection", seed: int = 0) -> LabelWeights:
    """w of s_i = mean cosine of image i to the prompts of its given class (OSA Eq. 3-5, image and class prompt)."""
    run = RunFolder.to_read(table, embeddings=True)
    anchors = Anchors.load(anchors_file(run))
    count = np.bincount(anchors.labels, minlength=len(anchors.names))
    centres = np.zeros((len(anchors.names), anchors.embeddings.shape[1]))
    np.add.at(centres, anchors.labels, anchors.embeddings)
    return _weigh_labels(run, stems, centres / count[:, None], None, beta, False, seed)


def image_weights(
    table: Path, stems: Sequence[str], beta: str = "intersection", monotone: bool = True, seed: int = 0
) -> LabelWeights:
    """w of s_i = mean cosine of image i to the other images of its given class (OSA, image retrieval)."""
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
    """Cosines to the own class, and to one drawn at random for β; then the weights.

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
            to_own = (to_own - 1) / np.maximum(size[own] - 1, 1)  # rows are units: less the image with itself
            known &= size[own] > 1
            to_drawn = to_drawn / size[drawn]
        given.append(np.where(known, to_own, np.nan))
        other.append(np.where(known & (drawn != own), to_drawn, np.nan))
    cosines, shuffled = np.concatenate(given), np.concatenate(other)
    sample = PairSample(*(_draw_some(values[np.isfinite(values)], rng) for values in (cosines, shuffled)))
    beta = _estimate_beta(sample, mode, seed, None if size is not None else lambda: _beta_of_model(run, seed))
    return LabelWeights(osa_weight(cosines.astype(np.float32), beta.value, monotone), beta)


def _beta_of_model(run: RunFolder, seed: int) -> Beta:
    """β of random inputs of the model that made the tables: as it was recorded, from the cache, or measured now."""
    recorded = (run.read_run() or {}).get("random_inputs")
    if recorded:
        return Beta.from_dict(recorded)
    model = model_of_run(run.recorded(), trust=True)  # not loaded yet
    if effect := model.describe_outside():
        problem = f"needs {model.model} measured, and loading it {effect}; annotate with --beta random_inputs"
        raise ConfigError.of("method.beta", "random_inputs", f"{problem}, or use another method.beta")
    return load_scorer(run.path, beta="random_inputs").beta


def _estimate_beta(sample: PairSample, mode: str, seed: int, random_inputs: Callable[[], Beta] | None) -> Beta:
    """By one of the modes of `pairs.beta`, but `intersection` keeps to the crossing also where all labels look right.

    There the pairs' rule cuts at the mean plus two deviations of the shuffled, which is harmless where captions differ as
    much as pictures do, and would drop half of the right labels where classes are alike (orange circle, red circle).
    """
    learnt = sample.calibration if mode == "intersection" else None
    if learnt is not None and np.isfinite(learnt.crossing) and learnt.crossing > np.mean(sample.mismatched):
        spread = learnt.crossing_sd
        interval = (max(-1.0, learnt.crossing - 1.96 * spread), min(1.0, learnt.crossing + 1.96 * spread))
        return Beta(learnt.crossing, mode, "crossing", spread, len(sample.given), seed, interval)
    return estimate_beta(pairs=sample, mode=mode, seed=seed, random_inputs=random_inputs)


def _read_images(run: RunFolder, stems: Sequence[str]) -> Iterator[tuple[Float32, Index]]:
    """Unit image rows and given labels of each table; -1 for none and for samples that failed."""
    for stem in stems:
        table = run.read(stem, ["status", "label"])
        ok = pc.equal(table["status"], "ok").to_numpy()
        labels = np.where(ok, pc.fill_null(table["label"].cast(pa.int64()), -1).to_numpy(), -1)
        images = read_embeddings(run.embeddings(stem), "image")
        length = np.linalg.norm(images, axis=1, keepdims=True)
        yield images / np.maximum(length, 1e-12), np.where(length[:, 0] > 0, labels, -1)


def _draw_some(values: Floats, rng: np.random.Generator) -> Floats:
    return values if len(values) <= PAIRS else rng.choice(values, PAIRS, replace=False)
