"""An open_clip model as a folder that `local-dir:FOLDER` loads."""

import json
from pathlib import Path

import torch
from safetensors.torch import save

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.output_files import write_atomically

from .openclip import OpenClipEstimator

__all__ = ["CONFIG_FILE", "WEIGHTS_FILE", "save_local_dir"]

CONFIG_FILE = "open_clip_config.json"
WEIGHTS_FILE = "open_clip_model.safetensors"


def save_local_dir(estimator: OpenClipEstimator, folder: Path) -> None:
    """Write configuration, weights and, where the model has its own, the tokenizer."""
    if not estimator.config:
        raise ConfigError(
            f"model {estimator.identity.model!r}: it was loaded without its configuration; use load_estimator"
        )
    config = {"model_cfg": estimator.config, "preprocess_cfg": dict(estimator.module.visual.preprocess_cfg)}
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(estimator.tokenizer, "save_pretrained"):  # those of the hub; CLIP's own comes with open_clip
        estimator.tokenizer.save_pretrained(folder)
    state = {  # clones, because safetensors refuses tensors that share memory
        key: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, tensor in estimator.module.state_dict().items()
    }
    write_atomically(folder / WEIGHTS_FILE, save(state, metadata={"format": "pt"}))
    write_atomically(folder / CONFIG_FILE, (json.dumps(config, indent=2) + "\n").encode())
