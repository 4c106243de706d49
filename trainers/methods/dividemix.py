"""DivideMix-style learning (Li, Socher and Hoi, ICLR 2020), and plain small-loss co-teaching.

Two networks. After a warm-up each epoch begins with a Gaussian mixture on each network's losses, w_i its clean posterior;
a network learns by the halves of the other (co-divide):
    labelled, w > ½:  ŷ = sharpen(w y + (1 - w) p)             p: its own prediction         `refine_labels`
    unlabelled:       ŷ = sharpen(mean of both networks' p)                                  `sharpen`
    all of them mixed with one another (Mixup), then
    L = L_x + λ_u(epoch) L_u + L_reg                                                         `mixmatch_loss`
L_x: cross-entropy of the labelled part; L_u: mean squared difference of probabilities of the unlabelled part; L_reg: how far
the mean prediction is from all classes alike. The published code averages predictions over two augmentations of each
picture; here there is one. With mixmatch=false each network just learns the given labels of the half that the other found
clean: small-loss co-teaching.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.methods import gmm_split
from noisegate.trainers.data import Batch
from noisegate.trainers.losses import cross_entropy
from noisegate.trainers.targets import Encoded, Target

from .base import Array, Method, MethodConfig, Run, Seen, StepLoss, Stream
from .co_teaching import NAMES, clean_rows, mean_of_known
from .mixup import MIXED, mixup, mixup_alpha, note_mixing, one_hot


class DivideMixConfig(MethodConfig):
    """Constants of the published code."""

    name: Literal["dividemix"] = "dividemix"
    mixmatch: bool = True
    """false: plain cross-entropy on what the other network found clean"""
    warmup: int | None = Field(default=None, ge=1)
    """epochs on everything as given; None: a third of all, at least one and at most 10 (published: 10 or 30 of 300)"""
    threshold: float = Field(default=0.5, gt=0, lt=1)
    sharpen: float = Field(default=0.5, gt=0)
    """T of ŷ^(1/T)"""
    mixup: float | None = Field(default=None, gt=0)
    """α of Beta(α, α); None: the published 4, or .1, which hardly mixes, where there are fewer than 50 epochs"""
    unlabelled: float = Field(default=25.0, ge=0)
    """λ_u at the end of its ramp"""
    ramp: int = Field(default=16, ge=0)
    """epochs from the end of the warm-up until λ_u is reached, in a line"""


class DivideMix(Method):
    """Two networks that divide the data for each other by small losses, and learn the noisy half without its labels."""

    Config: ClassVar[type[MethodConfig]] = DivideMixConfig
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    networks: int = 2
    remembers: ClassVar[tuple[str, ...]] = ("confidence", "refined_label", "refined_confidence")
    config: DivideMixConfig

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        self.warmup, self.mixup = 1, MIXED
        self.confidence = np.zeros((2, 0), np.float32)  # w by the judging network
        self.refined_label = np.zeros(0, np.int64)
        self.refined_confidence = np.zeros(0, np.float32)

    def epochs(self, wanted: int) -> int:
        self.warmup = self.config.warmup if self.config.warmup is not None else max(1, min(10, wanted // 3))
        if self.warmup >= wanted:
            problem = f"leaves nothing of loop.epochs={wanted}; use method.warmup=1 and loop.epochs={max(2, wanted)}"
            raise ConfigError.of("method.warmup", self.warmup, problem)
        self.mixup = mixup_alpha(self.config.mixup, wanted)
        return wanted

    def prepare(self, run: Run) -> None:
        if self.config.mixmatch:
            note_mixing(run, "dividemix", self.config.mixup, self.mixup)
        self.confidence = np.full((2, run.total_rows), np.nan, np.float32)
        self.refined_label = np.full(run.total_rows, -1, np.int64)
        self.refined_confidence = np.full(run.total_rows, np.nan, np.float32)

    # --- an epoch ----------------------------------------------------------------------------------------------------------

    def begin_epoch(self, run: Run) -> None:
        """Co-divide: a mixture on the losses of each network."""
        if run.epoch < self.warmup:
            return

        def measure(seen: Seen, network: int) -> Mapping[str, Tensor]:
            assert seen.logits is not None and seen.labels is not None
            p = seen.logits.softmax(dim=1)
            return {"loss": cross_entropy(seen.logits, seen.labels), "p": p, "y": one_hot(seen.labels, p.shape[1])}

        measured = run.measure_each(measure)
        for network, name in enumerate(NAMES):
            split = gmm_split(measured[network]["loss"])
            self.confidence[network] = split.clean_probability
            if split.degenerate:
                run.note(
                    f"epoch {run.epoch + 1}: network {name} cannot divide ({split.kind}: {'; '.join(split.fallbacks)})"
                )
        w = mean_of_known(self.confidence)[:, None]
        soft = w * measured[0]["y"] + (1 - w) * (measured[0]["p"] + measured[1]["p"]) / 2
        known = np.isfinite(soft).all(axis=1)
        self.refined_label = np.where(known, np.nan_to_num(soft).argmax(axis=1), -1)
        self.refined_confidence = np.where(known, soft.max(axis=1), np.nan).astype(np.float32)

    def clean(self, network: int) -> NDArray[np.bool_]:
        """Return which rows a network finds clean, (N,); all rows before its first division."""
        return clean_rows(self.confidence[network], self.config.threshold, inclusive=False)

    def streams(self, run: Run) -> dict[str, Stream]:
        if run.epoch < self.warmup:
            return {name: Stream(order=k) for k, name in enumerate(NAMES)}
        streams = {}
        for k, name in enumerate(NAMES):
            clean = self.clean(1 - k)  # the other network's clean rows
            streams[f"{name}_labelled"] = Stream(clean, order=k)
            if self.config.mixmatch:
                streams[f"{name}_unlabelled"] = Stream(~clean, order=k)
        return streams

    # --- a step ------------------------------------------------------------------------------------------------------------

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        warming = run.epoch < self.warmup
        losses = []
        for k, name in enumerate(NAMES):
            parts = {
                end: batches[stream] for end in ("", "_labelled", "_unlabelled") if (stream := name + end) in batches
            }
            if warming or not self.config.mixmatch:
                seen = [run.forward(batch, k) for batch in parts.values()]
                losses += [self.weigh(self.losses(view), view.rows).mean() for view in seen]
            elif parts:
                losses.append(self._mixmatch(k, parts.get("_labelled"), parts.get("_unlabelled"), run))
        return StepLoss(torch.stack(losses).sum() if losses else None)

    def _mixmatch(self, k: int, labelled: Batch | None, unlabelled: Batch | None, run: Run) -> Tensor:
        network, other = run.network(k), run.network(1 - k)
        prompts = _prompts(network)
        images, targets = [], []
        if labelled is not None:
            batch = run.on_device(labelled)
            assert batch.images is not None and batch.labels is not None
            images.append(network.pixels(batch.images))
            w = torch.from_numpy(self.confidence[1 - k][batch.rows.cpu().numpy()]).to(images[-1].device).nan_to_num(1.0)
            with torch.no_grad():
                p = network.class_logits(run.encode_images(images[-1], k), prompts).softmax(dim=1)
            targets.append(refine_labels(one_hot(batch.labels, p.shape[1]), p, w, self.config.sharpen))
        if unlabelled is not None:
            batch = run.on_device(unlabelled)
            assert batch.images is not None
            images.append(network.pixels(batch.images))
            with torch.no_grad():
                p = network.class_logits(run.encode_images(images[-1], k), prompts).softmax(dim=1)
                other.eval()  # as published: the other one is only asked, and its running statistics stay as they are
                p = p + other.class_logits(run.encode_images(images[-1], 1 - k), _prompts(other)).softmax(dim=1)
                other.train()
            targets.append(sharpen(p / 2, self.config.sharpen))
        labels = torch.cat(targets)
        rows = torch.cat([batch.rows for batch in (labelled, unlabelled) if batch is not None])
        weights = self.weights_of(rows)
        if weights is not None:  # mixed like the labels: weights of given labels and of guessed ones separately
            w = weights.to(labels)[:, None]
            labels = torch.cat([w * labels, labels, w], dim=1)
        mixed, soft = mixup(torch.cat(images), labels, run.random(f"mixup {k}"), self.mixup)
        logits = network.class_logits(run.encode_images(mixed, k), prompts)
        count = 0 if labelled is None else len(labelled)
        classes = logits.shape[1]
        given, guessed = (
            soft[:count, :classes],
            soft[count:, -1 - classes : -1] if weights is not None else soft[count:],
        )
        halves = [run.gather(part) for part in (logits[:count], given, logits[count:], guessed)]
        mixed_weights = None
        if weights is not None:
            mixed_weights = torch.cat([run.gather(part) for part in (soft[:count, -1], soft[count:, -1])])
        return mixmatch_loss(*halves, weight=self.unlabelled_weight(run.epoch), weights=mixed_weights)

    def unlabelled_weight(self, epoch: int) -> float:
        """Return λ_u, which starts at 0 in the first epoch after the warm-up."""
        done = 1.0 if self.config.ramp == 0 else min(1.0, (epoch - self.warmup) / self.config.ramp)
        return self.config.unlabelled * max(0.0, done)

    # --- what it remembers -------------------------------------------------------------------------------------------------

    def sample_columns(self) -> dict[str, Array]:
        """Return the values at the start of the last epoch, both networks together; nothing after a warm-up alone."""
        if np.isnan(self.confidence).all():
            return {}
        w = mean_of_known(self.confidence)
        return {
            "clean": w > self.config.threshold,
            "clean_probability": w,
            "refined_label": self.refined_label,
            "refined_confidence": self.refined_confidence,
        }


def sharpen(p: Tensor, temperature: float = 0.5) -> Tensor:
    """p^(1/T) over its sum, rows (B, C).

    >>> sharpen(torch.tensor([[0.6, 0.2, 0.2]]))  # .36, .04 and .04 over .44
    tensor([[0.8182, 0.0909, 0.0909]])
    """
    power = p ** (1 / temperature)
    return power / power.sum(dim=1, keepdim=True)


def refine_labels(labels: Tensor, p: Tensor, w: Tensor, temperature: float = 0.5) -> Tensor:
    """sharpen(w y + (1 - w) p) of given labels y (B, C), clean posteriors w (B,) and predictions p (B, C)."""
    return sharpen(w[:, None] * labels + (1 - w)[:, None] * p, temperature)


def mixmatch_loss(
    labelled: Tensor, y: Tensor, unlabelled: Tensor, guess: Tensor, *, weight: float, weights: Tensor | None = None
) -> Tensor:
    """L_x + λ_u L_u + L_reg of logits and soft labels, (L, C) twice and (U, C) twice; L or U may be 0.

    L_reg = Σ_c π_c log(π_c / p̄_c), π_c = 1 / C, p̄ the mean prediction over all.
    weights: (L + U,) of the samples: y comes multiplied by its own, L_u is multiplied here, p̄ is the weighted mean, and
    L_reg counts by the mean weight.
    """
    p = torch.cat([labelled, unlabelled]).softmax(dim=1)
    if weights is None:
        mean = p.mean(dim=0)
    else:
        mean = (weights[:, None] * p).sum(dim=0) / weights.sum().clamp(min=torch.finfo(p.dtype).tiny)
    loss = -(mean.clamp(min=torch.finfo(p.dtype).tiny) * mean.shape[0]).log().mean()
    if weights is not None:
        loss = weights.mean() * loss
    if len(labelled):
        loss = loss + cross_entropy(labelled, y).mean()
    if len(unlabelled):
        squares = (unlabelled.softmax(dim=1) - guess).square()
        loss = loss + weight * (squares if weights is None else weights[len(labelled) :, None] * squares).mean()
    return loss


def _prompts(network: Target) -> Encoded | None:
    """Encode the classes' prompts, once for all passes of a step."""
    return network.encode_classes() if network.config.head == "prompts" else None
