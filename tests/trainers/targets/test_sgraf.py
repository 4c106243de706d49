"""SGR and SAF against an independent loop over pairs and words, hand-worked cases and finite differences."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from noisegate.trainers.targets import Encoded
from noisegate.trainers.targets.sgraf import SAF, SGR, CaptionNorm, SelfPool, Sgraf, attend, similarity_vector
from tests.trainers.small_targets import CAPTIONS, inputs, small


def encoded(parts: list[list[list[float]]]) -> Encoded:
    tensor = torch.nn.functional.normalize(torch.tensor(parts), dim=-1)
    return {"vectors": tensor[:, 0], "parts": tensor, "mask": torch.ones(tensor.shape[:2], dtype=torch.bool)}


def test_similarity_vector_of_equal_vectors_is_zero() -> None:
    x = torch.tensor([0.6, 0.8])
    assert similarity_vector(x, x, torch.eye(2)).tolist() == [0.0, 0.0]


def test_saf_with_one_word_by_hand() -> None:
    saf = SAF(2).eval()
    with torch.no_grad():
        saf.norm.running_var.fill_(1 - saf.norm.eps)
        saf.score.weight.copy_(torch.tensor([[math.log(3.0), 0.0]]))
        saf.score.bias.zero_()
    # gates σ(ln 3) = 3/4 and σ(0) = 1/2: weights .6 and .4 of (1, 0) and (0, 1), then unit length
    nodes = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    found = saf(nodes, torch.tensor([True, True]))
    assert found.tolist() == pytest.approx([0.6 / math.hypot(0.6, 0.4), 0.4 / math.hypot(0.6, 0.4)], abs=1e-6)
    assert saf(nodes, torch.tensor([True, False])).tolist() == pytest.approx([1.0, 0.0])


def test_sgr_with_one_step_by_hand() -> None:
    sgr = SGR(2, 1)
    with torch.no_grad():
        for layer in (sgr.incoming[0], sgr.outgoing[0], sgr.renew[0]):
            layer.weight.copy_(torch.eye(2))
            layer.bias.zero_()
    nodes = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    # the global node's affinities are 1 and 0: edges e/(e+1) and 1/(e+1)
    e = math.e
    assert sgr(nodes, torch.tensor([True, True])).tolist() == pytest.approx([e / (e + 1), 2 / (e + 1)], rel=1e-6)
    assert sgr(nodes, torch.tensor([True, False])).tolist() == pytest.approx([1.0, 0.0])


def test_a_word_sees_the_region_it_resembles() -> None:
    images, texts = encoded([[[1.0, 0.0], [0.0, 1.0]]]), encoded([[[1.0, 0.0]]])
    # cosines 1 and 0; over one word each is divided by its own size: 1 and 0; softmax at 9
    weight = math.exp(9) / (math.exp(9) + 1)
    seen = [weight / math.hypot(weight, 1 - weight), (1 - weight) / math.hypot(weight, 1 - weight)]
    assert attend(images, texts, 9.0)[0, 0, 0].tolist() == pytest.approx(seen, rel=1e-5)


def test_what_a_word_sees_has_unit_length_and_nothing_where_there_are_no_regions() -> None:
    images, texts = encoded([[[1.0, 0.0], [-0.6, 0.8]]] * 2), encoded([[[1.0, 0.0], [0.0, 1.0]]])
    images["mask"][1] = False
    seen = attend(images, texts, 9.0)
    assert seen[0].norm(dim=-1).flatten().tolist() == pytest.approx([1.0, 1.0])
    assert not seen[1].any()


def test_saf_norms_the_scores_of_each_caption_over_its_images_and_words() -> None:
    """One caption after the other against torch's own batch norm, the running figures too; padding takes no part."""
    norm, theirs = CaptionNorm(), torch.nn.BatchNorm1d(1)
    with torch.no_grad():
        for layer in (norm, theirs):
            layer.weight.fill_(1.5)
            layer.bias.fill_(-0.25)
    scores = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0)) * 2 + 1
    real = torch.ones(4, 3, 5, dtype=torch.bool)
    real[:, 1, 3:] = False
    found = norm(scores.masked_fill(~real, 99.0), real)
    for caption, length in enumerate((5, 3, 5)):
        expected = theirs(scores[:, caption, :length].unsqueeze(1))[:, 0]
        torch.testing.assert_close(found[:, caption, :length], expected)
    torch.testing.assert_close(norm.running_mean, theirs.running_mean)
    torch.testing.assert_close(norm.running_var, theirs.running_var)
    norm.eval()
    theirs.eval()
    torch.testing.assert_close(norm(scores, real), theirs(scores.reshape(-1, 1, 1)).reshape(4, 3, 5))


def test_dropout_and_batch_norm_are_where_the_published_code_has_them() -> None:
    """Words before the GRU and both attentions are dropped, region vectors are not; Xavier weights, biases of 0."""
    target = small("sgraf", dropout=0.5).train()
    images, tokens = inputs("sgraf", 3), target.tokenize(CAPTIONS)
    once, again = target.encode_images(images), target.encode_images(images)
    assert torch.equal(once["parts"], again["parts"]) and not torch.equal(once["vectors"], again["vectors"])
    assert not torch.equal(target.encode_texts(tokens)["parts"], target.encode_texts(tokens)["parts"])
    norms = {name for name, module in target.named_modules() if isinstance(module, torch.nn.BatchNorm1d)}
    assert norms == {"pool_regions.norm_part", "pool_regions.norm_whole", "matchers.saf.combine.norm"}
    assert target.pool_regions.norm_part.num_features == target.config.regions
    for name, module in target.named_modules():
        if isinstance(module, torch.nn.Linear):
            assert module.bias is None or not module.bias.any(), name
            assert module.weight.abs().max() <= math.sqrt(6 / (module.in_features + module.out_features)), name


@pytest.mark.parametrize("count", [1, 4])
def test_the_attention_of_regions_norms_each_place_over_images_and_dimensions(count: int) -> None:
    """By hand in numpy; one image alone has no deviation of its mean, so that the running figures serve."""
    pool = SelfPool(3, regions=2).train()
    parts = torch.nn.functional.normalize(torch.randn(count, 2, 3, generator=torch.Generator().manual_seed(1)), dim=-1)

    def array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
        return tensor.detach().double().numpy()

    def normal(values: np.ndarray[Any, Any], axes: tuple[int, ...]) -> np.ndarray[Any, Any]:
        mean, variance = values.mean(axis=axes, keepdims=True), values.var(axis=axes, keepdims=True)
        return (values - mean) / np.sqrt(variance + 1e-5)

    x = array(parts)
    each = np.tanh(normal(x @ array(pool.part.weight).T + array(pool.part.bias), (0, 2)))
    whole = x.mean(axis=1) @ array(pool.whole.weight).T + array(pool.whole.bias)
    whole = np.tanh(normal(whole, (0,)) if count > 1 else whole / np.sqrt(1 + 1e-5))
    weights = np.exp((each * whole[:, None]) @ array(pool.score.weight)[0])
    expected = ((weights / weights.sum(axis=1, keepdims=True))[..., None] * x).sum(axis=1)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = pool(parts, torch.ones(count, 2, dtype=torch.bool))
    np.testing.assert_allclose(array(found), expected, rtol=1e-5)


def test_global_vector_without_preference_is_the_mean_direction() -> None:
    pool = SelfPool(2)
    with torch.no_grad():
        pool.score.weight.zero_()
    parts = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]]])
    mask = torch.tensor([[True, True, False]])
    assert pool(parts, mask)[0].tolist() == pytest.approx([math.sqrt(0.5)] * 2)


def by_loops(target: Sgraf, images: Encoded, texts: Encoded) -> np.ndarray[Any, Any]:
    """The equations of the appendix, one pair and one word at a time, in float64 numpy."""

    def array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
        return tensor.detach().double().numpy()

    def linear(layer: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array(layer.weight) @ x + (array(layer.bias) if layer.bias is not None else 0)

    def unit(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x / np.linalg.norm(x)

    def sigmoid(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    result = np.zeros((len(images["vectors"]), len(texts["vectors"])))
    for i in range(len(result)):
        regions = [array(p) for p, real in zip(images["parts"][i], images["mask"][i], strict=True) if real]
        for t in range(result.shape[1]):
            words = [array(p) for p, real in zip(texts["parts"][t], texts["mask"][t], strict=True) if real]
            c = np.array([[v @ w for w in words] for v in regions])
            c = np.where(c > 0, c, 0.1 * c)
            c = c / np.sqrt((c**2).sum(axis=1, keepdims=True))
            alpha = np.exp(target.config.sharpness * c)
            alpha = alpha / alpha.sum(axis=0)
            seen = [unit(sum(alpha[k, j] * regions[k] for k in range(len(regions)))) for j in range(len(words))]
            scores = []
            for kind, matcher in target.matchers.items():
                nodes = [
                    unit(linear(matcher.of_wholes, (array(images["vectors"][i]) - array(texts["vectors"][t])) ** 2))
                ]
                nodes += [unit(linear(matcher.of_words, (a - w) ** 2)) for a, w in zip(seen, words, strict=True)]
                if kind == "sgr":
                    for step in range(target.config.steps):
                        into = [linear(matcher.combine.incoming[step], s) for s in nodes]
                        out = [linear(matcher.combine.outgoing[step], s) for s in nodes]
                        renewed = []
                        for p in range(len(nodes)):
                            e = np.exp([into[p] @ out[q] for q in range(len(nodes))])
                            mixed = sum(weight * s for weight, s in zip(e / e.sum(), nodes, strict=True))
                            renewed.append(np.maximum(0, linear(matcher.combine.renew[step], mixed)))
                        nodes = renewed
                    final = nodes[0]
                else:
                    norm = math.sqrt(1 + 1e-5)  # nothing was trained: running mean 0, variance 1
                    gates = np.array([sigmoid(linear(matcher.combine.score, s)[0] / norm) for s in nodes])
                    final = unit(sum(g * s for g, s in zip(gates / gates.sum(), nodes, strict=True)))
                scores.append(sigmoid(linear(matcher.last, final)[0]))
            result[i, t] = np.mean(scores)
    return result


@pytest.mark.parametrize("module", ["sgr", "saf", "sgraf"])
def test_similarities_agree_with_loops_over_pairs_and_words(module: str) -> None:
    target = small("sgraf", seed=2, module=module)
    images = inputs("sgraf", 3)
    images[1, 2:] = 0
    sides = target(images, target.tokenize(CAPTIONS))
    np.testing.assert_allclose(target.similarity(*sides).detach(), by_loops(target, *sides), rtol=1e-5, atol=1e-6)


def test_sgraf_is_the_mean_of_its_two_matchers() -> None:
    target = small("sgraf")
    images, texts = target(inputs("sgraf"), target.tokenize(CAPTIONS))
    seen = attend(images, texts, target.config.sharpness)
    each = [matcher(images, texts, seen) for matcher in target.matchers.values()]
    assert len(each) == 2
    torch.testing.assert_close(target.similarity(images, texts), (each[0] + each[1]) / 2)


@pytest.mark.parametrize("block", [1, 150, 10_000])
def test_blocks_change_memory_and_nothing_else(block: int) -> None:
    whole, cut = small("sgraf"), small("sgraf", block=block)
    images, texts = whole(inputs("sgraf", 5), whole.tokenize(CAPTIONS))
    torch.testing.assert_close(cut.similarity(images, texts), whole.similarity(images, texts), rtol=1e-5, atol=1e-6)


def test_recomputed_blocks_have_the_same_gradient() -> None:
    gradients = []
    for recompute in (False, True):
        target = small("sgraf", block=100, recompute=recompute)
        images, texts = target(inputs("sgraf"), target.tokenize(CAPTIONS))
        target.similarity(images, texts).square().sum().backward()
        gradients.append([p.grad for p in target.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("block", [1, 150, 10_000])
def test_blocks_and_recomputation_change_nothing_in_training(block: int, recompute: bool) -> None:
    """SAF norms over all images of a caption, and its running figures move once per caption."""
    seen = []
    for changes in ({}, {"block": block, "recompute": recompute}):
        target = small("sgraf", dropout=0.0, **changes)
        images, texts = target(inputs("sgraf", 5), target.tokenize(CAPTIONS))
        target.train()
        similarity = target.similarity(images, texts)
        for _ in range(2):
            similarity.square().sum().backward(retain_graph=True)
        norm = target.matchers["saf"].combine.norm
        assert norm.momentum == 0.1
        seen.append(([similarity, norm.running_mean, norm.running_var], [p.grad for p in target.parameters()]))
    torch.testing.assert_close(seen[1][0], seen[0][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(seen[1][1], seen[0][1], rtol=1e-3, atol=1e-3)  # of numbers up to 17


@pytest.mark.parametrize("module", ["sgr", "saf"])
def test_matching_has_the_gradient_of_finite_differences(module: str) -> None:
    target = small("sgraf", seed=1, module=module, width=3, similarity_width=3)
    texts = target.encode_texts(target.tokenize(["a dog"]))
    texts = {name: t.detach() for name, t in texts.items()}
    images = {name: t.detach() for name, t in target.encode_images(inputs("sgraf", 1)).items()}
    parts = images["parts"].clone().requires_grad_()
    target.similarity({**images, "parts": parts}, texts).sum().backward()
    assert parts.grad is not None
    for place in [(0, 0, 0), (0, 3, 2), (0, 4, 1)]:
        moved = [images["parts"].clone() for _ in range(2)]
        moved[0][place] += 1e-3
        moved[1][place] -= 1e-3
        above, below = (by_loops(target, {**images, "parts": m}, texts)[0, 0] for m in moved)
        assert (above - below) / 2e-3 == pytest.approx(float(parts.grad[place]), rel=0.02, abs=1e-5)
