"""P@1 and mAP@R of a target's vectors against loops."""

import numpy as np
import pytest
import torch

from noisegate.trainers.tasks import evaluate_image_retrieval
from tests.errors import refused
from tests.trainers.small_targets import batch, inputs, small


def by_loops(vectors: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    first, precision = [], []
    for query in range(len(labels)):
        relevant = int((labels == labels[query]).sum()) - 1
        if relevant == 0 or labels[query] < 0:
            continue
        others = [i for i in range(len(labels)) if i != query and labels[i] >= 0]
        order = sorted(others, key=lambda i: -float(vectors[query] @ vectors[i]))
        hits = [labels[i] == labels[query] for i in order[:relevant]]
        first.append(hits[0])
        precision.append(sum(sum(hits[: k + 1]) / (k + 1) for k in range(relevant) if hits[k]) / relevant)
    return 100 * float(np.mean(first)), 100 * float(np.mean(precision))


def test_figures_agree_with_loops() -> None:
    target = small("dual").train()
    images = inputs("dual", 24)
    labels = np.random.default_rng(0).integers(0, 5, 24)
    labels[3], labels[4] = 9, -1  # a class of its own, and none
    parts = [batch(i, 8, images=images[i : i + 8], labels=torch.from_numpy(labels[i : i + 8])) for i in range(0, 24, 8)]
    figures = evaluate_image_retrieval(target, parts)
    with torch.no_grad():
        vectors = target.eval().encode_images(images)["vectors"].double().numpy()
    assert (figures["precision_at_1"], figures["map_at_r"]) == pytest.approx(by_loops(vectors, labels))
    assert figures["samples"] == 23


def test_data_without_labels_says_so() -> None:
    with refused("data.eval_shards"):
        evaluate_image_retrieval(small("dual"), [batch(0, 2, images=inputs("dual", 2))])
