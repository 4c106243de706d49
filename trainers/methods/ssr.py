"""SSR-style selection (Feng, Tzimiropoulos and Patras, "SSR", BMVC 2022), a baseline for classes.

Before every epoch, with the network as it is:
    y' = argmax p where max p > θ_r, else the given label y                         `relabel`
    v  = vote of the k nearest samples with their y', divided by class sizes        pipeline.labels.tango: `visual_consistency`
    selected where v[y'] / max v >= θ_s                                             `select_clean`
and the epoch learns y' of the selected samples with Mixup, repeated until it has as many updates as an epoch over all samples,
as in the published code. That code draws classes equally often; here each sample weighs inversely to the size of its class
instead, which has the same mean. Its extra consistency loss is left out.

Features that do not know the classes yet would call most labels wrong. So if the network agrees with the neighbours' labels on
less than two thirds of the samples, the epoch is plain training (`knows_classes`).
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from noisegate.pipeline.labels.tango import verdict, visual_consistency
from noisegate.pipeline.neighbours import Neighbours, default_k, find_neighbours
from noisegate.pipeline.system import Float32, Floats, Index, Mask
from noisegate.trainers.data import Batch
from noisegate.trainers.losses import cross_entropy

from .base import ALL, Array, Method, MethodConfig, Run, Seen, StepLoss, Stream, check_warmup, knows_classes
from .mixup import MIXED, mixup, one_hot


class SsrConfig(MethodConfig):
    """Constants of the published code."""

    name: Literal["ssr"] = "ssr"
    relabel: float = Field(default=0.9, ge=0, le=1)
    """θ_r; 1 never relabels"""
    select: float = Field(default=1.0, ge=0, le=1)
    """θ_s"""
    k: int | None = Field(default=None, ge=1)
    """neighbours, the sample itself among them; None: 200, or half an average class where classes are small"""
    mixup: float = Field(default=MIXED, gt=0)
    """α of Beta(α, α); in short runs .1, which hardly mixes, learns more, but finds less of the noise"""
    balance: bool = True
    warmup: int | None = Field(default=None, ge=0)
    """first epochs on everything as given, with Mixup; None: epochs of plain training while the network does not know the
    classes; 0, as published: none"""


class Ssr(Method):
    """Cross-entropy with Mixup on the samples whose neighbours agree with them."""

    Config: ClassVar[type[MethodConfig]] = SsrConfig
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    remembers: ClassVar[tuple[str, ...]] = ("labels", "confidence", "clean", "weights", "plain")
    config: SsrConfig

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        self.plain = np.zeros(1, bool)  # whether this epoch is plain training
        self.labels: Index = np.zeros(0, np.int64)  # y', -1: the given label
        self.confidence = np.zeros(0, np.float32)
        self.clean = np.zeros(0, bool)
        self.weights = np.zeros(0, np.float32)

    def epochs(self, wanted: int) -> int:
        check_warmup(self.config.warmup, wanted, wanted // 4)
        return wanted

    def prepare(self, run: Run) -> None:
        self.labels = np.full(run.total_rows, -1, np.int64)
        self.confidence = np.full(run.total_rows, np.nan, np.float32)
        self.clean = np.ones(run.total_rows, bool)
        self.weights = np.ones(run.total_rows, np.float32)

    def begin_epoch(self, run: Run) -> None:
        if run.epoch < (self.config.warmup or 0):
            return

        def measure(seen: Seen) -> Mapping[str, Tensor]:
            assert seen.logits is not None and seen.labels is not None
            p = seen.logits.softmax(dim=1)
            top, predicted = p.max(dim=1)
            own = p.gather(1, seen.labels[:, None])[:, 0]
            vectors = seen.images["vectors"]
            return {"vectors": vectors, "top": top, "predicted": predicted, "own": own, "labels": seen.labels}

        measured = run.measure(measure)
        known = np.isfinite(measured["labels"])
        given = np.where(known, measured["labels"], -1).astype(np.int64)
        predicted = np.where(known, measured["predicted"], -1).astype(np.int64)
        self.labels = relabel(given, predicted, measured["top"], self.config.relabel)
        self.confidence = np.where(self.labels == given, measured["own"], measured["top"]).astype(np.float32)
        target = run.network()
        assert target.classes is not None
        classes = len(target.classes)
        k = self.config.k or default_k(int(known.sum()), classes)
        neighbours = find_neighbours(measured["vectors"], k, include_self=True, device="auto")
        valid = known & np.isfinite(measured["vectors"]).all(axis=1)
        voted = visual_consistency(neighbours, given, classes)[valid].argmax(axis=1)
        self.plain[0] = self.config.warmup is None and not knows_classes(predicted[valid], voted)
        if self.plain[0]:
            run.note("ssr: the network does not know the classes yet, and its neighbours say otherwise: plain training")
            self.prepare(run)
            return
        self.clean = select_clean(neighbours, valid, self.labels, classes, self.config.select)
        changed = int((self.labels != given).sum())
        run.note(f"ssr: {int(self.clean.sum()):,} of {int(known.sum()):,} samples selected, {changed:,} relabelled")
        self.weights = class_weights(self.labels, self.clean) if self.config.balance else np.ones_like(self.confidence)

    def streams(self, run: Run) -> dict[str, Stream]:
        return {ALL: Stream(None if self.clean.all() else self.clean, full=True)}

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        if self.plain[0]:
            seen = run.forward(batches[ALL])
            return StepLoss(self.weigh(self.losses(seen), seen.rows).mean())
        batch = run.on_device(batches[ALL])
        assert batch.images is not None and batch.labels is not None
        target = run.network()
        assert target.classes is not None
        rows = batch.rows.cpu().numpy()
        labels = torch.from_numpy(self.labels[rows]).to(batch.labels.device)
        labels = torch.where(labels < 0, batch.labels, labels)
        weights = torch.from_numpy(self.weights[rows]).to(labels.device)
        soft = self.weigh(one_hot(labels, len(target.classes)) * weights[:, None], batch.rows)
        mixed, soft = mixup(target.pixels(batch.images), soft, run.random("mixup"), self.config.mixup)
        each = cross_entropy(target.class_logits(run.encode_images(mixed)), soft)
        return StepLoss(run.gather(each).mean())

    def sample_columns(self) -> dict[str, Array]:
        """Return the values at the start of the last epoch; nothing after a warm-up alone."""
        if not (self.labels >= 0).any():
            return {}
        return {"clean": self.clean, "refined_label": self.labels, "refined_confidence": self.confidence}


def relabel(given: Index, predicted: Index, confidence: Floats, threshold: float) -> Index:
    """Compute y': the prediction if its confidence exceeds `threshold`, else the given label; (N,) each.

    >>> relabel(np.array([0, 0]), np.array([1, 1]), np.array([0.95, 0.8]), 0.9).tolist()
    [1, 0]
    """
    return np.where((given >= 0) & (confidence > threshold), predicted, given)


def select_clean(neighbours: Neighbours, valid: Mask, labels: Index, classes: int, threshold: float) -> Mask:
    """Return (N,) whether the label gets at least θ_s of the largest balanced vote of the neighbours and the sample itself.

    valid: (N,) rows with a label and a feature; other rows are never selected.
    """
    votes = visual_consistency(neighbours, labels, classes).astype(np.float64)
    clean = np.zeros(len(labels), bool)
    clean[valid] = verdict(votes[valid], labels[valid])[1] >= threshold
    return clean


def class_weights(labels: Index, clean: Mask) -> Float32:
    """Compute weights (N,): n / (number of classes x size of the own class) for the n selected samples, 0 for others; mean 1.

    >>> class_weights(np.array([0, 0, 0, 1, 1]), np.array([True, True, True, True, False])).round(2).tolist()
    [0.6700000166893005, 0.6700000166893005, 0.6700000166893005, 2.0, 0.0]
    """
    weights = np.zeros(len(labels), np.float32)
    size = np.bincount(labels[clean])
    if len(size):
        weights[clean] = clean.sum() / ((size > 0).sum() * size[labels[clean]])
    return weights
