"""Words, unknown words, empty texts, and the vocabulary as part of a configuration."""

import hashlib
import pickle
from pathlib import Path

import pytest
import torch

from noisegate.trainers.targets import resolve_target
from noisegate.trainers.targets.texts import (
    ClipTokenizer,
    ClipVocabulary,
    Vocabulary,
    clip_tokenizer,
    read_word_vectors,
    split_words,
)
from tests.errors import refused


def test_frequent_words_come_first_and_rare_ones_are_unknown() -> None:
    found = Vocabulary(min_count=2).filled(["a dog", "A dog and a cat", "cat"])
    assert found.words == ("a", "cat", "dog")  # 3, 2 and 2 times: equal counts by the alphabet
    assert not found.is_open and found.size == 7
    assert found.tokenizer()(["the dog, a dog"]).tolist() == [[2, 1, 6, 4, 6, 3]]


def test_limit_keeps_the_most_frequent_and_prompts_are_always_known() -> None:
    found = Vocabulary(min_count=1, limit=1).filled(["x x y"], always=["a picture of y"])
    assert found.words == ("x", "a", "picture", "of", "y")


def test_empty_texts_and_texts_that_are_too_long() -> None:
    tokens = Vocabulary(words=("a",), max_length=4).tokenizer()
    assert tokens(["", "!?", "a a a a"]).tolist() == [[2, 3, 0, 0], [2, 3, 0, 0], [2, 4, 4, 3]]
    assert tokens([]).shape == (0, 2)


def test_captions_without_words_leave_a_vocabulary_that_is_not_open() -> None:
    found = Vocabulary().filled([])
    assert not found.is_open and found.tokenizer()(["dog"]).tolist() == [[2, 1, 3]]


def test_hashing_is_the_same_everywhere_and_needs_no_captions() -> None:
    vocabulary = Vocabulary(kind="hashing", buckets=1000)
    assert not vocabulary.is_open and vocabulary.size == 1004
    tokenizer = vocabulary.tokenizer()
    expected = 4 + int.from_bytes(hashlib.blake2s(b"dog", digest_size=8).digest(), "little") % 1000
    assert tokenizer(["Dog"]).tolist() == [[2, expected, 3]]
    assert torch.equal(pickle.loads(pickle.dumps(tokenizer))(["a dog"]), tokenizer(["a dog"]))


@pytest.mark.parametrize(
    ("text", "words"), [("don’t STOP", ["don't", "stop"]), ("naïve 3x", ["naïve", "3x"]), ("", [])]
)
def test_words_are_lower_case_without_punctuation(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_captions_are_read_only_for_an_open_vocabulary() -> None:
    def never() -> list[str]:
        raise AssertionError("read")

    closed = {"name": "dual", "vocabulary": {"words": ["a"]}}
    assert resolve_target(closed, never).vocabulary.words == ("a",)  # type: ignore[attr-defined]
    with refused("target.vocabulary"):
        resolve_target({"name": "dual"})


def test_clip_keeps_the_tokens_of_captions_and_shares_a_row_for_others() -> None:
    clip = clip_tokenizer(8)
    vocabulary = ClipVocabulary(kind="captions").filled(iter(["a dog"]), always=["a cat"])
    assert vocabulary.ids == (320, 1929, 2368, 49406, 49407)  # CLIP's a, dog, cat, start and end
    small = ClipTokenizer(clip, vocabulary.ids)
    assert small(["a dog", "zebra"]).tolist() == [[5, 2, 3, 6], [5, 1, 6, 0]]
    assert ClipTokenizer(clip, vocabulary.ids, trim=False)(["a dog"]).shape == (1, 8)
    assert torch.equal(ClipTokenizer(clip, trim=False)(["a dog"]), clip(["a dog"]))
    assert torch.equal(pickle.loads(pickle.dumps(small))(["a cat"]), small(["a cat"]))


def test_word_vectors_fill_the_rows_of_known_words(tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text("3 2\ndog 1 2\nzebra 5 6\ncat 3 4\n")
    table = torch.nn.Embedding(6, 2)
    before = table.weight.detach().clone()
    assert read_word_vectors(file, Vocabulary(words=("cat", "dog")), table) == 2
    assert table.weight[4:].tolist() == [[3.0, 4.0], [1.0, 2.0]]
    assert torch.equal(table.weight[:4], before[:4])
    with refused("target.word_width", 3):
        read_word_vectors(file, Vocabulary(words=("cat",)), torch.nn.Embedding(5, 3))
    with refused("target.word_vectors", str(tmp_path / "none.txt")):
        read_word_vectors(tmp_path / "none.txt", Vocabulary(words=("cat",)), table)
