"""From settings to a listening server and back to a quiet machine."""

import uvicorn

from .app import create_app
from .settings import Settings

__all__ = ["run"]


def run(settings: Settings) -> None:
    """Serve until a signal ends it."""
    uvicorn.run(create_app(settings), host=settings.host, port=settings.port, log_config=None)
