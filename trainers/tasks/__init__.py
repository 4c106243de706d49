"""Tasks: how a trained target is measured. Each module has `evaluate(target, batches)`, which returns named figures."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from noisegate.pipeline.errors import ConfigError

from . import classification, image_retrieval, retrieval

__all__ = ["TASKS", "check_task", "classification", "image_retrieval", "retrieval"]

# name -> its evaluate function, and the figure by which the best checkpoint is chosen (larger is better)
TASKS: Mapping[str, tuple[Callable[..., dict[str, float]], str]] = {
    "retrieval": (retrieval.evaluate, "rsum"),
    "classification": (classification.evaluate, "accuracy"),
    "image_retrieval": (image_retrieval.evaluate, "map_at_r"),
}


def check_task(task: str, options: Mapping[str, Any], monitor: str = "auto") -> None:
    """Raise ConfigError for options that the task does not take, and for a `monitor` that it does not measure."""
    if task != "retrieval":
        for name in options:
            raise ConfigError(
                f"task.options.{name}: {task} takes no options; leave it out", f"task.options.{name}", options[name]
            )
        figures: Sequence[str] = (classification if task == "classification" else image_retrieval).FIGURES
    else:
        figures = _retrieval_figures(**_retrieval_options(options))
    if monitor not in ("auto", *figures):
        raise ConfigError.of(
            "task.monitor", monitor, f"is none of the figures; use one of {', '.join(figures)}, or auto"
        )


def _retrieval_options(options: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in options.items():
        if name == "folds":
            if not _is_count(value):
                raise ConfigError.of("task.options.folds", value, "is no number of parts; use 5 for MS-COCO, or 1")
        elif name == "ks":
            if not (isinstance(value, Sequence) and value and all(map(_is_count, value))):
                raise ConfigError.of(
                    "task.options.ks", value, "are no ranks; use for example task.options.ks=[1, 5, 10]"
                )
        else:
            raise ConfigError(
                f"task.options.{name} is no option of retrieval; it takes folds and ks", f"task.options.{name}", value
            )
    return dict(options)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _retrieval_figures(folds: int = 1, ks: Sequence[int] = retrieval.RANKS) -> tuple[str, ...]:
    starts = ("",) if folds == 1 else ("", "fold_")
    ways = [f"{way}_r{k}" for way in ("i2t", "t2i") for k in ks]
    return tuple(f"{start}{name}" for start in starts for name in (*ways, "rsum"))
