"""Check a table alone: it is complete, its scores follow from its cosines and β, and its embeddings fit."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.estimators.base import Identity, normalise
from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.pairs.calibration import LIKELY, PairCalibration
from noisegate.pipeline.pairs.pair_pool import RunPool
from noisegate.pipeline.pairs.scorer import pair_columns
from noisegate.pipeline.runs.digests import digest_file, is_unchanged
from noisegate.pipeline.runs.embeddings import embeddings_match, read_embeddings
from noisegate.pipeline.runs.table import SCHEMA, RunFolder
from noisegate.pipeline.settings import ScoreSettings
from noisegate.pipeline.system.array_types import Float32

from .check_shard import Problems

SHARED = {  # metadata that all tables of a run share, and its name in problems
    "scorer": "scorer",
    "beta": "record of β",
    "calibration": "calibration",
    "pair_quality": "record of the pool of pair_quality",
    "cut": "cut",
    "labels": "record of its label scores",
    "neighbourhood": "record of its neighbourhoods",
    "scores": "digest of all label and neighbourhood scores",
    "one_step": "record of its methods' columns",
}
SCORE_TOLERANCE = 1e-6  # between a score and its value computed from the cosine and β
HALF_TOLERANCE = 1e-3  # between exact cosines and cosines of float16 rows: 2 · 2⁻¹¹ for unit vectors
QUALITY_TOLERANCE = 1e-5  # between two computations of pair_quality, by rounding
QUALITY_ROWS = 64  # of each shard whose pair_quality is computed again
BLOCK = 8192  # rows of embeddings read at a time


def settings_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata that must be the same in all tables, as text to compare."""
    return {name: json.dumps(metadata.get(name), sort_keys=True) for name in SHARED}


def check_settings(metadata: Mapping[str, Any], usual: Mapping[str, str], problems: Problems) -> None:
    """Check that scorer, β and everything learned are the `usual` ones: those of most tables of the run."""
    for name, text in settings_of(metadata).items():
        if text == usual[name]:
            continue
        here, there = metadata.get(name), json.loads(usual[name])
        if name == "scorer" and here and there:
            differences = Identity.from_dict(there).differences(Identity.from_dict(here))
            problems.add(f"the table was made by another scorer than the others: {'; '.join(differences)}")
        elif name == "beta" and here and there and here["value"] != there["value"]:
            problems.add(f"β is {here['value']!r} in this table, {there['value']!r} in the others")
        elif here is None or there is None:
            has, have = ("no", "have one") if here is None else ("a", "have none")
            problems.add(f"the table has {has} {SHARED[name]}, the others {have}")
        else:
            problems.add(f"the {SHARED[name]} in this table differs from that in the others")


def check_whole(run: RunFolder, stem: str, facts: Mapping[str, Any], problems: Problems) -> pa.Table | None:
    """Read the table and check its columns, row count and row order; None if it cannot be checked further."""
    try:
        table = run.read(stem)
        table.validate(full=True)
    except (TableError, pa.ArrowException) as error:
        problems.add(f"the table cannot be read: {error}")
        return None
    wrong = [
        name for name in SCHEMA.names if name not in table.schema.names or table[name].type != SCHEMA.field(name).type
    ]
    if wrong:
        problems.add(f"the table's column {wrong[0]} is missing or of another type")
        return None
    if len(table) != facts["rows"]:
        problems.add(f"the table has {len(table):,} rows, its own record says {facts['rows']:,}")
    places = table["index"].to_numpy(zero_copy_only=False)
    moved = np.flatnonzero(places != np.arange(len(table)))
    if len(moved):
        row = int(moved[0])
        what = f"row {row} of the table has index {places[row]:g}; rows were moved, removed or added"
        problems.add(what, table["key"][row].as_py())
    return table


def check_scores(table: pa.Table, metadata: Mapping[str, Any], problems: Problems) -> None:
    """Check that osa_weight, clean and clean_probability follow from similarity, β and the calibration."""
    keys = table["key"]
    for row, what in _score_problems(table, metadata):
        problems.add(what, keys[row].as_py())


def _score_problems(table: pa.Table, metadata: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    failed = pc.not_equal(table["status"], "ok").to_numpy(zero_copy_only=False)
    for name in ("similarity", "osa_weight", "clean_probability", "pair_quality", "label_quality", "clean"):
        scored = np.flatnonzero(failed & pc.is_valid(table[name]).to_numpy(zero_copy_only=False))
        yield from ((int(row), f"the sample failed, but has a {name}") for row in scored)
    for name in ("clean_probability", "label_quality", "predicted_confidence", "refined_confidence"):
        values = floats(table, name)
        with np.errstate(invalid="ignore"):
            outside = np.flatnonzero((values < -SCORE_TOLERANCE) | (values > 1 + SCORE_TOLERANCE))
        yield from ((int(row), f"{name} is {values[row]:g}, which is no probability") for row in outside)
    labels, near = metadata.get("labels"), metadata.get("neighbourhood")
    if metadata.get("method"):  # clean and its probability come from a training, not from cosines
        return
    if metadata.get("beta"):
        yield from _pair_problems(table, metadata, labels, near)
    elif near and near["alone"] and not labels:
        yield from _neighbourhood_problems(table, near)
    elif labels and not near:
        probability = floats(table, "clean_probability")
        yield from _differences(table, "clean", probability >= 0.5, "clean_probability", probability)


def _pair_problems(
    table: pa.Table, metadata: Mapping[str, Any], labels: Mapping[str, Any] | None, near: Mapping[str, Any] | None
) -> Iterator[tuple[int, str]]:
    similarity, beta = floats(table, "similarity"), Beta.from_dict(metadata["beta"])
    plain, cut = metadata.get("calibration"), metadata.get("cut") or ScoreSettings.cut
    calibration = PairCalibration.from_dict(plain) if plain else None
    want = pair_columns(table, beta, calibration, floats(table, "pair_quality"), cut)
    weight = np.asarray(want["osa_weight"], np.float32)
    judged = floats(table, calibration.score) if calibration else similarity
    yield from _differences(table, "osa_weight", weight, f"β {beta.value:.6g} and similarity", similarity)
    probability = np.asarray(want["clean_probability"], np.float32)
    fused = near and near["calibration"] and near["weight"]  # the weighting needs the whole run
    if not labels:
        if cut == "osa":
            yield from _differences(table, "clean", weight > 0, "osa_weight", weight)
        else:
            chance = floats(table, "clean_probability")
            yield from _differences(table, "clean", np.nan_to_num(chance) > LIKELY, "clean_probability", chance)
        if not fused:
            source = f"the calibration and {calibration.score if calibration else 'similarity'}"
            yield from _differences(table, "clean_probability", probability, source, judged)
        return
    with np.errstate(invalid="ignore"):  # with both tasks, P(clean) is the smaller of the two
        dropped = (weight == 0) if cut == "osa" else (probability <= LIKELY) & (not fused)
        clean = pc.fill_null(table["clean"], False).to_numpy(zero_copy_only=False) & dropped
        likely = floats(table, "clean_probability") > probability + SCORE_TOLERANCE
    yield from (
        (int(row), f"the sample is clean, but its pair is not, by --cut {cut}") for row in np.flatnonzero(clean)
    )
    if not fused:
        yield from ((int(row), "clean_probability is above that of the pair") for row in np.flatnonzero(likely))


def _neighbourhood_problems(table: pa.Table, near: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    agreement = floats(table, "neighbourhood")
    if near["calibration"]:
        want = PairCalibration.from_dict(near["calibration"]).clean_probability(agreement)
        yield from _differences(table, "clean_probability", want, "the calibration and neighbourhood", agreement)
    if near["cut"] is not None:
        yield from _differences(table, "clean", agreement > near["cut"], "neighbourhood", agreement, near["cut"])


def _differences(
    table: pa.Table, name: str, want: NDArray[Any], source: str, values: Float32, edge: float | None = None
) -> Iterator[tuple[int, str]]:
    """Find rows whose column `name` differs from `want`, which follows from `values` (NaN: must be null).

    Rows whose value lies within rounding of `edge` are left out.
    """
    have, known = floats(table, name), ~np.isnan(values)
    wanted = np.where(known, want, np.nan).astype(np.float32)
    with np.errstate(invalid="ignore"):
        differs = (np.abs(have - wanted) > SCORE_TOLERANCE) | (np.isnan(have) != np.isnan(wanted))
        if edge is not None:
            differs &= ~(np.abs(values - edge) <= SCORE_TOLERANCE)
    for row in np.flatnonzero(differs):
        here, there = (_value(table, name, float(v)) for v in (have[row], wanted[row]))
        yield int(row), f"{name} is {here}, but {source} {values[row]:.6g} gives {there}"


def _value(table: pa.Table, name: str, value: float) -> str:
    if np.isnan(value):
        return "null"
    return str(bool(value)).lower() if pa.types.is_boolean(table[name].type) else f"{value:.6g}"


def check_digests(run: RunFolder, stem: str, metadata: Mapping[str, Any], problems: Problems) -> None:
    """Report files that were edited after they were written, if no other check has reported them."""
    if problems.count:
        return
    if not is_unchanged(run.table(stem)):
        problems.add("the table was changed after it was written")
    path, written = run.embeddings(stem), metadata.get("embeddings")
    if written and path.exists() and digest_file(path) != written:
        problems.add("the embeddings were changed after they were written")


def check_embeddings(path: Path, table: pa.Table, facts: Mapping[str, Any], problems: Problems) -> None:
    """Check that the kept embeddings are whole, of this shard, and give the table's cosines (within float16)."""
    if not path.exists():
        problems.add("the embeddings file is missing, though other shards of the run have theirs")
        return
    try:
        with safe_open(path, framework="numpy") as file:
            shapes = {part: file.get_slice(part).get_shape() for part in ("image", "text")}
            if not embeddings_match(path, len(table), facts["sha256"]):
                problems.add(f"the embeddings file has {shapes['image'][0]:,} rows or was made from another shard")
                return
            same_width = shapes["image"][1] == shapes["text"][1] > 0
            similarity = floats(table, "similarity") if same_width else np.full(len(table), np.nan, np.float32)
            ok = pc.equal(table["status"], "ok").to_numpy(zero_copy_only=False)
            for start in range(0, len(table), BLOCK) if shapes["image"][1] else ():
                rows = slice(start, min(start + BLOCK, len(table)))
                images = file.get_slice("image")[rows].astype(np.float32)
                for row in np.flatnonzero(ok[rows] & ~images.any(axis=1)):
                    problems.add("the embeddings file has no picture of it", table["key"][start + int(row)].as_py())
                if not same_width:
                    continue
                cosine = np.einsum("nd,nd->n", images, file.get_slice("text")[rows].astype(np.float32))
                with np.errstate(invalid="ignore"):
                    differs = np.flatnonzero(np.abs(cosine - similarity[rows]) > HALF_TOLERANCE)
                for row in differs:
                    what = (
                        f"similarity is {similarity[start + row]:.4f}, but its kept embeddings give {cosine[row]:.4f}"
                    )
                    problems.add(what, table["key"][start + int(row)].as_py())
    except (OSError, SafetensorError, KeyError) as error:
        problems.add(f"the embeddings file cannot be read: {error}")


def check_quality(run: RunFolder, stem: str, pool: RunPool, problems: Problems) -> None:
    """Compute `pair_quality` of some rows again, from the kept embeddings and the run's pool."""
    table = run.read(stem, ["key", "status", "similarity", "pair_quality"])
    scored = np.flatnonzero(~np.isnan(floats(table, "pair_quality")))
    few = scored[np.linspace(0, len(scored), min(QUALITY_ROWS, len(scored)), endpoint=False).astype(np.int64)]
    if not len(few):
        return
    images, texts = (read_embeddings(run.embeddings(stem), part, few) for part in ("image", "text"))
    recorded = floats(table, "pair_quality")[few]
    computed = pool.quality(images, texts, floats(table, "similarity")[few])
    for i in np.flatnonzero(~(np.abs(recorded - computed) <= QUALITY_TOLERANCE)):
        what = f"pair_quality is {recorded[i]:.6g}, but its embeddings and the run's pool give {computed[i]:.6g}"
        problems.add(what, table["key"][int(few[i])].as_py())


def check_array(array: Path, embeddings: Path, table: pa.Table, facts: Mapping[str, Any], problems: Problems) -> None:
    """Check that the array that `score-embeddings` read still holds the rows that were kept."""
    try:
        rows, size = np.load(array, mmap_mode="r", allow_pickle=False), array.stat().st_size
    except (OSError, ValueError) as error:
        problems.add(f"the array cannot be read: {error}")
        return
    if size != facts["size"]:
        problems.add(f"the array has {size:,} bytes now, {facts['size']:,} when it was scored")
    if rows.ndim != 2 or len(rows) != len(table):
        problems.add(f"the array has shape {rows.shape} now, the table {len(table):,} rows")
        return
    try:
        with safe_open(embeddings, framework="numpy") as file:
            for start in range(0, len(table), BLOCK):
                part = slice(start, min(start + BLOCK, len(table)))
                now, kept = normalise(rows[part]), file.get_slice("image")[part]
                same = now.shape == kept.shape and np.isclose(now, kept.astype(np.float32), rtol=2**-10, atol=1e-6).all(
                    axis=1
                )
                for row in np.flatnonzero(~np.broadcast_to(same, len(now))):
                    problems.add("its vector in the array has changed", table["key"][start + int(row)].as_py())
    except (OSError, SafetensorError, ConfigError):
        return  # check_embeddings reports this


def floats(table: pa.Table, name: str) -> Float32:
    """Convert a column to float32 with NaN for null."""
    values: Float32 = table[name].cast(pa.float32()).to_numpy(zero_copy_only=False).astype(np.float32)
    return values
