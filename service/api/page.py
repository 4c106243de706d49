"""Serve the inspector page and the API's documentation: static files without secrets, kept in memory."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from noisegate.service.errors import ApiError
from noisegate.service.guards.middleware import HEADERS

router = APIRouter(include_in_schema=False)

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True)
class _File:
    """A file in memory with its ETag."""

    data: bytes
    kind: str
    tag: str


SWAGGER = ("swagger-ui-bundle.js", "swagger-ui.css")  # files of the package fastapi-offline
_DOCS_POLICY = HEADERS["Content-Security-Policy"].replace(
    "style-src 'self'", "style-src 'self' 'unsafe-inline'"
)  # Swagger UI sets inline styles


def _load() -> dict[str, _File]:
    swagger = files("fastapi_offline") / "static"
    found = {}
    for file in [*(files("noisegate.service") / "static").iterdir(), *(swagger / name for name in SWAGGER)]:
        kind = _TYPES.get(file.name.rpartition(".")[2])
        if kind:
            data = file.read_bytes()
            found[file.name] = _File(data, kind, f'"{hashlib.sha256(data).hexdigest()[:32]}"')
    return found


_FILES = _load()


@router.get("/")
async def page(request: Request) -> Response:
    """The page itself."""
    return _answer(request, "index.html")


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The API's documentation, where each route can be tried."""
    answer = _answer(request, "docs.html")
    answer.headers["Content-Security-Policy"] = _DOCS_POLICY
    return answer


@router.get("/static/{name}")
async def static(request: Request, name: Annotated[str, Path(max_length=100)]) -> Response:
    """A script, style or picture of the page."""
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    """Send the file, or 304 if the browser has this version; browsers ask every time."""
    file = _FILES.get(name)
    if file is None:
        raise ApiError(404, "not_found", "there is no such file")
    headers = {"ETag": file.tag, "Cache-Control": "no-cache"}
    if file.tag in request.headers.get("If-None-Match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.data, media_type=file.kind, headers=headers)
