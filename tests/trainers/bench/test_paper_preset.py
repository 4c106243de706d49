"""The papers' presets and figures: every run's settings are taken by the trainers, every command by the command line."""

import shlex

import pytest
from typer.testing import CliRunner

from noisegate.pipeline.cli.commands import app
from noisegate.pipeline.datasets.convert.kinds import KINDS
from noisegate.pipeline.datasets.noise import PROTOCOLS
from noisegate.trainers.bench.paper_bench import load_paper_preset, paper_figures, paper_presets
from noisegate.trainers.config import TrainConfig, build_method
from noisegate.trainers.targets.build import target_config
from tests.errors import refused

PRESETS = paper_presets()
RUNS = [
    (name, setup, method)
    for name in PRESETS
    for setup, found in load_paper_preset(name).setups.items()
    for method in found.methods
]
MEASURED = {
    "retrieval": {f"{fold}{way}_r{k}" for fold in ("", "fold_") for way in ("i2t", "t2i") for k in (1, 5, 10)}
    | {"rsum", "fold_rsum"},
    "classification": {"accuracy"},
    "image_retrieval": {"precision_at_1", "map_at_r"},
}


def test_every_data_set_of_the_issue_has_a_preset() -> None:
    assert set(PRESETS) == {
        "animal10n", "cars98n", "cc120k", "cc152k", "cifar100", "cifar100n", "coco", "flickr30k", "food101n", "msrvtt",
        "webvision",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "setup", "method"), RUNS, ids=lambda value: str(value))
def test_settings_are_taken_by_the_trainers(name: str, setup: str, method: str) -> None:
    config = TrainConfig.parse(load_paper_preset(name).run_config(setup, method, "/somewhere"))
    assert config.task.name == load_paper_preset(name).task
    assert config.data.shards[0].startswith("/somewhere/")
    assert build_method(config).config.name == method
    assert target_config(config.target).name == config.target["name"]


def test_settings_are_those_of_the_papers() -> None:
    def settings(name: str, setup: str, method: str) -> TrainConfig:
        return TrainConfig.parse(load_paper_preset(name).run_config(setup, method))

    osa = settings("flickr30k", "clip", "osa")
    assert (osa.target["model"], osa.optimizer.lr, osa.loop.epochs, osa.schedule.warmup, osa.data.batch_size) == (
        "ViT-B-32", 1e-5, 5, 500, 256,
    )  # fmt: skip
    assert settings("cc120k", "clip", "osa").loop.epochs == 10
    assert str(osa.data.table) == "DATA/tables"
    for name, warmup, epochs in (("flickr30k", 3, 40), ("coco", 10, 20), ("cc152k", 5, 30)):
        lnc = settings(name, "regions", "lnc")
        assert (lnc.method["warmup"], lnc.loop.epochs, lnc.optimizer.lr) == (warmup, warmup + epochs, 2e-4)
        assert (lnc.target["name"], lnc.target["module"], lnc.data.image_part) == ("sgraf", "sgr", "npy")
    crcl = settings("flickr30k", "regions", "crcl")
    assert (crcl.optimizer.name, crcl.optimizer.lr, crcl.optimizer.betas) == ("adamw", 5e-4, (0.9, 0.999))
    assert sum(crcl.method["pieces"]) == crcl.loop.epochs
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
    assert [row.figures["rsum"] for row in paper_figures("flickr30k", method="crcl")] == [507.8, 505.2, 487.3, 443.7]
    (ilsvrc,) = [row for row in paper_figures("webvision") if row.also_on == "ilsvrc"]
    assert ilsvrc.figures == {"accuracy": 86.44}


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
