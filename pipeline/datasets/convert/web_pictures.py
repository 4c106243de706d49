"""Pictures found by web search: WebVision 1.0, Food-101N and CARS98N, with the clean sets they are measured on.

CARS98N has 98 classes of cars and is measured on the other 98 classes of CARS196 (PRISM's setting).
"""

from collections import Counter
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError

from .source import (
    Request,
    SampleSource,
    find,
    is_picture,
    missing,
    need,
    picture_samples,
    read_lines,
    read_rows,
    unusable,
)

MINI = 50  # classes of mini-WebVision
IMAGENET = 1_000
FIRST_TEST = 99  # first test class of CARS196, whose classes count from 1
_CARS_FOLDERS = ("images", "img", "img_v3", "CARS_98N")


def read_webvision(request: Request) -> SampleSource:
    """Read the pictures of the first `classes` classes (50) from the list of the split, google's part for training."""
    classes = MINI if request.classes is None else request.classes
    if not 1 <= classes <= IMAGENET:
        raise ConfigError(f"classes={classes}: WebVision has 1,000; use 50 for mini-WebVision", "classes", classes)
    if request.split == "ilsvrc":
        return _read_ilsvrc(request, classes)
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
            raise unusable(path, f"line {number} is {line[:60]!r}; each is a picture and a class number")
        if int(label) < classes:
            names.append(picture.strip())
            labels.append(int(label))
    synsets = find(request.folder, "info/synsets.txt", "synsets.txt")
    known = _synset_names(synsets)[:classes] if synsets else ()
    files = (path,) if synsets is None else (path, synsets)
    return picture_samples(request, folder, names, labels, files, known, facts={"class_limit": classes})


def _synset_names(path: Path) -> tuple[str, ...]:
    """Return the first name of each line `n01440764 tench, Tinca tinca`; a repeated name stays a synset."""
    synsets, names = [], []
    for line in filter(None, read_lines(path)):
        synset, _, rest = line.partition(" ")
        synsets.append(synset)
        names.append(rest.partition(",")[0].strip() or synset)
    often = Counter(name.casefold() for name in names)
    pairs = zip(names, synsets, strict=True)
    return tuple(f"{name} ({synset})" if often[name.casefold()] > 1 else name for name, synset in pairs)


def _read_ilsvrc(request: Request, classes: int) -> SampleSource:
    """Read ImageNet's validation set; its synsets in the order of their numbers are WebVision's classes."""
    place = find(request.folder, "val") or request.folder
    if not place.is_dir():
        raise missing(request, "folder")
    synsets = sorted(path.name for path in place.iterdir() if path.is_dir() and path.name[:1] == "n")
    if len(synsets) not in (classes, IMAGENET):
        wanted = f"all {IMAGENET:,} must be there, or the first {classes} alone: their order gives the class numbers"
        raise unusable(place, f"has {len(synsets)} folders of synsets; {wanted}")
    names = [
        f"{synset}/{path.name}"
        for synset in synsets[:classes]
        for path in sorted((place / synset).iterdir())
        if is_picture(path)
    ]
    number = {synset: label for label, synset in enumerate(synsets)}
    labels = [number[name.partition("/")[0]] for name in names]
    known = tuple(synsets[:classes])
    return picture_samples(
        request, place, names, labels, (), (), lambda n: {"synset": known[labels[n]]}, {"class_limit": classes}
    )


def read_food101n(request: Request) -> SampleSource:
    """Read Food-101N: all pictures, those checked by people (`verified_…`, with `noisy`), or Food-101's test set."""
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
        raise unusable(path, f"the class of {unknown!r} is not in {named.name}; each row is CLASS/PICTURE")
    labels = [number[name.partition("/")[0]] for name in names]
    seen = _read_verified(request, path) if request.split != "test" else {}
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
    return picture_samples(
        request, folder, names, labels, files, classes, known, {} if request.split == "test" else facts
    )


def _read_verified(request: Request, listed: Path) -> dict[str, bool]:
    """Read, by picture, whether people found its label right; for training this list is optional."""
    path = listed if request.split != "train" else find(request.folder, "meta/verified_train.tsv", "verified_train.tsv")
    if path is None:
        return {}
    verified = {}
    for row in read_rows(path):
        if row[0].startswith("class_name"):
            continue
        if len(row) < 2 or row[1].strip() not in ("0", "1"):
            raise unusable(path, f"the row of {row[0]!r} has no verification label; it must be 0 or 1")
        verified[row[0].strip()] = row[1].strip() == "1"
    return verified


def read_cars98n(request: Request) -> SampleSource:
    """Read CARS98N: PRISM's list if there is one; else folders for training, cars_annos.mat for the test."""
    need(request, ".")
    name = "CARSN_train.csv" if request.split == "train" else "CARSN_test.csv"
    other = "train.csv" if request.split == "train" else "cars_test.csv"
    listed = find(request.folder, name, f"datalist/{name}", other)
    if listed is not None:
        return _read_list(request, listed)
    return _read_folders(request) if request.split == "train" else _read_annotations(request)


def _read_list(request: Request, path: Path) -> SampleSource:
    """Read rows of a path (only its last two names count) and a class number; classes are renumbered from 0 in order."""
    rows = read_rows(path)
    if rows and not rows[0][-1].strip().isdecimal():
        rows = rows[1:]  # header
    for number, row in enumerate(rows, start=1):
        if len(row) < 2 or not row[-1].strip().isdecimal():
            raise unusable(path, f"row {number} is {','.join(row)[:60]!r}; each is an image path and a class number")
    given = [int(row[-1]) for row in rows]
    label = {name: place for place, name in enumerate(sorted(set(given)))}
    folder = find(request.folder, *_CARS_FOLDERS) or request.folder
    names = ["/".join(Path(",".join(row[:-1]).strip()).parts[-2:]) for row in rows]
    flat = next((True for name in names[:1] if not (folder / name).exists()), False)
    if flat and (folder / Path(names[0]).name).exists():
        names = [Path(name).name for name in names]
    labels = [label[one] for one in given]
    return picture_samples(request, folder, names, labels, (path,), (), lambda n: {"source_class": given[n]})


def _read_folders(request: Request) -> SampleSource:
    place = find(request.folder, *_CARS_FOLDERS) or request.folder
    folders = [path for path in place.iterdir() if path.is_dir() and not path.name.startswith(".")]
    if not folders:
        raise missing(request, "folders of classes and no CARSN_train.csv")
    numbered = all(path.name.isdecimal() for path in folders)
    folders.sort(key=lambda path: (int(path.name) if numbered else 0, path.name))
    names, labels = [], []
    for label, folder in enumerate(folders):
        pictures = sorted(path.name for path in folder.iterdir() if is_picture(path))
        names += [f"{folder.name}/{name}" for name in pictures]
        labels += [label] * len(pictures)
    classes = () if numbered else tuple(folder.name for folder in folders)
    return picture_samples(
        request, place, names, labels, (), classes, lambda n: {"source_class": folders[labels[n]].name}
    )


def _read_annotations(request: Request) -> SampleSource:
    """Read cars_annos.mat of CARS196: the pictures of classes 99 to 196 from both of its splits."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    path = find(request.folder, "cars_annos.mat", "devkit/cars_annos.mat")
    if path is None:
        raise missing(request, "CARSN_test.csv and no cars_annos.mat")
    try:
        contents: dict[str, Any] = loadmat(path, squeeze_me=True, struct_as_record=False)
        rows = [
            (str(entry.relative_im_path), int(getattr(entry, "class"))) for entry in _as_list(contents["annotations"])
        ]
        named = tuple(str(name) for name in _as_list(contents["class_names"]))
    except (MatReadError, ValueError, KeyError, AttributeError, TypeError, NotImplementedError) as error:
        what = f"{type(error).__name__}: {error}"
        raise unusable(path, f"is not CARS196's list of annotations ({what}); give cars_annos.mat") from error
    kept = [(name, number) for name, number in rows if number >= FIRST_TEST]
    label = {number: place for place, number in enumerate(sorted({number for _, number in kept}))}
    if label and max(label) > len(named):
        raise unusable(path, f"names {len(named)} classes, and a class is {max(label)}; give cars_annos.mat whole")
    classes = tuple(named[number - 1] for number in label)
    labels = [label[number] for _, number in kept]
    names = [name for name, _ in kept]
    return picture_samples(
        request, request.folder, names, labels, (path,), classes, lambda n: {"source_class": kept[n][1]}
    )


def _as_list(value: Any) -> list[Any]:
    """Return a list; `squeeze_me` turns an array of one value into the bare value."""
    return list(value) if hasattr(value, "__len__") and not isinstance(value, str) else [value]
