"""People's marks on the samples of a run: put one, take it back, list them, and how often the tool agreed."""

import time
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from noisegate.pipeline.runs import Mark
from noisegate.service.errors import ApiError

from .schemas import Key, problems
from .tables import Tables, api_errors, find_row

router = APIRouter(prefix="/v1/runs", tags=["reviews"])
Index = Annotated[int, Path(ge=0, lt=2**31)]

_errors = partial(
    problems,
    meaning={
        401: "`unauthorized`: the key is missing or wrong",
        404: "`unknown_run` or `unknown_sample`",
        409: "`run_unusable`: the run is not finished, or its tables are damaged; `marks_unusable`: marks cannot be "
        "kept beside it; `sample_changed`: the sample is not the one that was seen",
        422: "`invalid_request`: the mark makes no sense for this sample",
    },
)


class NewMark(BaseModel):
    """A mark for a sample. With digests it only counts if the sample is still the one that was seen."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"mark": "keep", "reviewer": "Ada"}]})
    mark: Literal["keep", "drop", "relabel"]
    label: int | None = Field(None, ge=0, lt=2**31, description="the right class, for relabel", strict=True)
    reviewer: Key | None = Field(None, description="at most 100 characters")
    image_sha256: str | None = Field(None, max_length=64, description="of the picture that was seen, in hex")
    text_sha256: str | None = Field(None, max_length=64, description="of the caption that was seen, in hex")


class MarkAnswer(BaseModel):
    """A mark that counts."""

    shard: str
    index: int
    key: str
    mark: Literal["keep", "drop", "relabel"]
    label: int | None
    reviewer: str | None
    at: float = Field(description="seconds since 1970, UTC")


class ShareAnswer(BaseModel):
    """`hits` of `of`, with the 95 % interval of the share (Wilson); null where there is nothing to count."""

    hits: int
    of: int
    interval: tuple[float, float] | None


class ReviewAnswer(BaseModel):
    """Marks, the last ones first, and how often the tool agreed with them.

    `agreed` is over all marks and depends on what was looked at; `random` is over the random sample and holds for the run.
    """

    counts: dict[str, int] = Field(description="marks that count, by kind")
    stale: int = Field(description="marks of samples that have changed or are gone")
    agreed: ShareAnswer
    random: ShareAnswer
    kept_right: ShareAnswer = Field(description="of the random sample: kept by the tool, and by people")
    dropped_right: ShareAnswer = Field(description="of the random sample: dropped by the tool, and not kept by people")
    total: int
    marks: list[MarkAnswer]


@router.get(
    "/{name}/reviews", response_model=ReviewAnswer, responses=_errors(401, 404, 409, 422), summary="Marks and agreement"
)
def reviews(
    tables: Tables,
    offset: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    limit: Annotated[int, Query(ge=0, le=1000)] = 100,
) -> ReviewAnswer:
    """People's marks, and in how many of them the tool agreed."""
    with api_errors():
        figures = tables.review()
        marks = tables.run.reviews.read()[::-1] if limit else []
    shown = [_answer(mark) for mark in marks[offset : offset + limit]]
    total = sum(figures.marks.values()) + figures.stale
    return ReviewAnswer.model_validate({**figures.to_dict(), "counts": figures.marks, "total": total, "marks": shown})


@router.put(
    "/{name}/samples/{shard}/{index}/review",
    response_model=MarkAnswer,
    responses=_errors(401, 404, 409, 422),
    summary="Mark a sample",
)
def mark(shard: str, index: Index, body: NewMark, tables: Tables) -> dict[str, Any]:
    """Keep, drop or relabel a sample. The last mark counts; the tables stay as they are."""
    with api_errors():
        row = find_row(tables, shard, index)
        for name in ("image_sha256", "text_sha256"):
            seen, stored = getattr(body, name), row[name]
            if seen is not None and seen != (stored or b"").hex():
                raise ApiError(409, "sample_changed", "the sample is not the one that was seen; look at it again")
        if body.reviewer is not None and len(body.reviewer) > 100:
            raise ApiError(422, "invalid_request", "reviewer: at most 100 characters")
        new = Mark.of_row(row, body.mark, body.label, body.reviewer or None, time.time(), len(tables.names()))
        tables.run.reviews.write([new])
    return _answer(new)


@router.delete(
    "/{name}/samples/{shard}/{index}/review",
    status_code=204,
    responses=_errors(401, 404, 409, 422),
    summary="Take a mark back",
)
def take_back(
    shard: str, index: Index, tables: Tables, reviewer: Annotated[str | None, Query(max_length=100)] = None
) -> None:
    """The sample has no mark any more; nothing happens where it has none."""
    with api_errors():
        row = find_row(tables, shard, index)
        if row["review"] is not None:
            tables.run.reviews.write([Mark.of_row(row, None, reviewer=reviewer or None)])


def _answer(mark: Mark) -> dict[str, Any]:
    return {name: getattr(mark, name) for name in MarkAnswer.model_fields}
