"""Requests and answers of scoring, as the OpenAPI schema shows them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from noisegate.service.runs.judging import Neighbour, Predicted

MAX_KEY_CHARS = 1024  # the answer repeats the key; keys in shards are paths, which are shorter


def _text(value: Any) -> str:
    """Accept any string, even with lone surrogates: a bad caption is a status of its item and does not fail the request."""
    if not isinstance(value, str):
        raise ValueError("should be a string")
    return value


def _key(value: Any) -> str:
    """Check that a string can be returned in the answer: valid UTF-8 and not too long."""
    if not isinstance(value, str) or any("\ud800" <= sign <= "\udfff" for sign in value[:MAX_KEY_CHARS]):
        raise ValueError("should be a string without lone surrogates")
    if len(value) > MAX_KEY_CHARS:
        raise ValueError(f"should have at most {MAX_KEY_CHARS} characters")
    return value


def _label(value: Any) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str) or len(str(value)) > MAX_KEY_CHARS:
        raise ValueError("should be the number or the name of a class")
    return value


Text = Annotated[str, PlainValidator(_text), WithJsonSchema({"type": "string"})]
Key = Annotated[str, PlainValidator(_key), WithJsonSchema({"type": "string", "maxLength": MAX_KEY_CHARS})]
Label = Annotated[
    int | str, PlainValidator(_label), WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]})
]
Image = Annotated[
    str,
    PlainValidator(_text),
    WithJsonSchema({"type": "string", "description": "Base64, a data URI, or part:NAME of a multipart request."}),
]
DOT = "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAFklEQVR42mP8z0AaYGIY1TCqYdhqAABALgEfFO4+AgAAAABJRU5ErkJggg=="


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Pair(_Strict):
    """An image with its caption, its label, or both."""

    image: Image | None = None
    image_url: Text | None = Field(None, description="Only where the server allows hosts to fetch from.")
    text: Text | None = None
    label: Label | None = Field(
        None,
        description="Class number or name; needs `classes` or `against`, else the flag `label_not_judged` says so.",
    )
    key: Key | None = Field(None, description="Comes back with the result; names the sample where `against` knows it.")


class ScoreRequest(_Strict):
    """Samples to score, and what to compare them with besides their captions."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"pairs": [{"image": DOT, "text": "a red square"}]},
                {"pairs": [{"image": f"data:image/png;base64,{DOT}", "text": "a red square", "key": "000123"}]},
            ]
        }
    )
    pairs: list[Pair]
    classes: Text | None = Field(None, description="A registered class set: labels are judged by its text anchors.")
    against: Text | None = Field(None, description="A finished run: its neighbours of each sample judge it.")


class Result(BaseModel):
    """One row, as the weight table would have it; null for what was not asked or cannot be said."""

    key: str | None = None
    status: str = Field(
        description="ok, or why there is no score: no_image, bad_image, no_text, bad_text, too_large, …"
    )
    error: str | None = None
    similarity: float | None = Field(None, description="Cosine of image and caption.")
    osa_weight: float | None = Field(None, description="x² (1 - x) with x = similarity - β, 0 where x <= 0.")
    clean_probability: float | None = Field(
        None,
        description="Calibrated chance that the pair is right, by the score that `calibration.score` of the scorer names.",
    )
    clean: bool | None = None
    label: int | None = None
    knn_consistency: float | None = None
    anchor_consistency: float | None = None
    consistency: float | None = None
    clean_tango: bool | None = None
    refined_label: int | None = None
    refined_confidence: float | None = None
    refined_name: str | None = None
    neighbourhood: float | None = None
    pair_quality: float | None = Field(
        None,
        description="Cosine minus what picture and caption give to the pairs of the run that the scorer comes from.",
    )
    neighbours: list[Neighbour] | None = None
    predicted: list[Predicted] | None = Field(None, description="The likeliest classes of the class set.")
    flags: list[str] = Field(
        [],
        description="no_text, text_truncated, no_neighbours, duplicate_of:KEY, …; label_not_judged: neither classes nor "
        "against was given.",
    )


class BetaFacts(BaseModel):
    """β, the cosine the model gives to things that have nothing to do with one another, and how it was found."""

    value: float
    mode: str
    reason: str
    std: float | None
    count: int
    seed: int
    interval: tuple[float, float] | None


class ScoreAnswer(BaseModel):
    """Results in the order of the pairs."""

    results: list[Result]
    beta: BetaFacts | None
    scorer: str = Field(description="Sixteen hex digits that name the scorer; equal ones give comparable scores.")
    request_id: str | None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "results": [
                        {"status": "ok", "similarity": 0.31, "osa_weight": 0.0082, "clean_probability": 0.97, "clean": True}
                    ],
                    "beta": {"value": 0.215, "mode": "random_inputs", "reason": "", "std": 0.02, "count": 65536, "seed": 0,
                             "interval": [0.213, 0.217]},
                    "scorer": "0f3a9c1e5b7d2468",
                    "request_id": "7f6c2f0b9a404c0e8f61f1d7a3b5c9d2",
                }
            ]
        }
    )  # fmt: skip


class EmbedRequest(_Strict):
    """Images and texts, each on its own."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"images": [DOT], "texts": ["a red square"]}]})
    images: list[Image] = []
    texts: list[Text] = []
    encoding: Literal["float", "base64"] = Field(
        "float", description="Numbers, or base64 of little-endian float32, which is smaller and faster."
    )


class EmbeddingRow(BaseModel):
    """A unit vector, or the reason why there is none."""

    status: str
    error: str | None = None
    embedding: list[float] | str | None = None


class EmbedAnswer(BaseModel):
    """Rows in the order of the request."""

    images: list[EmbeddingRow]
    texts: list[EmbeddingRow]
    dimensions: int
    scorer: str
    request_id: str | None


class ScorerAnswer(BaseModel):
    """What scores: model, β, calibration, and what may be asked of it."""

    scorer: str
    identity: dict[str, Any]
    dimensions: int
    beta: BetaFacts | None
    calibration: dict[str, Any] | None
    cut: str = Field(description="What `clean` follows: osa (similarity above β) or probability (above 0.5).")
    run: str | None
    limits: dict[str, int]
    classes: list[str]
    runs: list[str]
    url_hosts: bool
    jobs: bool


class ErrorBody(BaseModel):
    code: str
    message: str
    request_id: str | None


class Problem(BaseModel):
    """Every answer that is no success."""

    error: ErrorBody


MEANING = {
    400: "`bad_request`: the body is no JSON or no multipart form",
    401: "`unauthorized`: the key is missing or wrong",
    404: "`unknown_run` or `unknown_classes`",
    408: "`slow_body`: the body did not come in time",
    409: "the run cannot be compared with",
    413: "`too_large`: the body is over max_body_bytes; `too_many_items`; `too_many_pixels`: over max_request_pixels",
    415: "`unsupported_media_type`: send application/json or multipart/form-data",
    422: "`invalid_request`: the body does not fit the schema; the message names the place",
    429: "`overloaded`: the queue is full; come back after Retry-After seconds",
    503: "`not_ready`, `draining` or `worker_lost`: the same works later",
    504: "`timeout`: admitted, but not done in request_timeout",
}


def problems(*statuses: int, meaning: Mapping[int, str] = MEANING) -> dict[int | str, dict[str, Any]]:
    """Make the documented error answers of a route; `meaning` describes each status."""
    return {status: {"model": Problem, "description": meaning[status]} for status in statuses}
