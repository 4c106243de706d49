"""The same tasks by processes of this machine and on a Ray of this machine."""

from pathlib import Path

import pytest

from pipeline.cli.neighbour_options import neighbour_search
from pipeline.errors import ConfigError, NoisegateError
from pipeline.neighbour_search import NeighbourSearch, neighbour_graph, on_processes, on_ray
from pipeline.neighbour_search.plan import Task

from .embedding_files import all_of, clustered, cut_at, stored


def graph_of(folder: Path, name: str, search: NeighbourSearch) -> bytes:
    files = stored(folder / "rows", clustered(3000, 64), [1000])
    neighbour_graph(files, all_of(files), 6, folder / name, made_from="rows", search=search)
    return (folder / name).read_bytes()


def test_processes_find_what_one_finds(tmp_path: Path) -> None:
    alone = graph_of(tmp_path, "alone", NeighbourSearch())
    with on_processes(2) as run:
        assert graph_of(tmp_path, "pool", NeighbourSearch(run=run, cut=cut_at(1024, 4096), at_once=2)) == alone
        with pytest.raises(ConfigError, match="holds no search here"):
            list(run([Task(str(tmp_path), "exact", 0)]))


def test_two_workers_on_ray_find_what_one_process_finds(tmp_path: Path) -> None:
    with on_ray("local", cpus=1) as run:
        found = graph_of(tmp_path, "ray", NeighbourSearch(run=run, cut=cut_at(1024, 4096)))
    assert found == graph_of(tmp_path, "alone", NeighbourSearch())


def test_options_that_do_not_fit_are_named() -> None:
    for words, options in (
        ("engine 'slurm'", ("slurm", None, None, "auto", 1)),
        ("add --engine ray", ("local", "auto", None, "auto", 1)),
        ("neighbour-workers 3", ("ray", None, None, "auto", 3)),
        ("neighbour-workers 0", ("local", None, None, "auto", 0)),
        ("neighbour-memory 'much'", ("local", None, "much", "auto", 1)),
        ("neighbour-index 'tree'", ("local", None, None, "tree", 1)),
    ):
        with pytest.raises(NoisegateError, match=words), neighbour_search(*options):  # type: ignore[arg-type]
            pass
    with neighbour_search("local", None, "2GB", "ivf", 1) as search:
        assert (search.memory, search.index, search.at_once) == (2_000_000_000, "ivf", 1)
