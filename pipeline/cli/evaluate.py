"""`noisegate evaluate`: a run against known noise."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.progress import counted

from .options import Folder
from .output import JsonOption, Output, number, percent

if TYPE_CHECKING:
    from noisegate.pipeline.inspect.evaluation import Evaluation, LabelEvaluation, NeighbourhoodEvaluation
    from noisegate.pipeline.inspect.metrics.selection import SelectionMetrics


def evaluate(
    folder: Folder,
    truth: Annotated[
        Path | None, typer.Option(help="Parquet or CSV with key and noisy (default: the json field noisy).")
    ] = None,
    truth_field: Annotated[
        str | None,
        typer.Option(
            help="Another json field, or column of --truth: true or false, or for labels the right class, by number or name."
        ),
    ] = None,
    what: Annotated[
        str | None,
        typer.Option(
            help="pairs or labels (default: what was made noisy; if that is unknown, labels if the run scored them)."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the scores of a run with the known truth.

    [cyan]noisegate evaluate tables[/]

    [cyan]noisegate evaluate tables --truth truth.csv[/]

    [cyan]noisegate evaluate tables --truth-field clean_label[/]
    """
    from noisegate.pipeline.inspect.evaluation import evaluate as judge
    from noisegate.pipeline.inspect.evaluation import (
        evaluate_labels,
        evaluate_neighbourhood,
        is_decided_by_neighbourhood,
    )
    from noisegate.pipeline.inspect.truth import noised_part
    from noisegate.pipeline.runs.table import RunFolder

    if what not in (None, "pairs", "labels"):
        raise ConfigError.of("what", what, "is unknown; use pairs or labels")
    output = Output(as_json)
    run = RunFolder.to_read(folder)
    folder = run.path  # the local copy of a run in a store, so that the store is listed only once
    tasks = (run.read_run() or {"scoring": {"tasks": ["pairs"]}})["scoring"]["tasks"]
    spoilt = noised_part(run, truth)
    noisy = "pairs" if spoilt == "captions" else spoilt
    wanted = what or (noisy if noisy in tasks else "labels" if "labels" in tasks else "pairs")
    if noisy not in (None, wanted):
        output.tell(
            f"[yellow]note[/]: the {spoilt} were made noisy here; the truth below is about them, not about {wanted}"
        )
    if wanted == "labels":
        labels = evaluate_labels(folder, truth, truth_field)
        print_label_evaluation(labels, output)
        return output.result(labels.to_dict())
    if is_decided_by_neighbourhood(folder):
        near = evaluate_neighbourhood(folder, truth, truth_field)
        print_neighbourhood_evaluation(near, output)
        return output.result(near.to_dict())
    pairs = judge(folder, truth, truth_field)
    print_evaluation(pairs, output)
    return output.result(pairs.to_dict())


def print_evaluation(evaluation: "Evaluation", output: Output) -> None:
    """Print the figures at β beside those of the best possible cut."""
    s, rank, best = evaluation.selection, evaluation.noise_rank, evaluation.best
    output.table(
        _title(evaluation),
        [
            ("AUROC of the similarity", number(s.clean_auroc), ""),
            ("cut", number(evaluation.beta), number(best.threshold)),
            ("OSA Acc: clean pairs with w > 0", percent(evaluation.osa_acc), percent(best.clean_recall)),
            ("OSA Recall: noisy pairs with w = 0", percent(evaluation.osa_recall), percent(best.noise_recall)),
            ("balanced accuracy", percent(s.balanced_accuracy), percent(best.balanced_accuracy)),
            (f"Mean Noise Rank (blind: {number(rank.random, 1)})", number(rank.value, 1), number(rank.optimum, 1)),
        ],
        ("", "at β", "best possible"),
    )
    _print_selection("The cut at β, both ways", s, evaluation.unscored, output)


def print_neighbourhood_evaluation(evaluation: "NeighbourhoodEvaluation", output: Output) -> None:
    """Print the same for agreement with neighbours, which has a cut and no weights."""
    s, best = evaluation.selection, evaluation.best
    rows = [("AUROC of the neighbourhood", number(evaluation.clean_auroc), "")]
    if s is not None:
        rows += [
            ("cut", number(evaluation.cut), number(best.threshold)),
            ("clean pairs kept", percent(s.clean_recall), percent(best.clean_recall)),
            ("noisy pairs rejected", percent(s.noise_recall), percent(best.noise_recall)),
            ("balanced accuracy", percent(s.balanced_accuracy), percent(best.balanced_accuracy)),
        ]
    output.table(_title(evaluation), rows, ("", "at the cut", "best possible"))
    if s is None:
        output.say("There were too few pairs to choose a cut.")
    _print_selection("The cut, both ways", s, evaluation.unscored, output)


def _title(evaluation: "Evaluation | NeighbourhoodEvaluation") -> str:
    share = percent(evaluation.noisy / evaluation.samples)
    return f"{counted(evaluation.samples, 'pair')}, {evaluation.noisy:,} of them noisy ({share})"


def _print_selection(title: str, metrics: "SelectionMetrics | None", unscored: int, output: Output) -> None:
    if metrics is not None:
        clean = (metrics.clean_precision, metrics.clean_recall, metrics.clean_f1)
        noise = (metrics.noise_precision, metrics.noise_recall, metrics.noise_f1)
        rows = [("kept as clean", *map(percent, clean)), ("rejected as noise", *map(percent, noise))]
        output.table(title, rows, ("", "precision", "recall", "F1"))
    if unscored:
        output.say(f"{unscored:,} samples have no score and are left out.")


def print_label_evaluation(found: "LabelEvaluation", output: Output) -> None:
    """Print the AUROC of every label score, the two rules side by side, and what repairing gains."""
    share = percent(found.noisy / found.samples)
    output.say(f"[bold]{counted(found.samples, 'label')}, {found.noisy:,} of them wrong ({share})[/]\n")
    output.table("Scores", [(name, number(value)) for name, value in found.aurocs.items()], ("score", "AUROC"))
    rows = []
    for name, m in (("clean (fused)", found.fused), ("clean_tango", found.tango)):
        rows.append(
            (name, percent(m.clean_precision), percent(m.clean_recall), percent(m.clean_f1), percent(m.noise_recall))
        )
    output.table("Rules", rows, ("kept by", "clean precision", "clean recall", "clean F1", "noise found"))
    if found.captioned < found.samples:
        output.say(
            f"clean asks for a right caption as well: it is judged by the {found.captioned:,} labels whose caption passes."
        )
    output.say(f"label_quality as the chance to be right: calibration error {percent(found.ece)}.")
    if found.given_accuracy is not None:
        output.say(
            f"Right labels: {percent(found.given_accuracy)} as given, {percent(found.predicted_accuracy)} as predicted, "
            f"{percent(found.refined_accuracy)} as refined."
        )
    if found.unscored:
        output.say(f"{found.unscored:,} samples have no label score and are left out.")
