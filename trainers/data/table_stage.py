"""A stage of webdataset's pipelines that joins each sample with its row of the weight table."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError, MismatchError, TableError
from noisegate.pipeline.runs import RunFolder, parse_where, read_metadata
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards import BadSample, Shard, decode_label
from noisegate.pipeline.system import Mask

from .catalogue import RowNeeds, finished_run, usable_rows
from .join import PROOF_COLUMNS, Proof, check_columns, column_values

TABLES_KEPT = 8  # tables of the last used shards: a shuffle before this stage mixes samples of a few shards

Sample = dict[str, Any]


def with_table(
    table: str | Path,
    columns: Sequence[str] = ("osa_weight",),
    where: str | None = None,
    *,
    handler: Callable[[Exception], bool] | None = None,
) -> TableStage:
    """Make a stage for `wds.WebDataset(urls).compose(…)`: keep usable samples, and add columns of the run in folder `table`.

    Each sample is found by its shard's name and its key, and verified by the digests of its picture and caption and by its
    label, if the table has them; so the stage must come before `.decode()`. Samples are dropped if their status is not ok or
    `where` does not hold. The others get an entry for each column: a float (nan for null), an int (-1 for null) or a bool.
    Decode them with `.decode("pil", partial=True)`, as webdataset otherwise takes every entry for bytes.

    A sample that differs from its row raises MismatchError. `handler` gets the error instead and returns True to leave
    the sample out, such as `wds.warn_and_continue`. Raises ConfigError for a column or rule that cannot work, and
    TableError for a run that is not finished and for a shard without a table. Memory holds a few shards' tables.
    """
    columns = [columns] if isinstance(columns, str) else columns
    check_columns(columns)
    if where is not None:
        parse_where(where)
    run = RunFolder.to_read(table)
    finished_run(run)
    return TableStage(run.path, tuple(columns), where, handler)


@dataclass(frozen=True)
class TableStage:
    """The stage that `with_table` returns; can be pickled for the workers of a DataLoader."""

    table: Path
    columns: tuple[str, ...]
    where: str | None
    handler: Callable[[Exception], bool] | None

    def __call__(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        tables: OrderedDict[str, _ShardTable] = OrderedDict()
        for sample in samples:
            url = _url_of(sample)
            if url not in tables:
                tables[url] = _ShardTable(self, url)
                if len(tables) > TABLES_KEPT:
                    tables.popitem(last=False)
            tables.move_to_end(url)
            try:
                row = tables[url].find(sample)
            except MismatchError as error:
                if self.handler is None or not self.handler(error):
                    raise
                continue
            if row is not None:
                yield sample | tables[url].values(row)


class _ShardTable:
    """One shard's rows by key."""

    def __init__(self, stage: TableStage, url: str) -> None:
        run, stem = RunFolder(stage.table), shard_stem(url)
        if not run.table(stem).exists():
            problem = (
                f"shard {url} has no table {stem}.parquet in {run.path}; annotate it, or give the shards of this run"
            )
            raise TableError(problem, "table", str(run.path))
        reading = read_metadata(run.table(stem))["reading"]
        names = ["key", *PROOF_COLUMNS, *(name for name in stage.columns if name not in PROOF_COLUMNS)]
        table = run.read(stem, names)
        keys = table["key"].combine_chunks()
        self._url = url
        self._proof = Proof(keys, table, DecodeOptions.from_dict(reading), reading.get("image_part"))
        self._columns: dict[str, NDArray[Any]] = {name: column_values(table[name]) for name in stage.columns}
        self._rows: dict[str, list[int]] = {}
        for row, key in enumerate(keys.to_pylist()):
            self._rows.setdefault(key, []).append(row)
        self._usable: Mask = usable_rows(run, stem, RowNeeds(stage.where))

    def find(self, sample: Sample) -> int | None:
        """Find the row of a sample, None if it is not used; raise MismatchError if it is not the sample that was scored.

        Rows with the same key are distinguished by their digests.
        """
        key = str(sample["__key__"]).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        rows = self._rows.get(key, [])
        problem = "its table has no such key"
        for row in rows:
            if self._usable[row]:
                changed = self._differs(row, sample)
                if changed is None:
                    return row
                problem = changed
        if any(not self._usable[row] for row in rows):
            return None
        advice = "annotate the shard again, or give handler=wds.warn_and_continue to leave such samples out"
        raise MismatchError(
            f"sample {key} of shard {self._url} is not the one scored: {problem}; {advice}", "table", key
        )

    def _differs(self, row: int, sample: Sample) -> str | None:
        """Describe what has changed since the sample was scored; None if the table shows no change."""
        parts = {name: data for name, data in sample.items() if not name.startswith("__")}
        for name in (*self._proof.image_parts, "txt", "json", "cls"):
            if name in parts and not isinstance(parts[name], bytes):
                problem = f"found {name} decoded to {type(parts[name]).__name__}; put it before .decode() and .map()"
                raise ConfigError(f"with_table compares digests of raw bytes, and {problem}", "with_table", name)
        proof = self._proof
        try:
            return (
                (proof.check_image(row, parts) if proof.has_image(row) else None)
                or (proof.check_text(row, parts, None) if proof.has_text(row) else None)
                or (
                    proof.check_label(row, decode_label(parts, proof.scored.label_field))
                    if proof.has_label(row)
                    else None
                )
            )
        except BadSample as error:
            return str(error)

    def values(self, row: int) -> Sample:
        return {name: values[row].item() for name, values in self._columns.items()}


def shard_stem(url: str) -> str:
    """Return the name of a shard's table, also for shell commands that webdataset takes as URLs.

    >>> shard_stem("pipe:aws s3 cp s3://bucket/x-000012.tar -")
    'x-000012'
    """
    if url.startswith("pipe:"):
        return next((Shard(word).stem for word in reversed(url.split()) if Shard(word).stem != Path(word).name), url)
    return Shard(url).stem


def _url_of(sample: Sample) -> str:
    if "__url__" not in sample or "__key__" not in sample:
        problem = "needs samples with __key__ and __url__; put it right after wds.WebDataset or wds.tarfile_to_samples"
        raise ConfigError(f"with_table {problem}", "with_table", sorted(sample))
    return str(sample["__url__"])
