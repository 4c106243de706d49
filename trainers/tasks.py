"""Tasks: measure a trained target. Each `evaluate_*` returns named figures, in percent except ranks and counts.

`evaluate_retrieval`: image-text retrieval, R@K both ways, their sum and median ranks, over all images or averaged over folds.
`evaluate_classification`: accuracy by the prompts of the classes, or by the target's linear head.
`evaluate_image_retrieval`: P@1 (the nearest other image has the same class) and mAP@R.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.inspect.metrics import (
    BlockRecall,
    RecallAtK,
    map_at_r,
    mean_class_accuracy,
    precision_at_1,
    rsum,
    top_k_accuracy,
)
from noisegate.pipeline.system import Float32, Index

from .data import Batch
from .targets import Encoded, Target, concat, count, take

BLOCK = 16_000_000  # similarities in memory at a time: 64 MB
RANKS = (1, 5, 10)
CAPTIONS = 4096  # captions on the device at a time; they are large for targets that compare words


# --- retrieval ---------------------------------------------------------------------------------------------------------


def evaluate_retrieval(
    target: Target, batches: Iterable[Batch], *, folds: int = 1, ks: Sequence[int] = RANKS, block: int = BLOCK
) -> dict[str, float]:
    """Return `i2t_r1` …, `t2i_r10`, their sum `rsum`, median ranks `i2t_medr` and `t2i_medr`, `images` and `captions`.

    Ties count against the model.

    Rows with the same image (field `image_id`, or digest) are one image with several captions, as are the captions of one row
    (`caption_of`). With folds > 1, `fold_i2t_r1` … and `fold_rsum` are means over `folds` consecutive parts of the images
    (MS-COCO 5K and 1K: folds=5). At most `block` similarities are in memory at a time.
    """
    with _evaluation_mode(target):
        images, texts, owner = _encode_pairs(target, batches)
        total = count(images)
        recalls = {"": BlockRecall(total, owner, ks)}
        if folds > 1:
            recalls["fold_"] = BlockRecall(total, owner, ks, folds)
        rows: Iterable[tuple[int, Float32]] = _compare(target, images, texts, block)
        whole = total * len(owner) <= block  # then a second pass need not compare again
        rows = list(rows) if whole else rows
        for start, similarity in rows:
            for recall in recalls.values():
                recall.add(start, similarity)
        if inexact := [recall for recall in recalls.values() if not recall.is_exact()]:
            for start, similarity in rows if whole else _compare(target, images, texts, block):
                for recall in inexact:
                    recall.count(start, similarity)
    figures = {name: value for start, recall in recalls.items() for name, value in _named(recall.result(), start)}
    return {**figures, "images": float(total), "captions": float(len(owner))}


def _compare(target: Target, images: Encoded, texts: Encoded, block: int) -> Iterator[tuple[int, Float32]]:
    """Yield the number of the first image and similarities of some images with all texts, (b, T), at most `block` at a time."""
    captions = count(texts)
    step = max(1, block // max(1, captions))
    across = max(1, min(CAPTIONS, block // step))
    for start in range(0, count(images), step):
        rows = _to_device(take(images, slice(start, start + step)), target)
        blocks: list[Tensor] = []
        for first in range(0, captions, across):
            columns = _to_device(take(texts, slice(first, first + across)), target)
            blocks.append(target.similarity(rows, columns).float().cpu())
        yield start, torch.cat(blocks, dim=1).numpy()


def _encode_pairs(target: Target, batches: Iterable[Batch]) -> tuple[Encoded, Encoded, Index]:
    """Encode each image once, in the order of its first row, and every caption; (T,) is the image of each caption."""
    number: dict[Hashable, int] = {}
    images: list[Encoded] = []
    texts: list[Encoded] = []
    owner: list[int] = []
    for batch in batches:
        if not len(batch):
            continue
        if batch.images is None or not batch.captions:
            raise _lacks("retrieval", "images" if batch.images is None else "captions")
        new = []
        numbers = []
        for position, name in enumerate(_image_ids(batch)):
            if name not in number:
                number[name] = len(number)
                new.append(position)
            numbers.append(number[name])
        if new:
            images.append(_to_cpu(target.encode_images(batch.images[new].to(target.device))))
        tokens = batch.texts if isinstance(batch.texts, Tensor) else target.tokenizer(batch.captions)
        texts.append(_to_cpu(target.encode_texts(tokens.to(target.device))))
        rows = range(len(batch)) if batch.caption_of is None else batch.caption_of.tolist()
        owner.extend(numbers[row] for row in rows)
    if not images:
        raise _lacks("retrieval", "samples")
    return concat(images), concat(texts), np.array(owner, dtype=np.int64)


def _image_ids(batch: Batch) -> list[Hashable]:
    """Return an identifier for each image of a batch: field `image_id`, else the picture's digest, else the row number."""
    for name in ("image_id", "image_sha256"):
        values = batch.fields.get(name)
        if values is not None and all(value is not None for value in values):
            return [(name, value) for value in values]
    return [("row", row) for row in batch.rows.tolist()]


def _named(recall: RecallAtK, start: str) -> Iterator[tuple[str, float]]:
    for way, by_rank in (("i2t", recall.i2t), ("t2i", recall.t2i)):
        yield from ((f"{start}{way}_r{k}", value) for k, value in by_rank.items())
    yield f"{start}rsum", rsum(recall)
    yield from ((f"{start}i2t_medr", recall.i2t_median), (f"{start}t2i_medr", recall.t2i_median))


# --- classes -----------------------------------------------------------------------------------------------------------


def evaluate_classification(target: Target, batches: Iterable[Batch]) -> dict[str, float]:
    """Return `accuracy`, `accuracy_top5`, `mean_class_accuracy`, and `samples`; labels of -1 are left out.

    With several prompts per class their mean similarity counts; prompts are encoded once.
    """
    with _evaluation_mode(target):
        anchors = target.encode_classes() if target.config.head == "prompts" else None
        rows, label = _encode_labelled(
            target, batches, "classification", lambda images: target.class_logits(images, anchors)
        )
    if label.max() >= rows.shape[1]:
        problem = f"has {rows.shape[1]} names, and the evaluation data has the label {label.max()}; give more"
        raise ConfigError(f"target.classes {problem}", "target.classes", rows.shape[1])
    return {
        "accuracy": top_k_accuracy(rows, label),
        "accuracy_top5": top_k_accuracy(rows, label, k=5),
        "mean_class_accuracy": mean_class_accuracy(rows, label),
        "samples": float((label >= 0).sum()),
    }


def evaluate_image_retrieval(target: Target, batches: Iterable[Batch]) -> dict[str, float]:
    """Return `precision_at_1`, `map_at_r`, and `samples`.

    An image never finds itself; the only image of a class is no query but can be found; labels of -1 are left out.
    """
    with _evaluation_mode(target):
        rows, label = _encode_labelled(target, batches, "image_retrieval", lambda images: images["vectors"])
    return {
        "precision_at_1": precision_at_1(rows, label),
        "map_at_r": map_at_r(rows, label),
        "samples": float((label >= 0).sum()),
    }


def _encode_labelled(
    target: Target, batches: Iterable[Batch], task: str, read: Callable[[Encoded], Tensor]
) -> tuple[Float32, Index]:
    """Apply `read` to the encoded images of all batches, (N, d), and return their labels (N,) too."""
    rows, labels = [], []
    for batch in batches:
        if not len(batch):
            continue
        if batch.images is None or batch.labels is None:
            raise _lacks(task, "images" if batch.images is None else "labels")
        rows.append(read(target.encode_images(batch.images.to(target.device))).float().cpu().numpy())
        labels.append(batch.labels.cpu().numpy())
    if not rows:
        raise _lacks(task, "samples")
    return np.concatenate(rows), np.concatenate(labels)


# --- all tasks ---------------------------------------------------------------------------------------------------------


@contextmanager
def _evaluation_mode(target: Target) -> Iterator[None]:
    """Switch to evaluation mode without gradients; restore the mode afterwards."""
    before = target.training
    target.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        target.train(before)


def _to_cpu(encoded: Encoded) -> Encoded:
    """Move to the CPU, floats as float32: evaluation data may not fit on the device."""
    return {name: t.cpu().float() if t.is_floating_point() else t.cpu() for name, t in encoded.items()}


def _to_device(encoded: Encoded, target: Target) -> Encoded:
    return {name: tensor.to(target.device) for name, tensor in encoded.items()}


def _lacks(task: str, what: str) -> ConfigError:
    problem = f"task {task} needs {what}, and the evaluation data has none; check data.eval_shards"
    return ConfigError(problem, "data.eval_shards")


TASKS: Mapping[str, tuple[Callable[..., dict[str, float]], str]] = {
    "retrieval": (evaluate_retrieval, "rsum"),
    "classification": (evaluate_classification, "accuracy"),
    "image_retrieval": (evaluate_image_retrieval, "map_at_r"),
}
"""By name: the evaluation, and the figure by which the best checkpoint is chosen (larger is better)."""


def check_task(task: str, options: Mapping[str, Any], monitor: str = "auto") -> None:
    """Raise ConfigError for options that the task does not take, and for a `monitor` that it does not measure."""
    for name, value in options.items():
        setting = f"task.options.{name}"
        if task != "retrieval":
            raise ConfigError(f"{setting}: {task} takes no options; leave it out", setting, value)
        if name not in ("folds", "ks"):
            raise ConfigError(f"{setting} is no option of retrieval; it takes folds and ks", setting, value)
        if name == "folds" and not _is_count(value):
            raise ConfigError.of(setting, value, "is no number of parts; use 5 for MS-COCO, or 1")
        if name == "ks" and not (isinstance(value, Sequence) and value and all(map(_is_count, value))):
            raise ConfigError.of(setting, value, "are no ranks; use for example task.options.ks=[1, 5, 10]")
    figures = list_figures(task, **options)
    if monitor not in ("auto", *figures):
        problem = f"is none of the figures; use one of {', '.join(figures)}, or auto"
        raise ConfigError.of("task.monitor", monitor, problem)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def list_figures(task: str, folds: int = 1, ks: Sequence[int] = RANKS) -> tuple[str, ...]:
    """List the figures of a task for which larger is better."""
    if task == "classification":
        return "accuracy", "accuracy_top5", "mean_class_accuracy"
    if task == "image_retrieval":
        return "precision_at_1", "map_at_r"
    ways = [f"{way}_r{k}" for way in ("i2t", "t2i") for k in ks]
    return tuple(f"{start}{name}" for start in ("", "fold_")[: 1 if folds == 1 else 2] for name in (*ways, "rsum"))
