"""Answers of several requests put together in the order of what was asked, each place filled exactly once."""

from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any

from .answers import Embedding, Score, Scores, ServiceError, as_list, as_object
from .pairs import Batch

__all__ = ["Progress", "ScoreGatherer", "gather_rows"]

Progress = Callable[[int, int | None], object]


class ScoreGatherer:
    """Collects the answers of /v1/score; all of them must come from one scorer."""

    def __init__(self, pairs: Iterable[Any], progress: Progress | None) -> None:
        self._total = len(pairs) if isinstance(pairs, Sized) else None
        self._progress = progress
        self._found: dict[int, Score] = {}
        self._beta: Any = None
        self._scorer: str | None = None

    def add(self, batch: Batch, answer: dict[str, Any]) -> None:
        """Take one request's answer."""
        if batch.places:
            scorer = answer.get("scorer")
            if self._scorer is not None and scorer != self._scorer:
                reason = f"the service's scorer changed from {self._scorer} to {scorer} on the way; score again"
                raise ServiceError("scorer_changed", reason, answer.get("request_id"))
            self._scorer, self._beta = scorer, answer.get("beta")
            results = _results(batch, answer, "results")
            self._found.update((place, Score.from_dict(r)) for place, r in zip(batch.places, results, strict=True))
        self._found.update(batch.failed)
        if self._progress is not None:
            self._progress(len(self._found), self._total)

    def scores(self) -> Scores:
        return Scores(tuple(self._found[place] for place in sorted(self._found)), self._beta, self._scorer)


def gather_rows(answers: Iterable[tuple[Batch, dict[str, Any]]], part: str) -> tuple[Embedding, ...]:
    """Embeddings from answers of /v1/embed; `part` is images or texts."""
    found: dict[int, Embedding] = {}
    for batch, answer in answers:
        if batch.places:
            rows = _results(batch, answer, part)
            found.update((place, Embedding.from_dict(row)) for place, row in zip(batch.places, rows, strict=True))
        found.update((place, Embedding(score.status, score.error)) for place, score in batch.failed.items())
    return tuple(found[place] for place in sorted(found))


def _results(batch: Batch, answer: dict[str, Any], name: str) -> Sequence[dict[str, Any]]:
    results = [as_object(result, "a result") for result in as_list(answer.get(name), name)]
    if len(results) != len(batch.places):
        reason = f"{len(results)} {name} came for {len(batch.places)} items"
        raise ServiceError("bad_answer", reason, answer.get("request_id"))
    return results
