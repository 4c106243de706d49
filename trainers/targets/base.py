"""The base of targets: networks that compute a similarity for every image and every text of a batch.

Methods use nothing else. Inputs come from `image_transform` and `tokenizer`, both picklable, so that data workers can use them
without the network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd.function import FunctionCtx

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.labels import BUILT_IN, Anchors, ClassSet, load_classes, prompts
from noisegate.pipeline.shards import Preprocess, ProcessorPixels

from .pictures import pixel_scaling

PROMPT = "This is a picture of a {}."  # OSA's, for classification

# `vectors` (N, d) float is always there: one unit row per sample, or zeros where a sample has no content.  Targets that
# compare parts add `parts` (N, L, d) and `mask` (N, L) bool, True where a part is real.
Encoded = dict[str, Tensor]


def count(encoded: Encoded) -> int:
    """Return the number of samples."""
    return len(encoded["vectors"]) if "vectors" in encoded else len(next(iter(encoded.values())))


def take(encoded: Encoded, rows: Tensor | slice | Sequence[int]) -> Encoded:
    """Select the samples at `rows`: indices, a bool mask or a slice.

    >>> take({"vectors": torch.eye(3)}, [2])["vectors"].tolist()
    [[0.0, 0.0, 1.0]]
    """
    index = rows if isinstance(rows, Tensor | slice) else torch.as_tensor(rows, dtype=torch.int64)
    return {name: tensor[index] for name, tensor in encoded.items()}


def concat(batches: Sequence[Encoded]) -> Encoded:
    """Concatenate batches; if they have different numbers of parts, pad with zeros, which `mask` marks.

    >>> concat([{"vectors": torch.ones(1, 2)}, {"vectors": torch.zeros(2, 2)}])["vectors"].shape
    torch.Size([3, 2])
    """
    if len(batches) == 1:
        return dict(batches[0])
    joined = {}
    for name in batches[0]:
        tensors = [batch[name] for batch in batches]
        length = max(tensor.shape[1] for tensor in tensors) if tensors[0].ndim > 1 else 0
        joined[name] = torch.cat([_lengthened(tensor, length) for tensor in tensors])
    return joined


def xavier(layer: nn.Linear) -> None:
    """Draw Xavier-uniform weights and set the bias to 0, as the published code of VSE++, SCAN and SGRAF does."""
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def gather(encoded: Encoded) -> Encoded:
    """Gather the samples of all ranks in rank order, on every rank; gradients flow back to the rank of the sample.

    Every rank must have the same number of samples.  A loss that each rank computes over all gathered samples, with
    gradients averaged over ranks as DDP does, has the gradient of one process on the whole batch.  With one process nothing
    changes.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return encoded
    gathered = {}
    for name, tensor in encoded.items():
        if tensor.ndim > 1:
            length = torch.tensor(tensor.shape[1], device=tensor.device)
            dist.all_reduce(length, op=dist.ReduceOp.MAX)
            tensor = _lengthened(tensor, int(length))
        if tensor.dtype == torch.bool:
            gathered[name] = gather_tensor(tensor.to(torch.uint8)).bool()
        else:
            gathered[name] = gather_tensor(tensor)
    return gathered


def gather_tensor(tensor: Tensor) -> Tensor:
    """Concatenate a tensor of every rank along the first axis, with gradients; all must have the same shape."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return tensor
    result: Tensor = _Gather.apply(tensor)  # type: ignore[no-untyped-call]
    return result


class _Gather(torch.autograd.Function):
    """Gather all ranks' rows; the gradient of a rank's rows is summed over the ranks that used them."""

    @staticmethod
    def forward(ctx: FunctionCtx, tensor: Tensor) -> Tensor:
        rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, tensor.contiguous())
        return torch.cat(rows)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Any) -> Tensor:
        total: Tensor = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        size = len(total) // dist.get_world_size()
        return total[dist.get_rank() * size : (dist.get_rank() + 1) * size]


def _lengthened(tensor: Tensor, length: int) -> Tensor:
    missing = length - tensor.shape[1] if tensor.ndim > 1 else 0
    if missing <= 0:
        return tensor
    filling = tensor.new_zeros(tensor.shape[0], missing, *tensor.shape[2:])
    return torch.cat([tensor, filling], dim=1)


class TargetConfig(BaseModel):
    """Settings of all targets; each target adds its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    classes: str | tuple[str, ...] = ()
    """For classification: names in id order, a file of them, or one of noisegate.pipeline.labels.classes.BUILT_IN."""
    head: Literal["prompts", "linear"] = "prompts"
    """How classes are recognised: by the similarity to their prompts, or by a linear layer on image vectors."""
    prompts: tuple[str, ...] = (PROMPT,)
    descriptions: tuple[tuple[str, ...], ...] = ()
    """More sentences about each class, beside its prompts; those of a .json file of classes."""
    class_affinity: Literal["cosine", "exponential"] = "cosine"
    """With head: prompts, logits are scale × mean cosine to a class's prompts, or TANGO's 40 × mean exp(cosine)."""
    anchors: Path | None = None
    """With head: prompts, the anchors.safetensors of a weight table made with --task labels: its vectors stand for the classes
    in place of the target's own prompts, and do not learn."""

    @property
    def reads_features(self) -> bool:
        """Whether images are precomputed features (the part npy of a sample) and not pictures."""
        return False

    @property
    def from_scratch(self) -> bool:
        """Whether image-text similarities mean nothing before training."""
        return True

    def class_set(self) -> ClassSet | None:
        """Return the classes with their sentences, or None."""
        if not self.classes:
            return None
        if isinstance(self.classes, str):
            if self.classes not in BUILT_IN and not Path(self.classes).is_file():
                problem = f"is no file; give names, a file with one per line, or one of {', '.join(BUILT_IN)}"
                raise ConfigError.of("target.classes", self.classes, problem)
            return load_classes(self.classes, self.prompts)
        filled = prompts(self.classes, self.prompts)
        if not self.descriptions:
            return ClassSet(self.classes, filled)
        if len(self.descriptions) != len(filled):
            problem = f"classes are described, and target.classes has {len(filled)}; give a list of sentences for each"
            raise ConfigError.of("target.descriptions", len(self.descriptions), problem)
        return ClassSet(self.classes, tuple(own + more for own, more in zip(filled, self.descriptions, strict=True)))


class Target(nn.Module, ABC):
    """An image-text network.  Built by `noisegate.trainers.targets.build_target(config)`.

    Pictures come as uint8 (B, 3, H, W) and are scaled on the device; `pixels` does that step alone, for methods that mix
    pictures.  Precomputed features come as float32 (B, K, D) or (B, D); a row of zeros is padding.
    """

    config: TargetConfig
    width: int  # d of the vectors
    tokenizer: Callable[[list[str]], Tensor]  # from texts to (N, L) int64 token ids; picklable

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.config = config
        self.classes: ClassSet | None = None
        self.linear: nn.Linear | None = None

    # ---- inputs

    @abstractmethod
    def image_transform(self, train: bool) -> Callable[..., Tensor]:
        """Return a picklable transform from a picture (PIL), or an array of features, to one sample's tensor.

        With train=True it augments, with random numbers from a passed `rng` (numpy's), else from torch's global generator.
        """

    def tokenize(self, texts: list[str]) -> Tensor:
        """Return token ids (N, L) int64 on the target's device."""
        return self.tokenizer(list(texts)).to(self.device)

    def scale_pixels(self, preprocess: Preprocess | ProcessorPixels) -> None:
        """Make `pixels` scale as `preprocess` says."""
        mean, std = pixel_scaling(preprocess)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def pixels(self, images: Tensor) -> Tensor:
        """Make the input of the image tower: float pixels, scaled and normalised; features stay unchanged."""
        if "mean" not in self._buffers or images.dtype != torch.uint8:
            return images
        scaled = (images.float() - self.get_buffer("mean")) / self.get_buffer("std")
        return scaled.contiguous(memory_format=torch.channels_last)  # makes convolutions up to twice as fast

    # ---- what methods use

    @abstractmethod
    def encode_images(self, images: Tensor) -> Encoded:
        """Encode a batch of outputs of `image_transform`, or of `pixels`."""

    @abstractmethod
    def encode_texts(self, tokens: Tensor) -> Encoded:
        """Encode token ids (N, L)."""

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        """Compute similarities (Bi, Bt) in float32, cosines by default; never multiplied by `scale`."""
        return self.vector_similarity(images, texts)

    def vector_similarity(self, one: Encoded, other: Encoded) -> Tensor:
        """Compute float32 cosines (N, M) of `vectors`: between images, between texts, or both."""
        with full_precision(one["vectors"]):
            return one["vectors"].float() @ other["vectors"].float().T

    def forward(
        self, images: Tensor | None = None, texts: Tensor | None = None
    ) -> tuple[Encoded | None, Encoded | None]:
        """Encode both sides; DDP and Fabric call this, so that gradients are reduced over ranks."""
        return (
            None if images is None else self.encode_images(images),
            None if texts is None else self.encode_texts(texts),
        )

    @property
    def logit_scale(self) -> nn.Parameter | None:
        """The learnable logarithm of `scale`, if a target has one."""
        return None

    @property
    def scale(self) -> Tensor:
        """Similarities are MULTIPLIED by it before a softmax: exp(logit_scale), learnable in CLIP; 20 elsewhere (1 / 0.05)."""
        if self.logit_scale is None:
            return torch.tensor(20.0, device=self.device)
        return self.logit_scale.float().exp()

    @property
    def temperature(self) -> Tensor:
        """Similarities are DIVIDED by it before a softmax: 1 / scale."""
        return 1.0 / self.scale

    @torch.no_grad()
    def after_step(self) -> None:
        """Keep logit_scale within [0, ln 100], as CLIP does; call this after every optimiser step."""
        if self.logit_scale is not None:
            self.logit_scale.clamp_(0.0, 4.605170185988092)

    # ---- classification

    def attach_classes(self) -> None:
        """Build the head that `config.classes` asks for; called once, by `build_target`."""
        self.classes = self.config.class_set()
        if self.classes is None:
            return
        if self.config.head == "linear":
            self.linear = nn.Linear(self.width, len(self.classes))
            return
        if self.config.anchors is not None:
            anchors = _load_fitting_anchors(self.config.anchors, len(self.classes), self.width)
            self.fix_classes(torch.from_numpy(anchors.embeddings), torch.from_numpy(anchors.labels))
            return
        tokens = self.tokenizer(list(self.classes.anchors))
        self.register_buffer("class_tokens", tokens, persistent=False)
        self.register_buffer("class_ids", torch.tensor(self.classes.anchor_labels), persistent=False)

    def fix_classes(self, vectors: Tensor, ids: Tensor) -> None:
        """Use vectors (A, d) as classes `ids` (A,); they are saved with the weights."""
        self.register_buffer("class_vectors", vectors)
        self.register_buffer("class_ids", ids)

    def encode_classes(self) -> Encoded:
        """Encode all prompts of all classes, class after class; without gradient if the text side is frozen."""
        self._require_classes("prompts")
        if "class_vectors" in self._buffers:
            return {"vectors": self.get_buffer("class_vectors")}
        return self.encode_texts(self.get_buffer("class_tokens"))

    def class_similarity(self, images: Encoded, anchors: Encoded | None = None) -> Tensor:
        """Compute the mean similarity to each class's prompts, (B, C) float32; `anchors` from `encode_classes` saves time."""
        classes = self._require_classes("prompts")
        similarity = self.similarity(images, self.encode_classes() if anchors is None else anchors)
        ids = self.get_buffer("class_ids")
        total = similarity.new_zeros(len(similarity), len(classes)).index_add(1, ids, similarity)
        return total / torch.bincount(ids, minlength=len(classes))

    def class_logits(self, images: Encoded, anchors: Encoded | None = None) -> Tensor:
        """Compute logits for a softmax, (B, C) float32: scale x similarity, `text_anchored_logits`, or the linear head.

        The linear head takes vectors of length sqrt(d)."""
        if self.config.head == "linear":
            self._require_classes("linear")
            assert self.linear is not None
            with full_precision(images["vectors"]):
                logits: Tensor = self.linear(images["vectors"].float() * self.width**0.5)
            return logits
        if self.config.class_affinity == "exponential":
            self._require_classes("prompts")
            vectors = (self.encode_classes() if anchors is None else anchors)["vectors"]
            return text_anchored_logits(images["vectors"].float(), vectors.float(), self.get_buffer("class_ids"))
        return self.scale * self.class_similarity(images, anchors)

    def _require_classes(self, head: str) -> ClassSet:
        if self.classes is None or self.config.head != head:
            raise ConfigError(
                f"target.classes: {'none were given' if self.classes is None else f'target.head is not {head!r}'}; "
                f"classification needs names, for example classes: [cat, dog] with head: {head}",
                "target.classes" if self.classes is None else "target.head",
                None if self.classes is None else self.config.head,
            )
        return self.classes

    # ---- parameters

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """Return parameters by name, without those that the configuration froze."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def train(self, mode: bool = True) -> Target:
        """Set the mode; frozen parts stay in evaluation mode, so that their running statistics do not change."""
        super().train(mode)
        for module in self.modules():
            parameters = list(module.parameters())
            if parameters and not any(parameter.requires_grad for parameter in parameters):
                module.eval()
        return self


def text_anchored_logits(vectors: Tensor, anchors: Tensor, anchor_labels: Tensor, scale: float = 40.0) -> Tensor:
    """Compute TANGO's text-anchored logits (B, C): (scale / K_c) Σ exp(cos) over the K_c anchors of each class.

    vectors, anchors: unit rows (B, d) and (A, d); anchor_labels: (A,). Not rounded by autocast.

    >>> image, texts = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.3, 0.91**0.5], [0.2, 0.96**0.5]])
    >>> logits = text_anchored_logits(image, texts, torch.tensor([0, 1]))
    >>> round(float(logits[0, 0] - logits[0, 1]), 3)
    5.138
    """
    with full_precision(vectors):
        affinity = (vectors @ anchors.T).exp()
    count = torch.bincount(anchor_labels)
    total = affinity.new_zeros(len(affinity), len(count)).index_add(1, anchor_labels, affinity)
    return total * (scale / count)


def _load_fitting_anchors(file: Path, classes: int, width: int) -> Anchors:
    if not file.is_file():
        problem = "is no file; give the anchors.safetensors of a table made with --task labels"
        raise ConfigError.of("target.anchors", file, problem)
    anchors = Anchors.load(file)
    if anchors.embeddings.shape[1] != width or len(anchors.names) != classes:
        there = f"{len(anchors.names)} classes in {anchors.embeddings.shape[1]} numbers"
        problem = f"has {there}, the target {classes} in {width}; use a target that fits, or leave anchors out"
        raise ConfigError.of("target.anchors", file, problem)
    return anchors


def full_precision(like: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast: similarities and their gradients are computed in float32 whatever the towers use."""
    return torch.autocast(like.device.type, enabled=False)


def unit(rows: Tensor) -> Tensor:
    """Scale rows to length one along the last axis, in float32; a row of zeros stays zero, with a finite gradient."""
    with full_precision(rows):
        return F.normalize(rows.float(), dim=-1, eps=1e-12)
