"""`/v1/jobs`: annotate shards in the background and follow it."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, field_validator

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.settings import AnnotateSettings, read_tasks
from noisegate.service.errors import ApiError, InvalidRequest
from noisegate.service.jobs.runner import JOB_SETTINGS, JobEvent, JobRunner
from noisegate.service.jobs.store import Job

from .schemas import problems
from .state import Service, service_of

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
Tasks = Literal["pairs", "labels", "pairs,labels", "labels,pairs"]
Pattern = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^|\x00-\x1f\x7f]+$")]
MAX_CHARS = 65_536  # of all patterns of a job, because its record and every listing contain them
BETA = r"^(auto|random_inputs|intersection|shuffled_mean|(fixed:)?-?(0?\.[0-9]+|[01](\.0*)?))$"


_errors = partial(
    problems,
    meaning={
        400: "`bad_request`: the body is no text",
        401: "`unauthorized`: the key is missing or wrong",
        403: "`outside_roots`: a shard is not below the folders that the server may read",
        404: "`jobs_off`, `unknown_job`, `unknown_shards` or `unknown_classes`",
        408: "`slow_body`: the body did not come in time",
        409: "`name_taken`, `job_over`, `job_active` or `too_many_jobs`",
        413: "`too_large`: the body is over max_body_bytes",
        422: "`invalid_request` or `bad_shards`: the message says what to change",
        503: "`no_record`: the record of jobs cannot be written; the same works once its disk has room",
    },
)


def _setting(name: str, **changes: Any) -> Any:
    """Make a field with the default and the help text of a setting of `annotate`."""
    setting = next(setting for setting in fields(AnnotateSettings) if setting.name == name)
    return Field(**{"default": setting.default, "description": setting.metadata["help"], **changes})


class JobRequest(BaseModel):
    """What to annotate and how; names and meanings are those of `noisegate annotate`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "corpus-1", "shards": ["x-{000000..000099}.tar"], "task": "pairs"}]},
    )

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="Names the output; the run has it when the job is done.",
    )
    shards: Pattern | Annotated[list[Pattern], Field(min_length=1, max_length=10_000)] = Field(
        description="Paths below the server's roots: brace ranges, globs, folders, `a.tar::b.tar` or `@list.txt`."
    )
    task: Tasks = _setting("tasks", default="pairs")
    classes: str | None = _setting("classes", max_length=100, description="A registered class set, or a built-in list.")
    beta: str = _setting("beta", max_length=100, pattern=BETA)
    cut: Literal["osa", "probability"] = _setting("cut")
    k: int | None = _setting("k", ge=1, le=10_000)
    repair: Literal["never", "sure", "likely"] = _setting("repair")
    neighbourhood: bool = _setting("neighbourhood")
    text_field: str | None = _setting("text_field", max_length=200)
    label_field: str | None = _setting("label_field", max_length=200)
    seed: int = _setting("seed", ge=0, lt=2**31)

    @field_validator("shards")
    @classmethod
    def _limit_shards(cls, shards: str | list[str]) -> str | list[str]:
        if sum(map(len, shards)) > MAX_CHARS:
            raise ValueError(f"over {MAX_CHARS:,} characters in all; use a glob, a range or @list.txt")
        return shards


class JobNote(BaseModel):
    """Something the job said."""

    number: int
    text: str


class ProgressAnswer(BaseModel):
    """How far a job is; `share` is of the bytes to read, null before that is known."""

    share: float | None
    shards_before: int
    shards_todo: int
    shards_done: int
    bytes_todo: int
    bytes_done: int
    samples: int
    failed_samples: int
    shard: str | None
    notes: list[JobNote]


class JobAnswer(BaseModel):
    """A job. `run` is the name under which its tables can be asked for, once it is done."""

    id: str
    name: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    request: dict[str, Any]
    progress: ProgressAnswer
    attempts: int
    created: str
    started: str | None
    ended: str | None
    error: str | None
    summary: dict[str, Any] | None
    run: str | None


class ShardOffer(BaseModel):
    """A folder with shards: the pattern that names them, how many there are and their bytes."""

    pattern: str
    shards: int
    bytes: int


class ShardOffers(BaseModel):
    """What jobs may read on this server."""

    folders: list[ShardOffer]
    prefixes: list[str] = Field(description="URLs below which shards may be named")


class JobList(BaseModel):
    """The newest jobs, oldest first, and how many there are in all."""

    jobs: list[JobAnswer]
    total: int


@router.post(
    "",
    status_code=202,
    response_model=JobAnswer,
    responses=_errors(400, 401, 403, 404, 408, 409, 413, 422, 503),
    summary="Annotate shards in the background",
)
async def submit(body: JobRequest, request: Request, response: Response) -> dict[str, Any]:
    """A job with the same name and settings is not run twice at a time: its record is the answer. Once it is over it is
    taken up again, which costs little where nothing has changed. Other settings under a name in use are refused."""
    service = service_of(request)
    jobs = jobs_of(service)
    settings = await asyncio.to_thread(_settings, body, service, jobs)
    if body.name in service.settings.runs or (jobs.folder / body.name).resolve().parent != jobs.folder:
        raise ApiError(409, "name_taken", f"{body.name} is the name of another run; use another")
    job = jobs.submit(body.name, settings)
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return answer(job)


@router.get("", response_model=JobList, responses=_errors(401, 404, 422, 503), summary="The newest jobs")
def listed(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 100,
    skip: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> dict[str, Any]:
    """At most `limit` jobs, oldest first; `skip` leaves out as many newer ones."""
    jobs = jobs_of(service_of(request))
    return {"jobs": [answer(job) for job in jobs.latest(limit, skip)], "total": jobs.store.count()}


@router.get(
    "/shards", response_model=ShardOffers, responses=_errors(401, 404, 503), summary="Shards that jobs may read"
)
def offered(request: Request) -> dict[str, Any]:
    """At most 100 folders below the server's roots that hold tars."""
    roots = jobs_of(service_of(request)).roots
    return {"folders": roots.offer(), "prefixes": list(roots.prefixes)}


@router.get("/{job_id}", response_model=JobAnswer, responses=_errors(401, 404, 503), summary="One job")
def one(job_id: str, request: Request) -> dict[str, Any]:
    return answer(jobs_of(service_of(request)).current(job_id))


@router.post("/{job_id}/cancel", response_model=JobAnswer, responses=_errors(401, 404, 409, 503), summary="End a job")
async def cancel(job_id: str, request: Request) -> dict[str, Any]:
    """Tables that are written stay; the same job posted again goes on there."""
    return answer(await jobs_of(service_of(request)).cancel(job_id))


@router.delete(
    "/{job_id}",
    status_code=204,
    response_class=Response,
    responses=_errors(401, 404, 409, 503),
    summary="Forget a job that is over",
)
async def forget(job_id: str, request: Request) -> Response:
    """Its tables stay on disk; the name is free again, and its run is no longer listed."""
    jobs_of(service_of(request)).forget(job_id)
    return Response(status_code=204)


@router.get(
    "/{job_id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}, **_errors(401, 404, 422, 503)},
    summary="Follow a job",
)
async def events(
    job_id: str, request: Request, last_event_id: Annotated[str | None, Header(max_length=100)] = None
) -> StreamingResponse:
    """Server-sent events `progress` (the job), `note` and, at the end, `done` (the job with its summary or error).

    The first one is the job as it is. With `Last-Event-ID` only later notes are repeated.
    """
    service = service_of(request)
    jobs = jobs_of(service)
    jobs.current(job_id)
    after = int(last_event_id) if last_event_id and last_event_id.isascii() and last_event_id.isdigit() else 0
    return StreamingResponse(
        _stream(jobs, job_id, after, service.closing),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _stream(jobs: JobRunner, job_id: str, after: int, closing: asyncio.Event) -> AsyncIterator[bytes]:
    try:
        async for event in jobs.events(job_id, after, closing):
            yield b": still here\n\n" if event is None else packed(event)
    except ApiError:  # the job was forgotten while a client followed it
        return


def packed(event: JobEvent) -> bytes:
    """Encode one event for the stream; JSON has no line breaks."""
    data = {"text": event.note} if event.kind == "note" else answer(event.job)
    return f"id: {event.number}\nevent: {event.kind}\ndata: {json.dumps(data)}\n\n".encode()


def jobs_of(service: Service) -> JobRunner:
    """Return the job runner; raise ApiError 404 `jobs_off` if the server was started without a folder for jobs."""
    if service.jobs is None:
        raise ApiError(404, "jobs_off", "this server runs no jobs; start it with --jobs-folder DIR and --root DIR")
    return service.jobs


def answer(job: Job) -> dict[str, Any]:
    """Make the answer for a job: with the client's patterns instead of every shard."""
    progress = {name: getattr(job.progress, name) for name in ProgressAnswer.model_fields if name != "notes"}
    notes = [{"number": note.number, "text": note.text} for note in job.progress.notes]
    hidden = ("shards", "asked", "classes_digest")
    settings = {name: value for name, value in job.request.items() if name not in hidden}
    return {
        **{name: getattr(job, name) for name in JobAnswer.model_fields if name not in ("request", "progress", "run")},
        "request": {
            "shards": job.request.get("asked", []),
            "shard_count": len(job.request.get("shards", [])),
            **settings,
        },
        "progress": {**progress, "notes": notes},
        "run": job.name if job.state == "done" else None,
    }


def _settings(body: JobRequest, service: Service, jobs: JobRunner) -> dict[str, Any]:
    """Make the record of a request: everything that the tables depend on, with the real names of its shards."""
    given = {name: getattr(body, name) for name in JOB_SETTINGS if name != "tasks"}
    try:
        settings = AnnotateSettings(tasks=read_tasks(body.task), **given).to_dict()
    except ConfigError as error:
        raise InvalidRequest(str(error)) from error
    classes = service.class_sets.find_for_job(body.classes) if body.classes else None
    asked = [body.shards] if isinstance(body.shards, str) else body.shards
    return {
        "asked": asked,
        "shards": jobs.roots.find(asked),
        "tasks": settings["tasks"],
        "classes": body.classes,
        "classes_digest": classes.digest if classes else None,
        **{name: settings[name] for name in JOB_SETTINGS},
    }
