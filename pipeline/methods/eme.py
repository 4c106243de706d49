"""Exactly matched elements (LNC, Appendix A): how much of an image a caption tells, and of a caption an image shows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import PIL.Image
from numpy.typing import ArrayLike, NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators.base import Estimator, normalise

__all__ = ["Indicator", "eme", "eme_from_matches", "eme_of_pair", "estimator_indicator", "noun_phrases", "patches"]

Image: TypeAlias = NDArray[Any]
Indicator: TypeAlias = Callable[[Sequence[Image], Sequence[str]], ArrayLike]
"""Given images and texts, the (images, texts) booleans "this image shows what this text says"."""


def eme(mentioned: ArrayLike, visible: ArrayLike) -> float:
    """EME = (1 / 2 N_I) sum_i E(e_i, T) + (1 / 2 N_T) sum_t E(e_t, I), between 0 and 1 (LNC, Appendix A).

    mentioned: (N_I,) bool, image elements that the text describes; visible: (N_T,) bool, text elements that the image
    shows.  NaN when one side has no elements: nothing can be said about it.

    >>> eme(mentioned=[True, True], visible=[True, False])
    0.75
    """
    told, shown = np.asarray(mentioned, dtype=np.bool_), np.asarray(visible, dtype=np.bool_)
    if told.ndim != 1 or shown.ndim != 1:
        raise ConfigError(f"mentioned {told.shape} and visible {shown.shape} must be one boolean per element")
    if not told.size or not shown.size:
        return math.nan
    return float(told.mean() + shown.mean()) / 2


def eme_from_matches(matches: ArrayLike) -> float:
    """EME when it is known which elements are the same: an element counts when the other side has a match for it.

    matches: (N_I, N_T) bool.

    >>> eme_from_matches([[True, False], [False, False]])
    0.5
    """
    same = np.asarray(matches, dtype=np.bool_)
    if same.ndim != 2:
        raise ConfigError(f"matches has shape {same.shape}; give (image elements, text elements)")
    return eme(same.any(axis=1), same.any(axis=0))


def eme_of_pair(
    image: Image,
    caption: str,
    indicator: Indicator,
    *,
    elements_of_image: Callable[[Image], Sequence[Image]] | None = None,
    elements_of_text: Callable[[str], Sequence[str]] | None = None,
) -> float:
    """EME of an image and its caption: parts of the image against the whole text, phrases against the whole image.

    image: (H, W) or (H, W, channels).  Elements are a 3 x 3 grid of `patches` and `noun_phrases` unless given: a
    segmentation and a parser do better.  The indicator decides, e.g. a CLIP cosine above a threshold.

    >>> bright = lambda images, texts: [[("sun" in text) == (i.mean() > 0.5) for text in texts] for i in images]
    >>> eme_of_pair(np.ones((6, 6)), "the sun above a lake", bright)
    0.75
    """
    parts = (elements_of_image or patches)(image)
    phrases = (elements_of_text or noun_phrases)(caption)
    if not len(parts) or not len(phrases):
        return math.nan
    told = np.asarray(indicator(parts, [caption]), dtype=np.bool_)
    shown = np.asarray(indicator([image], phrases), dtype=np.bool_)
    if told.shape != (len(parts), 1) or shown.shape != (1, len(phrases)):
        raise ConfigError(f"indicator returned shapes {told.shape} and {shown.shape}; give (images, texts) booleans")
    return eme(told[:, 0], shown[0])


def estimator_indicator(estimator: Estimator, threshold: float) -> Indicator:
    """The estimator as the indicator: an element is there where its cosine with the other side is above `threshold`.

    β is the natural threshold: what unrelated things have.  Images are uint8, (H, W, 3) or grey (H, W), as `np.asarray`
    gives a picture.
    """

    def indicate(images: Sequence[Image], texts: Sequence[str]) -> NDArray[np.bool_]:
        pixels = [np.asarray(image) for image in images]
        kinds = {array.dtype for array in pixels} - {np.dtype(np.uint8)}
        if kinds:  # numbers from 0 to 1 would turn black without a word
            raise ConfigError(f"image is {kinds.pop()}; give uint8 from 0 to 255, as np.asarray(picture) does")
        pictures = [PIL.Image.fromarray(array).convert("RGB") for array in pixels]
        left, right = normalise(estimator.encode_images(pictures)), normalise(estimator.encode_texts(texts))
        return np.asarray(left @ right.T > threshold)

    return indicate


def patches(image: Image, grid: int | tuple[int, int] = 3) -> list[Image]:
    """The image cut into grid = (rows, columns) parts, left to right and top to bottom; sizes differ by 1 at most.

    >>> [part.shape for part in patches(np.zeros((5, 4, 3)), grid=(2, 2))]
    [(3, 2, 3), (3, 2, 3), (2, 2, 3), (2, 2, 3)]
    """
    rows, columns = (grid, grid) if isinstance(grid, int) else grid
    if image.ndim not in (2, 3) or not (1 <= rows <= image.shape[0] and 1 <= columns <= image.shape[1]):
        raise ConfigError(f"grid={grid} does not fit an image of shape {image.shape}; give at most one part per pixel")
    return [part for row in np.array_split(image, rows, axis=0) for part in np.array_split(row, columns, axis=1)]


def noun_phrases(caption: str) -> list[str]:
    """The things an English caption names, with their adjectives, in order and once each.

    By a list of the words that end a phrase (articles, prepositions, usual verbs, -ing and -ed forms behind a noun), not
    by grammar: good enough for captions, no parser needed.

    >>> noun_phrases("A brown dog is running through the tall grass, chasing two striped cats.")
    ['brown dog', 'tall grass', 'two striped cats']
    """
    phrases: list[str] = []
    for clause in re.split(r"[^\w\s'’-]+", caption.lower()):
        words = re.findall(r"\w[\w'’-]*", clause)
        phrase: list[str] = []
        opened = False  # an article or a number came right before: a participle here is an adjective
        for word, before, behind in zip(words, ["", *words], [*words[1:], ""], strict=False):
            if word == "and" and before in COLOURS and behind in COLOURS:
                phrase.append(word)  # a black and white dog is one thing
            elif word in OPENING or word in ENDING or (_is_participle(word) and not opened):
                _close(phrase, phrases)
                phrase, opened = [], word in OPENING
            else:
                phrase.append(word)
                opened = word in NUMBERS or (opened and _is_participle(word))
        _close(phrase, phrases)
    return phrases


def _close(phrase: list[str], phrases: list[str]) -> None:
    """Keep a phrase that names something; numbers, colours and participles alone do not."""
    named = any(not (word in NUMBERS | COLOURS or word.isdigit() or _is_participle(word)) for word in phrase)
    text = " ".join(phrase)
    if named and text not in phrases:
        phrases.append(text)


def _is_participle(word: str) -> bool:
    return len(word) > 4 and word.endswith(("ing", "ed")) and word not in NO_PARTICIPLE


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NUMBERS = _words("one two three four five six seven eight nine ten eleven twelve dozen hundred")
COLOURS = _words(
    "and black white red green blue yellow brown gray grey orange pink purple tan gold silver beige maroon"
)
OPENING = _words(
    "a an the this that these those his her its their my your our some several many few another other each every all "
    "both any no"
)
NO_PARTICIPLE = _words(
    "building ceiling clothing crossing earring evening landing lightning morning painting pudding railing sibling "
    "string swing thing wedding spring awning icing topping parking king ring wing breed speed steed hundred weed seed "
    "feed reed bobsled biped"
)
_VERBS = _words(
    "appear carry catch chase climb come cross crouch cut dance do drink drive eat enjoy face fill float fly get give go "
    "grab hang have hit hold jump kick lay lead lean leap lie look make move notice overlook paint perch play point pose "
    "prepare pull push reach read rest ride roll run say see sell serve show sing sit ski skate sleep slide smile sniff "
    "spin splash stand stare suck surf surround swim take talk throw touch travel try use wait walk watch wear work"
)
ENDING = _words(
    "of in on at by with without within to into onto from for over under above below behind before after beside besides "
    "between among against along across around through throughout during inside outside near toward towards up down off "
    "out about as like than while next front together and or but nor so then if when where who which whose what there "
    "here not very quite just only also too outdoors indoors it he she they them him we us you i me himself herself "
    "itself themselves is are was were be been being am has had does did can could will would may might should must "
    "isn't aren't sat stood held wore ran rode flew laid ate drank threw caught took made seen worn thrown shown lying "
    "nothing something anything everything someone somebody"
) | {form for verb in _VERBS for form in (verb, verb + "s", verb + "es", verb.removesuffix("y") + "ies")}
