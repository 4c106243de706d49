"""The ASGI application: routes, middleware, and the life of what is behind them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from .errors import add_handlers
from .items import Engine
from .settings import Settings
from .state import Service

__all__ = ["create_app"]


def create_app(settings: Settings, engine: Engine | None = None) -> FastAPI:
    """The service for these settings; `engine` replaces the one they ask for, in tests."""
    service = Service(settings, engine or _engine(settings))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.engine.start()
        try:
            yield
        finally:
            service.closing.set()
            await service.engine.stop()

    app = FastAPI(
        title="noisegate",
        version=version("noisegate"),
        description="How far an image and a text belong together, from the scorer that annotated the corpus.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.service = service
    add_handlers(app)
    return app


def _engine(settings: Settings) -> Engine:
    from .engine import LocalEngine

    return LocalEngine(settings)
