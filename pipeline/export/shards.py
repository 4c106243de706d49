"""Write shards of the kept samples, for trainers that cannot join a table."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.captions import CAPTION
from noisegate.pipeline.shards.read import RawSample
from noisegate.pipeline.shards.tar import ShardWriter, write_shard

from .flat import json_values
from .rows import Options, RunRows, ShardRows, Written


def parse_added_columns(text: str) -> dict[str, str]:
    """Parse json fields and the columns that fill them: `osa_weight,w=clean_probability`.

    >>> parse_added_columns("osa_weight,w=clean_probability")
    {'osa_weight': 'osa_weight', 'w': 'clean_probability'}
    """
    pairs = [(name.strip() for name in item.rpartition("=")[::2]) for item in text.split(",") if item.strip()]
    fields = {field or column: column for field, column in pairs}
    if len(fields) < len(pairs):
        raise ConfigError.of("add_columns", text, "names a field twice; use osa_weight,w=clean_probability")
    return fields


def write_shards(rows: RunRows, out: Path, options: Options) -> Written:
    """Write `STEM.tar` for every shard with kept samples: parts byte for byte, in tar order, one sample in memory.

    `options.add_columns` puts columns into each sample's json; with `rows.review_labels` a person's label replaces the given
    one.
    """
    rows.need_shards("--as shards")
    add = options.add_columns
    columns = rows.choose(list(dict.fromkeys(add.values()))) if add else []
    if CAPTION in columns:
        raise ConfigError.of("add_columns", CAPTION, "is in the sample already; add scores, such as osa_weight")
    left_out: Counter[str] = Counter()
    empty: list[str] = []
    digests: dict[str, str] = {}
    written = 0
    new_label = ["review_label"] if rows.review_labels else []
    for part in rows.parts(list(dict.fromkeys([*columns, *new_label]))):
        count = 0
        if len(part.kept):
            path = out / f"{part.stem}.tar"
            with write_shard(path) as shard:
                _copy(part, shard, add, left_out, rows)
            count = shard.samples
            if not count:
                path.unlink()
        if count:
            digests[f"{part.stem}.tar"] = shard.sha256
        else:
            empty.append(part.stem)
        written += count
    return Written(written, dict(left_out), empty, digests=digests)


def _copy(part: ShardRows, shard: ShardWriter, add: Mapping[str, str], left_out: Counter[str], rows: RunRows) -> None:
    """Copy one shard's kept samples."""
    labels = part.kept["review_label"].to_pylist() if rows.review_labels else None
    values = {field: json_values(part.kept[column]) for field, column in add.items()}
    last_key: str | None = None
    for row, raw in part.samples(all_parts=True):
        parts = {name: raw.parts[name] for name in raw.names if name in raw.parts}
        if len(parts) < len(raw.names) or raw.broken:
            left_out["incomplete in the shard"] += 1
            continue
        if raw.key == last_key:  # readers would merge the two into one sample, or stop
            left_out["same key as the sample before"] += 1
            continue
        if add:
            changed = _with_fields(raw, {field: texts[row] for field, texts in values.items()})
            if changed is None:
                left_out["json that cannot be read"] += 1
                continue
            parts["json"] = changed
        if labels and labels[row] is not None:
            parts = _with_label(parts, rows.facts["reading"].get("label_field"), labels[row])
        shard.add(raw.key, parts)
        last_key = raw.key


def _with_label(parts: dict[str, bytes], field: str | None, label: int) -> dict[str, bytes]:
    """Replace the class number in the part where `decode_label` finds it."""
    if "json" in parts and (field or "cls" not in parts):
        record = json.loads(parts["json"])
        name = field or next((name for name in ("label", "cls") if record.get(name) is not None), None)
        if name is not None:
            return parts | {"json": json.dumps({**record, name: label}).encode()}
    return parts | {"cls": str(label).encode()}


def _with_fields(raw: RawSample, fields: Mapping[str, str]) -> bytes | None:
    """Add `fields` to the sample's json; None if the json is not an object."""
    try:
        record = json.loads(raw.parts.get("json", b"{}"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    for field, text in fields.items():
        value = json.loads(text)
        if field in record and record[field] != value:
            problem = f"is a field of the json of {raw.key} with another value; use noisegate_{field}={field}"
            raise ConfigError.of("add_columns", field, problem)
        record[field] = value
    return json.dumps(record).encode()
