"""transformers models, tiny and untrained, against plain transformers calls. Nothing is downloaded."""

import json
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from noisegate.pipeline.estimators import load_estimator, normalise
from noisegate.pipeline.estimators.device import Device
from noisegate.pipeline.estimators.loading import allow_torchvision
from noisegate.pipeline.estimators.transformers_model import TransformersEstimator
from noisegate.pipeline.shards.preprocess import ProcessorPixels
from tests.errors import refused

allow_torchvision()
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

KINDS = ("clip", "align", "siglip")
WORDS = ["a", "the", "red", "green", "blue", "two", "small", "circle", "square", "on", "left", "of", "photo", ",", "."]
TEXTS = [
    "a red circle",
    "a",
    "two small green triangle on the left of a wide blue square",
    "PHOTO of a zebra.",
    "a " * 99,
]
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def tokenizer(kind: str) -> Any:
    """Whole words; the three ways to end and pad a text that the three families have."""
    special, template, options = {
        "clip": (
            ["<bos>", "<eos>"],
            "<bos> $A <eos>",
            {
                "bos_token": "<bos>",
                "eos_token": "<eos>",
                "pad_token": "<eos>",
                "unk_token": "<eos>",
                "model_max_length": 20,
            },
        ),
        "align": (
            ["[PAD]", "[CLS]", "[SEP]", "[UNK]"],
            "[CLS] $A [SEP]",
            {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"},
        ),
        "siglip": (
            ["<unk>", "</s>"],
            "$A </s>",
            {"eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>", "model_max_length": 16},
        ),
    }[kind]
    names = {"clip": ["input_ids", "attention_mask"], "siglip": ["input_ids"]}
    vocabulary = {word: i for i, word in enumerate([*special, *WORDS])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=options["unk_token"]))
    inner.normalizer = tokenizers.normalizers.Lowercase()
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single=template, special_tokens=[(token, vocabulary[token]) for token in special]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_input_names=names.get(kind, ["input_ids", "token_type_ids", "attention_mask"]),
        **options,
    )


def model(kind: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    vision: dict[str, Any] = {**SMALL, "image_size": 32, "patch_size": 8}
    if kind == "clip":
        text = {**SMALL, "vocab_size": 30, "max_position_embeddings": 20}
        text |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
        made = transformers.CLIPModel(
            transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)
        )
    elif kind == "siglip":
        text = {**SMALL, "vocab_size": 30, "max_position_embeddings": 16, "projection_size": 16}
        text |= {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 1}
        made = transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=vision))
    else:
        text = {**SMALL, "vocab_size": 30, "max_position_embeddings": 80}
        vision = {"image_size": 25, "kernel_sizes": [3, 3], "in_channels": [32, 16], "out_channels": [16, 16]}
        vision |= {"strides": [1, 2], "num_block_repeats": [1, 1], "expand_ratios": [1, 2], "depthwise_padding": []}
        vision |= {"hidden_dim": 16, "width_coefficient": 1.0, "depth_coefficient": 1.0, "depth_divisor": 8}
        made = transformers.AlignModel(
            transformers.AlignConfig(text_config=text, vision_config=vision, projection_dim=16)
        )
    with torch.no_grad():  # untrained layers are nearly zero; larger ones make every token and pixel count
        for name, parameter in made.named_parameters():
            if parameter.ndim > 1 and "logit" not in name:
                parameter.mul_(3.0)
    return made.eval()


def processor(kind: str, **changes: Any) -> Any:
    if kind == "clip":
        options = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
        return transformers.CLIPProcessor(transformers.CLIPImageProcessor(**options | changes), tokenizer(kind))
    if kind == "siglip":
        options = {"size": {"height": 32, "width": 32}}
        return transformers.SiglipProcessor(transformers.SiglipImageProcessor(**options | changes), tokenizer(kind))
    options = {  # as kakaobrain/align-base has them, but smaller
        "size": {"height": 30, "width": 30},
        "crop_size": {"height": 25, "width": 25},
        "do_center_crop": True,
        "rescale_factor": 1 / 127.5,
        "rescale_offset": True,
        "do_normalize": False,
        "include_top": False,
        "resample": 2,
    }
    return transformers.AlignProcessor(transformers.EfficientNetImageProcessor(**options | changes), tokenizer(kind))


@pytest.fixture(scope="module", autouse=True)
def silence() -> Iterator[None]:
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {kind: tmp_path_factory.mktemp("models") / f"tiny-{kind}" for kind in KINDS}
    for kind, folder in made.items():
        model(kind).save_pretrained(folder)
        processor(kind).save_pretrained(folder)
    return made


@pytest.fixture(scope="module")
def estimators(folders: dict[str, Path]) -> dict[str, TransformersEstimator]:
    return {
        kind: TransformersEstimator.load(f"hf:{folder}", Device("cpu", "float32"), decoder="pillow")
        for kind, folder in folders.items()
    }


def pictures() -> list[Image.Image]:
    """Wide, tall, odd, small and fitting ones; 35 leaves a margin of 3, where rounding down and to even differ."""
    rng = np.random.default_rng(0)
    sizes = [(71, 50), (50, 71), (35, 32), (33, 32), (32, 33), (7, 5), (32, 32), (120, 33)]
    return [Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in sizes]


def plain(folder: Path, backend: str = "pil") -> tuple[Any, Any]:
    return (
        transformers.AutoModel.from_pretrained(folder).eval(),
        transformers.AutoProcessor.from_pretrained(folder, backend=backend),
    )


def own_pixels(preprocess: ProcessorPixels, image: Image.Image) -> np.ndarray:
    return (preprocess(image) / 255 - np.array(preprocess.mean)) / np.array(preprocess.std)


# --- equality with plain transformers --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_those_of_the_models_own_processor(
    kind: str, folders: dict[str, Path], estimators: dict[str, TransformersEstimator]
) -> None:
    preprocess = estimators[kind].preprocess
    own = np.stack([own_pixels(preprocess, image) for image in pictures()])
    for backend, levels in (("pil", 1e-3), ("torchvision", 4)):  # of 255; torchvision resizes with other rounding
        _, its = plain(folders[kind], backend)
        values = its(images=pictures(), return_tensors="np")["pixel_values"].transpose(0, 2, 3, 1)
        assert (np.abs(own - values) * preprocess.std * 255).max() < levels


@pytest.mark.parametrize("kind", KINDS)
def test_picture_embeddings_equal_plain_calls(
    kind: str, folders: dict[str, Path], estimators: dict[str, TransformersEstimator]
) -> None:
    its_model, its_processor = plain(folders[kind])
    with torch.no_grad():
        inputs = its_processor(images=pictures(), return_tensors="pt")
        expected = its_model.get_image_features(**inputs).pooler_output.numpy()
    rows = estimators[kind].encode_images(pictures())
    assert rows.dtype == np.float32 and rows.shape == expected.shape
    assert np.abs(rows - expected).max() < 1e-5
    assert np.abs(normalise(rows)[0] - normalise(rows)[1]).max() > 1e-3  # pictures are told apart


@pytest.mark.parametrize("kind", KINDS)
def test_text_embeddings_equal_plain_fully_padded_calls(
    kind: str, folders: dict[str, Path], estimators: dict[str, TransformersEstimator]
) -> None:
    its_model, its_processor = plain(folders[kind])
    with torch.no_grad():
        inputs = its_processor(text=TEXTS, padding="max_length", truncation=True, return_tensors="pt")
        expected = its_model.get_text_features(**inputs).pooler_output.numpy()
    rows = estimators[kind].encode_texts(TEXTS)
    alone = np.concatenate([estimators[kind].encode_texts([text]) for text in TEXTS])  # each padded to its own length
    assert np.abs(rows - expected).max() < 1e-5 and np.abs(alone - expected).max() < 1e-5
    assert np.abs(normalise(rows)[0] - normalise(rows)[1]).max() > 1e-3


def test_texts_are_padded_to_the_longest_only_where_the_tower_masks_padding(
    estimators: dict[str, TransformersEstimator],
) -> None:
    assert {kind: made.trims_texts for kind, made in estimators.items()} == {
        "clip": True,
        "align": True,
        "siglip": False,
    }
    widths = {kind: made.tokenize(["a", "a red circle"])["input_ids"].shape[1] for kind, made in estimators.items()}
    assert widths == {"clip": 5, "align": 5, "siglip": 16}
    longest = {kind: made.tokenize(["a " * 200])["input_ids"].shape[1] for kind, made in estimators.items()}
    assert longest == {"clip": 20, "align": 64, "siglip": 16}  # ALIGN's 64 is its processor's, it has 80 positions


@pytest.mark.parametrize("kind", KINDS)
def test_the_temperature_is_the_trained_one(kind: str, estimators: dict[str, TransformersEstimator]) -> None:
    inner = estimators[kind]._model
    trained = inner.temperature if kind == "align" else torch.exp(-inner.logit_scale)
    assert estimators[kind].temperature == pytest.approx(float(trained.detach()), rel=1e-5)


@pytest.mark.parametrize(("kind", "words"), [("clip", 18), ("align", 62), ("siglip", 15)])
def test_texts_beyond_the_context_are_found(
    kind: str, words: int, estimators: dict[str, TransformersEstimator]
) -> None:
    texts = ["a", " ".join(["red"] * words), " ".join(["red"] * (words + 1)), "red " * 500]
    assert estimators[kind].find_truncated(texts) == [False, False, True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_depend_on_their_batch(kind: str, folders: dict[str, Path]) -> None:
    one = load_estimator(f"hf:{folders[kind]}", device="cpu", batch_size=1)
    many = load_estimator(f"hf:{folders[kind]}", device="cpu")
    assert (one.batch_size, many.batch_size) == (1, 64)
    assert np.abs(one.encode_texts(TEXTS) - many.encode_texts(TEXTS)).max() < 1e-5
    assert np.abs(one.encode_images(pictures()) - many.encode_images(pictures())).max() < 1e-5
    assert one.identity == many.identity


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_in_gives_nothing_of_the_right_width(kind: str, estimators: dict[str, TransformersEstimator]) -> None:
    width = {"clip": 12, "align": 16, "siglip": 16}[kind]
    assert estimators[kind].encode_texts([]).shape == estimators[kind].encode_images([]).shape == (0, width)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_random_pixels_and_tokens_up_to_an_end_token(
    kind: str, folders: dict[str, Path], estimators: dict[str, TransformersEstimator]
) -> None:
    images, texts = estimators[kind].encode_noise(3, np.random.default_rng(5))
    replay, side = np.random.default_rng(5), {"clip": 32, "align": 25, "siglip": 32}[kind]
    pixels = np.stack([replay.random((3, side, side), dtype=np.float32) for _ in range(3)])
    its_model, its_processor = plain(folders[kind])
    context = {"clip": 20, "align": 64, "siglip": 16}[kind]
    tokens = replay.integers(0, len(its_processor.tokenizer), (3, context))
    if kind != "align":
        tokens[:, -1] = 1
    with torch.no_grad():
        expected_images = its_model.get_image_features(pixel_values=torch.from_numpy(pixels)).pooler_output
        expected_texts = its_model.get_text_features(input_ids=torch.from_numpy(tokens)).pooler_output
    assert np.abs(images - expected_images.numpy()).max() < 1e-5
    assert np.abs(texts - expected_texts.numpy()).max() < 1e-5
    assert np.abs(texts[0] - texts[1]).max() > 1e-3


class TensorFeatures:
    """A model as transformers 4 has it: features are tensors."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.config, self.state_dict = inner, inner.config, inner.state_dict

    def float(self) -> "TensorFeatures":
        return self

    def eval(self) -> "TensorFeatures":
        return self

    def to(self, *_: Any, **__: Any) -> "TensorFeatures":
        return self

    def get_image_features(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.inner.get_image_features(**inputs).pooler_output

    def get_text_features(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.inner.get_text_features(**inputs).pooler_output


def test_features_may_come_as_tensors_as_in_version_4(estimators: dict[str, TransformersEstimator]) -> None:
    older = TransformersEstimator(
        TensorFeatures(model("clip")), processor("clip"), "hf:older", Device("cpu", "float32"), decoder="pillow"
    )
    assert np.abs(older.encode_texts(TEXTS) - estimators["clip"].encode_texts(TEXTS)).max() < 1e-5
    assert np.abs(older.encode_images(pictures()) - estimators["clip"].encode_images(pictures())).max() < 1e-5


# --- preprocessing ---------------------------------------------------------------------------------------------------


def test_aligns_pixels_are_squashed_cut_and_scaled_to_minus_one_to_one(
    estimators: dict[str, TransformersEstimator],
) -> None:
    assert estimators["align"].preprocess == ProcessorPixels(30, 25, "squash", "bilinear", (0.5,) * 3, (0.5,) * 3)
    assert estimators["clip"].preprocess.resize == "shortest" and estimators["siglip"].preprocess.resize == "squash"


def test_a_resize_larger_than_the_crop_is_cut_as_transformers_cuts_it() -> None:
    its = transformers.CLIPProcessor(
        transformers.CLIPImageProcessorPil(size={"shortest_edge": 41}, crop_size={"height": 32, "width": 32}),
        tokenizer("clip"),
    ).image_processor
    own = [own_pixels(ProcessorPixels.of(its, "x"), image).transpose(2, 0, 1) for image in pictures()]
    assert np.abs(np.stack(own) - its(images=pictures(), return_tensors="np")["pixel_values"]).max() < 1e-5


def test_the_oldest_form_of_a_processor_file_is_read(
    folders: dict[str, Path], estimators: dict[str, TransformersEstimator], tmp_path: Path
) -> None:
    folder = tmp_path / "tiny-clip"
    shutil.copytree(folders["clip"], folder)
    (folder / "processor_config.json").unlink()
    old = {"crop_size": 32, "do_center_crop": True, "do_normalize": True, "do_resize": True, "resample": 3, "size": 32}
    old |= {"feature_extractor_type": "CLIPFeatureExtractor"}
    old |= {"image_mean": estimators["clip"].preprocess.mean, "image_std": estimators["clip"].preprocess.std}
    (folder / "preprocessor_config.json").write_text(json.dumps(old))
    assert load_estimator(f"hf:{folder}", device="cpu", decoder="pillow").identity == estimators["clip"].identity


def test_preprocessing_pickles_and_needs_no_torch(estimators: dict[str, TransformersEstimator]) -> None:
    preprocess = estimators["clip"].preprocess
    assert pickle.loads(pickle.dumps(preprocess)) == preprocess
    code = (
        "import pickle, sys; from PIL import Image; "
        f"shape = pickle.loads({pickle.dumps(preprocess)!r})(Image.new('RGB', (50, 40))).shape; "
        "sys.exit(shape != (32, 32, 3) or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- identity --------------------------------------------------------------------------------------------------------


def test_identity_names_everything_a_score_depends_on(estimators: dict[str, TransformersEstimator]) -> None:
    identity = estimators["clip"].identity
    assert identity.model == "hf:tiny-clip"
    assert len(identity.weights) == 64
    assert "size=32, crop=32, resize='shortest'" in identity.preprocess and "20 tokens" in identity.preprocess
    assert identity.dtype == "float32"
    assert [name for name, _ in identity.versions] == ["pillow", "tokenizers", "torch", "transformers"]
    assert dict(identity.versions)["transformers"] == transformers.__version__


def test_identity_does_not_depend_on_where_the_folder_lies(
    folders: dict[str, Path], estimators: dict[str, TransformersEstimator], tmp_path: Path
) -> None:
    shutil.copytree(folders["clip"], tmp_path / "elsewhere" / "tiny-clip")
    moved = load_estimator(f"hf:{tmp_path / 'elsewhere' / 'tiny-clip'}/", device="cpu", decoder="pillow")
    assert moved.identity == estimators["clip"].identity


def other_weights(folder: Path) -> None:
    model("clip", seed=1).save_pretrained(folder)


def other_pixels(folder: Path) -> None:
    processor("clip", image_mean=[0.5, 0.5, 0.5]).save_pretrained(folder)


def other_words(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text()
    rules = json.loads(text)
    vocabulary = rules["model"]["vocab"]
    vocabulary["red"], vocabulary["blue"] = vocabulary["blue"], vocabulary["red"]
    (folder / "tokenizer.json").write_text(json.dumps(rules))


@pytest.mark.parametrize("change", [other_weights, other_pixels, other_words])
def test_identity_changes_with_weights_pixels_and_tokens(
    change: Callable[[Path], None],
    folders: dict[str, Path],
    estimators: dict[str, TransformersEstimator],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "tiny-clip"
    shutil.copytree(folders["clip"], folder)
    change(folder)
    changed = load_estimator(f"hf:{folder}", device="cpu", decoder="pillow").identity
    part = "weights" if change is other_weights else "preprocess"
    (difference,) = estimators["clip"].identity.differences(changed)
    assert difference.startswith(f"{part}: ")


def test_a_half_precision_checkpoint_computes_in_the_type_that_was_asked_for(
    folders: dict[str, Path], estimators: dict[str, TransformersEstimator], tmp_path: Path
) -> None:
    shutil.copytree(folders["clip"], tmp_path / "half")
    model("clip").half().save_pretrained(tmp_path / "half")
    half = load_estimator(f"hf:{tmp_path / 'half'}", device="cpu")
    full = estimators["clip"].encode_texts(TEXTS)
    assert 0 < np.abs(normalise(half.encode_texts(TEXTS)) - normalise(full)).max() < 5e-3
    assert half.identity.dtype == "float32"
    narrow = load_estimator(f"hf:{folders['clip']}", device="cpu", dtype="bfloat16")
    assert 0 < np.abs(normalise(narrow.encode_texts(TEXTS)) - normalise(full)).max() < 5e-2
    assert narrow.identity.dtype == "bfloat16" and narrow.identity.weights == estimators["clip"].identity.weights


# --- what cannot work ------------------------------------------------------------------------------------------------


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with refused("model", "hf:kakaobrain/align-base"):
        load_estimator("hf:kakaobrain/align-base", device="cpu")


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./nowhere", "~/nowhere-at-all", "models/tiny/clip"])
def test_a_folder_that_does_not_exist_is_named(name: str) -> None:
    with refused("model", f"hf:{name}"):
        load_estimator(f"hf:{name}", device="cpu")


def test_names_that_cannot_be_loaded(tmp_path: Path) -> None:
    with refused("model", "hf:"):
        load_estimator("hf:", device="cpu")
    with refused("model", "hf:not a name!"):
        load_estimator("hf:not a name!", device="cpu")
    with refused("model", f"hf:{tmp_path}"):
        load_estimator(f"hf:{tmp_path}", device="cpu")
    (tmp_path / "file").write_text("x")
    with refused("model", f"hf:{tmp_path / 'file'}"):
        load_estimator(f"hf:{tmp_path / 'file'}", device="cpu")


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_folder_that_brings_code_is_refused(folders: dict[str, Path], tmp_path: Path, file: str) -> None:
    folder = shutil.copytree(folders["clip"], tmp_path / "tiny")
    config = json.loads((folder / file).read_text()) | {"auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (folder / file).write_text(json.dumps(config))
    with refused("model", f"hf:{folder}") as caught:
        load_estimator(f"hf:{folder}", device="cpu")
    assert "auto_map" in str(caught.value)


def test_a_model_without_two_towers_is_named(tmp_path: Path) -> None:
    transformers.BertModel(transformers.BertConfig(vocab_size=30, **SMALL)).save_pretrained(tmp_path)
    with refused("model", f"hf:{tmp_path}"):
        load_estimator(f"hf:{tmp_path}", device="cpu")


def test_incomplete_weights_are_not_filled_with_random_numbers(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(folders["clip"], folder)
    made = model("clip")
    kept = {key: value for key, value in made.state_dict().items() if not key.startswith("text_projection")}
    made.save_pretrained(folder, state_dict=kept)
    with refused("model", f"hf:{folder}"):
        load_estimator(f"hf:{folder}", device="cpu")


def test_damaged_weights_are_an_error_of_the_setting(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(folders["clip"], folder)
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    with refused("model", f"hf:{folder}"):
        load_estimator(f"hf:{folder}", device="cpu")


def test_a_model_without_a_processor_is_named(tmp_path: Path) -> None:
    model("clip").save_pretrained(tmp_path)
    tokenizer("clip").save_pretrained(tmp_path)
    with refused("model", f"hf:{tmp_path}"):
        load_estimator(f"hf:{tmp_path}", device="cpu")


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("clip", {"do_resize": False}, "resizes to"),
        ("siglip", {"size": {"height": 32, "width": 48}}, r"resizes to \{'height': 32, 'width': 48\}"),
        ("clip", {"do_center_crop": False}, r"crops nothing of \{'shortest_edge': 32\}"),
        ("clip", {"crop_size": {"height": 32, "width": 16}}, r"crops \{'height': 32, 'width': 16\}"),
        ("clip", {"crop_size": {"height": 64, "width": 64}}, "square crop"),
        ("clip", {"resample": 0}, r"filter 0; use 2 \(bilinear\) or 3 \(bicubic\)"),
        ("align", {"include_top": True, "image_std": [0.2] * 3}, "EfficientNetImageProcessor"),
        ("siglip", {"size": {"height": 24, "width": 24}}, "does not take .*24 px"),
    ],
)
def test_processors_with_other_steps_are_refused(kind: str, changes: dict[str, Any], message: str) -> None:
    with refused("model", "hf:x") as caught:
        TransformersEstimator(model(kind), processor(kind, **changes), "hf:x", Device("cpu", "float32"))
    assert re.search(message, str(caught.value))


def test_towers_of_different_widths_are_refused() -> None:
    made = model("clip")
    made.text_projection = torch.nn.Linear(16, 7)
    with refused("model", "hf:x"):
        TransformersEstimator(made, processor("clip"), "hf:x", Device("cpu", "float32"))


def test_loading_leaves_the_settings_of_transformers_logging_alone(folders: dict[str, Path]) -> None:
    log = transformers.utils.logging
    before = log.get_verbosity()
    log.enable_progress_bar()
    load_estimator(f"hf:{folders['clip']}", device="cpu")
    assert log.get_verbosity() == before and log.is_progress_bar_enabled()
    log.disable_progress_bar()
