import numpy as np
import pytest
import torch
from safetensors import safe_open

from noisegate.pipeline.datasets.embedded import (
    CONTEXT,
    PROMPTS,
    TEXT_LENGTH,
    UNSEEN_SEED,
    Encode,
    auroc,
    best_cut,
    draw_part,
    measure,
    token_ids,
)
from noisegate.pipeline.datasets.scenes import caption, draw, random_scene, scene_rng
from noisegate.pipeline.datasets.scenes.scene import class_names
from noisegate.pipeline.estimators.loading import allow_torchvision
from noisegate.pipeline.estimators.openclip_names import EMBEDDED

allow_torchvision()
import open_clip  # noqa: E402

FOLDER = EMBEDDED


@pytest.fixture(scope="module")
def captions() -> list[str]:
    rngs = [scene_rng(7, index) for index in range(1000)]
    return [caption(random_scene(rng), rng) for rng in rngs]


def test_the_artefacts_fit_into_the_package() -> None:
    weights = FOLDER / "open_clip_model.safetensors"
    assert weights.stat().st_size + (FOLDER / "open_clip_config.json").stat().st_size <= 8_000_000
    with safe_open(weights, "pt") as file:
        floats = [name for name in file.keys() if not name.endswith("num_batches_tracked")]  # noqa: SIM118
        assert {file.get_tensor(name).dtype for name in floats} == {torch.float16}


def test_open_clip_loads_the_folder_with_its_preprocessing_and_tokenizer() -> None:
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{FOLDER}")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{FOLDER}")
    assert tokenizer(["a red circle"]).shape == (1, CONTEXT)
    assert {name: model.visual.preprocess_cfg[name] for name in ("size", "interpolation", "resize_mode")} == {
        "size": 64,
        "interpolation": "bicubic",
        "resize_mode": "shortest",
    }
    assert preprocess is not None


def test_it_tells_own_from_other_and_from_changed_captions_on_unseen_scenes() -> None:
    figures = measure(FOLDER, 400, seed=UNSEEN_SEED + 1)
    assert figures["auroc_mismatched"] >= 0.99
    assert figures["auroc_changed"] >= 0.90
    assert figures["kept"] >= 0.95
    assert figures["rejected"] >= 0.97
    assert figures["class_accuracy"] >= 0.90


def test_every_token_of_captions_and_prompts_was_trained(captions: list[str]) -> None:
    prompts = [prompt.format(name) for prompt in PROMPTS for name in class_names()]
    tokens = open_clip.get_tokenizer(f"local-dir:{FOLDER}")(captions + prompts)
    with safe_open(FOLDER / "open_clip_model.safetensors", "pt") as file:
        trained = file.get_tensor("token_embedding.weight").abs().sum(1) > 0
    assert trained[tokens.unique()].all()
    assert trained.sum() < 200


def test_no_written_scene_was_trained_on() -> None:
    trained = {image.tobytes() for image in draw_part(0, seed=0, count=20, encode=Encode()).images}
    written = {draw(random_scene(scene_rng(0, index))).tobytes() for index in range(20)}
    assert len(trained) == len(written) == 20
    assert trained.isdisjoint(written)


def test_training_reads_the_same_tokens_as_open_clip(captions: list[str]) -> None:
    whole = open_clip.get_tokenizer("ViT-B-32")(captions).numpy()
    assert not whole[:, TEXT_LENGTH:].any()
    np.testing.assert_array_equal(token_ids(captions, Encode(), {}), whole[:, :TEXT_LENGTH])


def test_auroc_counts_ordered_pairs_and_ties_as_half() -> None:
    true, false = np.array([0.9, 0.5], np.float32), np.array([0.5, 0.1], np.float32)
    assert auroc(true, false) == pytest.approx((1 + 1 + 0.5 + 1) / 4)


def test_the_best_cut_is_the_one_a_search_over_all_finds() -> None:
    rng = np.random.default_rng(0)
    true, false = rng.normal(1, 1, 60).astype(np.float32), rng.normal(0, 1, 50).astype(np.float32)
    cut, kept, rejected = best_cut(true, false)
    assert (kept, rejected) == pytest.approx(((true >= cut).mean(), (false < cut).mean()))
    assert kept + rejected == pytest.approx(max((true >= c).mean() + (false < c).mean() for c in np.r_[true, false]))
