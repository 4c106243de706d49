"""The batch job: find, encode, score, record. A run that is killed and started again gives the same tables."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .engines import (
    Devices,
    EncodingEngine,
    EngineSettings,
    Local,
    Nodes,
    NodeShare,
    ProgressTotals,
    Ray,
    ShardTask,
    remove_plan,
)
from .errors import AllFailedError, ConfigError, LockedError, MismatchError
from .estimators import Estimator, ModelSpec
from .labels.anchors import anchors_file
from .labels.classes import SOURCE, ClassSet, as_classes, source_classes
from .neighbours import NeighbourSearch
from .pairs.beta import PAIRS, Beta, cached_beta
from .pairs.pair_fit import read_pair_fit, sample_run
from .runs.lock import SCORING, folder_lock
from .runs.resume import Resume, RunRecord, check_settings, clear, sweep
from .runs.table import RunFolder, read_metadata
from .scoring import RunScores, Summary, learn_scores, write_scores
from .scoring.summary import FEW_PAIRS, summarise, tells_nothing, unknown_data
from .settings import AnnotateSettings, DecodeOptions, read_tasks
from .shards.locate import Shard, find_shards
from .shards.sources import TableColumns, refuse_tasks
from .shards.workers import start_server
from .system.output_files import writing_to
from .system.progress import Progress, progress_for
from .system.stores import Store

Lock = Callable[[], AbstractContextManager[Any]]


def annotate(
    shards: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    model: str | None = None,
    pretrained: str | None = None,
    device: str = AnnotateSettings.device,
    decoder: str = AnnotateSettings.decoder,
    task: str | Sequence[str] | None = None,
    classes: str | Path | Sequence[str] | ClassSet | None = None,
    estimator: Estimator | Callable[[], Estimator] | None = None,
    beta: str = AnnotateSettings.beta,
    cut: str = AnnotateSettings.cut,
    options: DecodeOptions | None = None,
    image_column: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    k: int | None = AnnotateSettings.k,
    repair: str = AnnotateSettings.repair,
    neighbourhood: bool = AnnotateSettings.neighbourhood,
    workers: int | None = AnnotateSettings.workers,
    keep_embeddings: bool = AnnotateSettings.keep_embeddings,
    keep_going: bool = AnnotateSettings.keep_going,
    overwrite: bool = AnnotateSettings.overwrite,
    retry_failed: bool = AnnotateSettings.retry_failed,
    check: bool = AnnotateSettings.check,
    seed: int = AnnotateSettings.seed,
    neighbour_memory: int | None = AnnotateSettings.neighbour_memory,
    progress: bool | Progress | None = None,
    engine: EngineSettings | None = None,
    nodes: Nodes | None = None,
) -> Summary:
    """Score every sample of `shards` into weight tables below `out`, and return a summary.

    `shards` are tars, a folder of pictures, a table or another source; `image_column`, `text_column` and `label_column` name
    the columns of a table (default: guessed). `task` is `pairs` (default), `labels` or both:
    `pairs,labels`. `classes` give labels their text anchors: `cifar10`, a file, or a list of names. `model` and `pretrained`
    name the model (default: the embedded one, for drawn scenes only); `estimator` replaces them by what `load_estimator`
    returns, a function that makes one, or an object of your own with `encode_images`, `encode_texts` and a string
    `identity`. `progress=True` shows a bar or lines.

    `engine` chooses where to encode and to search neighbours (default: this process); with `nodes` this process encodes one
    part of the shards, and scores all if it is the last. The tables depend on neither. The other keywords are those of
    `AnnotateSettings`; `options` has the ones about reading.

    A stopped run is resumed: finished shards are left alone unless their tar, table or embeddings have changed (`check`
    compares all digests, not only those of files with a new size or time). More shards may be scored into the
    same folder later: β is then learned from all of them, and all tables are updated. Raises MismatchError if `out` was made
    with another scorer, β or way of reading, unless `overwrite`.
    """
    reading = options or DecodeOptions()
    if task is not None:
        reading = replace(reading, tasks=read_tasks(task if isinstance(task, str) else ",".join(task)))
    if estimator is not None and (model is not None or pretrained is not None):
        raise ConfigError.of("model", model or pretrained, "is given, and an estimator too; give one of them")
    if estimator is not None and decoder != AnnotateSettings.decoder:
        raise ConfigError.of("decoder", decoder, "is a choice of the estimator that is given; leave it out")
    if classes is not None and "labels" not in reading.tasks:
        raise ConfigError.of("classes", str(classes)[:60], "are for labels, which are not scored; use task='labels'")
    settings = AnnotateSettings(
        model=model or AnnotateSettings.model,
        pretrained=pretrained,
        device=device,
        decoder=decoder,
        classes=SOURCE if classes == SOURCE else None,
        beta=beta,
        cut=cut,
        tasks=reading.tasks,
        image_column=image_column,
        text_column=text_column,
        label_column=label_column,
        text_field=reading.text_field,
        label_field=reading.label_field,
        **vars(reading.limits),
        k=k,
        repair=repair,
        neighbourhood=neighbourhood,
        workers=workers,
        keep_embeddings=keep_embeddings,
        keep_going=keep_going,
        overwrite=overwrite,
        retry_failed=retry_failed,
        check=check,
        seed=seed,
        neighbour_memory=neighbour_memory,
    )
    return annotate_with(
        settings,
        shards,
        out,
        estimator=estimator,
        classes=None if classes is None or classes == SOURCE else as_classes(classes),
        progress=progress_for(not progress) if isinstance(progress, bool) else progress,
        engine=engine,
        nodes=nodes,
    )


def annotate_with(
    settings: AnnotateSettings,
    shards: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    estimator: Estimator | Callable[[], Estimator] | None = None,
    classes: ClassSet | None = None,
    progress: Progress | None = None,
    engine: EngineSettings | None = None,
    nodes: Nodes | None = None,
) -> Summary:
    """Run `annotate` with its settings in one object; `estimator`, `engine` and `nodes` override the settings."""
    model = estimator or ModelSpec(**settings.model_values)
    engine = engine or choose_engine(settings)
    nodes = nodes or Nodes.read(settings.nodes, settings.node_rank)
    columns = TableColumns(settings.image_column, settings.text_column, settings.label_column)
    located, progress = find_shards(shards, columns), progress or Progress()
    refuse_tasks((shard.url for shard in located), settings.tasks)
    if classes is None and settings.classes == SOURCE:
        classes = source_classes(shard.url for shard in located)
    run = RunFolder.to_write(out, note=progress.note)
    if run.mirror is not None:
        _check_store(run.mirror.store, engine, nodes)
    job = _Job(settings, run, located, classes, progress)
    job.record.model = model.to_dict() if isinstance(model, ModelSpec) else None

    def start() -> AbstractContextManager[EncodingEngine]:
        if isinstance(model, ModelSpec):
            only = ", which understands drawn scenes only; --model names another" if model.model == "embedded" else ""
            job.progress.note(f"loading {model.model}{only}")
            if model.is_fast and settings.workers != 0 and isinstance(engine, Local):
                start_server()
        return engine.start(model, len(job.shards), job.progress.note)

    try:
        with writing_to(run.path):
            return job.run_alone(start) if nodes is None else job.run_as_node(start, NodeShare(job.run.path, nodes))
    finally:
        job.progress.stop()


def _check_store(store: Store, engine: EngineSettings, nodes: Nodes | None) -> None:
    """Raise ConfigError for settings that a run in a store does not support."""
    if nodes is not None:
        raise ConfigError.of("out", store.url, "cannot be shared by --nodes; use --engine ray, or a shared folder")
    if store.protocol == "memory" and not isinstance(engine, Local):
        raise ConfigError.of("out", store.url, "is in this process alone; leave out --engine and --devices")


def choose_engine(settings: AnnotateSettings) -> EngineSettings:
    """Return the engine that the settings name; raise ConfigError for values that cannot work."""
    if settings.engine == "ray":
        return Ray(settings.address, settings.ray_workers, settings.gpus_per_worker, settings.cpus_per_worker)
    return Local() if settings.devices is None else Devices.read(settings.devices)


@dataclass
class _Job:
    settings: AnnotateSettings
    run: RunFolder
    shards: list[Shard]
    classes: ClassSet | None
    progress: Progress
    began: float = field(default_factory=time.monotonic)
    encode_seconds: float = 0.0
    encoded: int = 0

    def __post_init__(self) -> None:
        digest = self.classes.digest if self.classes else None
        self.stems = [shard.stem for shard in self.shards]
        self.record = RunRecord(self.run, self.shards, self.settings, digest)

    def run_alone(self, start: Callable[[], AbstractContextManager[EncodingEngine]]) -> Summary:
        """Find, encode, score and record all shards."""
        with self.run.lock(), start() as engine:
            if self.settings.overwrite:
                clear(self.run, self.stems)  # only after the model is loaded: a wrong name must not cost the tables
                self.run.publish()
            todo, sizes = self._find(engine, self.shards, nullcontext)
            try:
                self._encode(engine, todo, sizes)
            except AllFailedError:
                self.run.fetch_embeddings()  # all files that workers put, so that they are cleared too
                clear(self.run)  # nothing was scored, and the settings that failed must not bind the next try
                self.run.publish()
                raise
            return self._score_and_record(engine)

    def run_as_node(self, start: Callable[[], AbstractContextManager[EncodingEngine]], share: NodeShare) -> Summary:
        """Find and encode this node's shards; score and record all if the other nodes are done."""
        with share.lock_rank(), start() as engine:
            plan = self.record.fixed_settings(engine.identity) | {
                "overwrite": self.settings.overwrite,
                "retry_failed": self.settings.retry_failed,
            }
            start_over = (lambda: clear(self.run, self.stems)) if self.settings.overwrite else lambda: None
            with share.take_shards(self.shards, plan, start_over, self.progress.note) as part:
                todo, sizes = self._find(engine, part, share.lock_plan)
                self._encode(engine, todo, sizes)
                share.report(self.record.failed)
            try:
                with folder_lock(self.run.path, doing=SCORING):
                    waits_for = self._waits_for(engine, share)
                    if waits_for is None:
                        return self._score_and_record(engine)
            except LockedError:
                waits_for = "other nodes, which are at work"
        stems = [shard.stem for shard in part if self.run.table(shard.stem).exists()]
        return self._summarise(sorted(stems), RunScores(), waits_for)

    def _find(
        self, engine: EncodingEngine, shards: Sequence[Shard], lock: Lock
    ) -> tuple[list[Shard], dict[str, int | None]]:
        """Return the shards to encode, and the sizes of all shards; raise MismatchError if the folder belongs to other data.

        `_run.json` then lists them, written under `lock`.
        """
        identity = engine.identity
        before = self.run.read_run()
        if before is not None:
            fixed = self.record.fixed_settings(identity)
            check_settings(before, fixed, self.run.name, self.settings.retry_failed)
        self.run.fetch_embeddings()
        resume = self._resume(engine, self.settings.retry_failed, self.settings.check)
        todo = resume.todo(shards)
        self._check_embeddings(resume, todo)
        for table in resume.stale:
            table.unlink(missing_ok=True)
        self.record.failed, self.record.times = dict(resume.unreachable), dict(resume.times)
        if todo or any(shard.stem not in resume.listed for shard in self.shards):
            with lock():
                self.record.write(identity, RunScores().record(), finished=False)
        self.run.publish()
        size = sum(resume.sizes[shard.url] or 0 for shard in todo)
        self.progress.start(len(todo), size, len(shards) - len(todo) - len(resume.unreachable))
        for problem in resume.unreachable.values():
            self.progress.note(problem)
        return todo, resume.sizes

    def _encode(self, engine: EncodingEngine, todo: Sequence[Shard], sizes: Mapping[str, int | None]) -> None:
        """Encode the shards into embeddings and unscored tables."""
        reading = self.settings.reading
        named = len(self.classes.names) if self.classes and "labels" in reading.tasks else None
        store = self.run.mirror.store.url if self.run.mirror else None
        task = ShardTask(self.run.path, reading, self.settings.workers, self.settings.retry_failed, named, store)
        first_try = not self.settings.retry_failed and not any(self.run.stems())
        fail_fast = first_try and not self.settings.keep_going
        judge = self._judge_model if first_try and len(todo) > 1 else None  # all pairs are judged after the last shard
        totals = ProgressTotals(self.progress, sizes, fail_fast, judge, self.run.check_lease)
        began = time.monotonic()
        if todo:
            engine.encode(task, todo, totals)
            self.run.fetch_embeddings()  # and tables, of shards that other machines encoded
        self.encode_seconds, self.encoded = time.monotonic() - began, totals.encoded
        self.record.notes = totals.notes
        self.record.failed |= {shard.url: totals.failed[shard.url] for shard in todo if shard.url in totals.failed}

    def _judge_model(self, stem: str) -> None:
        """Warn after the first shard if the model cannot tell its pairs from shuffled ones."""
        if "pairs" not in self.settings.tasks or not self.run.embeddings(stem).exists():
            return
        sample = sample_run(self.run, [stem], PAIRS, self.settings.seed)
        calibration = sample.calibration if len(sample.given) >= FEW_PAIRS else None
        if calibration and tells_nothing(calibration):
            model = read_metadata(self.run.table(stem))["scorer"]["model"]
            self.progress.note(f"after the first shard: {unknown_data(model, calibration)}")

    def _score_and_record(self, engine: EncodingEngine) -> Summary:
        """Learn the scores from all tables of the folder, write them, and mark the run as finished."""
        stems = sorted(self.run.stems())
        scores = self._score(engine, stems)
        self.record.write(engine.identity, scores.record(), finished=True)
        if (
            not self.settings.keep_embeddings and not self.record.failed
        ):  # a failed shard may be encoded later; β then needs the embeddings of all shards
            for shard in self.shards:
                self.run.embeddings(shard.stem).unlink(missing_ok=True)
        remove_plan(self.run.path)
        sweep(self.run)
        return self._summarise(stems, scores)

    def _score(self, engine: EncodingEngine, stems: Sequence[str]) -> RunScores:
        scoring = self.settings.scoring
        if not all(self.run.embeddings(stem).exists() for stem in stems):  # dropped after an earlier scoring
            return RunScores(read_pair_fit(self.run, stems, scoring.seed) if "pairs" in scoring.tasks else None)

        def measure_model_beta() -> Beta:
            beta = cached_beta(engine.identity, scoring.seed, lambda: engine.random_inputs(scoring.seed))
            self.record.random_inputs = beta.to_dict()
            return beta

        search = NeighbourSearch(self.settings.neighbour_memory, run=engine.search, remote=engine.searches_remotely)
        if self.run.mirror is not None and engine.searches_remotely:  # other machines do not see this copy of the run
            search = NeighbourSearch(self.settings.neighbour_memory)
        anchors = engine.anchors(self.classes) if self.classes else None
        if anchors:
            anchors.save(anchors_file(self.run))
        scores = learn_scores(
            self.run,
            stems,
            scoring,
            random_inputs=measure_model_beta,
            anchors=anchors,
            search=search,
            note=self.progress.note,
            keep_embeddings=self.settings.keep_embeddings,
        )
        write_scores(self.run, stems, scores)
        return scores

    def _resume(self, engine: EncodingEngine, retry_failed: bool, check: bool = False) -> Resume:
        before = self.run.read_run()
        listed = {entry["table"]: entry for entry in before["shards"]} if before else {}
        reading, keep = self.settings.reading.to_dict(), self.settings.keep_embeddings
        return Resume(self.run, engine.identity, reading, listed, keep, retry_failed, self.progress.note, check)

    def _check_embeddings(self, resume: Resume, todo: Sequence[Shard]) -> None:
        """Raise MismatchError if new shards should be scored along with tables whose embeddings were dropped."""
        again = {shard.stem for shard in todo}
        for stem in resume.listed:
            dropped = self.run.table(stem).exists() and not self.run.embeddings(stem).exists()
            if todo and dropped and stem not in again:
                raise MismatchError.of(
                    "out",
                    str(self.run.name),
                    f"has dropped the embeddings of {stem}, needed to score {todo[0].url}; use another --out, or --overwrite",
                )

    def _waits_for(self, engine: EncodingEngine, share: NodeShare) -> str | None:
        """Describe what other nodes must finish before the run can be scored, None if nothing; skip unreadable shards."""
        failed = share.failed()
        resume = self._resume(engine, retry_failed=False)
        left = [shard for shard in resume.todo(self.shards) if shard.url not in failed]
        known = {**failed, **resume.unreachable}
        self.record.failed = {shard.url: known[shard.url] for shard in self.shards if shard.url in known}
        self.record.times |= resume.times
        if left:
            return f"{len(left):,} shards of other nodes, such as {left[0].url}"
        missing = share.missing_nodes() if self.settings.overwrite else []  # a late node would overwrite this run
        return f"node {missing[0]}" if missing else None

    def _summarise(self, stems: Sequence[str], scores: RunScores, waits_for: str | None = None) -> Summary:
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
