"""Text encoders over a vocabulary: each word in its context, as a GRU or a transformer sees it."""

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from noisegate.pipeline.errors import ConfigError

from .pooling import lengths, packed_gru
from .vocabulary import PADDING, Vocabulary

__all__ = ["TextKind", "WordEncoder", "read_word_vectors"]

TextKind = Literal["gru", "transformer"]


class WordEncoder(nn.Module):
    """Token ids (N, L) to one vector per word (N, L, width), and the mask (N, L) of real ones."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        width: int,
        *,
        kind: TextKind = "gru",
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
            self.gru = nn.GRU(word_width, width, layers, batch_first=True, bidirectional=True)
            return
        if width % heads:
            raise ConfigError(f"target.heads={heads} does not divide target.width={width}; use for example heads: 4")
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
    """Fill the rows of known words from a text file, `word v1 v2 …` in each line (GloVe's and word2vec's); how many.

    Words without a vector keep their random row.
    """
    if vocabulary.kind != "words":
        raise ConfigError(f"target.word_vectors={str(path)!r} needs vocabulary.kind: words, not {vocabulary.kind}")
    if not path.is_file():
        raise ConfigError(
            f"target.word_vectors={str(path)!r}: no such file; give a text file, such as glove.6B.300d.txt"
        )
    places = {word: 4 + number for number, word in enumerate(vocabulary.words)}
    found = 0
    with path.open(encoding="utf-8") as lines, torch.no_grad():
        for number, line in enumerate(lines, start=1):
            word, *values = line.rstrip().split(" ")
            if word not in places or (number == 1 and len(values) == 1):  # word2vec begins with its own shape
                continue
            if len(values) != table.embedding_dim:
                raise ConfigError(
                    f"target.word_vectors={str(path)!r}: line {number} has {len(values)} numbers, and target.word_width is "
                    f"{table.embedding_dim}; use word_width: {len(values)}"
                )
            table.weight[places[word]] = torch.tensor([float(value) for value in values])
            found += 1
    return found
