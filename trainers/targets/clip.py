"""A CLIP of open_clip: fine-tune all of it, its visual tower or its heads only, or train from scratch."""

import copy
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators import (
    CONFIG_FILE,
    Device,
    OpenClipEstimator,
    allow_torchvision,
    check_name,
    encode_tokens,
    never_ask_to_run_code,
    open_clip_source,
    preprocess_of,
    quietly,
    refuse_code,
    save_local_dir,
    trimming_is_exact,
)

from .base import Encoded, Target, TargetConfig, unit
from .pictures import Augment, PictureTransform
from .texts import ClipTokenizer, ClipVocabulary, clip_tokenizer, with_all_tokens

_HEADS = ("proj", "ln_post", "attnpool", "head", "text_projection", "ln_final", "logit_scale", "logit_bias")


class ClipConfig(TargetConfig):
    """Settings of `clip`: a `model` of open_clip by name, or a custom `architecture` to train from scratch."""

    name: Literal["clip"] = "clip"
    model: str | None = None
    """a name such as ViT-B-32, `embedded`, `local-dir:FOLDER` or `hf-hub:ORG/NAME`"""
    pretrained: str | None = None
    """a tag or a checkpoint file; `random`, or nothing after a plain name, trains from scratch"""
    architecture: dict[str, Any] | None = None
    """open_clip's model_cfg: embed_dim, vision_cfg, text_cfg"""
    preprocess: dict[str, Any] | None = None
    """open_clip's preprocess_cfg: mean, std, interpolation, resize_mode"""
    train: Literal["all", "visual", "heads"] = "all"
    last_layers: int = Field(default=0, ge=0)
    """with train: heads, how many of the last blocks of each tower are trained too"""
    learn_scale: bool = True
    augment: Augment = Augment()
    vocabulary: ClipVocabulary = ClipVocabulary()

    @model_validator(mode="after")
    def _one_source(self) -> "ClipConfig":
        if self.model is None and self.architecture is None:
            raise ValueError("give model, for example embedded or ViT-B-32, or an architecture")
        if self.model is None and self.pretrained not in (None, "random"):
            raise ValueError("pretrained weights need a model's name; with architecture alone, leave pretrained out")
        return self

    @property
    def from_scratch(self) -> bool:
        """Whether training begins with random weights."""
        return (
            self.model is None or self.pretrained == "random" or (self.pretrained is None and _is_built_in(self.model))
        )


class Clip(Target):
    """Images uint8 (B, 3, H, W), tokens (B, L), vectors (B, embed_dim); similarity is the cosine."""

    config: ClipConfig

    def __init__(self, config: ClipConfig, weights: bool = True) -> None:
        if config.vocabulary.kind == "captions" and not config.from_scratch:
            problem = f"leaves out tokens that {config.model} has learnt; use kind: full, or pretrained: random"
            raise ConfigError.of("target.vocabulary.kind", config.vocabulary.kind, problem)
        if weights and not config.from_scratch:
            model, tokenizer, architecture = _load(str(config.model), config.pretrained)
            preprocess = dict(model.visual.preprocess_cfg)
        else:
            if config.architecture is not None:
                architecture, preprocess = config.architecture, config.preprocess or {}
            else:
                architecture, preprocess = _architecture_of(str(config.model), config.preprocess)
            model, tokenizer = _construct(architecture, preprocess, config.vocabulary, str(config.model or ""))
        recorded = {"architecture": architecture, "preprocess": preprocess}  # so that a checkpoint needs no other file
        super().__init__(config.model_copy(update=recorded))
        self.model = model
        self.preprocess = preprocess_of(model, decoder="fast")
        self._full_tokenizer = tokenizer
        whole = ClipTokenizer(tokenizer, config.vocabulary.ids, trim=False)
        was_training = model.training
        trim = trimming_is_exact(model.eval(), whole, "cpu")
        model.train(was_training)
        self.tokenizer = ClipTokenizer(tokenizer, config.vocabulary.ids, trim=trim)
        self.width = int(architecture["embed_dim"])
        self.scale_pixels(self.preprocess)
        self._freeze()

    def image_transform(self, train: bool) -> Callable[..., Tensor]:
        return PictureTransform(self.preprocess, self.config.augment if train else None)

    def encode_images(self, images: Tensor) -> Encoded:
        return {"vectors": unit(self.model.encode_image(self.pixels(images)))}

    def encode_texts(self, tokens: Tensor) -> Encoded:
        return {"vectors": unit(encode_tokens(self.model, tokens))}

    @property
    def logit_scale(self) -> nn.Parameter:
        scale: nn.Parameter = self.model.logit_scale
        return scale

    def export(self, folder: Path) -> None:
        """Save as a folder that open_clip, and noisegate as an estimator, load by `local-dir:FOLDER`."""
        model = copy.deepcopy(self.model).cpu()
        architecture: dict[str, Any] = copy.deepcopy(self.config.architecture or {})
        if self.config.vocabulary.ids:
            with_all_tokens(model, self.config.vocabulary.ids, int(architecture["text_cfg"]["vocab_size"]))
        name = self.config.model or "clip"
        estimator = OpenClipEstimator(model, self._full_tokenizer, name, Device("cpu", "float32"), config=architecture)
        save_local_dir(estimator, Path(folder))

    def _freeze(self) -> None:
        config = self.config
        if config.train != "all":
            kept = _head_names(self.model, config.last_layers) if config.train == "heads" else None
            for name, parameter in self.model.named_parameters():
                visual = name.startswith("visual.") or name == "logit_scale"
                parameter.requires_grad_(visual if kept is None else name in kept)
        if not config.learn_scale:
            self.logit_scale.requires_grad_(False)


def _head_names(model: nn.Module, last_layers: int) -> set[str]:
    """List the names of projections, final norms and poolings, and of the last blocks of both towers."""
    names = [name for name, _ in model.named_parameters()]
    kept = {name for name in names if any(part in _HEADS for part in name.split(".")[:3])}
    for stack in (
        "visual.transformer.resblocks",
        "visual.trunk.blocks",
        "transformer.resblocks",
        "text.transformer.resblocks",
    ):
        inside = [name for name in names if name.startswith(stack + ".")]
        last = max((int(name.removeprefix(stack + ".").split(".")[0]) for name in inside), default=-1)
        wanted = {f"{stack}.{number}." for number in range(last - last_layers + 1, last + 1)}
        kept.update(name for name in inside if name.startswith(tuple(wanted)))
    stages = [f"visual.layer{number}." for number in range(4, max(0, 4 - last_layers), -1)]  # stages of a ResNet
    kept.update(name for name in names if name.startswith(tuple(stages)))
    return kept


def _is_built_in(name: str) -> bool:
    """Return whether the name is one of open_clip's own configurations, which have no weights."""
    return name != "embedded" and not name.startswith(("local-dir:", "hf-hub:"))


def _load(name: str, pretrained: str | None) -> tuple[Any, Any, dict[str, Any]]:
    """Load model, tokenizer and architecture as the estimators do."""
    estimator = OpenClipEstimator.load(name, pretrained, Device("cpu", "float32"))
    return estimator.module, estimator.tokenizer, dict(estimator.config or {})


def _architecture_of(name: str, preprocess: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return model_cfg and preprocess_cfg of a named model, without its weights."""
    allow_torchvision()
    import open_clip

    source = open_clip_source(name)
    if source.startswith("local-dir:"):
        file = Path(source.removeprefix("local-dir:")) / CONFIG_FILE
        if not file.is_file():
            raise ConfigError.of("target.model", name, f"has no {file}; give a folder saved by open_clip")
        content = json.loads(file.read_text())
        return content["model_cfg"], preprocess or content.get("preprocess_cfg", {})
    if source.startswith("hf-hub:"):
        problem = "cannot be built without its weights; use a plain name, such as ViT-B-32"
        raise ConfigError.of("target.model", name, problem)
    check_name(name, source, "random:0")
    return dict(open_clip.get_model_config(name)), preprocess or {}


def _construct(
    architecture: dict[str, Any], preprocess: dict[str, Any], vocabulary: ClipVocabulary, name: str
) -> tuple[nn.Module, Any]:
    """Build a model with random weights, drawn from torch's global generator, and its tokenizer."""
    allow_torchvision()
    import open_clip

    text = dict(architecture.get("text_cfg", {}))
    if vocabulary.ids:
        text["vocab_size"] = vocabulary.size
    refuse_code(name, architecture)
    own_tokens = {"hf_tokenizer_name", "hf_model_name", "tokenizer_kwargs"} & set(text)
    with tempfile.TemporaryDirectory() as folder, quietly(), never_ask_to_run_code():
        # only loading from a folder with a configuration supports every kind of open_clip model
        sized = {"size": architecture.get("vision_cfg", {}).get("image_size", 224), **preprocess}
        content = {"model_cfg": {**architecture, "text_cfg": text}, "preprocess_cfg": sized}
        Path(folder, CONFIG_FILE).write_text(json.dumps(content))
        try:
            model = open_clip.create_model(f"local-dir:{folder}", load_weights=False, pretrained_text=False)
            if own_tokens:
                tokenizer = open_clip.get_tokenizer(name or f"local-dir:{folder}")
            else:
                tokenizer = clip_tokenizer(text.get("context_length", 77))
        except (TypeError, ValueError, KeyError, AssertionError, RuntimeError) as error:
            problem = f"is not for open_clip ({type(error).__name__}: {error}); give embed_dim, vision_cfg and text_cfg"
            raise ConfigError.of("target.architecture", architecture, problem) from error
    return model, tokenizer
