"""Translate names of open_clip models, and refuse with a hint those that cannot work."""

import difflib
from pathlib import Path

from noisegate.pipeline.errors import ConfigError, did_you_mean

EMBEDDED = Path(__file__).resolve().parent / "embedded"
_OTHER_KINDS = "embedded, hf-hub:ORG/NAME, local-dir:FOLDER, hf:NAME, python:MODULE:FACTORY"
_WEIGHTS = (".safetensors", ".bin", ".pth")  # file endings that open_clip looks for in a folder


def open_clip_source(name: str) -> str:
    """Translate to the name that open_clip takes."""
    if name == "embedded":
        return f"local-dir:{EMBEDDED}"
    if name.startswith("local-dir:"):
        return f"local-dir:{Path(name.removeprefix('local-dir:')).expanduser()}"
    return name


def short_name(name: str) -> str:
    """Shorten a name for the identity: of a folder only the last part is kept.

    >>> short_name("local-dir:/models/small"), short_name("hf-hub:org/name")
    ('local-dir:small', 'hf-hub:org/name')
    """
    if not name.startswith("local-dir:"):
        return name
    return f"local-dir:{Path(name.removeprefix('local-dir:')).expanduser().resolve().name}"


def random_seed(pretrained: str | None) -> int | None:
    """Parse the seed of `random:SEED`, which means untrained weights; None for anything else."""
    if pretrained is None or not pretrained.startswith("random:"):
        return None
    seed = pretrained.removeprefix("random:")
    if not (seed.isascii() and seed.isdigit() and int(seed) < 2**63):
        raise ConfigError.of("pretrained", pretrained, "needs a number as its seed, such as random:0")
    return int(seed)


def needs_hub(source: str, is_tag: bool) -> bool:
    """Return whether weights or tokenizer may have to be downloaded."""
    import open_clip

    if source.startswith("local-dir:"):
        return False
    text = (open_clip.get_model_config(source) or {}).get("text_cfg", {}) if not source.startswith("hf-hub:") else {}
    return is_tag or source.startswith("hf-hub:") or bool({"hf_tokenizer_name", "hf_model_name"} & set(text))


def check_name(name: str, source: str, pretrained: str | None) -> None:
    """Raise ConfigError for names on which open_clip would fail later; the message says what works."""
    import open_clip

    if source.startswith(("local-dir:", "hf-hub:")):
        if pretrained is not None:
            raise ConfigError.of("pretrained", pretrained, f"is not for {name}, which has weights; leave it out")
        if source.startswith("local-dir:"):
            _check_folder(name, Path(source.removeprefix("local-dir:")))
        elif "/" not in source:
            raise ConfigError.of("model", name, "names no model; use one such as hf-hub:timm/ViT-B-16-SigLIP")
        return
    if name not in open_clip.list_models():
        if name.count("/") == 1:  # a name of the hub
            raise ConfigError.of(
                "model", name, f"needs its library: use hf:{name} (transformers) or hf-hub:{name} (open_clip)"
            )
        close = difflib.get_close_matches(name, [*open_clip.list_models(), "embedded"], 3, 0.4)
        hint = f"did you mean {', '.join(close)}?" if close else "try ViT-B-32."
        raise ConfigError.of("model", name, f"is unknown; {hint} Other kinds: {_OTHER_KINDS}")
    tags = open_clip.list_pretrained_tags_by_model(name)
    if pretrained is None:
        raise ConfigError(f"pretrained is missing for {name}; use {', '.join(tags) or 'a file'}", "pretrained")
    if random_seed(pretrained) is None and pretrained not in tags and not Path(pretrained).is_file():
        near = did_you_mean(pretrained, tags)
        raise ConfigError.of(
            "pretrained", pretrained, f"is no file and no tag{near or '.'} Tags of {name}: {', '.join(tags) or 'none'}"
        )


def _check_folder(name: str, folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"model {name!r}: there is no folder {folder}; give one saved by open_clip", "model", name)
    if not (folder / "open_clip_config.json").is_file():
        raise ConfigError.of("model", name, "holds no open_clip_config.json; give a folder saved by open_clip")
    if not any(path.suffix in _WEIGHTS for path in folder.iterdir()):
        raise ConfigError.of("model", name, "holds no weights; put open_clip_model.safetensors beside its config")
