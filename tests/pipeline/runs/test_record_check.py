"""Damaged and hostile records: one clear error wherever a run is read, and nothing outside its folder is touched."""

import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import noisegate as ng
from noisegate.pipeline.cli.output import Output, print_summary
from noisegate.pipeline.errors import NoisegateError, TableError
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.inspect.show import read_overview
from noisegate.pipeline.runs import RunFolder
from noisegate.pipeline.runs.resume import clear
from noisegate.pipeline.runs.table import read_metadata, replace_columns
from noisegate.service.api.state import Service
from tests.embeddings import clusters, scored
from tests.errors import refused
from tests.fakes import estimator, pairs, write_tar
from tests.jobs import score
from tests.service.serving import COLOURS, ask

WRONG: tuple[Any, ...] = (
    None, True, -1, 1e308, 10**400, 7, "", "x", "\ud800", "../../x", [], [None], {}, {"a": 1},
)  # fmt: skip
MUTATIONS = 100


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("record")
    write_tar(folder / "shards" / "x.tar", pairs(30))
    score(folder / "shards", folder / "run", estimator=ModelSpec(COLOURS))
    return folder / "run"


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every part of a JSON value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield (*here, name)
        yield from places(part, (*here, name))


def mutate(record: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The record with one part removed or replaced."""
    changed = copy.deepcopy(record)
    *path, last = rng.choice(list(places(record)))
    parent = changed
    for name in path:
        parent = parent[name]
    if rng.random() < 0.3:
        del parent[last]
    else:
        parent[last] = rng.choice(WRONG)
    return changed


READERS: tuple[Callable[[Path], object], ...] = (
    read_overview,
    ng.read_table,
    lambda folder: ng.verify(folder, estimator=estimator(), samples=3),
    lambda folder: ng.report(folder),
)


def test_mutated_records_give_one_clear_error_or_are_read(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    record, rng = json.loads((run / "_run.json").read_text()), random.Random(24)
    refusals = 0
    for number in range(MUTATIONS):
        changed = mutate(record, rng)
        (folder / "_run.json").write_text(json.dumps(changed))
        reader = READERS[number % len(READERS)]
        try:
            reader(folder)
        except TableError as error:
            refusals += "\n" not in str(error)
        except NoisegateError as error:  # a value of the right type that cannot work
            assert error.setting, changed
    assert refusals > MUTATIONS / 3


def test_mutated_facts_about_labels_give_one_clear_error_or_are_read(tmp_path: Path) -> None:
    images, true = clusters(count=60)
    scored(tmp_path, images, labels=true)
    run = RunFolder(tmp_path / "out")
    (stem,) = run.stems()
    table, metadata = run.read(stem), read_metadata(run.table(stem))
    rng, refusals = random.Random(5), 0
    for number in range(60):
        changed = metadata | {"labels": mutate(metadata["labels"], rng)}
        run.write_table(stem, replace_columns(table, {}, changed))
        try:
            if number % 2:
                ng.report(run.path)
            else:
                print_summary(read_overview(run.path).summary, Output(as_json=True))
        except TableError as error:
            refusals += str(error).startswith(f"{run.table(stem)} has damaged metadata: labels.")
    assert refusals > 30


def test_a_listing_shows_bad_runs_beside_good_ones(run: Path, tmp_path: Path) -> None:
    record, rng = json.loads((run / "_run.json").read_text()), random.Random(9)
    runs = {"good": run}
    for number in range(40):
        folder = tmp_path / f"bad-{number}"
        folder.mkdir()
        (folder / "_run.json").write_text(json.dumps(mutate(record, rng)))
        runs[folder.name] = folder

    async def work(client: httpx.AsyncClient, service: Service) -> httpx.Response:
        return await client.get("/v1/runs")

    answer = ask(work, runs=runs)
    assert answer.status_code == 200
    listed = {entry["name"]: entry for entry in answer.json()["runs"]}
    assert len(listed) == 41
    assert listed["good"]["problem"] is None
    assert sum(entry["problem"] is not None for entry in listed.values()) > 10


@pytest.mark.parametrize("name", ["complete", "beta", "cut", "joint", "k", "neighbourhood", "repair", "seed"])
def test_what_an_older_record_lacks_has_its_default(run: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    record = json.loads((run / "_run.json").read_text())
    del (record if name == "complete" else record["scoring"])[name]
    (folder / "_run.json").write_text(json.dumps(record))
    if name == "complete":
        with refused("folder", str(folder), TableError):
            ng.rescore(folder)
    else:
        assert ng.rescore(folder).samples == 30


@pytest.mark.parametrize("name", ["../../kept", "/kept", "..", "", "a/b", "x" * 300, "\ud800", 7, None])
def test_names_of_tables_are_plain_file_names(run: Path, tmp_path: Path, name: Any) -> None:
    folder = tmp_path / "a" / "run"
    shutil.copytree(run, folder)
    kept = tmp_path / "kept.parquet"
    kept.write_bytes(b"precious")
    record = json.loads((run / "_run.json").read_text())
    record["shards"][0]["table"] = name
    (folder / "_run.json").write_text(json.dumps(record))
    with refused("run", folder, TableError) as caught:
        RunFolder(folder).read_run()
    assert "shards.0.table" in str(caught.value)
    clear(RunFolder(folder))
    assert kept.read_bytes() == b"precious"


@pytest.mark.parametrize("text", ["[" * 100_000, "\udcff", '{"table_version": 1}'])
def test_what_is_no_record_at_all(tmp_path: Path, text: str) -> None:
    (tmp_path / "_run.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with refused("run", tmp_path, TableError):
        RunFolder(tmp_path).read_run()
    (tmp_path / "_run.json").unlink()
    (tmp_path / "_run.json").mkdir()
    with refused("run", tmp_path, TableError):
        RunFolder(tmp_path).read_run()
