"""Scores without a model: a finished run with other settings, or arrays from anywhere."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from .errors import ConfigError, TableError
from .labels.anchors import Anchors
from .methods.columns import OneStep, compute_columns, write_columns
from .neighbours import NeighbourSearch
from .pairs.beta import Beta
from .runs.arrays import MODEL, ArrayPart, arrays_identity, check_labels, find_parts, write_parts
from .runs.embeddings import embeddings_match
from .runs.lock import folder_lock
from .runs.resume import clear, sweep
from .runs.table import VERSION, RunFolder, read_metadata
from .score_run import RunScores, ScoreSettings, anchors_file, learn_scores, score_run, write_scores
from .summary import Summary, summarise
from .system.output_files import writing_to

__all__ = ["refuse_unused_beta", "rescore", "score_embeddings"]


def rescore(
    folder: str | Path,
    settings: Callable[[Mapping[str, Any]], ScoreSettings],
    *,
    anchors: Anchors | None = None,
    one_step: OneStep | None = None,
    device: str = "auto",
    search: NeighbourSearch | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Summary:
    """Recompute every score of a finished run from its tables and kept embeddings.

    `settings` gets the run's recorded settings and returns the new ones. `anchors` replace the run's own, which are used
    where there are some. `one_step` adds columns of methods; those that are there already stay. `search` says how
    neighbours are searched; one that was stopped goes on. Raises TableError when embeddings were dropped. What cannot
    work leaves all files as they were; a rescoring that is stopped leaves a run that says it is not finished, until
    rescored again.
    """
    run = RunFolder(Path(folder))
    began = time.monotonic()
    _recorded(run)  # before a folder is made for the lock
    with writing_to(folder), folder_lock(run.path):
        recorded = _recorded(run)
        stems = sorted(run.stems())
        wanted = settings(recorded["scoring"])
        _check_embeddings(run, stems, wanted)
        classes = recorded["scoring"].get("classes")
        if anchors is not None:
            if "labels" not in wanted.tasks:
                raise ConfigError("anchors judge labels, and this run scores none; add --task labels")
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
        columns = compute_columns(run, stems, one_step or OneStep(), wanted.seed, note)
        recorded |= {"scoring": {**wanted.to_dict(), "classes": classes}, "beta": _beta(scores)}
        run.write_run({**recorded, "finished": False})
        if anchors is not None:
            anchors.save(anchors_file(run))
        write_scores(run, stems, scores)
        write_columns(run, stems, columns)
        run.write_run({**recorded, "finished": True})
        sweep(run)
        return summarise(run, stems, scores, seconds=time.monotonic() - began)


def refuse_unused_beta(wanted: ScoreSettings) -> None:
    """Raises ConfigError where there is no cosine that a β which somebody asked for could be compared with."""
    if "pairs" not in wanted.tasks:
        raise ConfigError(f"beta {wanted.beta!r}: only labels are scored, and β is for pairs; leave it out")
    if not wanted.joint:
        raise ConfigError(
            f"beta {wanted.beta!r}: images and texts are of two encoders that share no space, so there is no cosine for β, "
            "and neighbourhoods decide; leave it out"
        )


def _recorded(run: RunFolder) -> dict[str, Any]:
    """What `_run.json` says of a run whose shards are all encoded."""
    recorded = run.recorded()
    if not recorded["complete"]:
        raise TableError(f"{run.path} is not finished; run the command that made it again first")
    return recorded


def _check_embeddings(run: RunFolder, stems: Sequence[str], wanted: ScoreSettings) -> None:
    """All of them are there and whole, with texts where pairs are to be scored."""
    empty, texts = True, False
    for stem in stems:
        path, shard = run.embeddings(stem), read_metadata(run.table(stem))["shard"]
        if not path.exists():
            raise TableError(f"{run.path}: the embeddings of {stem} were dropped; annotate again, keeping them")
        if not embeddings_match(path, shard["rows"], shard["sha256"]):
            raise TableError(f"{path} is damaged; run the command that made it again")
        with safe_open(path, framework="numpy") as file:
            rows, width = file.get_slice("text").get_shape()
        empty, texts = empty and not rows, texts or width > 0
    if "pairs" in wanted.tasks and not texts and not empty:
        raise TableError(f"{run.path} has no text embeddings, so there are no pairs to score; use --task labels")


def score_embeddings(
    out: str | Path,
    images: str | Path,
    *,
    texts: str | Path | None = None,
    labels: NDArray[Any] | None = None,
    metadata: str | Path | None = None,
    anchors: Anchors | None = None,
    joint: bool = True,
    settings: ScoreSettings | None = None,
    overwrite: bool = False,
    device: str = "auto",
    search: NeighbourSearch | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Summary:
    """Weight tables from embeddings alone: `.npy` files or clip-retrieval's folders.

    `labels` (N,) are class numbers over all files, negative for none. With `texts` of another width, or `joint=False`,
    images and texts are of two unrelated encoders: there is no cosine, and the neighbourhood score takes its place.
    Raises ConfigError for arrays that do not fit one another. Stopped half-way it leaves a folder that says so, and
    starts again there.
    """
    began = time.monotonic()
    parts = find_parts(Path(images), Path(texts) if texts else None, Path(metadata) if metadata else None)
    given = None if labels is None else check_labels(np.asarray(labels), sum(part.rows for part in parts))
    wanted = _array_settings(parts, given, anchors, joint, settings or ScoreSettings())
    reading = {"tasks": list(wanted.tasks), "joint": wanted.joint}
    scorer = arrays_identity(parts).to_dict()
    run = RunFolder(Path(out))

    def write_run(scores: RunScores | None) -> None:
        run.write_run(
            {
                "table_version": VERSION,
                "noisegate": version("noisegate"),
                "scorer": scorer,
                "model": None,
                "scoring": {**wanted.to_dict(), "classes": anchors.digest if anchors else None},
                "beta": _beta(scores),
                "random_inputs": None,
                "reading": reading,
                "shards": [{"url": str(p.images), "table": p.stem, "rows": p.rows} for p in parts],
                "unreadable": {},
                "finished": scores is not None,
                "complete": scores is not None,
            }
        )

    with writing_to(out), folder_lock(run.path):
        stems = sorted(part.stem for part in parts)
        _make_room(run, stems, overwrite)
        write_run(None)
        write_parts(run, parts, given, wanted.joint, {"scorer": scorer, "reading": reading})
        if anchors is not None:
            anchors.save(anchors_file(run))
        scores = score_run(run, stems, wanted, anchors=anchors, device=device, search=search, note=note)
        write_run(scores)
        return summarise(run, stems, scores, seconds=time.monotonic() - began)


def _array_settings(
    parts: Sequence[ArrayPart],
    labels: NDArray[np.int64] | None,
    anchors: Anchors | None,
    joint: bool,
    settings: ScoreSettings,
) -> ScoreSettings:
    """What these arrays allow; raises ConfigError for what they do not."""
    image_width, text_width = parts[0].widths
    tasks = (("pairs",) if text_width else ()) + (("labels",) if labels is not None else ())
    if not tasks:
        raise ConfigError("score-embeddings needs texts, labels or both; images alone cannot be wrong")
    if not text_width and (settings.neighbourhood or not joint):
        raise ConfigError("neighbourhoods are compared between images and texts; give --texts too")
    if anchors is not None:
        if labels is None:
            raise ConfigError("anchors judge labels; give --labels too")
        if anchors.embeddings.shape[1] != image_width:
            raise ConfigError(
                f"anchors have {anchors.embeddings.shape[1]} numbers, the images {image_width}; use one model for both"
            )
    if labels is not None:
        from .labels.scoring import count_classes  # brings torch, which pairs do not need

        count_classes(labels, anchors)
    joint = joint and text_width in (0, image_width)
    neighbourhood = settings.neighbourhood or not joint
    wanted = replace(settings, tasks=tasks, joint=joint, neighbourhood=neighbourhood)
    if wanted.beta != ScoreSettings().beta:
        refuse_unused_beta(wanted)
    return wanted


def _make_room(run: RunFolder, stems: Sequence[str], overwrite: bool) -> None:
    """Remove what `overwrite` allows, or what an unfinished run of the same kind left; anything else is an error."""
    before = None if overwrite else run.read_run()
    if before is not None and (before["complete"] or before["scorer"]["model"] != MODEL):
        raise ConfigError(f"out {run.path} holds a run already; choose another folder, or use --overwrite")
    in_the_way = [run.table(stem) for stem in stems if run.table(stem).exists()]
    if in_the_way and before is None and not overwrite:
        raise ConfigError(f"out {run.path}: {in_the_way[0].name} is in the way; choose another folder")
    if before is not None or overwrite:
        clear(run, stems, searches=overwrite)


def _beta(scores: RunScores | None) -> dict[str, Any] | None:
    return scores.pairs.beta.to_dict() if scores and scores.pairs else None
