"""Settings: how they are read, and that each that cannot work is answered in one line before anything is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.table import RunFolder
from noisegate.trainers.checks import check_config
from noisegate.trainers.config import TrainConfig, build_method, read_config
from noisegate.trainers.methods import METHODS
from noisegate.trainers.paper_settings import with_paper_settings
from tests.commands import called
from tests.errors import ANY, refused
from tests.trainers.runs import TARGET, settings


def test_words_change_a_file(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("optimizer: {lr: 1.0e-3, betas: [0.9, 0.99]}\nseed: 4\ntarget:\n")
    values = read_config(file, ["optimizer.lr=5e-4", "data.shards=x-{0..9}.tar", "target.architecture.embed_dim=8"])
    assert values == {
        "optimizer": {"lr": 5e-4, "betas": [0.9, 0.99]},
        "seed": 4,
        "target": {"architecture": {"embed_dim": 8}},
        "data": {"shards": "x-{0..9}.tar"},
    }


def test_a_tree_is_not_changed_by_words() -> None:
    tree: dict[str, Any] = {"loop": {"epochs": 1}}
    assert read_config(tree, ["loop.epochs=2"], {"loop.epochs": 3, "seed": 1}) == {"loop": {"epochs": 2}, "seed": 1}
    assert tree == {"loop": {"epochs": 1}}


def test_a_configuration_survives_yaml(scored: Path, tmp_path: Path) -> None:
    config = TrainConfig.parse(settings(scored, tmp_path, optimizer__lr=3e-5))
    assert TrainConfig.parse(yaml.safe_load(config.to_yaml())) == config


def test_one_pattern_is_a_list_of_one() -> None:
    config = TrainConfig.parse(read_config(None, ["data.shards=x-{0..9}.tar"], {"data.eval_shards": Path("held")}))
    assert (config.data.shards, config.data.eval_shards) == (("x-{0..9}.tar",), ("held",))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"optimiser": {}}, "optimiser is no setting; did you mean optimizer?"),
        ({"optimizer": {"learning": 1}}, "optimizer.learning is no setting; known are name, lr"),
        ({"loop": {"epoch": 3}}, "loop.epoch is no setting; did you mean loop.epochs?"),
        ({"optimizer": {"lr": "fast"}}, "optimizer.lr=fast: input should be a valid number"),
        ({"optimizer": {"lr": 0}}, "optimizer.lr=0: input should be greater than 0, for example optimizer.lr=1.0e-05"),
        ({"optimizer": {"name": "lion"}}, "optimizer.name=lion: input should be 'adamw', 'adam' or 'sgd'"),
        ({"data": {"batch_size": 1}}, "data.batch_size=1: input should be greater than or equal to 2"),
        ({"loop": {"epochs": 1.5}}, "loop.epochs=1.5"),
        ({"loop": 3}, "loop=3"),
        ({"seed": -1}, "seed=-1"),
        ({"optimizer": {"betas": [0.9]}}, "for example optimizer.betas=[0.9, 0.98]"),
        ({"optimizer": {"betas": [0.9, 1]}}, "optimizer.betas.1=1: input should be less than 1"),
        ({"optimizer": {"lr": float("inf")}}, "optimizer.lr=.inf: input should be a finite number"),
        (
            {"schedule": 5},
            "schedule=5: input should be a valid dictionary, for example schedule={name: cosine, warmup: 0",
        ),
        ({"data": {"max_mismatch": 1}}, "data.max_mismatch=1: input should be less than 1"),
        ({"data": {"image_part": "npz"}}, "data.image_part=npz: input should be 'npy'"),
        ({"task": {"name": "ranking"}}, "task.name=ranking: input should be 'retrieval'"),
    ],
)
def test_a_wrong_value_is_one_line(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig.parse(values)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    ((section, inner),) = values.items()
    (name, value) = next(iter(inner.items())) if isinstance(inner, dict) and inner else ("", inner)
    if not isinstance(value, list):  # else the setting is a place in the list
        assert (caught.value.setting, caught.value.value) == (".".join(filter(None, [section, name])), value)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["optimizer"], "write NAME=VALUE, for example --set optimizer.lr=1e-4"),
        (["seed.x=1"], "--set seed.x: seed is 4, with no settings of its own"),
    ],
)
def test_a_wrong_word_is_answered(words: list[str], answer: str) -> None:
    with refused("set", words[0].partition("=")[0]) as caught:
        read_config({"seed": 4}, words)
    assert answer in str(caught.value)


@pytest.mark.parametrize(
    ("content", "answer"), [("a: [", "is no YAML"), ("- a\n", "is no mapping"), (None, "cannot be read")]
)
def test_a_file_that_is_no_configuration(tmp_path: Path, content: str | None, answer: str) -> None:
    file = tmp_path / "x.yaml"
    if content is not None:
        file.write_text(content)
    with refused("config", str(file)) as caught:
        read_config(file)
    assert answer in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": {"name": "ossa"}}, "method.name 'ossa' is unknown; use one of baseline, select, osa"),
        ({"method": {"name": "osa", "mod": "raw"}}, "method.mod is no setting; did you mean method.mode?"),
        ({"method": {"name": "osa", "mode": "sum"}}, "method.mode=sum: input should be 'mean1'"),
        ({"method": {"name": "osa", "loss": "cross_entropy"}}, "does not fit task.name=retrieval; use info_nce or"),
        ({"method": {"name": "osa", "weight": "osa_wieght"}}, "a table has no column 'osa_wieght'"),
        ({"method": {"name": "osa", "weight": "neighbourhood"}}, "is empty; fill it with: noisegate rescore"),
        ({"method": {"name": "osa", "weight": "images", "mode": "reference"}}, "use method.mode=mean1"),
        ({"method": {"name": "osa", "weight": "images", "beta": "high"}}, "beta 'high' is unknown"),
        ({"method": {"name": "select", "rule": "cleen"}}, "cleen"),
        ({"method": {"name": "select", "rule": "similarity > 2"}}, "has 0 good samples for which similarity > 2 holds"),
        ({"data__table": None}, "method.name=osa needs a weight table; give data.table"),
        ({"data__table": "nowhere"}, "data.table nowhere holds no run; make one with: noisegate annotate"),
        ({"data__where": "similarity >"}, "similarity"),
        ({"data__where": "neighbourhood > 0"}, "the column neighbourhood of"),
        ({"data__shards": ["nothing/*.tar"]}, "nothing/*.tar"),
        ({"data__eval_shards": []}, "data.eval_shards is empty: nothing to measure on; give held-out shards, or loop."),
        ({"data__eval_shards": ["none/*.tar"]}, "none/*.tar"),
        ({"data__batch_size": 4000}, "data.batch_size 4000 is more than the 160 good samples"),
        ({"data__sampler": "shuffle"}, "data.sampler 'shuffle' is unknown; use window, sequential or m_per_class:4"),
        ({"data__sampler": "m_per_class:4"}, "draws by class, and task.name=retrieval has none; use window"),
        ({"data__sampler": "m_per_class:7"}, "use data.batch_size=28"),
        ({"task__name": "image_retrieval", "data__batch_size": 30}, "use data.batch_size=28"),
        ({"task__name": "classification"}, "needs the classes' names; give for example target.classes=classes.txt"),
        ({"data__captions": "txt"}, "data.captions 'txt' is unknown; use 'one'"),
        ({"data__where": "similarity > 0.999999"}, "nothing to train on; use a wider rule"),
        ({"task__monitor": "accuracy"}, "task.monitor 'accuracy' is none of the figures; use one of i2t_r1, i2t_r5"),
        ({"task__options": {"fold": 5}}, "task.options.fold is no option of retrieval; it takes folds and ks"),
        ({"task__options": {"folds": "five"}}, "task.options.folds 'five' is no number of parts; use 5"),
        ({"task__options": {"ks": 1}}, "use for example task.options.ks=[1, 5, 10]"),
        (
            {"task": {"name": "image_retrieval", "options": {"ks": [1]}}},
            "image_retrieval takes no options; leave it out",
        ),
        ({"task__name": "image_retrieval", "data__sampler": "m_per_class:1"}, "use data.sampler=m_per_class:4"),
        (
            {
                "task__name": "classification",
                "target": {**TARGET, "classes": ["a", "b"]},
                "method": {"name": "baseline"},
            },
            "target.classes has 2 names, and data.table=",
        ),
        ({"target": {"name": "sgraf"}}, "target.name=sgraf reads features; use data.image_part=npy"),
        ({"target": {"name": "dual"}}, "use data.image_part=npy, or target.backbone=resnet50 for pictures"),
        ({"data__image_part": "npy"}, "gives features, and target.name=clip reads pictures; use data.image_part=null"),
        ({"target": {}}, "target.name is not given; use for example target.name=clip"),
        ({"target": {"name": "bert"}}, "target.name 'bert' is unknown; use one of clip"),
        ({"loop__device": "cuda"}, "use loop.device=cpu or auto"),
        ({"loop__precision": "16-mixed"}, "needs a GPU; use loop.precision=32-true"),
        ({"loop__devices": 3}, "cannot be shared evenly; use data.batch_size=30"),
        ({"loop": {"evaluate_every": 0, "patience": 2}}, "loop.patience 2 waits for better figures"),
        ({"optimizer": {"nesterov": True, "momentum": 0}}, "use optimizer.momentum=0.9"),
        ({"out": "s3://bucket/runs"}, "is a URL; give a local folder, such as out=runs"),
        ({"out": f"{__file__}/runs"}, "is a file; give a folder, such as out=runs"),
        ({"data__cache": __file__}, "is a file; give a folder, such as data.cache=cache"),
        ({"data__eval_shards": ["none/*.tar"]}, "data.eval_shards: shards 'none/*.tar' matches no .tar or .tar.gz"),
        ({"data__shards": ["none/*.tar"]}, "data.shards: shards 'none/*.tar' matches no .tar or .tar.gz"),
        ({"seed": 2**70}, "seed=1180591620717411303424: input should be less than or equal to"),
        ({"target": "clip"}, "input should be a valid dictionary, for example target={name: clip, model: ViT-B-32}"),
        ({"target": {"name": {"x": 1}}}, "target.name {'x': 1} is unknown; use one of clip"),
        ({"method": {"name": {"x": 1}}}, "method.name {'x': 1} is unknown; use one of baseline"),
        ({"method": {"mode": "raw"}}, "method.name is not given; use one of baseline"),
        ({"method": {"name": "crcl", "pieces": "5,five"}}, "for example method.pieces=[5, 5, 5, 30]"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_loaded(
    scored: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    values = settings(scored, tmp_path / "runs", **changes)
    with pytest.raises(ConfigError) as caught:
        check_config(TrainConfig.parse(values))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("changes", "setting", "value"),
    [
        ({"method": {"name": "select", "rule": "similarity > 2"}}, "data.where", "similarity > 2"),
        ({"method": {"name": "osa", "mode": "sum"}}, "method.mode", "sum"),
        ({"data__table": None}, "data.table", None),
        ({"data__shards": ["nothing/*.tar"]}, "data.shards", ANY),
        ({"data__eval_shards": []}, "data.eval_shards", ()),
        ({"data__batch_size": 4000}, "data.batch_size", 4000),
        ({"data__sampler": "shuffle"}, "data.sampler", "shuffle"),
        ({"data__sampler": "m_per_class:4"}, "data.sampler", "m_per_class:4"),
        ({"data__sampler": "m_per_class:7"}, "data.batch_size", 32),
        ({"data__captions": "txt"}, "data.captions", "txt"),
        ({"data__label_column": "refined_label"}, "data.label_column", "refined_label"),  # captions are learnt
        (
            {"task__name": "image_retrieval", "data__label_column": "refined_label", "data__label_field": "x"},
            "data.label_column",
            "refined_label",
        ),
        (
            {
                "task__name": "image_retrieval",
                "data__label_column": "refined_label",
                "data__table": None,
                "method": {"name": "baseline"},
            },
            "data.label_column",
            "refined_label",
        ),
        ({"task__monitor": "accuracy"}, "task.monitor", "accuracy"),
        ({"task__options": {"fold": 5}}, "task.options.fold", 5),
        ({"task__options": {"folds": "five"}}, "task.options.folds", "five"),
        ({"task__name": "classification"}, "target.classes", ANY),
        ({"target": {"name": "sgraf"}}, "data.image_part", None),
        ({"data__image_part": "npy"}, "data.image_part", "npy"),
        ({"target": {}}, "target.name", None),
        ({"loop__device": "cuda"}, "loop.device", "cuda"),
        ({"loop__precision": "16-mixed"}, "loop.precision", "16-mixed"),
        ({"loop__devices": 3}, "data.batch_size", 32),
        ({"loop": {"evaluate_every": 0, "patience": 2}}, "loop.patience", 2),
        ({"optimizer": {"nesterov": True, "momentum": 0}}, "optimizer.momentum", 0),
        ({"out": "s3://bucket/runs"}, "out", Path("s3://bucket/runs")),
        ({"data__cache": __file__}, "data.cache", Path(__file__)),
    ],
)
def test_an_error_names_the_setting_and_its_value(
    scored: Path, tmp_path: Path, changes: dict[str, Any], setting: str, value: object
) -> None:
    with refused(setting, value):
        check_config(TrainConfig.parse(settings(scored, tmp_path / "runs", **changes)))


def test_pieces_as_one_writes_them_on_a_command_line(scored: Path, tmp_path: Path) -> None:
    values = read_config(settings(scored, tmp_path, "crcl"), ["method.pieces=5,5,5,30"])
    assert build_method(TrainConfig.parse(values)).epochs(1) == 45


def test_a_table_is_not_needed_by_the_baseline_alone(scored: Path, tmp_path: Path) -> None:
    values = settings(scored, tmp_path, "baseline", data__table=None)
    assert check_config(TrainConfig.parse(values)).where is None
    with refused("data.where", "clean"):
        check_config(TrainConfig.parse(settings(scored, tmp_path, "baseline", data__table=None, data__where="clean")))
    with refused("data.shards", ()):
        check_config(TrainConfig.parse(settings(scored, tmp_path, "baseline", data__table=None, data__shards=[])))


def test_an_unfinished_run_is_refused(scored: Path, tmp_path: Path) -> None:
    run = RunFolder(scored / "tables").read_run()
    assert run is not None
    (tmp_path / "_run.json").write_text(json.dumps({**run, "finished": False}))
    with refused("data.table", tmp_path):
        check_config(TrainConfig.parse(settings(scored, tmp_path, data__table=str(tmp_path))))


def test_rules_are_joined_and_leaks_are_told(scored: Path, tmp_path: Path) -> None:
    values = settings(
        scored, tmp_path, "select", data__where="similarity > 0.1", data__eval_shards=[str(scored / "noisy" / "*.tar")]
    )
    found = check_config(TrainConfig.parse(values))
    assert found.where == "(similarity > 0.1) and (clean)"
    assert "is trained on and evaluated on: figures will flatter" in found.notes[0]
    assert check_config(TrainConfig.parse(settings(scored, tmp_path))).notes == []


def test_without_shards_the_table_names_them(scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scored)
    found = check_config(TrainConfig.parse(settings(scored, tmp_path, data__shards=[])))
    assert [shard.url for shard in found.shards] == [f"noisy/scenes-{i:06d}.tar" for i in range(4)]


@pytest.mark.parametrize(
    ("task", "loss", "sampler"),
    [
        ("retrieval", "info_nce", "window"),
        ("classification", "cross_entropy", "window"),
        ("image_retrieval", "contrastive", "m_per_class:4"),
    ],
)
def test_each_task_has_its_loss_and_order(scored: Path, tmp_path: Path, task: str, loss: str, sampler: str) -> None:
    target = {**settings(scored, tmp_path)["target"], "classes": str(scored / "clean" / "classes.txt")}
    config = TrainConfig.parse(settings(scored, tmp_path, target=target, task__name=task))
    assert build_method(config).loss_name == loss
    assert check_config(config).sampler == sampler


# --- settings of the papers --------------------------------------------------------------------------------------------


PAPERS = {  # batch size, learning rate, all epochs, warm-up of the method
    "baseline": (256, 1e-5, 5, None),
    "select": (256, 1e-5, 5, None),
    "osa": (256, 1e-5, 5, None),
    "ncr": (128, 2e-4, 45, 5),
    "lnc": (128, 2e-4, 43, 3),
    "gsl": (128, 2e-4, 50, 10),
    "bicro": (128, 2e-4, 50, 10),
    "in2r": (128, 5e-4, 41, 1),
    "crcl": (128, 5e-4, 45, None),
    "npc": (256, 2e-7, 5, None),
    "decl": (128, 2e-4, 45, 5),
    "tango": (64, 5e-4, 20, 0),
    "label_match": (64, 5e-4, 20, None),
    "deft": (64, 5e-4, 20, 5),
    "ssr": (128, 0.02, 300, 0),
    "dividemix": (64, 0.02, 300, 10),
    "aum": (256, 0.1, 600, 150),
}


@pytest.mark.parametrize("name", METHODS)
def test_settings_of_papers_make_a_valid_configuration(name: str) -> None:
    task = METHODS[name].tasks[0]
    config = TrainConfig.parse(with_paper_settings({"method": {"name": name}, "task": {"name": task}}))
    method = build_method(config)
    found = (config.data.batch_size, config.optimizer.lr, method.epochs(config.loop.epochs))
    assert (*found, getattr(method.config, "warmup", None)) == PAPERS[name]


def test_epochs_that_are_given_take_precedence_over_crcls_pieces() -> None:
    values = with_paper_settings({"method": {"name": "crcl"}, "loop": {"epochs": 20}})
    assert build_method(TrainConfig.parse(values)).epochs(20) == 20
    assert values["method"]["label"] == "probability"


def test_osa_has_other_settings_for_other_tasks() -> None:
    """Classification of WebFG: batch 64; retrieval of CARS98N: batch 128, 5e-6, 10 epochs."""
    found = [with_paper_settings({"method": {"name": "osa"}, "task": {"name": t}}) for t in METHODS["osa"].tasks]
    assert [(f["data"]["batch_size"], f["optimizer"]["lr"], f["loop"]["epochs"]) for f in found] == [
        (256, 1e-5, 5), (64, 1e-5, 10), (128, 5e-6, 10),
    ]  # fmt: skip


def test_osa_s_paper_has_beta_of_random_inputs_for_labels_too() -> None:
    def beta(task: str, **method: object) -> str:
        config = TrainConfig.parse(with_paper_settings({"method": {"name": "osa", **method}, "task": {"name": task}}))
        return build_method(config).config.beta

    assert [beta(task) for task in METHODS["osa"].tasks] == ["intersection", "random_inputs", "intersection"]
    assert beta("classification", beta="intersection") == "intersection", "what is given goes before it"
    plain = with_paper_settings({"method": {"name": "baseline"}, "task": {"name": "classification"}})
    assert plain["method"] == {"name": "baseline"}


def test_given_settings_go_before_those_of_papers() -> None:
    given = {"method": {"name": "crcl", "pieces": [3]}, "loop": {"epochs": 4}, "seed": 7}
    found = with_paper_settings(given)
    assert found["method"] == {"name": "crcl", "pieces": [3], "label": "probability"}
    assert found["loop"] == {"clip": 2.0, "epochs": 4}
    assert found["seed"] == 7
    found["optimizer"]["lr"] = 1
    assert with_paper_settings(given)["optimizer"]["lr"] == 5e-4


def test_a_method_that_does_not_exist_has_no_paper() -> None:
    with refused("paper", "lnnc"):
        with_paper_settings({"method": {"name": "lnnc"}})


def test_the_command_takes_them(scored: Path, tmp_path: Path) -> None:
    done = called(
        "train", "--paper", "--method", "crcl", "--table", scored / "tables", "--shards", scored / "noisy" / "*.tar",
        "--batch-size", 32, "--device", "cpu", "--out", tmp_path / "runs", "--json", "--quiet", "--set",
        "loop.evaluate_every=0", "--set", f"target={json.dumps(TARGET)}", "--set", "loop.max_steps=1", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    recorded = yaml.safe_load((tmp_path / "runs" / "001-crcl" / "config.yaml").read_text())
    assert recorded["optimizer"]["lr"] == 5e-4
    assert recorded["schedule"]["every"] == 15
    assert recorded["data"]["batch_size"] == 32
    assert recorded["method"]["pieces"] == [5, 5, 5, 30]
