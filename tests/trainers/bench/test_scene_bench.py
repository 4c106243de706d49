"""A bench of seconds with everything real: scenes, noise, scores, training, figures."""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from noisegate import read_table
from noisegate.pipeline.errors import StoppedError
from noisegate.trainers.bench.paper_bench import load_paper_preset
from noisegate.trainers.bench.preset_files import ScenePreset, check_methods, check_preset, load_preset, preset_names
from noisegate.trainers.bench.pretraining import Pretraining, pretrain
from noisegate.trainers.bench.scene_bench import PreparedScenes, SceneBench, plan_cell, run_bench
from noisegate.trainers.bench.scene_tables import to_markdown
from noisegate.trainers.cli.bench import BenchChoices, expand_presets, plan_scenes
from noisegate.trainers.config import merge_trees
from noisegate.trainers.methods import METHODS
from tests.errors import refused
from tests.trainers.runs import TARGET

TINY = ScenePreset.model_validate(
    {
        "name": "tiny",
        "summary": "tiny",
        "task": "retrieval",
        "figure": {"name": "rsum", "label": "rSum/6", "divide": 6},
        "data": {"train": 120, "held_out": 20, "size": 32, "seed": 3, "protocol": "shuffle-captions"},
        "rates": [0.5],
        "seeds": [0],
        "methods": ["oracle", "osa"],
        "updates": 7,
        "config": {"data": {"batch_size": 16, "keep_decoded": True}, "target": {**TARGET, "augment": {"crop": None}}},
        "settings": {"osa": {"optimizer": {"lr": 3e-3}}},
    }
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def done(out: Path) -> SceneBench:
    return run_bench(TINY, out, jobs=1)


def test_every_cell_makes_the_updates_of_the_preset(done: SceneBench) -> None:
    assert [(cell.method, cell.updates, cell.error) for cell in done.cells] == [("oracle", 7, None), ("osa", 7, None)]
    assert all(0 <= cell.figures["rsum"] <= 600 and cell.figures["images"] == 20 for cell in done.cells)
    assert all(cell.seconds > 0 and cell.memory_mb > 50 for cell in done.cells)


def test_the_oracle_s_table_is_the_truth(done: SceneBench, out: Path) -> None:
    folder = out / "data" / "shuffle-captions-120-32px-3"
    noisy = pq.read_table(folder / "noisy-50" / "noise.parquet")["noisy"].to_numpy()
    found = read_table(folder / "truth-50", ["clean"])["clean"].to_numpy()
    assert noisy.sum() > 40
    np.testing.assert_array_equal(found, ~noisy)


def test_the_table_is_judged_by_the_truth(done: SceneBench, out: Path) -> None:
    folder = out / "data" / "shuffle-captions-120-32px-3"
    noisy = pq.read_table(folder / "noisy-50" / "noise.parquet")["noisy"].to_numpy()
    rejected = ~read_table(folder / "tables-50", ["clean"])["clean"].to_numpy().astype(bool)
    found = done.identification[0.5]
    assert found["noise_precision"] == pytest.approx(100 * (rejected & noisy).sum() / rejected.sum())
    assert found["noise_recall"] == pytest.approx(100 * (rejected & noisy).sum() / noisy.sum())


def test_a_second_bench_trains_nothing(done: SceneBench, out: Path) -> None:
    made: list[str] = []
    again = run_bench(TINY, out, jobs=1, note=made.append, progress=lambda cell, *_: made.append(cell.method))
    assert made == []
    assert again.cells == done.cells
    changed = run_bench(
        TINY.with_changes(settings={"osa": {"optimizer": {"lr": 1e-9}}}),
        out,
        jobs=1,
        progress=lambda cell, *_: made.append(cell.method),
    )
    assert made == ["osa"]
    assert changed.cells[0] == done.cells[0]


def test_tables_of_what_is_finished_need_no_other_data(done: SceneBench, out: Path, tmp_path: Path) -> None:
    with refused("finished", True):
        run_bench(TINY, tmp_path / "new", finished=True)
    assert not (tmp_path / "new").exists()
    more = TINY.with_changes(methods=["oracle"], rates=[*TINY.rates, 0.15], seeds=[*TINY.seeds, 77])
    found = run_bench(more, out, finished=True, note=lambda text: pytest.fail(text))
    assert found.cells == done.cells[:1] and found.preset.rates == TINY.rates
    assert "deviation of 1 seed," in to_markdown(found)


def test_a_bench_that_was_moved_trains_nothing(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at another place, nor by a relative path."""
    before = run_bench(TINY, out, jobs=1)
    shutil.copytree(out, tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    made: list[str] = []
    again = run_bench(TINY, Path("elsewhere"), jobs=1, note=made.append, progress=lambda *_: made.append("trained"))
    assert made == [] and again.cells == before.cells


PREPARED = PreparedScenes(Path("s"), Path("t"), Path("truth"), Path("h"), Path("c"), 100, 60, 40, {}, (3, 4))


def test_a_method_that_selects_passes_more_often_over_what_it_keeps() -> None:
    plans = {name: plan_cell(TINY, PREPARED, name, 0.5, 0, Path("out")) for name in ("baseline", "select", "oracle")}
    # 100 rows make 6 batches of 16, 60 make 3, 40 make 2: 7 updates take 2, 3 and 4 epochs
    assert {name: plan.config["loop"]["epochs"] for name, plan in plans.items()} == {
        "baseline": 2,
        "select": 3,
        "oracle": 4,
    }
    assert {plan.config["loop"]["max_steps"] for plan in plans.values()} == {7}
    assert plans["oracle"].config["method"] == {"name": "select"}
    assert (plans["oracle"].config["data"]["table"], plans["select"].config["data"]["table"]) == ("truth", "t")


def test_a_variant_may_ask_for_the_truth_as_its_table() -> None:
    preset = load_preset("scenes-pretrained")
    cell = plan_cell(preset, PREPARED, "lnc@true-w", 0.4, 0, Path("out"))
    assert cell.config["method"] == {"name": "lnc", "division": "table"} and cell.config["data"]["table"] == "truth"


def test_lnc_s_ablations_are_those_of_its_table_8() -> None:
    """Without the division, or without the rectified labels, the paper warms up plainly."""
    preset = load_preset("scenes-pretrained")
    plain = {"name": "lnc", "momentum_weight": 0, "abandon": 0}
    for variant, left_out in (("no-divide", {"division": "none"}), ("no-rectify", {"rectify": False})):
        cell = plan_cell(preset, PREPARED, f"lnc@{variant}", 0.4, 0, Path("out"))
        assert cell.config["method"] == plain | left_out
        on_photos = load_paper_preset("flickr30k").run_config("regions", f"lnc@{variant}")["method"]
        assert plain | left_out == {
            name: value for name, value in on_photos.items() if name not in ("warmup", "procedure")
        }


def test_with_passes_the_oracle_sees_each_sample_as_often_as_plain_training_does() -> None:
    plain, oracle = (plan_cell(TINY, PREPARED, name, 0.5, 0, Path("out")) for name in ("baseline", "oracle@passes"))
    assert oracle.config["loop"]["epochs"] == plain.config["loop"]["epochs"] == 2
    assert "max_steps" not in oracle.config["loop"]
    assert (oracle.config["method"], oracle.config["data"]["table"]) == ({"name": "select"}, "truth")
    assert oracle.file != plan_cell(TINY, PREPARED, "oracle", 0.5, 0, Path("out")).file


def test_a_variant_is_its_method_with_settings_on_top() -> None:
    preset = TINY.with_changes(methods=["osa@sharp"], settings={"osa@sharp": {"method": {"mode": "max1"}}})
    check_methods(preset, list(METHODS))
    found = plan_cell(preset, PREPARED, "osa@sharp", 0.5, 0, Path("out"))
    assert found.config["method"] == {"name": "osa", "mode": "max1"}
    assert found.config["optimizer"] == {"lr": 3e-3}


@pytest.mark.parametrize(("name", "answer"), [("osb", "use baseline, "), ("osa@blunt", "use osa@passes")])
def test_an_unknown_method_is_answered_with_those_there_are(name: str, answer: str) -> None:
    with refused("methods", name) as caught:
        check_methods(TINY.with_changes(methods=[name]), list(METHODS))
    assert answer in str(caught.value)


def test_presets_train_only_methods_of_their_task() -> None:
    def planned(names: list[str], *methods: str) -> dict[str, tuple[str, ...]]:
        presets = plan_scenes(names, BenchChoices(list(methods), None, None, None, False), True)
        return {name: preset.methods for name, preset in presets.items()}

    both = expand_presets(["scenes-pretrained"], preset_names(), [])
    assert planned(both, "decl") == {"scenes-pretrained": ("decl",)}
    assert planned(both, "oracle", "ssr") == {
        "scenes-pretrained": ("oracle",),
        "scenes-pretrained-labels": ("oracle", "ssr"),
    }
    for name, answer in (("decl", "is for retrieval"), ("osb", "is unknown"), ("osa@blunt", "is no variant")):
        with refused("methods", name) as caught:
            planned(["scenes-pretrained-labels"], "baseline", name)
        assert answer in str(caught.value)


def test_updates_are_counted_in_what_the_rule_leaves(done: SceneBench, out: Path) -> None:
    folder = out / "data" / "shuffle-captions-120-32px-3"
    prepared = dataclasses.replace(PREPARED, table=folder / "tables-50", rows=120)
    left = int((read_table(folder / "tables-50", ["similarity"])["similarity"].to_numpy() > 0.2).sum())
    preset = TINY.with_changes(settings={"select@near": {"method": {"rule": "similarity > 0.2"}}})
    found = plan_cell(preset, prepared, "select@near", 0.5, 0, out)
    assert 16 <= left < 120
    assert found.config["loop"]["epochs"] == -(-7 // (left // 16))


def test_settings_of_a_method_are_its_own_and_change_its_digest() -> None:
    osa, baseline = (plan_cell(TINY, PREPARED, name, 0.5, 0, Path("out")) for name in ("osa", "baseline"))
    assert osa.config["optimizer"] == {"lr": 3e-3} and "optimizer" not in baseline.config
    assert osa.config["target"]["vocabulary"] == {"kind": "captions", "ids": [3, 4]}
    other = dataclasses.replace(osa, config=merge_trees(osa.config, {"optimizer": {"lr": 4e-3}}))
    assert other.digest != osa.digest
    assert dataclasses.replace(osa, config=json.loads(json.dumps(osa.config))).digest == osa.digest


def test_a_pretrained_bench_begins_with_weights_from_other_scenes(out: Path) -> None:
    """All cells from the same weights, as many epochs each; a learning rate of nothing leaves their figures as they were."""
    tree = TINY.model_dump(exclude={"updates"}) | {"name": "begun", "epochs": 2, "methods": ["baseline", "select"]}
    tree["pretrain"] = {"train": 64, "config": {"loop": {"epochs": 1}}}
    tree["config"] = merge_trees(tree["config"], {"optimizer": {"lr": 1e-9}, "task": {"name": "retrieval"}})
    preset = ScenePreset.model_validate(tree)
    notes: list[str] = []
    found = run_bench(preset, out, jobs=1, note=notes.append)
    assert notes.count("pretraining on 64 clean scenes") == 1
    assert [cell.error for cell in found.cells] == [None, None]
    assert [cell.figures for cell in found.cells] == [found.pretrained] * 2
    (scenes,) = (out / "data").glob("pretrained-*/scenes")
    drawn = {path.read_bytes() for path in scenes.glob("*.tar")}
    others = (out / "data" / "shuffle-captions-120-32px-3").glob("*/*.tar")
    assert len(drawn) == 4 and not drawn & {path.read_bytes() for path in others}
    assert "2 epochs for every method" in (text := to_markdown(found))
    assert f"The pretrained weights had {found.pretrained['rsum'] / 6:.1f} before." in text
    again: list[str] = []
    run_bench(preset, out, jobs=1, note=again.append)
    assert again == [], "drawn, scored and trained once"


def test_a_pretraining_that_is_stopped_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-C: a stopped training leaves no weights."""
    stopped = SimpleNamespace(stopped=True, folder=tmp_path)
    monkeypatch.setattr("noisegate.trainers.train.train", lambda *_, **__: stopped)
    pretraining = Pretraining(train=10)
    with pytest.raises(StoppedError):
        pretrain(pretraining, TINY.config, "retrieval", 32, tmp_path, tmp_path, note=lambda _: None)
    assert not list(tmp_path.glob("data/*/retrieval.json")), "trained again by the next run"


def test_a_preset_says_its_updates_or_its_epochs() -> None:
    with refused("preset") as caught:
        check_preset(ScenePreset, TINY.model_dump() | {"epochs": 2}, "both")
    assert "give updates or epochs, one of them" in str(caught.value)


@pytest.mark.parametrize("name", preset_names())
def test_presets_name_methods_that_exist_and_are_quick_on_request(name: str) -> None:
    preset = load_preset(name)
    assert preset.name == name
    check_methods(preset, list(METHODS))
    assert {name.partition("@")[0] for name in preset.settings} <= {*METHODS, "oracle"}
    quick = preset.quick_version()
    assert len(quick.seeds) == 1 and len(quick.rates) == 2
    assert (quick.updates or quick.epochs) < (preset.updates or preset.epochs)


def test_an_unknown_preset_is_answered_with_those_there_are() -> None:
    with refused("preset", "scene") as caught:
        load_preset("scene")
    assert "scenes-retrieval" in str(caught.value)


def test_a_preset_of_ones_own_changes_a_known_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "base: scenes-retrieval\nmethods: [lnc, lnc@plain]\nsettings: {lnc@plain: {method: {abandon: 0}}}\n"
    )
    mine, base = load_preset(str(file)), load_preset("scenes-retrieval")
    assert mine.name == "mine" and mine.methods == ("lnc", "lnc@plain") and mine.data == base.data
    check_methods(mine, list(METHODS))
    plain = plan_cell(mine, PREPARED, "lnc@plain", 0.5, 0, tmp_path).config["method"]
    assert plain["abandon"] == 0 and plain["warmup"] == base.settings["lnc"]["method"]["warmup"]
    assert expand_presets([str(file), "scenes-retrieval"], preset_names(), []) == [str(file), "scenes-retrieval"]


def test_a_figure_that_the_task_does_not_have_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: scenes-pretrained\nfigure: {name: rsumm}\n")
    with refused("figure.name", "rsumm") as caught:
        plan_scenes([str(tmp_path / "mine.yaml")], BenchChoices(None, None, None, None, False), quick=True)
    assert "t2i_r10, rsum" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "setting", "answer"),
    [
        (None, "preset", "mine.yaml' cannot be read: [Errno 2] No such file"),
        ("base: [", "preset", "mine.yaml' cannot be read"),
        ("methods: [lnc]", "preset", "begin it with base: scenes-retrieval"),
        ("base: scenes-retreival", "preset", "preset 'scenes-retreival' is unknown"),
        ("base: scenes-retrieval\nrate: [0]", "rate", "mine.yaml: rate: Extra inputs"),
    ],
)
def test_a_preset_file_that_cannot_work_says_why(text: str | None, setting: str, answer: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "mine.yaml").write_text(text)
    with refused(setting) as caught:
        load_preset(str(tmp_path / "mine.yaml"))
    assert answer in str(caught.value)
