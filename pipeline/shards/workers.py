"""Decode in worker processes, in order; a crash of the decoder costs one sample, not the job."""

import hashlib
import os
import pickle
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.system.machine import count_processors, exit_with_parent, reuse_memory
from noisegate.pipeline.system.processes import UNGUARDED, is_of_main, spawn_context

from .decode import BadSample, Preprocessor, decode_image, decode_label, decode_text
from .read import IMAGE_PARTS, MAX_PART_BYTES, MISSING, RawSample

STARTS = 3  # tries to start workers, which may be killed just then


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
            raise _loss(raw, wanted) or _missing_file(raw, wanted, "no_image") or absent
        sample.image_sha256 = hashlib.sha256(image).digest()
        if preprocess is not None:
            sample.pixels = _pixels(image, preprocess, options.limits)
    except BadSample as error:
        problems["image"] = error
    source = "json" if options.text_field or "txt" not in raw.names else "txt"
    try:
        sample.text = decode_text(raw.parts, options.text_field, options.limits)
        data = raw.parts["txt"] if source == "txt" else sample.text.encode()
        sample.text_sha256 = hashlib.sha256(data).digest()
    except BadSample as error:
        if source == "txt" and "txt" in raw.parts:
            sample.text_sha256 = hashlib.sha256(raw.parts["txt"]).digest()
        lost = _loss(raw, (source,)) or _missing_file(raw, ("txt", "json"), "no_text")
        problems["text"] = (error.status == "no_text" and lost) or error
    try:
        sample.label = decode_label(raw.parts, options.label_field)
    except BadSample as error:
        source = "json" if options.label_field or "cls" not in raw.names else "cls"
        lost = _loss(raw, (source,)) or _missing_file(raw, ("cls", "json"), "no_label")
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


def _loss(raw: RawSample, parts: Sequence[str]) -> BadSample | None:
    """The reason why these parts are missing, where the shard is the cause and not the sample."""
    for part in parts:
        if part in raw.parts:
            return None
        if part in raw.oversized:
            return BadSample(
                "too_large", f"part {part} of {raw.oversized[part]:,} bytes; at most {MAX_PART_BYTES:,} are read"
            )
    return BadSample("broken", raw.broken) if raw.broken else None


def _missing_file(raw: RawSample, parts: Sequence[str], status: str) -> BadSample | None:
    """The reason why a folder or a table could not give one of these parts."""
    reason = next((raw.parts[part + MISSING] for part in parts if part + MISSING in raw.parts), None)
    return None if reason is None else BadSample(status, reason.rstrip(b"\0").decode("utf-8", "replace")[:300])


def _pixels(data: bytes, preprocess: Preprocessor, limits: Limits) -> NDArray[np.uint8]:
    return preprocess_image(decode_image(data, limits, getattr(preprocess, "least_side", None)), preprocess)


def preprocess_image(image: Image.Image, preprocess: Preprocessor) -> NDArray[np.uint8]:
    """Make a decoded picture what the model takes; raise BadSample for one that cannot be resized."""
    try:
        return preprocess(image)
    except (MemoryError, ArithmeticError, ValueError, OSError) as error:
        reason = f"{image.width} x {image.height} pixels cannot be resized: {type(error).__name__}: {error}"
        raise BadSample("bad_image", reason[:300]) from error


def default_workers() -> int:
    """One worker for each processor this process may use, at most sixteen."""
    return min(16, count_processors())


def _set_up_worker(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    # new pages for chunks of pixels take longer than copying them (benchmarks/stages.py)
    reuse_memory(16 << 20, 64 << 20)
    exit_with_parent(parent)


def _accept(preprocess: Preprocessor) -> None:
    """A worker that runs this has started, and can import what decoding needs."""


def _decode(chunk: list[RawSample], preprocess: Preprocessor, options: DecodeOptions) -> list[Decoded]:
    return [decode_sample(raw, preprocess, options) for raw in chunk]


class DecodePool:
    """Decodes chunks of samples. `workers=0` decodes in this process.

    `submit` returns at once; `collect` waits for that chunk. When a worker dies, its chunk is tried again, then sample by
    sample in a process of its own, and the sample that kills it becomes a row with the status `bad_image`.
    """

    def __init__(self, workers: int, preprocess: Preprocessor, options: DecodeOptions) -> None:
        if workers < 0:
            raise ConfigError.of("workers", workers, "is not a number of processes; use 0 (none) or more")
        self._workers, self._preprocess, self._options = workers, preprocess, options
        self._lock = threading.Lock()
        self._executor = self._start_pool(workers) if workers else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def submit(self, chunk: list[RawSample]) -> "Future[list[Decoded]]":
        with self._lock:
            executor = self._executor
        try:
            if executor is not None:
                return executor.submit(_decode, chunk, self._preprocess, self._options)
            return _completed(_decode(chunk, self._preprocess, self._options))
        except BrokenProcessPool as error:
            failed: Future[list[Decoded]] = Future()
            failed.set_exception(error)
            return failed

    def collect(self, chunk: list[RawSample], future: "Future[list[Decoded]]") -> list[Decoded]:
        try:
            return future.result()
        except BrokenProcessPool:
            self._replace()
        try:
            return self.submit(chunk).result()
        except BrokenProcessPool:
            self._replace()
        return self._one_by_one(chunk)

    def _one_by_one(self, chunk: list[RawSample]) -> list[Decoded]:
        """Decode each sample alone in a process, to find the one that crashes it."""
        decoded: list[Decoded] = []
        while len(decoded) < len(chunk):
            with self._start_pool(1) as executor:
                for raw in chunk[len(decoded) :]:
                    try:
                        decoded += executor.submit(_decode, [raw], self._preprocess, self._options).result()
                    except BrokenProcessPool:
                        decoded.append(_crashed_sample(raw))
                        break
        return decoded

    def _replace(self) -> None:
        with self._lock:
            broken = self._executor is not None and getattr(self._executor, "_broken", False)
            if broken and self._executor is not None:
                self._executor.shutdown(wait=False, cancel_futures=True)
                self._executor = self._start_pool(self._workers)

    def _start_pool(self, workers: int) -> ProcessPoolExecutor:
        try:
            of_main = is_of_main(self._preprocess)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            problem = f"cannot go to worker processes ({error}); use a function of a module, or workers=0"
            raise ConfigError.of("preprocess", type(self._preprocess).__name__, problem) from error
        # spawn, because this process may already run torch's threads, which do not survive a fork
        context = spawn_context(self._preprocess)
        for left in reversed(range(1 if of_main else STARTS)):
            executor = ProcessPoolExecutor(
                workers, mp_context=context, initializer=_set_up_worker, initargs=(os.getpid(),)
            )
            try:
                executor.submit(_accept, self._preprocess).result()
                break
            except BrokenProcessPool as error:  # killed while starting, or unable to start
                executor.shutdown(wait=False, cancel_futures=True)
                if not left:
                    reason = UNGUARDED if of_main else "they were killed, perhaps for want of memory; use fewer"
                    raise ConfigError.of("workers", workers, f"could not start: {reason}, or use 0") from error
        return executor


def _crashed_sample(raw: RawSample) -> Decoded:
    digest = hashlib.sha256(raw.image).digest() if raw.image is not None else None
    flags = ("duplicate_key",) if raw.duplicate else ()
    reason = "the decoder crashed on this image"
    return Decoded(raw.key, raw.index, "bad_image", reason, image_sha256=digest, flags=flags)


def _completed(value: list[Decoded]) -> "Future[list[Decoded]]":
    future: Future[list[Decoded]] = Future()
    future.set_result(value)
    return future
