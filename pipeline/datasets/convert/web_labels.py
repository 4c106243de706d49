"""WebVision 1.0 and Food-101N, with the clean sets that they are measured on."""

from collections import Counter
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError

from .files import find, missing, need, read_lines, read_rows
from .labelled import listed_pictures
from .source import Request, Source

__all__ = ["read_food101n", "read_webvision"]

MINI = 50  # classes of mini-WebVision
IMAGENET = 1_000
_PICTURES = (".jpg", ".jpeg", ".png", ".webp")


def read_webvision(request: Request) -> Source:
    """The pictures of the first `classes` classes (50) by the list of the split, google's part for training."""
    classes = MINI if request.classes is None else request.classes
    if not 1 <= classes <= IMAGENET:
        raise ConfigError(f"classes={classes}: WebVision has 1,000; use 50 for mini-WebVision")
    if request.split == "ilsvrc":
        return _ilsvrc(request, classes)
    name = "train_filelist_google.txt" if request.split == "train" else "val_filelist.txt"
    path = need(request, f"info/{name}", name)
    folder = request.folder
    if request.split == "val":
        folder = need(request, "val_images_256", "val_images")
    names, labels = [], []
    for number, line in enumerate(read_lines(path), start=1):
        if not line:
            continue
        picture, _, label = line.rpartition(" ")
        if not picture or not label.isdecimal():
            raise ConfigError(f"{path}: line {number} is {line[:60]!r}; each is a picture and a class number")
        if int(label) < classes:
            names.append(picture.strip())
            labels.append(int(label))
    synsets = find(request.folder, "info/synsets.txt", "synsets.txt")
    known = _synset_names(synsets)[:classes] if synsets else ()
    files = (path,) if synsets is None else (path, synsets)
    return listed_pictures(request, folder, names, labels, files, known, facts={"class_limit": classes})


def _synset_names(path: Path) -> tuple[str, ...]:
    """The first name of each line `n01440764 tench, Tinca tinca`; a name that occurs twice keeps its synset."""
    synsets, names = [], []
    for line in filter(None, read_lines(path)):
        synset, _, rest = line.partition(" ")
        synsets.append(synset)
        names.append(rest.partition(",")[0].strip() or synset)
    often = Counter(name.casefold() for name in names)
    pairs = zip(names, synsets, strict=True)
    return tuple(f"{name} ({synset})" if often[name.casefold()] > 1 else name for name, synset in pairs)


def _ilsvrc(request: Request, classes: int) -> Source:
    """ImageNet's validation set: the synsets in order of their numbers are WebVision's classes."""
    place = find(request.folder, "val") or request.folder
    if not place.is_dir():
        raise missing(request, "folder")
    synsets = sorted(path.name for path in place.iterdir() if path.is_dir() and path.name[:1] == "n")
    if len(synsets) not in (classes, IMAGENET):
        raise ConfigError(
            f"{place} has {len(synsets)} folders of synsets; all {IMAGENET:,} must be there, or the first {classes} alone, "
            "because their order gives the class numbers"
        )
    names = [
        f"{synset}/{path.name}"
        for synset in synsets[:classes]
        for path in sorted((place / synset).iterdir())
        if path.suffix.lower() in _PICTURES
    ]
    number = {synset: label for label, synset in enumerate(synsets)}
    labels = [number[name.partition("/")[0]] for name in names]
    known = tuple(synsets[:classes])
    return listed_pictures(
        request, place, names, labels, (), (), lambda n: {"synset": known[labels[n]]}, {"class_limit": classes}
    )


def read_food101n(request: Request) -> Source:
    """All pictures of the list, those that people looked at (`verified_…`, with `noisy`), or Food-101's test set."""
    listed = {
        "train": "imagelist.tsv",
        "verified_train": "verified_train.tsv",
        "verified_val": "verified_val.tsv",
        "test": "test.txt",
    }[request.split]
    path = need(request, f"meta/{listed}", listed)
    named = need(request, "meta/classes.txt", "classes.txt")
    folder = need(request, "images")
    classes = tuple(line for line in read_lines(named) if line and line != "class_name")
    number = {name: label for label, name in enumerate(classes)}
    rows = [row for row in read_rows(path) if not row[0].startswith("class_name")]
    names = [row[0].strip() if request.split != "test" else f"{row[0].strip()}.jpg" for row in rows]
    unknown = next((name for name in names if name.partition("/")[0] not in number), None)
    if unknown is not None:
        raise ConfigError(f"{path}: the class of {unknown!r} is not in {named.name}; each row is CLASS/PICTURE")
    labels = [number[name.partition("/")[0]] for name in names]
    seen = _verified(request, path) if request.split != "test" else {}
    protocol = "human:food101n.verification"

    def known(row: int) -> dict[str, Any]:
        record: dict[str, Any] = {"class_name": classes[labels[row]]}
        if names[row] in seen:
            record["verification_label"] = int(seen[names[row]])
        if request.split.startswith("verified"):
            record |= {"noisy": not seen[names[row]], "noise_protocol": protocol}
        return record

    facts = {"verified": sum(name in seen for name in names), "wrong": sum(not seen.get(name, True) for name in names)}
    files = (path, named)
    return listed_pictures(
        request, folder, names, labels, files, classes, known, {} if request.split == "test" else facts
    )


def _verified(request: Request, listed: Path) -> dict[str, bool]:
    """Whether the label is right, of the pictures that people looked at; for training their list need not be there."""
    path = listed if request.split != "train" else find(request.folder, "meta/verified_train.tsv", "verified_train.tsv")
    if path is None:
        return {}
    found = {}
    for row in read_rows(path):
        if row[0].startswith("class_name"):
            continue
        if len(row) < 2 or row[1].strip() not in ("0", "1"):
            raise ConfigError(f"{path}: the row of {row[0]!r} has no verification label; it must be 0 or 1")
        found[row[0].strip()] = row[1].strip() == "1"
    return found
