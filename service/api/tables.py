"""GET /v1/runs and below: finished runs, their figures, histograms, views, samples and pictures."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, Field

from noisegate.pipeline.errors import ConfigError, ShardError, TableError
from noisegate.service.errors import ApiError
from noisegate.service.runs.browse import Browser, NoPicture, SampleGone
from noisegate.service.runs.tables import DEPTH, NUMBERS, Filters, Review, RunTables, View, plain

from .schemas import problems
from .state import service_of

router = APIRouter(prefix="/v1/runs", tags=["runs"])
PICTURES = ("image/jpeg", "image/png", "image/webp", "image/gif")

Column = Literal[
    "similarity", "osa_weight", "clean_probability", "knn_consistency", "anchor_consistency", "consistency",
    "probe_consistency", "label_quality", "neighbourhood", "pair_quality", "predicted_confidence", "refined_confidence",
]  # fmt: skip
assert set(get_args(Column)) == set(NUMBERS)


_errors = partial(
    problems,
    meaning={
        401: "`unauthorized`: the key is missing or wrong",
        404: "`unknown_run`, `unknown_sample` or `no_picture`",
        409: "`run_unusable`: the run is not finished, or its tables are damaged; `marks_unusable`: people's marks are",
        410: "`shard_gone`: the shard is not where it was; `sample_changed`: another sample is there now",
        422: "`invalid_request`: a parameter, or the rule in `where`, cannot be understood",
    },
)


class RunEntry(BaseModel):
    """A run that can be looked into. `problem` says why one cannot."""

    name: str
    shards: int = 0
    model: str | None = None
    tasks: list[str] = []
    problem: str | None = None


class RunList(BaseModel):
    runs: list[RunEntry]


class ScoreLens(BaseModel):
    """A score to look at: `column` is drawn and cut, `rank` orders worst to best."""

    column: str
    rank: str
    noun: str
    cut: float | None
    cut_name: str
    interval: tuple[float, float] | None


class ClassCount(BaseModel):
    label: int
    name: str | None
    count: int
    kept: int


class RunSummary(BaseModel):
    """Figures of a whole run, as `noisegate show --json` prints them."""

    name: str
    model: str
    samples: int
    shards: int
    statuses: dict[str, int]
    errors: dict[str, str] = Field(description="the first reason for each status but ok")
    flags: dict[str, int]
    kept: int
    judged: int = Field(description="samples that are clean or not; the others failed or have nothing to judge")
    scored: int
    zero_weight: int
    mean_weight: float | None
    beta: dict[str, Any] | None
    calibration: dict[str, Any] | None = Field(
        description="noise rate with interval, and what the cut is expected to do"
    )
    labels: dict[str, Any] | None
    neighbourhood: dict[str, Any] | None
    similarity_quantiles: dict[str, float]
    usual: dict[str, tuple[float, float, float] | None] | None = Field(
        description="similarities below which 5, 50 and 95 % of the wrong and of the right pairs lie, by the calibration"
    )
    lenses: list[ScoreLens]
    class_counts: list[ClassCount]
    class_names: list[str] = Field(description="names of all classes, by number; empty where they are not known")
    damaged_shards: dict[str, str]
    warnings: list[str]
    notes: list[str]


class HistogramBins(BaseModel):
    """Rows by score: bin i is [edges[i], edges[i + 1]). All lists are empty where no row has the score."""

    column: str
    edges: list[float]
    kept: list[int]
    dropped: list[int]
    unknown: list[int]
    cut: float | None
    cut_name: str


class Sample(BaseModel):
    """A row of a weight table, with the names of its classes; `caption` only where it was asked for and is at hand."""

    shard: str
    key: str
    index: int
    status: str
    error: str | None
    image_sha256: str | None
    text_sha256: str | None
    similarity: float | None
    osa_weight: float | None
    clean_probability: float | None
    label: int | None
    label_name: str | None = None
    knn_consistency: float | None
    anchor_consistency: float | None
    consistency: float | None
    probe_consistency: float | None
    label_quality: float | None
    neighbourhood: float | None
    pair_quality: float | None
    clean: bool | None
    clean_tango: bool | None
    predicted_label: int | None
    predicted_name: str | None = None
    predicted_confidence: float | None
    refined_label: int | None
    refined_name: str | None = None
    refined_confidence: float | None
    flags: list[str] | None
    review: Literal["keep", "drop", "relabel"] | None = Field(None, description="a person's mark")
    review_label: int | None = Field(None, description="the right class, by a person")
    review_name: str | None = None
    caption: str | None = None
    problem: str | None = Field(None, description="why there is no caption or no picture")


class SamplePage(BaseModel):
    """Some samples of a view. At most `reachable` of `total` can be paged through; filters lead to the others."""

    view: str
    total: int
    reachable: int
    offset: int
    samples: list[Sample]


def _filters(
    min_probability: Annotated[float | None, Query(ge=0, le=1, description="of `clean_probability`")] = None,
    max_probability: Annotated[float | None, Query(ge=0, le=1)] = None,
    status: Annotated[str | None, Query(max_length=40, examples=["ok"])] = None,
    label: Annotated[int | None, Query(ge=0, lt=2**31, description="the given class")] = None,
    clean: Annotated[bool | None, Query(description="kept (true) or dropped (false)")] = None,
    flag: Annotated[str | None, Query(max_length=100, examples=["duplicate_of"])] = None,
    key: Annotated[str | None, Query(max_length=300, description="a part of the key")] = None,
    shard: Annotated[str | None, Query(max_length=300)] = None,
    review: Annotated[
        Review | None,
        Query(description="by people's marks: `none` has no mark, `disagree` one that differs from the tool's"),
    ] = None,
    where: Annotated[
        str | None,
        Query(max_length=2000, description="a rule as in `noisegate export --where`", examples=["label = 3"]),
    ] = None,
) -> Filters:
    return Filters(min_probability, max_probability, status, label, clean, flag, key, shard, review, where)


def _browser(request: Request) -> Browser:
    return service_of(request).browser


def _tables(request: Request, name: Annotated[str, Path(max_length=100)]) -> RunTables:
    return _browser(request).tables(service_of(request).runs.path(name))


ChosenFilters = Annotated[Filters, Depends(_filters)]
Tables = Annotated[RunTables, Depends(_tables)]
RunBrowser = Annotated[Browser, Depends(_browser)]


@contextmanager
def api_errors() -> Iterator[None]:
    """Turn errors of the tables into API errors, without messages that name files of this machine."""
    try:
        yield
    except ConfigError as error:
        raise ApiError(422, "invalid_request", str(error)) from error
    except (TableError, OSError) as error:
        if isinstance(error, TableError) and error.setting == "reviews":
            problem = "marks cannot be kept: the run is in a store, its folder not writable, the disk full, or the file damaged"
            raise ApiError(409, "marks_unusable", problem) from error
        raise ApiError(409, "run_unusable", "the run is not finished, or its tables cannot be read") from error
    except SampleGone as error:
        raise ApiError(410, "sample_changed" if error.changed else "shard_gone", str(error)) from error
    except NoPicture as error:
        raise ApiError(404, "no_picture", str(error)) from error


@router.get("", response_model=RunList, responses=_errors(401), summary="Finished runs")
def list_runs(request: Request, browser: RunBrowser) -> RunList:
    """All runs that can be looked into, by name."""
    registry, found = service_of(request).runs, []
    for name in registry.names():
        try:
            recorded = browser.tables(registry.path(name)).recorded()
        except (TableError, ShardError, OSError):
            found.append(RunEntry(name=name, problem="not finished, or not readable"))
            continue
        scorer, reading = recorded.get("scorer") or {}, recorded.get("reading") or {}
        shards, tasks = len(recorded["shards"]), list(reading.get("tasks") or [])
        found.append(RunEntry(name=name, shards=shards, model=scorer.get("model"), tasks=tasks))
    return RunList(runs=found)


@router.get(
    "/{name}/summary", response_model=RunSummary, responses=_errors(401, 404, 409, 422), summary="Figures of a run"
)
def summary(name: str, tables: Tables) -> RunSummary:
    """Counts by status, β, calibration with the expected precision and recall, and what can be looked at."""
    with api_errors():
        names = ScoreLens.model_fields
        lenses = [{name: getattr(lens, name) for name in names} for lens in tables.lenses()]
        return RunSummary.model_validate({**tables.overview(), "name": name, "lenses": lenses})


@router.get(
    "/{name}/histogram", response_model=HistogramBins, responses=_errors(401, 404, 409, 422), summary="A score's spread"
)
def histogram(
    tables: Tables,
    filters: ChosenFilters,
    column: Annotated[Column | None, Query(description="the run's own score unless given")] = None,
    bins: Annotated[int, Query(ge=5, le=200, description="at most so many")] = 50,
) -> HistogramBins:
    """How many kept and dropped rows have which score; the cut is always an edge."""
    with api_errors():
        lenses = tables.lenses()
        wanted = column or lenses[0].column
        lens = next((lens for lens in lenses if lens.column == wanted), None)
        found = tables.histogram(wanted, filters, bins)
    cut, name = (lens.cut, lens.cut_name) if lens else (None, "")
    parts: dict[str, Any] = vars(found) if found else dict.fromkeys(("edges", "kept", "dropped", "unknown"), ())
    return HistogramBins.model_validate({**parts, "column": wanted, "cut": cut, "cut_name": name})


@router.get(
    "/{name}/samples", response_model=SamplePage, responses=_errors(401, 404, 409, 422), summary="A view of the rows"
)
def samples(
    tables: Tables,
    filters: ChosenFilters,
    browser: RunBrowser,
    view: Annotated[
        View, Query(description="`all` is the table's order and has failed samples too; `random` a fixed random one")
    ] = "worst",
    by: Annotated[Column | None, Query(description="ranks the rows; the run's own score unless given")] = None,
    offset: Annotated[int, Query(ge=0, lt=DEPTH)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 24,
    captions: Annotated[bool, Query(description="read the captions from the shards")] = False,
) -> SamplePage:
    """The worst, best or most doubtful rows that pass all filters, a page at a time."""
    with api_errors():
        chosen = tables.choose(view, filters, by)
        rows = tables.rows(chosen, offset, limit)
        found = [_sample(tables, row) for row in rows]
        if captions:
            _add_captions(browser, tables, found, rows)
    return SamplePage(view=view, total=chosen.total, reachable=len(chosen.rows), offset=offset, samples=found)


@router.get(
    "/{name}/samples/{shard}/{index}",
    response_model=Sample,
    responses=_errors(401, 404, 409, 422),
    summary="One sample",
)
def sample(shard: str, index: Annotated[int, Path(ge=0, lt=2**31)], tables: Tables, browser: RunBrowser) -> Sample:
    """All columns of a row, and its caption."""
    with api_errors():
        row = find_row(tables, shard, index)
        found = _sample(tables, row)
        _add_captions(browser, tables, [found], [row])
    return found


@router.get(
    "/{name}/samples/{shard}/{index}/image",
    response_class=Response,
    responses=_errors(401, 404, 409, 410, 422)
    | {200: {"content": {kind: {} for kind in PICTURES}}, 304: {"description": "not modified"}},
    summary="One picture",
)
def image(
    request: Request,
    shard: str,
    index: Annotated[int, Path(ge=0, lt=2**31)],
    tables: Tables,
    browser: RunBrowser,
    size: Annotated[int, Query(ge=16, le=2048, description="pixels of the longer side, at most")] = 320,
    original: Annotated[bool, Query(description="the picture's own bytes, as they were scored")] = False,
) -> Response:
    """A picture out of the run's own shard, as a small JPEG unless the original is asked for."""
    with api_errors():
        row = find_row(tables, shard, index)
        digest = (row["image_sha256"] or hashlib.sha256(f"{shard}/{index}".encode()).digest()).hex()[:32]
        tag = f'"{digest}-{"original" if original else size}"'
        headers = {"ETag": tag, "Cache-Control": "private, max-age=300", "Content-Disposition": "inline"}
        if row["image_sha256"] and tag in request.headers.get("If-None-Match", ""):
            return Response(status_code=304, headers=headers)
        data, kind = browser.original(tables, row) if original else (browser.small(tables, row, size), "image/jpeg")
    return Response(data, media_type=kind, headers={**headers, "X-Content-Type-Options": "nosniff"})


def find_row(tables: RunTables, shard: str, index: int) -> dict[str, Any]:
    row = tables.row(shard, index)
    if row is None:
        raise ApiError(404, "unknown_sample", "the run has no sample with this shard and index")
    return row


def _sample(tables: RunTables, row: dict[str, Any]) -> Sample:
    names = tables.names()

    def name(label: int | None) -> str | None:
        return names[label] if label is not None and 0 <= label < len(names) else None

    labels = {
        f"{word}_name": name(row[column])
        for word, column in (
            *(("label", "label"), ("predicted", "predicted_label")),
            *(("refined", "refined_label"), ("review", "review_label")),
        )
    }
    return Sample.model_validate({**plain(row), **labels})


def _add_captions(
    browser: Browser, tables: RunTables, samples: Sequence[Sample], rows: Sequence[dict[str, Any]]
) -> None:
    for sample, caption in zip(samples, browser.captions(tables, rows), strict=True):
        if isinstance(caption, SampleGone | NoPicture):
            sample.problem = str(caption)
        else:
            sample.caption = caption
