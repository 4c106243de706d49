"""What both clients know: where the service is, how patient to be, and how a request for it looks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx

from noisegate.pipeline.errors import ConfigError

from .pairs import Batch, Sizes
from .retry import Flow, Retry, ask
from .watch import Watch

__all__ = ["Calls", "connection"]


class Calls:
    """Builds requests, and the flow that sends each of them until it is answered."""

    _http: httpx.Client | httpx.AsyncClient

    def __init__(self, retry: Retry, batch_items: int, in_flight: int, draw: Callable[[], float]) -> None:
        if in_flight < 1:
            raise ConfigError(f"in_flight {in_flight} sends nothing; use 4")
        self._retry, self._draw, self._in_flight = retry, draw, in_flight
        self._wanted = Sizes(batch_items)
        self._sizes: Sizes | None = None

    def _get(self, path: str) -> Flow:
        return ask(self._http.build_request("GET", path), self._retry, self._draw)

    def _post(self, path: str, body: Any) -> Flow:
        return ask(self._http.build_request("POST", path, json=body), self._retry, self._draw)

    def _forget_job(self, job: str) -> Flow:
        return ask(self._http.build_request("DELETE", job_path(job)), self._retry, self._draw, "unknown_job")

    def _post_batch(self, path: str, batch: Batch) -> Flow:
        request = self._http.build_request(
            "POST", path, content=batch.body, headers={"Content-Type": "application/json"}
        )
        return ask(request, self._retry, self._draw)

    def _start_job(self, shards: str | Sequence[str], name: str, settings: Mapping[str, Any]) -> Flow:
        body = {"shards": [shards] if isinstance(shards, str) else list(shards), "name": name, **settings}
        return self._post("v1/jobs", body)

    def _measured(self, scorer: Mapping[str, Any]) -> Sizes:
        """The service's limits, from what /v1/scorer says."""
        limits = scorer.get("limits")
        self._sizes = self._wanted.within(limits if isinstance(limits, Mapping) else {})
        return self._sizes

    def _events(self, job: str, watch: Watch) -> httpx.Request:
        timeout = httpx.Timeout(self._http.timeout.connect, read=watch.silence)
        headers = {"Accept": "text/event-stream"} | watch.headers()
        return self._http.build_request("GET", f"{job_path(job)}/events", headers=headers, timeout=timeout)


def job_path(job: str) -> str:
    """The path of a job, whatever its id holds."""
    return f"v1/jobs/{quote(job, safe='')}"


def asked(classes: str | None, against: str | None) -> dict[str, str]:
    """What /v1/score is to compare with."""
    return {name: value for name, value in (("classes", classes), ("against", against)) if value is not None}


def connection(url: str, api_key: str | None, timeout: float) -> dict[str, Any]:
    """How httpx is to be set up; the key goes to this service only, since no redirect is followed."""
    if not url.lower().startswith(("http://", "https://")):
        raise ConfigError(f"url {url!r} is no address of a service; use one such as http://127.0.0.1:8765")
    try:
        base = httpx.URL(url if url.endswith("/") else f"{url}/")
    except httpx.InvalidURL as error:
        raise ConfigError(f"url {url!r}: {error}; use one such as http://127.0.0.1:8765") from error
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return {"base_url": base, "headers": headers, "timeout": httpx.Timeout(timeout, connect=min(timeout, 10.0))}
