"""An application in this process, asked over HTTP without a socket."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
from fastapi import FastAPI

from noisegate.pipeline.pairs.beta import Beta
from noisegate.service.api.state import Service
from noisegate.service.app import create_app
from noisegate.service.engine.items import Embedder
from noisegate.service.settings import Settings, load_settings
from tests.service.fakes import FakeEngine

T = TypeVar("T")
COLOURS = "python:tests.fakes:ColourModel"
BETA = Beta(0.4, "fixed")


def settings(**given: Any) -> Settings:
    return load_settings(**{"model": COLOURS, "beta": "fixed:0.4", "decode_workers": 1, "hang_seconds": 60, **given})


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app, while it lives and once it is ready."""
    async with app.router.lifespan_context(app):
        service: Service = app.state.service
        async with asyncio.timeout(60):
            while service.not_ready() and not isinstance(service.engine, FakeEngine):
                assert getattr(service.engine, "fatal", None) is None, service.engine.fatal
                await asyncio.sleep(0.02)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


def ask(work: Callable[[httpx.AsyncClient, Service], Awaitable[T]], engine: Embedder | None = None, **given: Any) -> T:
    """What `work` finds out from a service with these settings; on the fake engine unless another is given."""

    async def run() -> T:
        app = create_app(settings(**given), engine or FakeEngine())
        async with serving(app) as client:
            return await work(client, app.state.service)

    return asyncio.run(run())
