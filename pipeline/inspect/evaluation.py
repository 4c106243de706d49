"""Evaluate the scores of a run against known noise (`noisegate evaluate`)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.runs.table import RunFolder, read_metadata, read_table

from .metrics.selection import (
    BestCut,
    MeanNoiseRank,
    SelectionMetrics,
    best_cut,
    calibration_error,
    clean_auroc,
    mean_noise_rank,
    osa_acc,
    osa_recall,
    relabel_accuracy,
    selection_metrics,
)
from .truth import read_truth

LABEL_SCORES = ("label_quality", "probe_consistency", "knn_consistency", "anchor_consistency", "consistency")


@dataclass(frozen=True)
class Evaluation:
    """Scores of a run against known noise. Failed samples are left out and counted in `unscored`."""

    samples: int
    noisy: int
    unscored: int
    beta: float
    osa_acc: float
    osa_recall: float
    selection: SelectionMetrics
    noise_rank: MeanNoiseRank
    best: BestCut

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, with clean_auroc at the top level."""
        return {**asdict(self), "clean_auroc": self.selection.clean_auroc}


def evaluate(folder: str | Path, truth: str | Path | None = None, field: str | None = None) -> Evaluation:
    """Judge the tables of a run by `truth`, a Parquet or CSV file with `noisy` and `key`; `shard` too where keys repeat.

    Without it the truth is the field `noisy` in the samples' json, which `noisegate noise` leaves there. `field` names another
    column or field: true or false, or for labels the right class. Raises MismatchError when the shards are no longer those
    that were scored.
    """
    run = RunFolder.to_read(folder)
    table = read_table(folder, ["key", "index", "similarity", "osa_weight"])
    beta = (run.read_run() or {})["beta"]
    if beta is None:
        raise TableError.of(
            "run", folder, "has no β to judge: scored without pairs, or from encoders that share no space"
        )
    noisy = read_truth(run, table, Path(truth) if truth else None, field).noisy
    weight = table["osa_weight"].to_numpy(zero_copy_only=False)
    scored = ~np.isnan(weight)
    if not scored.any():
        raise TableError.of("run", folder, "has no sample with a score; look at the column error of its tables")
    weight, mask = weight[scored].astype(np.float64), noisy[scored]
    similarity = table["similarity"].to_numpy(zero_copy_only=False)[scored]
    return Evaluation(
        samples=int(scored.sum()),
        noisy=int(mask.sum()),
        unscored=int((~scored).sum()),
        beta=beta["value"],
        osa_acc=osa_acc(weight, mask),
        osa_recall=osa_recall(weight, mask),
        selection=selection_metrics(similarity, weight > 0, mask),
        noise_rank=mean_noise_rank(weight, mask),
        best=best_cut(similarity, mask),
    )


@dataclass(frozen=True)
class NeighbourhoodEvaluation:
    """Neighbourhood scores (agreement with the neighbours' partners) against known noise, in a run that has no cosine.

    `cut` is None if there were too few pairs to choose a cut; then no pair is clean, and `selection` is None.
    """

    samples: int
    noisy: int
    unscored: int
    cut: float | None
    clean_auroc: float
    selection: SelectionMetrics | None
    best: BestCut

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def is_decided_by_neighbourhood(folder: str | Path) -> bool:
    """Return whether `clean` of this run was decided from neighbourhoods alone, without a cosine."""
    near = _neighbourhood_facts(RunFolder.to_read(folder))
    return bool(near and near["alone"])


def evaluate_neighbourhood(
    folder: str | Path, truth: str | Path | None = None, field: str | None = None
) -> NeighbourhoodEvaluation:
    """Judge the neighbourhood scores of a run; the truth is as in `evaluate`."""
    run = RunFolder.to_read(folder)
    table = read_table(folder, ["key", "index", "neighbourhood"])
    near = _neighbourhood_facts(run)
    agreement = _floats(table, "neighbourhood")
    scored = ~np.isnan(agreement)
    if near is None or not scored.any():
        problem = f"no pair in {folder} has a neighbourhood score; score pairs with --neighbourhood"
        raise TableError(problem, "neighbourhood", folder)
    noisy, agreement = read_truth(run, table, Path(truth) if truth else None, field).noisy[scored], agreement[scored]
    cut = near["cut"]
    return NeighbourhoodEvaluation(
        samples=int(scored.sum()),
        noisy=int(noisy.sum()),
        unscored=int((~scored).sum()),
        cut=cut,
        clean_auroc=clean_auroc(agreement, noisy),
        selection=None if cut is None else selection_metrics(agreement, agreement > cut, noisy),
        best=best_cut(agreement, noisy),
    )


@dataclass(frozen=True)
class LabelEvaluation:
    """Label scores against known noise: AUROC of each score, both rules, and the share of right labels.

    `fused` judges `label_quality` and `clean`, `tango` the paper's `consistency` and `clean_tango`. If pairs were scored too,
    `clean` also requires a right caption; `fused` then judges only the `captioned` labels, whose caption passes. `ece` is the
    calibration error of `label_quality`. Accuracies are of the given, the predicted and the refined labels, None if the true
    labels are not known or the table has no such label.
    """

    samples: int
    noisy: int
    unscored: int
    captioned: int
    aurocs: Mapping[str, float]
    fused: SelectionMetrics
    tango: SelectionMetrics
    ece: float
    given_accuracy: float | None
    predicted_accuracy: float | None
    refined_accuracy: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"labels": asdict(self), "clean_auroc": self.fused.clean_auroc}


def evaluate_labels(folder: str | Path, truth: str | Path | None = None, field: str | None = None) -> LabelEvaluation:
    """Judge the label scores of a run; the truth is as in `evaluate`, with `clean_label` for the accuracies."""
    run = RunFolder.to_read(folder)
    names = [
        "key",
        "index",
        "label",
        "clean",
        "clean_tango",
        "predicted_label",
        "refined_label",
        "osa_weight",
        "neighbourhood",
        *LABEL_SCORES,
    ]
    table = read_table(folder, names)
    known = read_truth(run, table, Path(truth) if truth else None, field)
    quality = _floats(table, "label_quality")
    scored = ~np.isnan(quality)
    if not scored.any():
        raise TableError(f"{folder}: no label has a score; score labels with --task labels", "task", folder)
    noisy = known.noisy[scored]
    scores = {name: _floats(table, name)[scored] for name in LABEL_SCORES}
    captioned = _caption_passes(run, table)[scored]
    right = None if known.clean_label is None else known.clean_label[scored]

    def accuracy(column: str) -> float | None:
        found = table[column].cast(pa.int64()).fill_null(-1).to_numpy()[scored]
        return None if right is None or (found < 0).all() else relabel_accuracy(found, right)

    return LabelEvaluation(
        samples=int(scored.sum()),
        noisy=int(noisy.sum()),
        unscored=int((~scored).sum()),
        captioned=int(captioned.sum()),
        aurocs={name: clean_auroc(values, noisy) for name, values in scores.items() if not np.isnan(values).all()},
        fused=selection_metrics(
            scores["label_quality"][captioned], _mask(table, "clean")[scored][captioned], noisy[captioned]
        ),
        tango=selection_metrics(scores["consistency"], _mask(table, "clean_tango")[scored], noisy),
        ece=calibration_error(scores["label_quality"], ~noisy),
        given_accuracy=accuracy("label"),
        predicted_accuracy=accuracy("predicted_label"),
        refined_accuracy=accuracy("refined_label"),
    )


def _caption_passes(run: RunFolder, table: pa.Table) -> NDArray[np.bool_]:
    """Return the rows (N,) where `clean` depends on the label: the pair was judged clean, or not judged at all."""
    near = _neighbourhood_facts(run)
    weight, passes = _floats(table, "osa_weight"), np.ones(len(table), dtype=bool)
    if near and near["alone"] and near["cut"] is not None:
        agreement = _floats(table, "neighbourhood")
        passes = np.isnan(agreement) | (agreement > near["cut"])
    return np.asarray(passes & (np.isnan(weight) | (weight > 0)))


def _neighbourhood_facts(run: RunFolder) -> dict[str, Any] | None:
    """Read the metadata about neighbourhoods from the first table; all tables have the same."""
    stem = next(run.stems(), None)
    return None if stem is None else read_metadata(run.table(stem)).get("neighbourhood")


def _floats(table: pa.Table, name: str) -> NDArray[np.float64]:
    values: NDArray[np.float64] = table[name].to_numpy(zero_copy_only=False).astype(np.float64)
    return values


def _mask(table: pa.Table, name: str) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = table[name].fill_null(False).to_numpy(zero_copy_only=False).astype(bool)
    return mask
