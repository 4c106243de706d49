"""Flickr30K, MS-COCO, CC152K and CC120K in the layouts in which they are passed around (see `LAYOUTS`)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError

from .pairs import Pairs, pair_samples
from .source import (
    Request,
    SampleSource,
    array_part,
    find,
    missing,
    need,
    picture_file,
    read_array,
    read_lines,
    read_rows,
    read_text,
    unusable,
)

CAPTIONS = 5  # per image of Flickr30K and MS-COCO; papers leave out the sixth and seventh of a few COCO images
_FOLDERS = {"flickr30k": ("f30k_precomp", "f30k"), "coco": ("coco_precomp",), "cc152k": ("cc152k_precomp",)}
_KARPATHY = {"flickr30k": "dataset_flickr30k.json", "coco": "dataset_coco.json"}
_IMAGES = ("images", "flickr30k-images", "flickr30k_images")
_PATH_NAMES = ("image", "image_path", "path", "filepath", "filename", "file", "img")
_TEXT_NAMES = ("caption", "text", "title", "captions")


def read_captioned(request: Request) -> SampleSource:
    """Read the requested layout, or the first layout of the kind that is found."""
    readers: dict[str, Callable[[Request], Pairs | None]] = {
        "features": _read_features,
        "annotations": _read_annotations,
        "karpathy": _read_karpathy,
        "table": _read_table,
    }
    need(request, ".")
    layouts = request.kind.layouts if request.layout is None else (request.layout,)
    for layout in layouts:
        pairs = readers[layout](request)
        if pairs is not None:
            pairs.facts["layout"] = layout
            return pair_samples(request, pairs)
    names = {
        "features": f"{_stems(request)[0]}_ims.npy with _caps.txt",
        "annotations": f"{_stems(request)[0]}_caps.txt with _ids.txt",
        "karpathy": _KARPATHY.get(request.kind.name, ""),
        "table": f"{request.split}.tsv",
    }
    raise missing(request, " and no ".join(names[layout] for layout in layouts))


def _stems(request: Request) -> tuple[str, ...]:
    """Return how file names of a split begin: MS-COCO's whole test set is `testall`, its first thousand images `test`."""
    if request.kind.name == "coco" and request.split in ("test", "test1k"):
        return ("testall", "test5k", "test_all") if request.split == "test" else ("test",)
    return ("dev", "val") if request.split == "val" else (request.split,)


def _find_list(request: Request, ending: str) -> Path | None:
    """Find a file of the split, in the folder or in one of its usual sub-folders."""
    places = (".", *_FOLDERS.get(request.kind.name, ()), "annotations", "data")
    return find(request.folder, *(f"{place}/{stem}{ending}" for place in places for stem in _stems(request)))


# --- precomputed region features ------------------------------------------------------------------------------------------


def _read_features(request: Request) -> Pairs | None:
    """Read SPLIT_ims.npy and its captions: one per image, or 5 per image if there are 5 times as many."""
    path = _find_list(request, "_ims.npy")
    if path is None:
        return None
    stem = path.name.removesuffix("_ims.npy")
    listed = find(path.parent, f"{stem}_caps.txt", f"{stem}_caps.tsv")
    if listed is None:
        raise missing(request, f"{stem}_caps.txt or {stem}_caps.tsv beside {path.name}")
    regions = read_array(path)
    if regions.ndim not in (2, 3):
        raise unusable(path, f"has the shape {regions.shape}; features are (images, regions, width)")
    if listed.suffix == ".tsv":
        rows = _check_width(listed, read_rows(listed))
        ids, captions = [row[0].strip() for row in rows], [row[1].strip() for row in rows]
    else:
        captions = read_lines(listed)
        ids = []
    image_of, step = _five_per_image(path, regions, len(captions), request.kind.name)
    images = int(image_of.max(initial=-1)) + 1
    names = ids if len(ids) == images else [str(number) for number in range(images)]

    def load(image: int) -> dict[str, bytes]:
        return {"npy": array_part(regions[image * step], request.float16)}

    facts = {"features": list(regions.shape[1:])}
    return Pairs(names, captions, image_of, load, (path, listed), facts=facts)


def _five_per_image(path: Path, regions: NDArray[Any], captions: int, kind: str) -> tuple[NDArray[np.int64], int]:
    """Return the image of each caption (M,), and the array's rows per image (5 if it repeats each image)."""
    rows, numbers = len(regions), np.arange(captions, dtype=np.int64)
    if captions == CAPTIONS * rows:
        return numbers // CAPTIONS, 1
    if captions == rows:
        per = CAPTIONS if kind in _KARPATHY and rows % CAPTIONS == 0 else 1
        if per > 1 and rows and all(np.array_equal(regions[0], regions[i]) for i in range(1, per)):
            return numbers // per, per
        return numbers, 1
    raise unusable(
        path, f"has {rows:,} images for {captions:,} captions; there must be one or {CAPTIONS} for each image"
    )


# --- pictures -------------------------------------------------------------------------------------------------------------


def _read_annotations(request: Request) -> Pairs | None:
    """Read SPLIT_caps.txt; SPLIT_ids.txt names the image of each caption, or of each 5 captions."""
    listed, numbers = _find_list(request, "_caps.txt"), _find_list(request, "_ids.txt")
    if listed is None or numbers is None:
        return None
    captions, ids = read_lines(listed), read_lines(numbers)
    if not ids or len(captions) not in (len(ids), CAPTIONS * len(ids)):
        problem = f"has {len(captions):,} captions and {numbers.name} {len(ids):,} images"
        raise unusable(listed, f"{problem}; there must be one or {CAPTIONS} captions for each")
    known = {name: place for place, name in enumerate(dict.fromkeys(ids))}
    per = len(captions) // len(ids)
    image_of = np.array([known[ids[i // per]] for i in range(len(captions))], np.int64)
    names = _file_names(request, list(known), listed.parent)
    return Pairs(list(known), captions, image_of, _make_loader(request, names), (listed, numbers))


def _file_names(request: Request, ids: list[str], folder: Path) -> list[str]:
    """Return the file names of image ids: from image_name.txt (Flickr30K), in COCO's pattern, or the id itself."""
    listed = folder / "image_name.txt"
    if request.kind.name == "flickr30k" and listed.exists() and all(name.isdecimal() for name in ids):
        known = read_lines(listed)
        if max(map(int, ids)) >= len(known):
            raise unusable(listed, f"has {len(known):,} names, and an id is {max(map(int, ids)):,}; give all")
        return [known[int(name)] for name in ids]
    if request.kind.name == "coco" and all(name.isdecimal() for name in ids):
        return [f"COCO_2014_{int(name):012d}.jpg" for name in ids]
    return ids


def _read_karpathy(request: Request) -> Pairs | None:
    """Read Karpathy's json: `train` includes `restval`; only the first 5 sentences of each image are used."""
    name = _KARPATHY[request.kind.name]
    path = find(request.folder, name, f"annotations/{name}", f"karpathy/{name}")
    if path is None:
        return None
    if request.split == "test1k":
        raise ConfigError.of(
            "split", "test1k", "is a part of test; convert test, and evaluate with task.options {folds: 5}"
        )
    try:
        entries = json.loads(read_text(path))["images"]
        wanted = ("train", "restval") if request.split == "train" else (request.split,)
        chosen = [entry for entry in entries if entry["split"] in wanted]
        names = [str(Path(entry.get("filepath") or "") / entry["filename"]) for entry in chosen]
        ids = [str(entry.get("cocoid", entry["filename"])) for entry in chosen]
        said = [[(s["raw"].strip(), s.get("sentid")) for s in entry["sentences"][:CAPTIONS]] for entry in chosen]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise unusable(path, f"is not Karpathy's list of images with sentences ({what})") from error
    captions = [text for texts in said for text, _ in texts]
    image_of = np.repeat(np.arange(len(said), dtype=np.int64), [len(texts) for texts in said])
    numbers = [number if number is not None else place for place, number in enumerate(n for t in said for _, n in t)]
    return Pairs(ids, captions, image_of, _make_loader(request, names), (path,), numbers, in_order=False)


def _read_table(request: Request) -> Pairs | None:
    """Read rows of image path and caption; a header row may say which columns they are."""
    path = _find_list(request, ".tsv") or _find_list(request, ".csv")
    if path is None:
        return None
    rows = _check_width(path, read_rows(path))
    head = [cell.strip().lower() for cell in rows[0]] if rows else []
    image = next((head.index(name) for name in _PATH_NAMES if name in head), None)
    text = next((head.index(name) for name in _TEXT_NAMES if name in head), None)
    if image is not None and text is not None:
        rows = _check_width(path, rows[1:], max(image, text) + 1)
    else:
        image, text = 0, 1
    names = [row[image].strip() for row in rows]
    known = {name: place for place, name in enumerate(dict.fromkeys(names))}
    image_of = np.array([known[name] for name in names], np.int64)
    captions = [row[text].strip() for row in rows]
    return Pairs(list(known), captions, image_of, _make_loader(request, list(known)), (path,))


def _check_width(path: Path, rows: list[list[str]], width: int = 2) -> list[list[str]]:
    for number, row in enumerate(rows, start=1):
        if len(row) < width:
            raise unusable(path, f"row {number} has {len(row)} of {width} cells; write image and caption in each")
    return rows


def _make_loader(request: Request, names: list[str]) -> Callable[[int], dict[str, bytes]]:
    """Make a loader of pictures by number; it also tries each name without its sub-folder, and with .jpg added."""
    folder = request.images or find(request.folder, *_IMAGES) or request.folder

    def load(image: int) -> dict[str, bytes]:
        name = names[image]
        tries = [folder / name, folder / Path(name).name, folder / f"{name}.jpg"]
        return picture_file(next((path for path in tries if path.is_file()), tries[0]), request.check)

    return load
