"""Dual encoders: backbones of timm, regions dropped in training, features that do not fit."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from noisegate.trainers.targets import build_target
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
