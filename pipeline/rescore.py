"""Scores without a model: rescore a finished run with other settings, or score arrays of embeddings."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from .errors import ConfigError, TableError
from .labels.anchors import Anchors, anchors_file
from .methods.columns import OneStep, compute_columns, write_columns
from .neighbours import NeighbourSearch
from .pairs.beta import Beta
from .runs.arrays import MODEL, ArrayPart, arrays_identity, check_labels, find_parts, write_parts
from .runs.embeddings import embeddings_match
from .runs.resume import clear, sweep
from .runs.shard_arrays import KeyedRows, find_image_part, write_shard_tables
from .runs.table import VERSION, RunFolder, read_shard_facts
from .scoring import RunScores, Summary, learn_scores, read_scores, write_scores
from .scoring.summary import summarise
from .settings import DecodeOptions, ScoreSettings, read_tasks
from .shards.locate import find_shards
from .system.output_files import writing_to


def rescore(
    folder: str | Path,
    settings: Callable[[Mapping[str, Any]], ScoreSettings] | None = None,
    *,
    beta: str | None = None,
    cut: str | None = None,
    task: str | None = None,
    k: int | None = None,
    neighbourhood: bool | None = None,
    repair: str | None = None,
    seed: int | None = None,
    anchors: Anchors | None = None,
    one_step: OneStep | None = None,
    device: str = "auto",
    search: NeighbourSearch | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Summary:
    """Recompute every score of a finished run from its tables and kept embeddings.

    Settings that are not given stay as recorded; `settings`, a function from the recorded settings to the new ones, replaces
    the plain values. `anchors` replace the run's own. `one_step` adds columns of methods; existing columns stay. `search` says
    how to search neighbours; a stopped search goes on. Raises TableError if embeddings were dropped, unless only scores made
    elsewhere are added (`OneStep.join`): then no score is recomputed. Errors leave all files unchanged; a stopped rescoring
    leaves the run marked as not finished until the next rescoring.
    """

    def change(recorded: Mapping[str, Any]) -> ScoreSettings:
        given: dict[str, Any] = {"beta": beta, "tasks": read_tasks(task) if task else None, "k": k}
        given |= {"neighbourhood": neighbourhood, "repair": repair, "seed": seed, "cut": cut}
        chosen = {name: value for name, value in given.items() if value is not None}
        wanted = replace(_recorded_settings(recorded), **chosen)
        wanted.refuse_unused(*(name for name, given in (("beta", beta), ("cut", cut)) if given))
        return wanted

    run = RunFolder.to_write(folder, "folder", note)
    began = time.monotonic()
    if run.mirror is None:
        _read_complete_run(run)  # before a folder is made for the lock
    elif search is not None and search.remote:
        problem = "is in a store, and Ray searches in a shared folder; leave out --engine ray"
        raise ConfigError.of("folder", run.name, problem)
    with writing_to(run.path), run.lock():
        recorded = _read_complete_run(run)
        wanted, added = (settings or change)(recorded["scoring"]), one_step or OneStep()
        stems = sorted(run.stems())
        finished = recorded.get("finished") is not False
        unchanged = anchors is None and wanted == _recorded_settings(recorded["scoring"])
        if added.joins_only and finished and unchanged:  # no score changes, so no embeddings are needed
            scores = read_scores(run, stems, wanted.seed)
            write_columns(run, stems, compute_columns(run, stems, added, wanted.seed, note))
            return summarise(run, stems, scores, seconds=time.monotonic() - began)
        run.fetch_embeddings()
        _check_embeddings(run, stems, wanted)
        classes = recorded["scoring"].get("classes")
        if anchors is not None:
            if "labels" not in wanted.tasks:
                raise ConfigError("anchors judge labels, and this run scores none; add --task labels", "anchors")
            classes = anchors.digest
        known = recorded.get("random_inputs")
        scores = learn_scores(
            run,
            stems,
            wanted,
            random_inputs=(lambda: Beta.from_dict(known)) if known else None,
            anchors=anchors or (Anchors.load(anchors_file(run)) if anchors_file(run).exists() else None),
            device=device,
            search=search,
            note=note,
        )
        columns = compute_columns(run, stems, added, wanted.seed, note, search, device)
        recorded |= {"scoring": {**wanted.to_dict(), "classes": classes}} | scores.record()
        run.write_run({**recorded, "finished": False})
        run.publish()
        if anchors is not None:
            anchors.save(anchors_file(run))
        write_scores(run, stems, scores)
        write_columns(run, stems, columns)
        run.write_run({**recorded, "finished": True})
        sweep(run)
        return summarise(run, stems, scores, seconds=time.monotonic() - began)


def _recorded_settings(recorded: Mapping[str, Any]) -> ScoreSettings:
    """Read the settings that a run was scored with; runs of earlier releases lack some."""
    names = [setting.name for setting in fields(ScoreSettings) if setting.name in recorded]
    return ScoreSettings(**{name: recorded[name] for name in names} | {"tasks": tuple(recorded["tasks"])})


def _read_complete_run(run: RunFolder) -> dict[str, Any]:
    """Read `_run.json` of a run whose shards are all scored; raise TableError otherwise."""
    recorded = run.recorded()
    if not recorded.get("complete"):
        raise TableError.of("folder", str(run.name), "is not finished; run the command that made it again first")
    return recorded


def _check_embeddings(run: RunFolder, stems: Sequence[str], wanted: ScoreSettings) -> None:
    """Raise TableError unless all embeddings exist and are intact, with texts if pairs are to be scored."""
    empty, texts = True, False
    for stem in stems:
        path, shard = run.embeddings(stem), read_shard_facts(run.table(stem))
        if not path.exists():
            raise TableError.of("folder", str(run.name), f"dropped the embeddings of {stem}; annotate again")
        if not embeddings_match(path, shard["rows"], shard["sha256"]):
            raise TableError(f"{path} is damaged; run the command that made it again", "folder", str(run.name))
        with safe_open(path, framework="numpy") as file:
            rows, width = file.get_slice("text").get_shape()
        empty, texts = empty and not rows, texts or width > 0
    if "pairs" in wanted.tasks and not texts and not empty:
        raise TableError.of("task", "pairs", f"needs text embeddings, and {run.name} has none; use --task labels")


def score_embeddings(
    out: str | Path,
    images: str | Path,
    *,
    texts: str | Path | None = None,
    labels: NDArray[Any] | None = None,
    metadata: str | Path | None = None,
    shards: str | Path | Iterable[str | Path] | None = None,
    anchors: Anchors | None = None,
    class_names: Sequence[str] = (),
    joint: bool = True,
    settings: ScoreSettings | None = None,
    overwrite: bool = False,
    device: str = "auto",
    search: NeighbourSearch | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Summary:
    """Write weight tables from embeddings alone: `.npy` files or clip-retrieval's folders.

    With `shards` each shard gets a table that training can use: `metadata` has the key of each embedding, and a column `shard`
    if shards repeat keys. Samples without an embedding get the status `invalid`. Otherwise each file gets a table.
    `labels` (N,) are class numbers over all files, negative for none; `class_names` are shown instead of them. With `texts` of
    another width, or `joint=False`, images and texts come from two unrelated encoders: there is no cosine, and the
    neighbourhood score replaces it. Raises ConfigError for arrays that do not fit one another. A stopped run is marked as not
    finished, and starts over.
    """
    began = time.monotonic()
    parts = find_parts(Path(images), Path(texts) if texts else None, Path(metadata) if metadata else None)
    given = None if labels is None else check_labels(np.asarray(labels), sum(part.rows for part in parts))
    wanted = _array_settings(parts, given, anchors, class_names, joint, settings or ScoreSettings())
    located = None if shards is None else find_shards(shards)
    entries: list[dict[str, Any]] = (
        [{"url": str(part.images), "table": part.stem, "rows": part.rows} for part in parts]
        if located is None
        else [{"url": shard.url, "table": shard.stem} for shard in located]
    )
    reading: dict[str, Any] = {"tasks": list(wanted.tasks), "joint": wanted.joint}
    if located is not None:
        KeyedRows.check(parts)
        reading |= DecodeOptions(wanted.tasks).to_dict() | {"image_part": find_image_part(located)}
    scorer = arrays_identity(parts).to_dict()
    run = RunFolder.to_write(out, note=note)

    def write_run(scores: RunScores | None) -> None:
        run.write_run(
            {
                "table_version": VERSION,
                "noisegate": version("noisegate"),
                "scorer": scorer,
                "model": None,
                "scoring": {**wanted.to_dict(), "classes": anchors.digest if anchors else None},
                "class_names": list(class_names),
                **(scores or RunScores()).record(),
                "random_inputs": None,
                "reading": reading,
                "shards": entries,
                "unreadable": {},
                "finished": scores is not None,
                "complete": scores is not None,
            }
        )

    with writing_to(run.path), run.lock():
        stems = sorted(entry["table"] for entry in entries)
        _make_room(run, stems, overwrite)
        write_run(None)
        run.publish()
        facts = {"scorer": scorer, "reading": reading}
        if located is None:
            write_parts(run, parts, given, wanted.joint, facts)
        else:
            entries = write_shard_tables(run, located, parts, given, wanted.joint, facts, note)
        if anchors is not None:
            anchors.save(anchors_file(run))
        scores = learn_scores(run, stems, wanted, anchors=anchors, device=device, search=search, note=note)
        write_scores(run, stems, scores)
        write_run(scores)
        return summarise(run, stems, scores, seconds=time.monotonic() - began)


def _array_settings(
    parts: Sequence[ArrayPart],
    labels: NDArray[np.int64] | None,
    anchors: Anchors | None,
    class_names: Sequence[str],
    joint: bool,
    settings: ScoreSettings,
) -> ScoreSettings:
    """Return the settings for these arrays; raise ConfigError for settings that they do not allow."""
    image_width, text_width = parts[0].widths
    tasks = (("pairs",) if text_width else ()) + (("labels",) if labels is not None else ())
    if not tasks:
        raise ConfigError("score-embeddings needs texts, labels or both; images alone cannot be wrong", "texts")
    if not text_width and (settings.neighbourhood or not joint):
        raise ConfigError("neighbourhoods are compared between images and texts; give --texts too", "texts")
    if anchors is not None:
        if labels is None:
            raise ConfigError("anchors judge labels; give --labels too", "labels")
        if anchors.embeddings.shape[1] != image_width:
            width = anchors.embeddings.shape[1]
            raise ConfigError.of("anchors", width, f"wide do not fit images of {image_width}; use one model for both")
    if labels is not None:
        from .labels.scoring import count_classes  # imports torch, which pairs do not need

        count = count_classes(labels, anchors)
        if class_names and len(class_names) < count:
            problem = (
                f"are given, but there are {count} classes; add the missing names, or number the labels 0, 1, 2, …"
            )
            raise ConfigError.of("class_names", len(class_names), problem)
    elif class_names:
        raise ConfigError("class names are those of labels; give --labels too", "labels")
    joint = joint and text_width in (0, image_width)
    neighbourhood = settings.neighbourhood or not joint
    wanted = replace(settings, tasks=tasks, joint=joint, neighbourhood=neighbourhood)
    wanted.refuse_unused(*wanted.chosen)
    return wanted


def _make_room(run: RunFolder, stems: Sequence[str], overwrite: bool) -> None:
    """Remove an earlier run if `overwrite` allows it or it is an unfinished run of the same kind; else raise ConfigError."""
    before = None if overwrite else run.read_run()
    if before is not None and (before["complete"] or before["scorer"]["model"] != MODEL):
        raise ConfigError.of("out", str(run.name), "holds a run already; choose another folder, or use --overwrite")
    in_the_way = [run.table(stem) for stem in stems if run.table(stem).exists()]
    if in_the_way and before is None and not overwrite:
        raise ConfigError.of("out", str(run.name), f"has {in_the_way[0].name} in the way; choose another folder")
    if before is not None or overwrite:
        clear(run, stems, searches=overwrite)
        run.publish()
