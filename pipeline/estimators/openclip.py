"""Models of open_clip: a built-in name with a pretrained tag or checkpoint, `hf-hub:`, `local-dir:`, and `embedded`."""

import difflib
import logging
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ..decode import DECODER
from ..errors import ConfigError
from ..preprocess import Preprocess
from .base import Identity, Pixels, array_digest, normalise
from .device import Device
from .torchvision_import import allow_torchvision

__all__ = ["EMBEDDED", "OpenClipEstimator"]

EMBEDDED = Path(__file__).resolve().parent.parent / "embedded"
_PROBE_TEXTS = ("a", "a red circle", "two small green triangles on the left of a wide blue square, on white paper")


class OpenClipEstimator:
    """An open_clip model behind the estimator protocol; see `load` for the names it knows."""

    def __init__(
        self,
        model: Any,
        tokenizer: Callable[[list[str]], torch.Tensor],
        name: str,
        device: Device,
        batch_size: int | None = None,
    ) -> None:
        self._device = device
        self._model = device.place(model)
        self._tokenizer = tokenizer
        self.batch_size = batch_size or device.batch_size
        self.preprocess = _preprocess_of(model)
        self._mean = torch.tensor(self.preprocess.mean, device=device.name).view(1, 3, 1, 1)
        self._std = torch.tensor(self.preprocess.std, device=device.name).view(1, 3, 1, 1)
        self._padding = int(tokenizer([""])[0, -1])
        self.trims_texts = False
        self.trims_texts = self._trimming_is_exact()
        self.identity = Identity(
            model=name,
            weights=array_digest({k: _array(v) for k, v in model.state_dict().items()}),
            preprocess=str(self.preprocess),
            decoder=DECODER,
            dtype=device.dtype_name,
            versions=tuple((p, version(p)) for p in ("open_clip_torch", "pillow", "torch")),
        )

    @classmethod
    def load(
        cls, name: str, pretrained: str | None, device: Device, batch_size: int | None = None
    ) -> "OpenClipEstimator":
        """Load by name. `pretrained` is a tag or a checkpoint file; `random:SEED` gives untrained weights for trials."""
        allow_torchvision()
        import open_clip

        source = f"local-dir:{EMBEDDED}" if name == "embedded" else name
        has_weights = source.startswith(("local-dir:", "hf-hub:"))
        _check_name(name, source, pretrained, has_weights)
        seed = _random_seed(pretrained)
        if seed is not None:
            torch.manual_seed(seed)
        logging.disable(logging.WARNING)  # open_clip reports each step on the root logger
        try:
            model = open_clip.create_model(
                source, pretrained=None if seed is not None else pretrained, require_pretrained=seed is None
            )
            tokenizer = open_clip.get_tokenizer(source)
        except (RuntimeError, ValueError, OSError, KeyError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(
                f"model {name!r}{f' with pretrained {pretrained!r}' if pretrained else ''} cannot be loaded: {reason}. "
                "Without a network, point --model at local-dir:FOLDER (open_clip_config.json and weights) "
                "or --pretrained at a checkpoint file."
            ) from error
        finally:
            logging.disable(logging.NOTSET)
        label = name if not pretrained else f"{name}/{Path(pretrained).name}"
        return cls(model.eval(), tokenizer, label, device, batch_size)

    @torch.inference_mode()
    def encode_pixels(self, pixels: Sequence[Pixels]) -> NDArray[np.float32]:
        return self._in_batches(pixels, self._encode_pixel_batch)

    def encode_images(self, images: Sequence[Image.Image]) -> NDArray[np.float32]:
        return self.encode_pixels([self.preprocess(image.convert("RGB")) for image in images])

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._in_batches(texts, lambda batch: self._encode_tokens(self.tokenize(batch)))

    @torch.inference_mode()
    def encode_noise(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Uniform noise pictures in [0, 1), not normalised, and texts of token ids uniform in 0..99, as OSA's code does."""
        size, context = self.preprocess.size, int(self._tokenizer([""]).shape[1])
        pictures = [rng.random((3, size, size), dtype=np.float32) for _ in range(count)]
        tokens = list(torch.from_numpy(rng.integers(0, 100, (count, context))))
        images = self._in_batches(pictures, lambda batch: self._encode_image_tensor(torch.from_numpy(np.stack(batch))))
        texts = self._in_batches(tokens, lambda batch: self._encode_tokens(torch.stack(batch)))
        return images, texts

    def tokenize(self, texts: Sequence[str]) -> torch.Tensor:
        """Token ids (N, L): cut to the longest text where that changes nothing, else the model's whole context."""
        tokens = self._tokenizer(list(texts))
        if not self.trims_texts:
            return tokens
        used = (tokens != self._padding).any(dim=0).nonzero()
        return tokens[:, : int(used.max()) + 1] if len(used) else tokens[:, :1]

    def _in_batches(self, items: Sequence[Any], encode: Callable[[Any], torch.Tensor]) -> NDArray[np.float32]:
        parts = [
            encode(items[start : start + self.batch_size]).float().cpu().numpy()
            for start in range(0, len(items), self.batch_size)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, self._width()), np.float32)

    def _width(self) -> int:
        return int(self._encode_tokens(self._tokenizer(["a"])).shape[1])

    def _encode_pixel_batch(self, pixels: Sequence[Pixels]) -> torch.Tensor:
        batch = torch.from_numpy(np.stack(pixels)).to(self._device.name, non_blocking=True)
        batch = batch.permute(0, 3, 1, 2).float().div_(255).sub_(self._mean).div_(self._std)
        return self._encode_image_tensor(batch)

    def _encode_image_tensor(self, batch: torch.Tensor) -> torch.Tensor:
        batch = batch.to(self._device.name).contiguous(memory_format=torch.channels_last)
        with self._device.autocast():
            features: torch.Tensor = self._model.encode_image(batch)
        return features

    def _encode_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens.to(self._device.name)
        with self._device.autocast():
            features: torch.Tensor = self._text_forward(tokens)
        return features

    def _text_forward(self, tokens: torch.Tensor) -> torch.Tensor:
        model, length = self._model, tokens.shape[1]
        if not hasattr(model, "positional_embedding") or length == model.positional_embedding.shape[0]:
            return model.encode_text(tokens)  # type: ignore[no-any-return]
        # open_clip's plain CLIP adds its whole table of positions; a shorter text takes the first rows of it and of the mask
        from open_clip.transformer import text_global_pool

        kind = model.transformer.get_cast_dtype()
        x = model.token_embedding(tokens).to(kind) + model.positional_embedding[:length].to(kind)
        mask = model.attn_mask[:length, :length] if model.attn_mask is not None else None
        x = model.ln_final(model.transformer(x, attn_mask=mask))
        x = text_global_pool(x, tokens, model.text_pool_type, eos_token_id=getattr(model, "text_eos_id", None))
        if model.text_projection is None:
            return x  # type: ignore[no-any-return]
        projection = model.text_projection
        return projection(x) if isinstance(projection, torch.nn.Linear) else x @ projection  # type: ignore[no-any-return]

    @torch.inference_mode()
    def _trimming_is_exact(self) -> bool:
        """Whether cut texts embed as whole ones do: true of causal and masked towers, not of those that read padding."""
        whole = self._encode_tokens(self._tokenizer(list(_PROBE_TEXTS))).float().cpu().numpy()
        self.trims_texts = True
        try:
            cut = self._encode_tokens(self.tokenize(_PROBE_TEXTS)).float().cpu().numpy()
        except (RuntimeError, AssertionError, IndexError):  # a tower that only takes its full context
            return False
        tolerance = 1e-5 if self._device.dtype_name == "float32" else 2e-2
        return bool(np.abs(normalise(whole) - normalise(cut)).max() <= tolerance)


def _preprocess_of(model: Any) -> Preprocess:
    config = model.visual.preprocess_cfg
    size = config.get("size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    if height != width:
        raise ConfigError(
            f"the model takes pictures of {height} x {width}; noisegate knows square ones, such as 224 x 224"
        )
    return Preprocess(
        size=height,
        resize=config.get("resize_mode") or "shortest",
        interpolation=config.get("interpolation") or "bicubic",
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        fill=config.get("fill_color") or 0,
    )


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    tensor = tensor.detach().cpu()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _random_seed(pretrained: str | None) -> int | None:
    if pretrained is None or not pretrained.startswith("random:"):
        return None
    seed = pretrained.removeprefix("random:")
    if not seed.isdigit():
        raise ConfigError(f"pretrained {pretrained!r}: the seed must be a number, such as random:0")
    return int(seed)


def _check_name(name: str, source: str, pretrained: str | None, has_weights: bool) -> None:
    """Refuse what open_clip would only stumble over later, and say what would work."""
    import open_clip

    if has_weights:
        if pretrained is not None:
            raise ConfigError(f"model {name!r} brings its own weights; leave out pretrained ({pretrained!r})")
        folder = Path(source.removeprefix("local-dir:"))
        if source.startswith("local-dir:") and not (folder / "open_clip_config.json").is_file():
            raise ConfigError(
                f"model {name!r}: {folder} holds no open_clip_config.json; give a folder saved by open_clip"
            )
        return
    if name not in open_clip.list_models():
        close = difflib.get_close_matches(name, open_clip.list_models(), 3, 0.4)
        raise ConfigError(
            f"model {name!r} is unknown; {'did you mean ' + ', '.join(close) + '?' if close else 'try ViT-B-32'} "
            "Other kinds: embedded, hf-hub:ORG/NAME, local-dir:FOLDER, hf:NAME, python:MODULE:FACTORY"
        )
    tags = open_clip.list_pretrained_tags_by_model(name)
    if pretrained is None:
        raise ConfigError(
            f"model {name!r} needs pretrained weights; use one of {', '.join(tags[:6]) or 'its checkpoints'}, or a file"
        )
    if _random_seed(pretrained) is None and pretrained not in tags and not Path(pretrained).is_file():
        close = difflib.get_close_matches(pretrained, tags, 3, 0.3) or tags[:6]
        raise ConfigError(
            f"pretrained {pretrained!r} is neither a file nor a tag of {name}; tags: {', '.join(close) or 'none'}"
        )
