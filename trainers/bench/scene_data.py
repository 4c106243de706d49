"""Data of a bench: scenes drawn, spoilt and scored once, kept below the bench's folder and used again."""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from noisegate.pipeline.annotate import annotate
from noisegate.pipeline.datasets.noise.label_shards import noise_labels
from noisegate.pipeline.datasets.noise.shards import noise_captions
from noisegate.pipeline.datasets.scenes import write_scenes
from noisegate.pipeline.inspect.evaluate import evaluate, evaluate_labels
from noisegate.pipeline.inspect.truth import read_truth
from noisegate.pipeline.labels.classes import load_classes
from noisegate.pipeline.runs.table import RunFolder, read_metadata, read_table, replace_columns
from noisegate.pipeline.runs.where import parse_where
from noisegate.pipeline.shards.decode import Limits, decode_text
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.read import ShardReader
from noisegate.pipeline.shards.workers import DecodeOptions
from noisegate.pipeline.system.output_files import write_atomically

from .preset import SceneData, rate_name

__all__ = ["Prepared", "identification", "prepare"]

SHARDS = 4
FACTS = "_bench.json"


@dataclass(frozen=True)
class Prepared:
    """Folders of one noise rate, and what the table's `clean` is worth by the truth."""

    shards: Path
    table: Path
    truth: Path
    """the same table, with the truth as its column `clean`"""
    held_out: Path
    classes: Path
    rows: int
    kept: int
    clean: int
    identification: dict[str, float]
    """in percent: how well the table finds the noise; nan where there is none to find"""
    tokens: tuple[int, ...]
    """CLIP's ids of all tokens in captions and class prompts, so that no cell has to look for them"""

    def selected(self, method: str) -> int:
        """Rows that a method which keeps the clean ones trains on."""
        return {"select": self.kept, "oracle": self.clean}.get(method, self.rows)

    def selected_by(self, rule: str) -> int:
        """Rows of the table for which a rule such as clean_tango holds."""
        run, parsed = RunFolder(self.table), parse_where(rule)
        return sum(int(parsed.mask(run.read(stem)).sum()) for stem in run.stems())


def prepare(data: SceneData, rate: float, out: Path, note: Callable[[str], None]) -> Prepared:
    """Draw, spoil and score the scenes of one rate, unless that is done."""
    folder = out / "data" / f"{data.protocol}-{data.train}-{data.size}px-{data.seed}"
    clean, held = folder / "clean", folder / f"held-out-{data.held_out}"
    shards, table, truth = (folder / f"{kind}-{rate_name(rate)}" for kind in ("noisy", "tables", "truth"))
    if not (clean / "classes.txt").exists():  # written last
        note(f"drawing {data.train:,} scenes")
        write_scenes(clean, data.train, SHARDS, data.seed, data.size)
    if not (held / "classes.txt").exists():
        write_scenes(held, data.held_out, 1, data.seed + 1, data.size)
    if (truth / FACTS).exists():
        facts = json.loads((truth / FACTS).read_text(encoding="utf-8"))
    else:
        note(f"scoring {data.train:,} samples with {100 * rate:g} % noise ({data.protocol})")
        facts = _make(data, rate, clean, shards, table, truth)
        write_atomically(truth / FACTS, (json.dumps(facts) + "\n").encode())
    facts["tokens"] = tuple(facts["tokens"])
    facts["identification"] = {k: math.nan if v is None else v for k, v in facts["identification"].items()}
    return Prepared(shards, table, truth, held, clean / "classes.txt", **facts)


def _make(data: SceneData, rate: float, clean: Path, shards: Path, table: Path, truth: Path) -> dict[str, Any]:
    sources = sorted(clean.glob("*.tar"))
    names = clean / "classes.txt"
    labels = data.protocol != "shuffle-captions"
    if not (shards / "noise.parquet").exists():
        shutil.rmtree(shards, ignore_errors=True)
        if labels:
            noise_labels(sources, shards, protocol=data.protocol, rate=rate, seed=data.seed, classes=names)
        else:
            noise_captions(sources, shards, rate=rate, seed=data.seed)
    annotate(
        sorted(shards.glob("*.tar")),
        table,
        options=DecodeOptions(tasks=("labels",) if labels else ("pairs",)),
        classes=load_classes(str(names)) if labels else None,
        workers=0,
    )
    rows, kept, right = _write_truth(table, truth)
    facts = {"rows": rows, "kept": kept, "clean": right, "identification": identification(table, labels)}
    return facts | {"tokens": _tokens(sources, names)}


def _write_truth(table: Path, truth: Path) -> tuple[int, int, int]:
    """A copy of the run in which `clean` is the truth; rows, rows kept by the table, rows that are right."""
    run, copy = RunFolder(table), RunFolder(truth)
    whole = read_table(table, ["shard", "key", "index", "status", "clean"])
    right = ~read_truth(run, whole, None).noisy
    shutil.rmtree(truth, ignore_errors=True)
    shutil.copytree(table, truth, ignore=shutil.ignore_patterns("_lock"))
    start = 0
    for stem in run.stems():
        one = run.read(stem)
        part = pa.array(right[start : start + len(one)])
        copy.write_table(stem, replace_columns(one, {"clean": part}, read_metadata(run.table(stem))))
        start += len(one)
    kept = np.asarray(whole["clean"].fill_null(False)).astype(bool)
    return len(right), int(kept.sum()), int(right.sum())


def identification(table: Path, labels: bool) -> dict[str, float | None]:
    """What the table's `clean` is worth by the truth, in percent: noisy as positive (LNC table 7), and repaired labels."""
    accuracy: float | None = None
    if labels:
        judged = evaluate_labels(table)
        found, accuracy = judged.fused, judged.refined_accuracy
    else:
        found = evaluate(table).selection
    names = ("noise_precision", "noise_recall", "noise_f1", "clean_recall", "clean_auroc")
    values = found.as_dict()
    figures = {name: None if values[name] is None else 100 * float(getattr(found, name)) for name in names}
    return figures if accuracy is None else {**figures, "relabel_accuracy": 100 * accuracy}


def _tokens(shards: list[Path], classes: Path) -> list[int]:
    from noisegate.trainers.targets.base import PROMPT
    from noisegate.trainers.targets.clip_tokens import ClipVocabulary

    prompts = [PROMPT.format(name) for name in classes.read_text(encoding="utf-8").splitlines()]
    return list(ClipVocabulary(kind="captions").filled(_captions(shards), prompts).ids)


def _captions(shards: list[Path]) -> Iterator[str]:
    for path in shards:
        for sample in ShardReader(Shard(str(path))):
            yield decode_text(sample.parts, None, Limits())
