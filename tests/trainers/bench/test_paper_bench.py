"""Benches on small files of the papers' data sets: convert, noise, tables, training, and the papers' figures beside ours."""

import functools
import json
import re
import shlex
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from noisegate.pipeline.cli.commands import app
from noisegate.pipeline.datasets.convert.job import convert
from noisegate.pipeline.datasets.convert.kinds import KINDS, LAYOUTS
from noisegate.pipeline.datasets.noise import PROTOCOLS
from noisegate.pipeline.datasets.scenes import write_scenes
from noisegate.pipeline.errors import NoisegateError
from noisegate.pipeline.inspect.evaluation import evaluate
from noisegate.pipeline.methods.gsl import RECONSTRUCTION
from noisegate.pipeline.runs import read_table
from noisegate.pipeline.shards.locate import find_shards
from noisegate.pipeline.shards.read import ShardReader
from noisegate.pipeline.system import count_processors
from noisegate.trainers.bench.cells import CellResult
from noisegate.trainers.bench.paper_bench import (
    Condition,
    PaperBench,
    list_conditions,
    load_paper_preset,
    paper_figures,
    paper_presets,
    run_paper_bench,
)
from noisegate.trainers.bench.paper_tables import paper_markdown
from noisegate.trainers.bench.tables import method_notes
from noisegate.trainers.config import TrainConfig, build_method
from noisegate.trainers.targets.build import target_config
from tests.commands import FAKE
from tests.errors import refused
from tests.pipeline.datasets.converting import features, write_files
from tests.trainers.runs import TARGET

PRESETS = paper_presets()
RUNS = [
    (name, setup, method)
    for name in PRESETS
    for setup, found in load_paper_preset(name).setups.items()
    for method in found.methods
]
MEASURED = {
    "retrieval": {f"{fold}{way}_r{k}" for fold in ("", "fold_") for way in ("i2t", "t2i") for k in (1, 5, 10)}
    | {"rsum", "fold_rsum", "i2t_medr", "t2i_medr"},
    "classification": {"accuracy"},
    "image_retrieval": {"precision_at_1", "map_at_r"},
}


def test_every_data_set_of_the_issue_has_a_preset() -> None:
    assert set(PRESETS) == {
        "animal10n", "cars98n", "cc120k", "cc152k", "cifar100", "cifar100n", "cifar10n", "coco", "flickr30k", "flickr8k",
        "food101n", "lsmdc", "msrvtt", "tinyimagenet", "web-aircraft", "web-bird", "web-car", "webvision", "youcook2",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "setup", "method"), RUNS, ids=lambda value: str(value))
def test_settings_are_taken_by_the_trainers(name: str, setup: str, method: str) -> None:
    config = TrainConfig.parse(load_paper_preset(name).run_config(setup, method, "/somewhere"))
    assert config.task.name == load_paper_preset(name).task
    arrays = load_paper_preset(name).arrays is not None
    assert [one.split("/")[1] for one in config.data.shards] == ([] if arrays else ["somewhere"])
    assert build_method(config).config.name == method.partition("@")[0]
    assert target_config(config.target).name == config.target["name"]


@pytest.mark.parametrize("name", PRESETS)
def test_no_two_methods_of_a_set_up_are_the_same_training(name: str) -> None:
    for setup, found in load_paper_preset(name).setups.items():
        configs = {method: load_paper_preset(name).run_config(setup, method) for method in found.methods}
        assert [pair for pair in combinations(configs, 2) if configs[pair[0]] == configs[pair[1]]] == []


def test_settings_are_those_of_the_papers() -> None:
    def settings(name: str, setup: str, method: str) -> TrainConfig:
        return TrainConfig.parse(load_paper_preset(name).run_config(setup, method))

    osa = settings("flickr30k", "clip", "osa")
    assert (osa.target["model"], osa.optimizer.lr, osa.loop.epochs, osa.schedule.warmup, osa.data.batch_size) == (
        "ViT-B-32", 1e-5, 5, 500, 256,
    )  # fmt: skip
    assert settings("cc120k", "clip", "osa").loop.epochs == 10
    assert str(osa.data.table) == "DATA/tables"
    for name in ("web-aircraft", "web-bird", "web-car"):
        assert settings(name, "resnet50", "osa").method["beta"] == "random_inputs"
    for name, warmup, epochs in (("flickr30k", 3, 40), ("coco", 10, 20), ("cc152k", 5, 30)):
        lnc = settings(name, "regions", "lnc")
        assert (lnc.method["warmup"], lnc.loop.epochs, lnc.optimizer.lr) == (warmup, warmup + epochs, 2e-4)
        assert (lnc.target["name"], lnc.target["module"], lnc.data.image_part) == ("sgraf", "sgr", "npy")
    crcl = settings("flickr30k", "regions", "crcl")
    assert (crcl.optimizer.name, crcl.optimizer.lr, crcl.optimizer.betas) == ("adamw", 5e-4, (0.9, 0.999))
    assert sum(crcl.method["pieces"]) == crcl.loop.epochs == build_method(crcl).epochs(1)
    for name in ("flickr30k", "coco", "cc152k"):
        code = settings(name, "regions", "crcl@code")
        assert code.loop.epochs == build_method(code).epochs(1) == 53, "each piece two epochs longer"
        assert {**code.method, "preset": "paper"} == crcl.method
    tango = settings("cifar100", "clip", "tango")
    assert (tango.optimizer.name, tango.optimizer.lr, tango.optimizer.weight_decay) == ("sgd", 5e-4, 5e-4)
    assert (tango.target["model"], tango.target["train"], tango.data.batch_size, tango.loop.epochs) == (
        "ViT-B-16", "visual", 64, 20,
    )  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_commands_are_taken_by_the_command_line(name: str) -> None:
    for setup in load_paper_preset(name).setups.values():
        for line in (*setup.convert, *filter(None, [setup.annotate])):
            program, command, *words = shlex.split(line)
            assert program == "noisegate"
            shown = CliRunner().invoke(app, [command, *words, "--no-such-option"])
            assert "No such option" in shown.output, line
            assert shown.output.count("--no-such-option") == 1, "the only word that is not known"
        for line in setup.convert:
            words = shlex.split(line)
            kind = KINDS[words[2]]
            split = words[words.index("--split") + 1] if "--split" in words else "train"
            assert split in kind.splits
            assert "--layout" not in words or words[words.index("--layout") + 1] in kind.layouts


@pytest.mark.parametrize("name", PRESETS)
def test_noise_is_of_a_known_protocol(name: str) -> None:
    for noise in load_paper_preset(name).noise:
        assert noise.protocol == "real" or noise.protocol in PROTOCOLS
        assert bool(noise.rates) == (noise.protocol != "real")


def test_every_figure_belongs_to_a_run_that_the_preset_makes() -> None:
    for row in paper_figures():
        preset = load_paper_preset(row.preset)
        assert row.method in preset.setups[row.setup].methods
        made = {noise.protocol: noise.rates for noise in preset.noise}
        assert row.noise in made, row
        assert row.rate in made[row.noise] if row.noise != "real" else row.rate is None
        if row.part is None:
            assert set(row.figures) <= MEASURED[preset.task], row
        assert row.also_on is None or row.also_on in preset.setups[row.setup].also_on


def test_figures_are_those_that_were_published() -> None:
    (osa,) = [row for row in paper_figures("coco", setup="clip", method="osa", rate=0.5) if row.part is None]
    assert osa.figures == {"fold_i2t_r1": 80.4, "fold_t2i_r1": 67.8, "i2t_r1": 64.0, "t2i_r1": 47.9}
    crcl = [
        row.figures["rsum"] for row in paper_figures("flickr30k", setup="regions", method="crcl") if row.part is None
    ]
    assert crcl == [507.8, 505.2, 487.3, 443.7]
    (direct,), (complementary,) = (paper_figures(method=f"crcl@{word}") for word in ("direct", "complementary"))
    assert direct.figures == {"i2t_r1": 69.3, "t2i_r1": 51.4, "rsum": 471.2}
    assert complementary.figures == {"i2t_r1": 67.7, "t2i_r1": 52.3, "rsum": 471.6}
    true_w = {row.rate: row.figures for row in paper_figures("coco", method="lnc@true-w")}
    assert true_w == {0.2: {"fold_i2t_r1": 77.2, "fold_t2i_r1": 61.6}, 0.5: {"fold_i2t_r1": 74.0, "fold_t2i_r1": 59.1}}
    (ilsvrc,) = [row for row in paper_figures("webvision") if row.also_on == "ilsvrc"]
    assert ilsvrc.figures == {"accuracy": 86.44}


def test_cells_on_the_cpu_are_trained_one_per_processor_and_cells_on_gpus_one_after_another() -> None:
    assert load_paper_preset("flickr8k").find_setup("vse").default_jobs() == count_processors()
    assert load_paper_preset("flickr30k").find_setup("clip").default_jobs() == 1


def test_one_command_trains_both_targets_on_photos() -> None:
    preset = load_paper_preset("flickr8k")
    assert preset.choose_setups(None) == ("vse", "sgr")
    assert preset.choose_setups("sgr, vse") == ("sgr", "vse")
    assert load_paper_preset("flickr30k").choose_setups(None) == ("clip",)
    with refused("setup", "vsee"):
        preset.choose_setups("vse,vsee")
    with refused("methods", "in2r"):  # known before the hour that vse takes
        preset.choose_setups(None, ["osa", "in2r"])
    assert preset.choose_setups("vse", ["in2r"]) == ("vse",)


def test_f1_follows_from_precision_and_recall() -> None:
    """Cells that contradict one another inside a paper are not among the figures."""
    rows = [row.figures for row in paper_figures() if "noise_f1" in row.figures]
    assert len(rows) == 4
    for row in rows:
        p, r = row["noise_precision"], row["noise_recall"]
        assert row["noise_f1"] == pytest.approx(2 * p * r / (p + r), abs=0.01)
    assert not [row for row in paper_figures(method="tango") if "clean_f1" in row.figures]


def test_notes_are_told_from_papers() -> None:
    assert {row.witness for row in paper_figures(method="gsl", rate=0.4, preset="flickr30k")} == {"paper"}
    assert {row.witness for row in paper_figures(method="gsl", rate=0.2)} == {"notes"}


def test_unknown_names_are_answered_with_those_there_are() -> None:
    with refused("preset", "imagenet") as caught:
        load_paper_preset("imagenet")
    assert "use one of animal10n" in str(caught.value)
    with refused("setup", "video"):
        load_paper_preset("coco").run_config("video", "osa")
    with refused("methods", "tango"):
        load_paper_preset("coco").run_config("clip", "tango")


@pytest.fixture(scope="module")
def cc120k(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 40 + 12 drawn scenes that came as the download does: pictures and a table of captions."""
    folder = tmp_path_factory.mktemp("cc120k")
    for split, count in (("train", 40), ("test", 12)):
        write_scenes(folder / f"scenes-{split}", count, 1, 5, 32)
        (shard,) = find_shards(str(folder / f"scenes-{split}/*.tar"))
        found = [(raw.parts["png"], raw.parts["txt"].decode()) for raw in ShardReader(shard)]
        rows = "".join(f"{split}-{i}.png\t{text}\n" for i, (_, text) in enumerate(found))
        files = {f"{split}-{i}.png": data for i, (data, _) in enumerate(found)}
        write_files(folder / "source", {f"{split}.tsv": rows, **files})
    for split in ("train", "test"):
        convert("cc120k", folder / "source", folder / split, split=split)
    return folder


def test_real_noise_is_scored_and_trained_on_with_the_paper_s_figures_beside(cc120k: Path, tmp_path: Path) -> None:
    words = ["bench", "--preset", "cc120k", "--data", str(cc120k), "--out", str(tmp_path), "--methods", "baseline,osa"]
    words += [
        "--estimator",
        FAKE[1],
        "--json",
        "--set",
        "loop.epochs=1",
        "--set",
        "data.batch_size=16",
    ]
    words += [
        "--set",
        f"target={json.dumps({**TARGET, 'model': None, 'pretrained': None})}",
        "--set",
        "schedule.warmup=0",
        "--set",
        "loop.device=cpu",
    ]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    first, second = re.findall(r"^(?:1|2)/2 .*$", shown.stderr, re.MULTILINE)
    assert re.fullmatch(r"1/2 baseline with its own noise, seed 0: [\d.]+ \(about [\d.]+ (s|min) left\)", first)
    assert re.fullmatch(r"2/2 osa with its own noise, seed 0: [\d.]+", second)
    found = json.loads(shown.stdout)["cc120k"]
    assert [(cell["method"], cell["noise"], cell["error"]) for cell in found["cells"]] == [
        ("baseline", "real", None),
        ("osa", "real", None),
    ]
    assert all(cell["figures"]["images"] == 12 for cell in found["cells"])
    assert (tmp_path / "cc120k/clip/tables-real-python-tests.fakes-ColourModel/_run.json").exists()
    text = (tmp_path / "cc120k/clip/results.md").read_text()
    ours = found["cells"][1]["figures"]["i2t_r1"]
    assert f"| osa | {ours:.1f} (73.1) |" in text


def test_what_the_table_finds_of_noise_that_was_put_in(cc120k: Path, tmp_path: Path) -> None:
    small = {
        "target": {**TARGET, "model": None, "pretrained": None},
        "data": {"batch_size": 8},
        "loop": {"max_steps": 1, "device": "cpu"},
        "schedule": {"warmup": 0},
    }
    preset = load_paper_preset("flickr30k")
    bench = functools.partial(
        run_paper_bench, preset, "clip", cc120k, tmp_path, methods=["osa"], rates=[0.4], settings=small
    )
    found = bench(estimator=FAKE[1])
    assert found.cells["osa", "shuffle-captions-40"][0].error is None
    place = tmp_path / "flickr30k/clip"
    by_hand = evaluate(place / "tables-shuffle-captions-40-python-tests.fakes-ColourModel")
    judged, rank = by_hand.selection, by_hand.noise_rank
    assert found.tables["shuffle-captions-40"]["noise_recall"] == 100 * judged.noise_recall
    assert f"| the weight table | {rank.value:,.0f} / {rank.optimum:,.0f} |" in paper_markdown(found)
    assert f"| the weight table | {100 * judged.noise_precision:.1f} / {100 * judged.noise_recall:.1f} / " in (
        paper_markdown(found)
    )
    with pytest.raises(NoisegateError, match=r"annotate .* failed"):  # the first estimator's table is not for another
        bench(estimator="python:no.such:Model")


def test_noise_is_put_into_features_once(tmp_path: Path) -> None:
    captions = [f"a {colour} thing number {i}" for i, colour in enumerate(["red", "green", "blue"] * 8)]
    for split in ("train", "test"):
        features(tmp_path / "source", 24, captions, split)
    for split in ("train", "test"):
        convert("flickr30k", tmp_path / "source", tmp_path / f"data/regions-{split}", layout="features", split=split)
    preset = load_paper_preset("flickr30k")
    small = {
        "target": {"features": 4, "width": 8, "word_width": 8, "steps": 1},
        "data": {"batch_size": 8},
        "loop": {"epochs": 1, "max_steps": 2, "device": "cpu"},
    }
    notes: list[str] = []
    for _ in range(2):
        found = run_paper_bench(
            preset, "regions", tmp_path / "data", tmp_path / "out", methods=["baseline"], rates=[0.0, 0.4], settings=small,
            note=notes.append,
        )  # fmt: skip
    (clean,), (noisy,) = found.cells.values()
    assert (clean.error, noisy.error, clean.updates, noisy.rate) == (None, None, 2, 0.4)
    assert notes == ["noise: shuffle-captions 40 %"]
    assert "shuffle-captions 0 % | shuffle-captions 40 %" in paper_markdown(found)


def test_lnc_divides_by_the_truth_where_its_variant_asks_for_it(tmp_path: Path) -> None:
    captions = [f"a {colour} thing number {i}" for i, colour in enumerate(["red", "green", "blue"] * 8)]
    for split, file in (("train", "train"), ("test", "testall")):
        features(tmp_path / "source", 24, captions, file)
        convert("coco", tmp_path / "source", tmp_path / f"data/regions-{split}", layout="features", split=split)
    small = {
        "target": {"features": 4, "width": 8, "word_width": 8, "steps": 1},
        "task": {"options": {"folds": 1}},
        "data": {"batch_size": 8},
        "method": {"warmup": 1},
        "loop": {"epochs": 2, "max_steps": 6, "device": "cpu"},
    }
    found = run_paper_bench(
        load_paper_preset("coco"), "regions", tmp_path / "data", tmp_path / "out", methods=["lnc@true-w"], rates=[0.0, 0.5],
        settings=small,
    )  # fmt: skip
    assert [cell.error for cells in found.cells.values() for cell in cells] == [None, None]
    place = tmp_path / "out/coco/regions"
    noisy = pq.read_table(place / "noisy-shuffle-captions-50/noise.parquet")["noisy"].to_pylist()
    clean = read_table(place / "truth-shuffle-captions-50", ["clean"])["clean"].to_pylist()
    assert clean == [not wrong for wrong in noisy] and 0 < sum(noisy) < len(noisy)
    assert all(read_table(place / "truth-shuffle-captions-0", ["clean"])["clean"].to_pylist())


def test_missing_shards_are_answered_with_the_commands_that_make_them(tmp_path: Path) -> None:
    with refused("data", str(tmp_path)) as caught:
        run_paper_bench(load_paper_preset("webvision"), "clip", tmp_path, tmp_path / "out")
    assert f"noisegate convert webvision SOURCE --out {tmp_path}/train" in str(caught.value)
    with refused("setup", "regions"):
        run_paper_bench(load_paper_preset("webvision"), "regions", tmp_path, tmp_path / "out")


@pytest.mark.parametrize("name", paper_presets())
def test_every_preset_says_how_to_get_its_files(name: str) -> None:
    with refused("data") as caught:
        CliRunner().invoke(app, ["bench", "--preset", name], catch_exceptions=False)
    message = str(caught.value)
    given = {"flickr8k": "train_ims.npy", "cifar10n": "cifar10n-features.npz"}
    assert given.get(name, "make them from the unpacked download") in message
    if name == "flickr8k":
        return
    kind, setup = KINDS[name], next(iter(load_paper_preset(name).setups.values()))
    assert all(f"\n  {line}" in message for line in setup.convert)
    layout = next((layout for layout in kind.layouts if f"--layout {layout} " in message), None)
    download, files = (kind.layouts[layout], LAYOUTS[layout]) if layout else (kind.source, kind.expected)
    assert f"\n  download of {name}: {download}\n  its files: {files}\n" in message


@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        (["--preset", "flickr30k"], "data", None),
        (["--preset", "flickr30k", "--data", "x", "--quick"], "quick", True),
        (["--preset", "scenes-retrieval", "--data", "x"], "data", Path("x")),
        (["--preset", "cc120k", "--data", "x", "--rates", "0.4"], "rates", [0.4]),
        (["--preset", "scenes-retrieval", "--rates", "much"], "rates", "much"),
        (["--preset", "scene"], "preset", "scene"),
    ],
)
def test_a_flag_that_cannot_work_is_named(words: list[str], setting: str, value: object) -> None:
    with refused(setting, value):
        CliRunner().invoke(app, ["bench", *words], catch_exceptions=False)


def test_conditions_are_those_of_the_papers() -> None:
    found = list_conditions(load_paper_preset("cifar100"))
    assert [one.name for one in found] == [
        "symmetric-0", "symmetric-40", "symmetric-60", "asymmetric-30", "instance-dependent-40",
    ]  # fmt: skip
    assert found[3].options == {"class_map": "cifar100"}
    assert [one.rate for one in list_conditions(load_paper_preset("flickr30k"), [0.4])] == [0.4]
    with refused("rates", 40):
        list_conditions(load_paper_preset("flickr30k"), [40])


def test_only_figures_of_the_same_method_and_noise_stand_beside_ours() -> None:
    preset = load_paper_preset("flickr30k")
    asked = (Condition("shuffle-captions", 0.4, {}), Condition("shuffle-captions", 0.5, {}))

    def cell(seed: int, value: float) -> CellResult:
        return CellResult("osa", 0.4, seed, "", {"i2t_r1": value, "t2i_r1": 70.0, "rsum": 500.0})

    cells = {
        ("osa", "shuffle-captions-40"): [cell(0, 80.0), cell(1, 82.0)],
        ("osa", "shuffle-captions-50"): [CellResult("osa", 0.5, 0, "", {}, error="boom"), cell(1, 60.0)],
    }
    text = paper_markdown(PaperBench(preset, "clip", ("osa",), asked, cells, paper_figures("flickr30k", setup="clip")))
    assert f"| osa | 81.0 ± {np.std([80, 82], ddof=1):.1f} (87.3) | 60.0 (1 failed) |" in text
    assert "- failed: osa at 50 % noise, seed 0: boom" in text
    assert method_notes(["osa", "gsl", "gsl@other", "oracle"]) == [f"- {RECONSTRUCTION}"]
