import io
import json
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from noisegate.pipeline.datasets.scenes import caption, draw, random_scene, scene_rng, write_scenes
from noisegate.pipeline.datasets.scenes.scene import (
    ATTRIBUTES,
    BACKGROUNDS,
    COLOURS,
    COUNTS,
    POSITIONS,
    SHAPES,
    SIZES,
    Group,
    Scene,
    changed_attributes,
    class_names,
    hard_negative,
    scene_class,
    with_attribute,
)
from tests.errors import refused

PLAIN = Scene(Group("circle", "red", "large", "left", 2), "white")
indices = st.integers(0, 2**40)

# A second, independent reading of English: what a sentence of the generator says about each attribute.
WORDS = {
    "size": {"small": "small", "little": "small", "large": "large", "big": "large"},
    "count": {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4},
    "position": {name: name for name in POSITIONS} | {"center": "middle"},
    "background": {name: name for name in BACKGROUNDS},
}


def read_caption(text: str) -> dict[str, object]:
    """Parse a caption; fails where a fact is missing or told twice."""
    text, companion = re.fullmatch(r"(.*?)((?: and| with) an? (?:{}) \w+)?".format("|".join(COLOURS)), text).groups()
    counted = r"\b(a|an|one|two|three|four) (small|little|large|big) (\w+) (\w+)"
    ((count, size, colour, noun),) = re.findall(counted, text)
    (place,) = re.findall(r"\b(?:at|on|in) the (left|right|top|bottom|middle|center)\b", text)
    (ground,) = re.findall(r"\b(?:on|with)(?: a)? (white|gray|black|brown)\b", text)
    (shape,) = [s for s in SHAPES if noun in ((s,) if WORDS["count"][count] == 1 else (s + "s", s + "es"))]
    facts = {"shape": shape, "colour": colour, "size": size, "count": count, "position": place, "background": ground}
    facts = {name: WORDS[name][word] if name in WORDS else word for name, word in facts.items()}
    return facts | {"companion": tuple(companion.split()[2:]) if companion else None}


def facts_of(scene: Scene) -> dict[str, object]:
    return {name: getattr(scene if name == "background" else scene.main, name) for name in ATTRIBUTES}


@given(indices)
def test_a_caption_tells_every_attribute_and_only_the_truth(index: int) -> None:
    rng = scene_rng(0, index)
    scene = random_scene(rng)
    said = read_caption(caption(scene, rng))
    companion = said.pop("companion")
    assert said == facts_of(scene)
    if companion is not None:
        assert scene.companion is not None
        assert companion == (scene.companion.colour, scene.companion.shape)


@given(indices, st.sampled_from([None, *ATTRIBUTES]))
def test_a_hard_negative_differs_in_one_attribute_and_its_caption_says_so(index: int, attribute: str | None) -> None:
    rng = scene_rng(1, index)
    scene = random_scene(rng)
    other = hard_negative(scene, rng, attribute)
    (changed,) = changed_attributes(scene, other)
    assert attribute in (None, changed)
    assert with_attribute(other, changed, facts_of(scene)[changed]) == scene
    said = read_caption(caption(other, rng))
    assert [name for name in ATTRIBUTES if said[name] != facts_of(scene)[name]] == [changed]


def test_every_attribute_is_changed_about_equally_often() -> None:
    rng = np.random.default_rng(0)
    changes = [changed_attributes(PLAIN, hard_negative(PLAIN, rng))[0] for _ in range(1200)]
    assert all(150 < changes.count(name) < 250 for name in ATTRIBUTES)


@given(indices)
@settings(max_examples=20)
def test_the_same_generator_gives_the_same_scene_pixels_and_words(index: int) -> None:
    first, second = scene_rng(2, index), scene_rng(2, index)
    scene, again = random_scene(first), random_scene(second)
    assert scene == again
    assert draw(scene).tobytes() == draw(again).tobytes()
    assert caption(scene, first) == caption(again, second)


def test_wordings_vary() -> None:
    rng = np.random.default_rng(0)
    assert len({caption(PLAIN, rng) for _ in range(200)}) > 20


def test_classes_are_shape_and_colour_of_the_main_group() -> None:
    names = class_names()
    assert len(names) == len(set(names)) == len(SHAPES) * len(COLOURS)
    for shape in SHAPES:
        for colour in COLOURS:
            scene = replace(PLAIN, main=replace(PLAIN.main, shape=shape, colour=colour))
            assert names[scene_class(scene)] == f"{colour} {shape}"


def test_all_values_are_drawn() -> None:
    scenes = [random_scene(scene_rng(3, index)) for index in range(400)]
    drawn = {name: {facts_of(scene)[name] for scene in scenes} for name in ATTRIBUTES}
    values = (SHAPES, COLOURS, SIZES, POSITIONS, COUNTS, BACKGROUNDS)
    assert drawn == dict(zip(ATTRIBUTES, map(set, values), strict=True))
    assert 100 < sum(scene.companion is not None for scene in scenes) < 220


def blobs(mask: np.ndarray) -> int:
    """Count regions by flood fill; corners connect."""
    left = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    count = 0
    while left:
        count += 1
        border = [left.pop()]
        while border:
            y, x = border.pop()
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            border.extend(near)
    return count


@given(indices)
@settings(max_examples=40, deadline=None)
def test_the_picture_shows_the_count_place_and_size(index: int) -> None:
    scene = replace(random_scene(scene_rng(4, index)), companion=None)
    pixels = np.asarray(draw(scene, 192), np.int32)
    mask = np.abs(pixels - pixels[0, 0]).sum(2) > 30
    assert blobs(mask) == scene.main.count
    ys, xs = np.nonzero(mask)
    x, y = (xs.min() + xs.max()) / 2 / 192, (ys.min() + ys.max()) / 2 / 192
    places = {"left": x < 0.4, "right": x > 0.6, "top": y < 0.4, "bottom": y > 0.6}
    places["middle"] = not any(places.values())
    assert [place for place, true in places.items() if true] == [scene.main.position]
    sizes = [np.abs((p := np.asarray(draw(with_attribute(scene, "size", s)), np.int32)) - p[0, 0]).sum() for s in SIZES]
    assert sizes[1] > 1.5 * sizes[0]


@given(indices)
@settings(max_examples=30, deadline=None)
def test_the_companion_touches_nothing(index: int) -> None:
    scene = random_scene(scene_rng(5, index))
    pixels = np.asarray(draw(scene, 192), np.int32)
    mask = np.abs(pixels - pixels[0, 0]).sum(2) > 30
    assert blobs(mask) == scene.main.count + (scene.companion is not None)


def test_a_scene_refuses_what_it_cannot_draw() -> None:
    with refused("colour", "pink"):
        replace(PLAIN.main, colour="pink")
    with refused("background", "blue"):
        replace(PLAIN, background="blue")
    with refused("companion.colour", "red"):
        replace(PLAIN, companion=Group("star", "red", "small", "right", 1))
    with refused("attribute", "taste"):
        hard_negative(PLAIN, np.random.default_rng(0), "taste")
    with refused("size", 4):
        draw(PLAIN, 4)


@pytest.mark.parametrize("arguments", [{"count": 0}, {"shards": 0}, {"shards": 9}, {"seed": -1}])
def test_write_scenes_names_the_setting_that_cannot_work(tmp_path: Path, arguments: dict[str, int]) -> None:
    ((name, value),) = arguments.items()
    with refused(name, value):
        write_scenes(tmp_path, **{"count": 8, "shards": 2, "seed": 0, **arguments})
    assert list(tmp_path.iterdir()) == []


def test_shards_are_the_same_byte_for_byte(tmp_path: Path) -> None:
    first, second = (write_scenes(tmp_path / name, 7, 3, seed=5, hard_negatives=True) for name in ("a", "b"))
    assert [path.name for path in first] == [f"scenes-{part:06d}.tar" for part in range(3)]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    other = write_scenes(tmp_path / "c", 7, 3, seed=6, hard_negatives=True)
    assert all(path.read_bytes() != same.read_bytes() for path, same in zip(first, other, strict=True))
    with tarfile.open(first[0]) as tar:
        assert {member.mtime for member in tar} == {0}
    assert not list(tmp_path.rglob("*.partial"))


def test_a_sample_does_not_depend_on_the_split_or_the_count(tmp_path: Path) -> None:
    def samples(paths: list[Path]) -> dict[str, bytes]:
        found = {}
        for path in paths:
            with tarfile.open(path) as tar:
                found |= {member.name: tar.extractfile(member).read() for member in tar}
        return found

    few, many = samples(write_scenes(tmp_path / "few", 5, 2, 1)), samples(write_scenes(tmp_path / "many", 9, 1, 1))
    assert few.items() <= many.items()
    assert len(few) == 5 * 4


def test_webdataset_reads_the_shards(tmp_path: Path) -> None:
    paths = write_scenes(tmp_path, 12, 2, seed=0, size=48, hard_negatives=True)
    samples = list(webdataset.WebDataset([str(path) for path in paths], shardshuffle=False))
    names = (tmp_path / "classes.txt").read_text().splitlines()
    assert names == class_names()
    assert [sample["__key__"] for sample in samples] == [f"{index:08d}" for index in range(12)]
    for sample in samples:
        facts = json.loads(sample["json"])
        assert Image.open(io.BytesIO(sample["png"])).size == (48, 48)
        assert sample["txt"].decode() == facts["caption"]
        assert int(sample["cls"]) == facts["label"]
        assert names[facts["label"]] == facts["class_name"] == f"{facts['colour']} {facts['shape']}"
        said, changed = read_caption(facts["caption"]), read_caption(facts["hard_negative"])
        assert {name: facts[name] for name in ATTRIBUTES} == {name: said[name] for name in ATTRIBUTES}
        assert [name for name in ATTRIBUTES if said[name] != changed[name]] == [facts["changed_attribute"]]


def test_without_labels_only_pictures_and_captions_are_written(tmp_path: Path) -> None:
    (path,) = write_scenes(tmp_path, 2, 1, seed=0, labels=False)
    (sample, _) = webdataset.WebDataset(str(path), shardshuffle=False)
    assert {"png", "txt", "json"} == {name for name in sample if not name.startswith("__")}
    assert {"label", "class_name", "hard_negative"}.isdisjoint(json.loads(sample["json"]))
    assert not (tmp_path / "classes.txt").exists()
