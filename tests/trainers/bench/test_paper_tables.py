"""Tables of a bench on a paper's data set, from cells made by hand."""

import json
from pathlib import Path

import pytest

from noisegate.trainers.bench.cells import CellResult
from noisegate.trainers.bench.paper_bench import Condition, PaperBench, load_paper_preset, paper_figures
from noisegate.trainers.bench.paper_tables import paper_markdown, write_paper_tables

NAME = "shuffle-captions-20"


def cell(
    method: str, seed: int, rsum: float, seconds: float = 60.0, learnt: dict[str, float] | None = None
) -> CellResult:
    figures = {"i2t_r1": 70.0, "t2i_r1": 50.0, "rsum": rsum}
    return CellResult(method, 0.2, seed, "", figures, seconds=seconds, memory_mb=900.4, learnt=learnt or {})


@pytest.fixture
def bench() -> PaperBench:
    found = {"noise_precision": 90.0, "noise_recall": 80.0, "noise_f1": 84.7}
    cells = {
        ("baseline", NAME): [cell("baseline", 0, 400.0)],
        ("baseline", "shuffle-captions-50"): [cell("baseline", 0, 300.0, seconds=1_060.0)],
        ("lnc", NAME): [cell("lnc", 0, 450.0, learnt=found)],
        ("lnc", "shuffle-captions-50"): [cell("lnc", 0, 420.0)],
    }
    asked = (Condition("shuffle-captions", 0.2, {}), Condition("shuffle-captions", 0.5, {}))
    reported = paper_figures("flickr30k", setup="regions")
    tables = {NAME: {"noise_precision": 99.0, "noise_recall": 98.0, "noise_f1": 98.5, "clean_auroc": None}}
    return PaperBench(load_paper_preset("flickr30k"), "regions", ("baseline", "lnc"), asked, cells, reported, tables)


def test_what_is_found_of_the_noise_stands_beside_the_paper_s(bench: PaperBench) -> None:
    """LNC's table 7 has precision, recall and F1 of noise at 20 and 50 %."""
    text = paper_markdown(bench)
    assert "| the weight table | 99.0 / 98.0 / 98.5 | – |" in text
    assert "| lnc | 90.0 / 80.0 / 84.7 (94.22 / 83.04 / 88.28) | – (96.35 / 87.04 / 91.46) |" in text
    assert "- the paper's detection after the warm-up by lnc at 20 %: noise recall 83.04, noise precision 94.22" in text
    assert "| baseline | –" not in text.partition("found of the noise")[2], "it judges no samples"
    assert "of 1 seed;" in text


def test_the_rank_of_the_noise_stands_beside_that_of_osa_s_table_9() -> None:
    ranks = [{"mean_noise_rank": rank, "mean_noise_rank_best": 1815.5} for rank in (1600.0, 1700.0)]
    cells = {
        ("osa", NAME): [cell("osa", 0, 400.0)],
        ("npc", NAME): [cell("npc", seed, 400.0, learnt=found) for seed, found in enumerate(ranks)],
    }
    asked = (Condition("shuffle-captions", 0.2, {}),)
    tables = {NAME: {"mean_noise_rank": 1810.0, "mean_noise_rank_best": 1815.5}}
    reported = paper_figures("coco", setup="clip")
    text = paper_markdown(PaperBench(load_paper_preset("coco"), "clip", ("osa", "npc"), asked, cells, reported, tables))
    assert "| the weight table | 1,810 / 1,816 |" in text
    assert "| osa | – (1809.1 / 1815.5) |" in text
    assert "| npc | 1,650 / 1,816 (1641.3 / 1815.5) |" in text
    assert "found of the noise" not in text, "no precision, no recall"


def test_time_and_memory_of_each_method(bench: PaperBench) -> None:
    text = paper_markdown(bench)
    assert "| what it took | CPU seconds | memory MB |" in text
    assert "| baseline | 560 | 900 |" in text
    assert "| lnc | 60 | 900 |" in text


def test_tables_are_written_to_read_to_compute_with_and_to_look_at(bench: PaperBench, tmp_path: Path) -> None:
    files = write_paper_tables(bench, tmp_path)
    assert [file.name for file in files] == [
        "results.md", "results.json", "results.html", "curves-shuffle-captions.svg",
    ]  # fmt: skip
    assert json.loads(files[1].read_text())["tables"][NAME]["noise_recall"] == 98.0
    page = files[2].read_text()
    assert page.count("<polyline") == 2, "a line for each method"
    assert "<td>90.0 / 80.0 / 84.7 (94.22 / 83.04 / 88.28)</td>" in page
    assert files[3].read_text().startswith("<svg")
