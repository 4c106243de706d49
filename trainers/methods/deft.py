"""DeFT, "Vision-Language Models are Strong Noisy Label Detectors" (Wei et al., NeurIPS 2024), a rival in TANGO's Table 9.

Each class c has a positive text T+ and a negative text T-, to which a picture of another class is nearer. With the scale s
of the logits, vectors v of pictures, and sg for "without gradient":
    z+_ic = s cos(v_i, T+_c),  z-_ic = s cos(sg v_i, T-_c)                                            `Deft.loss`
    p_ic  = σ(sg z+_ic - z-_ic), the probability that c is right for i; clean where p_iy > ½           `clean_probability`
    L_dp  = -log p_iy' - log(1 - p_iȳ), ȳ another class drawn at random                                `dual_prompt_loss`
            y' the given class in the warm-up; then the given one where it is clean, else argmax z+
    L_sim = cross-entropy of z+ with the given class; after the warm-up of clean samples alone
The first half of the epochs minimises L_dp + L_sim. Then a new network learns from the clean samples.

A network that does not know the classes finds few samples clean, and learns from fewer samples in half of the epochs. So while
its predictions do not agree with the neighbours' labels (`says_what_neighbours_say`), L_sim takes all samples; if they still do
not when the clean samples are chosen, the same network continues on all samples: plain training.

What differs from the published code: T-_c is a vector of the joint space that is learnt itself and begins as the mean of all
T+; the code learns sixteen words in front of the class names, for T+ too. T+ are the target's prompts, and learn where its
text tower does. The first half trains what the target trains, in place of visual prompts.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system import Float32, Mask
from noisegate.trainers.data import Batch
from noisegate.trainers.losses import cross_entropy
from noisegate.trainers.targets import full_precision

from .base import ALL, Array, Method, MethodConfig, Run, Seen, StepLoss, Stream
from .label_selection import says_what_neighbours_say

MOMENTUM = 0.9
"""of the negative texts' SGD, as in the published code"""
SMALLEST = 1e-5
"""probabilities are not taken for smaller before the logarithm, as in the published code"""


class DeftConfig(MethodConfig):
    """Published: 10 epochs to detect, 5 of them warm-up for real noise and 1 for made noise, and 10 to learn."""

    name: Literal["deft"] = "deft"
    detect: int | None = Field(default=None, ge=1)
    """epochs that find the clean samples; None: half of all"""
    warmup: int | None = Field(default=None, ge=0)
    """of these, epochs that learn from every given label; None: half of them, at least one, and as long as the network does not
    know the classes"""
    text_lr: float = Field(default=0.03, gt=0)
    """learning rate of the negative texts"""


class Deft(Method):
    """L_dp + L_sim until the clean samples are found, then these alone, from new weights."""

    Config: ClassVar[type[MethodConfig]] = DeftConfig
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    remembers: ClassVar[tuple[str, ...]] = ("negative", "velocity", "probability", "clean", "plain")
    config: DeftConfig

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        self.detect, self.warmup = 1, 1
        self.negative: Float32 = np.zeros((0, 0), np.float32)  # T- (C, d), unit rows
        self.velocity: Float32 = np.zeros((0, 0), np.float32)
        self.plain: Mask = np.zeros(1, bool)  # whether this epoch learns from all samples as given
        self.probability: Float32 = np.zeros(0, np.float32)  # p_iy
        self.clean: Mask = np.ones(0, bool)

    def epochs(self, wanted: int) -> int:
        self.detect = self.config.detect or max(1, wanted // 2)
        self.warmup = max(1, self.detect // 2) if self.config.warmup is None else self.config.warmup
        if self.detect >= wanted:
            problem = f"leaves nothing of loop.epochs={wanted}; use loop.epochs={2 * self.detect}"
            raise ConfigError.of("method.detect", self.detect, problem)
        return wanted

    def finding_epochs(self) -> int:
        return self.detect

    def prepare(self, run: Run) -> None:
        target = run.network()
        if target.classes is None or target.config.head != "prompts":
            problem = "is not for method.name=deft; use prompts, with the classes' names as target.classes"
            raise ConfigError.of("target.head", target.config.head, problem)
        if len(target.classes) < 2:
            raise ConfigError.of("target.classes", len(target.classes), "leaves no other class; use two or more")
        with torch.no_grad():
            mean = F.normalize(target.encode_classes()["vectors"].float().mean(dim=0, keepdim=True)).cpu().numpy()
        self.negative = np.repeat(mean, len(target.classes), axis=0)
        self.velocity = np.zeros_like(self.negative)
        self.probability = np.full(run.total_rows, np.nan, np.float32)
        self.clean = np.ones(run.total_rows, bool)

    def begin_epoch(self, run: Run) -> None:
        guarded = self.config.warmup is None and self.warmup <= run.epoch < self.detect
        if run.epoch != self.detect and not guarded:
            return
        negative = torch.from_numpy(self.negative).to(run.device)

        def measure(seen: Seen) -> Mapping[str, Tensor]:
            assert seen.logits is not None and seen.labels is not None
            p = clean_probability(seen.logits, seen.images["vectors"], negative, seen.temperature)
            measured = {"p": p.gather(1, seen.labels[:, None])[:, 0], "labels": seen.labels}
            return {**measured, "predicted": seen.logits.argmax(dim=1), "vectors": seen.images["vectors"]}

        measured = run.measure(measure)
        self.plain[0] = self.config.warmup is None and not says_what_neighbours_say(measured, run)
        if self.plain[0]:
            run.note("deft: the network does not know the classes, so it learns from all labels as given")
        elif run.epoch == self.detect:
            self.probability = measured["p"].astype(np.float32)
            self.clean = self.probability > 0.5
            known = int(np.isfinite(self.probability).sum())
            run.note(f"deft: {int(self.clean.sum()):,} of {known:,} labels are clean")
            run.restart()

    def streams(self, run: Run) -> dict[str, Stream]:
        return {ALL: Stream(None if run.epoch < self.detect or self.plain[0] else self.clean)}

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        seen = run.forward(batches[ALL])
        assert seen.logits is not None and seen.labels is not None
        each = self.weigh(cross_entropy(seen.logits, seen.labels), seen.rows)
        if run.epoch >= self.detect:
            return StepLoss(each.mean())
        warming, logits = run.epoch < self.warmup or bool(self.plain[0]), seen.logits.detach().float()
        negative = torch.from_numpy(self.negative).to(logits.device).requires_grad_()
        p = clean_probability(logits, seen.images["vectors"].detach(), negative, seen.temperature.detach())
        clean = p.detach().gather(1, seen.labels[:, None])[:, 0] > 0.5
        believed = seen.labels if warming else torch.where(clean, seen.labels, logits.argmax(dim=1))
        drawn = run.random("other class").integers(1, logits.shape[1], len(seen.labels))
        others = (seen.labels + torch.from_numpy(drawn).to(seen.labels.device)) % logits.shape[1]
        self._learn_negative(negative, self.weigh(dual_prompt_loss(p, believed, others), seen.rows).mean())
        if warming:
            return StepLoss(each.mean(), {"clean_share": clean.float().mean()})
        learnt = each[clean].mean() if clean.any() else None
        return StepLoss(learnt, {"clean_share": clean.float().mean()})

    def _learn_negative(self, negative: Tensor, loss: Tensor) -> None:
        """Make one step of SGD on T-: L_dp has a gradient for T- only, so it need not be part of the networks' update."""
        (gradient,) = torch.autograd.grad(loss, negative)
        self.velocity = MOMENTUM * self.velocity + gradient.cpu().numpy()
        moved = torch.from_numpy(self.negative - np.float32(self.config.text_lr) * self.velocity)
        self.negative = F.normalize(moved).numpy()

    def sample_columns(self) -> dict[str, Array]:
        """Return p_iy and whether it is above ½; nothing before the clean samples are found."""
        return {} if np.isnan(self.probability).all() else {"clean": self.clean, "clean_probability": self.probability}


def clean_probability(logits: Tensor, vectors: Tensor, negative: Tensor, temperature: Tensor) -> Tensor:
    """p (B, C) of logits z+ (B, C), unit vectors (B, d) and negative texts (C, d).

    >>> z, v, t = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> [round(x, 3) for x in clean_probability(z, v, t, torch.tensor(1.0))[0].tolist()]  # σ(2 - 1), σ(0 - 0)
    [0.731, 0.5]
    """
    with full_precision(vectors):  # a logit is a hundred times the cosine
        return torch.sigmoid(logits.float() - vectors.float() @ F.normalize(negative, dim=1).T / temperature)


def dual_prompt_loss(p: Tensor, believed: Tensor, others: Tensor) -> Tensor:
    """L_dp (B,): -log p of the believed class - log(1 - p) of another one; p (B, C), classes (B,).

    >>> loss = dual_prompt_loss(torch.tensor([[0.8, 0.5]]), torch.tensor([0]), torch.tensor([1]))
    >>> round(float(loss[0]), 3)  # -log .8 - log .5
    0.916
    """
    right, wrong = (p.gather(1, classes[:, None])[:, 0] for classes in (believed, others))
    return -right.clamp(min=SMALLEST).log() - (1 - wrong).clamp(min=SMALLEST).log()
