"""Decode in worker processes, in order; a crash of the decoder costs one sample, not the job."""

import gc
import hashlib
import pickle
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import Self

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.system.machine import count_processors, limit_memory, reuse_memory
from noisegate.pipeline.system.processes import UNGUARDED, forkserver_context, is_of_main, sigint_blocked, spawn_context
from noisegate.pipeline.system.worker_pool import STARTS, WorkerLost, WorkerNotStarted, WorkerPool, WorkerSetup

from .decode import BadSample, Preprocessor, decode_label, decode_text
from .pixels import decode_pixels
from .read import IMAGE_PARTS, MAX_PART_BYTES, MISSING, RawSample, part_limit

WITH_TORCH = ("noisegate.pipeline.shards.workers", "noisegate.pipeline.shards.resize")  # imported once for all
TASK_SECONDS = 60.0  # for a chunk, or a single sample; chosen, ten times the time of the largest pictures
KEPT_BYTES = 400 << 20  # most memory of a worker after a task: base, spare heap, and some growth
TRIES = 2  # of a single sample: the first worker may have been killed for another reason
KILLED_TRIES = 6  # if workers are killed from outside, which the sample seldom causes; chosen


@dataclass
class Decoded:
    """A sample for the encoder; `status` is final unless its embedding is invalid."""

    key: str
    index: int
    status: str = "ok"
    error: str | None = None
    pixels: NDArray[np.uint8] | None = None
    text: str | None = None
    label: int | None = None
    image_sha256: bytes | None = None
    text_sha256: bytes | None = None
    flags: tuple[str, ...] = ()


def decode_sample(
    raw: RawSample, preprocess: Preprocessor | None, options: DecodeOptions, image_part: str | None = None
) -> Decoded:
    """Decode all parts of a sample; a problem becomes its status and error.

    Without `preprocess` the picture is not decoded, only its digest is taken; `image_part` names a part that stands for it.
    With both tasks a sample is `ok` as long as it has a picture and a caption or a label; what is missing is a flag.
    """
    sample = Decoded(raw.key, raw.index)
    problems: dict[str, BadSample] = {}
    image = raw.parts.get(image_part) if image_part else raw.image
    try:
        if image is None:
            wanted = (image_part,) if image_part else IMAGE_PARTS
            named, names = image_part or "jpg, jpeg, png or webp", ", ".join(raw.names[:8])
            absent = BadSample("no_image", f"no part {named} among {names}")
            sample.image_sha256 = next((raw.digests[part] for part in wanted if part in raw.digests), None)
            raise _loss(raw, wanted, options.limits) or _missing_file(raw, wanted, "no_image") or absent
        sample.image_sha256 = hashlib.sha256(image).digest()
        if preprocess is not None:
            sample.pixels = decode_pixels(image, preprocess, options.limits)
    except BadSample as error:
        problems["image"] = error
    source = "json" if options.text_field or "txt" not in raw.names else "txt"
    try:
        sample.text = decode_text(raw.parts, options.text_field, options.limits)
        data = raw.parts["txt"] if source == "txt" else sample.text.encode()
        sample.text_sha256 = hashlib.sha256(data).digest()
    except BadSample as error:
        if source == "txt":
            read = "txt" in raw.parts
            sample.text_sha256 = hashlib.sha256(raw.parts["txt"]).digest() if read else raw.digests.get("txt")
        lost = _loss(raw, (source,), options.limits) or _missing_file(raw, ("txt", "json"), "no_text")
        problems["text"] = (error.status == "no_text" and lost) or error
    try:
        sample.label = decode_label(raw.parts, options.label_field)
    except BadSample as error:
        source = "json" if options.label_field or "cls" not in raw.names else "cls"
        lost = _loss(raw, (source,), options.limits) or _missing_file(raw, ("cls", "json"), "no_label")
        problems["label"] = (error.status == "no_label" and lost) or error
    needed = [problems[p] for t, p in (("pairs", "text"), ("labels", "label")) if t in options.tasks and p in problems]
    flags = ["duplicate_key"] if raw.duplicate else []
    if "image" in problems:
        needed.insert(0, problems["image"])
    elif len(needed) < len(options.tasks):
        flags += [problem.status for problem in needed]
        needed = []
    if needed:
        sample.status, sample.error = needed[0].status, str(needed[0])
    sample.flags = tuple(flags)
    return sample


def _loss(raw: RawSample, parts: Sequence[str], limits: Limits) -> BadSample | None:
    """Return the reason why these parts are missing, if the shard is the cause and not the sample."""
    for part in parts:
        if part in raw.parts:
            return None
        if part in raw.oversized:
            what, size = "image" if part in IMAGE_PARTS else f"part {part}", raw.oversized[part]
            limit = part_limit(part, limits)
            over = f"the limit is {limit:,}" if size > limit else f"all parts have over {MAX_PART_BYTES:,}"
            return BadSample("too_large", f"{what} of {size:,} bytes; {over}")
    return BadSample("broken", raw.broken) if raw.broken else None


def _missing_file(raw: RawSample, parts: Sequence[str], status: str) -> BadSample | None:
    """Return the reason why a folder or a table could not provide one of these parts."""
    reason = next((raw.parts[part + MISSING] for part in parts if part + MISSING in raw.parts), None)
    return None if reason is None else BadSample(status, reason.rstrip(b"\0").decode("utf-8", "replace")[:300])


def default_workers() -> int:
    """Return the number of processors that this process may use, at most 16."""
    return min(16, count_processors())


def _set_up_worker(memory: int | None, resizes_with_torch: bool) -> None:
    # allocating new pages for chunks of pixels takes longer than copying the pixels (benchmarks/stages.py)
    reuse_memory(16 << 20, 64 << 20)
    gc.freeze()  # a garbage collection would touch, and so copy, all pages that forked workers share
    if resizes_with_torch:
        import torch

        torch.set_num_threads(1)
    if memory is not None:
        limit_memory(memory)


def _decode(preprocess: Preprocessor, options: DecodeOptions, chunk: list[RawSample]) -> list[Decoded]:
    return [decode_sample(raw, preprocess, options) for raw in chunk]


class DecodePool:
    """Decode chunks of samples. `workers=0` decodes in this process.

    `submit` returns at once; `collect` waits for that chunk. If its worker dies or takes longer than TASK_SECONDS, the samples
    are tried again one by one, each in a worker that does nothing else. A sample that hangs again, or fails TRIES times
    (KILLED_TRIES for SIGKILL, which comes from outside), becomes a row with the status `bad_image`.

    With `memory`, no worker takes more bytes than that while it decodes, and a worker that keeps over KEPT_BYTES is replaced.
    """

    def __init__(
        self, workers: int, preprocess: Preprocessor, options: DecodeOptions, memory: int | None = None
    ) -> None:
        if workers < 0:
            raise ConfigError.of("workers", workers, "is not a number of processes; use 0 (none) or more")
        self._workers, self.limits = workers, options.limits
        self._decode = partial(_decode, preprocess, options)
        self._pool = _start_pool(workers, self._decode, memory) if workers else None
        if workers:
            reuse_memory()  # each batch of pixels is received into the memory of the last batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that are ready."""
        return [] if self._pool is None else self._pool.pids

    def submit(self, chunk: list[RawSample], seconds: float | None = None) -> "Future[list[Decoded]]":
        """Submit a chunk; without workers it is decoded at once. The future raises WorkerLost."""
        if self._pool is not None:
            return self._pool.submit(chunk, seconds=TASK_SECONDS if seconds is None else seconds)
        done: Future[list[Decoded]] = Future()
        done.set_result(self._decode(chunk))
        return done

    def collect(self, chunk: list[RawSample], future: "Future[list[Decoded]]") -> list[Decoded]:
        try:
            try:
                return future.result()
            except WorkerLost:
                return [self._decode_alone(raw) for raw in chunk]
        except WorkerNotStarted as error:
            raise _cannot_start(self._workers) from error

    def _decode_alone(self, raw: RawSample) -> Decoded:
        tries = 0
        while True:
            tries += 1
            try:
                return self.submit([raw]).result()[0]
            except WorkerLost as lost:
                if lost.hung or tries >= (KILLED_TRIES if lost.killed else TRIES):
                    return lost_sample(raw, lost)


def start_server() -> None:
    """Start the process from which workers are forked, so that it imports torch while this process loads a model."""
    if isinstance(forkserver_context(None, WITH_TORCH), ForkServerContext):
        with sigint_blocked():
            forkserver.ensure_running()


def _start_pool(workers: int, decode: "partial[list[Decoded]]", memory: int | None) -> WorkerPool:
    """Start processes that run `decode`; raises ConfigError if they cannot start."""
    preprocess = decode.args[0]
    try:
        of_main = is_of_main(preprocess)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        problem = f"cannot go to worker processes ({error}); use a function of a module, or workers=0"
        raise ConfigError.of("preprocess", type(preprocess).__name__, problem) from error
    # not fork: this process may already run torch's threads, which do not survive a fork
    with_torch = getattr(preprocess, "decoder", "pillow") != "pillow"
    context = forkserver_context(preprocess, WITH_TORCH) if with_torch else spawn_context(preprocess)
    setup = WorkerSetup(
        decode,
        context,
        partial(_set_up_worker, memory, with_torch),
        max_bytes=None if memory is None else KEPT_BYTES,
        starts=1 if of_main else STARTS,
    )
    try:
        return WorkerPool(workers, setup)
    except WorkerNotStarted as error:
        raise _cannot_start(workers, of_main) from error


def _cannot_start(workers: int, of_main: bool = False) -> ConfigError:
    """Make the error for workers that do not start."""
    reason = UNGUARDED if of_main else "they were killed, perhaps for want of memory; use fewer"
    return ConfigError.of("workers", workers, f"could not start: {reason}, or use 0")


def lost_sample(raw: RawSample, lost: WorkerLost) -> Decoded:
    """Make the row of a sample whose decoder died or did not finish."""
    digest = hashlib.sha256(raw.image).digest() if raw.image is not None else None
    flags = ("duplicate_key",) if raw.duplicate else ()
    reason = "the decoder did not finish this image in time" if lost.hung else "the decoder crashed on this image"
    if lost.killed:
        reason = "the decoder was killed again and again on this image, perhaps for want of memory"
    return Decoded(raw.key, raw.index, "bad_image", reason, image_sha256=digest, flags=flags)
