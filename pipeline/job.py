"""The batch job: read, decode, encode, score, write. Killed at any moment and started again, it gives the same tables."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .anchors import embed_anchors
from .beta import Beta, beta_of_random_inputs
from .beta_cache import cached_beta
from .classes import ClassSet
from .embeddings import embeddings_match, write_embeddings
from .encode_shard import EncodedShard
from .errors import MismatchError
from .estimators import ModelSpec, as_estimator
from .estimators.base import Estimator, Identity
from .lock import folder_lock
from .out_folder import writing_to
from .progress import Progress, Silent
from .read import RawSample
from .resume import Resume, check_settings, clear, failed_rows
from .scoring import RunScores, ScoreSettings, anchors_file, score_run
from .shards import Shard, find_shards
from .stream import Chunk, ShardEnd, ShardFailed, stream
from .summary import Summary, summarise
from .table import VERSION, RunFolder, read_metadata, table_from
from .weigh import recorded_pair_scoring
from .workers import DecodeOptions, DecodePool, default_workers

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
    progress: Progress | None = None,
) -> Summary:
    """Score every sample of `shards` into weight tables below `out`, and return what came out.

    `estimator` is what `load_estimator` returns, a function that makes one, or an object of your own with `encode_images`,
    `encode_texts` and a string `identity` (default: the embedded one). A run that was stopped goes on where it was;
    finished shards are left alone unless their tar has changed. `retry_failed` reads failed samples again.
    `classes` give labels their text anchors, `k` and `neighbourhood` are as in `ScoreSettings`.
    More shards may be scored into the same folder later: β is then learned from all of them, and all tables follow it.
    Raises MismatchError when `out` was made by another scorer, β or way of reading, unless `overwrite`.
    """
    options = options or DecodeOptions()
    job = _Job(
        settings=ScoreSettings(beta, options.tasks, k, neighbourhood, seed),
        run=RunFolder(Path(out)),
        shards=find_shards(shards),
        options=options,
        classes=classes,
        workers=default_workers() if workers is None else workers,
        keep_embeddings=keep_embeddings,
        retry_failed=retry_failed,
        progress=progress or Silent(),
    )
    try:
        with writing_to(out), folder_lock(job.run.path):
            return job.go(estimator or ModelSpec(), overwrite)
    finally:
        job.progress.stop()


@dataclass
class _Job:
    settings: ScoreSettings
    run: RunFolder
    shards: list[Shard]
    options: DecodeOptions
    classes: ClassSet | None
    workers: int
    keep_embeddings: bool
    retry_failed: bool
    progress: Progress
    model_spec: Mapping[str, Any] | None = None
    random_inputs: Beta | None = None
    failed: dict[str, str] = field(default_factory=dict)
    times: dict[str, float | None] = field(default_factory=dict)
    sizes: dict[str, int | None] = field(default_factory=dict)
    encoded: int = 0

    def go(self, estimator: Estimator | Callable[[], Estimator], overwrite: bool) -> Summary:
        began = time.monotonic()
        if isinstance(estimator, ModelSpec):
            self.model_spec = estimator.to_dict()
            self.progress.note(f"loading {estimator.model}")
        model = as_estimator(estimator)
        if overwrite:
            clear(
                self.run, [shard.stem for shard in self.shards]
            )  # not before the model is there: a slip in its name must not cost the tables
        todo = self._plan(model.identity)
        encoding = time.monotonic()
        self._encode_shards(model, todo)
        seconds = time.monotonic() - encoding
        stems = sorted(self.run.stems())
        scores = self._score(model, stems)
        self._write_run(model.identity, scores.pairs.beta if scores.pairs else None, finished=True)
        if not self.keep_embeddings and not self.failed:  # a shard that is still to come needs them all for β
            for shard in self.shards:
                self.run.embeddings(shard.stem).unlink(missing_ok=True)
        return summarise(
            self.run,
            stems,
            scores,
            failed_shards=self.failed,
            encoded=self.encoded,
            encode_seconds=seconds,
            seconds=time.monotonic() - began,
        )

    def _plan(self, identity: Identity) -> list[Shard]:
        """The shards to encode, once it is sure that they may go into this folder; `_run.json` then says so."""
        before = self.run.read_run()
        if before is not None:
            check_settings(before, self._settings(identity), self.run.path, self.retry_failed)
        listed = {entry["table"]: entry for entry in before["shards"]} if before else {}
        resume = Resume(
            self.run, identity, self._reading(), listed, self.keep_embeddings, self.retry_failed, self.progress.note
        )
        todo = resume.todo(self.shards)
        again = {shard.stem for shard in todo}
        gone = [
            s for s in listed if s not in again and self.run.table(s).exists() and not self.run.embeddings(s).exists()
        ]
        if todo and gone:
            raise MismatchError(
                f"{self.run.path}: the embeddings of {gone[0]} were dropped, so {todo[0].url} cannot be scored along with "
                "it; score it into another --out, or all of them again with --overwrite"
            )
        for table in resume.stale:
            table.unlink(missing_ok=True)
        self.failed, self.times, self.sizes = resume.unreachable, resume.times, resume.sizes
        if todo or any(shard.stem not in listed for shard in self.shards):
            self._write_run(identity, None, finished=False)
        size = sum(resume.sizes[shard.url] or 0 for shard in todo)
        self.progress.start(len(todo), size, len(self.shards) - len(todo) - len(self.failed))
        for problem in self.failed.values():
            self.progress.note(problem)
        return todo

    def _encode_shards(self, model: Estimator, todo: Sequence[Shard]) -> None:
        if not todo:
            return
        retry = {shard.url: rows for shard in todo if self.retry_failed and (rows := self._retryable(shard))}
        ahead = 2 * max(1, self.workers) + 2
        with (
            DecodePool(self.workers, model.preprocess, self.options) as pool,
            closing(stream(todo, pool, ahead, _only(retry) if retry else None)) as items,
        ):
            part = EncodedShard(model)
            for item in items:
                if isinstance(item, Chunk):
                    self.progress.advance(len(item.samples), item.position - part.position)
                    part.add(item)
                    continue
                self.progress.advance(0, (self.sizes[item.shard.url] or 0) - part.position)
                if isinstance(item, ShardFailed):
                    self.failed[item.shard.url] = item.error
                    self.progress.note(item.error)
                else:
                    part.finish()
                    self.encoded += len(part.samples)
                    if item.shard.url in retry:
                        self._merge(part, item)
                    self._write(part, item, model.identity)
                part = EncodedShard(model)

    def _retryable(self, shard: Shard) -> set[int]:
        """Rows to read again; none where there is no whole table to put them into."""
        table = self.run.table(shard.stem)
        if not table.exists():
            return set()
        known = read_metadata(table)["shard"]
        whole = embeddings_match(self.run.embeddings(shard.stem), known["rows"], known["sha256"])
        return failed_rows(table) if whole else set()

    def _merge(self, part: EncodedShard, end: ShardEnd) -> None:
        """Put retried samples among the rows that the table already has."""
        table = self.run.table(end.shard.stem)
        if read_metadata(table)["shard"]["sha256"] != end.sha256:
            raise MismatchError(f"{end.shard.url} was changed while it was read; run the same command again")
        part.put_into(table, self.run.embeddings(end.shard.stem))

    def _write(self, part: EncodedShard, end: ShardEnd, identity: Identity) -> None:
        """Embeddings first: the table's presence says that all of the shard is done."""
        count = len(part.samples)
        shard = {"name": Path(end.shard.url).name, "sha256": end.sha256, "size": end.size, "rows": count}
        metadata = {
            "table_version": VERSION,
            "scorer": identity.to_dict(),
            "shard": {**shard, "damage": end.damage},
            "reading": self._reading(),
        }
        write_embeddings(self.run.embeddings(end.shard.stem), part.images, part.texts, {"shard": shard})
        self.run.write_table(end.shard.stem, table_from(part.columns(), metadata))
        if end.damage:
            self.progress.note(f"{end.shard.url}: {end.damage}; its {count:,} samples are kept")
        self.progress.shard(end.shard.stem, count, sum(sample.status != "ok" for sample in part.samples))

    def _score(self, model: Estimator, stems: Sequence[str]) -> RunScores:
        if not all(self.run.embeddings(stem).exists() for stem in stems):  # dropped after scoring: the tables know
            pairs = (
                recorded_pair_scoring(self.run, stems, self.settings.seed) if "pairs" in self.settings.tasks else None
            )
            return RunScores(pairs, None, None, None)

        def of_model() -> Beta:
            seed = self.settings.seed
            self.random_inputs = cached_beta(model.identity, seed, lambda: beta_of_random_inputs(model, seed=seed))
            return self.random_inputs

        anchors = embed_anchors(model, self.classes) if self.classes else None
        if anchors:
            anchors.save(anchors_file(self.run))
        return score_run(
            self.run, stems, self.settings, random_inputs=of_model, anchors=anchors, note=self.progress.note
        )

    def _reading(self) -> dict[str, Any]:
        return asdict(self.options) | {"tasks": list(self.options.tasks)}

    def _settings(self, identity: Identity) -> dict[str, Any]:
        return {
            "scorer": identity.to_dict(),
            "scoring": self.settings.to_dict() | {"classes": self.classes.digest if self.classes else None},
            "reading": self._reading(),
        }

    def _write_run(self, identity: Identity, beta: Beta | None, finished: bool) -> None:
        """`_run.json`: what was asked for and which shards; `finished` with all that could be read, `complete` with all."""
        before = self.run.read_run()
        known = {entry["table"]: entry for entry in before["shards"]} if before else {}
        here = {shard.stem for shard in self.shards}
        entries = [entry for entry in known.values() if entry["table"] not in here]
        for shard in self.shards:
            new = {"url": shard.url, "table": shard.stem, "modified": self.times.get(shard.url)}
            entries.append(new if shard.url in self.times else known.get(shard.stem, new))
        shards = [{**entry, **_facts(self.run, entry["table"])} for entry in entries]
        self.run.write_run(
            {
                **self._settings(identity),
                "table_version": VERSION,
                "noisegate": version("noisegate"),
                "model": self.model_spec,
                "beta": beta.to_dict() if beta else None,
                "random_inputs": self.random_inputs.to_dict()
                if self.random_inputs
                else (before or {}).get("random_inputs"),
                "shards": shards,
                "unreadable": self.failed,
                "finished": finished,
                "complete": finished and not self.failed and all("rows" in shard for shard in shards),
            }
        )


def _only(rows: dict[str, set[int]]) -> Callable[[Shard, RawSample], bool]:
    def select(shard: Shard, raw: RawSample) -> bool:
        return shard.url not in rows or raw.index in rows[shard.url]

    return select


def _facts(run: RunFolder, stem: str) -> dict[str, Any]:
    if not run.table(stem).exists():
        return {}
    shard = read_metadata(run.table(stem))["shard"]
    return {"rows": shard["rows"], "sha256": shard["sha256"]}
