"""Read the rows of a finished run for an export: one shard's table at a time, only the rows that a rule keeps."""

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError, MismatchError, TableError
from noisegate.pipeline.runs.captions import CAPTION
from noisegate.pipeline.runs.table import (
    ALL_COLUMNS,
    COLUMNS,
    METHOD_COLUMNS,
    READ_BY_NAME,
    REVIEW_COLUMNS,
    SCORE_COLUMNS,
    RunFolder,
    read_metadata,
)
from noisegate.pipeline.runs.where import Where
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.read import RawSample, ShardReader
from noisegate.pipeline.system.array_types import Index

from .recipes import find_recipe


@dataclass(frozen=True)
class Options:
    """The options of one export; each format uses some of them. `record` describes the export itself."""

    columns: Sequence[str] | None
    with_shard: bool
    add_columns: Mapping[str, str]
    record: Mapping[str, Any]
    spreadsheet_safe: bool = False


@dataclass(frozen=True)
class Written:
    """How many samples a format wrote, and how many it left out, by reason.

    schema: the columns of the files, if they are tables. digests: SHA-256 by file name, where known.
    """

    written: int
    left_out: dict[str, int] = field(default_factory=dict)
    empty_shards: list[str] = field(default_factory=list)
    schema: pa.Schema | None = None
    digests: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """An export format: `write(rows, out, options)` writes a file, or with `is_folder` into a new folder.

    options: the fields of Options that a user may set for this format.
    """

    write: Callable[["RunRows", Path, Options], Written]
    is_folder: bool = False
    options: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class ShardRows:
    """One shard's rows. `mask` (N,) bool says which rows are kept; `kept` holds the requested columns of the kept rows.

    `start` is the number of the shard's first row in the whole run; `counts` is how often a recipe with repeats takes each row.
    """

    stem: str
    url: str
    sha256: str
    start: int
    keys: list[str]
    mask: NDArray[np.bool_]
    kept: pa.Table
    counts: Index | None = None

    def repeated(self) -> pa.Table:
        """Return `kept` with every row repeated as often as the recipe takes it."""
        return self.kept if self.counts is None else self.kept.take(np.repeat(np.arange(len(self.kept)), self.counts))

    def samples(self, all_parts: bool = False) -> Iterator[tuple[int, RawSample]]:
        """Read the kept samples, each with its row in `kept`.

        Raises MismatchError if the shard has changed since it was scored. A wrong key raises at once, a wrong digest only after
        the last sample, so a result must not be published before that.
        """
        changed = f"{self.url} has changed since it was scored; run the same annotate command again, then export"
        reader = ShardReader(Shard(self.url), all_parts)
        count = place = 0
        for raw in reader:
            if count == len(self.keys) or raw.key != self.keys[count]:
                raise MismatchError(f"{changed} (row {count} is {raw.key})", "shards", self.url)
            if self.mask[count]:
                yield place, raw
                place += 1
            count += 1
        if count != len(self.keys) or reader.sha256 != self.sha256:
            raise MismatchError(changed, "shards", self.url)


class RunRows:
    """The tables of a run, filtered by a rule; `rows` and `kept` count the rows that `parts` has read and kept."""

    def __init__(
        self,
        folder: str | Path,
        where: Where | None,
        review_labels: bool = False,
        recipe: str | None = None,
        share: float | None = None,
        seed: int = 0,
    ) -> None:
        self.run = RunFolder.to_read(folder)
        self.where = where
        self.recipe = None if recipe is None else find_recipe(recipe)
        self._recipe_settings = (recipe or "", share, seed)
        self.review_labels = review_labels  # labels of people's marks replace the given ones
        self.rows = self.kept = 0
        facts = self.run.recorded()
        if facts.get("finished") is False:
            problem = f"the run in {folder} is not finished; run the same annotate command again, it goes on"
            raise TableError(problem, "folder", folder)
        self.facts: dict[str, Any] = facts
        scored = [entry for entry in facts["shards"] if "rows" in entry]
        for entry in scored:
            if not self.run.table(entry["table"]).exists():
                table = self.run.table(entry["table"])
                raise TableError(f"{table} is gone; run the same annotate command again", "folder", folder)
        if not scored:
            problem = f"holds no weight tables; make some: noisegate annotate SHARDS --out {folder}"
            raise TableError.of("folder", folder, problem)
        self.shards: dict[str, str] = {entry["table"]: entry["url"] for entry in scored}
        self.unscored = len(facts["shards"]) - len(scored)

    @property
    def text_field(self) -> str | None:
        """Return the json field of the captions, None for the usual places."""
        field: str | None = self.facts["reading"].get("text_field")
        return field

    def need_shards(self, use: str, pictures: bool = False) -> None:
        """Raise ConfigError for a run that was made from embeddings and has no shards, or none with `pictures`."""
        if "limits" not in self.facts["reading"]:
            problem = (
                f"was made from embeddings, and {use} reads shards; use keys, parquet, csv or jsonl without caption"
            )
            raise ConfigError.of("folder", self.run.name, problem)
        part = self.facts["reading"].get("image_part")
        if pictures and part:
            problem = (
                f"has shards with {part} in place of pictures, which {use} writes; use shards, parquet, csv or jsonl"
            )
            raise ConfigError.of("folder", self.run.name, problem)

    def _count_rows(self, name: str, share: float | None, seed: int) -> Index:
        """Return how often the recipe takes each row that the rule keeps, (rows of the run,)."""
        assert self.recipe is not None
        chosen = self.recipe.share if share is None else share
        if not 0 < chosen <= (np.inf if self.recipe.repeats else 1):
            raise ConfigError.of("share", chosen, "is no share of the rows; use one such as 0.3")
        names = list(self.recipe.columns)
        read: dict[str, list[Any]] = {column: [] for column in names}
        needed = {*names, *(self.where.columns if self.where else ())} - {"shard"}
        for stem in self.shards:
            table = self._read(stem, needed)
            mask = self.where.mask(table) if self.where else np.ones(len(table), bool)
            for column in names:
                read[column].append(np.where(mask, table[column].cast(pa.float32()).to_numpy(), np.float32(np.nan)))
        columns = {column: np.concatenate(values) for column, values in read.items()}
        if lacking := [column for column, values in columns.items() if np.isnan(values).all()]:
            command = f"noisegate rescore {self.run.name} --with {','.join(lacking)}"
            target = " --target PICTURES" if "normsim" in lacking else ""
            advice = f"; add it: {command}{target}" if METHOD_COLUMNS.keys() >= set(lacking) else ""
            raise ConfigError.of("recipe", name, f"needs {' and '.join(lacking)}, which no row has{advice}")
        return self.recipe.count(columns, chosen, np.random.default_rng(seed))

    def _read(self, stem: str, needed: Collection[str]) -> pa.Table:
        """Read the columns of one shard's table, and add `shard`."""
        names = [name for name in READ_BY_NAME if name in needed]
        table = self.run.read(stem, names or ["index"]).replace_schema_metadata(None)
        shard = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(table), np.int32)), [stem])
        return table.append_column("shard", shard)

    def parts(self, columns: Sequence[str]) -> Iterator[ShardRows]:
        """Read shard by shard, including shards without a kept row."""
        needed = {"key", *columns, *(self.where.columns if self.where else ())} - {"shard", CAPTION}
        needed |= {"label", "review_label"} if self.review_labels else set()
        self.rows = self.kept = 0
        taken = None if self.recipe is None else self._count_rows(*self._recipe_settings)
        for stem, url in self.shards.items():
            sha256 = read_metadata(self.run.table(stem))["shard"]["sha256"]
            table = self._read(stem, needed)
            mask = self.where.mask(table) if self.where else np.ones(len(table), bool)
            here = None if taken is None else taken[self.rows : self.rows + len(table)]
            if here is not None:
                mask = here > 0
            if self.review_labels:
                label = pc.coalesce(table["review_label"], table["label"])
                table = table.set_column(table.column_names.index("label"), "label", label)
            kept = table.filter(pa.array(mask)).select([name for name in columns if name != CAPTION])
            start = self.rows
            self.rows += len(table)
            self.kept += len(kept)
            counts = here[mask] if here is not None and self.recipe is not None and self.recipe.repeats else None
            yield ShardRows(stem, url, sha256, start, table["key"].to_pylist(), mask, kept, counts)

    def refuse_nothing(self, written: int) -> None:
        """Raise ConfigError for an empty export, before it is renamed to its final name."""
        if written:
            return
        if self.kept:
            raise ConfigError(f"none of the {self.kept:,} rows kept can be written; nothing was", "where", self._rule)
        rule = f"where {self._rule!r} keeps" if self.where else "there are"
        advice = "Look at some with --as csv"
        if self.where:
            there = {*COLUMNS, *self.filled_scores()}
            if empty := [name for name in self.where.columns if name in METHOD_COLUMNS and name not in there]:
                advice = f"No row has {' and '.join(empty)}; rescore adds it: --with or --join"
        problem = f"{rule} none of {self.rows:,} rows; nothing was written. {advice}"
        raise ConfigError(problem, "where", self._rule)

    @property
    def _rule(self) -> str | None:
        return self.where.text if self.where else None

    def filled_scores(self) -> list[str]:
        """List the label and score columns with at least one value, by the statistics in the Parquet files."""
        wanted = [n for n in ALL_COLUMNS if n in SCORE_COLUMNS or n in ("similarity", "label") or n not in COLUMNS]
        filled: set[str] = set()
        for stem in self.shards:
            if len(filled) == len(wanted):
                break
            metadata = pq.read_metadata(self.run.table(stem))
            for group in (metadata.row_group(i) for i in range(metadata.num_row_groups)):
                for column in (group.column(i) for i in range(group.num_columns)):
                    facts = column.statistics
                    if facts is None or not facts.has_null_count or facts.null_count < group.num_rows:
                        filled.add(column.path_in_schema)
        reviewed = REVIEW_COLUMNS if self.run.reviews.path.exists() else ()
        return [*(name for name in wanted if name in filled), *reviewed]

    def choose(self, columns: Sequence[str] | None, extra: Sequence[str] = ("key", "shard")) -> list[str]:
        """Check the requested columns; the default is `extra` and all filled scores."""
        if columns is None:
            return [*extra, *(name for name in self.filled_scores() if name not in extra)]
        known = ["shard", *READ_BY_NAME, CAPTION]
        names = list(dict.fromkeys(columns))
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
                advice = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
                raise ConfigError.of("columns", name, f"is unknown; {advice}")
        if not names:
            raise ConfigError("columns: none is named; give some, such as key,shard,osa_weight", "columns", columns)
        return names


def plain_type(name: str) -> pa.DataType:
    """Return the type of an exported column: as in the table, but plain strings for dictionary strings."""
    if name in ("shard", CAPTION):
        return pa.string()
    stored = READ_BY_NAME[name][0]
    if pa.types.is_list(stored):
        return pa.list_(pa.string())
    return pa.string() if pa.types.is_dictionary(stored) else stored
