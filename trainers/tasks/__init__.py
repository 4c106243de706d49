"""Tasks: what a trained target is measured by. Each module has `evaluate(target, batches)`, which gives named figures."""

from collections.abc import Callable, Mapping

from . import classification, image_retrieval, retrieval

__all__ = ["TASKS", "classification", "image_retrieval", "retrieval"]

# name -> its evaluate function and the figure by which the best checkpoint is chosen (more is better)
TASKS: Mapping[str, tuple[Callable[..., dict[str, float]], str]] = {
    "retrieval": (retrieval.evaluate, "rsum"),
    "classification": (classification.evaluate, "accuracy"),
    "image_retrieval": (image_retrieval.evaluate, "map_at_r"),
}
