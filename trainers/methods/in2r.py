"""IN2R, Intra-modal Neighbor-aware Noise Rectification (Liu et al., ICML 2026). Two networks, A and B.

    ℓ(S)_i = ½ Σ_both ways [-log p_ii + a (1 - p_ii)], p = softmax(S / τ)            `symmetric_cross_entropy`
    warm-up: ℓ(v·t) + ℓ(v·v') + ℓ(t·t'); v', t': the same samples encoded again      `In2r.warm_up`
    w_i  = clean posterior of a Gaussian mixture over mean hinges; clean: w_i > δ    pipeline.methods.mixtures: `gmm_split`
    clean pairs: hardest hinges of v·t with margin α, of v·v' and t·t' with α_v      `In2r.train`
    memory: v and t of pairs at least as sure as clean ones are on average, each     `In2r.remember`
    pair once; no pair is a neighbour of itself
    t*_i = G(t_n of the K pairs n in the memory whose v_n is nearest to v_i)         `In2r.rectified_loss`, `GraphRefiner`
    v*_i = G(v_n of the K pairs n in the memory whose t_n is nearest to t_i)
    noisy pairs: c / B [ℓ(v·t*)_i + ℓ(t·v*)_i], among the noisy pairs of the batch

v_i, t_i: image and text vectors of pair i. A wrong pair does not learn from its own text, but from what the texts of similar
images have in common, and in the same way from its text's side. G is one layer of attention among the K neighbours; it learns
with the network. A learns by B's division and B by A's (`co_teaching.py`).

Of the paper only the abstract was at hand; the rest follows its published code. Different here:

- A network asks its own memory, into which go the pairs that its partner is sure of. There it asks its partner's
  (`memory_of: partner`), so both start from the same weights, for their vectors must agree. Two networks from different weights
  are much better together: rSum 220.9 in place of 184.9 on 500 training photos of Flickr8k that were held out (region features
  from scratch, 40 % noise, `loss: info_nce`, one seed). For pretrained weights it makes little difference.
- Pairs are compared with the mean confidence of the division that they come from; there with that of the other one.
- Losses are per pair. There clean hinges are added up and noisy losses averaged, hence c / B; with `loss: info_nce`, which is
  not published, both are averaged, and c stands alone.
- A and B learn in the same steps; there in turn, an epoch each.
- K is 5, the default of the published G (its script: 1), and the memory is smaller by default. Vectors are not centred in each
  batch, and G has no dropout.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.methods import Split, gmm_split, log_matching_probabilities
from noisegate.pipeline.system import Float32, Mask
from noisegate.trainers.data import Batch
from noisegate.trainers.losses import info_nce, triplet
from noisegate.trainers.targets import RegionWordsConfig, Target, TargetConfig, full_precision

from .base import Array, MethodConfig, Run, Seen
from .co_teaching import (
    NAMES,
    PAPER_LOSS,
    PRETRAINED_LOSS,
    CoTeaching,
    CoTeachingConfig,
    NetworkStep,
    PartnerView,
    clean_rows,
    mean_of_known,
)

HEADS = 4
"""of the attention in G, as published; fewer where the width cannot be divided by it"""
REVERSE = -math.log(1e-7)
"""a: minus the logarithm that the published code gives a pair that does not match"""
TO_TEXTS, TO_IMAGES = 0, 1


class In2rConfig(CoTeachingConfig):
    """Constants of the published code, which warms up for 1 of 41 epochs."""

    name: Literal["in2r"] = "in2r"
    warmup: int = Field(default=1, ge=1)
    """epochs, of loop.epochs, in which all samples count as given"""
    noisy_from: float = Field(default=0.0, ge=0, le=1)
    """share of the epochs after the warm-up in which noisy pairs do not learn; they never learn from their own text"""
    views: bool = True
    """also learn which two views of images, and of texts, are of the same sample; views differ by dropout and the like"""
    view_margin: float = Field(default=0.3, gt=0)
    """α_v, between two views of images or texts"""
    neighbours: int = Field(default=5, ge=1)
    """K"""
    memory: int = Field(default=16_384, ge=1)
    """sure pairs that each network remembers, the latest; published: 65,536"""
    memory_of: Literal["own", "partner"] = "own"
    """whose memory a network asks; partner: published, and both networks then start from the same weights"""
    correction: float = Field(default=0.5, ge=0)
    """c; 0: noisy pairs do not learn"""


class GraphRefiner(nn.Module):
    """G: neighbours (B, K, d) attend to one another, and their mean is the prototype, unit rows (B, d)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, math.gcd(HEADS, width), batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, neighbours: Tensor) -> Tensor:
        context, _ = self.attention(neighbours, neighbours, neighbours, need_weights=False)
        return F.normalize(self.norm(neighbours + context).mean(dim=1), dim=-1)


class In2r(CoTeaching):
    """Learn clean pairs by the partner's halves, and noisy ones from prototypes of their neighbours in a memory."""

    Config: ClassVar[type[MethodConfig]] = In2rConfig
    config: In2rConfig
    asks_partner: ClassVar[bool] = False
    remembers: ClassVar[tuple[str, ...]] = (*CoTeaching.remembers, "sure", "remembered", "remembered_rows")

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        if self.config.memory < self.config.neighbours:
            problem = f"cannot hold method.neighbours={self.config.neighbours} pairs; use method.memory=16384"
            raise ConfigError.of("method.memory", self.config.memory, problem)
        self.same_start = self.config.memory_of == "partner"  # so that the partner's vectors mean what one's own do
        self.sure = np.zeros(2, np.float32)  # mean confidence of each network's clean half
        self.remembered = np.zeros(2, np.int64)  # pairs that each network has put into its memory so far
        self.remembered_rows = np.full(
            (2, 0), -1
        )  # row of each place in the memory; -1: free, or a newer copy is elsewhere
        self.memory = torch.zeros(2, 2, 0, 0)  # unit vectors by network and side, (2, 2, M, d): images, texts
        self.refiners = nn.ModuleList()
        self._views: dict[int, Seen] = {}  # each network's second view of its batch in this step

    def modules(self, networks: Sequence[Target]) -> nn.ModuleList:
        """Make G of both networks for both ways: texts for images, and images for texts."""
        self.refiners = nn.ModuleList(
            nn.ModuleList(GraphRefiner(network.width) for _ in (TO_TEXTS, TO_IMAGES)) for network in networks
        )
        return self.refiners

    def prepare(self, run: Run) -> None:
        super().prepare(run)
        self.sure, self.remembered = np.zeros(2, np.float32), np.zeros(2, np.int64)
        places = min(self.config.memory, run.total_rows)
        self.remembered_rows = np.full((2, places), -1)
        self.memory = torch.zeros(2, 2, places, run.network().width, device=run.device)

    def target_settings(self, config: TargetConfig) -> TargetConfig:
        """Refuse a target whose similarities are not cosines of its vectors."""
        if isinstance(config, RegionWordsConfig):
            problem = "compares regions with words, and method.name=in2r needs whole vectors; use dual or clip"
            raise ConfigError.of("target.name", config.name, problem)
        return super().target_settings(config)

    # --- the division -------------------------------------------------------------------------------------------------------

    def split(self, losses: Float32) -> Split:
        return gmm_split(losses)

    def choose_clean(self, confidence: Float32) -> Mask:
        return clean_rows(confidence, self.config.threshold, inclusive=False, one_percent=self.config.one_percent)

    def measure_batch(self, seen: Seen, network: int, run: Run) -> tuple[Tensor, Tensor]:
        """Compute mean hinges; IN2R predicts no label."""
        assert seen.similarity is not None
        each = triplet(seen.similarity, self.config.margin, same=self.same(seen))
        return each, torch.full_like(each, torch.nan)

    def divide(self, run: Run) -> None:
        super().divide(run)
        for network in range(len(NAMES)):
            confident = self.confidence[network][self.clean[network]]
            if np.isfinite(confident).any():
                self.sure[network] = np.nanmean(confident)

    # --- a step ------------------------------------------------------------------------------------------------------------

    def view(self, batch: Batch, network: int, run: Run) -> Seen:
        """Encode the batch, twice if views are compared."""
        if self.config.views:
            self._views[network] = run.forward(batch, network)
        return super().view(batch, network, run)

    def warm_up(self, seen: Seen, network: int, run: Run) -> NetworkStep:
        each, none = self.measure_batch(seen, network, run)
        assert seen.similarity is not None
        sides = (seen.similarity, *self._between_views(seen, network, run))
        loss = torch.stack([self._symmetric(side, seen, self.same(seen)) for side in sides]).sum(dim=0)
        return NetworkStep(loss, each.detach(), none)

    def train(self, seen: Seen, network: int, partner: PartnerView, run: Run) -> NetworkStep:
        each, none = self.measure_batch(seen, network, run)
        loss = self.plain_loss(seen, hardest=self.loss_name == PAPER_LOSS)
        for similarity in self._between_views(seen, network, run):
            loss = loss + self._view_loss(similarity, seen)
        loss = loss * partner.clean
        confidence = torch.from_numpy(self.confidence[1 - network][seen.rows.cpu().numpy()]).to(seen.rows.device)
        sure = confidence >= float(self.sure[1 - network])  # never of pairs that were not judged yet: NaN
        self.remember(seen, network, partner.clean & sure)
        if self.config.correction > 0 and not self.holds_noisy_back(run):
            noisy = (~partner.clean).nonzero()[:, 0]
            loss = loss.index_add(0, noisy, self._correction(seen) * self.rectified_loss(seen, noisy, network))
        return NetworkStep(loss, each.detach(), none, {"clean_share": partner.clean.float().mean()})

    def rectified_loss(self, seen: Seen, noisy: Tensor, network: int) -> Tensor:
        """Compute ℓ(v·t*) + ℓ(t·v*) of the rows `noisy` (n,) among themselves, (n,); 0 while too few are remembered."""
        assert seen.texts is not None
        images, texts = seen.images["vectors"][noisy], seen.texts["vectors"][noisy]
        asked = network if self.config.memory_of == "own" else 1 - network
        known = self.memory[asked]
        held = torch.from_numpy(self.remembered_rows[asked]).to(noisy.device)
        usable = (held >= 0) & (held != seen.rows[noisy][:, None])  # (n, M): a pair is no neighbour of itself
        total = torch.zeros(len(noisy), device=noisy.device)
        if len(noisy) < 2 or int(usable.sum(dim=1).min()) < self.config.neighbours:
            return total
        same = None if seen.same is None or not self.config.mask_same else seen.same[noisy][:, noisy]
        with full_precision(images):
            for way, queries in ((TO_TEXTS, images.float()), (TO_IMAGES, texts.float())):
                cosines = (queries.detach() @ known[way].T).masked_fill(~usable, -torch.inf)
                nearest = cosines.topk(self.config.neighbours, dim=1).indices
                prototypes = self.refiners[network][way](known[1 - way][nearest])  # type: ignore[index]
                total = total + self._symmetric(queries @ prototypes.T, seen, same)
        return total

    def remember(self, seen: Seen, network: int, sure: Tensor) -> None:
        """Put pairs (B,) bool into the network's memory, in place of the oldest."""
        assert seen.texts is not None
        places = self.memory.shape[2]
        rows = sure.nonzero()[:, 0][-places:]
        at = (torch.arange(len(rows), device=rows.device) + int(self.remembered[network])) % places
        numbers, held = seen.rows[rows].cpu().numpy(), self.remembered_rows[network]
        held[np.isin(held, numbers)] = -1
        held[at.cpu().numpy()] = numbers
        for side, vectors in enumerate((seen.images["vectors"], seen.texts["vectors"])):
            self.memory[network, side, at] = vectors[rows].detach().to(self.memory)
        self.remembered[network] += len(rows)

    def _correction(self, seen: Seen) -> float:
        """Return c, divided by B beside hinges, as the published code adds these and averages the losses of noisy pairs."""
        return self.config.correction / (1 if self.loss_name == PRETRAINED_LOSS else len(seen.rows))

    def _between_views(self, seen: Seen, network: int, run: Run) -> tuple[Tensor, ...]:
        """Compute cosines (B, B) between both views of the images, and of the texts; nothing without views."""
        if not self.config.views:
            return ()
        other, target = self._views[network], run.network(network)
        assert seen.texts is not None and other.texts is not None
        return target.vector_similarity(seen.images, other.images), target.vector_similarity(seen.texts, other.texts)

    def _view_loss(self, similarity: Tensor, seen: Seen) -> Tensor:
        """Compute the loss of two views, (B,), in the form of `plain_loss`."""
        if self.loss_name == "info_nce":
            return info_nce(similarity, self.config.temperature or seen.temperature, self.same(seen))
        hardest = self.loss_name == PAPER_LOSS
        return triplet(similarity, self.config.view_margin, hardest=hardest, same=self.same(seen))

    def _symmetric(self, similarity: Tensor, seen: Seen, same: Tensor | None) -> Tensor:
        return symmetric_cross_entropy(similarity, self.config.temperature or seen.temperature, same)

    # --- what it remembers -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        return {**super().state_dict(), "memory": self.memory.cpu().numpy()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        super().load_state_dict(state)
        self.memory = torch.from_numpy(np.array(state["memory"])).to(self.memory.device)

    def sample_columns(self) -> dict[str, Array]:
        """Return the clean posterior, the mean of both networks."""
        return {"in2r_probability": mean_of_known(self.final_division()[0])}


def symmetric_cross_entropy(similarity: Tensor, temperature: Tensor | float, same: Tensor | None = None) -> Tensor:
    """(B,) ½ Σ of both ways of -log p_ii + a (1 - p_ii): cross-entropy, and reverse cross-entropy against a certain match.

    The second term is bounded, so that a pair that does not match cannot pull without limit.

    >>> p = 1 / (1 + math.exp(-1))
    >>> loss = symmetric_cross_entropy(torch.eye(2), 1.0)
    >>> abs(float(loss[0]) - (-math.log(p) + REVERSE * (1 - p))) < 1e-5
    True
    """
    own = [logs.diagonal() for logs in log_matching_probabilities(similarity, temperature, same)]
    return torch.stack([REVERSE * (1 - logs.exp()) - logs for logs in own]).mean(dim=0)
