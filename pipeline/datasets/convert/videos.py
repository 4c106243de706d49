"""Videos with sentences and precomputed features: MSR-VTT, LSMDC and YouCook2."""

import json
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.shards.decode import BadSample

from .pairs import Pairs, pair_samples
from .source import Request, SampleSource, array_part, find, need, read_lines, read_rows, read_text, unusable

LSMDC_COLUMNS = 6
_SPLITS = {"train": "train", "val": "validate", "test": "test"}
_LISTS = {"train": ("MSRVTT_train.9k.csv", "MSRVTT_train.7k.csv"), "test": ("MSRVTT_JSFUSION_test.csv",), "val": ()}
_SENTENCE = "sentence"


def read_msrvtt(request: Request) -> SampleSource:
    """Read MSR-VTT: videos of the split from its .csv, else from the json; the 1k-A test has one sentence each."""
    path = need(request, "MSRVTT_data.json", "annotation/MSRVTT_data.json", "train_val_videodatainfo.json")
    try:
        contents = json.loads(read_text(path))
        split = {str(video["video_id"]): str(video["split"]) for video in contents["videos"]}
        sentences = [
            (str(entry["video_id"]), str(entry["caption"]).strip(), entry.get("sen_id"))
            for entry in contents["sentences"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise unusable(path, f"is not MSR-VTT's list of videos and sentences ({what})") from error
    listed = find(request.folder, *_LISTS[request.split])
    videos = {video: None for video, name in split.items() if name == _SPLITS[request.split]}
    if listed is not None:
        rows = read_rows(listed)
        head = [cell.strip() for cell in rows[0]] if rows else []
        if "video_id" not in head:
            raise unusable(listed, "has no column video_id; its first row names its columns")
        ids = [row[head.index("video_id")].strip() for row in rows[1:]]
        videos = dict.fromkeys(ids)
        if _SENTENCE in head:
            sentences = [(v, row[head.index(_SENTENCE)].strip(), None) for v, row in zip(ids, rows[1:], strict=True)]
    number = {video: place for place, video in enumerate(videos)}
    kept = sorted((entry for entry in sentences if entry[0] in number), key=lambda entry: number[entry[0]])
    features = _Features(request)
    names = list(number)
    sentence_ids = [place if number is None else int(number) for place, (_, _, number) in enumerate(kept)]
    pairs = Pairs(
        names,
        [text for _, text, _ in kept],
        np.array([number[video] for video, _, _ in kept], np.int64),
        lambda image: {"npy": array_part(features.of(names[image]), request.float16)},
        (path,) if listed is None else (path, listed),
        sentence_ids,
        facts={"features": features.kind},
    )
    return pair_samples(request, pairs)


def read_lsmdc(request: Request) -> SampleSource:
    """Read LSMDC 2016: clips from the list of the split, one sentence each; columns are separated by tabs, without a header."""
    name = {
        "train": "LSMDC16_annos_training.csv",
        "val": "LSMDC16_annos_val.csv",
        "test": "LSMDC16_challenge_1000_publictect.csv",
    }[request.split]
    path = need(request, name, f"task1/{name}", f"annotations/{name}")
    clips = {}
    for number, line in enumerate(filter(None, read_lines(path)), start=1):
        cells = line.split("\t")
        if len(cells) < LSMDC_COLUMNS or not cells[-1].strip():
            problem = f"row {number} has {len(cells)} cells between tabs; each is a clip, four times and a sentence"
            raise unusable(path, problem)
        clips[cells[0].strip()] = cells[-1].strip()
    return _video_samples(request, list(clips.items()), (path,))


def read_youcook2(request: Request) -> SampleSource:
    """Read YouCook2: one clip per annotated step, VIDEO_STEP; `test` is the validation part, on which papers measure."""
    path = need(request, *(f"{place}youcookii_annotations_trainval.json" for place in ("", "annotations/")))
    subset = "training" if request.split == "train" else "validation"
    try:
        clips = [
            (f"{video}_{step['id']}", str(step["sentence"]).strip())
            for video, known in json.loads(read_text(path))["database"].items()
            if known["subset"] == subset
            for step in known["annotations"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise unusable(path, f"is not YouCook2's list of videos and their steps ({what})") from error
    return _video_samples(request, clips, (path,))


def _video_samples(request: Request, clips: list[tuple[str, str]], files: tuple[Path, ...]) -> SampleSource:
    """Make samples of clips with one sentence each."""
    if not clips:
        raise unusable(files[0], f"--split {request.split} lists no clips; check the file")
    features = _Features(request)
    pairs = Pairs(
        [clip for clip, _ in clips],
        [text for _, text in clips],
        np.arange(len(clips), dtype=np.int64),
        lambda image: {"npy": array_part(features.of(clips[image][0]), request.float16)},
        files,
        facts={"features": features.kind},
    )
    return pair_samples(request, pairs)


class _Features:
    """Arrays (T, D) or (D,) by video, in one file each or one .npz; of 2d and 3d features the maximum over time is taken."""

    def __init__(self, request: Request) -> None:
        self._folders = [place for name in ("features_2d", "features_3d") if (place := find(request.folder, name))]
        self.kind = "2d and 3d, each its maximum over time"
        if len(self._folders) != 2:
            self._folders = [need(request, "features", "features.npz")]
            self.kind = "as they are"

    def of(self, video: str) -> NDArray[Any]:
        """Read the features of a video; raise BadSample if there are none."""
        arrays = [_load_array(folder, video) for folder in self._folders]
        if len(arrays) == 1:
            return arrays[0]
        return np.concatenate([array.max(axis=0) if array.ndim == 2 else array for array in arrays])


def _load_array(place: Path, video: str) -> NDArray[Any]:
    path = place if place.suffix == ".npz" else find(place, f"{video}.npy", f"{video}.npz")
    if path is None:
        raise BadSample("no_image", f"{place.name} has no {video}.npy or {video}.npz")
    try:
        array: Any = np.load(path, allow_pickle=False)
        if not isinstance(array, np.ndarray):  # an .npz, of one video or of all
            with array as packed:
                name = video if path == place or video in packed.files else packed.files[0]
                array = packed[name]
    except KeyError as error:
        raise BadSample("no_image", f"{path.name} has no array {video}") from error
    except (OSError, ValueError, EOFError, IndexError, BadZipFile) as error:
        raise BadSample("bad_image", f"{path.name} holds no numbers: {error}") from error
    if array.ndim not in (1, 2) or not array.size:
        raise BadSample("bad_image", f"{path.name} has shape {array.shape}; features are (frames, width) or (width,)")
    features: NDArray[Any] = array
    return features
