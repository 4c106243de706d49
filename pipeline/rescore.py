"""Scores without a model: a finished run with other settings, or arrays from anywhere."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .anchors import Anchors
from .arrays import find_parts, write_parts
from .beta import Beta
from .errors import ConfigError, TableError
from .estimators.base import normalise
from .lock import folder_lock
from .resume import clear
from .scoring import ScoreSettings, anchors_file, score_run
from .summary import Summary, summarise
from .table import VERSION, RunFolder, read_metadata

__all__ = ["read_anchors", "rescore", "score_embeddings"]


def rescore(
    folder: str | Path,
    settings: Callable[[Mapping[str, Any]], ScoreSettings],
    *,
    anchors: Anchors | None = None,
    device: str = "auto",
    note: Callable[[str], None] = lambda text: None,
) -> Summary:
    """Recompute every score of a finished run from its tables and kept embeddings.

    `settings` gets the run's recorded settings and returns the new ones. `anchors` replace the run's own, which are used
    where there are some. Raises TableError when embeddings were dropped.
    """
    run = RunFolder(Path(folder))
    began = time.monotonic()
    with folder_lock(run.path):
        recorded = run.read_run()
        if recorded is None:
            raise TableError(
                f"{folder} holds no run (no _run.json); make one with: noisegate annotate SHARDS --out {folder}"
            )
        if not recorded["complete"]:
            raise TableError(f"{folder} is not finished; run its annotate command again first")
        stems = sorted(run.stems())
        missing = [stem for stem in stems if not run.embeddings(stem).exists()]
        if missing:
            raise TableError(f"{folder}: the embeddings of {missing[0]} were dropped; annotate again, keeping them")
        wanted = settings(recorded["scoring"])
        if anchors is not None:
            anchors.save(anchors_file(run))
        elif anchors_file(run).exists():
            anchors = Anchors.load(anchors_file(run))
        known = recorded.get("random_inputs")
        scores = score_run(
            run,
            stems,
            wanted,
            random_inputs=(lambda: Beta.from_dict(known)) if known else None,
            anchors=anchors,
            device=device,
            note=note,
        )
        beta = scores.pairs.beta.to_dict() if scores.pairs else None
        run.write_run({**recorded, "scoring": wanted.to_dict(), "beta": beta})
        return summarise(run, stems, scores, seconds=time.monotonic() - began)


def score_embeddings(
    out: str | Path,
    images: str | Path,
    *,
    texts: str | Path | None = None,
    labels: NDArray[np.int64] | None = None,
    metadata: str | Path | None = None,
    anchors: Anchors | None = None,
    joint: bool = True,
    settings: ScoreSettings | None = None,
    overwrite: bool = False,
    device: str = "auto",
    note: Callable[[str], None] = lambda text: None,
) -> Summary:
    """Weight tables from embeddings alone: `.npy` files or clip-retrieval's folders.

    With `texts` of another width, or `joint=False`, images and texts are of two unrelated encoders: there is no cosine,
    and the neighbourhood score takes its place. Raises ConfigError for arrays that do not fit one another.
    """
    began = time.monotonic()
    parts = find_parts(Path(images), Path(texts) if texts else None, Path(metadata) if metadata else None)
    has_texts = parts[0].texts is not None
    tasks = (("pairs",) if has_texts else ()) + (("labels",) if labels is not None else ())
    if not tasks:
        raise ConfigError("score-embeddings needs texts, labels or both; images alone cannot be wrong")
    widths = [np.load(p, mmap_mode="r").shape[-1] for p in (parts[0].images, parts[0].texts) if p is not None]
    joint = joint and len(set(widths)) == 1
    wanted = settings or ScoreSettings()
    wanted = replace(wanted, tasks=tasks, joint=joint, neighbourhood=wanted.neighbourhood or (has_texts and not joint))
    run = RunFolder(Path(out))
    with folder_lock(run.path):
        if run.read_run() is not None and not overwrite:
            raise ConfigError(f"out {out} holds a run already; choose another folder, or use --overwrite")
        clear(run)
        reading = {"tasks": list(tasks), "joint": joint}
        identity = write_parts(run, parts, labels, joint, reading)
        if anchors is not None:
            anchors.save(anchors_file(run))
        stems = sorted(part.stem for part in parts)
        scores = score_run(run, stems, wanted, anchors=anchors, device=device, note=note)
        run.write_run(
            {
                "table_version": VERSION,
                "noisegate": version("noisegate"),
                "scorer": identity.to_dict(),
                "model": None,
                "scoring": wanted.to_dict(),
                "beta": scores.pairs.beta.to_dict() if scores.pairs else None,
                "random_inputs": None,
                "reading": reading,
                "shards": [
                    {"url": str(p.images), "table": p.stem, "rows": read_metadata(run.table(p.stem))["shard"]["rows"]}
                    for p in parts
                ],
                "unreadable": {},
                "complete": True,
            }
        )
        return summarise(run, stems, scores, seconds=time.monotonic() - began)


@dataclass(frozen=True)
class AnchorFiles:
    """Where anchors come from as arrays: (A, d) vectors and (A,) classes, and names where there are some."""

    vectors: Path
    labels: Path
    names: tuple[str, ...] = ()


def read_anchors(files: AnchorFiles) -> Anchors:
    """Anchors from `.npy` files; classes without a name are called by their number."""
    vectors, labels = np.load(files.vectors, allow_pickle=False), np.load(files.labels, allow_pickle=False)
    if vectors.ndim != 2 or labels.shape != (len(vectors),) or labels.dtype.kind not in "iu":
        raise ConfigError(
            f"anchors {vectors.shape} and anchor labels {labels.shape} do not fit; want (A, d) and (A,) whole numbers"
        )
    names = files.names or tuple(str(i) for i in range(int(labels.max(initial=-1)) + 1))
    return Anchors(names, normalise(vectors), labels.astype(np.int64))
