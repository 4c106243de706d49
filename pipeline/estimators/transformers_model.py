"""Models of transformers with an image and a text tower, `hf:NAME` or `hf:FOLDER`: CLIP, ALIGN, SigLIP and others.

Needs transformers 4.45 or later: 4.x gives features as tensors, 5.x as the pooler output; the tests run on 5.x.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.shards.pixels import describe_decoder
from noisegate.pipeline.shards.preprocess import ProcessorPixels
from noisegate.pipeline.system.extras import install_line

from .base import Identity, array_digest, describe_error, library_versions, normalise, surely_fits
from .device import Device, TorchEstimator
from .foreign_code import refuse_code, refuse_code_in_file
from .loading import allow_torchvision, hub_or_cache

_EXAMPLES = "hf:openai/clip-vit-base-patch32, hf:kakaobrain/align-base or hf:google/siglip-base-patch16-224"
_PROBE_TEXTS = ("a", "a red circle", "a small blue square")  # short, so that trimming changes the input


class TransformersEstimator(TorchEstimator[ProcessorPixels]):
    """A transformers dual encoder as an estimator."""

    def __init__(
        self,
        model: Any,
        processor: Any,
        name: str,
        device: Device,
        batch_size: int | None = None,
        draft: bool = False,
        decoder: str = "fast",
    ) -> None:
        self._tokenizer, tokenizer_digest = processor.tokenizer, _tokenizer_digest(processor.tokenizer)
        self._context = context_length(model, processor)
        self._model = device.place(model.float())  # version 5 loads in the checkpoint's own type, version 4 in float32
        super().__init__(device, batch_size, ProcessorPixels.of(processor.image_processor, name, draft, decoder))
        self._check_pixels(processor.image_processor, name)
        self._common_width = self._measure_width(name)
        self.trims_texts = self._trimming_is_exact()
        self.identity = Identity(
            model=name,
            weights=array_digest({k: v.detach().cpu().numpy() for k, v in model.state_dict().items()}),
            preprocess=f"{self.preprocess}; {self._context} tokens of tokenizer {tokenizer_digest}",
            decoder=describe_decoder(decoder, draft),
            dtype=device.dtype_name,
            versions=library_versions("pillow", "tokenizers", "torch", "transformers", decoder=decoder),
        )

    @classmethod
    def load(
        cls,
        spec: str,
        device: Device,
        batch_size: int | None = None,
        draft: bool = False,
        decoder: str = "fast",
    ) -> "TransformersEstimator":
        """Load `hf:NAME` from the hub or its cache, or `hf:FOLDER` as written by `save_pretrained`."""
        return cls(*load_transformers(spec), device, batch_size, draft, decoder)

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if not self.trims_texts or not texts:
            return self._in_batches(texts, lambda batch: self._encode_tokens(self.tokenize(batch)))
        whole = self._tokenizer(list(texts), truncation=True, max_length=self._context)["input_ids"]
        lengths = [len(tokens) for tokens in whole]
        return self._by_length(lengths, lambda batch: self._encode_tokens(self.tokenize([texts[i] for i in batch])))

    @property
    def temperature(self) -> float | None:
        """Return τ that the model was trained with; ALIGN stores τ itself, the other models log(1 / τ)."""
        scale, plain = (getattr(self._model, name, None) for name in ("logit_scale", "temperature"))
        if scale is not None:
            return float(torch.exp(-scale.detach().float()).max())
        return None if plain is None else float(plain.detach().float().max())

    def find_truncated(self, texts: Sequence[str]) -> list[bool]:
        """Whether each text has more tokens than the text tower's context."""
        long = [i for i, text in enumerate(texts) if not surely_fits(text, self._context)]
        cut = [False] * len(texts)
        if long:
            tokens = self._tokenizer([texts[i] for i in long], truncation=True, max_length=self._context + 1)
            for i, ids in zip(long, tokens["input_ids"], strict=True):
                cut[i] = len(ids) > self._context
        return cut

    @torch.inference_mode()
    def encode_noise(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Embed pictures uniform in [0, 1), not normalised, and texts of uniform token ids 0..99, as OSA's code does.

        If the tokenizer has an end token, the texts end in it, because some towers pool there.
        """
        crop, end = self.preprocess.crop, self._tokenizer.eos_token_id
        pictures = [rng.random((3, crop, crop), dtype=np.float32) for _ in range(count)]
        tokens = torch.from_numpy(rng.integers(0, min(100, len(self._tokenizer)), (count, self._context)))
        if end is not None:
            tokens[:, -1] = end
        images = self._in_batches(pictures, lambda batch: self._encode_image_tensor(torch.from_numpy(np.stack(batch))))
        texts = self._in_batches(list(tokens), lambda batch: self._encode_tokens({"input_ids": torch.stack(batch)}))
        return images, texts

    def tokenize(self, texts: Sequence[str]) -> dict[str, torch.Tensor]:
        """Make the inputs of the text tower, (N, L) each, padded to the longest text if that changes nothing, else in full."""
        return self._tokens(texts, "longest" if self.trims_texts else "max_length")

    def _tokens(self, texts: Sequence[str], padding: str) -> dict[str, torch.Tensor]:
        return dict(
            self._tokenizer(
                list(texts), padding=padding, truncation=True, max_length=self._context, return_tensors="pt"
            )
        )

    def _width(self) -> int:
        return self._common_width

    def _encode_image_tensor(self, batch: torch.Tensor) -> torch.Tensor:
        with self._device.autocast():
            return pooled_features(self._model.get_image_features(pixel_values=self._place(batch)))

    def _encode_tokens(self, tokens: dict[str, torch.Tensor]) -> torch.Tensor:
        with self._device.autocast():
            return pooled_features(
                self._model.get_text_features(**{k: v.to(self._device.name) for k, v in tokens.items()})
            )

    def _check_pixels(self, image_processor: Any, name: str) -> None:
        """Raise ConfigError if the processor makes other pixels of a picture than `ProcessorPixels`."""
        y, x = np.mgrid[0:90, 0:120].astype(np.float64)
        picture = Image.fromarray(np.stack([2 * x, 255 - 2 * y, x + y], axis=-1).astype(np.uint8))
        ours = self._normalise_pixels([self.preprocess(picture)]).cpu()
        theirs = torch.as_tensor(np.asarray(image_processor(images=picture, return_tensors="np")["pixel_values"]))
        # Backends of transformers differ by one or two levels of 255; a missing step makes a far larger difference.
        if theirs.shape != ours.shape or float((theirs - ours).abs().mul(self._std.cpu()).max()) > 8 / 255:
            kind = type(image_processor).__name__
            raise ConfigError.of("model", name, f"has a {kind} with unknown steps; wrap it as python:MODULE:FACTORY")

    @torch.inference_mode()
    def _measure_width(self, name: str) -> int:
        """Measure the width d of both towers' embeddings."""
        crop = self.preprocess.crop
        try:
            image = self._encode_pixel_batch([np.zeros((crop, crop, 3), np.uint8)])
            text = self._encode_tokens(self._tokens(["a"], "max_length"))
        except (RuntimeError, ValueError, IndexError) as error:
            sizes = f"{crop} px and {self._context} tokens"
            raise ConfigError.of("model", name, f"does not take {sizes}: {describe_error(error)}") from error
        if image.ndim != 2 or image.shape != text.shape:
            raise ConfigError.of("model", name, f"gives {tuple(image.shape)} and {tuple(text.shape)}; use {_EXAMPLES}")
        return int(image.shape[1])

    @torch.inference_mode()
    def _trimming_is_exact(self) -> bool:
        """Check that padding to the longest text changes no embedding, which is false if the tower reads padding (SigLIP)."""
        whole, cut = (
            normalise(self._encode_tokens(self._tokens(_PROBE_TEXTS, padding)).float().cpu().numpy())
            for padding in ("max_length", "longest")
        )
        tolerance = 1e-5 if self._device.dtype_name == "float32" else 2e-2
        return bool(np.abs(whole - cut).max() <= tolerance)


def load_transformers(spec: str, weights: bool = True) -> tuple[Any, Any, str]:
    """Load model, processor and name of `hf:NAME` or `hf:FOLDER`; without `weights` the model's weights are random."""
    allow_torchvision()  # transformers' image processors import it
    try:
        import transformers
    except ImportError as error:
        raise ConfigError.of("model", spec, f"needs transformers ({error}); {install_line('hf')}") from error
    source, name = _source(spec)
    with _quiet(transformers), contextlib.nullcontext() if Path(source).is_dir() else hub_or_cache():
        try:
            refuse_code(spec, transformers.PretrainedConfig.get_config_dict(source)[0])
            for path in sorted(Path(source).glob("*config.json")):  # of a folder
                refuse_code_in_file(spec, path)
            if weights:
                model, report = transformers.AutoModel.from_pretrained(
                    source, output_loading_info=True, trust_remote_code=False
                )
            else:
                config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
                model, report = transformers.AutoModel.from_config(config), {"missing_keys": ()}
            _check_model(model, report, spec)
            processor = transformers.AutoProcessor.from_pretrained(source, trust_remote_code=False)
        except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
            raise ConfigError.of("model", spec, f"cannot be loaded, use hf:FOLDER: {describe_error(error)}") from error
        if getattr(processor, "tokenizer", None) is None or getattr(processor, "image_processor", None) is None:
            kind = type(processor).__name__
            raise ConfigError.of("model", spec, f"has a {kind} only; save one for pictures and texts beside it")
        return model, processor, name


def pooled_features(output: Any) -> torch.Tensor:
    features: torch.Tensor = output if isinstance(output, torch.Tensor) else output.pooler_output
    return features


def _source(spec: str) -> tuple[str, str]:
    """Return the source that transformers loads, and the name for the identity; of a folder, only its last part."""
    source = spec.removeprefix("hf:")
    if not source.strip():
        raise ConfigError.of("model", spec, f"names no model; use for example {_EXAMPLES}")
    folder = Path(source).expanduser()
    if folder.is_dir():
        return str(folder), f"hf:{folder.resolve().name}"
    if source.startswith((".", "/", "~")) or source.count("/") > 1 or folder.exists():
        raise ConfigError.of("model", spec, f"is no folder that save_pretrained wrote; use one, or {_EXAMPLES}")
    return source, spec


def _check_model(model: Any, report: dict[str, Any], spec: str) -> None:
    if not (hasattr(model, "get_image_features") and hasattr(model, "get_text_features")):
        raise ConfigError.of("model", spec, f"is a {type(model).__name__} without both features; use {_EXAMPLES}")
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would fill missing weights with random numbers
        raise ConfigError.of("model", spec, f"lacks weights such as {missing[0]}; use a complete checkpoint")


def context_length(model: Any, processor: Any) -> int:
    """Return how many tokens the processor passes on and the model has positions for."""
    positions = getattr(getattr(model.config, "text_config", model.config), "max_position_embeddings", None)
    endless = "a " * (2 * (positions or 512))
    passed = len(processor(text=[endless], padding="max_length", truncation=True)["input_ids"][0])
    return min(passed, positions or passed)


def _tokenizer_digest(tokenizer: Any) -> str:
    """Return 16 hex digits of the SHA-256 of the tokenizer's rules, or of its vocabulary if it has no readable rules."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        rules = tokenizer.get_vocab()
    else:  # leave out padding and truncation, which depend on the last call
        rules = {k: v for k, v in json.loads(backend.to_str()).items() if k not in ("padding", "truncation")}
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Silence progress bars and reports while loading."""
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
