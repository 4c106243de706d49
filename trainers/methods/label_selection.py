"""Two rivals of TANGO (its Table 9) that select right labels and learn only from these: label-match and AUM.

Label-match, once before training, by the network as it is (a pretrained CLIP with its prompts):
    clean where argmax_c logit_ic is the given label y_i                                      `LabelMatch`
A network that does not know the classes would keep few labels, and wrong ones: then no sample is left out.

AUM, Area Under the Margin (Pleiss et al., NeurIPS 2020), while the network learns for `warmup` epochs:
    M_i = z_i[y_i] - max_{c ≠ y_i} z_i[c], noted whenever sample i is learnt from             `margins`
    AUM_i = mean of M_i over the epochs                                                       `Aum`
    clean where AUM_i is above a percentile of samples that are known to be wrong             `choose_percentile`
and then a new network learns from the clean ones.

The paper's known-wrong samples get an extra class. A classifier by prompts has no text for it, so here they get a random wrong
label. They are a share 1 / (C + 1), as in the paper, are judged in a second turn of the warm-up, in which as many other samples
are wrong, and get their own labels back afterwards.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.labels.tango import visual_consistency
from noisegate.pipeline.neighbours import default_k, find_neighbours
from noisegate.pipeline.system import Float32, Index, Mask
from noisegate.trainers.data import Batch
from noisegate.trainers.losses import cross_entropy

from .base import ALL, Array, Method, MethodConfig, Run, Seen, StepLoss, Stream, knows_classes
from .co_teaching import mean_of_known


class LabelMatchConfig(MethodConfig):
    """Plain cross-entropy on the samples whose given label is the network's prediction before training."""

    name: Literal["label_match"] = "label_match"
    guard: bool = True
    """learn from all samples where the network does not know the classes (`says_what_neighbours_say`); false: as published"""


class LabelMatch(Method):
    """Learn from the samples for which the zero-shot prediction is the given label."""

    Config: ClassVar[type[MethodConfig]] = LabelMatchConfig
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    remembers: ClassVar[tuple[str, ...]] = ("clean", "predicted")
    config: LabelMatchConfig

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        self.clean: Mask = np.ones(0, bool)
        self.predicted: Index = np.zeros(0, np.int64)

    def begin_epoch(self, run: Run) -> None:
        if run.epoch > 0:
            return
        if run.network().config.from_scratch:
            run.note("label_match: the target is not pretrained, so what it says before training is chance")

        def measure(seen: Seen) -> Mapping[str, Tensor]:
            assert seen.logits is not None and seen.labels is not None
            predicted, vectors = seen.logits.argmax(dim=1), seen.images["vectors"]
            return {"predicted": predicted, "labels": seen.labels, "vectors": vectors}

        measured = run.measure(measure)
        known = np.isfinite(measured["labels"])
        if self.config.guard and not says_what_neighbours_say(measured, run):
            run.note("label_match: the network does not know the classes, so it learns from all labels as given")
            self.clean = known
            return
        self.clean = known & (measured["predicted"] == measured["labels"])
        self.predicted = np.where(known, measured["predicted"], -1).astype(np.int64)
        run.note(
            f"label_match: {int(self.clean.sum()):,} of {int(known.sum()):,} labels match the zero-shot prediction"
        )

    def streams(self, run: Run) -> dict[str, Stream]:
        return {ALL: Stream(self.clean)}

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        seen = run.forward(batches[ALL])
        return StepLoss(self.weigh(self.losses(seen), seen.rows).mean())

    def sample_columns(self) -> dict[str, Array]:
        """Return the selection; nothing if the guard prevented it."""
        return {"clean": self.clean, "predicted_label": self.predicted} if len(self.predicted) else {}


def says_what_neighbours_say(measured: Mapping[str, Array], run: Run) -> bool:
    """Apply `knows_classes` to a measured network: `predicted` and given `labels` (N,), `vectors` (N, d); NaN if unknown."""
    target = run.network()
    assert target.classes is not None
    classes = len(target.classes)
    valid = np.isfinite(measured["labels"]) & np.isfinite(measured["vectors"]).all(axis=1)
    given = np.where(valid, measured["labels"], -1).astype(np.int64)
    neighbours = find_neighbours(
        measured["vectors"], default_k(int(valid.sum()), classes), include_self=True, device="auto"
    )
    voted = visual_consistency(neighbours, given, classes)[valid].argmax(axis=1)
    return knows_classes(measured["predicted"][valid].astype(np.int64), voted)


PUBLISHED, MEDIAN = 99.0, 50.0
"""percentiles of the known-wrong samples' AUM"""


class AumConfig(MethodConfig):
    """Constants of the paper."""

    name: Literal["aum"] = "aum"
    warmup: int | None = Field(default=None, ge=1)
    """epochs of each of the two turns that measure margins; None: a quarter of all, at least one"""
    percentile: float | None = Field(default=None, gt=0, lt=100)
    """of the known-wrong samples' AUM, below which a label counts as wrong; None: the published 99, or the median where that
    would leave out more than half of the labels that are right (`choose_percentile`)"""


class Aum(Method):
    """Measure margins in two turns, each with other samples wrong on purpose; then train new weights on clean samples only."""

    Config: ClassVar[type[MethodConfig]] = AumConfig
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    remembers: ClassVar[tuple[str, ...]] = ("total", "count", "clean", "aum")
    config: AumConfig

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        self.turn = 1
        self.wrong: Index = np.full((2, 0), -1)  # the wrong label of a row in each turn, -1: its own label
        self.total = self.count = np.zeros((2, 0), np.float32)  # sum and number of the margins in each turn
        self.clean: Mask = np.ones(0, bool)
        self.aum: Float32 = np.zeros(0, np.float32)

    def epochs(self, wanted: int) -> int:
        self.turn = self.config.warmup or max(1, wanted // 4)
        if 2 * self.turn >= wanted:
            problem = f"twice leaves nothing of loop.epochs={wanted}; use loop.epochs={4 * self.turn}"
            raise ConfigError.of("method.warmup", self.turn, problem)
        return wanted

    def finding_epochs(self) -> int:
        return 2 * self.turn

    def prepare(self, run: Run) -> None:
        target = run.network()
        assert target.classes is not None
        if len(target.classes) < 2:
            raise ConfigError.of(
                "target.classes", len(target.classes), "leaves no wrong label to draw; use two or more"
            )
        self.wrong = draw_wrong(run.total_rows, len(target.classes), np.random.default_rng([run.seed, 2020]))
        self.total = np.zeros((2, run.total_rows), np.float32)
        self.count = np.zeros((2, run.total_rows), np.float32)
        self.clean = np.ones(run.total_rows, bool)
        self.aum = np.full(run.total_rows, np.nan, np.float32)

    def begin_epoch(self, run: Run) -> None:
        if run.epoch in (self.turn, 2 * self.turn):
            run.restart()  # margins are noted while the learning rate is high, as published
        if run.epoch == 2 * self.turn:
            self._select(run)

    def _select(self, run: Run) -> None:
        """Judge each row in the turns in which it has its own label, against the known-wrong rows of that turn."""
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(self.count > 0, self.total / self.count, np.nan)
        controls = self.wrong >= 0
        percentile = self.config.percentile
        if percentile is None:
            others = np.where(controls, np.nan, mean)
            percentile = choose_percentile([mean[turn][controls[turn]] for turn in (0, 1)], list(others))
            if percentile == MEDIAN:
                run.note(
                    f"aum: few labels are above {PUBLISHED:g} % of the known-wrong ones, so the cut is their median; as "
                    f"published: method.percentile={PUBLISHED:g}"
                )
        above = np.zeros_like(mean)
        for turn in (0, 1):
            known = mean[turn][controls[turn]]
            cut = np.nanpercentile(known, percentile) if np.isfinite(known).any() else -np.inf
            above[turn] = mean[turn] - cut
        above[controls] = np.nan
        self.aum = mean_of_known(above)
        self.clean = ~(self.aum <= 0)
        known_rows = np.isfinite(self.aum)
        run.note(f"aum: {int(self.clean[known_rows].sum()):,} of {int(known_rows.sum()):,} labels are above the cut")

    def streams(self, run: Run) -> dict[str, Stream]:
        return {ALL: Stream(None if run.epoch < 2 * self.turn else self.clean, full=True)}

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        seen = run.forward(batches[ALL])
        assert seen.logits is not None and seen.labels is not None
        labels, turn = seen.labels, run.epoch // self.turn
        if turn < 2:
            rows = seen.rows.cpu().numpy()
            wrong = torch.from_numpy(self.wrong[turn, rows]).to(labels.device)
            shifted = torch.where(wrong >= labels, wrong + 1, wrong)  # one of the C - 1 others
            labels = torch.where(wrong < 0, labels, shifted)
            self.total[turn, rows] += margins(seen.logits.detach(), labels).float().cpu().numpy()
            self.count[turn, rows] += 1
        return StepLoss(self.weigh(cross_entropy(seen.logits, labels), seen.rows).mean())

    def sample_columns(self) -> dict[str, Array]:
        """Return AUM minus the cut, and whether a row is clean; nothing before both turns are over."""
        return {} if np.isnan(self.aum).all() else {"aum": self.aum, "clean": self.clean}


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute M (B,): the label's logit minus the largest other logit; logits (B, C), labels (B,).

    >>> margins(torch.tensor([[1.0, 4.0, 2.0], [1.0, 4.0, 2.0]]), torch.tensor([1, 0])).tolist()
    [2.0, -3.0]
    """
    own = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return own[:, 0] - others.amax(dim=1)


def choose_percentile(wrong: Sequence[Float32], others: Sequence[Float32]) -> float:
    """Choose PUBLISHED, or MEDIAN if the published cut keeps less than half of the right labels.

    wrong, others: AUM of the known-wrong samples and of all others in each turn, NaN where unknown. Half of all wrong labels
    are below the median of the known-wrong ones, so the share of wrong labels is about twice the share of `others` below it.

    >>> wrong = [np.float32([0, 1, 2, 3, 4])]
    >>> choose_percentile(wrong, [np.float32([1, 3, 6, 7])]), choose_percentile(wrong, [np.float32([1, 3, 3, 3])])
    (99.0, 50.0)
    """
    kept = right = 0
    for known, other in zip(wrong, others, strict=True):
        known, other = known[np.isfinite(known)], other[np.isfinite(other)]
        if len(known):
            cut, median = np.percentile(known, (PUBLISHED, MEDIAN))
            kept += int((other > cut).sum())
            right += max(0, len(other) - 2 * int((other < median).sum()))
    return MEDIAN if 2 * kept < right else PUBLISHED


def draw_wrong(rows: int, classes: int, rng: np.random.Generator) -> Index:
    """Draw (2, N) for two turns: a number below C - 1 for 1 / (C + 1) of the rows, different in each turn; -1 for the rest."""
    count = max(1, rows // (classes + 1))
    order = rng.permutation(rows)
    wrong = np.full((2, rows), -1)
    for turn in (0, 1):
        chosen = order[turn * count : (turn + 1) * count]
        wrong[turn, chosen] = rng.integers(0, classes - 1, len(chosen))
    return wrong
