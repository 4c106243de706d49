"""SCAN against loops over regions and words."""

import math

import pytest
import torch

from noisegate.trainers.bench.paper_bench import load_paper_preset
from noisegate.trainers.targets.scan import Scan
from tests.trainers.small_targets import CAPTIONS, inputs, small


def stacked_attention(asked: torch.Tensor, asking: torch.Tensor, sharpness: float) -> list[float]:
    """Relevance of each asking part: cosine with what it sees of the asked parts; (K, d) and (L, d) unit rows."""
    cosine = [[float(a @ b) for b in asking] for a in asked]
    leaky = [[c if c > 0 else 0.1 * c for c in row] for row in cosine]
    normal = [[c / math.sqrt(sum(other**2 for other in row)) for c in row] for row in leaky]
    found = []
    for j, query in enumerate(asking):
        weights = [math.exp(sharpness * row[j]) for row in normal]
        context = sum(w * part for w, part in zip(weights, asked, strict=True))
        found.append(float(torch.cosine_similarity(context, query, dim=0)))
    return found


@pytest.mark.parametrize("pooling", ["mean", "lse"])
@pytest.mark.parametrize(("way", "sharpness", "lse"), [("t2i", 9.0, 6.0), ("i2t", 4.0, 5.0)])
def test_similarities_by_loops(way: str, sharpness: float, lse: float, pooling: str) -> None:
    target = small("scan", attention=way, pooling=pooling)
    assert isinstance(target, Scan)
    pictures = inputs("scan", 3)
    pictures[1, 3:] = 0  # fewer regions
    with torch.no_grad():
        images, texts = target.encode_images(pictures), target.encode_texts(target.tokenize(CAPTIONS))
        table = target.similarity(images, texts)
    assert table.shape == (3, len(CAPTIONS))
    for i in range(3):
        for t in range(len(CAPTIONS)):
            regions = images["parts"][i][images["mask"][i]].double()
            words = texts["parts"][t][texts["mask"][t]].double()
            sides = (regions, words) if way == "t2i" else (words, regions)
            relevance = stacked_attention(*sides, sharpness)
            if pooling == "mean":
                expected = sum(relevance) / len(relevance)
            else:
                expected = math.log(sum(math.exp(lse * r) for r in relevance)) / lse
            assert float(table[i, t]) == pytest.approx(expected, abs=1e-5)


def test_regions_enter_by_a_map_of_xavier() -> None:
    layer = small("scan").to_joint
    bound = math.sqrt(6 / (6 + 8))
    assert not layer.bias.any()
    assert 0.8 * bound < layer.weight.abs().max() <= bound  # torch's own is 1 / sqrt(6)


def test_the_log_sum_exp_of_published_coco_models_is_sharper() -> None:
    plain, sharp = (small("scan", attention="i2t", pooling="lse", lse_scale=scale) for scale in (None, 20))
    with torch.no_grad():
        images, texts = plain(inputs("scan"), plain.tokenize(CAPTIONS))
        regions, words = images["parts"][0].double(), texts["parts"][0][texts["mask"][0]].double()
        relevance = stacked_attention(words, regions, 4.0)
        for target, scale in ((plain, 5), (sharp, 20)):
            expected = math.log(sum(math.exp(scale * r) for r in relevance)) / scale
            assert float(target.similarity(images, texts)[0, 0]) == pytest.approx(expected, abs=1e-5)


def test_presets_train_scan_as_published_for_each_data_set() -> None:
    """Its README: learning rate, epochs until the rate falls, and epochs; methods add their warm-up to both."""
    for name, rate, every, epochs in (("coco", 5e-4, 10, 20), ("flickr30k", 2e-4, 15, 30)):
        setup = load_paper_preset(name).setups["scan"]
        assert setup.config["optimizer"]["lr"] == rate
        for changes in setup.methods.values():
            warmup = changes["method"].get("warmup", 0)
            assert {**setup.config["schedule"], **changes.get("schedule", {})}["every"] == every + warmup
            assert {**setup.config["loop"], **changes.get("loop", {})}["epochs"] == epochs + warmup


def test_blocks_change_nothing() -> None:
    whole, blocks = small("scan"), small("scan", block=1)
    pictures = inputs("scan", 4)
    with torch.no_grad():
        for target in (whole, blocks):
            target.load_state_dict(whole.state_dict())
        tables = [
            t.similarity(t.encode_images(pictures), t.encode_texts(t.tokenize(CAPTIONS))) for t in (whole, blocks)
        ]
    torch.testing.assert_close(tables[0], tables[1], rtol=1e-5, atol=1e-6)
