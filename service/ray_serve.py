"""Run the application on Ray Serve: replicas, each with its own engine, scaled by the load.

Without RAY_ADDRESS a local Ray is started and ended with the server; with it, the cluster gets one more application, which is
removed with the server. Ray's usage statistics are off.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from fastapi import FastAPI

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system import import_ray, install_line

from .api.state import Service
from .app import create_app
from .logs import set_up_logging
from .settings import Settings

APPLICATION = "noisegate"


def run(settings: Settings) -> None:
    """Serve until a signal. Raises ConfigError for settings that Ray Serve cannot support."""
    ended = threading.Event()
    with deployed(settings) as url:
        for sig in (signal.SIGINT, signal.SIGTERM):  # after Ray's start, which installs its own handlers
            signal.signal(sig, lambda *_: ended.set())
        print(
            f"noisegate is ready on Ray Serve: {url}/ with {settings.min_replicas} to {settings.max_replicas} replicas",
            file=sys.stderr,
            flush=True,
        )
        ended.wait()


@contextmanager
def deployed(settings: Settings) -> Iterator[str]:
    """Deploy the application, yield its URL once the first replicas are warm, and remove it at the end."""
    check(settings)
    try:
        ray = import_ray()
        from ray import serve
    except ModuleNotFoundError as error:
        raise ConfigError(f"engine ray needs the package ray; {install_line('ray')}", "engine", "ray") from error
    own = "RAY_ADDRESS" not in os.environ
    ray.init(address="local" if own else None, logging_level="ERROR", **({"include_dashboard": False} if own else {}))
    try:
        serve.start(http_options={"host": settings.host, "port": settings.port})
        serve.run(application(settings), name=APPLICATION, route_prefix="/")
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        yield f"http://{host}:{settings.port}"
    finally:
        if own:
            serve.shutdown()
        else:
            serve.delete(APPLICATION)
        ray.shutdown()


def check(settings: Settings) -> None:
    """Raise ConfigError for settings that several replicas cannot share."""
    if settings.jobs_folder is not None:
        problem = "cannot be shared by replicas; leave it out with --engine ray, and serve jobs with --engine local"
        raise ConfigError.of("jobs_folder", settings.jobs_folder, problem)
    if settings.port == 0:
        raise ConfigError("port 0 cannot be used with --engine ray; use --port 8765", "port", 0)


def autoscaling(settings: Settings) -> dict[str, Any]:
    """Return Ray Serve's options for the number of replicas; each replica refuses requests beyond its own queue.

    >>> autoscaling(Settings(min_replicas=2, max_replicas=2))
    {'num_replicas': 2}
    >>> autoscaling(Settings(max_replicas=4))["autoscaling_config"]["max_replicas"]
    4
    """
    if settings.min_replicas == settings.max_replicas:
        return {"num_replicas": settings.min_replicas}
    within = {"min_replicas": settings.min_replicas, "max_replicas": settings.max_replicas}
    return {"autoscaling_config": {**within, "target_ongoing_requests": 8}}


def application(settings: Settings) -> Any:
    """Make the bound deployment; a replica takes a GPU if the cluster has one, unless device is cpu."""
    import ray
    from ray import serve

    gpus = 1 if ray.cluster_resources().get("GPU") and settings.device != "cpu" else 0

    def build() -> FastAPI:  # runs in the replica; Ray wants a plain function
        return warm_app(settings)

    @serve.ingress(build)
    class Replica:
        app: FastAPI

        async def check_health(self) -> None:
            """Raise if the model can never be loaded, so that Ray replaces the replica; a lost encoder restarts by itself."""
            if fatal := getattr(self.app.state.service.engine, "fatal", None):
                raise RuntimeError(fatal)

    deployment: Any = serve.deployment(
        Replica,
        name="scorer",
        max_ongoing_requests=4096,  # not the limit: the replica's own queue answers 429 at once
        graceful_shutdown_timeout_s=settings.drain_seconds,
        ray_actor_options={"num_cpus": 1, "num_gpus": gpus},
        **autoscaling(settings),
    )
    return deployment.bind()


def warm_app(settings: Settings) -> FastAPI:
    """Make the application; its start-up ends when the model is warm, so that Ray sends no request before."""
    set_up_logging(settings.log_format)
    app = create_app(settings)
    service: Service = app.state.service
    start = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(inner: FastAPI) -> AsyncIterator[Any]:
        async with start(inner) as state:
            while service.not_ready():
                if fatal := getattr(service.engine, "fatal", None):
                    raise ConfigError(fatal)
                await asyncio.sleep(0.05)
            yield state

    app.router.lifespan_context = lifespan
    return app
