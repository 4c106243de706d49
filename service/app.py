"""Build the ASGI application of scorer, engine, runs, jobs, routes and middleware, and start and stop its parts."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI

from noisegate.pipeline.errors import ConfigError, LockedError, NoisegateError
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.runs import RunFolder, folder_lock

from .api import health, jobs, page, reviews, score, tables
from .api.schemas import EmbedRequest, ScoreRequest
from .api.state import Service
from .engine.embedder import LocalEmbedder
from .engine.encoder_process import ModelReady
from .engine.items import Embedder
from .errors import ApiError, add_handlers
from .guards.middleware import BodyLimit, Keys, RequireKey, SecurityHeaders
from .guards.same_site import SameSite
from .jobs.roots import Roots
from .jobs.runner import JobRunner
from .jobs.store import STATES, JobStore
from .logs import RequestLog
from .metrics import Metrics
from .runs.catalogue import RunRegistry
from .runs.class_sets import ClassSets
from .runs.scoring import plan_scorer
from .settings import Settings

JOBS_RECORD = "_jobs.sqlite"  # no job can have this name

log = logging.getLogger("noisegate.app")


def create_app(settings: Settings, engine: Embedder | None = None) -> FastAPI:
    """Build the application; tests pass their own `engine`. Raise NoisegateError for settings that cannot work."""
    service = _service(settings, engine)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.engine.start()
        if service.jobs is not None:
            await service.jobs.start()
        warming = asyncio.create_task(_embed_classes(service))
        try:
            yield
        finally:
            service.closing.set()
            warming.cancel()
            if service.jobs is not None:
                await service.jobs.stop()
            await service.engine.stop()

    app = FastAPI(
        title="noisegate",
        version=version("noisegate"),
        description="How well a picture and a text belong together, by the scorer that annotated the corpus.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    for module in (score, jobs, tables, reviews, health, page):
        app.include_router(module.router)
    add_handlers(app)
    # the middleware added last is the outermost
    app.add_middleware(
        BodyLimit, most=settings.max_body_bytes, seconds=settings.body_timeout, together=settings.queue_bytes
    )
    app.add_middleware(RequireKey, keys=Keys(settings.api_keys))
    app.add_middleware(SameSite, bound=settings.host, allowed=settings.allowed_hosts)
    app.add_middleware(RequestLog, metrics=service.metrics)
    app.add_middleware(SecurityHeaders)
    _describe(app, bool(settings.api_keys))
    return app


def _service(settings: Settings, engine: Embedder | None) -> Service:
    copies = {name: RunFolder.to_read(path, embeddings=True).path for name, path in settings.runs.items()}
    settings = settings.model_copy(update={"runs": copies})  # runs in stores become local copies
    for name, path in settings.runs.items():
        if not path.is_dir():
            raise ConfigError.of("runs", f"{name}={path}", "is not a folder; give one that noisegate annotate wrote")
    scorer, metrics = plan_scorer(settings), Metrics()

    def complete(ready: ModelReady) -> None:
        scorer.complete(ready.identity, ready.beta)

    if engine is None:
        engine = LocalEmbedder(settings, scorer.spec, measure=scorer.measure, metrics=metrics, on_ready=complete)
    classes = ClassSets(settings.classes)
    runner = _open_jobs(settings, scorer.spec, classes, metrics)
    runs = RunRegistry(settings.runs, runner.outputs if runner is not None else dict)
    return Service(settings, engine, scorer, runs, classes, metrics, runner)


def _open_jobs(settings: Settings, spec: ModelSpec, classes: ClassSets, metrics: Metrics) -> JobRunner | None:
    """Make the runner of background jobs, None without `jobs_folder`; lock the folder until the runner stops."""
    folder = settings.jobs_folder
    if folder is None:
        return None
    roots = Roots.of(settings.roots)
    with ExitStack() as stack:
        try:
            stack.enter_context(folder_lock(folder))
            store = JobStore(folder / JOBS_RECORD)
        except LockedError as error:
            problem = f"jobs_folder {folder} is used by another server; give each its own"
            raise ConfigError(problem, "jobs_folder", folder) from error
        except OSError as error:
            problem = f"jobs_folder {folder} cannot be written ({error.strerror}); use another folder"
            raise ConfigError(problem, "jobs_folder", folder) from error
        stack.callback(store.close)
        runner = JobRunner(
            store,
            folder,
            replace(spec, device=settings.device),
            roots,
            classes.find_for_job,
            parallel=settings.parallel_jobs,
            workers=settings.decode_workers,
            on_stop=stack.pop_all().close,
        )
    metrics.gauges("jobs", "Jobs by state.", "state", {state: partial(runner.count, state) for state in STATES})
    metrics.gauge("jobs_bytes_left", "Bytes of shards that running jobs have not read yet.", runner.bytes_left)
    return runner


async def _embed_classes(service: Service) -> None:
    """Embed the class sets when the engine is ready; start over if the engine fails meanwhile."""
    while not service.class_sets.ready():
        while service.engine.ready():
            await asyncio.sleep(0.1)
        try:
            await service.class_sets.warm_up(service.engine.embed_texts)
        except ApiError as error:
            log.warning("class sets not embedded yet", extra={"why": error.message})
        except NoisegateError as error:
            service.failure = str(error)
            return


def _describe(app: FastAPI, with_keys: bool) -> None:
    """Add to the OpenAPI schema what FastAPI cannot see: bodies that routes parse themselves, and the key."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = plain()
            parts = schema.setdefault("components", {})
            for model in (ScoreRequest, EmbedRequest):
                body = model.model_json_schema(ref_template="#/components/schemas/{model}")
                parts["schemas"] |= body.pop("$defs", {})
                parts["schemas"][model.__name__] = body
            if with_keys:
                parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
                schema["security"] = [{"key": []}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
