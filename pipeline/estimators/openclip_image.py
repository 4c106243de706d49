"""Vision transformers of open_clip without the part of their last layer that nothing reads: the same result, sooner."""

from typing import Any

import torch

from .base import normalise

__all__ = ["encode_image", "reads_class_token_only"]


def encode_image(model: Any, batch: torch.Tensor, class_token_only: bool) -> torch.Tensor:
    """Embed pictures (N, 3, H, W); not normalised.

    With `class_token_only` the last block computes one of its tokens, the one that is pooled: all others serve as keys and
    values alone. That leaves out 5/6 of the block.
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
    """Whether the short way is this model's own: by its parts, and by what it makes of a picture, to rounding."""
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
    return bool(abs(whole - short).max() <= 1e-5)
