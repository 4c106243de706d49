"""Batches to embeddings and cosines, and cosines to weights."""

import numpy as np
import pytest
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.pairs.scorer import encode, score_pairs
from noisegate.pipeline.shards.workers import Decoded
from tests.fakes import BLANK, NOT_FINITE, ZERO, ColourModel, TwoSpaces, estimator

RED: NDArray[np.uint8] = np.full((8, 8, 3), (222, 36, 36), np.uint8)
BLUE: NDArray[np.uint8] = np.full((8, 8, 3), (40, 92, 228), np.uint8)
NOTHING: NDArray[np.uint8] = np.full((8, 8, 3), BLANK, np.uint8)


def sample(index: int, pixels: NDArray[np.uint8] | None, text: str | None, status: str = "ok") -> Decoded:
    return Decoded(f"k{index}", index, status, pixels=pixels, text=text)


def test_rows_stay_in_their_places() -> None:
    samples = [
        sample(0, None, "red", "no_image"),
        sample(1, RED, "a red thing"),
        sample(2, RED, None, "no_text"),
        sample(3, None, None, "broken"),
        sample(4, BLUE, "a red thing"),
    ]
    found = encode(estimator(), samples, {})
    assert found.images.any(axis=1).tolist() == [False, True, True, False, True]
    assert found.texts.any(axis=1).tolist() == [True, True, False, False, True]
    assert np.isnan(found.similarity).tolist() == [True, False, True, True, False]
    assert found.similarity[1] > 0.7 > 0.4 > found.similarity[4]
    for i in (1, 4):
        assert found.similarity[i] == pytest.approx(float(found.images[i] @ found.texts[i]), abs=1e-6)
    assert [s.status for s in samples] == ["no_image", "ok", "no_text", "broken", "ok"]


def test_an_embedding_that_is_none_is_invalid() -> None:
    samples = [sample(0, RED, NOT_FINITE), sample(1, NOTHING, "red"), sample(2, RED, ZERO), sample(3, RED, "red")]
    found = encode(estimator(), samples, {})
    assert [s.status for s in samples] == ["invalid", "invalid", "invalid", "ok"]
    assert [s.error for s in samples] == [
        "the text embedding is zero or not finite",
        "the image embedding is zero or not finite",
        "the text embedding is zero or not finite",
        None,
    ]
    assert np.isfinite(found.similarity).tolist() == [False, False, False, True]
    assert np.isfinite(found.texts).all()


def test_a_text_is_encoded_once() -> None:
    model = ColourModel()
    wrapped = estimator()
    wrapped._inner = model
    known: dict[str, NDArray[np.float32]] = {}
    for _ in range(2):
        encode(wrapped, [sample(0, RED, "red"), sample(1, RED, "red"), sample(2, RED, "blue")], known)
    assert model.batches == [("texts", 2), ("images", 3), ("images", 3)]


@pytest.mark.parametrize("samples", [[], [sample(0, None, None, "broken")]])
def test_a_batch_with_nothing_to_encode(samples: list[Decoded]) -> None:
    found = encode(estimator(), samples, {})
    assert found.images.shape == found.texts.shape == (len(samples), 0)
    assert np.isnan(found.similarity).all()


def test_a_model_without_a_common_space_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"TwoSpaces' gives pictures 24 numbers and texts 7; a pair needs a model with one"
    ):
        encode(estimator(kind=TwoSpaces), [sample(0, RED, "red")], {})


def test_weights_and_the_cut() -> None:
    scores = score_pairs(np.array([0.5, 0.25, 0.1, np.nan], np.float32), Beta(0.25, "fixed"))
    assert scores.osa_weight[:3].tolist() == [0.25**2 * 0.75, 0, 0]
    assert np.isnan(scores.osa_weight[3])
    assert scores.clean.tolist() == [True, False, False, False]
    assert scores.clean_probability is None
