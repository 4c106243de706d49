"""Image-text retrieval: R@1, R@5 and R@10 both ways and their sum, over all images or averaged over folds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.inspect.metrics import BlockRecall, RecallAtK, rsum
from noisegate.pipeline.system import Index
from noisegate.trainers.targets import Encoded, Target, concat, count, take

from .encode import evaluation_mode, image_ids, to_cpu, to_device

if TYPE_CHECKING:
    from noisegate.trainers.data import Batch

BLOCK = 16_000_000  # similarities that are held at once: 64 MB
RANKS = (1, 5, 10)
CAPTIONS = 4096  # captions on the device at once; targets that compare words have large ones


def evaluate(
    target: Target,
    batches: Iterable[Batch],
    *,
    folds: int = 1,
    ks: Sequence[int] = RANKS,
    block: int = BLOCK,
) -> dict[str, float]:
    """Figures in percent: `i2t_r1` …, `t2i_r10`, their sum `rsum`, `images` and `captions`; ties count against the model.

    Rows with the same image (field `image_id`, or digest) are one image with several captions, as are the captions of one
    row (`caption_of`). With folds > 1, `fold_i2t_r1` … and `fold_rsum` are means over this many consecutive parts of the
    images (MS-COCO 5K and 1K: folds=5).
    """
    with evaluation_mode(target):
        images, texts, owner = _encode(target, batches)
        whole, parts = recalls(target, images, texts, owner, folds=folds, ks=ks, block=block)
    figures = _named(whole, "") | ({} if parts is None else _named(parts, "fold_"))
    return {**figures, "images": float(count(images)), "captions": float(len(owner))}


@torch.no_grad()
def recalls(
    target: Target,
    images: Encoded,
    texts: Encoded,
    image_of_caption: Index,
    *,
    folds: int = 1,
    ks: Sequence[int] = RANKS,
    block: int = BLOCK,
) -> tuple[RecallAtK, RecallAtK | None]:
    """Recalls over all images, and averaged over folds (None for one fold), with `block` similarities held at a time."""
    total = count(images)
    whole = BlockRecall(total, image_of_caption, ks)
    parts = BlockRecall(total, image_of_caption, ks, folds) if folds > 1 else None
    step = max(1, block // max(1, len(image_of_caption)))
    across = max(1, min(CAPTIONS, block // step))
    for start in range(0, total, step):
        rows = to_device(take(images, slice(start, start + step)), target.device)
        blocks: list[Tensor] = []
        for first in range(0, len(image_of_caption), across):
            columns = to_device(take(texts, slice(first, first + across)), target.device)
            blocks.append(target.similarity(rows, columns).float().cpu())
        similarity = torch.cat(blocks, dim=1).numpy()
        for recall in (whole, parts):
            if recall is not None:
                recall.add(start, similarity)
    return whole.result(), None if parts is None else parts.result()


def _encode(target: Target, batches: Iterable[Batch]) -> tuple[Encoded, Encoded, Index]:
    """Encode each image once, in the order of its first row, and every caption; (T,) is the image of each caption."""
    number: dict[Hashable, int] = {}
    images: list[Encoded] = []
    texts: list[Encoded] = []
    owner: list[int] = []
    for batch in batches:
        if not len(batch):
            continue
        if batch.images is None or not batch.captions:
            what = "images" if batch.images is None else "captions"
            raise ConfigError(
                f"task retrieval needs {what}, and the evaluation data has none; use shards with them",
                "data.eval_shards",
            )
        new = []
        numbers = []
        for position, name in enumerate(image_ids(batch)):
            if name not in number:
                number[name] = len(number)
                new.append(position)
            numbers.append(number[name])
        if new:
            images.append(to_cpu(target.encode_images(batch.images[new].to(target.device))))
        tokens = batch.texts if isinstance(batch.texts, Tensor) else target.tokenizer(batch.captions)
        texts.append(to_cpu(target.encode_texts(tokens.to(target.device))))
        rows = range(len(batch)) if batch.caption_of is None else batch.caption_of.tolist()
        owner.extend(numbers[row] for row in rows)
    if not images:
        raise ConfigError(
            "task retrieval: the evaluation data has no samples; check data.eval_shards", "data.eval_shards"
        )
    return concat(images), concat(texts), np.array(owner, dtype=np.int64)


def _named(recall: RecallAtK, start: str) -> dict[str, float]:
    figures = {f"{start}i2t_r{k}": value for k, value in recall.i2t.items()}
    figures |= {f"{start}t2i_r{k}": value for k, value in recall.t2i.items()}
    return {**figures, f"{start}rsum": rsum(recall)}
