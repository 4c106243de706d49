"""CARS98N: pictures that a search found for 98 cars, measured on the other 98 of CARS196 (PRISM's setting)."""

from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError

from .files import find, missing, need, read_rows
from .labelled import listed_pictures
from .source import Request, Source

__all__ = ["read_cars98n"]

FIRST_TEST = 99  # of CARS196's classes, which count from 1
_PICTURES = (".jpg", ".jpeg", ".png", ".webp")
_FOLDERS = ("images", "img", "img_v3", "CARS_98N")


def read_cars98n(request: Request) -> Source:
    """By PRISM's list where it is there; else by folders for training, by cars_annos.mat for the test."""
    need(request, ".")
    name = "CARSN_train.csv" if request.split == "train" else "CARSN_test.csv"
    other = "train.csv" if request.split == "train" else "cars_test.csv"
    listed = find(request.folder, name, f"datalist/{name}", other)
    if listed is not None:
        return _listed(request, listed)
    return _folders(request) if request.split == "train" else _annotated(request)


def _listed(request: Request, path: Path) -> Source:
    """Rows of a path, of which the last two names count, and a class; classes are numbered from 0 in their order."""
    rows = read_rows(path)
    if rows and not rows[0][-1].strip().isdecimal():
        rows = rows[1:]  # names of columns
    for number, row in enumerate(rows, start=1):
        if len(row) < 2 or not row[-1].strip().isdecimal():
            raise ConfigError(
                f"{path}: row {number} is {','.join(row)[:60]!r}; each is an image path and a class number"
            )
    given = [int(row[-1]) for row in rows]
    label = {name: place for place, name in enumerate(sorted(set(given)))}
    folder = find(request.folder, *_FOLDERS) or request.folder
    names = ["/".join(Path(",".join(row[:-1]).strip()).parts[-2:]) for row in rows]
    flat = next((True for name in names[:1] if not (folder / name).exists()), False)
    if flat and (folder / Path(names[0]).name).exists():
        names = [Path(name).name for name in names]
    labels = [label[one] for one in given]
    return listed_pictures(request, folder, names, labels, (path,), (), lambda n: {"source_class": given[n]})


def _folders(request: Request) -> Source:
    place = find(request.folder, *_FOLDERS) or request.folder
    folders = [path for path in place.iterdir() if path.is_dir() and not path.name.startswith(".")]
    if not folders:
        raise missing(request, "folders of classes and no CARSN_train.csv")
    numbered = all(path.name.isdecimal() for path in folders)
    folders.sort(key=lambda path: (int(path.name) if numbered else 0, path.name))
    names, labels = [], []
    for label, folder in enumerate(folders):
        found = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in _PICTURES)
        names += [f"{folder.name}/{name}" for name in found]
        labels += [label] * len(found)
    classes = () if numbered else tuple(folder.name for folder in folders)
    return listed_pictures(
        request, place, names, labels, (), classes, lambda n: {"source_class": folders[labels[n]].name}
    )


def _annotated(request: Request) -> Source:
    """cars_annos.mat of CARS196: the pictures of classes 99 to 196, whatever their own split."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    path = find(request.folder, "cars_annos.mat", "devkit/cars_annos.mat")
    if path is None:
        raise missing(request, "CARSN_test.csv and no cars_annos.mat")
    try:
        found: dict[str, Any] = loadmat(path, squeeze_me=True, struct_as_record=False)
        rows = [(str(one.relative_im_path), int(getattr(one, "class"))) for one in _many(found["annotations"])]
        named = tuple(str(name) for name in _many(found["class_names"]))
    except (MatReadError, ValueError, KeyError, AttributeError, TypeError, NotImplementedError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{path} is not CARS196's list of annotations ({what}); give cars_annos.mat") from error
    kept = [(name, number) for name, number in rows if number >= FIRST_TEST]
    label = {number: place for place, number in enumerate(sorted({number for _, number in kept}))}
    if label and max(label) > len(named):
        raise ConfigError(f"{path} names {len(named)} classes, and a class is {max(label)}; give cars_annos.mat whole")
    classes = tuple(named[number - 1] for number in label)
    labels = [label[number] for _, number in kept]
    names = [name for name, _ in kept]
    return listed_pictures(
        request, request.folder, names, labels, (path,), classes, lambda n: {"source_class": kept[n][1]}
    )


def _many(value: Any) -> list[Any]:
    """One thing stands alone in what `squeeze_me` gives."""
    return list(value) if hasattr(value, "__len__") and not isinstance(value, str) else [value]
