"""GET /healthz, /readyz and /metrics, for monitoring."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from .state import service_of

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """The process answers."""

    status: str = "ok"


class Readiness(BaseModel):
    """Whether to send requests here; `reasons` say why not."""

    ready: bool
    reasons: list[str]


@router.get("/healthz")
async def healthz() -> Health:
    """Is the process alive?"""
    return Health()


@router.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness, "description": "Not ready."}})
async def readyz(request: Request) -> JSONResponse:
    """Is the model warm, are the workers alive, and is the queue below its mark?"""
    reasons = service_of(request).not_ready()
    return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    return Response(service_of(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
