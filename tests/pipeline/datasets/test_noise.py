"""Known noise: what the papers' generators give, and that the mask says what really changed."""

import re
import subprocess
import sys
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisegate.pipeline.datasets.noise.captions import shuffle_captions, shuffle_images
from noisegate.pipeline.datasets.noise.label_inputs import CIFAR10_MAP, CIFAR100_MAP, CIFAR100_SUPERCLASSES
from noisegate.pipeline.datasets.noise.labels import (
    LabelNoise,
    asymmetric,
    instance_dependent,
    pmd,
    pmd_factor,
    pmd_flip_probability,
    symmetric,
)
from noisegate.pipeline.datasets.noise.protocols import EXAMPLES, PROTOCOLS, count_chosen, protocol_id
from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.labels.classes import BUILT_IN
from tests.errors import refused

seeds = st.integers(0, 2**32 - 1)
rates = st.floats(0, 1)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# --- rates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "count", "chosen"),
    [(0.29, 100, 29), (0.58, 100, 58), (0.2, 145_000, 29_000), (0.6, 145_000, 87_000), (0.999, 10, 9), (1, 7, 7)],
)
def test_the_number_chosen_is_that_of_the_decimal_rate(rate: float, count: int, chosen: int) -> None:
    assert count_chosen(rate, count) == chosen


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_rate_outside_0_to_1_is_refused(rate: float) -> None:
    with refused("rate"):
        shuffle_captions(10, rate, rng())
    with refused("rate"):
        symmetric([0, 1], 2, rate, rng())


# --- captions --------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), max_size=40), rates, seeds)
def test_shuffled_captions_are_a_permutation_with_the_mask_of_what_left_its_image(
    images: list[int], rate: float, seed: int
) -> None:
    made = shuffle_captions(np.array(images, dtype=np.int64), rate, rng(seed))
    assert sorted(made.source.tolist()) == list(range(len(images)))
    assert made.noisy.tolist() == [images[source] != images[i] for i, source in enumerate(made.source)]
    moved = sum(source != i for i, source in enumerate(made.source))
    assert moved <= count_chosen(rate, len(images))
    assert made.rate == (sum(made.noisy) / len(images) if images else 0)
    again = shuffle_captions(np.array(images, dtype=np.int64), rate, rng(seed))
    assert again.source.tolist() == made.source.tolist()


@given(st.integers(1, 8), st.integers(1, 4), st.floats(0.0, 1.0), seeds)
def test_derange_makes_the_rate_exact_or_says_why_not(images: int, captions: int, rate: float, seed: int) -> None:
    ids = np.repeat(np.arange(images), captions)
    try:
        made = shuffle_captions(ids, rate, rng(seed), derange=True)
    except ConfigError as error:
        crowd, chosen = map(int, re.findall(r"(\d+) of the (\d+) chosen", str(error))[0])
        assert 2 * crowd > chosen == count_chosen(rate, len(ids))
    else:
        assert made.noisy.sum() == count_chosen(rate, len(ids))
        assert sorted(made.source.tolist()) == list(range(len(ids)))


def test_derange_succeeds_whenever_any_arrangement_could() -> None:
    for ids in ([0, 0, 1, 1], [0, 0, 1, 2], [0, 0, 0, 1, 1, 2], [0, 0, 0, 1, 2], [0, 1, 1]):
        possible = any(all(ids[j] != ids[i] for i, j in enumerate(order)) for order in permutations(range(len(ids))))
        for seed in range(20):
            if possible:
                assert shuffle_captions(ids, 1.0, rng(seed), derange=True).rate == 1.0
            else:
                with refused("derange", True):
                    shuffle_captions(ids, 1.0, rng(seed), derange=True)


def test_derangements_are_spread_over_all_that_exist() -> None:
    seen = {tuple(shuffle_captions(4, 1.0, rng(seed), derange=True).source) for seed in range(300)}
    assert len(seen) == 9  # the subfactorial of 4


@pytest.mark.parametrize(("rate", "bicro"), [(0.2, 28_999), (0.4, 58_000), (0.5, 72_497), (0.6, 86_996)])
def test_realised_count_on_flickr30k_is_a_few_below_nominal_like_the_published_files(rate: float, bicro: int) -> None:
    """G18: 145,000 captions, five per image; 1 + 4 rate stay on their image on average, whatever the size."""
    images = np.repeat(np.arange(29_000), 5)
    nominal = count_chosen(rate, len(images))
    stayed = [nominal - int(shuffle_captions(images, rate, rng(seed)).noisy.sum()) for seed in range(30)]
    assert 0 <= nominal - bicro <= max(stayed)
    assert abs(np.mean(stayed) - (1 + 4 * rate)) < 4 * np.sqrt((1 + 4 * rate) / 30)  # Poisson, four standard errors
    assert int(shuffle_captions(images, rate, rng(), derange=True).noisy.sum()) == nominal


def test_the_mask_goes_by_the_ids_that_are_given_not_by_groups_of_five() -> None:
    one_each = shuffle_captions(10, 1.0, rng(3))
    assert one_each.noisy.tolist() == [source != i for i, source in enumerate(one_each.source)]
    assert (one_each.noisy & (one_each.source // 5 == np.arange(10) // 5)).any()  # i // 5 would call these clean


def test_ids_may_be_names_and_equal_numbers_of_samples_mean_the_same_as_a_count() -> None:
    named = shuffle_captions(["b.jpg", "a.jpg", "c.jpg"], 1.0, rng(5))
    assert named.source.tolist() == shuffle_captions(3, 1.0, rng(5)).source.tolist()
    assert shuffle_captions(np.int64(3), 1.0, rng(5)).source.tolist() == named.source.tolist()


@given(st.integers(0, 12), st.integers(1, 4), rates, st.booleans(), seeds)
def test_image_level_shuffling_moves_all_captions_of_an_image_together(
    images: int, captions: int, rate: float, interleaved: bool, seed: int
) -> None:
    ids = np.tile(np.arange(images), captions) if interleaved else np.repeat(np.arange(images), captions)
    made = shuffle_images(ids, rate, rng(seed))
    assert sorted(made.source.tolist()) == list(range(len(ids)))
    for image in range(images):
        assert len(set(ids[made.source[ids == image]])) == 1
    assert made.noisy.tolist() == (ids[made.source] != ids).tolist()
    assert made.noisy.sum() <= captions * count_chosen(rate, images)


def test_image_level_shuffling_with_derange_is_exact() -> None:
    made = shuffle_images(np.repeat(np.arange(50), 5), 0.4, rng(1), derange=True)
    assert made.noisy.sum() == 100
    assert shuffle_images(50, 0.4, rng(1), derange=True).noisy.sum() == 20


def test_shuffling_captions_differs_from_shuffling_images() -> None:
    ids = np.repeat(np.arange(20), 5)
    made = shuffle_captions(ids, 1.0, rng(0))
    assert max(len(set(ids[made.source[ids == image]])) for image in range(20)) > 1


def test_pair_errors_name_what_was_given() -> None:
    with refused("images", -1):
        shuffle_captions(-1, 0.4, rng())
    with refused("images", (2, 1)):
        shuffle_captions([[0], [1]], 0.4, rng())
    with refused("images"):
        shuffle_images([0, 0, 1], 0.4, rng())
    with refused("derange", True):
        shuffle_captions(1, 1.0, rng(), derange=True)


# --- labels ----------------------------------------------------------------------------------------------------------


def counted(true: list[int], given_labels: list[int], classes: int) -> list[list[int]]:
    table = [[0] * classes for _ in range(classes)]
    for before, after in zip(true, given_labels, strict=True):
        table[before][after] += 1
    return table


def make(kind: str, labels: list[int], rate: float, seed: int) -> LabelNoise:
    classes = 5
    features = rng(seed + 1).normal(size=(len(labels), 3))
    if kind == "symmetric":
        return symmetric(labels, classes, rate, rng(seed))
    if kind == "inclusive":
        return symmetric(labels, classes, rate, rng(seed), inclusive=True)
    if kind == "asymmetric":
        return asymmetric(labels, [1, 0, 2, 4, 3], rate, rng(seed))
    if kind == "instance-dependent":
        return instance_dependent(labels, features, classes, rate, rng(seed))
    posteriors = rng(seed + 1).dirichlet(np.ones(classes), size=len(labels))
    return pmd(labels, posteriors, "III", rng(seed), factor=1 + rate)


@pytest.mark.parametrize("kind", ["symmetric", "inclusive", "asymmetric", "instance-dependent", "pmd"])
@settings(max_examples=40)
@given(labels=st.lists(st.integers(0, 4), max_size=30), rate=rates, seed=st.integers(0, 2**31))
def test_every_label_protocol_reports_what_it_did(kind: str, labels: list[int], rate: float, seed: int) -> None:
    before = list(labels)
    made = make(kind, labels, rate, seed)
    after = made.labels.tolist()
    assert labels == before
    assert all(0 <= label < 5 for label in after)
    assert made.noisy.tolist() == [a != b for a, b in zip(before, after, strict=True)]
    assert made.transitions.tolist() == counted(before, after, 5)
    assert made.rate == (sum(made.noisy) / len(before) if before else 0)
    assert make(kind, labels, rate, seed).labels.tolist() == after
    assert made.labels.dtype == made.transitions.dtype == np.int64


@pytest.mark.parametrize("kind", ["symmetric", "inclusive", "asymmetric", "instance-dependent"])
def test_rate_0_changes_nothing(kind: str) -> None:
    labels = (np.arange(500) % 5).tolist()
    assert make(kind, labels, 0.0, 3).labels.tolist() == labels


@pytest.mark.parametrize("kind", ["symmetric", "instance-dependent"])
def test_rate_1_changes_every_label(kind: str) -> None:
    assert make(kind, (np.arange(500) % 5).tolist(), 1.0, 3).rate == 1.0


@pytest.mark.parametrize(("rate", "expected"), [(0.2, 0.198), (0.4, 0.396), (0.6, 0.594)])
def test_inclusive_symmetric_noise_loses_what_is_drawn_back(rate: float, expected: float) -> None:
    """G17, C = 100: rate (C - 1) / C."""
    labels = np.arange(200_000) % 100
    made = symmetric(labels, 100, rate, rng(), inclusive=True)
    error = 5 * np.sqrt(rate * 0.01 * 0.99 / 200_000)  # the number chosen is fixed; only who keeps the label varies
    assert abs(made.rate - expected) < error
    assert abs(symmetric(labels, 100, rate, rng()).rate - rate) < 5 * np.sqrt(rate * (1 - rate) / 200_000)


def test_symmetric_noise_is_uniform_over_the_other_classes() -> None:
    made = symmetric(np.full(40_000, 2), 5, 0.8, rng(1))
    share = made.transitions[2] / 40_000
    assert np.allclose(share, 0.2, atol=0.01)
    assert made.transitions[[0, 1, 3, 4]].sum() == 0


def test_cifar100_noise_stays_in_the_official_super_classes() -> None:
    """G19: rate 1 is a permutation of twenty five-cycles."""
    given_labels = asymmetric(np.arange(100), CIFAR100_MAP, 1.0, rng()).labels
    assert sorted(given_labels.tolist()) == list(range(100))
    cycles = set()
    for start in range(100):
        cycle, at = [start], int(given_labels[start])
        while at != start:
            cycle.append(at)
            at = int(given_labels[at])
        cycles.add(frozenset(cycle))
    assert {len(cycle) for cycle in cycles} == {5}
    assert cycles == {frozenset(group) for group in CIFAR100_SUPERCLASSES}
    assert given_labels[4] == 30 and given_labels[95] == 4  # beaver to dolphin; whale, the last, back to beaver


def test_the_super_classes_are_the_semantic_ones_not_blocks_of_ids() -> None:
    names = BUILT_IN["cifar100"]
    spoken = [{names[i] for i in group} for group in CIFAR100_SUPERCLASSES]
    assert spoken[1] == {"aquarium_fish", "flatfish", "ray", "shark", "trout"}
    assert spoken[4] == {"apple", "mushroom", "orange", "pear", "sweet_pepper"}
    assert spoken[14] == {"baby", "boy", "girl", "man", "woman"}
    assert spoken[17] == {"maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"}
    assert spoken[19] == {"lawn_mower", "rocket", "streetcar", "tank", "tractor"}
    blocks = [{i // 5 for i in group} for group in CIFAR100_SUPERCLASSES]
    assert all(len(block) > 1 for block in blocks)
    assert not np.array_equal(CIFAR100_MAP, (np.arange(100) + 1) % 100)


def test_cifar10_map_is_the_usual_one_and_swaps_cat_and_dog_at_once() -> None:
    names = BUILT_IN["cifar10"]
    changed = {names[i]: names[j] for i, j in enumerate(CIFAR10_MAP) if i != j}
    assert changed == {"truck": "automobile", "bird": "airplane", "deer": "horse", "cat": "dog", "dog": "cat"}
    made = asymmetric(np.tile(np.arange(10), 2_000), CIFAR10_MAP, 0.4, rng())
    assert made.transitions[3, 3] + made.transitions[3, 5] == 2_000
    assert abs(made.rate - 0.2) < 0.01  # five of ten classes keep their labels
    with pytest.raises(ValueError, match="read-only"):
        CIFAR10_MAP[0] = 1


def test_instance_dependent_noise_has_the_rate_and_follows_the_features() -> None:
    rows = rng(9).normal(size=(20, 6))
    features = np.repeat(rows, 500, axis=0)  # 20 kinds of sample, all of class 0
    made = instance_dependent(np.zeros(10_000, dtype=int), features, 8, 0.4, rng(2))
    assert abs(made.rate - 0.4) < 0.02
    targets = np.stack([np.bincount(made.labels[i * 500 : i * 500 + 500], minlength=8)[1:] for i in range(20)])
    favourites = targets.argmax(axis=1)
    assert len(set(favourites.tolist())) > 1  # kinds differ in what they are mistaken for
    assert (targets.max(axis=1) < 0.95 * targets.sum(axis=1)).all()  # and none is a certainty


def test_instance_dependent_noise_equals_a_plain_loop_over_the_law() -> None:
    """Each sample is drawn many times; the shares are those of q softmax(x W / T) with the W of its class."""
    repeats, classes, labels = 20_000, 4, np.array([0, 0, 3])
    rows = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])
    made = instance_dependent(
        np.repeat(labels, repeats), np.repeat(rows, repeats, axis=0), classes, 0.5, rng(4), temperature=2.0, deviation=0
    )
    replay = rng(4)
    replay.random(3 * repeats)
    flips = [int(made.noisy[i * repeats : (i + 1) * repeats].sum()) for i in range(3)]
    matrices = {0: replay.standard_normal((2, classes))}
    replay.random(flips[0] + flips[1])
    matrices[3] = replay.standard_normal((2, classes))
    for i, label in enumerate(labels):
        weights = np.exp(rows[i] @ matrices[label] / 2.0)
        weights[label] = 0
        shares = np.bincount(made.labels[i * repeats : (i + 1) * repeats], minlength=classes) / repeats
        expected = 0.5 * weights / weights.sum()
        expected[label] = 0.5
        assert np.allclose(shares, expected, atol=0.02)


def test_raw_pixels_do_not_make_the_target_a_certainty_unless_asked() -> None:
    pixels = rng(0).integers(0, 256, size=(1, 3072)).repeat(2_000, axis=0)
    labels = np.zeros(2_000, dtype=int)
    scaled = instance_dependent(labels, pixels, 10, 1.0, rng(1)).transitions[0]
    published = instance_dependent(labels, pixels, 10, 1.0, rng(1), temperature=1.0).transitions[0]
    assert np.count_nonzero(scaled) == 9
    assert np.count_nonzero(published) == 1


def test_the_default_temperature_of_unit_rows_is_1() -> None:
    features = rng(0).normal(size=(300, 16))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.arange(300) % 6
    auto = instance_dependent(labels, features, 6, 0.5, rng(1))
    assert auto.labels.tolist() == instance_dependent(labels, features, 6, 0.5, rng(1), temperature=1.0).labels.tolist()
    half = instance_dependent(labels, 1000 * features, 6, 0.5, rng(1))
    assert auto.labels.tolist() == half.labels.tolist()


def test_flip_probabilities_are_cut_to_0_and_1() -> None:
    """rate .1, deviation .1: the mean of the cut normal is .1 + .1 phi(1) / Phi(1) = .1287600."""
    labels, features = np.arange(100_000) % 4, np.ones((100_000, 1))
    made = instance_dependent(labels, features, 4, 0.1, rng(3))
    assert abs(made.rate - 0.12876) < 5 * np.sqrt(0.12876 * 0.87124 / 100_000)


def test_all_zero_features_are_mistaken_uniformly() -> None:
    made = instance_dependent(np.zeros(30_000, dtype=int), np.zeros((30_000, 4)), 4, 1.0, rng(0))
    assert np.allclose(made.transitions[0] / 30_000, [0, 1 / 3, 1 / 3, 1 / 3], atol=0.015)


def test_label_errors_name_what_was_given() -> None:
    with refused("labels", 3):
        symmetric([0, 3], 3, 0.4, rng())
    with refused("labels", -1):
        symmetric([0, -1], 3, 0.4, rng())
    with refused("labels", (2,)):
        symmetric([0.5, 1.0], 3, 0.4, rng())
    with refused("classes", 1):
        symmetric([0, 0], 1, 0.4, rng())
    with refused("classes", 1):
        instance_dependent([0, 0], np.ones((2, 1)), 1, 0.4, rng())
    with refused("class_map", 2):
        asymmetric([0, 1], [0, 2], 0.4, rng())
    with refused("class_map", (1, 2)):
        asymmetric([0, 1], [[0, 1]], 0.4, rng())
    with refused("features", (2, 1)):
        instance_dependent([0, 0, 1], np.ones((2, 1)), 2, 0.4, rng())
    with refused("features"):
        instance_dependent([0, 1], [[np.nan], [1.0]], 2, 0.4, rng(), temperature=1.0)
    with refused("temperature", 0):
        instance_dependent([0, 1], np.ones((2, 1)), 2, 0.4, rng(), temperature=0)
    with refused("deviation", -1):
        instance_dependent([0, 1], np.ones((2, 1)), 2, 0.4, rng(), deviation=-1)


# --- PMD -------------------------------------------------------------------------------------------------------------

HALF = [[0.7, 0.2, 0.1]]  # D = .5


@pytest.mark.parametrize(("kind", "flip"), [("I", 0.375), ("II", 0.875), ("III", 1 - 0.875 / 3)])
def test_pmd_flip_probability_by_hand(kind: str, flip: float) -> None:
    assert pmd_flip_probability(HALF, kind)[0] == pytest.approx(flip, abs=1e-12)
    assert pmd_flip_probability(HALF, kind, factor=1.2)[0] == pytest.approx(1 - (1 - flip) / 1.2, abs=1e-12)
    certain, even = pmd_flip_probability([[0.0, 1.0], [0.5, 0.5]], kind)
    assert certain == 0 and even == (0.5 if kind == "I" else 1)


@pytest.mark.parametrize("kind", ["I", "II", "III"])
def test_pmd_goes_to_the_second_class_with_that_probability(kind: str) -> None:
    posteriors = np.repeat([[0.2, 0.1, 0.7]], 20_000, axis=0)
    made = pmd(np.full(20_000, 2), posteriors, kind, rng(0))
    assert made.transitions[2].tolist()[1] == 0
    assert abs(made.rate - pmd_flip_probability(posteriors[:1], kind)[0]) < 0.02


def test_pmd_mask_goes_by_the_labels_where_the_posterior_is_mistaken() -> None:
    made = pmd([0, 1], [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]], "I", rng())
    assert made.labels.tolist() == [1, 1] and made.noisy.tolist() == [True, False]


@given(
    st.lists(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), min_size=1, max_size=30),
    st.sampled_from(["I", "II", "III"]),
    st.floats(0.05, 0.95),
)
def test_pmd_factor_gives_the_wanted_mean(weights: list[list[float]], kind: str, rate: float) -> None:
    posteriors = np.array(weights) / np.sum(weights, axis=1, keepdims=True)
    try:
        factor = pmd_factor(posteriors, kind, rate)
    except ConfigError:
        ties = np.sort(posteriors, axis=1)
        assert kind != "I" and (ties[:, -1] == ties[:, -2]).mean() > rate - 1e-9
    else:
        assert pmd_flip_probability(posteriors, kind, factor).mean() == pytest.approx(rate, abs=1e-9)


def test_pmd_errors_name_what_was_given() -> None:
    with refused("kind", "IV"):
        pmd([0], HALF, "IV", rng())
    with refused("factor", 0):
        pmd([0], HALF, "I", rng(), factor=0)
    with refused("posteriors", (1, 3)):
        pmd([0, 1], HALF, "I", rng())
    with refused("posteriors", (3,)):
        pmd([0], [0.7, 0.2, 0.1], "I", rng())
    with refused("posteriors"):
        pmd([0, 0], [[0.5, 0.5], [1.0, 0.5]], "I", rng())
    with refused("posteriors"):
        pmd([0], [[np.nan, 1.0]], "I", rng())
    with refused("rate", 1):
        pmd_factor(HALF, "I", 1)
    with refused("posteriors", (0, 3)):
        pmd_factor(np.zeros((0, 3)), "I", 0.4)
    with refused("rate", 0.2):
        pmd_factor([[0.5, 0.5], [0.9, 0.1]], "II", 0.2)


# --- protocols -------------------------------------------------------------------------------------------------------


def test_protocol_ids_are_stable_and_tell_everything() -> None:
    assert (
        protocol_id("shuffle-captions", rate=0.4, seed=7) == "shuffle-captions(rate=0.4,derange=False,seed=7)#a8576b23"
    )
    assert protocol_id("symmetric", seed=7, classes=10, rate=np.float64(1)) == protocol_id(
        "symmetric", rate=1, classes=np.int64(10), inclusive=False, seed=7
    )
    assert protocol_id("instance-dependent", rate=0.4, classes=10, features="x", temperature=1, seed=0).startswith(
        "instance-dependent(rate=0.4,classes=10,features=x,temperature=1.0,deviation=0.1,seed=0)#"
    )
    assert protocol_id("pmd", kind="I", posteriors="probe", seed=0).startswith(
        "pmd(kind=I,posteriors=probe,factor=1.0,"
    )


def test_each_setting_changes_the_hash() -> None:
    ids = [
        protocol_id("shuffle-captions", rate=0.4, seed=7),
        protocol_id("shuffle-images", rate=0.4, seed=7),
        protocol_id("shuffle-captions", rate=0.5, seed=7),
        protocol_id("shuffle-captions", rate=0.4, seed=8),
        protocol_id("shuffle-captions", rate=0.4, seed=7, derange=True),
    ]
    assert len({name.split("#")[1] for name in ids}) == len(ids)


def test_every_protocol_has_an_example_for_each_parameter() -> None:
    for name, protocol in PROTOCOLS.items():
        examples = {key: EXAMPLES[key] for key in protocol.parameters}
        assert re.fullmatch(rf"{name}\(.*\)#[0-9a-f]{{8}}", protocol_id(name, **examples))
        assert protocol.noises in ("captions", "labels")


@pytest.mark.parametrize(
    ("name", "params", "setting", "value"),
    [
        ("shuffle", {}, "protocol", "shuffle"),
        ("shuffle-captions", {"rate": 0.4}, "seed", None),
        ("shuffle-captions", {"rate": 0.4, "seed": 7, "k": 3}, "k", 3),
        ("shuffle-captions", {"rate": "0.4", "seed": 7}, "rate", "0.4"),
        ("shuffle-captions", {"rate": 2, "seed": 7}, "rate", 2),
        ("shuffle-captions", {"rate": 0.4, "seed": True}, "seed", True),
        ("symmetric", {"rate": 0.4, "classes": 10.0, "seed": 7}, "classes", 10.0),
        ("asymmetric", {"rate": 0.4, "class_map": [1, 0], "seed": 7}, "class_map", [1, 0]),
    ],
)
def test_protocol_errors_name_the_setting(name: str, params: dict[str, object], setting: str, value: object) -> None:
    with refused(setting, value):
        protocol_id(name, **params)


def test_protocol_errors_give_what_would_work() -> None:
    with refused("rate") as caught:
        protocol_id("shuffle-captions", rate="0.4", seed=7)
    assert str(caught.value) == "rate '0.4' is no float; use for example 0.4"


def test_noise_needs_no_torch() -> None:
    code = "import sys, noisegate.pipeline.datasets.noise, noisegate.pipeline.labels.classes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
