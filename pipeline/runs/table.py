"""The weight table, version 1: its columns, one Parquet file per shard, one row per sample, failures included."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.system.mirror import RUN
from noisegate.pipeline.system.output_files import write_atomically

from .captions import CAPTION, read_shard_captions
from .digests import HAS_DIGEST, to_parquet
from .record_check import TABLE, find_damage
from .reviews import SAMPLE, Reviews
from .stored_folder import StoredFolder

WORD = pa.dictionary(pa.int32(), pa.string())

COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "key": (pa.string(), "webdataset key"),
    "index": (pa.int32(), "position of the sample in its shard"),
    "status": (
        WORD,
        "ok, or why there is no score: no_image, bad_image, no_text, bad_text, no_label, bad_label, too_large, broken, invalid",
    ),
    "error": (pa.string(), "what exactly was wrong, null for ok"),
    "image_sha256": (pa.binary(32), "of the image's raw bytes"),
    "text_sha256": (pa.binary(32), "of the caption's bytes"),
    "similarity": (pa.float32(), "cosine of image and caption"),
    "osa_weight": (pa.float32(), "x² (1 - x) with x = similarity - β, 0 where x <= 0 (OSA Eq. 5)"),
    "clean_probability": (pa.float32(), "calibrated chance that the pair, or the label, is right"),
    "label": (pa.int32(), "given class, null for caption data"),
    "knn_consistency": (pa.float32(), "p_vis at the given class: the neighbours' balanced vote (TANGO Eq. 9-10)"),
    "anchor_consistency": (pa.float32(), "p_sem at the given class: share of the nearest text anchors"),
    "consistency": (pa.float32(), "q at the given class over the largest q"),
    "probe_consistency": (pa.float32(), "out-of-fold linear probe's probability of the given class"),
    "label_quality": (pa.float32(), "chance that the label is right, by picture, neighbours and texts together"),
    "neighbourhood": (pa.float32(), "agreement of a pair with its neighbours' partners"),
    "pair_quality": (
        pa.float32(),
        "cosine minus what picture and caption give to other pairs: s_ii - τ/2 [log mean exp(s_ij/τ) + log mean exp(s_ji/τ)]",
    ),
    "clean": (
        pa.bool_(),
        "keep it: osa_weight > 0 for pairs (with --cut probability: clean_probability > 1/2), label_quality >= 1/2 for labels",
    ),
    "clean_tango": (pa.bool_(), "argmax q is the given class, the paper's rule"),
    "predicted_label": (pa.int32(), "class that picture, neighbours and texts suggest, apart from the given label"),
    "predicted_confidence": (pa.float32(), "probability of predicted_label"),
    "refined_label": (pa.int32(), "the given label, or what it was changed to"),
    "refined_confidence": (pa.float32(), "probability of refined_label"),
    "flags": (pa.list_(WORD), "notes such as duplicate_key, no_neighbours, indegree0"),
}
"""Type and meaning by name; every table has all of them, null where nothing was computed."""

TRUNCATED = "text_truncated"
FLAGS = {
    "duplicate": "nearly the same picture as another sample",
    "duplicate_key": "a key that occurred before in the same shard",
    "no_neighbours": "no labelled neighbour",
    "indegree0": "not a neighbour of any sample",
    "unpicked": "not among the nearest samples of any class text",
    "no_text": "no caption, scored by its label alone",
    "no_label": "no label, scored as a pair alone",
    TRUNCATED: "a caption longer than the model reads; the rest of it does not count",
}
"""Meaning of each flag; a near duplicate's flag is `duplicate_of:KEY` in the table."""

# Columns from frozen embeddings (`rescore --with`), or learnt in training. A table has only the ones computed for it, after
# the columns of the contract. A name is the method's, then the value's; `_sd` is the spread over the permutations, if the
# value is their mean.
_NUMBER = pa.float32()
_SPREAD = "its standard deviation over the permutations"

METHOD_COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "lnc_confidence": (_NUMBER, "w, the pair's posterior of the small-loss component (LNC Eq. 3)"),
    "lnc_confidence_sd": (_NUMBER, _SPREAD),
    "lnc_prediction": (_NUMBER, "P, how far the pair stands above its negatives, 0 to 1 (LNC Eq. 9)"),
    "lnc_prediction_sd": (_NUMBER, _SPREAD),
    "lnc_label": (_NUMBER, "ŷ, the rectified correspondence (LNC Eq. 8)"),
    "ncr_confidence": (_NUMBER, "as lnc_confidence, by NCR"),
    "ncr_prediction": (_NUMBER, "as lnc_prediction, from hinges as NCR's published code has it"),
    "ncr_label": (_NUMBER, "as lnc_label, by NCR"),
    "crcl_label": (_NUMBER, "y, the soft label: matching probability, its momentum in training (CRCL Eq. 10-11)"),
    "crcl_label_sd": (_NUMBER, _SPREAD),
    "gsl_probability": (_NUMBER, "p, the Beta mixture's clean posterior of L_SCT (GSL, reconstructed)"),
    "gsl_probability_sd": (_NUMBER, _SPREAD),
    "gsl_label": (_NUMBER, "y*, the label by two anchors; no noise score by itself (GSL, reconstructed)"),
    "gsl_label_sd": (_NUMBER, _SPREAD),
    "negcliploss": (
        _NUMBER,
        "s_ii - τ/2 [log Σ exp(s_ij/τ) + log Σ exp(s_ji/τ)] over a pool with the pair (negCLIPLoss)",
    ),
    "csls": (
        _NUMBER,
        "2 s_ii less the mean cosines of picture and caption with their 10 nearest others in a pool (CSLS)",
    ),
    "normsim": (_NUMBER, "2-norm, or largest, of the picture's cosines with target pictures (NormSim)"),
    "semdedup": (
        _NUMBER,
        "largest cosine with a near picture whose pair is more similar, 0 if there is none (SemDeDup)",
    ),
    "semdedup_density": (_NUMBER, "mean cosine of the picture with its nearest pictures"),
    "dfn_score": (_NUMBER, "score of a data filtering network, made elsewhere (rescore --join)"),
    "hype_score": (_NUMBER, "HYPE's score, made elsewhere (rescore --join)"),
    "mlm_score": (_NUMBER, "MLM-Filter's score, made elsewhere (rescore --join)"),
    "outside_score": (_NUMBER, "any other score made elsewhere (rescore --join)"),
    "aum": (
        _NUMBER,
        "area under the margin, less the cut of labels that were wrong on purpose: above 0 is clean (AUM)",
    ),
    "bicro_probability": (_NUMBER, "p, the Beta mixture's clean posterior of the pair's loss (BiCro)"),
    "bicro_label": (_NUMBER, "ỹ, the label by the consistency of image and text similarities to clean anchors (BiCro)"),
    "in2r_probability": (_NUMBER, "w, the Gaussian mixture's clean posterior of the pair's loss (IN2R)"),
    "decl_uncertainty": (_NUMBER, "u, 1 where nothing in the batch speaks for any match, mean of both ways (DECL)"),
    "npc_weight": (_NUMBER, "w, the pair's confidence weight when it was last trained on, 1 for a harmless one (NPC)"),
    "npc_probability": (_NUMBER, "clean posterior of the mixture that fills the memory bank (NPC)"),
}

ADDED_COLUMNS = ("predicted_label", "predicted_confidence", "pair_quality")  # later than the first version 1
READ_COLUMNS = (
    "key", "index", "status", "error", "image_sha256", "text_sha256", "similarity", "label", "flags"
)  # fmt: skip
SCORE_COLUMNS = {name: kind for name, (kind, _) in COLUMNS.items() if name not in READ_COLUMNS}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
ALL_COLUMNS = COLUMNS | METHOD_COLUMNS
"""Of the contract and of the methods."""

# People's marks, kept beside the tables (`reviews.py`) and joined on request.
REVIEW_COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "review": (WORD, "a person's mark: keep, drop or relabel; null where there is none"),
    "review_label": (pa.int32(), "the right class, where the mark is relabel"),
}
READ_BY_NAME = ALL_COLUMNS | REVIEW_COLUMNS
"""All columns that `RunFolder.read` accepts."""

VERSION = 1


def table_from(columns: Mapping[str, Any], metadata: Mapping[str, Any]) -> pa.Table:
    """Make a table of the contract: missing columns are null, missing method columns are left out.

    NaN becomes null; metadata values are stored as JSON.
    """
    count = len(next(iter(columns.values())))
    kinds = {name: kind for name, (kind, _) in ALL_COLUMNS.items() if name in COLUMNS or columns.get(name) is not None}
    arrays = []
    for name, kind in kinds.items():
        values = columns.get(name)
        if values is None:
            arrays.append(pa.nulls(count, kind))
        elif isinstance(values, pa.Array | pa.ChunkedArray):
            arrays.append(values.cast(kind) if values.type != kind else values)
        else:
            arrays.append(pa.array(values, type=kind, from_pandas=True))
    extra = {f"noisegate.{name}": _json(value) for name, value in metadata.items()}
    return pa.table(arrays, schema=pa.schema(list(kinds.items()), metadata=extra))


def replace_columns(table: pa.Table, columns: Mapping[str, Any], metadata: Mapping[str, Any]) -> pa.Table:
    """Replace some columns of a table, and all of its metadata."""
    return table_from({name: table[name] for name in table.column_names} | dict(columns), metadata)


def _json(value: Any, indent: int | None = None) -> bytes:
    """Write readable UTF-8 JSON; bytes of a file name that are not UTF-8 become JSON escapes."""
    text = json.dumps(value, indent=indent, sort_keys=True, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace")


def digest_columns(columns: Mapping[str, NDArray[Any]]) -> str:
    """Return 16 hex digits of the SHA-256 of columns that depend on the whole run, to tell two computations apart."""
    digest = hashlib.sha256()
    for name in sorted(columns):
        digest.update(name.encode() + np.ascontiguousarray(columns[name]).tobytes())
    return digest.hexdigest()[:16]


def read_metadata(path: Path) -> dict[str, Any]:
    """Read and check the `noisegate.*` metadata of one table file; raise TableError unless it is a complete weight table."""
    try:
        raw = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"{path} is not a readable Parquet file: {error}", "table", path) from error
    found = raw.get(b"noisegate.table_version", b"None").decode(errors="replace")
    if found != str(VERSION):
        raise TableError(f"{path} is not a weight table of version {VERSION} (found {found})", "table", path)
    try:
        metadata = {
            key.decode()[10:]: json.loads(value)
            for key, value in raw.items()
            if key.startswith(b"noisegate.") and key != HAS_DIGEST
        }
    except (ValueError, RecursionError) as error:
        raise TableError(f"{path} has damaged metadata: {error}", "table", path) from error
    if damage := find_damage(metadata, TABLE):
        raise TableError(f"{path} has damaged metadata: {damage}", "table", path)
    return metadata


def read_shard_facts(path: Path) -> dict[str, Any]:
    """Return what a table records about its shard; raise TableError unless it has as many rows as it records."""
    shard: dict[str, Any] = read_metadata(path)["shard"]
    if (rows := pq.read_metadata(path).num_rows) != shard["rows"]:
        problem = f"has {rows:,} rows, and {shard['rows']:,} were written; run the command that made it again"
        raise TableError.of("table", str(path), problem)
    return shard


def read_table(folder: str | Path, columns: Sequence[str] | None = None, *, captions: bool = False) -> pa.Table:
    """Read all shards' rows as one pyarrow Table, in shard order, with the column `shard` (the table's stem) in front.

    `columns` limits the columns; the default is all of the contract, and method columns that any of the tables has.
    `captions` adds the column `caption`, read from the shards, and leaves out columns without a value unless `columns` names
    them; see `read_frame` for pandas. Raises TableError if the folder holds no finished run, MismatchError if captions have
    changed since they were scored.
    """
    run = RunFolder.to_read(folder)
    if (run.read_run() or {}).get("finished") is False:
        raise TableError.of("run", folder, "is not finished; run the same annotate command again, it goes on")
    captions = captions or CAPTION in (columns or ())
    names = (
        [*COLUMNS, *run.method_columns()] if columns is None else [c for c in columns if c not in ("shard", CAPTION)]
    )
    unknown = sorted(set(names) - set(READ_BY_NAME))
    if unknown:
        raise TableError.of("columns", unknown[0], f"is unknown; a weight table has {', '.join(COLUMNS)}")
    parts = []
    facts: Mapping[str, Any] = run.recorded() if captions else {"shards": ()}
    urls = {entry["table"]: entry["url"] for entry in facts["shards"]}
    for stem in run.stems():
        part = run.read(stem, names or ["index"]).replace_schema_metadata(None)
        shard = pa.DictionaryArray.from_arrays(pa.array([0] * len(part), pa.int32()), [stem])
        part = part.select(names).add_column(0, pa.field("shard", WORD), shard)
        if captions:
            texts = read_shard_captions(urls[stem], run.read(stem, ["key", "text_sha256"]), facts["reading"])
            part = part.append_column(CAPTION, texts)
        parts.append(part)
    if not parts:
        raise TableError.of("run", folder, f"has no tables; make some: noisegate annotate SHARDS --out {folder}")
    table = pa.concat_tables(parts).unify_dictionaries()
    return drop_empty(table) if captions and columns is None else table


def drop_empty(table: pa.Table) -> pa.Table:
    """Drop the columns that hold no value."""
    return table.select([name for name in table.column_names if table[name].null_count < len(table) or not len(table)])


class RunFolder(StoredFolder):
    """Names of the files in a run's folder: tables beside `_run.json`, embeddings below `embeddings/`."""

    def table(self, stem: str) -> Path:
        return self.path / f"{stem}.parquet"

    def embeddings(self, stem: str) -> Path:
        return self.path / "embeddings" / f"{stem}.safetensors"

    @property
    def run_file(self) -> Path:
        return self.path / RUN

    @property
    def reviews(self) -> Reviews:
        return Reviews(self.path)

    def read_run(self) -> dict[str, Any] | None:
        """Read and check `_run.json`; None if there is none. Raise TableError if it is damaged."""
        try:
            run = json.loads(self.run_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, OSError, RecursionError) as error:
            raise self._damaged_record(str(error)) from error
        found = run.get("table_version") if isinstance(run, dict) else VERSION
        if found != VERSION:
            problem = f"has version {str(found)[:80]}, not {VERSION}; use another, or --overwrite"
            raise TableError.of("run", self.name, problem)
        if damage := find_damage(run):
            raise self._damaged_record(damage)
        record: dict[str, Any] = run
        return record

    def _damaged_record(self, reason: str) -> TableError:
        return TableError.of("run", self.name, f"is damaged: {RUN}: {reason}; redo it with --overwrite")

    def recorded(self) -> dict[str, Any]:
        """Read `_run.json`; if there is none, raise a TableError that names a run one folder below (`demo/tables-2000-40`)."""
        run = self.read_run()
        if run is None:
            below = min(self.path.glob(f"*/{self.run_file.name}"), default=None)
            there = "" if below is None else f", but {below.parent} does"
            raise TableError.of(
                "run", self.name, f"holds no run{there}; use noisegate annotate SHARDS --out {self.name}"
            )
        return run

    def browse_words(self) -> list[str]:
        """Return the command that opens the run in the browser, without the program's name."""
        model = [] if (self.read_run() or {}).get("model") else ["--model", "embedded"]  # serve would ask for one
        return ["serve", "--run", str(self.path), *model]

    def write_run(self, run: Mapping[str, Any]) -> None:
        write_atomically(self.run_file, _json(run, indent=1) + b"\n")

    def stems(self) -> Iterator[str]:
        """Yield the stems of the shards that `_run.json` lists and that have a table, in order."""
        for shard in self.recorded()["shards"]:
            if self.table(shard["table"]).exists():
                yield shard["table"]

    def read(self, stem: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Read one table; requested method columns that it lacks are null. Raise TableError if it is damaged.

        Columns that tables of earlier releases lack are null too. REVIEW_COLUMNS are joined from people's marks.
        """
        if columns is not None and REVIEW_COLUMNS.keys() & set(columns):
            stored = [name for name in dict.fromkeys((*columns, *SAMPLE)) if name in ALL_COLUMNS]
            table = self.read(stem, stored)
            for name, values in self.reviews.columns(stem, table).items():
                table = table.append_column(name, values)
            return table.select(list(columns))
        optional = {*METHOD_COLUMNS, *ADDED_COLUMNS}
        try:
            with pq.ParquetFile(self.table(stem)) as file:  # pq.read_table first makes a dataset, which takes longer
                there = file.schema_arrow.names
                lacking = [
                    n for n in (ADDED_COLUMNS if columns is None else columns) if n in optional and n not in there
                ]
                kept = columns if columns is None else [name for name in columns if name not in lacking]
                table = file.read(kept)
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(stem, error) from error
        for name in kept if kept is not None else [*COLUMNS, *table.column_names]:
            kind = table.schema.field(name).type if name in table.column_names else None
            if name in ALL_COLUMNS and kind != ALL_COLUMNS[name][0] and not (kind is None and name in lacking):
                raise self._damaged(stem, f"column {name} is {kind or 'missing'}, not {ALL_COLUMNS[name][0]}")
        if kept == [] and lacking:  # without any column, Parquet returns no rows
            return self.read(stem, ["index", *lacking]).select(lacking)
        for name in lacking:
            table = table.append_column(name, pa.nulls(len(table), ALL_COLUMNS[name][0]))
        return table if columns is None else table.select(list(columns))

    def method_columns(self) -> list[str]:
        """Method columns that at least one table has, in the order of their declaration."""
        found: set[str] = set()
        for stem in self.stems():
            try:
                found.update(pq.read_schema(self.table(stem)).names)
            except (OSError, pa.ArrowException) as error:
                raise self._damaged(stem, error) from error
        return [name for name in METHOD_COLUMNS if name in found]

    def _damaged(self, stem: str, error: Exception | str) -> TableError:
        return TableError.of("table", self.table(stem), f"is damaged: {error}; run the same annotate command again")

    def write_table(self, stem: str, table: pa.Table) -> None:
        write_atomically(self.table(stem), to_parquet(table))


def search_folder(target: Path) -> Path:
    """Return the folder in which the search for this graph keeps its files; it is removed when the graph is complete."""
    return target.with_name(f"_{target.stem}_search")
