"""List the shards of a data set, their order, their numbers of rows, and the rows to train on."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError, ShardError, TableError
from noisegate.pipeline.runs import RunFolder, parse_where
from noisegate.pipeline.shards import BadSample, Shard, decode_label, find_shards
from noisegate.pipeline.system import Index, Mask

from .epoch_order import RowMask
from .join import ReadOverrides, column_values
from .sample_reader import CaptionSource
from .shard_cache import ShardCache

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowNeeds:
    """Requirements of a row to be trained on, besides the status ok."""

    where: str | None = None
    parts: tuple[tuple[str, ...], ...] = ()  # without a table: at least one part of each group
    caption: bool = False  # with a table: a scored caption
    label: str | None = None  # with a table: a value in this column

    @classmethod
    def of(
        cls,
        where: str | None,
        table: bool,
        image_parts: Sequence[str],
        captions: CaptionSource | None,
        label: bool | str,
        overrides: ReadOverrides,
    ) -> RowNeeds:
        """Return the needs of a data set that reads these parts, captions and labels."""
        own_list = captions is not None and captions.field is not None
        if table:
            scored_caption = captions is not None and not own_list and overrides.text_field is None
            column = label if isinstance(label, str) else "label" if label and overrides.label_field is None else None
            return cls(where, (), scored_caption, column)
        parts: list[tuple[str, ...]] = [tuple(image_parts)] if image_parts else []
        if captions is not None:
            parts.append(("json",) if own_list or overrides.text_field else ("txt", "json"))
        if label is True:
            parts.append(("json",) if overrides.label_field else ("cls", "json"))
        return cls(where, tuple(parts))


@dataclass
class Catalogue:
    """Shards in the order of global row numbers; `ok` marks the rows that can be trained on."""

    shards: list[Shard]
    run: RunFolder | None
    ok: RowMask
    notes: list[str] = field(default_factory=list)

    def column(self, name: str) -> NDArray[Any]:
        """Read a column of the tables by global row number, (total,)."""
        if self.run is None:
            raise ConfigError(f"column {name!r} needs a table; give the folder of a run as table", "table", None)
        parts = [column_values(self.run.read(shard.stem, [name])[name]) for shard in self.shards]
        return np.concatenate(parts)


def make_catalogue(
    shards: str | Path | Iterable[str | Path] | None, table: str | Path | None, needs: RowNeeds, cache: ShardCache
) -> Catalogue:
    """Read every table (or, without tables, the headers of every shard) once.

    Raise TableError for a run that is not finished or lacks a shard's table, ConfigError for a rule that cannot work, and
    ShardError for a shard that cannot be read.
    """
    if table is None:
        if shards is None:
            raise ConfigError("shards and table are both missing; give at least one, as shards 'data/*.tar'", "shards")
        if needs.where is not None:
            raise ConfigError.of("where", needs.where, "needs a table; give the folder of a run as table")
        located = find_shards(shards)
        notes: list[str] = []
        return Catalogue(located, None, RowMask(_rows_from_shards(located, needs, cache, notes)), notes)
    run = RunFolder.to_read(table)
    located, notes = _match_shards(run, shards)
    return Catalogue(located, run, RowMask(usable_rows(run, shard.stem, needs) for shard in located), notes)


def finished_run(run: RunFolder) -> dict[str, Any]:
    """Read `_run.json`; raise TableError if the run is not finished, or was made from arrays without shards."""
    facts = run.recorded()
    if facts.get("finished") is False:
        problem = "holds a run that is not finished; run the same annotate command again, it goes on"
        raise TableError.of("table", str(run.path), problem)
    if "limits" not in facts["reading"]:
        problem = "was made from arrays and knows no shards; give score-embeddings --shards, or annotate the shards"
        raise TableError.of("table", str(run.path), problem)
    return facts


def _match_shards(run: RunFolder, shards: str | Path | Iterable[str | Path] | None) -> tuple[list[Shard], list[str]]:
    """Return the shards that have a table, in the run's order, and notes for the user."""
    facts = finished_run(run)
    urls = {entry["table"]: str(entry["url"]) for entry in facts["shards"]}
    given = {
        shard.stem: shard
        for shard in ([Shard(url) for url in urls.values()] if shards is None else find_shards(shards))
    }
    lost = [shard for stem, shard in given.items() if stem not in urls or not run.table(stem).exists()]
    if lost and shards is None:
        lost, given = [], {stem: shard for stem, shard in given.items() if shard not in lost}
    if lost:
        reason = facts.get("unreadable", {}).get(lost[0].stem) or facts.get("unreadable", {}).get(lost[0].url)
        others = "all are" if len(lost) == len(given) else f"{len(lost)} of {len(given)} are"
        why = (
            f"it could not be read when the run was made: {reason}"
            if reason
            else f"{others} without one; the run is of other shards, such as {next(iter(urls), 'none')}"
        )
        problem = f"shard {lost[0].url} has no table in {run.path} ({why}); annotate it, or give the shards of this run"
        raise TableError(problem, "shards", lost[0].url)
    for shard in given.values():
        if shard.is_local and not Path(shard.url).is_file():
            where = "give their place as shards" if shards is None else "give the shards that are there"
            raise ShardError(f"shard {shard.url} of table {run.path} is not there; {where}", "shards", shard.url)
    notes = []
    if len(given) < len(urls):
        notes.append(f"{len(urls) - len(given)} of the {len(urls)} shards of run {run.path} are not used")
    return [given[stem] for stem in urls if stem in given], notes


def usable_rows(run: RunFolder, stem: str, needs: RowNeeds) -> Mask:
    """Return which rows of a table have the status ok and meet `needs`, (N,) bool."""
    rule = parse_where(needs.where) if needs.where is not None else None
    names = ["status", *(rule.columns if rule else ())]
    names += ["text_sha256"] if needs.caption else []
    names += [needs.label] if needs.label is not None else []
    table = run.read(stem, [name for name in dict.fromkeys(names) if name != "shard"])
    ok = pc.equal(table["status"].cast(pa.string()), "ok").to_numpy()
    if needs.caption:
        ok = ok & pc.is_valid(table["text_sha256"]).to_numpy()
    if needs.label is not None:
        ok = ok & pc.is_valid(table[needs.label]).to_numpy()
    if rule is not None:
        shard = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(table), np.int32)), [stem])
        ok = ok & rule.mask(table.append_column("shard", shard))
    return np.asarray(ok, bool)


def _rows_from_shards(shards: Sequence[Shard], needs: RowNeeds, cache: ShardCache, notes: list[str]) -> Iterator[Mask]:
    for shard in shards:
        samples = cache.open(shard)
        try:
            if samples.damage:
                notes.append(f"shard {shard.url} is damaged ({samples.damage}); its whole samples are used")
            ok = samples.whole.copy()
            for parts in needs.parts:
                ok &= samples.having(parts)
            yield ok
        finally:
            samples.close()


def read_labels(catalogue: Catalogue, cache: ShardCache, label_field: str | None) -> Index:
    """Read classes from the shards, (total,), -1 for rows that are not ok or have no class."""
    labels = np.full(catalogue.ok.total, -1, np.int64)
    for number, shard in enumerate(catalogue.shards):
        samples = cache.open(shard)
        try:
            for row in catalogue.ok.rows(number):
                parts = samples.read(int(row - catalogue.ok.offsets[number]), ("cls", "json"))
                try:
                    labels[row] = decode_label(parts, label_field)
                except BadSample as problem:
                    log.debug("row %d has no class: %s", row, problem)
        finally:
            samples.close()
    return labels
