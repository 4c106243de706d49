"""POST /v1/embed: unit embeddings of images and texts, each on its own."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from noisegate.service.guards.connection import while_connected

from .bodies import encoded_row, read_embed
from .schemas import EmbedAnswer, problems
from .state import service_of

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["scores"])

BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/EmbedRequest"}}},
    }
}


@router.post(
    "/embed",
    response_model=EmbedAnswer,
    openapi_extra=BODY,
    responses=problems(400, 401, 408, 413, 415, 422, 429, 503, 504),
)
async def embed(request: Request) -> JSONResponse:
    """Embed images and texts with the service's model; a bad one has a status and no embedding."""
    service = service_of(request)
    wanted, items = await read_embed(request, service.settings)
    found = await while_connected(request, service.engine.embed(items))
    split = len(wanted.images)
    parts = [(e.image_status, e.image_error, e.image) for e in found[:split]]
    parts += [(e.text_status, e.text_error, e.text) for e in found[split:]]
    rows: list[dict[str, Any]] = []
    for status, error, row in parts:
        service.metrics.items.labels(status).inc()
        embedding = None if row is None else encoded_row(row, wanted.encoding)
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
