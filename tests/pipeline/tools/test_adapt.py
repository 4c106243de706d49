"""Domain adaptation, with tiny untrained open_clip models (and the embedded one where its weights are there)."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from noisegate.pipeline.annotate import annotate
from noisegate.pipeline.cli.commands import app
from noisegate.pipeline.datasets.noise.shards import noise_captions
from noisegate.pipeline.datasets.scenes import write_scenes
from noisegate.pipeline.estimators import load_estimator
from noisegate.pipeline.estimators.base import Identity
from noisegate.pipeline.estimators.loading import allow_torchvision
from noisegate.pipeline.estimators.openclip_names import EMBEDDED
from noisegate.pipeline.inspect.metrics import clean_auroc
from noisegate.pipeline.labels.classes import ClassSet, load_classes
from noisegate.pipeline.methods.mixtures import gmm_split
from noisegate.pipeline.methods.pair_batches import permuted_batches
from noisegate.pipeline.pairs.beta import Beta, beta_of_random_inputs
from noisegate.pipeline.pairs.pair_fit import embed_pairs, read_pairs
from noisegate.pipeline.shards.locate import find_shards
from noisegate.pipeline.shards.workers import Decoded
from noisegate.pipeline.tools.adapt import Adaptation, adapt, draw_partners, hold_out, with_prompts
from noisegate.pipeline.tools.tuning import Tuning
from tests.errors import refused

allow_torchvision()
import open_clip  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

VIT = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8}
RESNET = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 16}
TEXT = {"context_length": 32, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
FAST = Tuning(steps=4, batch_size=32, learning_rate=1e-3)
EMBEDDED_THERE = pytest.mark.skipif(
    not (EMBEDDED / "open_clip_model.safetensors").is_file(), reason="the embedded model's weights are not there"
)


def make_model(folder: Path, vision: dict[str, Any], text: dict[str, Any] = TEXT) -> str:
    """Untrained weights as a folder of open_clip; the name to load it by."""
    torch.manual_seed(0)
    kind = open_clip.CustomTextCLIP if "hf_tokenizer_name" in text else open_clip.CLIP
    model = kind(16, vision, text)
    folder.mkdir(exist_ok=True)
    save_file(
        {key: tensor.contiguous() for key, tensor in model.state_dict().items()}, folder / "open_clip_model.safetensors"
    )
    config: dict[str, Any] = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    if kind is open_clip.CustomTextCLIP:
        config["custom_text"] = True
    preprocess = {"size": 32, "mean": [0.4, 0.4, 0.4], "std": [0.3, 0.3, 0.3]}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": preprocess}))
    return f"local-dir:{folder}"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, 240, 2, seed=5, size=32)
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("tiny"), VIT)


@pytest.fixture(scope="module")
def adapted(scenes: Path, tiny: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Adaptation, list[str]]:
    """The tiny model adapted to all scenes with seed 0, and the lines that were noted on the way."""
    notes: list[str] = []
    out = tmp_path_factory.mktemp("adapted") / "out"
    return adapt(scenes, out, model=tiny, tuning=FAST, workers=0, note=notes.append), notes


def test_a_label_becomes_one_of_its_classs_prompts() -> None:
    classes = ClassSet(("cat", "dog"), (("a cat", "some cat"), ("a dog",)))
    samples = [Decoded(str(i), i, text="a caption", label=label) for i, label in enumerate([0, 1] * 20)]
    texts = [sample.text for sample in with_prompts(samples, classes, np.random.default_rng(0))]
    assert set(texts[::2]) == {"a cat", "some cat"} and set(texts[1::2]) == {"a dog"}
    with refused("classes", 2):
        with_prompts([Decoded("x", 0, label=2)], classes, np.random.default_rng(0))


def test_class_prompts_in_place_of_captions(scenes: Path, tiny: str, tmp_path: Path) -> None:
    """Pairs are kept by losses against other classes only: here computed pair by pair, for the same seeded batches."""
    classes = load_classes(str(scenes / "classes.txt"), ("a photo of a {}.",))
    done = adapt(str(scenes / "*.tar"), tmp_path / "a", model=tiny, classes=classes, keep=0.3, tuning=FAST, workers=0)
    assert (done.settings["classes"], done.pairs) == (list(classes.names), 240)
    estimator = load_estimator(tiny, device="cpu", dtype="float32")
    samples = read_pairs(find_shards(str(scenes / "*.tar")), estimator, 240, 0, labels=True)
    labels = np.array([sample.label for sample in samples])
    encoded = embed_pairs(estimator, with_prompts(samples, classes, np.random.default_rng(0)))
    cosines = estimator.module.logit_scale.exp().item() * encoded.images.astype(np.float64) @ encoded.texts.T
    losses = np.zeros(240)
    for _, rows in permuted_batches(240, 128, 5, [0, 0]):
        for row in rows:
            others = [other for other in rows if labels[other] != labels[row]]
            for line in (cosines[row], cosines[:, row]):
                losses[row] += (math.log(sum(math.exp(line[i]) for i in [row, *others])) - line[row]) / 10
    assert done.kept == (gmm_split(losses).clean_probability > 0.3).sum()
    with refused("classes", 1):
        adapt(str(scenes / "*.tar"), tmp_path / "b", model=tiny, classes=ClassSet(("x",), (("x",),)), workers=0)


def test_partners_are_other_pictures_of_the_label() -> None:
    labels = np.random.default_rng(0).integers(0, 5, 60)
    partners = draw_partners(labels, np.random.default_rng(1))
    assert (labels[partners] == labels).all() and (partners != np.arange(60)).all()
    assert draw_partners(np.array([1, 2]), np.random.default_rng(1)).tolist() == [-1, -1]


def test_two_pictures_of_a_label_in_place_of_captions(scenes: Path, tiny: str, tmp_path: Path) -> None:
    """For image retrieval; the loss of pictures with others of their label falls, and the text tower stays as it was."""
    tuning, notes = Tuning(steps=60, batch_size=64, learning_rate=1e-3), list[str]()
    how: dict[str, Any] = {"model": tiny, "image_pairs": True, "workers": 0}
    shards = str(scenes / "*.tar")
    done = adapt(shards, tmp_path / "a", keep=0.2, tuning=tuning, note=notes.append, **how)
    assert done.settings["image_pairs"] and done.auto_before.mode == "intersection"
    assert done.pairs == 239, "one is the only picture of its label"
    losses = [float(note.split()[-1]) for note in notes if "loss" in note]
    assert losses[-1] < losses[0] - 0.5
    before, after = (
        load_estimator(name, device="cpu", dtype="float32") for name in (tiny, f"local-dir:{tmp_path / 'a'}")
    )
    np.testing.assert_allclose(before.encode_texts(["a red circle"]), after.encode_texts(["a red circle"]), atol=1e-5)
    with refused("image_pairs", True):
        adapt(shards, tmp_path / "b", classes=ClassSet(("x",), (("x",),)), **how)


def test_held_out_pairs_share_no_picture_with_those_trained_on() -> None:
    kept, pictures = np.arange(10, 110), np.repeat(np.arange(40), 5)
    training, held_out = hold_out(kept, pictures, seed=3)
    assert sorted([*training, *held_out]) == kept.tolist()
    assert len(held_out) == 10
    assert not set(pictures[training]) & set(pictures[held_out])
    with refused("pairs", len(kept)):
        hold_out(kept, np.zeros(200, np.int64), seed=3)


# --- adapting --------------------------------------------------------------------------------------------------------


def test_the_adapted_model_loads_from_its_folder_and_is_what_was_measured(
    scenes: Path, tiny: str, adapted: tuple[Adaptation, list[str]]
) -> None:
    done, notes = adapted
    before, after = (load_estimator(name, batch_size=32) for name in (tiny, f"local-dir:{done.out}"))  # as FAST
    assert sorted(file.name for file in Path(done.out).iterdir()) == [
        "adapt.json",
        "open_clip_config.json",
        "open_clip_model.safetensors",
    ]
    assert done.pairs == 240
    assert 32 <= done.kept < 240
    assert done.held_out == round(done.kept / 10)
    assert done.source == before.identity
    assert done.weights == after.identity.weights != before.identity.weights
    assert after.preprocess == before.preprocess
    assert done.beta_before == beta_of_random_inputs(before, seed=0)
    assert done.beta_after == beta_of_random_inputs(after, seed=0)
    assert done.loss_after < done.loss_before  # untrained, so every step helps
    assert not done.loss_rose
    samples = read_pairs(find_shards(scenes), before, 240, 0)
    moved = embed_pairs(after, samples).similarity - embed_pairs(before, samples).similarity
    assert np.abs(moved).mean() > 0.01
    record = json.loads((Path(done.out) / "adapt.json").read_text())
    assert record["loss_after"] == done.loss_after
    assert record["settings"] == {"keep": 0.8, "pairs": 10_000, "seed": 0, **vars(FAST)}
    assert record["split"]["kind"] == "gmm"
    assert notes[0] == f"240 pairs read, {done.kept} kept"
    assert len([line for line in notes if line.startswith("step ")]) == 4


def test_the_beta_shown_is_the_one_that_annotate_then_takes(
    scenes: Path, tiny: str, adapted: tuple[Adaptation, list[str]], tmp_path: Path
) -> None:
    done = adapted[0]
    for name, shown in ((tiny, done.auto_before), (f"local-dir:{done.out}", done.auto_after)):
        annotate(scenes, tmp_path / "tables", estimator=load_estimator(name), workers=0, overwrite=True)
        taken = json.loads((tmp_path / "tables" / "_run.json").read_text())["beta"]
        assert taken["mode"] == shown.mode
        assert abs(taken["value"] - shown.value) < 0.02  # other mismatched pairs are drawn
    assert done.auto_after.value != done.auto_before.value
    record = json.loads((Path(done.out) / "adapt.json").read_text())
    assert Beta.from_dict(record["auto_after"]) == done.auto_after


@pytest.mark.parametrize(
    ("before", "after", "rose"),
    [
        (0.0305, 0.03052, False),
        (0.03054, 0.03056, False),  # shown as .0305 and .0306
        (0.0305, 0.0310, True),
        (2.0, 2.01, False),
        (2.0, 2.05, True),
        (2.0, 1.0, False),
    ],
)
def test_a_loss_rises_only_by_more_than_chance(before: float, after: float, rose: bool) -> None:
    beta = Beta(0.2, "fixed")
    identity = Identity("m", "w", "p", "d", "float32", ())
    done = Adaptation("out", identity, "w", {}, 100, 90, 9, {}, before, after, beta, beta, beta, beta)
    assert done.loss_rose == rose


def test_the_same_seed_gives_the_same_bytes(
    scenes: Path, tiny: str, adapted: tuple[Adaptation, list[str]], tmp_path: Path
) -> None:
    folders = [Path(adapted[0].out), tmp_path / "again", tmp_path / "other"]
    for folder, seed in zip(folders[1:], (0, 5), strict=True):
        adapt(scenes, folder, model=tiny, tuning=FAST, workers=0, seed=seed)
    first, again, other = ({file.name: file.read_bytes() for file in folder.iterdir()} for folder in folders)
    assert first == again
    assert first["open_clip_model.safetensors"] != other["open_clip_model.safetensors"]
    assert first["open_clip_config.json"] == other["open_clip_config.json"]


def test_a_resnet_keeps_its_batch_statistics_and_a_limit_of_pairs_holds(scenes: Path, tmp_path: Path) -> None:
    name = make_model(tmp_path / "resnet", RESNET)
    done = adapt(scenes, tmp_path / "out", model=name, pairs=100, keep=0.1, tuning=FAST, workers=0)
    assert done.pairs == 100
    before, after = (
        load_file(folder / "open_clip_model.safetensors") for folder in (tmp_path / "resnet", tmp_path / "out")
    )
    assert before.keys() == after.keys()
    same = {key for key in before if torch.equal(before[key], after[key])}
    statistics = {key for key in before if "running_" in key or "num_batches" in key}
    assert statistics
    assert statistics <= same
    assert {"visual.conv1.weight", "text_projection", "logit_scale"}.isdisjoint(same)


def test_a_tokenizer_of_the_hub_is_saved_with_the_model(scenes: Path, tmp_path: Path) -> None:
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", "red", "green", "blue", "circle", "square", "star", "left", "right", "on", "white"]
    level = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    inner = tokenizers.Tokenizer(level)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    hub = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]")
    text = TEXT | {"vocab_size": 128, "hf_tokenizer_name": "somebody/words", "context_length": 24}
    name = make_model(tmp_path / "model", VIT, text)
    hub.save_pretrained(tmp_path / "model")
    adapt(scenes, tmp_path / "out", model=name, pairs=100, keep=0.1, tuning=FAST, workers=0)
    loaded = open_clip.get_tokenizer(f"local-dir:{tmp_path / 'out'}")
    assert loaded(["a red star"])[0, :3].tolist() == [1, 2, 7]


def test_by_default_weights_move_by_no_more_than_the_small_learning_rate(
    scenes: Path, tiny: str, tmp_path: Path
) -> None:
    adapt(scenes, tmp_path / "out", model=tiny, pairs=100, keep=0.1, tuning=Tuning(steps=2), workers=0)
    before = load_file(Path(tiny.removeprefix("local-dir:")) / "open_clip_model.safetensors")
    after = load_file(tmp_path / "out" / "open_clip_model.safetensors")
    # two steps of Adam move a weight by the learning rate each at most, and decay takes next to nothing
    assert 0 < max(float((before[key] - after[key]).abs().max()) for key in before) < 2.2e-5


def rising(tuning: Tuning) -> list[float]:
    return [tuning.rate(step) for step in range(tuning.steps)]


def test_the_learning_rate_rises_over_a_tenth_and_falls_to_nothing() -> None:
    rates = rising(Tuning(steps=50, learning_rate=1.0))
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0 < rates[-1] < 0.01
    assert rising(Tuning(steps=1, learning_rate=1.0)) == [1.0]


# --- settings that cannot work ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "setting", "value"),
    [
        ({"model": "hf:openai/clip"}, "model", "hf:openai/clip"),
        ({"model": "python:mine:make"}, "model", "python:mine:make"),
        ({"keep": 1.0}, "keep", 1.0),
        ({"keep": 0.0}, "keep", 0.0),
        ({"pairs": 10}, "pairs", 10),
        ({"seed": -1}, "seed", -1),
        ({"pairs": 40, "keep": 0.999999}, "keep", 0.999999),
        ({"tuning": Tuning(steps=3, learning_rate=1e30)}, "learning_rate", 1e30),
    ],
)
def test_what_cannot_work_is_refused_and_leaves_nothing(
    options: dict[str, Any], setting: str, value: object, scenes: Path, tiny: str, tmp_path: Path
) -> None:
    with refused(setting, value):
        adapt(scenes, tmp_path / "out", **{"model": tiny, "workers": 0, **options})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("steps", 0),
        ("batch_size", 1),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("clip", -1.0),
        ("weight_decay", -0.1),
    ],
)
def test_training_settings_that_cannot_work_are_refused(setting: str, value: Any) -> None:
    with refused(setting) as caught:
        Tuning(**{setting: value})
    assert caught.value.value is value


def test_a_folder_in_use_is_left_alone(scenes: Path, tiny: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with refused("out", tmp_path / "out"):
        adapt(scenes, tmp_path / "out", model=tiny, workers=0)
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine"]
    with refused("out", tmp_path / "out" / "mine"):
        adapt(scenes, tmp_path / "out" / "mine" / "model", model=tiny, workers=0)


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_says_what_was_done_and_what_comes_next(scenes: Path, tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = [str(scenes), "--model", tiny, "--out", str(out), "--workers", "0", "--steps", "2"]
    arguments += ["--batch-size", "32", "--lr", "1e-3", "--pairs", "100", "--keep", "0.1", "--json"]
    ran = CliRunner().invoke(app, ["adapt", *arguments])
    assert ran.exit_code == 0, ran.output
    printed = json.loads(ran.stdout)
    record = json.loads((out / "adapt.json").read_text())
    assert {name: printed[name] for name in record if name != "shards"} == {
        name: value for name, value in record.items() if name != "shards"
    }
    assert printed["next"] == f"noisegate annotate {scenes} --model local-dir:{out} --out tables"
    assert printed["next"] in " ".join(ran.stderr.split("\n"))
    shown = " ".join(CliRunner().invoke(app, ["adapt", *arguments[:-1], "--out", f"{out}-2"]).stdout.split())
    values = (f"{printed[name]['value']:.4f} ({printed[name]['mode']})" for name in ("auto_before", "auto_after"))
    assert f"β that auto takes for these pairs {' '.join(values)}" in shown.replace("│", "").replace("  ", " ")


# --- the embedded model ----------------------------------------------------------------------------------------------


@EMBEDDED_THERE
def test_the_embedded_model_trains_on_clean_pairs_and_finds_noise_no_worse(tmp_path: Path) -> None:
    write_scenes(tmp_path / "clean", 160, 2, seed=11)
    noise_captions(tmp_path / "clean", tmp_path / "noisy", rate=0.4, seed=2)
    noisy = pq.read_table(tmp_path / "noisy" / "noise.parquet")["noisy"].to_numpy()
    done = adapt(tmp_path / "noisy", tmp_path / "out", tuning=Tuning(steps=4, batch_size=32), workers=0)
    assert 0.45 * 160 <= done.kept <= 0.7 * 160  # 60 % are clean
    assert done.loss_after <= done.loss_before + 1e-3

    def auroc(model: str) -> float:
        estimator = load_estimator(model)
        samples = read_pairs(find_shards(tmp_path / "noisy"), estimator, 240, 0)
        return clean_auroc(embed_pairs(estimator, samples).similarity, noisy)

    assert auroc(f"local-dir:{tmp_path / 'out'}") >= auroc("embedded") - 1e-3
