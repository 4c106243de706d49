"""Class names and the prompts that describe each class, which become text anchors (TANGO, K prompts per class)."""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.shards.sources import read_classes

SOURCE = "source"  # stands for the class names of the data itself
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree
wolf woman worm
"""
_ANIMAL10N = "cat lynx wolf coyote cheetah jaguar chimpanzee orangutan hamster guinea_pig"

# Names in the order of the data set's own class ids.
BUILT_IN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"animal10n": tuple(_ANIMAL10N.split()), "cifar10": tuple(_CIFAR10.split()), "cifar100": tuple(_CIFAR100.split())}
)

# 40 sentences for photographs, TANGO's K. {} is the name; an "a" before it becomes "an" before a vowel sound.
TEMPLATES: tuple[str, ...] = (
    "a photo of a {}.",
    "a picture that shows a {}.",
    "a {} in a photograph.",
    "a snapshot of a {} taken outdoors.",
    "a {} seen from nearby.",
    "a {} seen from far away.",
    "a close view of a {}.",
    "a wide view with a {} in it.",
    "a {} in the middle of the frame.",
    "a {} at the edge of the frame.",
    "one {}, sharp and well lit.",
    "a {} in bright sunlight.",
    "a {} in the shade.",
    "a {} on a cloudy day.",
    "a {} in the evening light.",
    "a {} photographed at night.",
    "a {} photographed from above.",
    "a {} photographed from below.",
    "a {} photographed from the side.",
    "a {} photographed from the front.",
    "a blurred photo of a {}.",
    "a grainy photo of a {}.",
    "a tiny photo of a {}, only a few pixels wide.",
    "a photo of a {} in low resolution.",
    "a pale, faded photo of a {}.",
    "a colourful photo of a {}.",
    "a black-and-white photo of a {}.",
    "a photo of a {} against a plain background.",
    "a photo of a {} in front of a busy background.",
    "a photo in which a {} is partly hidden.",
    "a photo cropped tightly around a {}.",
    "a small {} in a large scene.",
    "a large {} that fills the picture.",
    "a typical {}.",
    "an unusual {}.",
    "this is what a {} looks like.",
    "what you see here is a {}.",
    "somebody took a picture of this {}.",
    "the subject of this photo is a {}.",
    "there is a {} in this image.",
)

_ARTICLE = re.compile(r"\b([Aa])n? \{\}")
# Spelled with a vowel but spoken with a consonant (a unicorn, a European, a one-way street) ...
_CONSONANT_SOUND = re.compile(r"uni(?!n|m|dent)|us[aeu]|ut[ei]|uk|ur[aei]n|eu|ewe|on(?:e|ce)\b|ufo\b", re.IGNORECASE)
# ... and the other way round (an hour, an heirloom, an 8-ball).
_VOWEL_SOUND = re.compile(r"hour|heir|honest|honou?r|8|1[18](?!\d)", re.IGNORECASE)
# Read letter by letter (an MRI scan, an X-ray, a T-shirt): up to three capitals, capitals without a vowel, one letter.
_SPELLED_OUT = re.compile(r"(?:[A-Z]{2,3}s?|[B-DF-HJ-NP-TV-Z]{2,}s?|[A-Za-z])(?![A-Za-z])")
_UNCOUNTED = frozenset(
    ["binoculars", "cattle", "clothing", "furniture", "headphones", "jeans", "scissors", "sunglasses", "trousers"]
)  # "a photo of cattle", without an article


@dataclass(frozen=True)
class ClassSet:
    """Class names in id order, and the prompts of each class."""

    names: tuple[str, ...]
    prompts: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if not self.names:
            raise ConfigError("classes: none were given; give at least one name", "classes", ())
        if len(self.names) != len(self.prompts):
            raise ConfigError.of(
                "prompts", len(self.prompts), f"lists were given for {len(self.names)} classes; give one for each class"
            )
        seen: dict[str, int] = {}
        for number, (name, sentences) in enumerate(zip(self.names, self.prompts, strict=True)):
            if not name.strip():
                raise ConfigError(
                    f"classes: class {number} has no name; give one, for example 'maple tree'", "classes", name
                )
            first = seen.setdefault(_plain_name(name).casefold(), number)
            if first != number:
                raise ConfigError.of(
                    "classes",
                    name,
                    f"names class {first} and class {number}, and their anchors would be the same; tell them apart, "
                    f"for example {_plain_name(name) + ' (bird)'!r}",
                )
            if not sentences or not all(sentence.strip() for sentence in sentences):
                what = "no prompts" if not sentences else "an empty prompt"
                raise ConfigError(
                    f"prompts: class {name!r} has {what}; give for example 'a photo of {with_article(name)}.'",
                    "prompts",
                    name,
                )

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def anchors(self) -> tuple[str, ...]:
        """(A,) all prompts, class after class."""
        return tuple(sentence for sentences in self.prompts for sentence in sentences)

    @cached_property
    def anchor_labels(self) -> NDArray[np.int64]:
        """(A,) int64, the class of each anchor."""
        labels = np.repeat(np.arange(len(self.names), dtype=np.int64), [len(sentences) for sentences in self.prompts])
        labels.setflags(write=False)
        return labels

    @cached_property
    def digest(self) -> str:
        """SHA-256 of names and prompts, for the record of a run."""
        return hashlib.sha256(json.dumps([self.names, self.prompts], ensure_ascii=False).encode()).hexdigest()


def prompts(names: Sequence[str], templates: Sequence[str] = TEMPLATES) -> tuple[tuple[str, ...], ...]:
    """Fill every template with every name; underscores become spaces, and "a" becomes "an" before a vowel sound.

    >>> prompts(["sweet_pepper", "apple"], ["a photo of a {}."])
    (('a photo of a sweet pepper.',), ('a photo of an apple.',))
    """
    if not templates:
        raise ConfigError(
            "templates: none were given; give at least one, for example 'a photo of a {}.'", "templates", ()
        )
    for template in templates:
        if template.count("{}") != 1:
            raise ConfigError.of("templates", template, "needs {} once, where the name goes: 'a photo of a {}.'")
    return tuple(tuple(_fill(template, _plain_name(name)) for template in templates) for name in names)


def with_article(name: str) -> str:
    """Put "a" or "an" before a name that needs it; by spelling rules, so rare words can be wrong.

    >>> [with_article(name) for name in ("oak_tree", "unicorn", "hour", "MRI scan", "cattle")]
    ['an oak tree', 'a unicorn', 'an hour', 'an MRI scan', 'cattle']
    """
    plain = _plain_name(name)
    if plain.lower() in _UNCOUNTED:
        return plain
    if _SPELLED_OUT.match(plain):
        vowel = plain[0].upper() in "AEFHILMNORSX"
    else:
        letters = unicodedata.normalize("NFKD", plain)  # é begins with e
        vowel = bool(_VOWEL_SOUND.match(letters)) or (
            letters[:1].lower() in tuple("aeiou") and not _CONSONANT_SOUND.match(letters)
        )
    return f"{'an' if vowel else 'a'} {plain}"


def source_classes(urls: Iterable[str]) -> ClassSet:
    """Return the classes of shards whose labels are names (class folders or a column); raise ConfigError for numbers."""
    names = read_classes(urls)
    if not names:
        raise ConfigError.of(
            "classes", SOURCE, "has no names: its labels are numbers; give a file with one name per line"
        )
    return ClassSet(names, prompts(names, TEMPLATES))


def load_classes(
    source: str | Path,
    templates: Sequence[str] = TEMPLATES,
    descriptions: Literal["join", "only"] = "join",
) -> ClassSet:
    """Load classes from a built-in list (`cifar10`, `cifar100`, `animal10n`) or a file; the order gives the class ids.

    A .json file holds a list of names, or an object of names with sentences about each (the shape of CuPL's files);
    any other file holds one name per line. Sentences join the filled templates, or with `only` replace them.

    >>> load_classes("cifar10").prompts[0][:2]
    ('a photo of an airplane.', 'a picture that shows an airplane.')
    """
    if descriptions not in ("join", "only"):
        raise ConfigError(
            f"descriptions={descriptions!r}: use 'join' (with the templates) or 'only' (without them)",
            "descriptions",
            descriptions,
        )
    described: Mapping[str, Sequence[str]] | None = None
    if isinstance(source, str) and source in BUILT_IN:
        names: Sequence[str] = BUILT_IN[source]
    else:
        path = Path(source)
        content = _read(path)
        if path.suffix.lower() == ".json":
            names, described = _from_json(path, content)
        else:
            names = _from_lines(path, content)
    if described is None and descriptions == "only":
        raise ConfigError(
            f"descriptions='only': {str(source)!r} has names only; give a .json file with sentences, or use 'join'",
            "descriptions",
            descriptions,
        )
    sentences = prompts(names, templates) if descriptions == "join" else ((),) * len(names)
    extra = [tuple(described[name]) if described is not None else () for name in names]
    return ClassSet(tuple(names), tuple(filled + own for filled, own in zip(sentences, extra, strict=True)))


def as_classes(given: "str | Path | Sequence[str] | ClassSet") -> ClassSet:
    """Make a ClassSet from a built-in list's name, a file, a list of names in the order of their ids, or a ClassSet.

    >>> as_classes(["cat", "dog"]).names, len(as_classes("cifar10"))
    (('cat', 'dog'), 10)
    """
    if isinstance(given, ClassSet):
        return given
    if isinstance(given, str | Path):
        return load_classes(given)
    names = tuple(given)
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError.of("classes", given, "are not names; give cifar10, a file, or a list such as ['cat', 'dog']")
    return ClassSet(names, prompts(names))


def _plain_name(name: str) -> str:
    """Replace underscores and runs of spaces by single spaces."""
    return " ".join(name.replace("_", " ").split())


def _fill(template: str, plain: str) -> str:
    article = with_article(plain).removesuffix(plain)  # "a ", "an " or nothing
    # Functions, not replacement strings: a name may hold a backslash.
    corrected = _ARTICLE.sub(lambda match: f"{match[1] + article[1:] if article else ''}{{}}", template)
    return corrected.replace("{}", plain)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise _file_error(path, f"no such file; give a file of names, or one of {', '.join(BUILT_IN)}") from error
    except UnicodeDecodeError as error:
        raise _file_error(path, "this is not UTF-8 text; save it as UTF-8") from error


def _file_error(path: Path, problem: str) -> ConfigError:
    return ConfigError(f"classes={str(path)!r}: {problem}", "classes", path)


def _from_lines(path: Path, content: str) -> list[str]:
    lines = [line.strip() for line in content.rstrip().splitlines()]
    for number, line in enumerate(lines, start=1):
        if not line:  # skipping it would shift the ids of all classes after it
            raise _file_error(path, f"line {number} is empty; write one name per line, id 0 first")
    return lines


def _from_json(path: Path, content: str) -> tuple[list[str], dict[str, tuple[str, ...]] | None]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        if repeated:  # json would keep the last one and shift the ids
            raise _file_error(path, f"{repeated[0]!r} occurs twice; name each class once")
        return dict(pairs)

    try:
        value = json.loads(content, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise _file_error(path, f'not JSON ({error}); write for example ["cat", "dog"]') from error
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return value, None
    if isinstance(value, dict):
        described = {name: (text,) if isinstance(text, str) else text for name, text in value.items()}
        for name, texts in described.items():
            if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
                raise _file_error(
                    path, f'{name!r} has no list of sentences; write for example {{"{name}": ["A {name} is ..."]}}'
                )
        return list(described), {name: tuple(texts) for name, texts in described.items()}
    raise _file_error(
        path,
        "give a list of names or an object of names with sentences, "
        'for example ["cat", "dog"] or {"cat": ["A cat has whiskers."]}',
    )
