"""Accuracy by prompts and by a linear head."""

import numpy as np
import pytest
import torch

from noisegate.trainers.targets import Target
from noisegate.trainers.tasks import evaluate_classification
from tests.errors import refused
from tests.trainers.small_targets import batch, inputs, small

NAMES = ["dog", "cat", "bird", "fish", "zebra", "owl"]


def expected(target: Target, images: torch.Tensor, labels: list[int]) -> list[bool]:
    """One image, one prompt at a time."""
    hits = []
    with torch.no_grad():
        for image, label in zip(images, labels, strict=True):
            encoded = target.encode_images(image.unsqueeze(0))
            scores = []
            for name in NAMES:
                article = "an" if name == "owl" else "a"
                tokens = target.tokenize([f"This is a picture of {article} {name}."])
                scores.append(float(target.similarity(encoded, target.encode_texts(tokens))))
            hits.append(int(np.argmax(scores)) == label)
    return hits


@pytest.mark.parametrize("kind", ["clip", "sgraf"])
def test_the_papers_prompt_decides(kind: str) -> None:
    target = small(kind, classes=NAMES)
    images, labels = inputs(kind, 8), [0, 1, 2, 3, 4, 5, 4, 3]
    parts = [batch(i, 4, images=images[i : i + 4], labels=torch.tensor(labels[i : i + 4])) for i in (0, 4)]
    figures = evaluate_classification(target, parts)
    assert figures["accuracy"] == pytest.approx(100 * np.mean(expected(target, images, labels)))
    assert figures["samples"] == 8 and figures["accuracy_top5"] >= figures["accuracy"]


def test_a_linear_head_that_knows_the_answer_and_labels_that_take_no_part() -> None:
    target = small("dual", classes=NAMES, head="linear")
    images = inputs("dual", 6)
    with torch.no_grad():
        vectors = target.encode_images(images)["vectors"]
        target.linear.weight.copy_(vectors)  # each class has the direction of one image
        target.linear.bias.zero_()
    labels = torch.tensor([0, 1, 2, 3, -1, 0])  # the fifth is not asked, the sixth is wrong
    figures = evaluate_classification(target.train(), [batch(0, 6, images=images, labels=labels)])
    assert figures["accuracy"] == pytest.approx(80.0) and figures["samples"] == 5
    assert figures["mean_class_accuracy"] == pytest.approx(100 * (0.5 + 1 + 1 + 1) / 4)
    assert target.training


def test_labels_beyond_the_classes_or_no_labels_say_so() -> None:
    target = small("dual", classes=NAMES)
    images = inputs("dual", 2)
    with refused("target.classes", 6):
        evaluate_classification(target, [batch(0, 2, images=images, labels=torch.tensor([0, 6]))])
    with refused("data.eval_shards"):
        evaluate_classification(target, [batch(0, 2, images=images)])
    with refused("data.eval_shards"):
        evaluate_classification(target, [])
    with refused("target.classes"):
        evaluate_classification(small("dual"), [batch(0, 2, images=images, labels=torch.tensor([0, 1]))])
