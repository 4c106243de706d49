"""Faster versions of open_clip's towers with the same result; each is checked on the loaded model before it is used."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from .base import describe_error, normalise

Encode = Callable[[torch.Tensor], torch.Tensor]

PROBE_TEXTS = ("a", "a red circle", "two small green triangles on the left of a wide blue square, on white paper")
EXACT = 1e-5  # largest difference of unit rows at which a faster version counts as equal (float32 rounding)
FLOAT32_TOLERANCE = 1e-4  # allowed change of a cosine in float32, the same as in `verify`
LARGEST_TOLERANCE = 0.1  # allowed in any number type; float16 and bfloat16 move unit rows far less
LEAST_GAIN = 1.02  # a smaller speed-up is timing noise
ROUNDS = 5  # timings of each version; the fastest counts

log = logging.getLogger(__name__)


def encode_image(model: Any, batch: torch.Tensor, class_token_only: bool) -> torch.Tensor:
    """Embed pictures (N, 3, H, W); not normalised.

    With `class_token_only` the last block computes only the class token, because only that is pooled; the other tokens are keys
    and values only. That saves 5/6 of the block.
    """
    if not class_token_only:
        return model.encode_image(batch)  # type: ignore[no-any-return]
    tower = model.visual
    x = tower._embeds(batch)
    *blocks, last = tower.transformer.resblocks
    for block in blocks:
        x = block(x)
    tokens = last.ln_1(x)
    attended = last.attn(tokens[:, :1], tokens, tokens, need_weights=False)[0]
    x = x[:, :1] + last.ls_1(attended)
    x = x + last.ls_2(last.mlp(last.ln_2(x)))
    pooled, _ = tower._pool(x)
    return pooled if tower.proj is None else pooled @ tower.proj  # type: ignore[no-any-return]


@torch.no_grad()
def reads_class_token_only(model: Any, size: int, device: str | torch.device) -> bool:
    """Check by the model's parts and on one picture whether `class_token_only` gives the model's own embedding."""
    from open_clip.transformer import ResidualAttentionBlock, VisionTransformer

    tower = model.visual
    if type(tower) is not VisionTransformer or tower.attn_pool is not None or tower.pool_type != "tok":
        return False
    last = tower.transformer.resblocks[-1]
    if type(last) is not ResidualAttentionBlock or not tower.transformer.batch_first or tower.output_tokens:
        return False
    if last.attn.in_proj_weight is None or hasattr(last, "ln_1_kv"):
        return False
    picture = torch.linspace(-500, 500, 3 * size * size).sin().view(1, 3, size, size).to(device)
    whole, short = (normalise(encode_image(model, picture, way).float().cpu().numpy()) for way in (False, True))
    return bool(abs(whole - short).max() <= EXACT)


def encode_tokens(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Embed token ids (N, L), L at most the model's context; not normalised."""
    length = tokens.shape[1]
    tower = getattr(model, "text", model)  # a plain CLIP holds the parts of its text tower itself
    positions = getattr(tower, "positional_embedding", None)
    if positions is None or length == len(positions) or getattr(tower, "cls_emb", None) is not None:
        return model.encode_text(tokens)  # type: ignore[no-any-return]
    # open_clip's own towers use all positions and the whole mask; a shorter text needs only the first rows of both
    from open_clip.transformer import text_global_pool

    kind = tower.transformer.get_cast_dtype()
    x = tower.token_embedding(tokens).to(kind) + positions[:length].to(kind)
    mask = tower.attn_mask[:length, :length] if tower.attn_mask is not None else None
    x = tower.ln_final(tower.transformer(x, attn_mask=mask))
    pool, end = (model.text_pool_type, model.text_eos_id) if tower is model else (tower.pool_type, tower.eos_id)
    x = text_global_pool(x, tokens, pool, eos_token_id=end)
    projection = tower.text_projection
    if projection is None:
        return x  # type: ignore[no-any-return]
    return projection(x) if isinstance(projection, torch.nn.Linear) else x @ projection  # type: ignore[no-any-return]


def trim(tokens: torch.Tensor, padding: int) -> torch.Tensor:
    """Drop the last columns that hold only padding."""
    used = (tokens != padding).any(dim=0).nonzero()
    return tokens[:, : int(used.max()) + 1] if len(used) else tokens[:, :1]


@torch.no_grad()
def trimming_is_exact(model: Any, tokenizer: Callable[[list[str]], torch.Tensor], device: str | torch.device) -> bool:
    """Check whether trimmed and padded texts give the same embeddings: true for causal and masked towers only."""
    tokens = tokenizer(list(PROBE_TEXTS)).to(device)
    padding = int(tokenizer([""])[0, -1])
    try:  # without autocast: half precision would hide a small dependence on the padding
        whole, cut = (encode_tokens(model, t).float().cpu().numpy() for t in (tokens, trim(tokens, padding)))
    except (RuntimeError, AssertionError, IndexError, AttributeError):  # a tower that only takes its full context
        return False
    return bool(np.abs(normalise(whole) - normalise(cut)).max() <= EXACT)


class Trial(NamedTuple):
    """The compiled function, None if eager is better, and a line that says why."""

    encode: Encode | None
    line: str


@dataclass(frozen=True)
class Compiler:
    """How to compile and time a vision tower; the compiled one is used only if it agrees with eager and is faster.

    Its use is not part of the scorer's identity: each process times for itself, so two encoders of one run, or the same run
    resumed, could decide differently.
    """

    compile: Callable[[Encode], Encode]
    clock: Callable[[], float] = time.perf_counter

    def try_out(self, eager: Encode, batches: Sequence[torch.Tensor], tolerance: float) -> Trial:
        """Compile, compare on all `batches` (N, 3, H, W), then time both in turn on the first.

        Unit rows may move by `tolerance`, so no cosine with any text moves further. If compiling raises, eager is used.
        """
        try:
            compiled = self.compile(eager)
            distance = max(row_distance(eager(batch), compiled(batch)) for batch in batches)
            gain = self._gain(eager, compiled, batches[0])
        except Exception as error:  # errors of a compiler, a tool chain or a driver may be of any type
            return Trial(None, f"torch.compile: not available ({describe_error(error, 160)}): left out")
        found = f"torch.compile: {gain:.2f} x, largest change of a cosine {distance:.0e}"
        if not distance <= tolerance:
            return Trial(None, f"{found}, {tolerance:.0e} is allowed: left out")
        if gain < LEAST_GAIN:
            return Trial(None, f"{found}: left out")
        return Trial(_Guarded(eager, compiled), f"{found}: used")

    def _gain(self, eager: Encode, compiled: Encode, batch: torch.Tensor) -> float:
        """Measure eager time divided by compiled time, the fastest of `ROUNDS` each."""
        least = [float("inf")] * 2
        for _ in range(ROUNDS):
            for way, encode in enumerate((eager, compiled)):
                began = self.clock()
                encode(batch).cpu()  # waits for a GPU to finish
                least[way] = min(least[way], self.clock() - began)
        return least[0] / max(least[1], 1e-9)


class _Guarded:
    """Call the compiled tower only for tested inputs: inference on two or more pictures (for one, torch would recompile).

    If it fails on a later batch, eager takes over for good and the log says so.
    """

    def __init__(self, eager: Encode, compiled: Encode) -> None:
        self._eager, self._compiled = eager, compiled

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        if len(batch) < 2 or not torch.is_inference_mode_enabled():
            return self._eager(batch)
        try:
            return self._compiled(batch)
        except Exception as error:  # as in `try_out`; if the batch itself is wrong, eager raises again
            log.warning("torch.compile: failed (%s): left out from here on", describe_error(error, 160))
            self._compiled = self._eager
            return self._eager(batch)


def torch_compile(encode: Encode, **settings: Any) -> Encode:
    """torch.compile with a dynamic batch dimension, so that a smaller last batch does not recompile."""
    compiled = torch.compile(encode, **settings)

    def call(batch: torch.Tensor) -> torch.Tensor:
        torch._dynamo.maybe_mark_dynamic(batch, 0)
        return compiled(batch)

    return call


def probe_batches(size: int, count: int) -> list[torch.Tensor]:
    """Make two batches of random preprocessed pictures: `count`, and about half as many."""
    rng = torch.Generator().manual_seed(0)
    coarse = torch.randn((max(3, count), 3, 8, 8), generator=rng)
    pictures = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    return [pictures, pictures[: len(pictures) // 2 + 1]]


def row_distance(left: torch.Tensor, right: torch.Tensor) -> float:
    """Compute the largest distance of unit rows: an upper bound of the change of any cosine.

    >>> round(row_distance(torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, 3.0]])), 4)
    0.2828
    """
    unit_left, unit_right = (normalise(rows.float().cpu().numpy()) for rows in (left, right))
    return float(np.linalg.norm(unit_left - unit_right, axis=1).max())


def tolerance_for(exact: torch.Tensor, eager: torch.Tensor) -> float:
    """Compute the allowed distance of compiled rows from `eager` rows, given the `exact` rows in float32.

    In half precision, if two results are each as near to float32 as eager is, they are at most twice that distance apart.

    >>> tolerance_for(torch.eye(2), torch.eye(2))
    0.0001
    """
    return min(max(FLOAT32_TOLERANCE, 2 * row_distance(exact, eager)), LARGEST_TOLERANCE)
