"""The parts of a running service, which all routes share."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

from fastapi import Request

from noisegate.service.engine.items import Embedder
from noisegate.service.guards.fetch import Fetcher
from noisegate.service.jobs.runner import JobRunner
from noisegate.service.metrics import Metrics
from noisegate.service.runs.browse import Browser
from noisegate.service.runs.catalogue import RunRegistry
from noisegate.service.runs.class_sets import ClassSets
from noisegate.service.runs.scoring import ServiceScorer
from noisegate.service.settings import Settings


@dataclass
class Service:
    """The parts of a running service, at `app.state.service`. `closing` is set at shutdown and ends event streams."""

    settings: Settings
    engine: Embedder
    scorer: ServiceScorer
    runs: RunRegistry
    class_sets: ClassSets
    metrics: Metrics
    jobs: JobRunner | None = None
    browser: Browser = field(init=False)
    fetcher: Fetcher = field(init=False)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    failure: str | None = None  # why the service can never become ready

    def __post_init__(self) -> None:
        self.browser = Browser(self.settings.limits)
        self.fetcher = Fetcher.from_settings(self.settings)

    def not_ready(self) -> list[str]:
        """Reasons why the service is not ready; empty when it is."""
        reasons = ["shutting down"] if self.closing.is_set() else []
        reasons += self.engine.ready()
        if not reasons and not self.class_sets.ready():
            reasons.append(self.failure or "the class sets are being embedded")
        return reasons


def service_of(request: Request) -> Service:
    """Return the service that handles a request."""
    return cast(Service, request.app.state.service)
