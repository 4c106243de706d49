"""TANGO by hand: its classifier, refinement against loops, losses with known mixing, anchors, and whole runs of seconds."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from noisegate import train
from noisegate.pipeline.labels.anchors import Anchors, anchors_file
from noisegate.pipeline.labels.classes import TEMPLATES, prompts
from noisegate.pipeline.labels.tango import refine, text_anchor_logits
from noisegate.pipeline.runs.table import RunFolder, read_table
from noisegate.trainers.config import TrainConfig, build_method
from noisegate.trainers.data import Batch
from noisegate.trainers.methods import Seen
from noisegate.trainers.methods.mixup import mixup, one_hot
from noisegate.trainers.methods.tango import Tango, TangoConfig, make_anchors, text_anchored_logits
from noisegate.trainers.targets import build_target, load_target, resolve_target, save_target, target_config
from noisegate.trainers.targets.base import PROMPT
from tests.errors import refused
from tests.jobs import run_record
from tests.trainers.runs import TARGET, curve, same_weights, settings, weights
from tests.trainers.small_targets import CAPTIONS, CONFIGS, small

CLASSES = ("dog", "cat", "bird")


def unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def drawn(*shape: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(shape)


class FakeRun:
    """Twelve rows whose features are given; images are those features, and a network that leaves them as they are."""

    task, seed, epoch, step, total_rows = "classification", 5, 0, 0, 12
    device = torch.device("cpu")

    def __init__(self, columns: Mapping[str, NDArray[Any]] | None = None, table: Path | None = None) -> None:
        self.columns, self.table = columns or {}, table
        self.vectors = unit(drawn(12, 4)).astype(np.float32)
        self.labels = np.arange(12) % 3
        self.target = small("clip", classes=CLASSES)
        self.measured = 0
        self.notes: list[str] = []

    def measure(
        self, function: Callable[[Seen], Mapping[str, Tensor]], network: int = 0, *, texts: bool = True
    ) -> dict[str, NDArray[Any]]:
        assert not texts, "no prompt needs to be encoded for features"
        self.measured += 1
        vectors = torch.from_numpy(self.vectors)
        seen = Seen(torch.arange(12), {"vectors": vectors}, torch.tensor(1.0), labels=torch.from_numpy(self.labels))
        return {name: values.float().numpy() for name, values in function(seen).items()}

    def on_device(self, batch: Batch) -> Batch:
        return batch

    def network(self, network: int = 0) -> Any:
        return self.target

    def encode_images(self, images: Tensor, network: int = 0) -> dict[str, Tensor]:
        return {"vectors": torch.nn.functional.normalize(images, dim=1)}

    def gather(self, rows: Tensor) -> Tensor:
        return rows

    def column(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def random(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(len(purpose))

    def note(self, text: str) -> None:
        self.notes.append(text)


def tango(**how: Any) -> Tango:
    how = {"name": "tango", "warmup": 0, **how}
    method = build_method(TrainConfig.parse({"method": how, "task": {"name": "classification"}}))
    assert isinstance(method, Tango)
    return method


def with_anchors(count: int = 6, **how: Any) -> Tango:
    method = tango(**how)
    method.anchors = torch.from_numpy(unit(drawn(count, 4, seed=1)).astype(np.float32))
    method.anchor_labels = torch.arange(count) % 3
    return method


# --- the classifier -----------------------------------------------------------------------------------------------------


def test_g13_scale_keeps_the_sharpness_of_forty_prompts() -> None:
    """Class cosines .30 and .20: a gap of 5.138242 at K = 40 whatever K is; the bare sum has .128456 at K = 1."""
    for k in (1, 5, 40):
        texts = np.repeat([[0.3, math.sqrt(0.91)], [0.2, math.sqrt(0.96)]], k, axis=0)
        labels = torch.tensor([0] * k + [1] * k)
        image = torch.tensor([[1.0, 0.0]])
        logits = text_anchored_logits(image, torch.from_numpy(texts).float(), labels)
        assert float(logits[0, 0] - logits[0, 1]) == pytest.approx(5.138242, abs=1e-4)
        bare = text_anchored_logits(image, torch.from_numpy(texts).float(), labels, scale=float(k))
        assert float(bare[0, 0] - bare[0, 1]) == pytest.approx(0.128456 * k, abs=1e-4)


def test_classes_with_more_prompts_do_not_win_by_number() -> None:
    vectors, anchors = unit(drawn(5, 4)), unit(drawn(7, 4, seed=1))
    labels = [0, 2, 1, 0, 0, 2, 0]
    found = text_anchored_logits(
        torch.from_numpy(vectors).float(), torch.from_numpy(anchors).float(), torch.tensor(labels)
    )
    for i in range(5):
        for c in range(3):
            own = [math.exp(float(vectors[i] @ anchors[j])) for j in range(7) if labels[j] == c]
            assert float(found[i, c]) == pytest.approx(40 * sum(own) / len(own), rel=1e-5)
    np.testing.assert_allclose(found, text_anchor_logits(vectors, anchors, labels, classes=3), rtol=1e-5)


def test_gradient_of_the_classifier_on_mixed_soft_labels() -> None:
    anchors, labels = torch.from_numpy(unit(drawn(6, 4, seed=1))), torch.arange(6) % 3
    soft = torch.from_numpy(np.random.default_rng(2).dirichlet([1, 1, 1], 5))

    def loss(images: Tensor) -> Tensor:
        mixed, target = mixup(images, soft, np.random.default_rng(0))
        cosines = torch.nn.functional.normalize(mixed, dim=1) @ anchors.T
        total = torch.zeros(5, 3, dtype=torch.float64).index_add(1, labels, cosines.exp())
        return -(target * (total * 20).log_softmax(1)).sum(1)

    images = torch.from_numpy(drawn(5, 4)).requires_grad_()
    assert torch.autograd.gradcheck(loss, (images,))
    vectors = torch.from_numpy(unit(drawn(5, 4))).float().requires_grad_()
    text_anchored_logits(vectors, anchors.float(), labels)[:, 0].sum().backward()
    by_hand = 20 * (torch.exp(vectors @ anchors[:4:3].float().T)[:, :, None] * anchors[:4:3].float()).sum(1)
    torch.testing.assert_close(vectors.grad, by_hand.detach())


# --- mixup ----------------------------------------------------------------------------------------------------------------


def test_mixup_of_soft_labels() -> None:
    images, labels = torch.from_numpy(drawn(4, 2, 3)), torch.from_numpy(np.random.default_rng(1).dirichlet([1] * 5, 4))
    mixed, soft = mixup(images, labels, np.random.default_rng(7), alpha=4.0)
    rng = np.random.default_rng(7)
    share = rng.beta(4, 4)
    share = max(share, 1 - share)
    order = rng.permutation(4)
    assert 0.5 <= share < 1
    for i in range(4):
        np.testing.assert_allclose(mixed[i], share * images[i] + (1 - share) * images[order[i]])
        np.testing.assert_allclose(soft[i], share * labels[i] + (1 - share) * labels[order[i]])
    np.testing.assert_allclose(soft.sum(1), 1)
    shares = [float(mixup(torch.ones(1, 1), torch.ones(1, 1), np.random.default_rng(s))[0]) for s in range(5)]
    assert shares == pytest.approx([1] * 5), "a batch of one is left alone"


# --- refinement -----------------------------------------------------------------------------------------------------------


def by_loops(
    vectors: NDArray[Any], labels: NDArray[Any], anchors: NDArray[Any], of_anchor: NDArray[Any], k: int, b: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    """q and Ỹ (N, C) from Eq. 9-12 and METHODS 6.3, with sorting and counting alone; nobody here is without pickers."""
    n, c = len(vectors), int(of_anchor.max()) + 1
    cosine, to_anchor = vectors @ vectors.T, vectors @ anchors.T
    near = [[j for j in np.argsort(-cosine[i], kind="stable") if j != i][:k] for i in range(n)]
    eye = np.eye(c)
    q, soft = np.zeros((n, c)), np.zeros((n, c))
    size = np.bincount(labels, minlength=c)
    quota = max(1, n // c)
    lists = [np.argsort(-to_anchor[:, a], kind="stable")[:quota] for a in range(len(anchors))]
    for i in range(n):
        vote = sum(eye[labels[j]] / size[labels[j]] for j in near[i])
        nearest = np.argsort(-to_anchor[i], kind="stable")[: len(anchors) // c]
        p_vis, p_sem = vote / vote.sum(), sum(eye[of_anchor[a]] for a in nearest) / len(nearest)
        q[i] = (1 - b) * p_vis + b * p_sem
        pickers = [labels[j] for j in range(n) if i in near[j]]
        listed = [of_anchor[a] for a in range(len(anchors)) if i in lists[a]]
        y_vis = sum(eye[y] for y in pickers) / len(pickers) if pickers else p_vis
        y_sem = sum(eye[y] for y in listed) / len(listed) if listed else p_sem
        soft[i] = (1 - b) * y_vis + b * y_sem
    return q, soft


@pytest.mark.parametrize("b", [0.5, 0.2])
def test_an_epoch_begins_with_the_papers_refinement_of_current_features(b: float) -> None:
    method, run = with_anchors(b=b, k=4), FakeRun()
    method.begin_epoch(run)  # type: ignore[arg-type]
    assert method.anchors is not None
    q, soft = by_loops(run.vectors, run.labels, method.anchors.numpy(), method.anchor_labels.numpy(), 4, b)
    np.testing.assert_allclose(method.soft, soft, atol=1e-6)
    np.testing.assert_allclose(method.soft.sum(axis=1), 1, atol=1e-6)
    columns = method.sample_columns()
    own = q[np.arange(12), run.labels]
    assert columns["clean_tango"].tolist() == (own >= q.max(axis=1) - 1e-9).tolist()
    np.testing.assert_allclose(columns["consistency"], own / q.max(axis=1), atol=1e-6)
    np.testing.assert_allclose(columns["refined_confidence"], soft.max(axis=1), atol=1e-6)
    at_most = soft[np.arange(12), columns["refined_label"]]
    np.testing.assert_allclose(at_most, soft.max(axis=1), atol=1e-6)
    before = method.soft.copy()
    run.vectors = run.vectors[::-1].copy()
    run.epoch = 1
    method.begin_epoch(run)  # type: ignore[arg-type]
    assert run.measured == 2
    assert not np.allclose(method.soft, before), "refined anew from what the network sees now"


def test_g14_g21_g22_through_the_soft_labels() -> None:
    """Eq. 9-10: two votes of a class of four against one of a class of one; Eq. 11-12: 0→1, 1→0, 2→0."""
    lists = np.array([[1, 2, 4], [0, 2, 4], [0, 1, 4], [0, 1, 4], [0, 1, 2]])
    found = refine([0, 0, 0, 0, 1], classes=2, neighbours=lists, keep_soft=True)
    assert found.p_vis[0] == pytest.approx(1 / 3), "G21"
    assert not found.clean_tango[0]
    listed = refine([0, 1, 1], classes=2, neighbours=np.array([[1], [0], [0]]), keep_soft=True)
    assert listed.soft is not None
    assert listed.soft.tolist() == [[0, 1], [1, 0], [1, 0]], "G22; nobody lists row 2, so its neighbour decides"
    assert listed.indegree0.tolist() == [False, False, True]
    vectors, anchors = unit(drawn(60, 8)), unit(drawn(12, 8, seed=1))
    whole = refine(
        np.arange(60) % 4, 4, neighbours=lists_of(vectors, 7), images=vectors, anchors=anchors,
        anchor_labels=np.arange(12) % 4, keep_soft=True,
    )  # fmt: skip
    assert whole.soft is not None
    np.testing.assert_allclose(whole.soft.sum(axis=1), 1, atol=1e-6)
    assert refine([0, 1, 1], classes=2, neighbours=np.array([[1], [0], [0]])).soft is None, "only where asked for"


def lists_of(vectors: NDArray[Any], k: int) -> NDArray[Any]:
    cosine = vectors @ vectors.T
    np.fill_diagonal(cosine, -2)
    return np.argsort(-cosine, axis=1)[:, :k]


def test_invalid_rows_keep_their_label_and_are_not_clean() -> None:
    method, run = with_anchors(k=4), FakeRun()
    run.vectors[3] = np.nan
    method.begin_epoch(run)  # type: ignore[arg-type]
    assert np.isnan(method.soft[3]).all()
    assert not method.sample_columns()["clean"][3]
    found = method._soft_labels(np.array([3, 4]), torch.tensor([0, 1]))
    assert found[0].tolist() == [1, 0, 0]
    np.testing.assert_allclose(found[1], method.soft[4])


def test_anchors_that_do_not_say_what_the_neighbours_say_lead_to_plain_training() -> None:
    """Pictures stand on three anchors, four on each, with the label of another anchor, then with its own."""
    method, run = with_anchors(3, k=3, warmup=None), FakeRun()
    assert method.anchors is not None
    run.vectors = method.anchors.numpy()[np.arange(12) % 3]
    for shift, plain in ((1, True), (0, False)):
        method.plain = False
        run.labels = (np.arange(12) + shift) % 3
        method.begin_epoch(run)  # type: ignore[arg-type]
        assert method.plain == plain
        again = with_anchors(3)
        again.load_state_dict(method.state_dict())
        assert again.plain == plain


# --- losses ---------------------------------------------------------------------------------------------------------------


def batch(run: FakeRun, rows: list[int]) -> dict[str, Batch]:
    images = torch.from_numpy(drawn(12, 4, seed=9)).float()[rows]
    labels = torch.from_numpy(run.labels[rows])
    return {"all": Batch(rows=torch.tensor(rows), keys=[str(r) for r in rows], images=images, labels=labels)}


def expected(
    method: Tango, run: FakeRun, images: NDArray[Any], rows: list[int], clean: list[bool], alpha: float = 4.0
) -> tuple[float, float]:
    """L_clean and L_reg with numpy alone, λ and the permutation drawn as `mixup` says."""
    anchors, of_anchor = method.anchors.numpy(), method.anchor_labels.numpy()  # type: ignore[union-attr]

    def log_softmax(x: NDArray[Any]) -> NDArray[Any]:
        affinity = np.exp(unit(x.astype(np.float64)) @ anchors.T)
        logits = np.stack([40 * affinity[:, of_anchor == c].mean(axis=1) for c in range(3)], axis=1)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    given = run.labels[rows]
    own = [-log_softmax(images)[i, given[i]] for i in range(len(rows)) if clean[i]]
    rng = run.random("mixup")
    share = rng.beta(alpha, alpha)
    share = max(share, 1 - share)
    order = rng.permutation(len(rows))
    soft = method.soft[rows]
    mixed = share * images + (1 - share) * images[order]
    target = share * soft + (1 - share) * soft[order]
    return (float(np.mean(own)) if own else 0.0), float(-(target * log_softmax(mixed)).sum(axis=1).mean())


@pytest.mark.parametrize(("none_clean", "epochs", "alpha"), [(False, 300, 4.0), (True, 300, 4.0), (False, 20, 0.1)])
def test_loss_is_clean_plus_mixed(none_clean: bool, epochs: int, alpha: float) -> None:
    """A short run hardly mixes."""
    method, run = with_anchors(k=4), FakeRun()
    assert method.epochs(epochs) == epochs
    method.begin_epoch(run)  # type: ignore[arg-type]
    rows = [0, 3, 5, 8, 11]
    if none_clean:
        method.columns_by_row["clean_tango"][:] = False
    else:
        method.columns_by_row["clean_tango"][rows] = [True, False, True, False, False]
    clean = method.columns_by_row["clean_tango"][rows].tolist()
    work = batch(run, rows)
    step = method.loss(work, run)  # type: ignore[arg-type]
    on_clean, on_all = expected(method, run, work["all"].images.numpy(), rows, clean, alpha)  # type: ignore[union-attr]
    assert step.loss is not None
    assert float(step.loss) == pytest.approx(on_clean + on_all, rel=1e-5)
    assert float(step.logs["loss_clean"]) == pytest.approx(on_clean, rel=1e-5)
    assert float(step.logs["clean_share"]) == pytest.approx(np.mean(clean))
    assert (on_clean == 0) == none_clean


def test_a_single_clean_sample_is_not_encoded_alone() -> None:
    """Batch normalisation takes no batch of one."""

    class Normalising(FakeRun):
        def encode_images(self, images: Tensor, network: int = 0) -> dict[str, Tensor]:
            assert len(images) > 1, "expected more than 1 value per channel when training"
            return super().encode_images(images, network)

    method, run = with_anchors(k=4), Normalising()
    method.begin_epoch(run)  # type: ignore[arg-type]
    rows = [0, 3, 5]
    method.columns_by_row["clean_tango"][rows] = [False, True, False]
    step = method.loss(batch(run, rows), run)  # type: ignore[arg-type]
    assert float(step.logs["loss_clean"]) > 0


def test_the_table_serves_the_first_epochs_where_it_is_asked_to_and_knows_labels() -> None:
    columns: dict[str, NDArray[Any]] = {
        name: np.full(12, np.nan, np.float32) for name in ("knn_consistency", "anchor_consistency", "consistency")
    }
    columns["refined_label"] = np.array([2, -1, *[0] * 10])
    columns["refined_confidence"] = np.array([0.7, np.nan, *[1.0] * 10], np.float32)
    columns["clean_tango"] = np.arange(12) < 6
    own = FakeRun(columns, Path("tables"))
    with_anchors(k=4).begin_epoch(own)  # type: ignore[arg-type]
    assert own.measured == 1, "as the paper: its own refinement from the first epoch on"
    run, method = FakeRun(columns, Path("tables")), with_anchors(k=4, table_epochs=1)
    method.begin_epoch(run)  # type: ignore[arg-type]
    assert run.measured == 0
    np.testing.assert_allclose(method.soft[0], [0.15, 0.15, 0.7], atol=1e-6)
    assert np.isnan(method.soft[1]).all(), "unknown: the given label"
    assert method.soft[2].tolist() == [1, 0, 0]
    assert method.sample_columns()["clean"].tolist() == columns["clean_tango"].tolist()
    run.epoch = 1
    method.begin_epoch(run)  # type: ignore[arg-type]
    assert run.measured == 1
    columns["refined_label"] = np.full(12, -1)
    empty, other = FakeRun(columns, Path("tables")), with_anchors(k=4, table_epochs=1)
    other.begin_epoch(empty)  # type: ignore[arg-type]
    assert empty.measured == 1


# --- anchors ----------------------------------------------------------------------------------------------------------------


def test_an_untrained_target_is_measured_by_its_own_anchors() -> None:
    run = FakeRun()
    anchors = make_anchors(run, "auto")  # type: ignore[arg-type]
    with torch.no_grad():
        own = run.target.encode_classes()["vectors"].numpy()
    np.testing.assert_allclose(anchors.embeddings, own, atol=1e-6)
    assert anchors.labels.tolist() == [0, 1, 2]
    assert run.notes == ["tango: anchors from 1 prompt per class by the untrained target"]


def test_anchors_that_cannot_be_told_apart_are_said_to_be_so() -> None:
    run = FakeRun()
    run.target = small("dual", classes=CLASSES, vocabulary={"kind": "hashing"}, text_pooling="mean")
    make_anchors(run, "auto")  # type: ignore[arg-type]
    assert "have a mean cosine of " in run.notes[1]
    assert "use a pretrained target, or shorter target.prompts, such as ['{}']" in run.notes[1]


def test_a_pretrained_target_reads_forty_sentences_per_class_and_is_measured_by_them() -> None:
    method = Tango(TangoConfig(), "classification")
    given = {"name": "clip", "model": "ViT-B-32", "pretrained": "openai", "classes": CLASSES}
    asked = method.target_settings(target_config(given))
    assert asked.prompts == TEMPLATES and len(TEMPLATES) == 40
    own_words = target_config({**given, "prompts": ["a {}"]})
    assert method.target_settings(own_words) == own_words.model_copy(update={"class_affinity": "exponential"})
    assert method.target_settings(target_config({**TARGET, "classes": CLASSES})).prompts == (PROMPT,), "from scratch"
    run = FakeRun()
    run.target = small("clip", classes=CLASSES, prompts=asked.prompts)
    anchors = make_anchors(run, "auto")  # type: ignore[arg-type]
    assert np.bincount(anchors.labels).tolist() == [40, 40, 40]
    sentence = prompts(CLASSES, TEMPLATES)[1][7]
    with torch.no_grad():
        own = run.target.encode_texts(run.target.tokenize([sentence]))["vectors"][0].numpy()
    np.testing.assert_allclose(anchors.embeddings[47], own, atol=1e-5)


def test_it_is_measured_by_the_text_anchored_classifier(tmp_path: Path) -> None:
    """exp is convex: a class with prompts at cosines .6 and -.2 beats one with .25 twice, though its mean cosine is .2."""
    method = Tango(TangoConfig(), "classification")
    asked = method.target_settings(target_config({**CONFIGS["clip"], "classes": ["a", "b"]}))
    target = build_target(resolve_target(asked, lambda: CAPTIONS))
    cosines = [0.6, -0.2, 0.25, 0.25]
    anchors = torch.zeros(4, 16)
    anchors[:, 0] = torch.tensor(cosines)
    anchors[:, 1] = (1 - anchors[:, 0] ** 2).sqrt()
    target.fix_classes(anchors, torch.tensor([0, 0, 1, 1]))
    image = {"vectors": torch.eye(1, 16)}
    expected = [20 * (math.exp(0.6) + math.exp(-0.2)), 40 * math.exp(0.25)]
    assert target.class_logits(image)[0].tolist() == pytest.approx(expected, rel=1e-5)
    assert target.class_similarity(image)[0].tolist() == pytest.approx([0.2, 0.25])
    save_target(target, tmp_path / "x.safetensors")
    loaded = load_target(tmp_path / "x.safetensors")
    assert loaded.class_logits(image)[0].tolist() == pytest.approx(expected, rel=1e-5), "by evaluate-model as well"


def test_anchors_of_the_table(tmp_path: Path) -> None:
    run = FakeRun(table=tmp_path)
    folder = RunFolder(tmp_path)
    folder.write_run(run_record([], model={"model": "other", "pretrained": None}))
    with refused("method.anchors", "table"):
        make_anchors(run, "table")  # type: ignore[arg-type]
    kept = Anchors(CLASSES, unit(drawn(3, 16)).astype(np.float32), np.arange(3))
    kept.save(anchors_file(folder))
    assert make_anchors(run, "table").digest == kept.digest  # type: ignore[arg-type]
    assert make_anchors(run, "auto").digest != kept.digest, "another model's space"  # type: ignore[arg-type]
    tango(anchors="table").prepare(run)  # type: ignore[arg-type]
    torch.testing.assert_close(run.target.encode_classes()["vectors"], torch.from_numpy(kept.embeddings))
    run.target = small("clip", classes=CLASSES)
    run.target.config = run.target.config.model_copy(update={"model": "other", "pretrained": None})
    assert make_anchors(run, "auto").digest == kept.digest  # type: ignore[arg-type]
    Anchors(CLASSES, unit(drawn(3, 9)).astype(np.float32), np.arange(3)).save(anchors_file(folder))
    with refused("method.anchors", "table") as caught:
        make_anchors(run, "auto")  # type: ignore[arg-type]
    assert "has 3 classes in 9 numbers, the target 3 in 16; use method.anchors=target" in str(caught.value)


def test_what_tango_cannot_work_with() -> None:
    with refused("task.name", "retrieval"):
        build_method(TrainConfig.parse({"method": {"name": "tango"}}))
    run = FakeRun()
    run.target = small("clip", classes=CLASSES, head="linear")
    with refused("target.head", "linear"):
        make_anchors(run, "auto")  # type: ignore[arg-type]


def test_one_hot_of_no_label_is_nothing() -> None:
    assert one_hot(torch.tensor([2, -1, 0]), 3).tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]


# --- whole runs ---------------------------------------------------------------------------------------------------------------


def test_a_run_trains_the_visual_tower_alone_and_resumes_exactly(scored: Path, tmp_path: Path) -> None:
    """Three epochs of five batches, stopped in the middle of the second; what it exports is its own, not the table's."""
    target = {**TARGET, "classes": str(scored / "clean" / "classes.txt")}
    plain = settings(
        scored,
        tmp_path,
        "tango",
        task={"name": "classification"},
        target=target,
        loop__epochs=3,
        method={"name": "tango", "warmup": 0},
        loop__evaluate_every=0,
    )
    whole = train(plain, quiet=True)
    part = train(plain, settings=["loop.max_steps=7"], quiet=True)
    done = train(resume=part.folder, settings=["loop.max_steps=null"], quiet=True)
    assert curve(done.folder) == curve(whole.folder)
    assert same_weights(done.folder / "last.safetensors", whole.folder / "last.safetensors")
    for name, values in whole.sample_columns.items():
        np.testing.assert_array_equal(done.sample_columns[name], values)
    short = train(plain, settings=["loop.epochs=1"], quiet=True)
    early, late = (weights(run.folder / "last.safetensors") for run in (short, whole))
    moved = {name for name, tensor in late.items() if not torch.equal(tensor, early[name])}
    assert moved
    assert all(name.startswith("model.visual.") for name in moved)
    table = read_table(scored / "tables", ["clean_tango", "refined_label"])
    assert short.sample_columns["refined_label"].tolist() != table["refined_label"].to_pylist()
    first = train(plain, settings=["loop.epochs=1", "method.table_epochs=1"], quiet=True)
    assert first.sample_columns["clean"].tolist() == table["clean_tango"].to_pylist()
    assert first.sample_columns["refined_label"].tolist() == table["refined_label"].to_pylist()


def test_autocast_does_not_round_the_cosines_of_tac() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors, anchors = (torch.nn.functional.normalize(torch.randn(n, 16, generator=generator)) for n in (5, 6))
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    exact = text_anchored_logits(vectors, anchors, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert text_anchored_logits(vectors, anchors, labels).equal(exact)
