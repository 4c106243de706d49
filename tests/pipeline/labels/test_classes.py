"""Classes from lists and files, and the prompts made for them."""

import json
import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisegate.pipeline.labels.classes import BUILT_IN, TEMPLATES, ClassSet, load_classes, prompts, with_article
from tests.errors import refused

FEATURES = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "cifar10n-features.npz"


def write(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


# --- built-in lists --------------------------------------------------------------------------------------------------


def test_built_in_lists_have_the_ids_of_their_data_sets() -> None:
    assert {name: len(names) for name, names in BUILT_IN.items()} == {"animal10n": 10, "cifar10": 10, "cifar100": 100}
    fine = BUILT_IN["cifar100"]
    assert list(fine) == sorted(fine)
    assert [fine[i] for i in (0, 1, 19, 47, 83, 99)] == [
        "apple",
        "aquarium_fish",
        "cattle",
        "maple_tree",
        "sweet_pepper",
        "worm",
    ]
    assert [BUILT_IN["animal10n"][i] for i in (0, 4, 9)] == ["cat", "cheetah", "guinea_pig"]


@pytest.mark.skipif(not FEATURES.exists(), reason="the CIFAR-10N features are not here")
def test_cifar10_is_in_the_order_of_the_data() -> None:
    with np.load(FEATURES) as data:
        assert tuple(data["class_names"]) == BUILT_IN["cifar10"]


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_built_in_lists_give_forty_different_prompts_for_each_class(name: str) -> None:
    classes = load_classes(name)
    assert classes.names == BUILT_IN[name]
    assert {len(sentences) for sentences in classes.prompts} == {40}
    assert len(set(classes.anchors)) == 40 * len(classes)


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_templates_are_forty_and_differ() -> None:
    assert len(TEMPLATES) == len(set(TEMPLATES)) == 40


@pytest.mark.parametrize(
    ("name", "spoken"),
    [
        ("cat", "a cat"),
        ("apple", "an apple"),
        ("oak_tree", "an oak tree"),
        ("umbrella", "an umbrella"),
        ("unicorn", "a unicorn"),
        ("unidentified object", "an unidentified object"),
        ("university", "a university"),
        ("European hare", "a European hare"),
        ("ukulele", "a ukulele"),
        ("usher", "an usher"),
        ("user", "a user"),
        ("urn", "an urn"),
        ("one-way street", "a one-way street"),
        ("onion", "an onion"),
        ("hour", "an hour"),
        ("honeycomb", "a honeycomb"),
        ("heirloom tomato", "an heirloom tomato"),
        ("MRI scan", "an MRI scan"),
        ("SUV", "an SUV"),
        ("UFO", "a UFO"),
        ("NASA rocket", "a NASA rocket"),
        ("LION", "a LION"),
        ("T-shirt", "a T-shirt"),
        ("x-ray", "an x-ray"),
        ("8-ball", "an 8-ball"),
        ("18-wheeler", "an 18-wheeler"),
        ("180-degree turn", "a 180-degree turn"),
        ("éclair", "an éclair"),
        ("cattle", "cattle"),
    ],
)
def test_the_article_follows_the_sound(name: str, spoken: str) -> None:
    assert with_article(name) == spoken


def test_prompts_fill_each_template_with_the_spoken_name() -> None:
    templates = ["A {} here.", "an {} there.", "the {}.", "pizza {}"]
    assert prompts(["sweet_pepper", "apple", "cattle"], templates) == (
        ("A sweet pepper here.", "a sweet pepper there.", "the sweet pepper.", "pizza sweet pepper"),
        ("An apple here.", "an apple there.", "the apple.", "pizza apple"),
        ("cattle here.", "cattle there.", "the cattle.", "pizza cattle"),
    )


@given(
    st.text(st.characters(exclude_characters="{}", exclude_categories=["C", "Z"]), min_size=1).filter(
        lambda s: s.strip("_")
    )
)
def test_any_name_goes_into_a_prompt_as_it_is(name: str) -> None:
    ((sentence,),) = prompts([name], ["look: {}"])
    assert sentence == "look: " + " ".join(name.replace("_", " ").split())
    ((sentence,),) = prompts([name], ["a {}"])
    assert sentence == with_article(name)


def test_a_name_with_braces_or_backslashes_is_not_a_template() -> None:
    assert prompts([r"\1 {name}"], ["a photo of a {}."]) == ((r"a photo of a \1 {name}.",),)


def test_template_errors() -> None:
    with refused("templates", ()):
        prompts(["cat"], [])
    with refused("templates", "a photo"):
        prompts(["cat"], ["a photo"])
    with refused("templates", "a {} and a {}"):
        prompts(["cat"], ["a {} and a {}"])


# --- class sets ------------------------------------------------------------------------------------------------------


def test_anchors_come_class_after_class() -> None:
    classes = ClassSet(("cat", "dog"), (("a cat", "one cat"), ("a dog",)))
    assert len(classes) == 2
    assert classes.anchors == ("a cat", "one cat", "a dog")
    assert classes.anchor_labels.tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match="read-only"):
        classes.anchor_labels[0] = 1
    with pytest.raises(FrozenInstanceError):
        classes.names = ("x",)  # type: ignore[misc]


def test_the_digest_tells_sets_apart() -> None:
    one = ClassSet(("cat", "dog"), (("a", "b"), ("c",)))
    assert one.digest == ClassSet(("cat", "dog"), (("a", "b"), ("c",))).digest
    assert one.digest != ClassSet(("cat", "dog"), (("a",), ("b", "c"))).digest
    assert one.digest != ClassSet(("dog", "cat"), (("a", "b"), ("c",))).digest


@pytest.mark.parametrize(
    ("names", "sentences", "setting", "value"),
    [
        ((), (), "classes", ()),
        (("cat",), (), "prompts", 0),
        (("cat", " "), (("x",), ("y",)), "classes", " "),
        (("cat", "cat"), (("x",), ("y",)), "classes", "cat"),
        (("Maple_tree", "x", "maple tree"), (("x",),) * 3, "classes", "maple tree"),
        (("cat", "owl"), (("x",), ()), "prompts", "owl"),
        (("cat", "dog"), (("x", " "), ("y",)), "prompts", "cat"),
    ],
)
def test_a_class_set_refuses_what_cannot_work(
    names: tuple[str, ...], sentences: tuple[tuple[str, ...], ...], setting: str, value: object
) -> None:
    with refused(setting, value):
        ClassSet(names, sentences)


# --- files -----------------------------------------------------------------------------------------------------------


def test_names_from_lines_keep_their_order(tmp_path: Path) -> None:
    path = write(tmp_path, "names.txt", "\ufeffzebra\r\n guinea pig \r\napple\n\n")
    classes = load_classes(path, templates=["a {}"])
    assert classes.names == ("zebra", "guinea pig", "apple")
    assert classes.prompts == (("a zebra",), ("a guinea pig",), ("an apple",))
    assert load_classes(str(path), templates=["a {}"]) == classes


def test_names_from_a_json_list(tmp_path: Path) -> None:
    path = write(tmp_path, "names.JSON", ["zebra", "apple"])
    assert load_classes(path, templates=["the {}"]).prompts == (("the zebra",), ("the apple",))


def test_descriptions_join_the_templates_or_replace_them(tmp_path: Path) -> None:
    path = write(tmp_path, "cupl.json", {"zebra": ["It has stripes.", "Like a horse."], "ant": "It is small."})
    joined = load_classes(path, templates=["a {}"])
    assert joined.names == ("zebra", "ant")
    assert joined.prompts == (("a zebra", "It has stripes.", "Like a horse."), ("an ant", "It is small."))
    only = load_classes(path, descriptions="only")
    assert only.prompts == (("It has stripes.", "Like a horse."), ("It is small.",))


def test_a_built_in_name_wins_over_a_file_unless_it_is_written_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "cifar10", "one\ntwo\n")
    assert len(load_classes("cifar10")) == 10
    assert load_classes("./cifar10").names == ("one", "two")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "cat\n\ndog\n", r"a\.txt': line 2 is empty; write one name per line"),
        ("a.json", "[", r"a\.json': not JSON \(.*\[\"cat\", \"dog\"\]"),
        ("a.json", '{"cat": ["x"], "cat": ["y"]}', r"a\.json': 'cat' occurs twice; name each class once"),
        ("a.json", {"cat": 3}, r"a\.json': 'cat' has no list of sentences"),
        ("a.json", {"cat": ["x", 3]}, r"a\.json': 'cat' has no list of sentences"),
        ("a.json", [1, 2], r"a\.json': give a list of names or an object"),
        ("a.json", "3", r"a\.json': give a list of names or an object"),
    ],
)
def test_file_errors_name_the_file_and_the_place(tmp_path: Path, name: str, content: object, message: str) -> None:
    path = write(tmp_path, name, content)
    with refused("classes", path) as caught:
        load_classes(path)
    assert re.search(message, str(caught.value))


@pytest.mark.parametrize(("content", "value"), [("", ()), ("cat\ncat\n", "cat")])
def test_a_file_without_usable_names_is_refused(tmp_path: Path, content: str, value: object) -> None:
    with refused("classes", value):
        load_classes(write(tmp_path, "a.txt", content))


def test_a_class_without_a_description_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "cupl.json", {"cat": ["x"], "owl": []})
    assert load_classes(path, templates=["a {}"]).prompts[1] == ("an owl",)
    with refused("prompts", "owl"):
        load_classes(path, descriptions="only")


def test_other_load_errors(tmp_path: Path) -> None:
    with refused("classes", Path("cifar1000")) as caught:
        load_classes("cifar1000")
    assert "no such file; give a file of names, or one of animal10n, cifar10, cifar100" in str(caught.value)
    with refused("classes", tmp_path):
        load_classes(tmp_path)
    with refused("descriptions", "only"):
        load_classes("cifar10", descriptions="only")
    with refused("descriptions", "both"):
        load_classes("cifar10", descriptions="both")  # type: ignore[arg-type]
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    with refused("classes", tmp_path / "latin.txt"):
        load_classes(tmp_path / "latin.txt")
