"""Build targets by name from a checked configuration, save them as one safetensors file, and load them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from noisegate.pipeline.errors import ConfigError, did_you_mean
from noisegate.pipeline.system import write_atomically

from .base import Encoded, Target, TargetConfig

# name -> module and class; the Config class is in the same module.
TARGETS: Mapping[str, tuple[str, str]] = {
    "clip": ("noisegate.trainers.targets.clip", "Clip"),
    "dual": ("noisegate.trainers.targets.dual", "Dual"),
    "hf": ("noisegate.trainers.targets.hf", "Hf"),
    "scan": ("noisegate.trainers.targets.scan", "Scan"),
    "sgraf": ("noisegate.trainers.targets.sgraf", "Sgraf"),
    "video": ("noisegate.trainers.targets.video", "Video"),
}


def target_config(config: TargetConfig | Mapping[str, Any]) -> TargetConfig:
    """Check a configuration; raise a one-line ConfigError if it cannot work."""
    if isinstance(config, TargetConfig):
        return config
    name = config.get("name")
    if not isinstance(name, str) or name not in TARGETS:
        problem = f"is unknown; use one of {', '.join(TARGETS)}{did_you_mean(name, TARGETS)}"
        raise ConfigError.of("target.name", name, problem)
    kind: type[TargetConfig] = _class(str(name), "Config")
    try:
        return kind.model_validate(dict(config))
    except ValidationError as error:
        raise _config_error(error, kind) from error


def resolve_target(
    config: TargetConfig | Mapping[str, Any], captions: Callable[[], Iterable[str]] | None = None
) -> TargetConfig:
    """Return the configuration with the values that depend on the data filled in: vocabulary, class names.

    `captions` returns the training captions and is called only if the vocabulary is still open. Building from the result needs
    no data, so a run records it.
    """
    checked = target_config(config)
    classes = checked.class_set()
    if classes is not None and isinstance(checked.classes, str):
        more = tuple(sentences[len(checked.prompts) :] for sentences in classes.prompts)
        checked = checked.model_copy(update={"classes": classes.names, "descriptions": more if any(more) else ()})
    vocabulary = getattr(checked, "vocabulary", None)
    if vocabulary is not None and vocabulary.is_open:
        if captions is None:
            problem = (
                "target.vocabulary takes its words from captions, and there are none; give words, or kind: hashing"
            )
            raise ConfigError(problem, "target.vocabulary")
        prompts = classes.anchors if classes is not None else ()
        checked = checked.model_copy(update={"vocabulary": vocabulary.filled(captions(), always=prompts)})
    return checked


def build_target(config: TargetConfig | Mapping[str, Any], *, seed: int = 0, weights: bool = True) -> Target:
    """Build a target. The same seed gives the same random weights; global random generators do not change.

    weights=False skips weights from files or a hub, if a checkpoint is loaded afterwards.
    """
    checked = resolve_target(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        target: Target = _class(checked.name, "")(checked, weights=weights)
        target.attach_classes()
    return target


def save_target(target: Target, path: Path) -> None:
    """Write one safetensors file with the configuration in its metadata."""
    state = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in target.state_dict().items()}
    write_atomically(Path(path), save(state, metadata={"target": target.config.model_dump_json()}))


def load_target(path: Path) -> Target:
    """The inverse of `save_target`; needs neither the data nor the weights that training began with."""
    try:
        with safe_open(path, framework="pt") as file:
            config = json.loads((file.metadata() or {})["target"])
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        problem = (
            f"{path}: no trained weights ({type(error).__name__}: {error}); give a run's folder, such as runs/001-osa"
        )
        raise ConfigError(problem, "weights", path) from error
    fixed = "class_vectors" in state  # then the file of the vectors is not needed any more
    target = build_target({**config, "anchors": None} if fixed else config, weights=False)
    if fixed:
        target.fix_classes(state["class_vectors"], state["class_ids"])
    target.load_state_dict(state)
    return target


def _class(name: str, suffix: str) -> Any:
    module, kind = TARGETS[name]
    return getattr(import_module(module), kind + suffix)


def _config_error(error: ValidationError, kind: type[TargetConfig]) -> ConfigError:
    """Make a one-line error of pydantic's first error."""
    first = error.errors()[0]
    place = ".".join(["target", *(str(part) for part in first["loc"])])
    if first["type"] == "extra_forbidden":
        known = ", ".join(kind.model_fields)
        message = f"{place} is no setting of {kind.model_fields['name'].default!r}; it knows {known}"
    else:
        given = f"={first['input']!r}" if first["loc"] else ""
        message = f"{place}{given}: {first['msg'].removeprefix('Value error, ')}"
    return ConfigError(message, place, first["input"])


# --- several targets as one -------------------------------------------------------------------------------------------


class Ensemble(Target):
    """Several targets of one kind that read the same inputs; for evaluation only, because it has no configuration.

    Encoded tensors of the members have the prefixes `0.`, `1.`, …; `vectors` puts the members' vectors side by side, divided
    by sqrt(n), so that its cosines are the averages of theirs.
    """

    def __init__(self, members: Sequence[Target]) -> None:
        if not members:
            raise ConfigError("members: none were given; an ensemble needs at least one target", "members", 0)
        super().__init__(members[0].config)
        self.members = nn.ModuleList(members)
        self.classes = members[0].classes
        self.width = sum(member.width for member in members)
        self.tokenizer = members[0].tokenizer

    def _each(self) -> list[Target]:
        return [member for member in self.members if isinstance(member, Target)]

    def image_transform(self, train: bool) -> Callable[..., Tensor]:
        return self._each()[0].image_transform(train)

    def pixels(self, images: Tensor) -> Tensor:
        return self._each()[0].pixels(images)

    def encode_images(self, images: Tensor) -> Encoded:
        return _joined([member.encode_images(images) for member in self._each()])

    def encode_texts(self, tokens: Tensor) -> Encoded:
        return _joined([member.encode_texts(tokens) for member in self._each()])

    def encode_classes(self) -> Encoded:
        return _joined([member.encode_classes() for member in self._each()])

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        """Average the members' similarities, (Bi, Bt)."""
        return self._mean("similarity", images, texts)

    def class_similarity(self, images: Encoded, anchors: Encoded | None = None) -> Tensor:
        """(B, C) mean over the members."""
        return self._mean("class_similarity", images, anchors)

    def class_logits(self, images: Encoded, anchors: Encoded | None = None) -> Tensor:
        """(B, C) mean over the members, each with its own scale or linear head."""
        return self._mean("class_logits", images, anchors)

    def _mean(self, method: str, images: Encoded, others: Encoded | None) -> Tensor:
        each = [
            getattr(member, method)(_member(images, number), None if others is None else _member(others, number))
            for number, member in enumerate(self._each())
        ]
        return torch.stack(each).mean(dim=0)

    @property
    def scale(self) -> Tensor:
        return torch.stack([member.scale for member in self._each()]).mean()

    def after_step(self) -> None:
        for member in self._each():
            member.after_step()


def as_one(targets: Sequence[Target]) -> Target:
    """Return a single target itself, several as an ensemble."""
    return targets[0] if len(targets) == 1 else Ensemble(targets)


def _joined(each: Sequence[Encoded]) -> Encoded:
    vectors = torch.cat([encoded["vectors"] for encoded in each], dim=1) / len(each) ** 0.5
    parts = {f"{number}.{name}": tensor for number, encoded in enumerate(each) for name, tensor in encoded.items()}
    return {"vectors": vectors, **parts}


def _member(encoded: Encoded, number: int) -> Encoded:
    start = f"{number}."
    return {name.removeprefix(start): tensor for name, tensor in encoded.items() if name.startswith(start)}
