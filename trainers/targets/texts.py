"""Texts as words: a vocabulary from captions (or hashing without one), token ids, and a vector per word in its context.

The vocabulary is part of the target's configuration, so that a saved target includes it. The encoder is a GRU or a transformer.
CLIP has its own tokens, all of them or only those in the captions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2s
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators import allow_torchvision, trim

from .pooling import lengths, packed_gru

CLIP_TOKENS = 49_408
CLIP_START, CLIP_END = 49_406, 49_407
_REMEMBERED = 16_384  # cached texts; 10 MB at 77 tokens each
CLIP_UNKNOWN = 1  # row of the small table; row 0 is CLIP's id 0, the padding
TextKind = Literal["gru", "transformer"]
PADDING, UNKNOWN, START, END = range(4)
_WORD = re.compile(r"\w+(?:['’]\w+)*")


def split_words(text: str) -> list[str]:
    """Split into words in lower case; punctuation is left out.

    >>> split_words("Two dogs -- they don't bark!")
    ['two', 'dogs', 'they', "don't", 'bark']
    """
    return [word.replace("’", "'") for word in _WORD.findall(text.lower())]


class Vocabulary(BaseModel):
    """The words that a text encoder knows.

    `words` without a list are taken from the training captions (see `resolve_target`); `hashing` gives every word one of
    `buckets` numbers, so that rare words may share one.  All other words count as one unknown word.
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
        """Whether its words must still be taken from captions."""
        return self.kind == "words" and not self.words

    def filled(self, captions: Iterable[str], always: Sequence[str] = ()) -> Vocabulary:
        """Return a copy with the words of the captions, most frequent first, and of `always` whatever their count."""
        counts: Counter[str] = Counter()
        for caption in captions:
            counts.update(split_words(caption))
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        kept = dict.fromkeys(word for word, times in ranked[: self.limit] if times >= self.min_count)
        kept.update(dict.fromkeys(word for text in always for word in split_words(text)))
        return self.model_copy(update={"words": tuple(kept) or ("",)})  # without captions every word is unknown

    @property
    def size(self) -> int:
        """Number of token ids: padding, unknown, start and end come first."""
        return 4 + (len(self.words) if self.kind == "words" else self.buckets)

    def tokenizer(self) -> WordTokenizer:
        """Make the tokenizer from texts to token ids."""
        return WordTokenizer(self.words if self.kind == "words" else None, self.buckets, self.max_length)


@dataclass(frozen=True)
class WordTokenizer:
    """Convert texts to token ids (N, L) int64: start, words, end, then zeros; an empty text is start and end.

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


class WordEncoder(nn.Module):
    """Encode token ids (N, L) to one vector per word (N, L, width), and the mask (N, L) of real words."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        width: int,
        *,
        kind: TextKind = "gru",
        bidirectional: bool = True,
        word_width: int = 300,
        layers: int = 1,
        heads: int = 4,
        dropout: float = 0.0,
        vectors: str | None = None,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.words = nn.Embedding(vocabulary.size, word_width, padding_idx=PADDING)
        nn.init.uniform_(self.words.weight, -0.1, 0.1)
        with torch.no_grad():
            self.words.weight[PADDING] = 0
        if vectors is not None:
            read_word_vectors(Path(vectors), vocabulary, self.words)
        self.dropout = nn.Dropout(dropout)
        if kind == "gru":
            self.gru = nn.GRU(word_width, width, layers, batch_first=True, bidirectional=bidirectional)
            return
        if width % heads:
            raise ConfigError.of(
                "target.heads", heads, f"does not divide target.width={width}; use for example heads: 4"
            )
        self.enter = nn.Linear(word_width, width)
        self.places = nn.Parameter(torch.randn(vocabulary.max_length, width) * 0.02)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        mask = tokens != PADDING
        words = self.dropout(self.words(tokens))
        if self.kind == "gru":
            return packed_gru(self.gru, words, lengths(mask)), mask
        states = self.enter(words) + self.places[: tokens.shape[1]]
        return self.blocks(states, src_key_padding_mask=~mask), mask


def read_word_vectors(path: Path, vocabulary: Vocabulary, table: nn.Embedding) -> int:
    """Fill the rows of known words from a text file, `word v1 v2 …` in each line (GloVe, word2vec); return how many.

    Words without a vector keep their random row.
    """
    if vocabulary.kind != "words":
        raise ConfigError.of("target.word_vectors", str(path), f"needs vocabulary.kind: words, not {vocabulary.kind}")
    if not path.is_file():
        problem = "is no file; give a text file, such as glove.6B.300d.txt"
        raise ConfigError.of("target.word_vectors", str(path), problem)
    places = {word: 4 + number for number, word in enumerate(vocabulary.words)}
    filled = 0
    with path.open(encoding="utf-8") as lines, torch.no_grad():
        for number, line in enumerate(lines, start=1):
            word, *values = line.rstrip().split(" ")
            if word not in places or (number == 1 and len(values) == 1):  # word2vec files begin with their shape
                continue
            if len(values) != table.embedding_dim:
                problem = (
                    f"does not fit the {len(values)} numbers in line {number} of {path}; use word_width: {len(values)}"
                )
                raise ConfigError.of("target.word_width", table.embedding_dim, problem)
            table.weight[places[word]] = torch.tensor([float(value) for value in values])
            filled += 1
    return filled


# --- CLIP's tokens -------------------------------------------------------------------------------------------------------


class ClipVocabulary(BaseModel):
    """CLIP's tokens: `full` is CLIP's table; `captions` keeps the tokens of the training captions, all others share one row."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["full", "captions"] = "full"
    ids: tuple[int, ...] = ()
    """CLIP's ids of the kept tokens, ascending, without 0"""

    @property
    def is_open(self) -> bool:
        """Whether its tokens must still be taken from captions."""
        return self.kind == "captions" and not self.ids

    def filled(self, captions: Iterable[str], always: Sequence[str] = ()) -> ClipVocabulary:
        """Return a copy with the tokens of the captions and of `always`."""
        tokenizer = clip_tokenizer(77)
        used, rest = {CLIP_START, CLIP_END}, chain(captions, always)
        while texts := list(islice(rest, 1000)):
            used.update(tokenizer(texts).unique().tolist())
        return self.model_copy(update={"ids": tuple(sorted(used - {0}))})

    @property
    def size(self) -> int:
        """Number of rows of the token table."""
        return 2 + len(self.ids) if self.ids else CLIP_TOKENS


@lru_cache(maxsize=8)
def clip_tokenizer(context: int) -> Any:
    """Build CLIP's own byte-pair encoding for texts of `context` tokens; this is slow."""
    allow_torchvision()
    from open_clip.tokenizer import SimpleTokenizer

    return SimpleTokenizer(context_length=context)


@dataclass(frozen=True)
class ClipTokenizer:
    """Convert texts to token ids (N, L) int64, numbered by the small table if `ids` are given; start and end are largest.

    `trim` cuts to the longest text, for towers whose result this does not change.
    """

    tokenizer: Callable[[list[str]], Tensor]
    ids: tuple[int, ...] = ()
    trim: bool = True

    @cached_property
    def _known(self) -> dict[str, Tensor]:
        """Cache of token ids by text: byte-pair encoding is slow, and small data sets repeat their texts in every epoch."""
        return {}

    @cached_property
    def _rows(self) -> Tensor:
        rows = torch.full((CLIP_TOKENS,), CLIP_UNKNOWN)
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
    """Replace a model's small table by CLIP's full one: every token that was left out gets the shared row."""
    tower = getattr(model, "text", model)
    small = tower.token_embedding.weight
    table = nn.Embedding(size, small.shape[1])
    table.weight.copy_(small[CLIP_UNKNOWN].expand(size, -1))
    table.weight[0] = small[0]
    table.weight[torch.tensor(ids)] = small[2:]
    tower.token_embedding = table
    model.vocab_size = tower.vocab_size = size
