"""`noisegate bench --quick`: all methods on all tasks, small and whole, as the command line runs them."""

import json
from pathlib import Path

import yaml

from noisegate import METHODS
from tests.commands import called

SCENES = {"scenes-retrieval": 240, "scenes-classification": 160, "scenes-image-retrieval": 450}  # scenes to train on
ON_REQUEST = {"npc", "bicro", "in2r", "decl", "label_match", "aum", "deft"}  # by --methods; their own tests train them


def test_every_method_is_compared(tmp_path: Path) -> None:
    presets: list[str] = []
    for name, train in SCENES.items():  # an eighth of the usual updates, on less data
        quick: dict[str, object] = {"updates": 5, "data": {"train": train, "held_out": 40}}
        if name != "scenes-image-retrieval":  # two rates once
            quick["rates"] = [0.4]
        preset = {"base": name, "quick": quick}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(preset), encoding="utf-8")
        presets += ["--preset", f"{name}.yaml"]
    done = called("bench", *presets, "--quick", "--out", "bench", "--jobs", 1, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {name.removesuffix(".yaml"): results for name, results in json.loads(done.stdout).items()}
    assert set(found) == set(SCENES)
    cells = [cell for one in found.values() for cell in one["cells"]]
    assert [cell["error"] for cell in cells if cell["error"]] == []
    assert {cell["method"].partition("@")[0] for cell in cells} == {*METHODS, "oracle"} - ON_REQUEST
    assert all(cell["rate"] in (0, 0.4) and cell["updates"] > 0 and cell["seconds"] > 0 for cell in cells)
    judged = {cell["method"] for cell in cells if cell["rate"] == 0.4 and "noise_f1" in cell["learnt"]}
    assert {"ncr", "lnc", "crcl", "gsl", "tango", "ssr", "dividemix"} <= judged
    page = (tmp_path / "bench/quick/scenes-image-retrieval/results.html").read_text(encoding="utf-8")
    assert page.count("<polyline") == len(found["scenes-image-retrieval"]["means"])
    for figures in found["scenes-image-retrieval"]["means"].values():
        assert set(figures) == {"0", "0.4"} and all(one["count"] == 1 for one in figures.values())
