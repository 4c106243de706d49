"""What all targets have in common: configuration, seeds, padding, precision, saving, classes."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from noisegate.pipeline.labels.anchors import Anchors
from noisegate.trainers.targets import (
    TARGETS,
    Ensemble,
    as_one,
    build_target,
    concat,
    count,
    load_target,
    resolve_target,
    save_target,
    take,
    target_config,
)
from tests.errors import refused
from tests.trainers.runs import TARGET
from tests.trainers.small_targets import CAPTIONS, CONFIGS, KINDS, inputs, small


@pytest.mark.parametrize("kind", KINDS)
def test_similarities_are_averaged(kind: str) -> None:
    one, other = small(kind, seed=1), small(kind, seed=2)
    both = Ensemble([one, other])
    images, tokens = inputs(kind), one.tokenize(CAPTIONS)
    found = both(images, tokens)
    each = [target.similarity(*target(images, tokens)) for target in (one, other)]
    torch.testing.assert_close(both.similarity(*found), (each[0] + each[1]) / 2)
    within = [target.vector_similarity(*[target.encode_images(images)] * 2) for target in (one, other)]
    torch.testing.assert_close(both.vector_similarity(found[0], found[0]), (within[0] + within[1]) / 2)
    parts = concat([take(found[1], [0]), take(found[1], [1, 2, 3])])
    torch.testing.assert_close(both.similarity(found[0], parts), (each[0] + each[1]) / 2)


@pytest.mark.parametrize("head", ["prompts", "linear"])
def test_class_logits_are_averaged(head: str) -> None:
    members = [small("dual", seed=seed, classes=["dog", "cat"], head=head) for seed in (1, 2)]
    both = Ensemble(members)
    images = inputs("dual")
    expected = sum(member.class_logits(member.encode_images(images)) for member in members) / 2
    found = both.encode_images(images)
    torch.testing.assert_close(both.class_logits(found), expected)
    if head == "prompts":
        torch.testing.assert_close(both.class_logits(found, both.encode_classes()), expected)
        torch.testing.assert_close(both.class_similarity(found) * both.scale, expected)


def test_one_network_stays_itself_and_none_is_refused() -> None:
    target = small("dual")
    assert as_one([target]) is target
    run = as_one(
        [target, small("dual", seed=1)]
    )  # of two networks, beside one of a single network: each run counts alike
    runs = as_one([run, third := small("dual", seed=2)])
    images, tokens = inputs("dual", 4), target.tokenize(CAPTIONS)
    expected = (run.similarity(*run(images, tokens)) + third.similarity(*third(images, tokens))) / 2
    torch.testing.assert_close(runs.similarity(*runs(images, tokens)), expected)
    assert isinstance(as_one([target, small("dual", seed=1)]), Ensemble)
    with refused("members", 0):
        Ensemble([])


def test_members_read_pictures_and_texts_alike() -> None:
    target = small("clip")
    both = Ensemble([target, small("clip", seed=1)])
    assert torch.equal(both.tokenize(CAPTIONS), target.tokenize(CAPTIONS))
    assert torch.equal(both.pixels(inputs("clip")), target.pixels(inputs("clip")))
    assert both.image_transform(False) == target.image_transform(False)


def test_every_target_is_tested_here() -> None:
    assert {config["name"] for config in CONFIGS.values()} == set(TARGETS) - {"hf"}  # test_hf.py


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_and_range_of_similarities(kind: str) -> None:
    target = small(kind)
    images, texts = target(inputs(kind, 3), target.tokenize(["a dog", "", "zebra zebra", "two cats"]))
    similarity = target.similarity(images, texts)
    assert count(images) == 3 and count(texts) == 4
    assert images["vectors"].shape == (3, target.width)
    assert similarity.shape == (3, 4) and similarity.dtype == torch.float32
    assert (similarity.abs() <= 1 + 1e-6).all() and similarity.std() > 0
    torch.testing.assert_close(images["vectors"].norm(dim=1), torch.ones(3))
    assert target(texts=target.tokenize(["a"]))[0] is None


@pytest.mark.parametrize("kind", KINDS)
def test_padding_of_texts_and_images_never_changes_a_similarity(kind: str) -> None:
    target = small(kind)
    images = inputs(kind, 2)
    if kind != "clip":
        images[0, 3:] = 0  # two of five regions are padding
    alone = [
        target.similarity(*target(images[i : i + 1], target.tokenize([text]))) for i in (0, 1) for text in CAPTIONS
    ]
    together = target.similarity(*target(images, target.tokenize(CAPTIONS)))
    torch.testing.assert_close(together.flatten(), torch.cat(alone).flatten(), rtol=1e-5, atol=1e-6)
    longer = torch.nn.functional.pad(target.tokenize(CAPTIONS), (0, 3))
    torch.testing.assert_close(target.similarity(*target(images, longer)), together, rtol=1e-5, atol=1e-6)
    if kind != "clip":
        cut = target.similarity(*target(images[:1, :3], target.tokenize(CAPTIONS)))
        torch.testing.assert_close(cut, together[:1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_taken_and_joined_parts_have_the_same_similarities(kind: str) -> None:
    target = small(kind)
    images, texts = target(inputs(kind, 4), target.tokenize(CAPTIONS))
    whole = target.similarity(images, texts)
    torch.testing.assert_close(target.similarity(take(images, [2, 0]), texts), whole[[2, 0]])
    parts = [target.encode_texts(target.tokenize([caption])) for caption in CAPTIONS]  # of different lengths
    torch.testing.assert_close(target.similarity(images, concat(parts)), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_alone_decides_the_weights_and_nothing_is_drawn(kind: str) -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    one = small(kind, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    same, other = small(kind, seed=7), small(kind, seed=8)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), same.state_dict().values(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_target_comes_back_with_its_vocabulary(kind: str, tmp_path: Path) -> None:
    target = small(kind, seed=3)
    save_target(target, tmp_path / "target.safetensors")
    back = load_target(tmp_path / "target.safetensors").eval()
    assert back.config == target.config
    tokens = target.tokenize(CAPTIONS)
    assert torch.equal(back.tokenize(CAPTIONS), tokens)
    images = inputs(kind)
    assert torch.equal(back.similarity(*back(images, tokens)), target.similarity(*target(images, tokens)))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_every_parameter(kind: str) -> None:
    target = small(kind).train()
    images, texts = target(inputs(kind, 4), target.tokenize(CAPTIONS))
    similarity = target.similarity(images, texts) * target.scale
    torch.nn.functional.cross_entropy(similarity, torch.arange(4)).backward()
    silent = [
        name for name, p in target.trainable_parameters().items() if p.grad is None or not torch.isfinite(p.grad).all()
    ]
    assert not silent
    moving = sum(bool(p.grad.any()) for p in target.trainable_parameters().values())
    assert moving >= 0.8 * len(target.trainable_parameters())  # a ReLU of so small a network may be silent


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_towers_still_give_float32_similarities(kind: str) -> None:
    target = small(kind)
    exact = target.similarity(*target(inputs(kind), target.tokenize(CAPTIONS)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        images, texts = target(inputs(kind), target.tokenize(CAPTIONS))
        rough = target.similarity(images, texts)
    assert images["vectors"].dtype == rough.dtype == torch.float32
    assert (rough - exact).abs().max() < 0.05 and torch.isfinite(rough).all()


@pytest.mark.parametrize("kind", KINDS)
def test_transforms_and_tokenizers_travel_to_workers(kind: str) -> None:
    target = small(kind)
    for part in (target.image_transform(True), target.image_transform(False), target.tokenizer):
        assert len(pickle.dumps(part)) < 5_000_000  # without the network
    assert torch.equal(pickle.loads(pickle.dumps(target.tokenizer))(CAPTIONS), target.tokenizer(CAPTIONS))


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_without_content_gives_finite_similarities(kind: str) -> None:
    target = small(kind)
    images = inputs(kind, 2)
    images[0] = 0
    similarity = target.similarity(*target(images, target.tokenize(CAPTIONS)))
    assert torch.isfinite(similarity).all()
    if kind.startswith("dual"):
        assert not similarity[0].any() and similarity[1].any()


@pytest.mark.parametrize("kind", ["clip", "dual", "sgraf"])
def test_classes_by_prompts_are_mean_similarities(kind: str) -> None:
    prompts = ["This is a picture of a {}.", "one {}"]
    target = small(kind, classes=["dog", "cat", "owl"], prompts=prompts)
    images = target.encode_images(inputs(kind))
    sentences = [template.format(name) for name in ("dog", "cat") for template in prompts]
    sentences += ["This is a picture of an owl.", "one owl"]
    each = target.similarity(images, target.encode_texts(target.tokenize(sentences)))
    expected = each.reshape(3, 3, 2).mean(dim=2)
    torch.testing.assert_close(target.class_similarity(images), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        target.class_logits(images, target.encode_classes()), target.scale * expected, rtol=1e-5, atol=1e-5
    )


def test_prompts_of_classes_are_in_the_vocabulary() -> None:
    config = resolve_target({**CONFIGS["dual"], "classes": ["zebra"]}, lambda: CAPTIONS)
    assert {"zebra", "picture"} <= set(config.vocabulary.words)  # type: ignore[attr-defined]


def test_a_linear_head_reads_vectors_of_length_sqrt_d() -> None:
    target = small("dual", classes=["dog", "cat"], head="linear")
    images = target.encode_images(inputs("dual"))
    assert target.linear is not None
    expected = images["vectors"] * 8**0.5 @ target.linear.weight.T + target.linear.bias
    torch.testing.assert_close(target.class_logits(images), expected)
    assert "linear.weight" in target.trainable_parameters()
    with refused("target.head", "linear"):
        target.class_similarity(images)


def test_class_names_from_a_file_are_written_into_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_text("dog\ncat\n")
    assert resolve_target({**CONFIGS["video"], "classes": str(file)}, lambda: CAPTIONS).classes == ("dog", "cat")
    assert len(resolve_target({**CONFIGS["video"], "classes": "cifar10"}, lambda: CAPTIONS).classes) == 10


HASHED = {**CONFIGS["dual"], "vocabulary": {"kind": "hashing"}}
MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({"name": "clips"}, "target.name", "use one of clip, dual"),
    ({"name": "dual", "poling": "max"}, "target.poling", "is no setting of 'dual'; it knows"),
    ({"name": "dual", "pooling": "sum"}, "target.pooling", "'mean', 'max'"),
    ({"name": "dual", "width": 0}, "target.width", "=0: "),
    ({"name": "clip"}, "target", "give model, for example embedded"),
    ({"name": "clip", "architecture": {"embed_dim": 3}}, "target.architecture", "vision_cfg and text_cfg"),
    ({"name": "clip", "architecture": {}, "pretrained": "openai"}, "target", "need a model's name"),
    (
        {"name": "clip", "model": "embedded", "vocabulary": {"kind": "captions", "ids": [1]}},
        "target.vocabulary.kind",
        "use kind: full",
    ),
    ({"name": "dual", "augment": {"crop": [0.9, 0.1]}}, "target.augment.crop", "[0.9, 1.0]"),
    ({**HASHED, "backbone": "resnet5000"}, "target.backbone", "'resnet5000'"),
    ({**HASHED, "backbone": "resnet18", "backbone_weights": "none.pth"}, "target.backbone_weights", "is no file"),
    ({**CONFIGS["dual-transformer"], "vocabulary": {"words": ["a"]}, "heads": 3}, "target.heads", "does not divide"),
    ({**HASHED, "classes": "no-such-file.txt"}, "target.classes", "is no file"),
]


@pytest.mark.parametrize(("config", "setting", "words"), MISTAKES)
def test_a_configuration_that_cannot_work_says_why_in_one_line(
    config: dict[str, Any], setting: str, words: str
) -> None:
    with refused(setting) as caught:
        build_target(config)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_model_is_told_its_nearest_name() -> None:
    with refused("model", "ViT-B-33") as caught:
        build_target({"name": "clip", "model": "ViT-B-33"})
    assert "did you mean ViT-B-32" in str(caught.value)


def test_sentences_about_classes_come_along(tmp_path: Path) -> None:
    """A .json of classes in the shape of CuPL's files: its sentences are prompts too, also once names are written out."""
    file = tmp_path / "classes.json"
    file.write_text(json.dumps({"dog": ["A dog barks.", "A dog has a tail."], "cat": ["A cat purrs."]}))
    resolved = resolve_target({**CONFIGS["clip"], "classes": str(file), "prompts": ["a {}"]}, lambda: CAPTIONS)
    assert resolved.classes == ("dog", "cat")
    wanted = (("a dog", "A dog barks.", "A dog has a tail."), ("a cat", "A cat purrs."))
    target = build_target(type(resolved).model_validate(resolved.model_dump(mode="json")))
    assert target.classes is not None and target.classes.prompts == wanted
    with refused("target.descriptions", 1):
        build_target(
            {**CONFIGS["dual"], "vocabulary": {"kind": "hashing"}, "classes": ["a", "b"], "descriptions": [["x"]]}
        )


def test_classification_without_classes_says_what_to_give() -> None:
    target = small("dual")
    with refused("target.classes", None):
        target.class_logits(target.encode_images(inputs("dual")))


def test_a_file_that_is_no_target_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    with refused("weights", tmp_path / "x.safetensors"):
        load_target(tmp_path / "x.safetensors")


def test_a_checked_configuration_passes_through() -> None:
    config = target_config(CONFIGS["sgraf"])
    assert target_config(config) is config
    assert target_config(copy.deepcopy(CONFIGS["sgraf"])) == config


# --- classes that stand for themselves -----------------------------------------------------------------------------------


def fixed_classes(folder: Path, width: int = 16) -> tuple[Path, Anchors]:
    vectors = np.random.default_rng(0).standard_normal((4, width)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    anchors = Anchors(("cat", "dog", "bird"), vectors, np.array([0, 1, 1, 2]))
    anchors.save(folder / "anchors.safetensors")
    return folder / "anchors.safetensors", anchors


def test_vectors_of_a_table_stand_for_the_classes_and_are_saved_with_the_weights(tmp_path: Path) -> None:
    file, anchors = fixed_classes(tmp_path)
    words = {"kind": "captions", "ids": [49406, 49407, 320]}
    config = {**TARGET, "vocabulary": words, "classes": ("cat", "dog", "bird"), "anchors": str(file)}
    target = build_target(config)
    images = {"vectors": torch.nn.functional.normalize(torch.randn(5, 16), dim=1)}
    cosines = images["vectors"].numpy() @ anchors.embeddings.T
    wanted = np.stack([cosines[:, 0], cosines[:, 1:3].mean(axis=1), cosines[:, 3]], axis=1)
    np.testing.assert_allclose(target.class_similarity(images).detach().numpy(), wanted, atol=1e-6)
    save_target(target, tmp_path / "saved.safetensors")
    file.unlink()
    again = load_target(tmp_path / "saved.safetensors")
    torch.testing.assert_close(again.class_logits(images), target.class_logits(images), rtol=0, atol=0)


def test_vectors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file, _ = fixed_classes(tmp_path, width=8)
    words = {"kind": "captions", "ids": [49406, 49407, 320]}
    config = {**TARGET, "vocabulary": words, "classes": ("cat", "dog", "bird")}
    with refused("target.anchors", file) as caught:
        build_target({**config, "anchors": str(file)})
    assert "3 classes in 8 numbers, the target 3 in 16" in str(caught.value)
    with refused("target.anchors", tmp_path / "none"):
        build_target({**config, "anchors": str(tmp_path / "none")})
