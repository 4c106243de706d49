"""The batch job: read, decode, encode, score, write. Killed at any moment and started again, it gives the same tables."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .engines import Engine, EngineSettings
from .engines.local import Local
from .engines.nodes import Nodes, NodeShare, forget_plan
from .engines.progress_totals import Tally
from .engines.shard_task import ShardTask
from .errors import LockedError, MismatchError
from .estimators import ModelSpec
from .estimators.base import Estimator
from .labels.classes import ClassSet
from .neighbours import NeighbourSearch
from .pairs.beta import Beta, cached_beta
from .pairs.pair_fit import read_pair_fit
from .run_record import RunRecord
from .runs.lock import SCORING, folder_lock
from .runs.resume import Resume, check_settings, clear, sweep
from .runs.table import RunFolder
from .score_run import RunScores, ScoreSettings, anchors_file, score_run
from .shards.locate import Shard, find_shards
from .shards.workers import DecodeOptions
from .summary import Summary, summarise
from .system.output_files import writing_to
from .system.progress import Progress

__all__ = ["annotate"]


def annotate(
    shards: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    estimator: Estimator | Callable[[], Estimator] | None = None,
    beta: str = "auto",
    options: DecodeOptions | None = None,
    classes: ClassSet | None = None,
    k: int | None = None,
    neighbourhood: bool = False,
    workers: int | None = None,
    keep_embeddings: bool = True,
    overwrite: bool = False,
    retry_failed: bool = False,
    seed: int = 0,
    neighbour_memory: int | None = None,
    progress: Progress | None = None,
    engine: EngineSettings | None = None,
    nodes: Nodes | None = None,
) -> Summary:
    """Score every sample of `shards` into weight tables below `out`, and return what came out.

    `estimator` is what `load_estimator` returns, a function that makes one, or an object of your own with `encode_images`,
    `encode_texts` and a string `identity` (default: the embedded one). A run that was stopped goes on where it was;
    finished shards are left alone unless their tar has changed. `retry_failed` reads failed samples again.
    `classes` give labels their text anchors, `k` and `neighbourhood` are as in `ScoreSettings`.
    More shards may be scored into the same folder later: β is then learned from all of them, and all tables follow it.
    `engine` says who encodes and who searches neighbours (default: this process), in `neighbour_memory` bytes of each
    machine (default: half of what is free), and with `nodes` this process encodes one part of the shards and
    scores all where it is the last; the tables depend on neither.
    Raises MismatchError when `out` was made by another scorer, β or way of reading, unless `overwrite`.
    """
    options, engine, run = options or DecodeOptions(), engine or Local(), RunFolder(Path(out))
    given = estimator or ModelSpec()
    model = given.to_dict() if isinstance(given, ModelSpec) else None
    job = _Job(
        ScoreSettings(beta, options.tasks, k, neighbourhood, seed),
        run,
        find_shards(shards),
        ShardTask(run.path, options, workers, retry_failed, _named(classes, options)),
        classes,
        keep_embeddings,
        overwrite,
        progress or Progress(),
        neighbour_memory,
    )
    job.record.model_spec = model

    def started() -> AbstractContextManager[Engine]:
        if model:
            job.progress.note(f"loading {model['model']}")
        return engine.start(given, len(job.shards), job.progress.note)

    try:
        with writing_to(out):
            return job.alone(started) if nodes is None else job.as_node(started, NodeShare(run.path, nodes))
    finally:
        job.progress.stop()


def _named(classes: ClassSet | None, options: DecodeOptions) -> int | None:
    """How many classes labels may have, where they are scored and named."""
    return len(classes.names) if classes and "labels" in options.tasks else None


@dataclass
class _Job:
    settings: ScoreSettings
    run: RunFolder
    shards: list[Shard]
    task: ShardTask
    classes: ClassSet | None
    keep_embeddings: bool
    overwrite: bool
    progress: Progress
    neighbour_memory: int | None
    began: float = field(default_factory=time.monotonic)
    encode_seconds: float = 0.0
    encoded: int = 0

    def __post_init__(self) -> None:
        self.record = RunRecord(self.run, self.shards, self.settings, self.task.options, self.classes)

    def alone(self, started: Callable[[], AbstractContextManager[Engine]]) -> Summary:
        """All shards, then the scores."""
        with folder_lock(self.run.path), started() as engine:
            if self.overwrite:
                self._clear()  # not before the model is there: a slip in its name must not cost the tables
            self._encode(engine, self.shards, nullcontext)
            return self._finish(engine)

    def as_node(self, started: Callable[[], AbstractContextManager[Engine]], share: NodeShare) -> Summary:
        """This node's part of the shards, and the scores where all others have theirs."""
        with share.holding_rank(), started() as engine:
            plan = self.record.settings(engine.identity) | {
                "overwrite": self.overwrite,
                "retry_failed": self.task.retry_failed,
            }
            fresh = self._clear if self.overwrite else lambda: None
            with share.at_work(self.shards, plan, fresh, self.progress.note) as part:
                self._encode(engine, part, share.planning)
                share.report(self.record.failed)
            try:
                with folder_lock(self.run.path, doing=SCORING):
                    left = self._left(engine, share.failed())
                    absent = share.absent() if self.overwrite else []  # one that comes later would overwrite this run
                    if not left and not absent:
                        return self._finish(engine)
                    waits_for = (
                        f"{len(left):,} shards of other nodes, such as {left[0].url}" if left else f"node {absent[0]}"
                    )
            except LockedError:
                waits_for = "other nodes, which are at work"
        stems = [shard.stem for shard in part if self.run.table(shard.stem).exists()]
        return self._summary(sorted(stems), RunScores(None, None, None, None), waits_for)

    def _clear(self) -> None:
        clear(self.run, [shard.stem for shard in self.shards])

    def _encode(
        self, engine: Engine, shards: Sequence[Shard], recording: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        todo, sizes = self._plan(engine, shards, recording)
        tally = Tally(self.progress, sizes)
        began = time.monotonic()
        if todo:
            engine.encode(self.task, todo, tally)
        self.encode_seconds, self.encoded = time.monotonic() - began, tally.encoded
        self.record.notes = tally.notes
        self.record.failed |= {shard.url: tally.failed[shard.url] for shard in todo if shard.url in tally.failed}

    def _plan(
        self, engine: Engine, shards: Sequence[Shard], recording: Callable[[], AbstractContextManager[Any]]
    ) -> tuple[list[Shard], dict[str, int | None]]:
        """The shards to encode and their sizes, once it is sure that they may go into this folder; `_run.json` then says so.

        Whoever else may write that file is kept out by `recording`.
        """
        identity = engine.identity
        before = self.run.read_run()
        if before is not None:
            check_settings(before, self.record.settings(identity), self.run.path, self.task.retry_failed)
        resume = self._resume(engine, self.task.retry_failed)
        todo = resume.todo(shards)
        again = {shard.stem for shard in todo}
        gone = [
            stem
            for stem in resume.listed
            if stem not in again and self.run.table(stem).exists() and not self.run.embeddings(stem).exists()
        ]
        if todo and gone:
            raise MismatchError(
                f"{self.run.path}: the embeddings of {gone[0]} were dropped, so {todo[0].url} cannot be scored along with "
                "it; score it into another --out, or all of them again with --overwrite"
            )
        for table in resume.stale:
            table.unlink(missing_ok=True)
        self.record.failed, self.record.times = dict(resume.unreachable), dict(resume.times)
        if todo or any(shard.stem not in resume.listed for shard in self.shards):
            with recording():
                self.record.write(identity, None, finished=False)
        size = sum(resume.sizes[shard.url] or 0 for shard in todo)
        self.progress.start(len(todo), size, len(shards) - len(todo) - len(resume.unreachable))
        for problem in resume.unreachable.values():
            self.progress.note(problem)
        return todo, resume.sizes

    def _resume(self, engine: Engine, retry_failed: bool) -> Resume:
        before = self.run.read_run()
        listed = {entry["table"]: entry for entry in before["shards"]} if before else {}
        reading, keep = self.record.reading, self.keep_embeddings
        return Resume(self.run, engine.identity, reading, listed, keep, retry_failed, self.progress.note)

    def _left(self, engine: Engine, failed: Mapping[str, str]) -> list[Shard]:
        """Shards of the whole run that are still to be encoded, apart from those that no node could read."""
        resume = self._resume(engine, retry_failed=False)
        todo = resume.todo(self.shards)
        known = {**failed, **resume.unreachable}
        self.record.failed = {shard.url: known[shard.url] for shard in self.shards if shard.url in known}
        self.record.times |= resume.times
        return [shard for shard in todo if shard.url not in failed]

    def _finish(self, engine: Engine) -> Summary:
        """Learn the scores from all tables there are, and write them."""
        stems = sorted(self.run.stems())
        scores = self._score(engine, stems)
        self.record.write(engine.identity, scores.pairs.beta if scores.pairs else None, finished=True)
        if not self.keep_embeddings and not self.record.failed:  # a shard that is still to come needs them all for β
            for shard in self.shards:
                self.run.embeddings(shard.stem).unlink(missing_ok=True)
        forget_plan(self.run.path)
        sweep(self.run)
        return self._summary(stems, scores)

    def _score(self, engine: Engine, stems: Sequence[str]) -> RunScores:
        if not all(self.run.embeddings(stem).exists() for stem in stems):  # dropped after scoring: the tables know
            pairs = read_pair_fit(self.run, stems, self.settings.seed) if "pairs" in self.settings.tasks else None
            return RunScores(pairs, None, None, None)

        def of_model() -> Beta:
            seed = self.settings.seed
            self.record.random_inputs = cached_beta(engine.identity, seed, lambda: engine.random_inputs(seed))
            return self.record.random_inputs

        anchors = engine.anchors(self.classes) if self.classes else None
        if anchors:
            anchors.save(anchors_file(self.run))
        return score_run(
            self.run,
            stems,
            self.settings,
            random_inputs=of_model,
            anchors=anchors,
            search=NeighbourSearch(self.neighbour_memory, run=engine.search, remote=engine.searches_remotely),
            note=self.progress.note,
        )

    def _summary(self, stems: Sequence[str], scores: RunScores, waits_for: str | None = None) -> Summary:
        return summarise(
            self.run,
            stems,
            scores,
            failed_shards=self.record.failed,
            encoded=self.encoded,
            encode_seconds=self.encode_seconds,
            seconds=time.monotonic() - self.began,
            waits_for=waits_for,
            notes=self.record.notes,
        )
