import copy
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from noisegate.pipeline.estimators import load_estimator, normalise
from noisegate.pipeline.estimators.base import own_temperature
from noisegate.pipeline.estimators.device import Device
from noisegate.pipeline.estimators.loading import allow_torchvision
from noisegate.pipeline.estimators.openclip import OpenClipEstimator
from tests.commands import ROOT
from tests.errors import refused

TINY: dict[str, Any] = {
    "embed_dim": 12,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 24, "head_width": 8, "patch_size": 16},
    "text_cfg": {"context_length": 40, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}
CAPTIONS = [
    "a",
    "two cats!",
    "",
    "a photo of the old town, its harbour, and 3 red boats at noon; in the distance hills",
    "word " * 60,
    "Käse 猫 ☂",
]
Maker = Callable[..., Path]


def tiny(**text: Any) -> dict[str, Any]:
    config = copy.deepcopy(TINY)
    config["custom_text"] = text.pop("custom_text", False)
    config["text_cfg"] |= text
    return config


def weights(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights, large enough for every token to matter."""
    allow_torchvision()
    from open_clip.model import CLIP, CustomTextCLIP

    plain = {name: value for name, value in config.items() if name != "custom_text"}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = (CustomTextCLIP if config["custom_text"] else CLIP)(**plain)
        state = {name: value + 0.2 * torch.randn(value.shape) for name, value in model.state_dict().items()}
    return {name: value.contiguous() for name, value in state.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """Makes a folder that open_clip loads by `local-dir:`."""

    def make(config: dict[str, Any] | None = None, seed: int = 0, preprocess: dict[str, Any] | None = None) -> Path:
        config = config or tiny()
        path = tmp_path_factory.mktemp("model") / "tiny"
        path.mkdir()
        text = json.dumps({"model_cfg": config, "preprocess_cfg": preprocess or {}})
        (path / "open_clip_config.json").write_text(text)
        save_file(weights(config, seed), path / "open_clip_model.safetensors")
        return path

    return make


@pytest.fixture(scope="module")
def estimator(folder: Maker) -> OpenClipEstimator:
    found = load_estimator(f"local-dir:{folder()}", device="cpu")
    assert isinstance(found, OpenClipEstimator)
    return found


@pytest.fixture(scope="module")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model under a name of open_clip's own list."""
    allow_torchvision()
    import open_clip

    path = tmp_path_factory.mktemp("configs") / "noisegate-tiny.json"
    path.write_text(json.dumps({name: value for name, value in tiny().items() if name != "custom_text"}))
    open_clip.add_model_config(path)
    return path.stem


def pictures(count: int) -> list[Image.Image]:
    rng = np.random.default_rng(5)
    return [Image.fromarray(rng.integers(0, 256, (20 + i, 41, 3), dtype=np.uint8)) for i in range(count)]


def test_texts_beyond_the_context_are_found(estimator: OpenClipEstimator) -> None:
    lengths = [*range(30, 45), 100]
    texts = [*CAPTIONS, *(" ".join(["word"] * n) for n in lengths), *(f"{'word ' * n}end!" for n in lengths)]
    counted = [len(estimator.tokenizer.encode(text)) + 2 > 40 for text in texts]
    assert 5 < sum(counted) < len(texts) - 5
    estimator.encode_texts(["something else"])
    assert estimator.find_truncated(texts) == counted
    estimator.encode_texts(texts)  # which remembers the short ones
    assert estimator.find_truncated(texts) == counted
    assert estimator.find_truncated([]) == []


def test_the_temperature_is_the_trained_one(estimator: OpenClipEstimator) -> None:
    scale = float(estimator.module.logit_scale.detach())
    assert estimator.temperature == pytest.approx(np.exp(-scale), rel=1e-6)
    assert own_temperature(estimator) == round(float(np.exp(-scale)), 6)
    assert own_temperature(load_estimator("python:tests.fakes:ColourModel")) is None


class TestTrimming:
    @pytest.mark.parametrize("custom_text", [False, True])
    def test_cut_texts_equal_whole_ones(self, folder: Maker, custom_text: bool) -> None:
        found = load_estimator(f"local-dir:{folder(tiny(custom_text=custom_text))}", device="cpu")
        assert isinstance(found, OpenClipEstimator) and found.trims_texts
        assert [found.tokenize([text]).shape[1] for text in CAPTIONS] == [3, 5, 2, 23, 40, 10]
        with torch.inference_mode():
            whole = normalise(found.module.encode_text(found.tokenizer(CAPTIONS)).numpy())
        for batch in (CAPTIONS, CAPTIONS[:3]):
            assert np.abs(normalise(found.encode_texts(batch)) - whole[: len(batch)]).max() <= 1e-5
        for i, text in enumerate(CAPTIONS):
            assert np.abs(normalise(found.encode_texts([text]))[0] - whole[i]).max() <= 1e-5

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize(
        "text",
        [
            {"no_causal_mask": True, "pool_type": "last"},
            {"no_causal_mask": True, "pool_type": "argmax"},
            {"no_causal_mask": True, "pool_type": "last", "custom_text": True},
            {"pool_type": "last"},  # causal, but read at the last of all tokens
        ],
    )
    def test_a_tower_that_reads_its_padding_is_left_whole(
        self, folder: Maker, text: dict[str, Any], dtype: str
    ) -> None:
        found = load_estimator(f"local-dir:{folder(tiny(**text))}", device="cpu", dtype=dtype)
        assert isinstance(found, OpenClipEstimator) and not found.trims_texts
        assert found.tokenize(["a"]).shape == (1, 40)
        alone, together = found.encode_texts(["a"])[0], found.encode_texts(CAPTIONS)[0]
        assert np.abs(normalise(alone[None]) - normalise(together[None])).max() <= (
            1e-5 if dtype == "float32" else 0.02
        )

    def test_a_tower_read_at_its_first_token_is_cut_in_half_precision_too(self, folder: Maker) -> None:
        found = load_estimator(f"local-dir:{folder(tiny(pool_type='first'))}", device="cpu", dtype="bfloat16")
        assert isinstance(found, OpenClipEstimator) and found.trims_texts


class TestEncoding:
    def test_rows_do_not_depend_on_batch_or_position(self, folder: Maker) -> None:
        path = f"local-dir:{folder()}"
        images = pictures(9)
        expected: tuple[Any, Any] | None = None
        for size in (1, 2, 4, 64):
            found = load_estimator(path, device="cpu", batch_size=size)
            order = np.random.default_rng(size).permutation(9)
            texts = [f"picture {i} of " + "many " * i for i in order]
            rows = normalise(found.encode_images([images[i] for i in order]))[np.argsort(order)]
            words = normalise(found.encode_texts(texts))[np.argsort(order)]
            expected = expected or (rows, words)
            assert np.abs(rows - expected[0]).max() <= 1e-5 and np.abs(words - expected[1]).max() <= 1e-5
            assert np.abs((rows * words).sum(1) - (expected[0] * expected[1]).sum(1)).max() <= 1e-5

    def test_pictures_equal_open_clips_own_way(self, estimator: OpenClipEstimator) -> None:
        from open_clip.transform import PreprocessCfg, image_transform_v2

        transform = image_transform_v2(PreprocessCfg(**estimator.module.visual.preprocess_cfg), is_train=False)
        with torch.inference_mode():
            whole = estimator.module.encode_image(torch.stack([transform(image) for image in pictures(4)])).numpy()
        reference = replace(estimator.preprocess, decoder="pillow")
        exact = estimator.encode_pixels([reference(image) for image in pictures(4)])
        assert np.abs(normalise(exact) - normalise(whole)).max() <= 1e-5
        assert np.abs(normalise(estimator.encode_images(pictures(4))) - normalise(whole)).max() <= 1e-3
        pixels = [estimator.preprocess(image) for image in pictures(4)]
        assert np.array_equal(estimator.encode_pixels(pixels), estimator.encode_images(pictures(4)))

    def test_repeated_texts_are_encoded_once(self, estimator: OpenClipEstimator) -> None:
        read: list[int] = []
        hook = estimator.module.token_embedding.register_forward_hook(lambda _, inputs, __: read.append(len(inputs[0])))
        rows = estimator.encode_texts(["b", "a", "b", "b", "a", "c"])
        hook.remove()
        assert read == [3]
        assert np.array_equal(rows[[0, 0, 1]], rows[[2, 3, 4]])
        assert np.abs(rows - np.concatenate([estimator.encode_texts([text]) for text in "babbac"])).max() <= 1e-5

    def test_nothing_in_nothing_out(self, estimator: OpenClipEstimator) -> None:
        assert estimator.encode_texts([]).shape == estimator.encode_images([]).shape == (0, 12)

    def test_texts_of_every_kind_are_encoded(self, estimator: OpenClipEstimator) -> None:
        rows = estimator.encode_texts(["\0", "a\0b", " \n\t", "\U0010ffff", "<b>&amp;</b>", "x" * 20_000, "é" * 3000])
        assert rows.shape == (7, 12) and np.isfinite(rows).all()

    def test_noise_is_the_same_whatever_the_batch(self, folder: Maker) -> None:
        path = f"local-dir:{folder()}"
        several = [
            load_estimator(path, device="cpu", batch_size=size).encode_noise(7, np.random.default_rng(3))
            for size in (2, 7, 64)
        ]
        assert several[0][0].shape == several[0][1].shape == (7, 12)
        for images, texts in several[1:]:
            assert np.abs(images - several[0][0]).max() <= 1e-4 and np.abs(texts - several[0][1]).max() <= 1e-4

    def test_half_precision_comes_close(self, folder: Maker, estimator: OpenClipEstimator) -> None:
        half = load_estimator(f"local-dir:{folder()}", device="cpu", dtype="bfloat16")
        rows, exact = half.encode_texts(CAPTIONS), estimator.encode_texts(CAPTIONS)
        assert rows.dtype == np.float32 and 0 < np.abs(normalise(rows) - normalise(exact)).max() < 0.05


class TestIdentity:
    def test_stays_the_same_wherever_the_folder_lies(self, folder: Maker, estimator: OpenClipEstimator) -> None:
        again = load_estimator(f"local-dir:{folder()}", device="cpu").identity
        assert again == estimator.identity and again.digest == estimator.identity.digest
        assert again.model == "local-dir:tiny" and again.dtype == "float32"
        assert again.from_dict(json.loads(json.dumps(again.to_dict()))) == again

    def test_is_the_same_in_another_process_that_prints_nothing_and_fails_at_once_without_a_network(
        self, folder: Maker, estimator: OpenClipEstimator, tmp_path: Path
    ) -> None:
        """One process of its own, with a hub that does not answer: the hub's own client would try for a minute."""
        code = (
            "from noisegate import load_estimator\n"
            f"print(load_estimator('local-dir:{folder()}').identity.digest)\n"
            "for name in (('ViT-B-32', 'openai'), ('hf-hub:org/name', None)):\n"
            "    try: load_estimator(*name)\n"
            "    except Exception as error: print(type(error).__name__, error)\n"
        )
        cache = str(tmp_path / "hub")
        settings = {
            "HF_ENDPOINT": "http://127.0.0.1:9",
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": cache,
            "CUDA_VISIBLE_DEVICES": "",
        }
        command = [sys.executable, "-c", code]
        cold = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=True,
            env={**os.environ, **settings, "PYTHONHASHSEED": "7"},
        )
        digest, first, second = cold.stdout.splitlines()
        assert digest == estimator.identity.digest
        assert first.startswith(
            "ConfigError model 'ViT-B-32' with pretrained 'openai' cannot be loaded: http://127.0.0.1:9"
        )
        assert "does not answer (ConnectError)" in first and "use --model local-dir:FOLDER" in first
        assert second.startswith("ConfigError model 'hf-hub:org/name' cannot be loaded: http://127.0.0.1:9 does not")
        assert cold.stderr == ""

    def test_changes_with_whatever_changes_a_score(self, folder: Maker, estimator: OpenClipEstimator) -> None:
        one_weight = folder()
        state = weights(tiny())
        state["ln_final.bias"][3] += 1e-3
        save_file(state, one_weight / "open_clip_model.safetensors")
        quick = tiny() | {"quick_gelu": True}
        heads = tiny(heads=4)
        others = {
            "weights": [load_estimator(f"local-dir:{path}") for path in (one_weight, folder(quick), folder(heads))],
            "preprocess": [
                load_estimator(f"local-dir:{folder(preprocess=p)}")
                for p in ({"resize_mode": "squash"}, {"mean": [0.5] * 3}, {"interpolation": "bilinear"})
            ]
            + [load_estimator(f"local-dir:{folder(tiny(tokenizer_kwargs={'clean': 'canonicalize'}))}")],
            "dtype": [load_estimator(f"local-dir:{folder()}", dtype="bfloat16")],
            "decoder": [load_estimator(f"local-dir:{folder()}", draft=True)],
        }
        digests = {estimator.identity.digest}
        for part, estimators in others.items():
            for other in estimators:
                assert getattr(other.identity, part) != getattr(estimator.identity, part), part
                digests.add(other.identity.digest)
        assert len(digests) == 10


class TestCheckpoints:
    def test_safetensors_and_pt_give_the_same_model(self, built_in: str, tmp_path: Path, folder: Maker) -> None:
        state = weights(tiny())
        save_file(state, tmp_path / "a.safetensors")
        torch.save(state, tmp_path / "b.pt")
        torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "c.pt")
        found = [load_estimator(built_in, str(tmp_path / name)) for name in ("a.safetensors", "b.pt", "c.pt")]
        rows = [one.encode_texts(CAPTIONS) for one in found]
        assert np.array_equal(rows[0], rows[1]) and np.array_equal(rows[0], rows[2])
        assert {one.identity.weights for one in found} == {found[0].identity.weights}
        assert found[0].identity.model == f"{built_in}/a.safetensors"

    def test_code_in_a_pickle_is_not_run(self, built_in: str, tmp_path: Path) -> None:
        class Trap:
            def __reduce__(self) -> tuple[Any, ...]:
                return (Path.touch, (tmp_path / "sprung",))

        for name, write in (("new.pt", torch.save), ("old.pt", lambda v, p: p.write_bytes(pickle.dumps(v)))):
            write({"state_dict": {"a": torch.zeros(1)}, "trap": Trap()}, tmp_path / name)
            with refused("pretrained", str(tmp_path / name)) as caught:
                load_estimator(built_in, str(tmp_path / name))
            assert "UnpicklingError" in str(caught.value)
        assert not (tmp_path / "sprung").exists()

    @pytest.mark.parametrize("content", [b"", b"no weights", b"PK\x03\x04" + bytes(60)])
    @pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
    def test_file_that_is_no_checkpoint(self, built_in: str, tmp_path: Path, name: str, content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        with refused("pretrained", str(tmp_path / name)) as caught:
            load_estimator(built_in, str(tmp_path / name))
        assert "file of weights" in str(caught.value)

    def test_weights_of_another_model(self, built_in: str, tmp_path: Path) -> None:
        whole = weights(tiny())
        wider = {
            name: torch.zeros(*value.shape, 2) if name == "text_projection" else value for name, value in whole.items()
        }
        for state, words in (
            (weights(tiny(layers=1)), "it lacks"),
            (wider, "text_projection has the shape"),
            ({}, "it holds no tensors"),
        ):
            save_file(state, tmp_path / "x.safetensors")
            with refused("pretrained", str(tmp_path / "x.safetensors")) as caught:
                load_estimator(built_in, str(tmp_path / "x.safetensors"))
            assert words in str(caught.value)
            assert "Offline" not in str(caught.value)

    def test_random_weights_depend_on_the_seed_and_leave_other_randomness_alone(self, built_in: str) -> None:
        torch.manual_seed(1)
        expected = torch.rand(3)
        torch.manual_seed(1)
        first, again, other = (load_estimator(built_in, f"random:{seed}").identity for seed in (0, 0, 1))
        assert torch.equal(torch.rand(3), expected)
        assert first == again and first.digest != other.digest and first.model == f"{built_in}/random:0"

    def test_home_folder(self, built_in: str, folder: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
        path = folder()
        monkeypatch.setenv("HOME", str(path.parent))
        assert load_estimator("local-dir:~/tiny").identity.model == "local-dir:tiny"
        load_estimator(built_in, "~/tiny/open_clip_model.safetensors")


def bring_code(model: Path, folder: Path, mark: Path, **text: Any) -> str:
    """A copy of the model with a tokenizer whose module leaves a mark when it is imported; its name."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"] |= {"hf_tokenizer_name": "own", **text}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["own.Own", None]}}))
    (folder / "own.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\nclass Own: ...\n")
    return f"local-dir:{folder}"


class TestCodeOfModels:
    @pytest.mark.parametrize(
        "text",
        [
            {"tokenizer_kwargs": {"trust_remote_code": True}},
            {"tokenizer_kwargs": {"clean": "lower", "tokenizer_file": "x.py"}},
            {"more": [{"auto_map": {"AutoTokenizer": ["own.Own", None]}}]},
            {},  # transformers would ask on the terminal
        ],
    )
    def test_a_folder_that_brings_code_is_refused(
        self, folder: Maker, text: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("builtins.input", lambda *_: "y")
        name = bring_code(folder(), tmp_path / "model", tmp_path / "was-here", **text)
        with refused("model", name):
            load_estimator(name, device="cpu")
        assert not (tmp_path / "was-here").exists()


class TestRefused:
    @pytest.mark.parametrize(
        ("model", "pretrained", "setting", "words"),
        [
            ("ViT-B32", None, "model", "did you mean .*ViT-B-32.*Other kinds: embedded, hf-hub"),
            ("zzzzzz", None, "model", "try ViT-B-32"),
            ("embeded", None, "model", "did you mean embedded"),
            ("ViT-B-32", None, "pretrained", "openai"),
            ("ViT-B-32", "laion2b", "pretrained", "laion2b_s34b_b79k"),
            ("ViT-B-32", "missing/file.pt", "pretrained", "no file and no tag"),
            ("ViT-B-32", "random:x", "pretrained", "random:0"),
            ("ViT-B-32", "random:-1", "pretrained", "random:0"),
            ("embedded", "openai", "pretrained", "leave it out"),
            ("hf-hub:a/b", "openai", "pretrained", "leave it out"),
            ("hf-hub:", None, "model", "hf-hub:timm"),
            ("openai/clip-vit-base-patch32", None, "model", "use hf:openai/clip-vit-base-patch32"),
            ("ViT-B-32", "openia", "pretrained", "did you mean openai.*laion400m_e31.*datacomp_xl"),
            ("local-dir:missing", None, "model", "saved by open_clip"),
        ],
    )
    def test_names(self, model: str, pretrained: str | None, setting: str, words: str) -> None:
        with refused(setting, pretrained if setting == "pretrained" else model) as caught:
            load_estimator(model, pretrained)
        assert re.search(words, str(caught.value))

    def test_folders(self, folder: Maker, tmp_path: Path) -> None:
        with refused("model", f"local-dir:{tmp_path}"):
            load_estimator(f"local-dir:{tmp_path}")
        path = folder()
        (path / "open_clip_model.safetensors").unlink()
        with refused("model", f"local-dir:{path}"):
            load_estimator(f"local-dir:{path}")
        path = folder()
        for config in ("{", "[]", '{"model_cfg": {}}', '{"model_cfg": {"text_cfg": {}, "vision_cfg": {"x": 1}}}'):
            (path / "open_clip_config.json").write_text(config)
            with refused("model", f"local-dir:{path}"):
                load_estimator(f"local-dir:{path}")

    def test_pictures_that_are_not_square(self, folder: Maker) -> None:
        config = tiny()
        config["vision_cfg"]["image_size"] = [32, 48]
        with refused("model", (32, 48)):
            load_estimator(f"local-dir:{folder(config)}")

    @pytest.mark.parametrize(
        ("setting", "value"),
        [("device", "tpu"), ("device", "cpu:x"), ("device", ""), ("dtype", "float8"), ("batch-size", 0)],
    )
    def test_settings(self, setting: str, value: Any) -> None:
        with refused(setting, value):
            load_estimator("embedded", **{setting.replace("-", "_"): value})

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_no_gpu(self) -> None:
        with refused("device", "cuda:1"):
            load_estimator("embedded", device="cuda:1")
        assert Device.choose() == Device("cpu", "float32")


class TestTags:
    def test_weights_trained_with_quick_gelu_get_it(
        self, folder: Maker, built_in: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As ViT-B-32 with openai, whose built-in configuration says otherwise."""
        import open_clip.pretrained

        path = folder() / "open_clip_model.safetensors"
        tags = {name: {"file": str(path), "quick_gelu": name == "quick"} for name in ("quick", "usual")}
        monkeypatch.setitem(open_clip.pretrained._PRETRAINED, built_in, tags)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        quick, usual = (load_estimator(built_in, tag) for tag in ("quick", "usual"))
        assert isinstance(quick, OpenClipEstimator) and "QuickGELU" in str(quick.module)
        assert isinstance(usual, OpenClipEstimator) and "QuickGELU" not in str(usual.module)
        assert quick.identity.weights != usual.identity.weights and quick.identity.model == f"{built_in}/quick"


def test_loading_leaves_the_log_as_it_was(folder: Maker, caplog: pytest.LogCaptureFixture) -> None:
    import logging

    root = logging.getLogger()
    before = (list(root.handlers), list(root.filters), root.manager.disable)
    load_estimator(f"local-dir:{folder()}")
    assert (list(root.handlers), list(root.filters), root.manager.disable) == before
    assert caplog.records == []


class TestClassToken:
    """The last vision block computes the pooled token alone."""

    def test_same_cosines_as_the_whole_model(self, estimator: OpenClipEstimator) -> None:
        assert estimator.class_token_only
        pixels = [estimator.preprocess(picture) for picture in pictures(9)]
        texts = normalise(estimator.encode_texts(CAPTIONS))
        short = normalise(estimator.encode_pixels(pixels)) @ texts.T
        whole_way = copy.copy(estimator)
        whole_way.class_token_only = False
        whole = normalise(whole_way.encode_pixels(pixels)) @ texts.T
        assert np.abs(short - whole).max() <= 1e-6 and np.ptp(whole) > 0.01

    def test_gradients_are_those_of_the_whole_model(self, folder: Maker) -> None:
        slopes = []
        for way in (True, False):
            found = load_estimator(f"local-dir:{folder()}", device="cpu")
            assert isinstance(found, OpenClipEstimator)
            found.class_token_only = way
            found.embed_batch([found.preprocess(p) for p in pictures(2)], CAPTIONS[:2])[0].square().sum().backward()
            slopes.append({k: p.grad for k, p in found.module.visual.named_parameters()})
        for name, slope in slopes[1].items():
            assert torch.allclose(slopes[0][name], slope, rtol=1e-4, atol=1e-5), name

    @pytest.mark.parametrize("vision", [{"pool_type": "avg"}, {"attentional_pool": True, "attn_pooler_heads": 2}])
    def test_not_where_other_tokens_are_read(self, folder: Maker, vision: dict[str, Any]) -> None:
        config = tiny()
        config["vision_cfg"] |= vision
        found = load_estimator(f"local-dir:{folder(config)}", device="cpu")
        assert isinstance(found, OpenClipEstimator) and not found.class_token_only
        picture = pictures(1)[0]
        with torch.inference_mode():
            pixels = torch.tensor(found.preprocess(picture)).permute(2, 0, 1)[None] / 255
            mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (found.preprocess.mean, found.preprocess.std))
            expected = found.module.encode_image((pixels - mean) / std).numpy()
        assert np.allclose(found.encode_images([picture]), expected, atol=1e-5)


def test_pairs_are_the_two_halves(estimator: OpenClipEstimator) -> None:
    pixels = [estimator.preprocess(picture) for picture in pictures(5)]
    small = copy.copy(estimator)
    small.batch_size = 2
    images, texts = small.encode_pairs(pixels, CAPTIONS)
    assert np.array_equal(images, small.encode_pixels(pixels)) and np.array_equal(texts, small.encode_texts(CAPTIONS))


class TestLengthBatches:
    def test_texts_of_all_lengths_keep_their_places(self, estimator: OpenClipEstimator) -> None:
        texts = ["word " * (1 + 7 * i % 30) + str(i) for i in range(40)]
        with torch.inference_mode():
            whole = normalise(estimator.module.encode_text(estimator.tokenizer(texts)).numpy())
        small = copy.copy(estimator)
        small.batch_size = 6
        for found in (estimator, small):
            assert np.abs(normalise(found.encode_texts(texts)) - whole).max() <= 1e-6

    def test_no_tokens_and_ten_thousand(self, estimator: OpenClipEstimator) -> None:
        few, many = "word " * 100, "word " * 10_000  # both beyond what the model reads
        alone = [estimator.encode_texts([text])[0] for text in ("", few, many)]
        assert np.isfinite(alone).all()
        np.testing.assert_array_equal(alone[1], alone[2])
        assert np.abs(normalise(alone[0][None]) - normalise(alone[1][None])).max() > 1e-3
        together = estimator.encode_texts([many, "a red bird", "", few])
        np.testing.assert_allclose(normalise(together[[2, 3, 0]]), normalise(np.stack(alone)), atol=1e-6)

    def test_a_long_text_does_not_lengthen_the_others(self, estimator: OpenClipEstimator) -> None:
        seen = []
        watched = copy.copy(estimator)
        watched._encode_tokens = lambda t: seen.append(tuple(t.shape)) or OpenClipEstimator._encode_tokens(watched, t)  # type: ignore[method-assign, func-returns-value]
        watched.encode_texts(["a red bird", "word " * 60, "two cats", "word " * 9])
        assert seen == [(2, 5), (1, 11), (1, 40)]
