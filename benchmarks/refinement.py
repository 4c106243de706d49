"""What TANGO's refinement before every epoch costs over the training of that epoch.

python benchmarks/refinement.py --json

The refinement is measured as it is: neighbours, votes, anchors and soft labels of 50,000 x 512 features in 100 classes with
40 anchors each. The epoch is measured on a few batches of the visual tower and multiplied, on the same processor: the
forward pass that extracts the features, forward and backward of the clean pictures (--clean-share of all) and of the mixed
ones. Reading and decoding pictures, the optimiser and checkpoints are left out of the epoch, so that the real share is
smaller. Where the tower trains on a GPU and faiss has none, the share is larger than what is printed here. The supplement's
table 8 has 0.35 % for selection and relabelling on CIFAR-100.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from noisegate.pipeline.estimators.loading import allow_torchvision
from noisegate.pipeline.labels.tango import refine
from noisegate.pipeline.neighbours import default_k, find_neighbours
from noisegate.trainers.methods.tango import text_anchored_logits


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def clustered(
    rows: int, width: int, classes: int, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Unit features around class centres, and labels of which two fifths are wrong."""
    truth = rng.integers(0, classes, rows)
    centres = rng.standard_normal((classes, width), dtype=np.float32)
    features = centres[truth] + rng.standard_normal((rows, width), dtype=np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    wrong = rng.random(rows) < 0.4
    return features, np.where(wrong, rng.integers(0, classes, rows), truth)


def refinement(
    features: NDArray[np.float32], labels: NDArray[np.int64], anchors: NDArray[np.float32], classes: int
) -> float:
    def work() -> None:
        neighbours = find_neighbours(features, default_k(len(labels), classes), device="auto")
        refine(
            labels, classes, neighbours=neighbours, images=features, anchors=anchors,
            anchor_labels=np.arange(len(anchors)) % classes, keep_soft=True,
        )  # fmt: skip

    return seconds(work)


def visual_tower(name: str) -> tuple[nn.Module, int]:
    """Of open_clip, with random weights, and its picture size."""
    allow_torchvision()
    import open_clip

    model = open_clip.create_model(name, pretrained=None)
    return model.visual, int(model.visual.image_size[0])


def per_picture(
    tower: nn.Module, size: int, anchors: Tensor, classes: int, batch: int, rounds: int
) -> tuple[float, float]:
    """Seconds of a forward pass without gradients, and of forward and backward, of one picture; the best of the rounds."""
    images = torch.randn(batch, 3, size, size)
    labels = torch.arange(batch) % classes
    of_anchor = torch.arange(len(anchors)) % classes

    def look() -> None:
        with torch.no_grad():
            tower(images)

    def learn() -> None:
        vectors = nn.functional.normalize(tower(images), dim=1)
        nn.functional.cross_entropy(text_anchored_logits(vectors, anchors, of_anchor), labels).backward()

    tower.eval()
    looks = [seconds(look) for _ in range(rounds)]
    tower.train()
    learns = [seconds(learn) for _ in range(rounds)]
    return min(looks) / batch, min(learns) / batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--tower", default="ViT-B-16", help="a model of open_clip, such as ViT-B-32")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--clean-share", type=float, default=0.6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    features, labels = clustered(options.rows, options.width, options.classes, rng)
    anchors = rng.standard_normal((options.classes * options.prompts, options.width), dtype=np.float32)
    anchors /= np.linalg.norm(anchors, axis=1, keepdims=True)
    tower, size = visual_tower(options.tower)
    width = int(tower(torch.zeros(1, 3, size, size)).shape[1])
    texts = nn.functional.normalize(torch.randn(len(anchors), width), dim=1)

    refined = refinement(features, labels, anchors, options.classes)
    look, learn = per_picture(tower, size, texts, options.classes, options.batch, options.rounds)
    epoch = options.rows * (look + (1 + options.clean_share) * learn)
    result = {
        "rows": options.rows,
        "width": options.width,
        "classes": options.classes,
        "tower": options.tower,
        "threads": torch.get_num_threads(),
        "refinement_seconds": round(refined, 2),
        "epoch_seconds_extrapolated": round(epoch, 1),
        "measured_pictures": options.batch * options.rounds,
        "share_percent": round(100 * refined / epoch, 3),
    }
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"refinement {result['refinement_seconds']} s, epoch {result['epoch_seconds_extrapolated']} s (extrapolated from "
        f"{result['measured_pictures']} pictures through {options.tower}): {result['share_percent']} % "
        f"({options.rows:,} x {options.width}, {options.classes} classes)"
    )


if __name__ == "__main__":
    main()
