"""Each task on targets whose similarities, logits or vectors are known, against loops."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from noisegate.pipeline.inspect.metrics import RecallAtK, rsum
from noisegate.trainers.data import Batch
from noisegate.trainers.targets import Encoded, Target
from noisegate.trainers.targets.base import TargetConfig
from noisegate.trainers.tasks import TASKS, evaluate_classification, evaluate_image_retrieval, evaluate_retrieval
from tests.errors import refused
from tests.trainers.small_targets import CAPTIONS, KINDS, batch, inputs, small


def found_by_loops(vectors: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
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
    assert (figures["precision_at_1"], figures["map_at_r"]) == pytest.approx(found_by_loops(vectors, labels))
    assert figures["samples"] == 23


def test_data_without_labels_says_so() -> None:
    with refused("data.eval_shards"):
        evaluate_image_retrieval(small("dual"), [batch(0, 2, images=inputs("dual", 2))])


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


class Known(Target):
    """Image i and text "t" have the similarity `table[i, t]`; images are their own numbers."""

    def __init__(self, table: np.ndarray) -> None:
        super().__init__(TargetConfig(name="known"))
        self.table = torch.nn.Parameter(torch.from_numpy(table.astype(np.float32)))
        self.pairs: list[int] = []
        self.encoded = 0

    def image_transform(self, train: bool) -> Any:
        return None

    @property
    def tokenizer(self) -> Any:
        return lambda texts: torch.tensor([[int(text)] for text in texts])

    def encode_images(self, images: torch.Tensor) -> Encoded:
        assert not self.training and not torch.is_grad_enabled()
        self.encoded += len(images)
        return {"vectors": images.double()}

    encode_texts = encode_images

    def similarity(self, images: Encoded, texts: Encoded) -> torch.Tensor:
        self.pairs.append(len(images["vectors"]) * len(texts["vectors"]))
        return self.table[images["vectors"][:, 0].long()][:, texts["vectors"][:, 0].long()]


def rows_of(owner: np.ndarray, size: int = 7) -> Iterator[Batch]:
    """One row per caption; the image is named by a field."""
    for start in range(0, len(owner), size):
        some = owner[start : start + size]
        yield batch(
            start,
            len(some),
            images=torch.from_numpy(some[:, None]),
            captions=[str(t) for t in range(start, start + len(some))],
            fields={"image_id": some.tolist()},
        )


def by_loops(table: np.ndarray, owner: np.ndarray, k: int) -> tuple[float, float]:
    asked = sorted(set(owner.tolist()))
    i2t = []
    for i in asked:
        best = max(table[i, t] for t in range(len(owner)) if owner[t] == i)
        i2t.append(1 + sum(table[i, t] >= best for t in range(len(owner)) if owner[t] != i) <= k)
    t2i = [1 + sum(table[i, t] >= table[owner[t], t] for i in asked if i != owner[t]) <= k for t in range(len(owner))]
    return 100 * float(np.mean(i2t)), 100 * float(np.mean(t2i))


@pytest.mark.parametrize(("block", "passes"), [(1600, 1), (1599, 2)])
def test_similarities_that_fit_into_memory_are_computed_once(block: int, passes: int) -> None:
    """Also where ranks are beyond the largest K, for whose median others are compared a second time."""
    target = Known(np.random.default_rng(2).normal(size=(40, 40)))
    figures = evaluate_retrieval(target, rows_of(np.arange(40)), block=block)
    assert figures["t2i_medr"] > 10
    assert sum(target.pairs) == passes * 1600


@pytest.mark.parametrize("block", [1, 40, 16_000_000])
def test_figures_agree_with_loops_over_ranks(block: int) -> None:
    rng = np.random.default_rng(1)
    owner = np.repeat(np.arange(12), 3)
    table = np.round(rng.normal(size=(12, 36)), 1)
    table[owner, np.arange(36)] += 1
    target = Known(table).train()
    figures = evaluate_retrieval(target, rows_of(owner), block=block)
    for k in (1, 5, 10):
        assert (figures[f"i2t_r{k}"], figures[f"t2i_r{k}"]) == pytest.approx(by_loops(table, owner, k))
    assert figures["rsum"] == pytest.approx(sum(sum(by_loops(table, owner, k)) for k in (1, 5, 10)))
    assert (figures["images"], figures["captions"]) == (12, 36)
    assert target.encoded == 12 + 36  # an image is encoded once, however many captions it has
    assert max(target.pairs) <= max(block, 1)
    assert target.training  # as it was before


def test_folds_come_beside_the_figures_over_all_images() -> None:
    rng = np.random.default_rng(2)
    owner = np.repeat(np.arange(10), 5)
    table = rng.normal(size=(10, 50))
    table[owner, np.arange(50)] += 1
    figures = evaluate_retrieval(Known(table), rows_of(owner), folds=5)
    parts = [by_loops(table[2 * f : 2 * f + 2, 10 * f : 10 * f + 10], owner[:10], 1) for f in range(5)]
    assert figures["fold_i2t_r1"] == pytest.approx(np.mean([p[0] for p in parts]))
    assert figures["fold_t2i_r1"] == pytest.approx(np.mean([p[1] for p in parts]))
    assert figures["i2t_r1"] == pytest.approx(by_loops(table, owner, 1)[0])
    assert figures["fold_rsum"] > figures["rsum"]
    with refused("folds", 3):
        evaluate_retrieval(Known(table), rows_of(owner), folds=3)


def test_all_captions_of_a_row_belong_to_its_image() -> None:
    table = np.eye(3).repeat(2, axis=1)
    given = batch(
        0,
        3,
        images=torch.arange(3)[:, None],
        captions=["0", "1", "2", "3", "4", "5"],
        caption_of=torch.tensor([0, 0, 1, 1, 2, 2]),
    )
    figures = evaluate_retrieval(Known(table), [given, given.without_samples()])
    assert figures["rsum"] == 600 and figures["captions"] == 6


def test_without_a_name_each_row_is_its_own_image_and_the_digest_is_a_name() -> None:
    parts: dict[str, Any] = {"images": torch.tensor([[0], [0]]), "captions": ["0", "1"]}
    assert evaluate_retrieval(Known(np.ones((1, 2))), [batch(0, 2, **parts)])["images"] == 2
    named = batch(0, 2, **parts, fields={"image_sha256": ["ab", "ab"]})
    assert evaluate_retrieval(Known(np.ones((1, 2))), [named])["images"] == 1


def test_a_collapsed_target_gets_nothing() -> None:
    figures = evaluate_retrieval(Known(np.zeros((12, 12))), rows_of(np.arange(12)))
    assert figures["rsum"] == 0
    assert figures["i2t_medr"] == figures["t2i_medr"] == 12


@pytest.mark.parametrize("kind", KINDS)
def test_every_target_can_be_evaluated(kind: str) -> None:
    target = small(kind)
    images, texts = inputs(kind, 4), target.tokenize(CAPTIONS)
    with torch.no_grad():
        table = target.similarity(*target(images, texts)).numpy()
    parts = [batch(i, 2, images=images[i : i + 2], captions=CAPTIONS[i : i + 2]) for i in (0, 2)]
    parts[1].texts = target.tokenizer(CAPTIONS[2:])  # as data workers would have done
    figures = evaluate_retrieval(target, parts)
    assert (figures["i2t_r1"], figures["t2i_r1"]) == pytest.approx(by_loops(table, np.arange(4), 1))


def test_data_without_captions_or_samples_says_so() -> None:
    with refused("data.eval_shards"):
        evaluate_retrieval(Known(np.eye(2)), [batch(0, 2, images=torch.zeros(2, 1))])
    with refused("data.eval_shards"):
        evaluate_retrieval(Known(np.eye(2)), [])


PUBLISHED = {  # METHODS G16: GSL's table 1 (δ = .4, .5), CRCL on Flickr30K with 20 and 40 % noise
    497.0: ((77.0, 94.0, 97.1), (57.9, 82.4, 88.6)),
    498.6: ((77.6, 94.7, 97.0), (58.5, 82.2, 88.6)),
    507.8: ((77.9, 95.4, 98.3), (60.9, 84.7, 90.6)),
    505.2: ((77.8, 95.2, 98.0), (60.0, 84.0, 90.2)),
}


@pytest.mark.parametrize("total", PUBLISHED)
def test_the_sum_of_recalls_of_published_rows(total: float) -> None:
    i2t, t2i = (dict(zip((1, 5, 10), values, strict=True)) for values in PUBLISHED[total])
    assert rsum(RecallAtK(i2t, t2i)) == pytest.approx(total)


def test_each_task_names_the_figure_that_decides() -> None:
    assert {name: figure for name, (_, figure) in TASKS.items()} == {
        "retrieval": "rsum",
        "classification": "accuracy",
        "image_retrieval": "map_at_r",
    }
