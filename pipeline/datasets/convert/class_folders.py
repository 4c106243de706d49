"""Data sets with one folder per class: Tiny-ImageNet and WebFG-496 (Web-aircraft, Web-bird, Web-car)."""

import re
from pathlib import Path

from .source import Request, SampleSource, find, is_picture, missing, need, picture_samples, read_lines, unusable


def read_tiny_imagenet(request: Request) -> SampleSource:
    """Read Tiny-ImageNet: classes in the order of wnids.txt, `val` by val_annotations.txt. Its test set has no labels."""
    root = find(request.folder, "tiny-imagenet-200") or request.folder
    if not root.is_dir() or not (root / "wnids.txt").is_file():
        raise missing(request, "wnids.txt")
    synsets = [line for line in read_lines(root / "wnids.txt") if line]
    label = {synset: number for number, synset in enumerate(synsets)}
    files, classes = [root / "wnids.txt"], tuple(synsets)
    if (root / "words.txt").is_file():
        files.append(root / "words.txt")
        classes = _synset_names(root / "words.txt", synsets)
    if request.split == "train":
        folders = [f"train/{synset}/images" for synset in synsets]
        names = [f"{folder}/{name}" for folder in folders for name in _pictures(root / folder)]
        labels = [label[name.split("/")[1]] for name in names]
    else:
        listed = root / "val" / "val_annotations.txt"
        if not listed.is_file():
            raise missing(request, "val/val_annotations.txt")
        files.append(listed)
        rows = [line.split("\t") for line in read_lines(listed) if line]
        wrong = next((row for row in rows if len(row) < 2 or row[1] not in label), None)
        if wrong is not None:
            raise unusable(
                listed, f"{wrong[0]!r} has no synset of wnids.txt; each row is a picture, a synset and a box"
            )
        names, labels = [f"val/images/{row[0]}" for row in rows], [label[row[1]] for row in rows]
    return picture_samples(
        request, root, names, labels, tuple(files), classes, lambda n: {"synset": synsets[labels[n]]}
    )


def _synset_names(path: Path, synsets: list[str]) -> tuple[str, ...]:
    """Return each synset's first name, from lines `n01443537<tab>goldfish, Carassius auratus`; repeated names stay synsets."""
    named = dict(line.split("\t", 1) for line in read_lines(path) if "\t" in line)
    names = [named.get(synset, synset).partition(",")[0].strip() for synset in synsets]
    return tuple(
        f"{name} ({synset})" if names.count(name) > 1 else name for name, synset in zip(names, synsets, strict=True)
    )


def read_webfg(request: Request) -> SampleSource:
    """Read train/CLASS and val/CLASS of one of the three parts; class names lose their number and underscores."""
    part = request.kind.name
    root = find(request.folder, part, part.replace("-", "_")) or request.folder
    folder = need(request, str(root.relative_to(request.folder) / request.split))
    folders = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not folders:
        raise missing(request, f"folders of classes in {request.split}")
    names = [f"{place}/{name}" for place in folders for name in _pictures(folder / place)]
    labels = [folders.index(name.partition("/")[0]) for name in names]
    classes = tuple(re.sub(r"^\d+\.", "", place).replace("_", " ").strip() or place for place in folders)
    return picture_samples(request, folder, names, labels, (), classes, lambda n: {"class_name": classes[labels[n]]})


def _pictures(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if is_picture(path)) if folder.is_dir() else []
