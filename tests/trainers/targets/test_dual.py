"""Dual encoders: backbones of timm, regions dropped in training, features that do not fit."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from noisegate.trainers.bench.paper_bench import load_paper_preset
from noisegate.trainers.targets import build_target, target_config
from noisegate.trainers.targets.dual import Dual, DualConfig
from noisegate.trainers.targets.pictures import FeatureTransform
from tests.errors import refused
from tests.trainers.small_targets import CAPTIONS, inputs, photo, small

GRID = {
    "name": "dual",
    "backbone": "test_resnet",
    "image_size": 64,
    "width": 8,
    "word_width": 4,
    "pooling": "mean",
    "vocabulary": {"kind": "hashing", "buckets": 20},
}


def test_a_grid_of_a_network_is_pooled_to_one_vector() -> None:
    target = build_target(GRID).eval()
    images = torch.stack([target.image_transform(False)(photo(i)) for i in range(2)])
    found = target.encode_images(images)["vectors"]
    grid = target.backbone.forward_features(target.pixels(images))
    rows = torch.stack([grid[:, :, y, x] for y in range(grid.shape[2]) for x in range(grid.shape[3])], dim=1)
    expected = target.to_joint(rows).mean(dim=1)
    torch.testing.assert_close(found, expected / expected.norm(dim=1, keepdim=True), rtol=1e-4, atol=1e-5)


def test_a_vector_of_a_network_is_what_its_classifier_would_read() -> None:
    """For a ResNet the mean of its grid, so that it equals the grid pooled by its mean; for VGG it is fc7."""
    target, of_grid = build_target({**GRID, "backbone_output": "vector"}).eval(), build_target(GRID).eval()
    images = torch.stack([target.image_transform(False)(photo(i)) for i in range(2)])
    torch.testing.assert_close(target.encode_images(images), of_grid.encode_images(images), rtol=1e-4, atol=1e-5)
    inner = torch.zeros(1, target.to_joint.in_features)
    target.backbone.forward_head = lambda grid, pre_logits: inner.expand(len(grid), -1)
    bias = target.to_joint.bias
    torch.testing.assert_close(target.encode_images(images)["vectors"][0], bias / bias.norm())


def test_a_unit_vector_of_a_network_is_scaled_before_the_linear_map() -> None:
    """As in VSE++'s code: l2norm, linear map, l2norm."""
    target = build_target({**GRID, "backbone_output": "unit_vector"}).eval()
    images = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    inner = torch.zeros(1, target.to_joint.in_features)
    inner[0, :2] = torch.tensor([3.0, 4.0])
    target.backbone.forward_head = lambda grid, pre_logits: inner
    expected = 0.6 * target.to_joint.weight[:, 0] + 0.8 * target.to_joint.weight[:, 1] + target.to_joint.bias
    torch.testing.assert_close(target.encode_images(images)["vectors"][0], expected / expected.norm())


def test_a_frozen_backbone_keeps_its_weights_and_statistics() -> None:
    target = build_target({**GRID, "train_backbone": False}).train()
    assert not any(name.startswith("backbone.") for name in target.trainable_parameters())
    before = {name: value.clone() for name, value in target.backbone.state_dict().items()}
    target.encode_images(torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8))
    assert all(torch.equal(value, before[name]) for name, value in target.backbone.state_dict().items())


@pytest.mark.parametrize(("setup", "width"), [("vse++-resnet152", 2048), ("vse++-vgg19", 4096)])
def test_presets_of_vse_pp_have_its_published_architecture(setup: str, width: int) -> None:
    """Unit features of a frozen network, Xavier's linear map, a GRU of 1,024 in one direction; on a device without memory."""
    values = load_paper_preset("coco").setups[setup].config["target"]
    assert (values["backbone_output"], values["xavier"], values["text_pooling"]) == ("unit_vector", True, "last")
    config = target_config({**values, "backbone_output": "vector", "vocabulary": {"kind": "hashing"}})
    assert isinstance(config, DualConfig)
    with torch.device("meta"):
        target = Dual(config, weights=False)
    assert target.to_joint.weight.shape == (1024, width)
    assert not any(parameter.requires_grad for parameter in target.backbone.parameters())
    assert (target.words.gru.bidirectional, target.words.gru.hidden_size) == (False, 1024)


def test_weights_of_a_backbone_come_from_a_file(tmp_path: Path) -> None:
    source = build_target(GRID, seed=5)
    save_file(source.backbone.state_dict(), tmp_path / "net.safetensors")
    target = build_target({**GRID, "backbone_weights": str(tmp_path / "net.safetensors")}, seed=6)
    torch.testing.assert_close(target.backbone.conv1[0].weight, source.backbone.conv1[0].weight)
    assert not torch.equal(target.to_joint.weight, source.to_joint.weight)
    empty = build_target({**GRID, "backbone_weights": "gone.safetensors"}, weights=False)  # a checkpoint follows
    assert empty.backbone is not None


def test_a_transformer_backbone_is_built_for_the_size_that_is_asked_for() -> None:
    target = build_target({**GRID, "backbone": "test_vit", "image_size": 32}).eval()
    assert target.encode_images(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))["vectors"].shape == (1, 8)


def test_a_share_of_regions_is_dropped_in_training_only_and_never_all() -> None:
    target = small("dual", drop_parts=0.5, text_pooling="mean", pooling="mean")
    images, tokens = inputs("dual", 6), target.tokenize(CAPTIONS)
    plain = small("dual", text_pooling="mean", pooling="mean")
    torch.testing.assert_close(target.encode_images(images), plain.encode_images(images))
    torch.manual_seed(0)
    target.train()
    thinned = target.encode_images(images)["vectors"]
    assert not torch.allclose(thinned, plain.encode_images(images)["vectors"])
    torch.testing.assert_close(thinned.norm(dim=1), torch.ones(6))
    hard = small("dual", drop_parts=0.999, text_pooling="mean", pooling="mean").train()
    torch.testing.assert_close(hard.encode_texts(tokens)["vectors"].norm(dim=1), torch.ones(4))


def test_the_final_state_of_a_gru_is_that_of_the_last_word() -> None:
    target = small("dual", text_pooling="last", pooling="mean")
    words, mask = target.words(target.tokenize(CAPTIONS))
    ends = mask.sum(dim=1) - 1
    expected = torch.stack([row[end] for row, end in zip(words, ends, strict=True)])
    torch.testing.assert_close(
        target.encode_texts(target.tokenize(CAPTIONS))["vectors"], expected / expected.norm(dim=1, keepdim=True)
    )


def test_a_gru_in_one_direction_ends_in_the_state_after_the_last_word() -> None:
    """VSE++: word after word by hand; no state reads a later word."""
    target = small("dual", bidirectional=False, text_pooling="last", pooling="mean")
    tokens = target.tokenize(CAPTIONS)
    cell = torch.nn.GRUCell(4, 8)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in target.words.gru.state_dict().items()})
    for caption, vector in zip(tokens, target.encode_texts(tokens)["vectors"], strict=True):
        state = torch.zeros(8)
        for token in caption[caption != 0]:
            state = cell(target.words.words.weight[token], state)
        torch.testing.assert_close(vector, state / state.norm())


def test_a_map_of_xavier_has_no_bias_and_changes_no_other_weight() -> None:
    plain, found = small("dual"), small("dual", xavier=True)
    own = {"to_joint.weight", "to_joint.bias"}
    other = found.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in plain.state_dict().items() if name not in own)
    bound = math.sqrt(6 / (6 + 8))
    assert not found.to_joint.bias.any()
    assert 0.8 * bound < found.to_joint.weight.abs().max() <= bound
    assert plain.to_joint.weight.abs().max() < 0.8 * bound  # torch's own is 1 / sqrt(6)


def test_one_feature_vector_is_one_region() -> None:
    target = small("dual")
    rows = torch.randn(3, 6)
    torch.testing.assert_close(target.encode_images(rows), target.encode_images(rows.unsqueeze(1)))


def test_features_are_cut_and_padded_and_must_fit() -> None:
    transform = FeatureTransform(parts=2, width=3)
    many = np.arange(9, dtype=np.float64).reshape(3, 3)
    assert transform(many).tolist() == many[:2].tolist() and transform(many).dtype == torch.float32
    assert transform(np.ones(3)).tolist() == [[1.0] * 3, [0.0] * 3]
    with refused("target.features", 3):
        transform(np.ones((2, 4)))
