"""The batch job: read, decode, encode, score, write. Killed at any moment and started again, it gives the same tables."""

import errno
import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .beta import Beta, beta_of_random_inputs, check_mode
from .beta_cache import cached_beta
from .embeddings import embeddings_match, read_embeddings, write_embeddings
from .errors import ConfigError, MismatchError, NoisegateError, TableError
from .estimators import load_estimator
from .estimators.base import Estimator, Identity
from .lock import folder_lock
from .progress import Progress, Silent
from .read import RawSample
from .scorer import encode
from .shards import Shard, find_shards
from .stream import Chunk, ShardEnd, ShardFailed, stream
from .summary import Summary, summarise
from .table import VERSION, RunFolder, read_metadata, table_from
from .weigh import learn_pair_scoring, score_tables
from .workers import Decoded, DecodeOptions, DecodePool, default_workers

__all__ = ["annotate"]


def annotate(
    shards: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    estimator: Estimator | Callable[[], Estimator] = load_estimator,
    beta: str = "auto",
    options: DecodeOptions | None = None,
    workers: int | None = None,
    keep_embeddings: bool = True,
    overwrite: bool = False,
    retry_failed: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Summary:
    """Score every sample of `shards` into weight tables below `out`, and return what came out.

    `estimator` is an estimator or a function that loads one (default: the embedded one). A run that was stopped goes on
    where it was; finished shards are left alone unless their tar has changed. `retry_failed` reads failed samples again.
    Raises MismatchError when `out` was made by another scorer, β or way of reading, unless `overwrite`.
    """
    job = _Job(
        run=RunFolder(Path(out)),
        shards=find_shards(shards),
        mode=check_mode(beta),
        options=options or DecodeOptions(),
        workers=default_workers() if workers is None else workers,
        keep_embeddings=keep_embeddings,
        retry_failed=retry_failed,
        seed=seed,
        progress=progress or Silent(),
    )
    if "://" in str(out):
        raise ConfigError(f"out {out} is a URL; tables are written to a local folder, such as --out tables")
    try:
        with folder_lock(job.run.path):
            return job.go(estimator, overwrite)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise NoisegateError(
            f"no space left for {out}; free some and run the same command again, it goes on"
        ) from error
    finally:
        job.progress.stop()


@dataclass
class _Job:
    run: RunFolder
    shards: list[Shard]
    mode: str
    options: DecodeOptions
    workers: int
    keep_embeddings: bool
    retry_failed: bool
    seed: int
    progress: Progress
    failed: dict[str, str] = field(default_factory=dict)
    encoded: int = 0

    def go(self, estimator: Estimator | Callable[[], Estimator], overwrite: bool) -> Summary:
        began = time.monotonic()
        if overwrite:
            _clear(self.run)
        model: Estimator = estimator() if callable(estimator) else estimator
        self._check_folder(model.identity)
        todo = [shard for shard in self.shards if not self._is_done(shard, model.identity)]
        self._write_run(model.identity, None, complete=False)
        encoding = time.monotonic()
        self._encode_shards(model, todo)
        seconds = time.monotonic() - encoding
        stems = [s.stem for s in self.shards if self.run.table(s.stem).exists() and s.url not in self.failed]
        self._require_embeddings(stems)
        scoring = learn_pair_scoring(
            self.run,
            stems,
            self.mode,
            lambda: cached_beta(model.identity, self.seed, lambda: beta_of_random_inputs(model, seed=self.seed)),
            self.seed,
        )
        score_tables(self.run, stems, scoring)
        self._write_run(model.identity, scoring.beta, complete=not self.failed)
        if not self.keep_embeddings:
            for stem in stems:
                self.run.embeddings(stem).unlink(missing_ok=True)
        return summarise(
            self.run,
            stems,
            scoring,
            failed_shards=self.failed,
            encoded=self.encoded,
            encode_seconds=seconds,
            seconds=time.monotonic() - began,
        )

    def _check_folder(self, identity: Identity) -> None:
        """Refuse a folder that was made with other settings, and say which."""
        before = self.run.read_run()
        if before is None:
            return
        differences = Identity.from_dict(before["scorer"]).differences(identity)
        now = {"beta": self.mode, "seed": self.seed, **self._reading()}
        then = {"beta": before["beta_setting"], "seed": before["seed"], **before["reading"]}
        if self.retry_failed:  # raising a limit is what a retry is for
            then["limits"] = now["limits"]
        differences += [f"{name}: {then[name]} there, {now[name]} now" for name in now if then[name] != now[name]]
        if differences:
            raise MismatchError(
                f"{self.run.path} was made with other settings:\n  "
                + "\n  ".join(differences)
                + "\nUse the same settings to go on, another --out, or --overwrite to start again."
            )

    def _reading(self) -> dict[str, Any]:
        plain = asdict(self.options)
        return plain | {"tasks": list(self.options.tasks)}

    def _is_done(self, shard: Shard, identity: Identity) -> bool:
        """Present, whole, and made from the shard as it is now; a shard newer than its table is read to make sure."""
        table = self.run.table(shard.stem)
        if not table.exists():
            return False
        metadata = read_metadata(table)
        rows = metadata["shard"]["rows"]
        if Identity.from_dict(metadata["scorer"]) != identity:
            raise MismatchError(f"{table} was made by another scorer than {self.run.run_file} says; use --overwrite")
        if self.keep_embeddings and not embeddings_match(self.run.embeddings(shard.stem), rows):
            return False
        try:
            size, changed = shard.size_and_time()
        except NoisegateError:
            return False  # reading it will tell, by name
        if size is not None and size != metadata["shard"]["size"]:
            self.progress.note(f"{shard.url} has changed since it was scored; it is scored again")
            return False
        if changed is not None and changed > table.stat().st_mtime and _digest(shard) != metadata["shard"]["sha256"]:
            self.progress.note(f"{shard.url} has changed since it was scored; it is scored again")
            return False
        return not (self.retry_failed and self._failed_rows(shard))

    def _failed_rows(self, shard: Shard) -> set[int]:
        statuses = pq.read_table(self.run.table(shard.stem), columns=["status"])["status"]
        return set(np.flatnonzero(pc.not_equal(statuses, "ok").to_numpy()).tolist())

    def _encode_shards(self, model: Estimator, todo: Sequence[Shard]) -> None:
        sizes = {}
        for shard in todo:
            try:
                sizes[shard.url] = shard.size_and_time()[0] or 0
            except NoisegateError as error:
                self.failed[shard.url] = str(error)
        self.progress.start(len(todo), sum(sizes.values()), len(self.shards) - len(todo))
        if not sizes:
            return
        retry = {s.url: self._retryable(s) for s in todo if self.retry_failed}
        readable = [shard for shard in todo if shard.url in sizes]
        select = _only(retry) if any(retry.values()) else None
        with DecodePool(self.workers, model.preprocess, self.options) as pool:
            part = _ShardPart(model)
            for item in stream(readable, pool, 2 * max(1, self.workers) + 2, select):
                if isinstance(item, Chunk):
                    self.progress.advance(len(item.samples), item.position - part.position)
                    part.add(item)
                elif isinstance(item, ShardFailed):
                    self.failed[item.shard.url] = item.error
                    self.progress.note(item.error)
                    part = _ShardPart(model)
                else:
                    part.finish()
                    self.encoded += len(part.samples)
                    if retry.get(item.shard.url):
                        self._merge(part, item)
                    self._write(part, item, model.identity)
                    part = _ShardPart(model)

    def _retryable(self, shard: Shard) -> set[int]:
        """Rows to read again; none where there is no whole table to put them into."""
        if not self.run.table(shard.stem).exists():
            return set()
        rows = read_metadata(self.run.table(shard.stem))["shard"]["rows"]
        return self._failed_rows(shard) if embeddings_match(self.run.embeddings(shard.stem), rows) else set()

    def _merge(self, part: "_ShardPart", end: ShardEnd) -> None:
        """Put retried samples among the rows that the table already has."""
        table = pq.read_table(self.run.table(end.shard.stem))
        if read_metadata(self.run.table(end.shard.stem))["shard"]["sha256"] != end.sha256:
            raise MismatchError(f"{end.shard.url} has changed since it was scored; run again without --retry-failed")
        again = {sample.index: i for i, sample in enumerate(part.samples)}
        images = read_embeddings(self.run.embeddings(end.shard.stem), "image")
        texts = read_embeddings(self.run.embeddings(end.shard.stem), "text")
        new_images, new_texts, new_similarity = part.arrays()
        samples, similarity = [], table["similarity"].to_numpy().astype(np.float32)
        columns = ("key", "index", "status", "error", "label", "image_sha256", "text_sha256", "flags")
        for row, old in enumerate(table.select(columns).to_pylist()):
            i = again.get(row)
            samples.append(Decoded(**{**old, "flags": tuple(old["flags"] or ())}) if i is None else part.samples[i])
            if i is not None:
                similarity[row] = new_similarity[i]
        rows = list(again)
        if rows and new_images.shape[1]:
            images = images if images.shape[1] else np.zeros((len(images), new_images.shape[1]), np.float32)
            images[rows] = new_images
        if rows and new_texts.shape[1]:
            texts = texts if texts.shape[1] else np.zeros((len(texts), new_texts.shape[1]), np.float32)
            texts[rows] = new_texts
        part.replace(samples, images, texts, similarity)

    def _write(self, part: "_ShardPart", end: ShardEnd, identity: Identity) -> None:
        """Embeddings first: the table's presence says that all of the shard is done."""
        images, texts, similarity = part.arrays()
        samples = part.samples
        shard = {"name": Path(end.shard.url).name, "sha256": end.sha256, "size": end.size, "rows": len(samples)}
        metadata = {
            "table_version": VERSION,
            "scorer": identity.to_dict(),
            "shard": {**shard, "damage": end.damage},
            "reading": self._reading(),
        }
        write_embeddings(self.run.embeddings(end.shard.stem), images, texts, {"shard": shard})
        self.run.write_table(end.shard.stem, table_from(_columns(samples, similarity), metadata))
        failed = sum(sample.status != "ok" for sample in samples)
        if end.damage:
            self.progress.note(f"{end.shard.url}: {end.damage}; its {len(samples):,} samples are kept")
        self.progress.shard(end.shard.stem, len(samples), failed)

    def _require_embeddings(self, stems: Sequence[str]) -> None:
        gone = [stem for stem in stems if not self.run.embeddings(stem).exists()]
        if gone and len(gone) < len(stems):
            raise MismatchError(
                f"{self.run.path}: the embeddings of {gone[0]} were dropped, so new shards cannot be scored along with "
                "it; score them into another --out"
            )

    def _write_run(self, identity: Identity, beta: Beta | None, complete: bool) -> None:
        """`_run.json`: what was asked for, which shards, and whether all of it is done."""
        shards = [{"url": s.url, "table": s.stem, **_facts(self.run, s.stem)} for s in self.shards]
        known = {shard["url"] for shard in shards}
        before = self.run.read_run()
        shards = [s for s in (before["shards"] if before else []) if s["url"] not in known] + shards
        self.run.write_run(
            {
                "table_version": VERSION,
                "noisegate": version("noisegate"),
                "scorer": identity.to_dict(),
                "beta_setting": self.mode,
                "beta": beta.to_dict() if beta else None,
                "seed": self.seed,
                "reading": self._reading(),
                "shards": shards,
                "unreadable": self.failed,
                "complete": complete,
            }
        )


class _ShardPart:
    """What is known so far of the shard that is being encoded."""

    def __init__(self, model: Estimator) -> None:
        self._model = model
        self._texts_seen: dict[str, NDArray[np.float32]] = {}
        self._waiting: list[Decoded] = []
        self._images: list[NDArray[np.float32]] = []
        self._texts: list[NDArray[np.float32]] = []
        self._similarity: list[NDArray[np.float32]] = []
        self.samples: list[Decoded] = []
        self.position = 0

    def add(self, chunk: Chunk) -> None:
        self.position = chunk.position
        for sample in chunk.samples:
            self._waiting.append(sample)
            if len(self._waiting) == self._model.batch_size:
                self._encode()

    def finish(self) -> None:
        if self._waiting:
            self._encode()

    def _encode(self) -> None:
        batch, self._waiting = self._waiting, []
        found = encode(self._model, batch, self._texts_seen)
        self._images.append(found.images)
        self._texts.append(found.texts)
        self._similarity.append(found.similarity)
        for sample in batch:
            sample.pixels = None
        self.samples += batch

    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Images (N, d), texts (N, d) and cosines (N,); batches without any embedding take the width of the others."""
        empty = np.zeros(0, np.float32)
        return _stack(self._images), _stack(self._texts), np.concatenate(self._similarity or [empty])

    def replace(self, samples: list[Decoded], *arrays: NDArray[np.float32]) -> None:
        self.samples = samples
        self._images, self._texts, self._similarity = ([array] for array in arrays)


def _stack(parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    width = max((part.shape[1] for part in parts), default=0)
    whole = [part if part.shape[1] == width else np.zeros((len(part), width), np.float32) for part in parts]
    return np.concatenate(whole) if whole else np.zeros((0, 0), np.float32)


def _columns(samples: Sequence[Decoded], similarity: NDArray[np.float32]) -> dict[str, Any]:
    ok = np.array([sample.status == "ok" for sample in samples], dtype=bool)
    return {
        **{
            name: [getattr(sample, name) for sample in samples]
            for name in ("key", "index", "status", "error", "label", "image_sha256", "text_sha256")
        },
        "flags": [list(sample.flags) for sample in samples],
        "similarity": np.where(ok, similarity, np.float32(np.nan)),
    }


def _only(rows: dict[str, set[int]]) -> Callable[[Shard, RawSample], bool]:
    def select(shard: Shard, raw: RawSample) -> bool:
        wanted = rows.get(shard.url)
        return not wanted or raw.index in wanted

    return select


def _facts(run: RunFolder, stem: str) -> dict[str, Any]:
    if not run.table(stem).exists():
        return {}
    shard = read_metadata(run.table(stem))["shard"]
    return {"rows": shard["rows"], "sha256": shard["sha256"]}


def _digest(shard: Shard) -> str:
    digest = hashlib.sha256()
    with shard.open() as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def _clear(run: RunFolder) -> None:
    """Remove what an earlier run left, and nothing else."""
    for table in run.path.glob("*.parquet"):
        try:
            read_metadata(table)
        except TableError as error:
            raise TableError(
                f"{error}; it is not a table of noisegate, so --overwrite leaves it: move it away"
            ) from error
    for path in [*run.path.glob("*.parquet"), *(run.path / "embeddings").glob("*.safetensors"), run.run_file]:
        path.unlink(missing_ok=True)
