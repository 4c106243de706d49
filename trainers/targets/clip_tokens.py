"""CLIP's tokens: all 49,408 of them, or only those that captions use, so that a small CLIP is not mostly token table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from noisegate.pipeline.estimators import allow_torchvision, trim

_TOKENS = 49_408
_START, _END = 49_406, 49_407
_REMEMBERED = 16_384  # texts, 10 MB of 77 tokens each
_UNKNOWN = 1  # row of the small table; row 0 is CLIP's own id 0, which pads


class ClipVocabulary(BaseModel):
    """`full` is CLIP's table; `captions` keeps the tokens of the training captions, and the others share one row."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["full", "captions"] = "full"
    ids: tuple[int, ...] = ()
    """CLIP's ids of the kept tokens, ascending, without 0"""

    @property
    def is_open(self) -> bool:
        """Whether its tokens are still to be taken from captions."""
        return self.kind == "captions" and not self.ids

    def filled(self, captions: Iterable[str], always: Sequence[str] = ()) -> ClipVocabulary:
        """With the tokens of the captions and of `always`."""
        tokenizer = clip_tokenizer(77)
        used, rest = {_START, _END}, chain(captions, always)
        while texts := list(islice(rest, 1000)):
            used.update(tokenizer(texts).unique().tolist())
        return self.model_copy(update={"ids": tuple(sorted(used - {0}))})

    @property
    def size(self) -> int:
        """Rows of the token table."""
        return 2 + len(self.ids) if self.ids else _TOKENS


@lru_cache(maxsize=8)
def clip_tokenizer(context: int) -> Any:
    """CLIP's own byte-pair encoding, for texts of `context` tokens; building it takes a while."""
    allow_torchvision()
    from open_clip.tokenizer import SimpleTokenizer

    return SimpleTokenizer(context_length=context)


@dataclass(frozen=True)
class ClipTokenizer:
    """Texts to (N, L) int64, in the numbering of the small table where `ids` are given; start and end are the largest.

    `trim` cuts to the longest text, for towers on which that changes nothing.
    """

    tokenizer: Callable[[list[str]], Tensor]
    ids: tuple[int, ...] = ()
    trim: bool = True

    @cached_property
    def _known(self) -> dict[str, Tensor]:
        """Rows of texts that came before: byte-pair encoding is slow, and small data sets show theirs in every epoch."""
        return {}

    @cached_property
    def _rows(self) -> Tensor:
        rows = torch.full((_TOKENS,), _UNKNOWN)
        rows[0] = 0
        rows[torch.tensor(self.ids)] = torch.arange(2, 2 + len(self.ids))
        return rows

    @cached_property
    def _padding(self) -> int:
        return int(self.tokenizer([""])[0, -1])

    def __call__(self, texts: list[str]) -> Tensor:
        tokens = self._tokens(list(texts))
        tokens = trim(tokens, self._padding) if self.trim else tokens
        return self._rows[tokens] if self.ids else tokens

    def _tokens(self, texts: list[str]) -> Tensor:
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if not texts or len(self._known) + len(new) > _REMEMBERED:
            return self.tokenizer(texts)
        if new:
            self._known.update(zip(new, self.tokenizer(new).unbind(), strict=True))
        return torch.stack([self._known[text] for text in texts])


@torch.no_grad()
def with_all_tokens(model: Any, ids: Sequence[int], size: int) -> None:
    """Give a model with a small table CLIP's whole one again: every token that was left out has the shared row."""
    tower = getattr(model, "text", model)
    small = tower.token_embedding.weight
    table = nn.Embedding(size, small.shape[1])
    table.weight.copy_(small[_UNKNOWN].expand(size, -1))
    table.weight[0] = small[0]
    table.weight[torch.tensor(ids)] = small[2:]
    tower.token_embedding = table
    model.vocab_size = tower.vocab_size = size
