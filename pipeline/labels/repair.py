"""The rule by which labels are changed, and its constants."""

from dataclasses import dataclass

import numpy as np

from noisegate.pipeline.system.array_types import Float64, Index


@dataclass(frozen=True)
class RepairPolicy:
    """The constants of the noise estimate and of the repair that were chosen, by `benchmarks/labels.py --split chosen`.

    Numerical floors stand beside what they guard, in `pool` and `noise`.

    A label is changed where the posterior of another class, P(true c | x, given y), is larger than that of the given one: the
    difference is the expected gain in right labels. With `repair="sure"` only in a run in which noise is shown, which asks
    that such changes gain `gain` on average; with `"likely"` in every run; with `"never"` in none.
    """

    repair: str = "sure"
    pseudo_rows: float = 3000.0  # by which the detailed noise model is drawn to the simple one: each entry of T by
    # pseudo_rows / rows per class, so that both weigh the same in classes of √(pseudo_rows · classes) rows
    shown: float = 3.0  # standard errors by which one model must explain held-out labels better than another
    gain: float = 0.45  # right labels that a change must be expected to gain on average; chosen between embeddings that
    # do not know the classes (at most 0.39) and others (at least 0.53)
    folds: int = 5  # parts of the rows that are held out in turn

    def gains_enough(self, posterior: Float64, label: Index) -> bool:
        """Whether the changes of a run gain `gain` on average, from P(true | x, given) (n, C) and the given labels (n,).

        >>> RepairPolicy().gains_enough(np.array([[0.2, 0.8], [0.4, 0.6]]), np.array([0, 0]))  # 0.6 and 0.2
        False
        """
        gain = posterior.max(axis=1) - posterior[np.arange(len(label)), label]
        return bool(gain.sum() >= self.gain * (gain > 0).sum())

    def repair_labels(self, posterior: Float64, label: Index, shown: bool) -> Index:
        """(n,) labels after the repair, from P(true | x, given) (n, C) and the given ones (n,).

        >>> posterior = np.array([[0.1, 0.9], [0.1, 0.9], [0.6, 0.4]])
        >>> RepairPolicy().repair_labels(posterior, np.array([0, 1, 0]), shown=True)
        array([1, 1, 0])
        """
        changes = {"never": False, "sure": shown, "likely": True}[self.repair]
        likelier = posterior.max(axis=1, initial=0) > posterior[np.arange(len(label)), label]
        return np.asarray(np.where(likelier & changes, posterior.argmax(axis=1), label))
