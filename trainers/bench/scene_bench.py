"""Run a bench on drawn scenes: make data once per noise rate, plan a cell per method, rate and seed, train the cells."""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from noisegate.pipeline.annotate import annotate
from noisegate.pipeline.datasets.noise import TRUTH_FILE, noise_captions, noise_labels
from noisegate.pipeline.datasets.scenes import write_scenes
from noisegate.pipeline.inspect import evaluate, evaluate_labels, read_truth
from noisegate.pipeline.labels import anchors_file, load_classes
from noisegate.pipeline.runs import RunFolder, parse_where, read_metadata, read_table, replace_columns
from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.shards import Shard, ShardReader, decode_text
from noisegate.pipeline.system import count_processors, write_atomically
from noisegate.trainers.config import merge_trees
from noisegate.trainers.targets.base import PROMPT
from noisegate.trainers.targets.texts import ClipVocabulary

from .cells import Cell, CellResult, finished_cells, noises_with_results, rank_figures, run_cells
from .preset_files import ORACLE, PASSES, SceneData, ScenePreset, rate_name
from .pretraining import Pretrained, pretrain

SHARDS = 4
FACTS = "_bench.json"
TRUTH = "truth"
"""as data.table: the weight table with the truth as its `clean`"""


# --- the bench --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SceneBench:
    """Results of a preset, from which the tables are made."""

    preset: ScenePreset
    cells: list[CellResult]
    identification: dict[float, dict[str, float]]
    pretrained: dict[str, float] = field(default_factory=dict)
    """figures of the pretrained weights before any fine-tuning"""


def run_bench(
    preset: ScenePreset,
    out: Path,
    *,
    jobs: int | None = None,
    finished: bool = False,
    note: Callable[[str], None] = lambda text: None,
    progress: Callable[[CellResult, int, int], None] = lambda result, done, total: None,
) -> SceneBench:
    """Prepare the data, train the cells that are not trained yet, and return all results in the order of the preset.

    jobs: cells at once, None for one per processor. With `finished` nothing is trained: the result has only the finished cells,
    and the noise rates that have any.
    """
    out = out.absolute()
    if finished:
        found = noises_with_results(out / preset.name / "cells", map(rate_name, preset.rates))
        preset = preset.with_changes(rates=[rate for rate in preset.rates if rate_name(rate) in found])
    prepared = {rate: prepare_scenes(preset.data, rate, out, note) for rate in preset.rates}
    start = None
    if preset.pretrain is not None:
        held_out = prepared[preset.rates[0]].held_out
        start = pretrain(preset.pretrain, preset.config, preset.task, preset.data.size, held_out, out, note)
    cells = [
        plan_cell(preset, prepared[rate], method, rate, seed, out / preset.name, start)
        for seed in preset.seeds  # all cells of one seed before the next seed, so that mistakes show early
        for rate in sorted(preset.rates, reverse=True)
        for method in preset.methods
    ]
    cells = finished_cells(cells, out / preset.name) if finished else cells
    results = run_cells(cells, jobs or count_processors(), progress=progress)
    identification = {rate: prepared[rate].identification for rate in preset.rates}
    return SceneBench(preset, results, identification, {} if start is None else start.figures)


# --- data --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreparedScenes:
    """Folders of one noise rate, and how well the table's `clean` matches the truth."""

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
    """CLIP's token ids of all captions and class prompts, so that no cell has to collect them"""

    def count_selected(self, method: str) -> int:
        """Count the rows that a method trains on: the clean rows for methods that keep only these."""
        return {"select": self.kept, ORACLE: self.clean}.get(method, self.rows)

    def count_where(self, rule: str) -> int:
        """Count the table's rows for which a rule such as clean_tango holds."""
        run, parsed = RunFolder(self.table), parse_where(rule)
        return sum(int(parsed.rows(run, stem).sum()) for stem in run.stems())


def prepare_scenes(data: SceneData, rate: float, out: Path, note: Callable[[str], None]) -> PreparedScenes:
    """Draw scenes, add noise and score them, unless already done."""
    folder = out / "data" / f"{data.protocol}-{data.train}-{data.size}px-{data.seed}"
    clean, held_out = folder / "clean", folder / f"held-out-{data.held_out}"
    shards, table, truth = (folder / f"{kind}-{rate_name(rate)}" for kind in ("noisy", "tables", "truth"))
    if not (clean / "classes.txt").exists():  # written last
        note(f"drawing {data.train:,} scenes")
        write_scenes(clean, data.train, SHARDS, data.seed, data.size)
    if not (held_out / "classes.txt").exists():
        write_scenes(held_out, data.held_out, 1, data.seed + 1, data.size)
    if (truth / FACTS).exists():
        facts = json.loads((truth / FACTS).read_text(encoding="utf-8"))
    else:
        note(f"scoring {data.train:,} samples with {100 * rate:g} % noise ({data.protocol})")
        facts = _add_noise_and_score(data, rate, clean, shards, table, truth)
        write_atomically(truth / FACTS, (json.dumps(facts) + "\n").encode())
    facts["tokens"] = tuple(facts["tokens"])
    facts["identification"] = {k: math.nan if v is None else v for k, v in facts["identification"].items()}
    return PreparedScenes(shards, table, truth, held_out, clean / "classes.txt", **facts)


def _add_noise_and_score(
    data: SceneData, rate: float, clean: Path, shards: Path, table: Path, truth: Path
) -> dict[str, Any]:
    sources = sorted(clean.glob("*.tar"))
    names = clean / "classes.txt"
    labels = data.protocol != "shuffle-captions"
    if not (shards / TRUTH_FILE).exists():
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
    facts = {"rows": rows, "kept": kept, "clean": right, "identification": judge_table(table, labels)}
    return facts | {"tokens": _token_ids(sources, names)}


def _write_truth(table: Path, truth: Path) -> tuple[int, int, int]:
    """Copy the run with the truth as `clean`; return the numbers of rows, of rows kept by the table, and of clean rows."""
    run, copy = RunFolder(table), RunFolder(truth)
    whole = read_table(table, ["shard", "key", "index", "status", "clean"])
    right = ~read_truth(run, whole, None).noisy
    shutil.rmtree(truth, ignore_errors=True)
    shutil.copytree(table, truth, ignore=shutil.ignore_patterns("_lock"))
    start = 0
    for stem in run.stems():
        rows = run.read(stem)
        clean = pa.array(right[start : start + len(rows)])
        copy.write_table(stem, replace_columns(rows, {"clean": clean}, read_metadata(run.table(stem))))
        start += len(rows)
    kept = np.asarray(whole["clean"].fill_null(False)).astype(bool)
    return len(right), int(kept.sum()), int(right.sum())


def judge_table(table: Path, labels: bool, truth: Path | None = None) -> dict[str, float | None]:
    """Compare the table's `clean` with the truth, in percent: noise as positive (LNC table 7), and repaired labels.

    For pairs also the mean rank of the noise by OSA's weights, and its optimum (OSA table 9). `truth` is a file of
    `noisegate noise`; None: read the json of the shards.
    """
    further: dict[str, float | None] = {}
    if labels:
        judged = evaluate_labels(table, truth)
        selection = judged.fused
        if judged.refined_accuracy is not None:
            further = {"relabel_accuracy": 100 * judged.refined_accuracy}
    else:
        found = evaluate(table, truth)
        selection = found.selection
        further = dict(rank_figures(found.noise_rank))
    names = ("noise_precision", "noise_recall", "noise_f1", "clean_recall", "clean_auroc")
    values = selection.as_dict()
    figures = {name: None if values[name] is None else 100 * float(getattr(selection, name)) for name in names}
    return {**figures, **further}


def _token_ids(shards: list[Path], classes: Path) -> list[int]:
    prompts = [PROMPT.format(name) for name in classes.read_text(encoding="utf-8").splitlines()]
    return list(ClipVocabulary(kind="captions").filled(_read_captions(shards), prompts).ids)


def _read_captions(shards: list[Path]) -> Iterator[str]:
    for path in shards:
        for sample in ShardReader(Shard(str(path))):
            yield decode_text(sample.parts, None, Limits())


# --- cells -------------------------------------------------------------------------------------------------------------


def plan_cell(
    preset: ScenePreset,
    prepared: PreparedScenes,
    method: str,
    rate: float,
    seed: int,
    out: Path,
    start: Pretrained | None = None,
) -> Cell:
    """Plan a cell with as many epochs over the method's own rows as `preset.updates` updates take.

    `out` is the preset's folder below the bench's. NAME@passes makes as many passes over its own samples as plain training
    makes over all samples. `start` replaces random weights.
    """
    plain, _, variant = method.partition("@")
    name = "select" if plain == ORACLE else plain
    base: dict[str, Any] = {
        "data": {
            "shards": [str(path) for path in sorted(prepared.shards.glob("*.tar"))],
            "table": str(prepared.truth if plain == ORACLE else prepared.table),
            "eval_shards": [str(path) for path in sorted(prepared.held_out.glob("*.tar"))],
        },
        "method": {"name": name},
        "task": {"name": preset.task},
        "logging": {"every": 1_000_000, "tensorboard": False},
        "seed": seed,
    }
    if preset.task == "classification":
        base["target"] = {"classes": str(prepared.classes)}
    config = merge_trees(merge_trees(base, preset.config), preset.settings.get(plain, {}))
    config = merge_trees(config, preset.settings.get(method, {}) if variant else {})
    if start is not None:
        config["target"] = start.target(config["target"])
    if config["data"].get("table") == TRUTH:
        config = merge_trees(config, {"data": {"table": str(prepared.truth)}})
    if config["target"].get("anchors") == "table":
        config = merge_trees(config, {"target": {"anchors": str(anchors_file(RunFolder(prepared.table)))}})
    if config["target"].get("vocabulary") == {"kind": "captions"}:
        config = merge_trees(config, {"target": {"vocabulary": {"ids": list(prepared.tokens)}}})
    config = merge_trees({"loop": {**_budget(preset, prepared, config, method), "evaluate_every": 10_000}}, config)
    file = out / "cells" / f"{method}-{rate_name(rate)}-{seed}.json"
    return Cell(method, rate, seed, config, file, folders=(out.parent,))


def _budget(preset: ScenePreset, prepared: PreparedScenes, config: Mapping[str, Any], method: str) -> dict[str, int]:
    """Return the epochs of a method, and with `preset.updates` the maximum of updates."""
    if preset.updates is None:
        assert preset.epochs is not None
        return {"epochs": preset.epochs}
    plain, _, variant = method.partition("@")
    rule = config["method"].get("rule") or config["data"].get("where")
    rows = prepared.count_selected(plain) if rule is None else prepared.count_where(rule)
    own_batches, all_batches = (max(1, n // int(config["data"]["batch_size"])) for n in (rows, prepared.rows))
    if variant == PASSES:
        return {"epochs": math.ceil(preset.updates / all_batches)}
    return {"epochs": math.ceil(preset.updates / own_batches), "max_steps": preset.updates}
