"""The product as a user meets it: the command line, the HTTP application, and files. All imports of its code are here."""

import asyncio
import contextlib
import io
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from noisegate import AsyncClient, WeightedShards, osa_weight, read_table, weighted
from noisegate.pipeline.cli.commands import app, main
from noisegate.service.app import create_app
from noisegate.service.settings import load_settings

__all__ = [
    "Done",
    "WeightedShards",
    "commands",
    "noisegate",
    "osa_weight",
    "read_table",
    "serve",
    "weighted",
]

READY_SECONDS = 60  # chosen: many times what loading the embedded model takes


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


def commands() -> list[str]:
    """The names of all commands."""
    return sorted(str(command.name) for command in app.registered_commands)


def noisegate(*words: object, stdin: str = "") -> Done:
    """Run a command in this process, in the current folder. A crash is code -1 with its exception as text."""
    out, err, before = io.StringIO(), io.StringIO(), (sys.argv, sys.stdin)
    own = sys.modules["__main__"]
    package, own.__package__ = own.__package__, ""  # else usage texts say `python -m benchmarks.fingerprint`
    sys.argv, sys.stdin, code = ["noisegate", *map(str, words)], io.StringIO(stdin), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except Exception:
            code = -1
            traceback.print_exc(limit=0)
        finally:
            (sys.argv, sys.stdin), own.__package__ = before, package
    return Done(code, out.getvalue(), err.getvalue())


@asynccontextmanager
async def serve(**settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, AsyncClient]]:
    """Answer requests by an application in this process, once it is ready: to plain HTTP and to the product's client."""
    served = create_app(load_settings(**settings))
    transport = httpx.ASGITransport(app=served, raise_app_exceptions=False)
    async with (
        served.router.lifespan_context(served),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        AsyncClient("http://localhost", transport=transport, retries=0) as scorer,
    ):
        async with asyncio.timeout(READY_SECONDS):
            while (await client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.05)
        yield client, scorer
