"""Exactly matched elements by hand, and the phrases and patches they are counted on."""

import json
import math
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators.custom import CustomEstimator
from noisegate.pipeline.methods.eme import (
    eme,
    eme_from_matches,
    eme_of_pair,
    estimator_indicator,
    noun_phrases,
    patches,
)

booleans = st.lists(st.booleans(), min_size=1, max_size=12)


def test_unrelated_partly_and_fully_related_pairs() -> None:
    assert eme([False, False], [False]) == 0
    assert eme([True, False, True, False], [True, True]) == 0.75
    assert eme([True], [True, True, True]) == 1


@given(booleans, booleans)
def test_eme_is_half_the_share_of_either_side(mentioned: list[bool], visible: list[bool]) -> None:
    expected = sum(mentioned) / (2 * len(mentioned)) + sum(visible) / (2 * len(visible))
    assert eme(mentioned, visible) == pytest.approx(expected)
    assert eme(visible, mentioned) == pytest.approx(expected)


def test_a_side_without_elements_says_nothing() -> None:
    assert math.isnan(eme([], [True]))
    assert math.isnan(eme_from_matches(np.zeros((0, 3))))
    assert math.isnan(eme_of_pair(np.ones((4, 4)), "of the", lambda images, texts: [[True]]))
    with pytest.raises(ConfigError, match="one boolean per element"):
        eme([[True]], [True])


def test_matches_count_an_element_once_however_many_partners_it_has() -> None:
    assert eme_from_matches([[1, 1, 0], [0, 0, 0]]) == pytest.approx((1 / 2 + 2 / 3) / 2)
    with pytest.raises(ConfigError, match="matches has shape"):
        eme_from_matches([True])


def test_a_pair_is_judged_part_against_whole_on_both_sides() -> None:
    """A picture whose left half is dark: 'night' is told by the dark parts, 'day' by the bright ones."""
    image = np.zeros((4, 4))
    image[:, 2:] = 1
    asked: list[tuple[int, list[str]]] = []

    def indicator(images: Sequence[NDArray[np.float64]], texts: Sequence[str]) -> list[list[bool]]:
        asked.append((len(images), list(texts)))
        return [[("night" in text) and part.mean() <= 0.5 for text in texts] for part in images]

    score = eme_of_pair(image, "a cold night, a sunny day", indicator, elements_of_image=lambda i: patches(i, 2))
    assert asked == [(4, ["a cold night, a sunny day"]), (1, ["cold night", "sunny day"])]
    assert score == pytest.approx((2 / 4 + 1 / 2) / 2)
    with pytest.raises(ConfigError, match="indicator returned shapes"):
        eme_of_pair(image, "a night", lambda images, texts: [True])


@pytest.mark.parametrize(
    ("caption", "phrases"),
    [
        (
            "A boy wearing a red shirt and jeans is doing a flip on his bike .",
            ["boy", "red shirt", "jeans", "flip", "bike"],
        ),
        ("A black and white dog runs through the water", ["black and white dog", "water"]),
        ("Two dogs and two dogs.", ["two dogs"]),
        ("a parked car next to a car parked by the building", ["parked car", "car", "building"]),
        ("Three smiling children in red", ["three smiling children"]),
        ("It is running.", []),
        ("", []),
        ("a well-lit Café; the driver's seat", ["well-lit café", "driver's seat"]),
    ],
)
def test_noun_phrases(caption: str, phrases: list[str]) -> None:
    assert noun_phrases(caption) == phrases


@given(st.text(max_size=80))
def test_noun_phrases_survive_any_text_and_never_repeat(caption: str) -> None:
    found = noun_phrases(caption)
    assert len(found) == len(set(found))
    assert all(phrase.strip() for phrase in found)


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_patches_put_together_are_the_image(height: int, width: int, data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    image = np.arange(height * width * 3).reshape(height, width, 3)
    parts = patches(image, (rows, columns))
    assert len(parts) == rows * columns
    lines = [np.concatenate(parts[r * columns : (r + 1) * columns], axis=1) for r in range(rows)]
    np.testing.assert_array_equal(np.concatenate(lines), image)


def test_a_grid_finer_than_the_pixels_is_refused() -> None:
    with pytest.raises(ConfigError, match="grid=3 does not fit"):
        patches(np.zeros((2, 5)))


def test_the_label_side_loads_without_torch_and_faiss() -> None:
    names = ("inspect.metrics", "neighbours.graph", "labels.tango", "methods.mixtures")
    modules = [f"noisegate.pipeline.{name}" for name in names]
    code = f"import sys, json, {', '.join(modules)}; print(json.dumps(list(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
    assert set(modules) <= set(loaded)
    assert not {"torch", "faiss"} & set(loaded)


class ColourModel:
    """Embeds a picture by its mean colour and a text by the colours it names."""

    identity = "colours"

    def encode_images(self, images: Sequence[object]) -> NDArray[np.float32]:
        return np.stack([np.asarray(image, np.float32).mean(axis=(0, 1)) for image in images])

    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([[name in text for name in ("red", "green", "blue")] for text in texts], np.float32)


def test_an_estimator_can_be_the_indicator() -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    image[:2, :, 0], image[2:, :, 2] = 255, 255  # red above, blue below
    indicator = estimator_indicator(CustomEstimator(ColourModel(), "colours"), 0.8)
    assert np.asarray(indicator([image[:2], image[2:]], ["red", "blue"])).tolist() == [[True, False], [False, True]]
    halves = [image[:2], image[2:]]
    half_told = eme_of_pair(
        image,
        "red",
        indicator,
        elements_of_image=lambda _: halves,
        elements_of_text=lambda text: [text, "red and blue"],
    )
    # one of two halves is told; "red and blue" is shown by the whole picture (cosine 1), "red" is not (.71)
    assert half_told == pytest.approx((1 / 2 + 1 / 2) / 2)


def test_an_estimator_sees_grey_pictures_and_refuses_shares_of_one() -> None:
    indicator = estimator_indicator(CustomEstimator(ColourModel(), "colours"), 0.8)
    assert np.asarray(indicator([np.full((4, 4), 9, np.uint8)], ["red green blue", "red"])).tolist() == [[True, False]]
    with pytest.raises(ConfigError, match="image is float64; give uint8 from 0 to 255"):
        indicator([np.ones((4, 4, 3))], ["red"])
