"""CLIP targets: what is trained, the learnt scale, and that a trained one is an estimator again."""

from pathlib import Path

import numpy as np
import pytest
import torch

from noisegate.pipeline.estimators import load_estimator, normalise
from noisegate.trainers.targets import build_target, load_target, save_target
from tests.errors import refused
from tests.trainers.small_targets import ARCHITECTURE, CAPTIONS, inputs, photo, small


def test_visual_trains_the_image_tower_and_the_scale() -> None:
    target = small("clip", train="visual")
    names = set(target.trainable_parameters())
    everything = {name for name, _ in target.named_parameters()}
    assert names == {n for n in everything if n.startswith("model.visual.")} | {"model.logit_scale"}


def test_heads_are_projections_and_final_norms_and_the_last_blocks_that_are_asked_for() -> None:
    target = small("clip", train="heads")
    assert set(target.trainable_parameters()) == {
        "model.visual.proj",
        "model.visual.ln_post.weight",
        "model.visual.ln_post.bias",
        "model.text_projection",
        "model.ln_final.weight",
        "model.ln_final.bias",
        "model.logit_scale",
    }
    more = set(small("clip", train="heads", last_layers=1).trainable_parameters())
    blocks = {
        name.rsplit("resblocks.", 1)[0] + name.rsplit("resblocks.", 1)[1][0] for name in more if "resblocks" in name
    }
    assert blocks == {"model.visual.transformer.1", "model.transformer.1"}
    assert "model.logit_scale" not in small("clip", train="heads", learn_scale=False).trainable_parameters()


def test_frozen_running_statistics_do_not_move() -> None:
    target = build_target({"name": "clip", "model": "embedded", "train": "heads"}).train()
    before = {name: value.clone() for name, value in target.state_dict().items() if "running" in name}
    target.encode_images(torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8))
    after = target.state_dict()
    assert before and all(torch.equal(value, after[name]) for name, value in before.items())


def test_the_scale_multiplies_the_temperature_divides_and_both_stop_at_100() -> None:
    target = small("clip")
    assert float(target.scale.detach()) == pytest.approx(1 / 0.07)
    assert float(target.temperature.detach()) == pytest.approx(0.07)
    with torch.no_grad():
        target.logit_scale.fill_(9.0)
    target.after_step()
    assert float(target.scale.detach()) == pytest.approx(100.0)
    target.scale.backward()
    assert float(target.logit_scale.grad) == pytest.approx(100.0)  # so that it can come down again


def test_eight_bit_pictures_and_their_pixels_encode_alike() -> None:
    target = small("clip")
    images = inputs("clip")
    pixels = target.pixels(images)
    mean, std = torch.tensor(target.preprocess.mean), torch.tensor(target.preprocess.std)
    torch.testing.assert_close(pixels[0, :, 0, 0], (images[0, :, 0, 0] / 255 - mean) / std, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(target.encode_images(pixels)["vectors"], target.encode_images(images)["vectors"])
    assert target.pixels(pixels) is pixels


def test_an_embedded_target_is_the_embedded_estimator() -> None:
    target, estimator = build_target({"name": "clip", "model": "embedded"}).eval(), load_estimator("embedded")
    pictures = [photo(i) for i in range(3)]
    transform = target.image_transform(False)
    with torch.no_grad():
        images, texts = target(torch.stack([transform(p) for p in pictures]), target.tokenize(CAPTIONS))
    np.testing.assert_allclose(images["vectors"], normalise(estimator.encode_images(pictures)), atol=1e-5)
    np.testing.assert_allclose(texts["vectors"], normalise(estimator.encode_texts(CAPTIONS)), atol=1e-5)


def test_its_architecture_from_scratch_has_other_weights_and_the_same_pictures() -> None:
    trained = build_target({"name": "clip", "model": "embedded"})
    scratch = build_target({"name": "clip", "model": "embedded", "pretrained": "random"}, seed=1)
    assert scratch.preprocess == trained.preprocess  # type: ignore[attr-defined]
    shapes = [p.shape for p in trained.parameters()]
    assert [p.shape for p in scratch.parameters()] == shapes
    assert not torch.equal(scratch.model.text_projection, trained.model.text_projection)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["captions", "full"])
def test_an_exported_target_is_an_estimator_with_the_same_embeddings(kind: str, tmp_path: Path) -> None:
    target = small("clip", vocabulary={"kind": kind})
    texts = [*CAPTIONS, "", "a zebra with words that no caption had"]
    target.export(tmp_path / "model")
    estimator = load_estimator(f"local-dir:{tmp_path / 'model'}")
    with torch.no_grad():
        expected = target.encode_texts(target.tokenize(texts))["vectors"]
        image = target.encode_images(target.image_transform(False)(photo(1)).unsqueeze(0))["vectors"]
    np.testing.assert_allclose(normalise(estimator.encode_texts(texts)), expected, atol=1e-5)
    np.testing.assert_allclose(normalise(estimator.encode_images([photo(1)])), image, atol=1e-5)
    again = build_target({"name": "clip", "model": f"local-dir:{tmp_path / 'model'}"}).eval()
    torch.testing.assert_close(again.encode_texts(again.tokenize(texts))["vectors"], expected)


def test_a_checkpoint_does_not_need_the_folder_it_began_with(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    small("clip", vocabulary={"kind": "full"}).export(folder)
    target = build_target({"name": "clip", "model": f"local-dir:{folder}"}).eval()
    save_target(target, tmp_path / "saved.safetensors")
    for file in folder.iterdir():
        file.unlink()
    back = load_target(tmp_path / "saved.safetensors").eval()
    tokens = target.tokenize(CAPTIONS)
    assert torch.equal(back.encode_texts(tokens)["vectors"], target.encode_texts(tokens)["vectors"])
    with refused("model"):
        build_target({"name": "clip", "model": f"local-dir:{folder}"})


def test_a_few_steps_learn_four_pairs() -> None:
    target = small("clip", seed=1).train()
    optimizer = torch.optim.Adam(target.trainable_parameters().values(), lr=3e-3)
    images, tokens = inputs("clip", 4), target.tokenize(CAPTIONS)
    losses = []
    for _ in range(30):
        logits = target.scale * target.similarity(*target(images, tokens))
        loss = (torch.nn.functional.cross_entropy(logits, torch.arange(4)) * 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        target.after_step()
        losses.append(float(loss.detach()))
    assert losses[0] > 2 and losses[-1] < 0.1


def test_training_pictures_are_random_crops_of_the_same_size() -> None:
    target = small("clip", augment={"crop": [0.5, 0.9]})
    image = photo(0, (60, 40))
    train, plain = target.image_transform(True), target.image_transform(False)
    first, again, other = (train(image, rng=np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.shape == plain(image).shape == (3, 16, 16) and first.dtype == torch.uint8
    assert torch.equal(first, again) and not torch.equal(first, other)
    torch.manual_seed(4)
    drawn = train(image)
    torch.manual_seed(4)
    assert torch.equal(train(image), drawn)
    assert plain.deterministic and not train.deterministic  # type: ignore[attr-defined]


def test_a_mirror_image_with_flip_1() -> None:
    target = small("clip", augment={"crop": None, "flip": 1.0})
    image = photo(0, (16, 16))
    expected = target.image_transform(False)(image).flip(2)
    assert torch.equal(target.image_transform(True)(image, rng=np.random.default_rng(0)), expected)


def test_a_compact_table_is_a_thousandth_of_clips() -> None:
    target = small("clip")
    assert target.model.token_embedding.weight.shape[0] < 30  # type: ignore[union-attr]
    assert small("clip", vocabulary={"kind": "full"}).model.token_embedding.weight.shape[0] == 49408  # type: ignore[union-attr]
    assert ARCHITECTURE["text_cfg"]["vocab_size"] == 49408  # the given one is not changed
