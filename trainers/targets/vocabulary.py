"""Words as numbers: a vocabulary taken from captions, or a hash that needs none.

Both are part of the target's configuration, so that a saved target carries its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2s
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

__all__ = ["PADDING", "Vocabulary", "WordTokenizer", "split_words"]

PADDING, UNKNOWN, START, END = range(4)
_WORD = re.compile(r"\w+(?:['’]\w+)*")


def split_words(text: str) -> list[str]:
    """Words in lower case; punctuation is left out.

    >>> split_words("Two dogs -- they don't bark!")
    ['two', 'dogs', 'they', "don't", 'bark']
    """
    return [word.replace("’", "'") for word in _WORD.findall(text.lower())]


class Vocabulary(BaseModel):
    """Which words a text encoder knows.

    `words` without a list are taken from the training captions (see `resolve_target`); `hashing` gives every word one of
    `buckets` numbers, so that rare words may share one.  Words that are not known count as one unknown word.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["words", "hashing"] = "words"
    words: tuple[str, ...] = ()
    min_count: int = Field(default=4, ge=1)
    """words seen less often are unknown"""
    limit: int = Field(default=30_000, ge=1)
    """the most frequent are kept"""
    buckets: int = Field(default=8192, ge=1)
    max_length: int = Field(default=64, ge=3)
    """of a text, start and end included; the rest is cut off"""

    @property
    def is_open(self) -> bool:
        """Whether its words are still to be taken from captions."""
        return self.kind == "words" and not self.words

    def filled(self, captions: Iterable[str], always: Sequence[str] = ()) -> Vocabulary:
        """With the words of the captions, most frequent first, and those of `always` whatever their count."""
        counts: Counter[str] = Counter()
        for caption in captions:
            counts.update(split_words(caption))
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        kept = dict.fromkeys(word for word, times in ranked[: self.limit] if times >= self.min_count)
        kept.update(dict.fromkeys(word for text in always for word in split_words(text)))
        return self.model_copy(update={"words": tuple(kept) or ("",)})  # no captions at all: every word is unknown

    @property
    def size(self) -> int:
        """Number of token ids: padding, unknown, start and end come first."""
        return 4 + (len(self.words) if self.kind == "words" else self.buckets)

    def tokenizer(self) -> WordTokenizer:
        """Texts to token ids."""
        return WordTokenizer(self.words if self.kind == "words" else None, self.buckets, self.max_length)


@dataclass(frozen=True)
class WordTokenizer:
    """Texts to (N, L) int64: start, words, end, then zeros; an empty text is start and end.

    >>> WordTokenizer(("a", "dog"), 0, 8)(["A big dog.", ""]).tolist()
    [[2, 4, 1, 5, 3], [2, 3, 0, 0, 0]]
    """

    words: tuple[str, ...] | None
    buckets: int
    max_length: int

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: 4 + number for number, word in enumerate(self.words or ())}

    def __call__(self, texts: list[str]) -> Tensor:
        rows = [[START, *map(self._id, split_words(text)[: self.max_length - 2]), END] for text in texts]
        tokens = torch.zeros(len(rows), max(map(len, rows), default=2), dtype=torch.int64)
        for row, ids in zip(tokens, rows, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        return tokens

    def _id(self, word: str) -> int:
        if self.words is not None:
            return self._ids.get(word, UNKNOWN)
        return 4 + int.from_bytes(blake2s(word.encode(), digest_size=8).digest(), "little") % self.buckets
