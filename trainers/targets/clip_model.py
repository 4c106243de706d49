"""open_clip models to train: loaded with their weights, or built from a configuration alone."""

import json
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators.device import Device
from noisegate.pipeline.estimators.loading import allow_torchvision, quietly
from noisegate.pipeline.estimators.openclip import CONFIG_FILE, OpenClipEstimator
from noisegate.pipeline.estimators.openclip_names import check_name, open_clip_source

from .clip_tokens import ClipVocabulary, clip_tokenizer

__all__ = ["architecture_of", "built_in", "construct", "load"]


def built_in(name: str) -> bool:
    """Whether the name is one of open_clip's own configurations, which come without weights."""
    return name != "embedded" and not name.startswith(("local-dir:", "hf-hub:"))


def load(name: str, pretrained: str | None) -> tuple[Any, Any, dict[str, Any]]:
    """Model, tokenizer and architecture, as the estimators load them."""
    estimator = OpenClipEstimator.load(name, pretrained, Device("cpu", "float32"))
    return estimator.module, estimator.tokenizer, dict(estimator.config or {})


def architecture_of(name: str, preprocess: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """model_cfg and preprocess_cfg of a named model, without its weights."""
    allow_torchvision()
    import open_clip

    source = open_clip_source(name)
    if source.startswith("local-dir:"):
        file = Path(source.removeprefix("local-dir:")) / CONFIG_FILE
        if not file.is_file():
            raise ConfigError(f"target.model={name!r}: there is no {file}; give a folder saved by open_clip")
        content = json.loads(file.read_text())
        return content["model_cfg"], preprocess or content.get("preprocess_cfg", {})
    if source.startswith("hf-hub:"):
        raise ConfigError(
            f"target.model={name!r} cannot be built without its weights; use a plain name, such as ViT-B-32"
        )
    check_name(name, source, "random:0")
    return dict(open_clip.get_model_config(name)), preprocess or {}


def construct(
    architecture: dict[str, Any], preprocess: dict[str, Any], vocabulary: ClipVocabulary, name: str
) -> tuple[nn.Module, Any]:
    """A model with random weights, drawn from torch's global generator, and its tokenizer."""
    allow_torchvision()
    import open_clip

    text = dict(architecture.get("text_cfg", {}))
    if vocabulary.ids:
        text["vocab_size"] = vocabulary.size
    own_tokens = {"hf_tokenizer_name", "hf_model_name", "tokenizer_kwargs"} & set(text)
    with tempfile.TemporaryDirectory() as folder, quietly():
        # a folder with a configuration is the one way in that knows every kind of open_clip model
        content = {"model_cfg": {**architecture, "text_cfg": text}, "preprocess_cfg": _sized(preprocess, architecture)}
        Path(folder, CONFIG_FILE).write_text(json.dumps(content))
        try:
            model = open_clip.create_model(f"local-dir:{folder}", load_weights=False, pretrained_text=False)
            if own_tokens:
                tokenizer = open_clip.get_tokenizer(name or f"local-dir:{folder}")
            else:
                tokenizer = clip_tokenizer(text.get("context_length", 77))
        except (TypeError, ValueError, KeyError, AssertionError, RuntimeError) as error:
            raise ConfigError(
                f"target.architecture: open_clip cannot build it ({type(error).__name__}: {error}); give embed_dim, "
                "vision_cfg and text_cfg as in open_clip's model configurations"
            ) from error
    return model, tokenizer


def _sized(preprocess: dict[str, Any], architecture: dict[str, Any]) -> dict[str, Any]:
    return {"size": architecture.get("vision_cfg", {}).get("image_size", 224), **preprocess}
