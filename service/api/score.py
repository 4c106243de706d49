"""POST /v1/score, POST /v1/embed and GET /v1/scorer: items go to the engine, its embeddings come back as results."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from noisegate.pipeline.runs import TRUNCATED
from noisegate.service.engine.items import Embedded
from noisegate.service.guards.clients import client_of
from noisegate.service.guards.connection import while_connected
from noisegate.service.guards.fetch import fill_pictures
from noisegate.service.runs.against import FinishedRun
from noisegate.service.runs.class_sets import RegisteredClasses
from noisegate.service.runs.judging import Judged

from .bodies import ScoreBody, encode_row, read_embed, read_score
from .schemas import EmbedAnswer, ScoreAnswer, ScorerAnswer, ScoreRequest, problems
from .state import Service, service_of

router = APIRouter(prefix="/v1", tags=["scores"])

_REF = {"$ref": "#/components/schemas/ScoreRequest"}
SCORE_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _REF},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "image": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "description": "Files of pictures.",
                        },
                        "text": {
                            "type": "array",
                            "items": {"type": "string"},
                            "description": "As many captions, in the same order; none where only labels are judged.",
                        },
                        "classes": {"type": "string", "description": "As in ScoreRequest."},
                        "against": {"type": "string", "description": "As in ScoreRequest."},
                        "request": {
                            "type": "string",
                            "contentMediaType": "application/json",
                            "description": "A ScoreRequest whose images read part:NAME, in place of all other fields.",
                        },
                    },
                }
            },
        },
    }
}


@router.post(
    "/score",
    response_model=ScoreAnswer,
    openapi_extra=SCORE_BODY,
    responses=problems(400, 401, 404, 408, 409, 413, 415, 422, 429, 503, 504),
)
async def score(request: Request) -> JSONResponse:
    """Score image-text pairs, in order. A bad item is a result with a status; it never fails the others."""
    service = service_of(request)
    body = await read_score(request, service.settings)
    answer = await while_connected(request, _score(service, body, client_of(request.scope)))
    answer["request_id"] = getattr(request.state, "request_id", None)
    return JSONResponse(answer)


async def _score(service: Service, body: ScoreBody, client: str) -> dict[str, Any]:
    wanted = body.request
    judge = _LabelJudge(service, wanted)
    await judge.prepare()
    async with service.fetcher.pictures(body.urls) as pictures:
        embedded = await service.engine.embed(fill_pictures(body.items, pictures), client)
    scores = await asyncio.to_thread(service.scorer.score, embedded)  # in a thread, so that others need not wait
    results = pair_results(wanted, embedded, scores, judge.is_needed)
    if judge.is_needed:
        judged = await asyncio.to_thread(judge.judge, embedded)
        for result, verdict in zip(results, judged, strict=True):
            _add_verdict(result, verdict)
    for result in results:
        service.metrics.items.labels(result["status"]).inc()
    beta = service.scorer.beta
    return {
        "results": results,
        "beta": beta.to_dict() if beta else None,
        "scorer": service.engine.identity.digest,
    }


def pair_results(
    wanted: ScoreRequest, embedded: Sequence[Embedded], scores: Sequence[Mapping[str, Any]], labels: bool
) -> list[dict[str, Any]]:
    """Make one result per pair. With labels to judge, a missing caption is only a flag, as in a run with both tasks."""
    results = []
    for pair, item, scored in zip(wanted.pairs, embedded, scores, strict=True):
        only_text = labels and item.image_status == "ok" and item.status != "ok"
        results.append(
            {
                "key": pair.key,
                "status": "ok" if only_text else item.status,
                "error": None if only_text else item.error,
                "similarity": item.similarity,
                **scored,
                **_JUDGED,
                "neighbours": None,
                "predicted": None,
                "flags": [
                    *([item.text_status] if only_text else []),
                    *([TRUNCATED] if item.text_truncated else []),
                    *(["label_not_judged"] if pair.label is not None and not labels else []),
                ],
            }
        )
    return results


_JUDGED: dict[str, Any] = dict.fromkeys(
    (
        "label", "knn_consistency", "anchor_consistency", "consistency", "clean_tango", "refined_label",
        "refined_confidence", "refined_name", "neighbourhood",
    )
)  # fmt: skip


def _add_verdict(result: dict[str, Any], verdict: Judged) -> None:
    if verdict.status != "ok" and result["status"] == "ok":
        result["status"], result["error"] = verdict.status, verdict.error
    result.update({name: getattr(verdict, name) for name in _JUDGED})
    result["neighbours"] = [neighbour.model_dump() for neighbour in verdict.neighbours]
    result["predicted"] = [predicted.model_dump() for predicted in verdict.predicted]
    result["flags"] += verdict.flags


class _LabelJudge:
    """Judge the labels of a request by the class set and the finished run that it names."""

    def __init__(self, service: Service, wanted: ScoreRequest) -> None:
        self._service, self._wanted = service, wanted
        self.is_needed = wanted.classes is not None or wanted.against is not None
        self._classes: RegisteredClasses | None = None
        self._run: FinishedRun | None = None

    async def prepare(self) -> None:
        """Find class set and run before anything is embedded: an unknown name must not take places in the queue."""
        if self._wanted.classes is not None:
            self._classes = self._service.class_sets.get(self._wanted.classes)
        if self._wanted.against is not None:
            self._run = await asyncio.to_thread(self._service.runs.load, self._wanted.against)
            self._run.check_scorer(self._service.engine.identity)

    def judge(self, embedded: Sequence[Embedded]) -> list[Judged]:
        width = self._service.engine.dimensions
        images, texts = _rows([e.image for e in embedded], width), _rows([e.text for e in embedded], width)
        labels = [pair.label for pair in self._wanted.pairs]
        judged = self._classes.judge(images, labels) if self._classes is not None else None
        if self._run is None:
            return judged or []
        keys, digests = [pair.key for pair in self._wanted.pairs], [e.image_sha256 for e in embedded]
        anchors = self._classes.anchors if self._classes is not None else None
        by_run = self._run.judge(images, texts, labels, digests, keys, anchors)
        if judged is None:
            return by_run
        if not self._run.classes:  # the run has no labels: the class set judges them
            return [
                replace(
                    by_text,
                    neighbours=near.neighbours,
                    neighbourhood=near.neighbourhood,
                    flags=[*by_text.flags, *near.flags],
                )
                for by_text, near in zip(judged, by_run, strict=True)
            ]
        return [replace(v, predicted=by_text.predicted) for v, by_text in zip(by_run, judged, strict=True)]


def _rows(rows: Sequence[Any], width: int) -> Any:
    zero = np.zeros(width, np.float32)
    return np.stack([zero if row is None else row for row in rows]) if rows else np.zeros((0, width), np.float32)


@router.get("/scorer", response_model=ScorerAnswer, responses=problems(401, 503))
async def scorer(request: Request) -> dict[str, Any]:
    """What scores here: the model's identity, β with its interval, the calibration, limits, class sets and runs."""
    service = service_of(request)
    settings = service.settings
    limits = {
        name: getattr(settings, name)
        for name in (
            "max_items", "max_body_bytes", "max_request_pixels", "max_pixels", "max_image_bytes", "max_text_chars",
            "max_aspect", "queue_items",
        )
    }  # fmt: skip
    identity = service.engine.identity
    return {
        **service.scorer.facts(),
        "identity": identity.to_dict(),
        "scorer": identity.digest,
        "dimensions": service.engine.dimensions,
        "limits": limits,
        "classes": service.class_sets.names(),
        "runs": service.runs.names(),
        "url_hosts": bool(settings.url_hosts),
        "jobs": settings.jobs_folder is not None,
    }


EMBED_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/EmbedRequest"}}},
    }
}


@router.post(
    "/embed",
    response_model=EmbedAnswer,
    openapi_extra=EMBED_BODY,
    responses=problems(400, 401, 408, 413, 415, 422, 429, 503, 504),
)
async def embed(request: Request) -> JSONResponse:
    """Embed images and texts with the service's model; a bad one has a status and no embedding."""
    service = service_of(request)
    wanted, items = await read_embed(request, service.settings)
    embedded = await while_connected(request, service.engine.embed(items, client_of(request.scope)))
    split = len(wanted.images)
    parts = [(e.image_status, e.image_error, e.image) for e in embedded[:split]]
    parts += [(e.text_status, e.text_error, e.text) for e in embedded[split:]]
    rows: list[dict[str, Any]] = []
    for status, error, row in parts:
        service.metrics.items.labels(status).inc()
        embedding = None if row is None else encode_row(row, wanted.encoding)
        rows.append({"status": status, "error": error, "embedding": embedding})
    return JSONResponse(
        {
            "images": rows[:split],
            "texts": rows[split:],
            "dimensions": service.engine.dimensions,
            "scorer": service.engine.identity.digest,
            "request_id": getattr(request.state, "request_id", None),
        }
    )
