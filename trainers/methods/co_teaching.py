"""Two networks that divide the data for each other: the base of LNC, NCR, GSL, BiCro and IN2R.

Networks A and B (numbers 0 and 1) start from different weights (IN2R: from the same) and see the data in different orders.
Each epoch the per-sample losses of each are split into clean and noisy by a mixture; A learns by B's split and B by A's, so
that a network does not confirm its own mistakes. Evaluation averages the similarities of both. The noisy half learns only
after half of the epochs that follow the warm-up (IN2R: at once), as in NCR's published code: a wrong pair has a gradient even
at margin 0 (LNC Eq. 10), and by then its label is known best.

Two procedures are known:

lean   each network sees each sample once in an epoch, clean and noisy ones mixed as the data has them. Losses and
       predictions are those of the training steps themselves, standardised batch by batch (`standardise`), so that there
       is no pass over all data: twice a plain epoch, no more.
paper  before each epoch both networks pass over all data without learning; a step takes one clean and one noisy batch of
       each network, the shorter half starting over, and labels come from a pass of their own in evaluation mode, by both
       networks for the noisy batch. Three to four plain epochs.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from noisegate.pipeline.methods import Split, all_clean_rule
from noisegate.pipeline.system import Float32, Index, Mask
from noisegate.trainers.data import Batch
from noisegate.trainers.losses import info_nce, triplet
from noisegate.trainers.targets import TargetConfig

from .base import Array, Method, MethodConfig, Run, Seen, StepLoss, Stream, check_warmup

PAPER_LOSS, PRETRAINED_LOSS = "hardest_triplet", "info_nce"
"""of `loss: auto`: for a network from scratch, and for a pretrained one"""
NAMES = ("a", "b")
"""of the networks, in streams, logs and notes"""


class CoTeachingConfig(MethodConfig):
    """Settings of all methods of two networks."""

    loss: Literal["auto", "hardest_triplet", "triplet", "info_nce"] = "auto"
    """hardest_triplet: with soft margins, as in the papers; triplet: all negatives alike; info_nce: not in the papers, weighed
    by the soft label, for targets pretrained with it. auto: info_nce for a pretrained target, which the papers' loss damages,
    else hardest_triplet, with which small networks from scratch collapse"""
    warmup: int = Field(default=3, ge=1)
    """epochs, of loop.epochs, in which all samples count as given"""
    threshold: float = Field(default=0.5, gt=0, lt=1)
    """of the clean confidence"""
    procedure: Literal["lean", "paper"] = "lean"
    """lean: losses and labels of the training steps themselves, dropout included, twice a plain epoch; paper: passes over all
    data, labels in evaluation mode, separate batches of halves, three to four"""
    noisy_from: float = Field(default=0.5, ge=0, le=1)
    """share of the epochs after the warm-up in which the noisy half is left out, rounded down to whole epochs; 1: always"""
    one_percent: bool = False
    """if a network finds all samples clean, the 1 % with the lowest confidence count as noisy, as in NCR's code"""


@dataclass(frozen=True)
class PartnerView:
    """The partner network's results on a batch, (B,) each. prediction is NaN for samples it has not seen yet.

    own_prediction: of the learning network itself, if it was predicted in evaluation mode too.
    """

    clean: Tensor
    confidence: Tensor
    prediction: Tensor
    own_prediction: Tensor | None = None
    seen: Seen | None = None
    """a whole view of the batch in evaluation mode, for methods that compute labels from it"""


@dataclass(frozen=True)
class NetworkStep:
    """One network's step on one batch, (B,) each: the losses to minimise, and values to remember about the samples."""

    loss: Tensor
    division: Tensor
    """the loss that decides about clean and noisy"""
    prediction: Tensor
    logs: Mapping[str, Tensor] = field(default_factory=dict)


class CoTeaching(Method):
    """Remember losses and predictions by row, divide the rows by them at the start of an epoch, and swap the halves."""

    tasks: ClassVar[tuple[str, ...]] = ("retrieval",)
    networks: int = 2
    remembers: ClassVar[tuple[str, ...]] = ("division", "prediction", "confidence", "clean", "kept")
    asks_partner: ClassVar[bool] = True
    """whether `train` uses the partner's prediction"""
    config: CoTeachingConfig

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        self.loss_name = PAPER_LOSS if config.loss == "auto" else config.loss
        self.total_epochs = 1
        self.division = self.prediction = self.confidence = np.zeros((2, 0), np.float32)
        self.clean = np.zeros((2, 0), bool)
        self.kept = np.zeros(0, bool)

    # --- what each method has of its own ---------------------------------------------------------------------------------

    @abstractmethod
    def split(self, losses: Float32) -> Split:
        """Split the losses (N,) of one network into clean and noisy."""

    @abstractmethod
    def warm_up(self, seen: Seen, network: int, run: Run) -> NetworkStep:
        """Compute a step of the warm-up."""

    @abstractmethod
    def train(self, seen: Seen, network: int, partner: PartnerView, run: Run) -> NetworkStep:
        """Compute a step of `network`, given its partner's results on the batch."""

    @abstractmethod
    def measure_batch(self, seen: Seen, network: int, run: Run) -> tuple[Tensor, Tensor]:
        """Compute the division loss and the prediction, (B,) each."""

    def divides_in_warm_up(self) -> bool:
        """Return whether the warm-up divides the rows too."""
        return False

    def after_division(self, run: Run) -> None:
        """Hook that is called in the warm-up if `divides_in_warm_up`."""

    # --- an epoch ----------------------------------------------------------------------------------------------------------

    def target_settings(self, config: TargetConfig) -> TargetConfig:
        """Resolve `loss: auto` by whether the target is pretrained; the target's settings do not change."""
        if self.config.loss == "auto" and not config.from_scratch:
            self.loss_name = PRETRAINED_LOSS
        return config

    def epochs(self, wanted: int) -> int:
        check_warmup(self.config.warmup, wanted, max(1, wanted // 4))
        self.total_epochs = wanted
        return wanted

    def prepare(self, run: Run) -> None:
        if self.config.loss == "auto" and self.loss_name == PRETRAINED_LOSS:
            run.note(
                f"{self.config.name}: the target is pretrained, so pairs learn by {PRETRAINED_LOSS} weighed by their labels; "
                f"the paper's own loss is method.loss={PAPER_LOSS}"
            )
        shape = (2, run.total_rows)
        self.division, self.prediction = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
        self.confidence, self.clean = np.full(shape, np.nan, np.float32), np.ones(shape, bool)
        self.kept = np.ones(run.total_rows, bool)

    def is_warm_up(self, run: Run) -> bool:
        return run.epoch < self.config.warmup

    def holds_noisy_back(self, run: Run) -> bool:
        """Return whether only the clean half learns: after the warm-up, for the share `noisy_from` of the epochs after it."""
        after_warm_up = run.epoch - self.config.warmup
        return 0 <= after_warm_up < int(self.config.noisy_from * (self.total_epochs - self.config.warmup))

    def begin_epoch(self, run: Run) -> None:
        self.kept = np.ones(run.total_rows, bool)
        if self.is_warm_up(run) and (run.epoch == 0 or not self.divides_in_warm_up()):
            return
        if self.config.procedure == "paper":
            self._pass_over_data(run)
        self.divide(run)
        if self.is_warm_up(run):
            self.after_division(run)

    def divide(self, run: Run) -> None:
        """Find each network's halves by its own losses; the halves are swapped when used."""
        for network, name in enumerate(NAMES):
            if np.isnan(self.division[network]).all():
                continue  # the first epoch of the lean procedure without a warm-up: there are no losses yet
            split = self.split(self.division[network])
            self.confidence[network] = split.clean_probability
            self.clean[network] = self.choose_clean(self.confidence[network])
            if split.degenerate:
                reasons = "; ".join(split.fallbacks)
                run.note(
                    f"epoch {run.epoch + 1}: network {name} cannot tell clean from noisy ({split.kind}: {reasons})"
                )
            elif not (self.clean[network] & ~np.isnan(self.confidence[network])).any():
                run.note(f"epoch {run.epoch + 1}: network {name} finds nothing clean")

    def choose_clean(self, confidence: Float32) -> Mask:
        """Choose the clean rows, (N,)."""
        return clean_rows(confidence, self.config.threshold, one_percent=self.config.one_percent)

    def _pass_over_data(self, run: Run) -> None:
        def measure(seen: Seen, network: int) -> dict[str, Tensor]:
            if len(seen.rows) < 2:  # no negatives, no loss
                return {name: torch.full(seen.rows.shape, torch.nan) for name in ("division", "prediction")}
            division, prediction = self.measure_batch(seen, network, run)
            return {"division": division, "prediction": prediction}

        for network, measured in enumerate(run.measure_each(measure)):
            self.division[network], self.prediction[network] = measured["division"], measured["prediction"]

    def streams(self, run: Run) -> dict[str, Stream]:
        streams = {}
        for network, name in enumerate(NAMES):
            if self.config.procedure == "lean" or self.is_warm_up(run):
                streams[name] = Stream(None if self.kept.all() else self.kept, order=network)
            else:
                clean = self.clean[1 - network]
                streams[f"{name}_clean"] = Stream(clean, order=network)
                if not self.holds_noisy_back(run) or not clean.any():  # else there is nothing to learn from
                    streams[f"{name}_noisy"] = Stream(~clean, order=network)
        return streams

    # --- a step ------------------------------------------------------------------------------------------------------------

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        losses: list[Tensor] = []
        logs: dict[str, float | Tensor] = {}
        for name, batch in batches.items():
            network = NAMES.index(name.partition("_")[0])
            seen = self.view(batch, network, run)
            if len(seen.rows) < 2:
                continue
            rows = seen.rows.cpu().numpy()
            if self.is_warm_up(run):
                step = self.warm_up(seen, network, run)
            else:
                step = self.train(seen, network, self.ask_partner(batch, rows, network, run), run)
            losses.append(self.weigh(step.loss, seen.rows).mean())
            logs |= {f"{name}/{key}": value.detach() for key, value in step.logs.items()}
            self.prediction[network, rows] = step.prediction.detach().float().cpu().numpy()
            if self.config.procedure == "lean":
                self.division[network, rows] = standardise(step.division.detach().float()).cpu().numpy()
        return StepLoss(torch.stack(losses).sum() if losses else None, logs)

    def view(self, batch: Batch, network: int, run: Run) -> Seen:
        """Encode a batch for a step."""
        return run.forward(batch, network)

    def ask_partner(self, batch: Batch, rows: Index, network: int, run: Run) -> PartnerView:
        """Return the other network's results: the swap of co-teaching."""
        partner = 1 - network

        def on_device(values: Array) -> Tensor:
            return torch.from_numpy(values[rows]).to(run.device)

        prediction, own = on_device(self.prediction[partner]), None
        clean = on_device(self.clean[partner])
        if self.config.procedure == "paper" and self.asks_partner:
            own = self.measure_batch(run.observe(batch, network), network, run)[1]
            if not bool(clean.all()):
                prediction = self.measure_batch(run.observe(batch, partner), partner, run)[1]
        return PartnerView(clean, on_device(self.confidence[partner]).nan_to_num(1.0), prediction, own)

    def plain_loss(self, seen: Seen, hardest: bool = False) -> Tensor:
        """Compute the loss of the warm-up (B,), in which all given pairs count as right."""
        assert seen.similarity is not None
        if self.loss_name == "info_nce":
            return info_nce(seen.similarity, self.config.temperature or seen.temperature, self.same(seen))
        return triplet(seen.similarity, self.config.margin, hardest=hardest, same=self.same(seen))

    def soft_loss(self, seen: Seen, label: Tensor, margin: Tensor) -> Tensor:
        """Compute L_soft (LNC Eq. 10, GSL Eq. 17), (B,), of pairs with soft labels (B,) and their margins (B,)."""
        assert seen.similarity is not None
        if self.loss_name == "info_nce":
            return label * self.plain_loss(seen)
        return triplet(seen.similarity, margin, hardest=self.loss_name == "hardest_triplet", same=self.same(seen))

    def same(self, seen: Seen) -> Tensor | None:
        """Return which pairs are no negatives, (B, B) bool."""
        return seen.same if self.config.mask_same else None

    def final_division(self) -> tuple[Float32, Mask]:
        """Compute confidence and clean, (2, N) each, by the judging network, from all losses remembered so far."""
        if self.config.procedure == "paper" or np.isnan(self.division).all():
            return self.confidence, self.clean
        confidence = np.stack([self.split(losses).clean_probability.astype(np.float32) for losses in self.division])
        return confidence, np.stack([self.choose_clean(of_network) for of_network in confidence])


def standardise(losses: Tensor) -> Tensor:
    """Scale the losses of one batch (B,) to mean 0 and deviation 1; zeros if they do not differ.

    Losses recorded during training come from ever better networks: they are comparable within a batch, but not across the
    batches of an epoch. Every batch is a random draw of all samples, so it has the same mixture.

    >>> standardise(torch.tensor([1.0, 3.0])).tolist()
    [-1.0, 1.0]
    """
    centred = losses - losses.mean()
    deviation = centred.square().mean().sqrt()
    return centred / deviation if float(deviation) > 1e-12 else centred * 0


def clean_rows(
    confidence: Float32, threshold: float = 0.5, *, inclusive: bool = True, one_percent: bool = False
) -> Mask:
    """Return whether w_i >= threshold (LNC), or > threshold (NCR, GSL), (N,); rows without a confidence count as clean.

    one_percent: if all rows are clean, the 1 % with the lowest confidence are not (NCR's published code).
    """
    known = np.where(np.isnan(confidence), np.inf, confidence)
    if one_percent:
        raised = all_clean_rule(confidence, threshold)
        if raised > threshold:
            clean: Mask = known > raised
            return clean
    return known >= threshold if inclusive else known > threshold


def mean_of_known(values: Float32) -> Float32:
    """Average the values of both networks (2, N) that are not NaN, (N,); NaN if both are."""
    known = ~np.isnan(values)
    total = np.where(known, values, 0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan).astype(np.float32)
