"""Start, watch and restart the encoder processes of all devices, and keep them busy with batches.

Each process has at most two batches: the one it encodes, and the next one.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError, NoisegateError
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.system import spawn_context
from noisegate.service.errors import Unavailable
from noisegate.service.metrics import Metrics

from .batch_queue import BatchQueue
from .encoder_process import EncodeReply, EncodeRequest, EncoderProcess, Kind, ModelFailed, ModelReady

Row = NDArray[np.float32]
log = logging.getLogger("noisegate.encoders")

OUTSTANDING = 2  # batches per process: it receives the next one before the first is done
SHORT_SECONDS = 0.01  # chosen; the next batch is sent this long before the end of the first
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0  # seconds before a restart; doubles with every failure in a row
CHARS_PER_WEIGHT = 1000  # of a text; 20,000 characters take 5 to 20 times the time of a few words (embedded model)
BATCH_FACTOR = 3  # chosen; a batch takes at most this many times one item's time, so that the next client waits little
HANG_FACTOR = 4  # chosen, see the benchmark; without an answer for this many times the slowest batch, a process hangs
LOOK_SECONDS = 0.25  # between two checks for processes that hang
STEADY = 60.0  # seconds alive after which a failure does not count as consecutive


class EncodedRow(NamedTuple):
    """The row of a picture or text, the model's error on it, and whether a text is longer than the model's context."""

    row: Row
    error: str | None = None
    truncated: bool = False


@dataclass(eq=False)
class EncodeTask:
    """One picture's pixels or one text to encode."""

    kind: Kind
    payload: Any
    done: "asyncio.Future[EncodedRow]"
    client: str = ""
    arrived: float = 0.0
    size: int = 0

    def __post_init__(self) -> None:
        # time as a multiple of a picture's or a short text's: tokenizers read long texts to their end
        self.weight = 1 + (len(self.payload) // CHARS_PER_WEIGHT if self.kind == "texts" else 0)


@dataclass(eq=False)
class _Slot:
    """One device: its process, if running, and the batches that the process has."""

    spec: ModelSpec
    process: EncoderProcess | None = None
    ready: bool = False
    outstanding: dict[int, list[EncodeTask]] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    since: float = 0.0
    busy_since: float = 0.0  # when the process began its first outstanding batch
    single_seconds: dict[Kind, float] = field(default_factory=dict)  # in the warm-up, for one picture and one text
    slowest: float = 0.0  # seconds of the process's slowest batch
    reason: str = "the model is loading"
    failed: ModelFailed | None = None


class EncoderPool:
    """Encode tasks on all devices. All methods are called on the event loop.

    `on_ready` is awaited with the report of a new process before it gets tasks; `on_change` is called when the queue changes.
    A process that is silent for `hang_seconds`, and for several times its slowest batch, is killed and started again.
    """

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        *,
        measure: bool,
        threads: int,
        wait: float,
        metrics: Metrics,
        on_ready: Callable[[ModelReady], Awaitable[None]],
        on_change: Callable[[], None],
        hang_seconds: float,
    ) -> None:
        self._slots = [_Slot(spec) for spec in specs]
        self._measure, self._threads, self._metrics, self._hang_seconds = measure, threads, metrics, hang_seconds
        self._on_ready, self._on_change = on_ready, on_change
        self._queues: dict[Kind, BatchQueue[EncodeTask]] = {"images": BatchQueue(1, wait), "texts": BatchQueue(1, wait)}
        self._item_seconds: dict[Kind, float] = {}  # seconds per item of the latest batches
        self._largest = 1  # largest batch of the model
        self._numbers = itertools.count()
        self._last_batch: dict[Kind, int] = {"images": -2, "texts": -1}  # number of the latest batch
        self._tasks: list[asyncio.Task[None]] = []
        self._pump_planned = False
        self._timer: asyncio.TimerHandle | None = None
        self.waiting_bytes = 0
        self.fatal: str | None = None

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self._supervise(slot)) for slot in self._slots]

    async def stop(self) -> None:
        for supervisor in self._tasks:
            supervisor.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for slot in self._slots:
            self._fail_tasks(slot)
        processes = [slot.process for slot in self._slots if slot.process is not None]
        await asyncio.gather(*(asyncio.to_thread(process.stop) for process in processes))

    def reasons(self) -> list[str]:
        """Reasons why nothing can be encoded; empty if at least one encoder is ready."""
        if any(slot.ready for slot in self._slots):
            return []
        return sorted({slot.reason for slot in self._slots})

    @property
    def pids(self) -> list[int]:
        """Process ids of the encoders that are alive."""
        return [slot.process.pid for slot in self._slots if slot.process is not None and slot.process.pid is not None]

    def waiting(self, kind: Kind) -> int:
        """Number of tasks that no encoder has yet."""
        return len(self._queues[kind])

    def has_picture(self, client: str) -> bool:
        """Whether a picture of the client waits for an encoder."""
        return self._queues["images"].has(client)

    def put(self, task: EncodeTask) -> None:
        if self.reasons():
            task.done.set_exception(_worker_lost())
            return
        task.arrived = time.monotonic()
        self._queues[task.kind].put(task, task.arrived, task.client, task.weight)
        self.waiting_bytes += task.size
        self._on_change()
        self._plan_pump()

    def discard(self, task: EncodeTask) -> None:
        """Cancel a task; if an encoder already has it, its result is dropped."""
        if self._queues[task.kind].discard(task):
            self._leave_queue([task])
        task.done.cancel()

    def _leave_queue(self, batch: Sequence[EncodeTask]) -> None:
        self.waiting_bytes -= sum(task.size for task in batch)
        self._on_change()

    # --- processes --------------------------------------------------------------------------------------------------

    async def _supervise(self, slot: _Slot) -> None:
        in_a_row = 0
        while True:
            process = await self._launch(slot)
            while not slot.ended.is_set():
                try:
                    await asyncio.wait_for(slot.ended.wait(), LOOK_SECONDS)
                except TimeoutError:
                    self._kill_if_hung(slot)
            was_ready, up = slot.ready, time.monotonic() - slot.since
            self._fail_tasks(slot)
            await asyncio.to_thread(process.stop)
            slot.process = None
            if slot.failed is not None and slot.failed.fatal and self._never_worked():
                self.fatal = slot.reason = slot.failed.reason
                return
            in_a_row = 1 if was_ready and up > STEADY else in_a_row + 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (in_a_row - 1))
            why = slot.failed.reason if slot.failed else "it ended by itself or was killed"
            slot.reason = f"the encoder on {slot.spec.device} is restarting: {why}"
            log.error("encoder lost", extra={"device": slot.spec.device, "why": why, "pause": pause})
            self._metrics.restarts.inc()
            await asyncio.sleep(pause)

    async def _launch(self, slot: _Slot) -> EncoderProcess:
        loop = asyncio.get_running_loop()
        ended = slot.ended = asyncio.Event()
        slot.failed = None

        def on_message(message: Any) -> None:
            loop.call_soon_threadsafe(self._handle, slot, ended, message)

        def on_end() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended.set)

        slot.process = await asyncio.to_thread(
            EncoderProcess, slot.spec, self._measure, self._threads, on_message, on_end
        )
        return slot.process

    def _never_worked(self) -> bool:
        return not any(slot.since for slot in self._slots)

    def _kill_if_hung(self, slot: _Slot) -> None:
        batch = next(iter(slot.outstanding.values()), None)
        if batch is None or slot.process is None:
            return
        usual = max(slot.slowest, sum(slot.single_seconds.values()) * _weight(batch))
        silent = time.monotonic() - slot.busy_since
        if silent > max(self._hang_seconds, HANG_FACTOR * usual):
            seconds = round(silent, 1)
            log.error("encoder hangs", extra={"device": slot.spec.device, "seconds": seconds, "usual": round(usual, 3)})
            slot.failed = ModelFailed(f"it did not answer for {seconds:g} s and was killed", fatal=False)
            slot.process.kill()

    def _handle(self, slot: _Slot, ended: asyncio.Event, message: Any) -> None:
        if ended.is_set() or ended is not slot.ended:
            return  # the message of an earlier process
        if isinstance(message, ModelFailed):
            slot.failed = message
        elif isinstance(message, ModelReady):
            self._tasks.append(asyncio.create_task(self._accept_model(slot, ended, message)))
        elif isinstance(message, EncodeReply):
            self._finish(slot, message)

    async def _accept_model(self, slot: _Slot, ended: asyncio.Event, ready: ModelReady) -> None:
        self._largest = ready.batch_size
        for queue in self._queues.values():
            queue.size = min(BATCH_FACTOR, ready.batch_size)  # until batches have been measured
        try:
            await self._on_ready(ready)
        except NoisegateError as error:
            self.fatal = slot.reason = str(error)
            return
        if not ended.is_set():
            slot.ready, slot.since, slot.reason = True, time.monotonic(), ""
            slot.single_seconds, slot.slowest = ready.seconds, 0.0
            pid = slot.process.pid if slot.process is not None else None
            log.info("encoder ready", extra={"device": slot.spec.device, "model": ready.identity.model, "encoder": pid})
            self._plan_pump()

    def _fail_tasks(self, slot: _Slot) -> None:
        """Fail the tasks of a process that ended, and the queued ones too if no other encoder is ready."""
        slot.ready, slot.reason = False, f"the encoder on {slot.spec.device} has ended"
        gone = [task for batch in slot.outstanding.values() for task in batch]
        slot.outstanding.clear()
        if not any(other.ready for other in self._slots):
            queued = [task for queue in self._queues.values() for task in queue.clear()]
            self._leave_queue(queued)
            gone += queued
        for task in gone:
            if not task.done.done():
                task.done.set_exception(_worker_lost())

    # --- batches ----------------------------------------------------------------------------------------------------

    def _plan_pump(self) -> None:
        """Send batches at the end of this turn of the event loop, when all its tasks have arrived."""
        if not self._pump_planned:
            self._pump_planned = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_planned = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while True:
            now = time.monotonic()
            slots = [slot for slot in self._slots if slot.ready and len(slot.outstanding) < OUTSTANDING]
            if not slots:
                return  # the next reply calls this again
            slot = min(slots, key=lambda slot: self._pause(slot, now))
            if (pause := self._pause(slot, now)) > 0:
                self._pump_after(pause)
                return
            # pictures and texts in turn: a queue of one kind does not block the other
            kinds = sorted(
                (kind for kind, queue in self._queues.items() if len(queue)), key=self._last_batch.__getitem__
            )
            filled = [self._queues[kind] for kind in kinds]
            batch = next((b for q in filled if (b := q.take(now, idle=not slot.outstanding))), None)
            if batch is None:
                due = [wait for queue in filled if (wait := queue.due(now)) is not None]
                if due:
                    self._pump_after(min(due))
                return
            self._dispatch(slot, batch, now)

    def _pump_after(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._pump)

    def _pause(self, slot: _Slot, now: float) -> float:
        """Return seconds until a process gets its next batch; less than 0 if it has none.

        That is shortly before it finishes its batch, so that an item that arrives meanwhile need not wait for two batches.
        """
        batch = next(iter(slot.outstanding.values()), None)
        if batch is None:
            return -1.0
        ends = slot.busy_since + _weight(batch) * self._item_seconds.get(batch[0].kind, 0.0)
        return max(0.0, ends - SHORT_SECONDS - now)

    def _dispatch(self, slot: _Slot, batch: list[EncodeTask], now: float) -> None:
        assert slot.process is not None
        kind, number = batch[0].kind, next(self._numbers)
        if not slot.outstanding:
            slot.busy_since = now
        slot.outstanding[number] = batch
        self._last_batch[kind] = number
        self._metrics.batch_size.labels(kind).observe(len(batch))
        for task in batch:
            self._metrics.wait.labels(kind).observe(now - task.arrived)
        slot.process.submit(EncodeRequest(number, kind, [task.payload for task in batch]))
        for task in batch:
            task.payload = None
        self._leave_queue(batch)

    def _finish(self, slot: _Slot, reply: EncodeReply) -> None:
        batch = slot.outstanding.pop(reply.number)
        slot.busy_since, slot.slowest = time.monotonic(), max(slot.slowest, reply.seconds)
        self._metrics.encode.labels(batch[0].kind).observe(reply.seconds)
        kind, seconds = batch[0].kind, reply.seconds / _weight(batch)
        self._item_seconds[kind] = 0.8 * self._item_seconds.get(kind, seconds) + 0.2 * seconds
        longest = max(SHORT_SECONDS, BATCH_FACTOR * slot.single_seconds[kind])
        self._queues[kind].size = _fit_batch(longest, self._item_seconds[kind], self._largest)
        for i, task in enumerate(batch):
            if not task.done.done():
                task.done.set_result(EncodedRow(reply.rows[i], reply.errors.get(i), i in reply.truncated))
        self._plan_pump()


def _weight(batch: Sequence[EncodeTask]) -> int:
    return sum(task.weight for task in batch)


def _fit_batch(seconds: float, item_seconds: float, largest: int) -> int:
    """Return how many items can be encoded in `seconds`, at least 1 and at most `largest`.

    >>> _fit_batch(0.25, 0.03, 32), _fit_batch(0.25, 0.0001, 32), _fit_batch(0.25, 3.0, 32), _fit_batch(0.25, 0.0, 32)
    (8, 32, 1, 32)
    """
    return max(1, min(largest, int(seconds / item_seconds) if item_seconds else largest))


def _worker_lost() -> Unavailable:
    return Unavailable("worker_lost", "the encoder ended while it had this request; send it again", 2)


def specs_for(spec: ModelSpec, device: str) -> list[ModelSpec]:
    """Make a spec of the model per device: one name, several with commas, or `all` GPUs of this machine.

    >>> [s.device for s in specs_for(ModelSpec("embedded"), "cuda:0, cuda:1")]
    ['cuda:0', 'cuda:1']
    """
    names = [name.strip() for name in device.split(",") if name.strip()]
    if device == "all":
        with ProcessPoolExecutor(1, spawn_context()) as other:  # so that this process does not import torch
            names = [f"cuda:{i}" for i in range(other.submit(_count_gpus).result())]
    if not names or len(set(names)) < len(names):
        raise ConfigError.of("device", device, "names no device, or one twice; use auto, cpu, or cuda:0,cuda:1")
    return [replace(spec, device=name) for name in names]


def _count_gpus() -> int:
    import torch

    return torch.cuda.device_count()
