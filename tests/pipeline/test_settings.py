"""The settings of annotate: defaults, checks, and the views of them."""

import json
from dataclasses import fields
from typing import Any

import pytest

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.settings import AnnotateSettings, DecodeOptions, Limits, ScoreSettings, read_tasks
from tests.errors import refused


@pytest.mark.parametrize(
    ("values", "setting", "value"),
    [
        ({"k": 0}, "k", 0),
        ({"seed": -1}, "seed", -1),
        ({"beta": "fixd:1"}, "beta", "fixd:1"),
        ({"beta": "fixed:2"}, "beta", 2.0),
        ({"tasks": ("pair",)}, "task", "pair"),
        ({"tasks": ()}, "task", ""),
        ({"max_pixels": 0}, "max_pixels", 0),
        ({"workers": -1}, "workers", -1),
        ({"engine": "spark"}, "engine", "spark"),
        ({"ray_workers": 2}, "ray-workers", 2),
        ({"address": "auto"}, "address", "auto"),
        ({"engine": "ray", "devices": "2"}, "devices", "2"),
        ({"engine": "ray", "nodes": "4"}, "nodes", "4"),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], setting: str, value: Any) -> None:
    with refused(setting, value):
        AnnotateSettings(**values)


def test_pairs_of_two_encoders_need_neighbourhoods() -> None:
    with refused("neighbourhood", False):
        ScoreSettings(joint=False)
    assert ScoreSettings(joint=False, neighbourhood=True).neighbourhood


def test_a_setting_without_effect_is_refused_when_asked() -> None:
    with refused("classes", "cifar10"):
        AnnotateSettings(classes="cifar10").refuse_unused()
    with refused("beta", "fixed:0.2"):
        AnnotateSettings(beta="fixed:0.2", tasks=("labels",)).refuse_unused()
    AnnotateSettings(beta="fixed:0.2", classes="cifar10", tasks=("pairs", "labels")).refuse_unused()


def test_the_message_names_setting_value_and_a_value_that_works() -> None:
    with pytest.raises(ConfigError, match="k 0 is not a number of neighbours; use 50, or leave it out"):
        ScoreSettings(k=0)


def test_the_views_have_the_same_defaults_and_values() -> None:
    settings = AnnotateSettings()
    assert settings.reading == DecodeOptions()
    assert settings.scoring == ScoreSettings()
    changed = AnnotateSettings(tasks=("labels",), label_field="y", max_aspect=7, k=3, seed=5, neighbourhood=True)
    assert changed.reading == DecodeOptions(("labels",), None, "y", Limits(max_aspect=7))
    assert changed.scoring == ScoreSettings(tasks=("labels",), k=3, neighbourhood=True, seed=5)
    assert DecodeOptions.from_dict(changed.reading.to_dict()) == changed.reading


def test_they_survive_json() -> None:
    settings = AnnotateSettings(tasks=read_tasks("pairs, labels"), k=9, workers=0, keep_embeddings=False)
    assert AnnotateSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_every_setting_has_a_help_text() -> None:
    for setting in fields(AnnotateSettings):
        assert setting.metadata["help"].endswith("."), setting.name
