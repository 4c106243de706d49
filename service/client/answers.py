"""Answers of the service as named values, and its failures as one type of error."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict, overload

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import NoisegateError


class ServiceError(NoisegateError):
    """The service refused a request, failed, or could not be reached.

    `code` is the service's own (`overloaded`, `unauthorized`, `unknown_run`, …), or `unreachable`, `timeout` or `bad_answer` if
    the service sent no code. `request_id` finds the request in its logs.
    """

    def __init__(self, code: str, message: str, request_id: str | None = None, status: int | None = None) -> None:
        super().__init__(f"{code}: {message}" + (f" (request {request_id})" if request_id else ""))
        self.code, self.message, self.request_id, self.status = code, message, request_id, status


@dataclass(frozen=True)
class Neighbour:
    """A neighbour of a new sample in the run it was compared with, and their cosine."""

    key: str
    shard: str | None = None
    index: int | None = None
    similarity: float | None = None
    label: int | None = None


@dataclass(frozen=True)
class Predicted:
    """A class with its probability by the class set's texts."""

    label: int
    name: str
    probability: float


@dataclass(frozen=True)
class Score:
    """One result, named as the weight table's columns; None for values that were not requested or are not known."""

    status: str
    error: str | None = None
    key: str | None = None
    similarity: float | None = None
    osa_weight: float | None = None
    clean_probability: float | None = None
    clean: bool | None = None
    label: int | None = None
    anchor_consistency: float | None = None
    knn_consistency: float | None = None
    consistency: float | None = None
    clean_tango: bool | None = None
    refined_label: int | None = None
    refined_confidence: float | None = None
    refined_name: str | None = None
    neighbourhood: float | None = None
    pair_quality: float | None = None
    neighbours: tuple[Neighbour, ...] = ()
    predicted: tuple[Predicted, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @classmethod
    def from_dict(cls, plain: Any) -> "Score":
        """Read the service's JSON; fields that a newer service adds are left out."""
        values = _known(cls, as_object(plain, "a result"))
        if not isinstance(values.get("status"), str):
            raise ServiceError("bad_answer", "a result has no status; is this a noisegate service?")
        lists = {
            "neighbours": _each(Neighbour, values.get("neighbours")),
            "predicted": _each(Predicted, values.get("predicted")),
        }
        return cls(**{**values, **lists, "flags": tuple(values.get("flags") or ())})


@dataclass(frozen=True)
class Scores(Sequence[Score]):
    """All results in the order of the pairs, and the scorer that made them."""

    results: tuple[Score, ...]
    beta: Mapping[str, Any] | None = None
    scorer: str | None = None

    @overload
    def __getitem__(self, index: int) -> Score: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Score]: ...
    def __getitem__(self, index: int | slice) -> Score | Sequence[Score]:
        return self.results[index]

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Score]:
        return iter(self.results)


@dataclass(frozen=True, eq=False)
class Embedding:
    """A unit vector (d,) float32, or the reason why there is none."""

    status: str
    error: str | None = None
    embedding: NDArray[np.float32] | None = None

    @classmethod
    def from_dict(cls, plain: Any) -> "Embedding":
        """Read the service's JSON: a list of numbers, or base64 of little-endian float32."""
        values = _known(cls, as_object(plain, "an embedding"))
        row = values.get("embedding")
        if isinstance(row, str):
            row = np.frombuffer(base64.b64decode(row), "<f4")
        return cls(**{**values, "embedding": None if row is None else np.asarray(row, np.float32)})


@dataclass(frozen=True)
class Embeddings:
    """One for each picture and one for each text, in order."""

    images: tuple[Embedding, ...]
    texts: tuple[Embedding, ...]


class ScorerFacts(TypedDict):
    """Facts about the service's scorer, from GET /v1/scorer."""

    scorer: str
    identity: dict[str, Any]
    dimensions: int
    beta: dict[str, Any] | None
    calibration: dict[str, Any] | None
    cut: str
    run: str | None
    limits: dict[str, int]
    classes: list[str]
    runs: list[str]
    url_hosts: bool
    jobs: bool


class Job(TypedDict):
    """A background job; `state` is queued, running, done, failed or cancelled, `run` its name once it is done."""

    id: str
    name: str
    state: str
    request: dict[str, Any]
    progress: dict[str, Any]
    attempts: int
    created: str
    started: str | None
    ended: str | None
    error: str | None
    summary: dict[str, Any] | None
    run: str | None


def as_object(value: Any, what: str) -> dict[str, Any]:
    """Return the value if it is a JSON object, else raise ServiceError."""
    if not isinstance(value, dict):
        raise ServiceError("bad_answer", f"{what} is no JSON object; is this a noisegate service?")
    return value


def as_list(value: Any, what: str) -> list[Any]:
    """Return the value if it is a JSON list, else raise ServiceError."""
    if not isinstance(value, list):
        raise ServiceError("bad_answer", f"{what} is no JSON list; is this a noisegate service?")
    return value


def _each(kind: type[Any], values: Any) -> tuple[Any, ...]:
    return tuple(kind(**_known(kind, as_object(value, kind.__name__))) for value in values or ())


def _known(kind: type[Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in plain.items() if name in names}
