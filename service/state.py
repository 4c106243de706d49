"""What the routes share: one `Service` at `request.app.state.service`."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

from fastapi import Request

from .browse import Browser
from .items import Engine
from .settings import Settings

__all__ = ["Service", "service_of"]


@dataclass
class Service:
    """The parts of a running service. `closing` is set when shutdown begins: streams of events end then."""

    settings: Settings
    engine: Engine
    scorer: Any = None
    runs: Any = None
    class_sets: Any = None
    jobs: Any = None
    metrics: Any = None
    browser: Browser = field(init=False)
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.browser = Browser(self.settings.limits)


def service_of(request: Request) -> Service:
    """The service behind a request."""
    return cast(Service, request.app.state.service)
