"""The two clients, which send and wait; requests.py builds requests, decides when to retry, and interprets outcomes."""

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, closing
from threading import Event as Flag
from typing import Any, Self, cast

import httpx

from .answers import Embeddings, Job, ScorerFacts, Scores, ServiceError, as_list
from .batches import (
    AnyPair,
    BatchSizes,
    Progress,
    RequestBatch,
    ScoreGatherer,
    gather_embeddings,
    image_batches,
    pair_batches,
    text_batches,
)
from .job_events import Event, JobWatch
from .requests import ClientBase, Flow, Outcome, Retry, comparison, connection_options, job_path

Answered = tuple[RequestBatch, dict[str, Any]]


class Client(ClientBase):
    """A connection to a service; close it, or use it in a `with`. Safe to share between threads.

    `timeout` is in seconds for one answer. Requests that were refused for now (429, 503) or lost with their connection are sent
    again up to `retries` times, after the time that the service asks for; an answer to another request of this client restarts
    the count. Large lists go out in requests of at most `batch_items`, `in_flight` of them at a time.
    """

    _http: httpx.Client

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout: float = 90.0,
        retries: int = 5,
        *,
        batch_items: int = 64,
        in_flight: int = 4,
        sleep: Callable[[float], object] = time.sleep,
        draw: Callable[[], float] = random.random,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(Retry(retries), batch_items, in_flight, draw)
        self._sleep = sleep
        self._http = httpx.Client(**connection_options(url, api_key, timeout), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def score(
        self,
        pairs: Iterable[AnyPair],
        classes: str | None = None,
        against: str | None = None,
        progress: Progress | None = None,
    ) -> Scores:
        """Score pairs, in their order. An image is a path, a URL, bytes of an image file or a PIL image.

        `classes` names a registered class set, `against` a finished run. `progress(done, total)` is called after each
        batch; total is None for an iterator. One bad pair is a status in its result, never an exception.
        """
        gatherer = ScoreGatherer(pairs, progress)
        todo = pair_batches(pairs, self._limits(), comparison(classes, against))
        with closing(self._pump("v1/score", todo)) as answers:
            for batch, answer in answers:
                gatherer.add(batch, answer)
        return gatherer.scores()

    def embed(self, images: Iterable[Any] = (), texts: Iterable[str] = ()) -> Embeddings:
        """Embed pictures and texts separately, as unit vectors."""
        sizes = self._limits()
        pictures = gather_embeddings(self._pump("v1/embed", image_batches(images, sizes)), "images")
        return Embeddings(pictures, gather_embeddings(self._pump("v1/embed", text_batches(texts, sizes)), "texts"))

    def scorer(self) -> ScorerFacts:
        """Return the scorer: identity, β with its interval, calibration, limits, class sets and runs."""
        return cast(ScorerFacts, self._run(self._get("v1/scorer")))

    def jobs(self) -> list[Job]:
        """List all background jobs, oldest first."""
        jobs: list[Job] = []
        while True:
            answer = self._run(self._get(f"v1/jobs?skip={len(jobs)}"))
            page = as_list(answer.get("jobs"), "jobs")
            jobs = [*page, *jobs]
            if not page or len(jobs) >= int(answer.get("total") or 0):
                return jobs

    def job(self, job: str) -> Job:
        """Return one job by its id."""
        return cast(Job, self._run(self._get(job_path(job))))

    def start_job(self, shards: str | Sequence[str], name: str, **settings: Any) -> Job:
        """Annotate shards in the background: `task`, `classes`, `beta`, `k`, … as in `noisegate annotate`.

        The service never runs two jobs of the same name and settings at a time, so this call can be repeated if its answer is
        lost.
        """
        return cast(Job, self._run(self._start_job(shards, name, settings)))

    def cancel_job(self, job: str) -> Job:
        """Stop a job; the tables it has written stay."""
        return cast(Job, self._run(self._post(f"{job_path(job)}/cancel", {})))

    def forget_job(self, job: str) -> None:
        """Remove a job that is over from the list; its tables stay on disk, and its name is free again."""
        self._run(self._forget_job(job))

    def wait_job(self, job: str, progress: Callable[[Event], object] | None = None) -> Job:
        """Follow a job to its end, through restarts of the service, and return it; `progress` gets every event."""
        watch = JobWatch(self._retry, self._draw, progress)
        while True:
            request = self._events(job, watch.headers(), watch.silence)
            outcome: Outcome
            try:
                outcome = response = self._http.send(request, stream=True)
                try:
                    if response.is_success:
                        watch.start_stream()
                        if any(watch.feed(line) for line in response.iter_lines()):
                            return self.job(job)
                    else:
                        response.read()
                finally:
                    response.close()
            except httpx.TransportError as error:
                outcome = error
            self._sleep(watch.pause(outcome, request))
            record = self.job(job)
            if watch.is_over(record):
                return record

    def _limits(self) -> BatchSizes:
        return self._sizes or self._limit_sizes(self.scorer())

    def _pump(self, path: str, todo: Iterator[RequestBatch]) -> Generator[Answered, None, None]:
        """Send batches, a few at a time, and yield their answers in order; after an error nothing more is sent."""
        stopped = Flag()
        waiting: deque[tuple[RequestBatch, Future[dict[str, Any]]]] = deque()
        with ThreadPoolExecutor(self._in_flight, thread_name_prefix="score") as pool:
            try:
                for batch in todo:
                    waiting.append((batch, pool.submit(self._send, path, batch, stopped)))
                    if len(waiting) == self._in_flight:
                        yield waiting[0][0], waiting.popleft()[1].result()
                while waiting:
                    yield waiting[0][0], waiting.popleft()[1].result()
            finally:
                stopped.set()
                for _, future in waiting:
                    future.cancel()

    def _send(self, path: str, batch: RequestBatch, stopped: Flag) -> dict[str, Any]:
        return self._run(self._post_batch(path, batch), stopped) if batch.places else {}

    def _run(self, flow: Flow, stopped: Flag | None = None) -> dict[str, Any]:
        outcome: Outcome | None = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                answer: dict[str, Any] = end.value
                return answer
            if stopped is not None and stopped.is_set():
                raise ServiceError("stopped", "another request of the same call failed")
            if isinstance(step, float):
                self._sleep(step)
                outcome = None
                continue
            try:
                outcome = self._http.send(step)
            except httpx.TransportError as error:
                outcome = error


class AsyncClient(ClientBase):
    """`Client` with `await`; use it in an `async with`. It belongs to the event loop in which it is used."""

    _http: httpx.AsyncClient

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout: float = 90.0,
        retries: int = 5,
        *,
        batch_items: int = 64,
        in_flight: int = 8,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(Retry(retries), batch_items, in_flight, draw)
        self._sleep = sleep
        self._http = httpx.AsyncClient(**connection_options(url, api_key, timeout), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def score(
        self,
        pairs: Iterable[AnyPair],
        classes: str | None = None,
        against: str | None = None,
        progress: Progress | None = None,
    ) -> Scores:
        """As `Client.score`; pictures are read in a thread."""
        gatherer = ScoreGatherer(pairs, progress)
        todo = pair_batches(pairs, await self._limits(), comparison(classes, against))
        async with aclosing(self._pump("v1/score", todo)) as answers:
            async for batch, answer in answers:
                gatherer.add(batch, answer)
        return gatherer.scores()

    async def embed(self, images: Iterable[Any] = (), texts: Iterable[str] = ()) -> Embeddings:
        """As `Client.embed`."""
        sizes = await self._limits()
        pictures = [answered async for answered in self._pump("v1/embed", image_batches(images, sizes))]
        written = [answered async for answered in self._pump("v1/embed", text_batches(texts, sizes))]
        return Embeddings(gather_embeddings(pictures, "images"), gather_embeddings(written, "texts"))

    async def scorer(self) -> ScorerFacts:
        """As `Client.scorer`."""
        return cast(ScorerFacts, await self._run(self._get("v1/scorer")))

    async def jobs(self) -> list[Job]:
        """As `Client.jobs`."""
        jobs: list[Job] = []
        while True:
            answer = await self._run(self._get(f"v1/jobs?skip={len(jobs)}"))
            page = as_list(answer.get("jobs"), "jobs")
            jobs = [*page, *jobs]
            if not page or len(jobs) >= int(answer.get("total") or 0):
                return jobs

    async def job(self, job: str) -> Job:
        """As `Client.job`."""
        return cast(Job, await self._run(self._get(job_path(job))))

    async def start_job(self, shards: str | Sequence[str], name: str, **settings: Any) -> Job:
        """As `Client.start_job`."""
        return cast(Job, await self._run(self._start_job(shards, name, settings)))

    async def cancel_job(self, job: str) -> Job:
        """As `Client.cancel_job`."""
        return cast(Job, await self._run(self._post(f"{job_path(job)}/cancel", {})))

    async def forget_job(self, job: str) -> None:
        """As `Client.forget_job`."""
        await self._run(self._forget_job(job))

    async def wait_job(self, job: str, progress: Callable[[Event], object] | None = None) -> Job:
        """As `Client.wait_job`."""
        watch = JobWatch(self._retry, self._draw, progress)
        while True:
            request = self._events(job, watch.headers(), watch.silence)
            outcome: Outcome
            try:
                outcome = response = await self._http.send(request, stream=True)
                try:
                    if response.is_success:
                        watch.start_stream()
                        async for line in response.aiter_lines():
                            if watch.feed(line):
                                return await self.job(job)
                    else:
                        await response.aread()
                finally:
                    await response.aclose()
            except httpx.TransportError as error:
                outcome = error
            await self._sleep(watch.pause(outcome, request))
            record = await self.job(job)
            if watch.is_over(record):
                return record

    async def _limits(self) -> BatchSizes:
        return self._sizes or self._limit_sizes(await self.scorer())

    async def _pump(self, path: str, todo: Iterator[RequestBatch]) -> AsyncGenerator[Answered, None]:
        """As `Client._pump`, with tasks."""
        waiting: deque[tuple[RequestBatch, asyncio.Task[dict[str, Any]]]] = deque()
        try:
            while (batch := await asyncio.to_thread(next, todo, None)) is not None:
                waiting.append((batch, asyncio.create_task(self._send(path, batch))))
                if len(waiting) == self._in_flight:
                    yield waiting[0][0], await waiting[0][1]
                    waiting.popleft()
            while waiting:
                yield waiting[0][0], await waiting[0][1]
                waiting.popleft()
        finally:
            for _, task in waiting:
                task.cancel()
            await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)

    async def _send(self, path: str, batch: RequestBatch) -> dict[str, Any]:
        return await self._run(self._post_batch(path, batch)) if batch.places else {}

    async def _run(self, flow: Flow) -> dict[str, Any]:
        outcome: Outcome | None = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                answer: dict[str, Any] = end.value
                return answer
            if isinstance(step, float):
                await self._sleep(step)
                outcome = None
                continue
            try:
                outcome = await self._http.send(step)
            except httpx.TransportError as error:
                outcome = error
