"""TANGO, Text-Anchored Guided Optimisation (Ma et al., CVPR 2026).

The paper's main text was not available: equations 9-12 and Algorithm 1 are from its supplement, the rest from public reading
notes; details in neither source (k, Mixup's α, unequal numbers of prompts) are chosen here, as the settings say.

    t_j   frozen anchors: the embedded prompts of each class, K_c of class c                       `make_anchors`
    TAC: l_ic = (scale / K_c) Σ_{j of class c} exp(cos(v_i, t_j))                                  `text_anchored_logits`
    p_vis, p_sem: how consistent a label is with neighbours and with the nearest anchors           Eq. 9-10   `refine`
    q = (1 - b) p_vis + b p_sem;  clean where argmax q is the given label                                     `refine`
    Ỹ = (1 - b) Y_vis + b Y_sem: labels of the samples, and of the anchors, that list a sample     Eq. 11-12  `refine`
    L = L_clean + L_reg: cross-entropy of TAC on clean samples; on all, mixed, with Ỹ              Algorithm 1: `Tango.loss`

Every epoch begins with p, q and Ỹ anew, from the features of the network as it is (`refine` of pipeline.labels.tango). Only the
visual tower learns: no gradient reaches the texts. The network is measured by TAC with the same anchors.

Features and anchors that do not know the classes would call most labels wrong and replace them by worse ones. So if TAC agrees
with the neighbours' labels on less than two thirds of the samples, the epoch is plain training, in which a text tower learns
too if the target trains it (`knows_classes`).
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.labels import TEMPLATES, Anchors, anchors_file
from noisegate.pipeline.labels.tango import refine, visual_consistency
from noisegate.pipeline.neighbours import default_k, find_neighbours
from noisegate.pipeline.runs import RunFolder
from noisegate.pipeline.system import counted
from noisegate.trainers.data import Batch
from noisegate.trainers.losses import cross_entropy
from noisegate.trainers.targets import Target, TargetConfig, text_anchored_logits

from .base import ALL, Array, Method, MethodConfig, Run, Seen, StepLoss, check_warmup, knows_classes
from .mixup import MIXED, mixup, mixup_alpha, note_mixing, one_hot

FLOATS = ("knn_consistency", "anchor_consistency", "consistency", "refined_confidence")
PARALLEL = 0.999
"""mean cosine of the classes' anchors beyond which TAC cannot tell them apart: an untrained tower on long prompts"""
COLUMNS = (*FLOATS, "clean_tango", "refined_label")
"""of the weight table, which a refinement fills and which serve the first epoch"""


class TangoConfig(MethodConfig):
    """Constants of the paper, and what it leaves open. Its optimiser: SGD, lr 5e-4, weight decay 5e-4, batch 64, 20 epochs."""

    name: Literal["tango"] = "tango"
    anchors: Literal["auto", "target", "table"] = "auto"
    """target: prompts through the target's own text tower; table: anchors.safetensors of data.table; auto: table where its
    model is the target's, else target"""
    scale: float = Field(default=40.0, gt=0)
    """of TAC's logits, the paper's K = 40 whatever K is"""
    b: float = Field(default=0.5, ge=0, le=1)
    """weight of the anchors against the neighbours"""
    k: int | None = Field(default=None, ge=1)
    """neighbours; None: 200, or half an average class where classes are small"""
    mixup: float | None = Field(default=None, gt=0)
    """α of Beta(α, α); None: 4, or .1, which hardly mixes, where there are fewer than 50 epochs"""
    warmup: int | None = Field(default=None, ge=0)
    """first epochs of plain training; None: while the network does not know the classes; 0, as the paper: none"""
    table_epochs: int = Field(default=0, ge=0)
    """first epochs that take clean and corrected labels from data.table, where it has them, for a network whose own features
    say little yet; 0, as the paper: its own refinement from the first epoch on"""


class Tango(Method):
    """L_clean + L_reg through the text-anchored classifier; clean set and labels refined before every epoch."""

    Config: ClassVar[type[MethodConfig]] = TangoConfig
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    config: TangoConfig

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        self.anchors: Tensor | None = None  # (A, d) unit rows
        self.anchor_labels = torch.zeros(0, dtype=torch.int64)  # (A,)
        self.soft: NDArray[np.float32] = np.zeros((0, 0), np.float32)  # Ỹ (N, C), NaN: the given label
        self.columns_by_row: dict[str, Array] = {}
        self.plain = False  # whether this epoch is plain training
        self.mixup = MIXED

    def target_settings(self, config: TargetConfig) -> TargetConfig:
        """Return settings that measure by TAC; a pretrained tower gets forty sentences per class (the paper's K)."""
        config = config.model_copy(update={"class_affinity": "exponential"})
        if "prompts" in config.model_fields_set or config.anchors is not None or config.from_scratch:
            return config
        return config.model_copy(update={"prompts": TEMPLATES})

    def epochs(self, wanted: int) -> int:
        check_warmup(self.config.warmup, wanted, wanted // 4)
        self.mixup = mixup_alpha(self.config.mixup, wanted)
        return wanted

    def prepare(self, run: Run) -> None:
        """Use the table's anchors as classes in the evaluation too."""
        note_mixing(run, "tango", self.config.mixup, self.mixup)
        target = run.network()
        _check_head(target)
        kept = table_anchors(run, self.config.anchors) if target.config.anchors is None else None
        if kept is not None:
            target.fix_classes(torch.from_numpy(kept.embeddings), torch.from_numpy(kept.labels))

    # --- Algorithm 1 -----------------------------------------------------------------------------------------------------

    def begin_epoch(self, run: Run) -> None:
        """Run lines 3 (once) and 6-7."""
        if self.anchors is None or self.plain:  # plain training may have changed the text tower
            anchors = make_anchors(run, self.config.anchors)
            self.anchors, self.anchor_labels = torch.from_numpy(anchors.embeddings), torch.from_numpy(anchors.labels)
        self.plain = run.epoch < (self.config.warmup or 0)
        if not (run.epoch < self.config.table_epochs and self._from_table(run)):
            known = self._refine(run)
            self.plain = self.plain or (self.config.warmup is None and not known)
        clean, known_rows = self.columns_by_row["clean_tango"], self.columns_by_row["refined_label"] >= 0
        run.note(f"tango: {int(clean.sum()):,} of {int(known_rows.sum()):,} samples are clean")
        if self.plain and self.config.warmup is None:
            run.note(
                "tango: the anchors do not say what the neighbours say, so they do not know the classes: plain training"
            )

    def _refine(self, run: Run) -> bool:
        """Compute p, q and Ỹ; return whether TAC and the neighbours agree about the classes."""

        def features(seen: Seen) -> Mapping[str, Tensor]:
            assert seen.labels is not None
            return {"vectors": seen.images["vectors"], "labels": seen.labels}

        assert self.anchors is not None
        measured = run.measure(features, texts=False)
        vectors = measured["vectors"]
        labels = np.nan_to_num(measured["labels"], nan=-1).astype(np.int64)
        classes = int(self.anchor_labels.max()) + 1
        k = self.config.k or default_k(int((labels >= 0).sum()), classes)
        neighbours = find_neighbours(vectors, k, device="auto")
        refined = refine(
            labels,
            classes,
            neighbours=neighbours,
            images=vectors,
            anchors=self.anchors.cpu().numpy(),
            anchor_labels=self.anchor_labels.numpy(),
            b=self.config.b,
            keep_soft=True,
        )
        assert refined.soft is not None
        self.soft = refined.soft
        self.columns_by_row = {
            "knn_consistency": refined.p_vis,
            "anchor_consistency": refined.p_sem,
            "consistency": refined.consistency,
            "refined_confidence": refined.confidence,
            "clean_tango": refined.clean_tango,
            "refined_label": refined.label.astype(np.int64),
        }
        valid = (labels >= 0) & np.isfinite(vectors).all(axis=1)
        anchors = self.anchors.cpu()
        predicted = text_anchored_logits(torch.from_numpy(vectors[valid]).float(), anchors, self.anchor_labels)
        voted = visual_consistency(neighbours, labels, classes)[valid].argmax(axis=1)
        return knows_classes(predicted.argmax(dim=1).numpy(), voted)

    def _from_table(self, run: Run) -> bool:
        """Copy labels from the table; return False if it has no refined labels."""
        if run.table is None:
            return False
        columns = {name: run.column(name) for name in COLUMNS}
        known = np.flatnonzero((columns["refined_label"] >= 0) & np.isfinite(columns["refined_confidence"]))
        if not len(known):
            return False
        classes = int(self.anchor_labels.max()) + 1
        label, confidence = columns["refined_label"][known], columns["refined_confidence"][known]
        self.soft = np.full((run.total_rows, classes), np.nan, np.float32)
        self.soft[known] = ((1 - confidence) / max(classes - 1, 1))[:, None]  # spread the rest over all other classes
        self.soft[known, label] = confidence
        self.columns_by_row = columns
        return True

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        """Run lines 10-15; clean and mixed samples are encoded together, so that a single clean sample is not a whole batch."""
        if self.plain:
            seen = run.forward(batches[ALL])
            return StepLoss(self.weigh(self.losses(seen), seen.rows).mean())
        batch = run.on_device(batches[ALL])
        assert batch.images is not None and batch.labels is not None
        images, rows = run.network().pixels(batch.images), batch.rows.cpu().numpy()
        clean = torch.from_numpy(self.columns_by_row["clean_tango"][rows]).to(images.device)
        labels = self.weigh(self._soft_labels(rows, batch.labels), batch.rows)
        mixed, soft = mixup(images, labels, run.random("mixup"), self.mixup)
        logits = self._classify(run, torch.cat([images[clean], mixed]))
        own, of_mixed = logits[: -len(mixed)], logits[-len(mixed) :]
        each_clean = torch.zeros(len(images), device=images.device)
        each_clean = each_clean.masked_scatter(
            clean, self.weigh(cross_entropy(own, batch.labels[clean]), batch.rows[clean]).float()
        )
        each = cross_entropy(of_mixed, soft)
        chosen = run.gather(clean.float())
        on_clean = run.gather(each_clean).sum() / chosen.sum().clamp(min=1)  # 0 if the batch has no clean samples
        on_all = run.gather(each).mean()
        logs = {"clean_share": chosen.mean(), "loss_clean": on_clean.detach(), "loss_reg": on_all.detach()}
        return StepLoss(on_clean + on_all, logs)

    def _classify(self, run: Run, images: Tensor) -> Tensor:
        assert self.anchors is not None
        if self.anchors.device != images.device:
            self.anchors = self.anchors.to(images.device)
        vectors = run.encode_images(images)["vectors"]
        labels = self.anchor_labels.to(images.device)
        return text_anchored_logits(vectors.float(), self.anchors, labels, self.config.scale)

    def _soft_labels(self, rows: NDArray[np.int64], labels: Tensor) -> Tensor:
        soft = torch.from_numpy(self.soft[rows]).to(labels.device)
        return torch.where(soft.isnan(), one_hot(labels, soft.shape[1]), soft)

    # --- what it remembers -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        if self.anchors is None:
            return {}
        anchors = {"anchors": self.anchors.cpu().numpy(), "anchor_labels": self.anchor_labels.numpy()}
        anchors["plain"] = np.array(self.plain)
        return {**anchors, "soft": self.soft, **{f"column.{name}": v for name, v in self.columns_by_row.items()}}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        if not state:
            return
        self.anchors, self.anchor_labels = (
            torch.from_numpy(state[name].copy()) for name in ("anchors", "anchor_labels")
        )
        self.soft, self.plain = state["soft"].copy(), bool(state["plain"])
        self.columns_by_row = {name: state[f"column.{name}"].copy() for name in COLUMNS}

    def sample_columns(self) -> dict[str, Array]:
        """Return the values at the start of the last epoch."""
        if not self.columns_by_row:
            return {}
        return {**self.columns_by_row, "clean": self.columns_by_row["clean_tango"]}


def make_anchors(run: Run, source: str) -> Anchors:
    """Make the frozen anchors (Algorithm 1, line 3); raise ConfigError if target and table have none that fit.

    target.anchors have precedence; otherwise a tower encodes target.prompts (see `target_settings`), so that the network is
    measured by the same sentences that it was trained on.
    """
    target = run.network()
    _check_head(target)
    assert target.classes is not None
    if target.config.anchors is not None:
        vectors = target.encode_classes()["vectors"].cpu().numpy()
        return Anchors(target.classes.names, vectors, target.get_buffer("class_ids").cpu().numpy())
    kept = table_anchors(run, source)
    if kept is not None:
        return kept
    scratch = target.config.from_scratch
    names = target.classes.names
    sentences = target.classes.prompts
    made = counted(len(sentences[0]), "prompt")
    run.note(f"tango: anchors from {made} per class by the {'untrained ' if scratch else ''}target")
    texts = [sentence for of_class in sentences for sentence in of_class]
    labels = np.repeat(np.arange(len(names)), [len(of_class) for of_class in sentences])
    anchors = Anchors(names, _embed(target, texts), labels.astype(np.int64))
    alike = _cosine_between_classes(anchors)
    if alike > PARALLEL:
        run.note(
            f"tango: anchors of different classes have a mean cosine of {alike:.4f}, too near for a classifier; use a "
            "pretrained target, or shorter target.prompts, such as ['{}']"
        )
    return anchors


def _check_head(target: Target) -> None:
    if target.classes is None or target.config.head != "prompts":
        problem = "is not for method.name=tango; use prompts, with the classes' names as target.classes"
        raise ConfigError.of("target.head", target.config.head, problem)


def table_anchors(run: Run, source: str) -> Anchors | None:
    """Read the anchors of data.table if method.anchors=`source` uses them; raise ConfigError if they do not fit."""
    target, kept = run.network(), None if run.table is None else RunFolder.to_read(run.table)
    if source == "target" or (source == "auto" and (kept is None or not _same_model(kept, target))):
        return None
    file = None if kept is None else anchors_file(kept)
    if file is not None and file.exists():
        return _require_fitting(Anchors.load(file), target, str(file))
    if source == "auto":
        return None
    problem = "finds no anchors in data.table; annotate with --task labels, or use method.anchors=target"
    raise ConfigError.of("method.anchors", source, problem)


def _cosine_between_classes(anchors: Anchors) -> float:
    """Compute the mean cosine of anchors of different classes; 0 for a single class."""
    cosines = anchors.embeddings @ anchors.embeddings.T
    other = anchors.labels[:, None] != anchors.labels[None, :]
    return float(cosines[other].mean()) if other.any() else 0.0


@torch.no_grad()
def _embed(target: Target, texts: list[str], at_once: int = 256) -> NDArray[np.float32]:
    was_training = target.training
    target.eval()
    parts = [
        target.encode_texts(target.tokenize(texts[i : i + at_once]))["vectors"] for i in range(0, len(texts), at_once)
    ]
    target.train(was_training)
    vectors: NDArray[np.float32] = torch.cat(parts).float().cpu().numpy()
    return vectors


def _same_model(table: RunFolder, target: Target) -> bool:
    recorded = (table.read_run() or {}).get("model") or {}
    wanted = getattr(target.config, "model", None), getattr(target.config, "pretrained", None)
    return wanted[0] is not None and (recorded.get("model"), recorded.get("pretrained")) == wanted


def _require_fitting(anchors: Anchors, target: Target, file: str) -> Anchors:
    assert target.classes is not None
    if anchors.embeddings.shape[1] != target.width or len(anchors.names) != len(target.classes):
        there = f"{len(anchors.names)} classes in {anchors.embeddings.shape[1]} numbers"
        problem = f"has {there}, the target {len(target.classes)} in {target.width}; use method.anchors=target"
        raise ConfigError(f"method.anchors 'table': {file} {problem}", "method.anchors", "table")
    return anchors
