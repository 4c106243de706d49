"""Models of open_clip: a built-in name with a pretrained tag or checkpoint, `hf-hub:`, `local-dir:`, and `embedded`."""

import contextlib
import itertools
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.shards.pixels import describe_decoder
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.pipeline.system.output_files import write_atomically

from . import openclip_towers as towers
from .base import Identity, Pixels, array_digest, describe_error, library_versions, surely_fits
from .clip_tokens import speed_up
from .device import Device, TorchEstimator
from .foreign_code import never_ask_to_run_code, refuse_code_in_file
from .light_import import import_open_clip, needs_other_libraries
from .loading import find_mismatch, hub_or_cache, quietly, weights_only
from .openclip_names import check_name, needs_hub, open_clip_source, random_seed, short_name

_ODD_TEXTS = ("A photo of the CAT,  3 dogs & naïve cafés: https://x.org/?q=1 \u2014 \u732b!", "word " * 300)


class OpenClipEstimator(TorchEstimator[Preprocess]):
    """An open_clip model as an estimator. `notes` are lines for the user and the run's record, such as the `compiler`'s."""

    def __init__(
        self,
        model: Any,
        tokenizer: Callable[..., torch.Tensor],
        name: str,
        device: Device,
        batch_size: int | None = None,
        config: dict[str, Any] | None = None,
        draft: bool = False,
        compiler: towers.Compiler | None = None,
        decoder: str = "fast",
    ) -> None:
        super().__init__(device, batch_size, preprocess_of(model, draft, decoder))
        self._model = device.place(model)
        self._open_clip_tokenizer, self._tokenizer = tokenizer, speed_up(tokenizer)
        self.config = config  # open_clip's, as needed to build the model again
        self._padding = int(tokenizer([""])[0, -1])
        self._short_texts: frozenset[str] = frozenset()  # texts of the last call that are shorter than the context
        self.trims_texts = towers.trimming_is_exact(self._model, tokenizer, device.name)
        self.class_token_only = towers.reads_class_token_only(self._model, self.preprocess.size, device.name)
        trial = self._try_out(compiler) if compiler else None
        self._compiled = trial.encode if trial else None
        self.notes: tuple[str, ...] = (trial.line,) if trial else ()
        weights = {name: _array(tensor) for name, tensor in model.state_dict().items()}
        architecture = np.frombuffer(json.dumps(config, sort_keys=True).encode(), np.uint8)
        self.identity = Identity(
            model=name,
            weights=array_digest(weights | {"config": architecture}),
            preprocess=f"{self.preprocess}; {_describe_tokenizer(tokenizer)}",
            decoder=describe_decoder(decoder, draft),
            dtype=device.dtype_name,
            versions=library_versions("open_clip_torch", "pillow", "torch", decoder=decoder),
        )

    @classmethod
    def load(
        cls,
        name: str,
        pretrained: str | None,
        device: Device,
        batch_size: int | None = None,
        draft: bool = False,
        compile: bool = False,
        decoder: str = "fast",
    ) -> "OpenClipEstimator":
        """Load by name. `pretrained` is a tag or a checkpoint file; `random:SEED` gives untrained weights for trials."""
        source = open_clip_source(name)
        open_clip = import_open_clip(source)
        pretrained = str(Path(pretrained).expanduser()) if pretrained else None
        check_name(name, source, pretrained)
        seed = random_seed(pretrained)
        tag = open_clip.get_pretrained_cfg(name, pretrained) if pretrained else {}
        quick = bool(tag.get("quick_gelu"))  # these weights need it, even if the built-in configuration does not say so
        problem = None
        try:
            with quietly(), weights_only(), contextlib.ExitStack() as stack:
                if needs_hub(source, bool(tag)):
                    problem = stack.enter_context(hub_or_cache())
                if source.startswith("local-dir:"):
                    refuse_code_in_file(name, Path(source.removeprefix("local-dir:")) / CONFIG_FILE)
                elif source.startswith("hf-hub:"):
                    from huggingface_hub import hf_hub_download

                    refuse_code_in_file(name, Path(hf_hub_download(source.removeprefix("hf-hub:"), CONFIG_FILE)))
                if needs_other_libraries(source):
                    stack.enter_context(never_ask_to_run_code())
                if seed is not None:
                    stack.enter_context(torch.random.fork_rng(devices=[]))
                    torch.manual_seed(seed)
                model = open_clip.create_model(
                    source,
                    pretrained=None if seed is not None else pretrained,
                    require_pretrained=seed is None,
                    force_quick_gelu=quick,
                    pretrained_text=False,
                )
                tokenizer = open_clip.get_tokenizer(source)
                config = {**(open_clip.get_model_config(source) or {}), **({"quick_gelu": True} if quick else {})}
        except ConfigError:
            raise
        except Exception as error:  # three libraries read an unknown checkpoint: the error may be of any type
            if pretrained and Path(pretrained).is_file():
                reason = find_mismatch(Path(pretrained), lambda: open_clip.create_model(source, pretrained=None))
                raise ConfigError.of(
                    "pretrained", pretrained, f"is no checkpoint of {name}: {reason or describe_error(error)}"
                ) from error
            reason = f"{f'{problem}; ' if problem else ''}{describe_error(error)}"
            advice = ". Offline, use --model local-dir:FOLDER or --pretrained FILE" if problem else ""
            weights = f"with pretrained {pretrained!r} " if pretrained else ""
            raise ConfigError.of("model", name, f"{weights}cannot be loaded: {reason}{advice}") from error
        label = short_name(name) if not pretrained else f"{name}/{Path(pretrained).name}"
        compiler = towers.Compiler(towers.torch_compile) if compile else None
        return cls(model.eval(), tokenizer, label, device, batch_size, config, draft, compiler, decoder)

    @property
    def module(self) -> Any:
        """The open_clip model itself, in evaluation mode."""
        return self._model

    @property
    def tokenizer(self) -> Any:
        """The open_clip tokenizer."""
        return self._open_clip_tokenizer

    def embed_batch(self, pixels: Sequence[Pixels], texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Embed one batch of pairs with gradients; the embeddings are not normalised."""
        return self._encode_pixel_batch(pixels), self._encode_tokens(self.tokenize(texts))

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}  # a repeated text is encoded once
        if not rows:
            return np.zeros((0, self._width()), np.float32)
        tokens = self._tokenizer(list(rows))
        self._short_texts = frozenset(itertools.compress(rows, (tokens[:, -2:] == self._padding).all(dim=1).tolist()))
        lengths = (tokens != self._padding).sum(dim=1).tolist() if self.trims_texts else [0] * len(tokens)
        embedded = self._by_length(lengths, lambda batch: self._encode_tokens(self._trim(tokens[batch])))
        return embedded[[rows[text] for text in texts]] if len(rows) < len(texts) else embedded

    @property
    def temperature(self) -> float | None:
        """τ that the model was trained with: 1 / exp(logit_scale)."""
        scale = getattr(self._model, "logit_scale", None)
        return None if scale is None else float(torch.exp(-scale.detach().float()).max())

    def find_truncated(self, texts: Sequence[str]) -> list[bool]:
        """Whether each text has more tokens than the text tower's context.

        Texts that were just encoded and are shorter than the context are not tokenized again.
        """
        context = int(self._tokenizer([""]).shape[1])
        unknown = (text for text in dict.fromkeys(texts) if text not in self._short_texts)
        doubtful = [text for text in unknown if not surely_fits(text, context)]
        if not doubtful:
            return [False] * len(texts)
        tokens = self._tokenizer(doubtful)
        longer = self._tokenizer(doubtful, context_length=context + 1)  # differs only for a cut text
        differs = (longer[:, :context] != tokens).any(dim=1) | (longer[:, context] != self._padding)
        cut = set(itertools.compress(doubtful, differs.tolist()))
        return [text in cut for text in texts]

    @torch.inference_mode()
    def encode_pairs(
        self, pixels: Sequence[Pixels], texts: Sequence[str]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Encode pixels and texts; a GPU encodes the pictures while this process tokenizes the texts."""
        size = self.batch_size
        begun = [self._encode_pixel_batch(pixels[start : start + size]) for start in range(0, len(pixels), size)]
        rows = self.encode_texts(texts)
        return np.concatenate([images.float().cpu().numpy() for images in begun]), rows

    @torch.inference_mode()
    def encode_noise(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Embed uniform noise pictures in [0, 1), not normalised, and texts of uniform token ids 0..99, as OSA's code does."""
        size, context = self.preprocess.size, int(self._tokenizer([""]).shape[1])

        def pictures(numbers: Sequence[int]) -> torch.Tensor:
            return torch.from_numpy(rng.random((len(numbers), 3, size, size), dtype=np.float32))

        images = self._in_batches(range(count), lambda numbers: self._encode_image_tensor(pictures(numbers)))
        tokens = torch.from_numpy(rng.integers(0, 100, (count, context)))
        return images, self._in_batches(tokens, self._encode_tokens)  # type: ignore[arg-type]

    def tokenize(self, texts: Sequence[str]) -> torch.Tensor:
        """Return token ids (N, L), trimmed to the longest text if that changes no embedding, else of the full context."""
        return self._trim(self._tokenizer(list(texts)))

    def _trim(self, tokens: torch.Tensor) -> torch.Tensor:
        return towers.trim(tokens, self._padding) if self.trims_texts else tokens

    def _width(self) -> int:
        return int(self._encode_tokens(self._tokenizer(["a"])).shape[1])

    def _encode_image_tensor(self, batch: torch.Tensor) -> torch.Tensor:
        batch = self._place(batch)
        with self._device.autocast():
            if self._compiled is not None:
                return self._compiled(batch)
            return towers.encode_image(self._model, batch, self.class_token_only)

    @torch.inference_mode()
    def _try_out(self, compiler: towers.Compiler) -> towers.Trial:
        """Compile the vision tower and compare it with the eager one on typical batches."""
        count = min(self.batch_size, 8) if self._device.name == "cpu" else self.batch_size
        batches = [self._place(batch) for batch in towers.probe_batches(self.preprocess.size, count)]
        eager = partial(towers.encode_image, self._model, class_token_only=self.class_token_only)
        few = batches[0][:8]  # a whole batch of float32 may not fit
        exact = eager(few)
        with self._device.autocast():
            return compiler.try_out(eager, batches, towers.tolerance_for(exact, eager(few)))

    def _encode_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        with self._device.autocast():
            return towers.encode_tokens(self._model, tokens.to(self._device.name))


def preprocess_of(model: Any, draft: bool = False, decoder: str = "pillow") -> Preprocess:
    """Return the preprocessing of an open_clip model."""
    config = model.visual.preprocess_cfg
    size = config.get("size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    if height != width:
        raise ConfigError.of("model", (height, width), "pixels are not square; use a model of square pictures")
    return Preprocess(
        size=height,
        resize=config.get("resize_mode") or "shortest",
        interpolation=config.get("interpolation") or "bicubic",
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        fill=config.get("fill_color") or 0,
        draft=draft,
        decoder=decoder,
    )


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    tensor = tensor.detach().cpu()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _describe_tokenizer(tokenizer: Callable[[list[str]], torch.Tensor]) -> str:
    """Name a tokenizer by its context length and a digest of the tokens of some texts."""
    tokens = tokenizer([*towers.PROBE_TEXTS, *_ODD_TEXTS])
    return f"{tokens.shape[1]} tokens of tokenizer {array_digest({'tokens': tokens.numpy()})[:16]}"


CONFIG_FILE = "open_clip_config.json"
WEIGHTS_FILE = "open_clip_model.safetensors"


def save_local_dir(estimator: OpenClipEstimator, folder: Path) -> None:
    """Write configuration, weights and, where the model has its own, the tokenizer."""
    if not estimator.config:
        raise ConfigError.of("model", estimator.identity.model, "has no configuration; load it with load_estimator")
    config = {"model_cfg": estimator.config, "preprocess_cfg": dict(estimator.module.visual.preprocess_cfg)}
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(estimator.tokenizer, "save_pretrained"):  # a tokenizer of the hub; CLIP's own comes with open_clip
        estimator.tokenizer.save_pretrained(folder)
    state = {  # clones, because safetensors refuses tensors that share memory
        key: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, tensor in estimator.module.state_dict().items()
    }
    write_atomically(folder / WEIGHTS_FILE, save(state, metadata={"format": "pt"}))
    write_atomically(folder / CONFIG_FILE, (json.dumps(config, indent=2) + "\n").encode())
