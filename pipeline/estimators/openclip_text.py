"""Text towers of open_clip, also for texts that were cut to the longest of a batch: the same result, several times faster."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .base import normalise

__all__ = ["PROBE_TEXTS", "encode_tokens", "trimmed", "trimming_is_exact"]

PROBE_TEXTS = ("a", "a red circle", "two small green triangles on the left of a wide blue square, on white paper")


def encode_tokens(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Embed token ids (N, L), L at most the model's context; not normalised."""
    length = tokens.shape[1]
    tower = getattr(model, "text", model)  # a plain CLIP holds the parts of its text tower itself
    positions = getattr(tower, "positional_embedding", None)
    if positions is None or length == len(positions) or getattr(tower, "cls_emb", None) is not None:
        return model.encode_text(tokens)  # type: ignore[no-any-return]
    # open_clip's own towers take their whole table of positions and mask; a shorter text needs the first rows of both
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


def trimmed(tokens: torch.Tensor, padding: int) -> torch.Tensor:
    """Without the columns at the end that hold nothing but padding."""
    used = (tokens != padding).any(dim=0).nonzero()
    return tokens[:, : int(used.max()) + 1] if len(used) else tokens[:, :1]


@torch.no_grad()
def trimming_is_exact(model: Any, tokenizer: Callable[[list[str]], torch.Tensor], device: str | torch.device) -> bool:
    """Whether cut texts embed as whole ones do: true of causal and masked towers, not of those that read padding."""
    tokens = tokenizer(list(PROBE_TEXTS)).to(device)
    padding = int(tokenizer([""])[0, -1])
    try:  # without autocast: in half precision a small dependence on the padding would drown
        whole, cut = (encode_tokens(model, t).float().cpu().numpy() for t in (tokens, trimmed(tokens, padding)))
    except (RuntimeError, AssertionError, IndexError, AttributeError):  # a tower that only takes its full context
        return False
    return bool(np.abs(normalise(whole) - normalise(cut)).max() <= 1e-5)
