"""A run rescored through a search that is cut, stopped and taken up again."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors import safe_open

from noisegate.pipeline.neighbours import NeighbourSearch, Task, find_neighbours
from noisegate.pipeline.neighbours.disk_search import find_or_build_graph
from noisegate.pipeline.rescore import rescore
from noisegate.pipeline.runs.rows import MappedRows
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.settings import ScoreSettings
from tests.embeddings import captions, clusters, scored
from tests.jobs import files_of

from .embedding_files import cut_at
from .test_disk_search import Stop, stopping

SETTINGS = ScoreSettings("fixed:0.3", ("pairs",), k=6, neighbourhood=True)


def test_a_stopped_rescore_goes_on_and_the_run_is_the_same(tmp_path: Path) -> None:
    images, _ = clusters(count=60)
    images[7] = 0  # its row is not ok
    images[50] = images[3]
    scored(tmp_path, images, captions(images), settings=ScoreSettings("fixed:0.3"))
    stopped, whole = tmp_path / "stopped", tmp_path / "out"
    shutil.copytree(whole, stopped)
    rescore(whole, lambda recorded: SETTINGS, search=NeighbourSearch())
    starts = 0
    while True:
        done: list[Task] = []
        search = replace(stopping(5, done), cut=cut_at(25, 15))
        try:
            rescore(stopped, lambda recorded: SETTINGS, search=search)
        except Stop:
            starts += 1
        else:
            break
    assert starts >= 3
    assert files_of(stopped) == files_of(whole)

    run = RunFolder(whole)
    with safe_open(run.embeddings("images"), framework="numpy") as file:
        rows = {part: file.get_tensor(part).astype(np.float32) for part in ("image", "text")}
    for part, name in (("image", "neighbours.safetensors"), ("text", "text_neighbours.safetensors")):
        with safe_open(whole / name, framework="numpy") as file:
            made_from = file.metadata()["made_from"]
        rows[part][7] = 0
        find_neighbours(rows[part], 6).save(tmp_path / part, {"made_from": made_from})
        assert (tmp_path / part).read_bytes() == (whole / name).read_bytes()


def test_a_kind_that_is_asked_for_is_not_answered_by_a_graph_of_another(tmp_path: Path) -> None:
    images, _ = clusters(count=120)
    scored(tmp_path, images, captions(images), settings=ScoreSettings("fixed:0.3"))
    run, said = RunFolder(tmp_path / "out"), list[str]()
    for index in ("flat", "ivf", "ivf"):
        search = NeighbourSearch(index=index)  # type: ignore[arg-type]
        find_or_build_graph(run, ["images"], MappedRows.of_run(run, ["images"], "image"), 5, "cpu", search, said.append)
    assert ["there already" in line for line in said if line.startswith("neighbours: ") and "span" not in line] == [
        *(False, False, False, True),  # flat; ivf, and its recall; ivf once more
    ]
