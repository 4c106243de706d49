"""Tokens by a memory of words: those of open_clip's tokenizer, for any text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisegate.pipeline.estimators import clip_tokens
from noisegate.pipeline.estimators.clip_tokens import ClipTokens, speed_up
from noisegate.pipeline.estimators.light_import import import_open_clip

open_clip = import_open_clip("ViT-B-32")
OWN = open_clip.get_tokenizer("ViT-B-32")
FAST = speed_up(OWN)
ODD = "caf\u00e9|\ufb01n|\u201cq\u201d|\u732b|\u212a|\u0130st|\u00a0|\u2028|\t|\n|\x1b[31m"
WORDS = st.sampled_from(f"a|Bird's|IT'LL|3dogs|x-ray,|<end_of_text>|a<start_of_text>b|&amp;|&lt|{ODD}".split("|"))


@given(st.one_of(st.text(max_size=90), st.lists(WORDS, max_size=90).map(" ".join)))
def test_tokens_are_those_of_open_clip(text: str) -> None:
    assert FAST([text, text]).tolist() == OWN([text, text]).tolist()


@pytest.mark.parametrize("length", [1, 2, 5, 78])
def test_texts_are_cut_and_padded_as_open_clip_does(length: int) -> None:
    texts = ["", "one", "a red bird", "a red bird sits on the old fence"]
    assert FAST(texts, context_length=length).tolist() == OWN(texts, context_length=length).tolist()
    assert FAST("one").tolist() == OWN("one").tolist()


def test_the_memory_of_words_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clip_tokens, "MOST_WORDS", 3)
    tokens = ClipTokens(OWN)
    texts = [
        " ".join(np.random.default_rng(seed).choice(["red", "blue", "bird", "dog", "sits"], 8)) for seed in range(9)
    ]
    assert tokens(texts).tolist() == OWN(texts).tolist()
    assert len(tokens._words) <= 3


def test_other_tokenizers_are_left_alone() -> None:
    masked = open_clip.SimpleTokenizer(reduction_mask="simple")
    canonical = open_clip.SimpleTokenizer(clean="canonicalize")
    assert isinstance(FAST, ClipTokens) and speed_up(masked) is masked and speed_up(canonical) is canonical
    assert speed_up(len) is len  # type: ignore[arg-type, comparison-overlap]
