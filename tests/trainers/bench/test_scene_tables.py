"""Means, deviations and failures of hand-made cells, as Markdown, JSON and a page."""

import dataclasses
import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from noisegate.trainers.bench.cells import CellResult
from noisegate.trainers.bench.preset_files import ScenePreset
from noisegate.trainers.bench.scene_bench import SceneBench
from noisegate.trainers.bench.scene_tables import draw_scene_curves, to_json, to_markdown, write_tables
from noisegate.trainers.bench.tables import Spread, draw_curves

PRESET = ScenePreset.model_validate(
    {
        "name": "hand",
        "summary": "By hand:",
        "task": "retrieval",
        "figure": {"name": "rsum", "label": "rSum/6", "divide": 6},
        "data": {"train": 1200, "held_out": 300},
        "rates": [0.0, 0.4],
        "seeds": [0, 1, 2],
        "methods": ["baseline", "osa"],
        "updates": 50,
        "config": {},
    }
)
RSUM = {("baseline", 0.0): (540, 546, 552), ("baseline", 0.4): (300, 330, 360), ("osa", 0.0): (534, 540, 546)}


def cell(method: str, rate: float, seed: int, rsum: float | None, seconds: float = 10.0) -> CellResult:
    if rsum is None:
        return CellResult(method, rate, seed, "d", {}, error="ValueError: <broken> & out")
    return CellResult(method, rate, seed, "d", {"rsum": rsum}, 50, 1, seconds, seconds + 3, 400.0)


@pytest.fixture
def result() -> SceneBench:
    cells = [cell(method, rate, seed, value) for (method, rate), row in RSUM.items() for seed, value in enumerate(row)]
    cells += [cell("osa", 0.4, 0, 516, 30.0), cell("osa", 0.4, 1, 528, 30.0), cell("osa", 0.4, 2, None)]
    found = {"noise_precision": 98.0, "noise_recall": 99.5, "noise_f1": 98.74, "clean_auroc": 99.99}
    nothing = dict.fromkeys(found, math.nan)
    return SceneBench(PRESET, cells, {0.0: nothing, 0.4: found})


def test_deviation_is_of_a_sample_and_failures_take_no_part() -> None:
    found = Spread.of([516 / 6, 528 / 6, None])
    assert (found.mean, found.count, found.failed) == (87.0, 2, 1)
    assert found.sd == pytest.approx(math.sqrt(2))  # 86 and 88 around 87, over N - 1
    assert str(found) == "87.0 ± 1.4 (1 failed)"
    assert (str(Spread.of([None])), str(Spread.of([]))) == ("failed", "–")


def test_the_table_by_hand(result: SceneBench) -> None:
    lines = to_markdown(result).splitlines()
    rows = [[word.strip() for word in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert rows[2][:3] == ["baseline", "91.0 ± 1.0", "55.0 ± 5.0"]
    assert rows[3][:3] == ["osa", "90.0 ± 1.0", "87.0 ± 1.4 (1 failed)"]
    assert rows[0][:4] == ["method", "0 %", "40 %", "CPU seconds"]
    assert (rows[2][3], rows[3][3]) == ("13", "13")  # medians of 13 ×6, and of 13 ×3 with 33 ×2
    assert next(row for row in rows if row[0] == "0 %")[1:] == ["–"] * 4
    assert next(row for row in rows if row[0] == "40 %")[1:] == ["98.0", "99.5", "98.7", "100.0"]
    assert any("osa at 40 % noise, seed 2: ValueError" in line for line in lines)
    assert "1,200 training samples" in lines[0] and "50 updates" in lines[0]


def test_what_methods_found_is_a_table_of_its_own(result: SceneBench) -> None:
    assert "by themselves" not in to_markdown(result)
    told = {"noise_precision": 90.0, "noise_recall": 80.0, "noise_f1": 84.7, "relabel_accuracy": 70.0}
    more = [dataclasses.replace(cell, learnt=told if cell.rate else {}) for cell in result.cells]
    lines = to_markdown(dataclasses.replace(result, cells=more)).splitlines()
    start = next(place for place, line in enumerate(lines) if "by themselves" in line)
    assert lines[start + 4] == "| baseline | – | 90.0 / 80.0 / 84.7, 70.0 |"


def test_json_has_means_and_every_cell(result: SceneBench) -> None:
    found = json.loads(json.dumps(to_json(result)), parse_constant=pytest.fail)
    assert found["means"]["baseline"]["0.4"] == {"mean": 55.0, "sd": 5.0, "count": 3, "failed": 0}
    assert len(found["cells"]) == 12
    assert found["identification"]["0"]["noise_f1"] is None
    assert found["preset"]["updates"] == 50


def test_curves_are_a_picture_with_a_line_for_each_method(result: SceneBench) -> None:
    picture = ElementTree.fromstring(str(draw_scene_curves(result)))
    lines = picture.findall(".//{http://www.w3.org/2000/svg}polyline")
    points = [[tuple(map(float, point.split(","))) for point in line.attrib["points"].split()] for line in lines]
    assert [len(line) for line in points] == [2, 2]
    (first, last), (osa_first, osa_last) = points
    assert abs(first[0] - osa_first[0]) < 5 < last[0] - first[0] and abs(last[0] - osa_last[0]) < 5
    assert first[1] < osa_first[1] < osa_last[1] < last[1]  # down is less: 91 > 90 > 87 > 55


def test_a_variant_has_the_colour_of_its_method_and_dashes() -> None:
    one = [Spread.of([50.0, 60.0])]
    names = ["osa", "osa@weighted", "osa@probability", "oracle@passes"]
    picture = ElementTree.fromstring(str(draw_curves("tiny", "accuracy", [0.4], dict.fromkeys(names, one))))
    lines = [line.attrib for line in picture.findall(".//{http://www.w3.org/2000/svg}polyline")]
    colours, dashes = [line["stroke"] for line in lines], [line.get("stroke-dasharray") for line in lines]
    assert colours[0] == colours[1] == colours[2] != colours[3]
    assert dashes[0] is None and len({*dashes}) == 3 and dashes[3] == dashes[1]


def test_three_files_are_written_and_names_from_outside_are_escaped(result: SceneBench, tmp_path: Path) -> None:
    files = write_tables(result, tmp_path)
    assert [file.name for file in files] == ["results.md", "results.json", "results.html", "curves.svg"]
    page = files[2].read_text()
    assert "&lt;broken&gt;" in page and "<broken>" not in page
    assert page.count("<polyline") == 2 and "87.0 ± 1.4" in page
