"""Rewrite shards with wrong captions, and record for each sample what was changed."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards.decode import BadSample, decode_text
from noisegate.pipeline.shards.locate import Shard, find_shards
from noisegate.pipeline.shards.read import RawSample, ShardReader
from noisegate.pipeline.shards.tar import write_shard
from noisegate.pipeline.system.output_files import refuse_other_shards, write_atomically, writing_to

from .captions import shuffle_captions, shuffle_images
from .protocols import PROTOCOLS, protocol_id

TRUTH_FILE = "noise.parquet"
OWN_FIELDS = ("noisy", "noise_protocol", "clean_label", "original_caption")  # json fields that record the noise


@dataclass(frozen=True)
class NoiseReport:
    """Summary of the written shards: `noisy` of `samples` are wrong now, `untouched` had no caption."""

    out: str
    protocol: str
    shards: list[str]
    samples: int
    noisy: int
    untouched: int

    @property
    def rate(self) -> float:
        """Realised share of wrong samples among all."""
        return self.noisy / self.samples if self.samples else 0.0


def noise_captions(
    shards: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    protocol: str = "shuffle-captions",
    rate: float,
    seed: int,
    derange: bool = False,
    text_field: str | None = None,
) -> NoiseReport:
    """Copy shards to `out` with mismatched captions; captions are read from `txt` or json as in `annotate`.

    A sample counts as noisy when its new caption comes from another picture and reads differently. Each sample's json
    gets `noisy`, `noise_protocol` and, where changed, `original_caption`; `noise.parquet` lists the same for all.
    """
    if protocol not in PROTOCOLS or PROTOCOLS[protocol].noises != "captions":
        names = ", ".join(name for name, p in PROTOCOLS.items() if p.noises == "captions")
        raise ConfigError.of("protocol", protocol, f"does not change captions; use {names}")
    refuse_own_field("text_field", text_field, "caption", "true_caption")
    identity = protocol_id(protocol, rate=rate, derange=derange, seed=seed)
    if seed < 0:
        raise ConfigError.of("seed", seed, "is negative; use 7")
    located = find_shards(shards)
    captions, images = _read_captions(located, text_field)
    usable = np.flatnonzero([caption is not None for caption in captions])
    shuffle = shuffle_captions if protocol == "shuffle-captions" else shuffle_images
    moved = shuffle(images[usable], rate, np.random.default_rng(seed), derange)
    source = np.arange(len(captions))
    source[usable] = usable[moved.source]
    noisy = np.zeros(len(captions), bool)
    noisy[usable] = moved.noisy
    noisy &= np.array([captions[i] != captions[j] for i, j in enumerate(source)], dtype=bool)

    def change(row: int, raw: RawSample) -> dict[str, bytes]:
        record = json_record(raw)
        wrong = bool(noisy[row])
        caption = captions[int(source[row])]
        record |= {"noisy": wrong, "noise_protocol": identity}
        parts = dict(raw.parts)
        if caption is not None and caption != captions[row]:
            record["original_caption"] = captions[row]
            names = [text_field] if text_field else ["caption", "text"]
            record |= {name: caption for name in names if name in record}
            if text_field is None and ("txt" in parts or not {"caption", "text"} & set(record)):
                parts["txt"] = caption.encode()
        return parts | {"json": json.dumps(record).encode()}

    written = rewrite_shards(located, Path(out), change, noisy, identity)
    return NoiseReport(str(out), identity, written, len(captions), int(noisy.sum()), len(captions) - len(usable))


def rewrite_shards(
    shards: Sequence[Shard],
    out: Path,
    change: Callable[[int, RawSample], dict[str, bytes]],
    noisy: NDArray[np.bool_],
    protocol: str,
    columns: Mapping[str, Any] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> list[str]:
    """Rewrite each shard with the parts that `change(global row, sample)` returns, and write `noise.parquet` beside them.

    `columns` (one value for each sample) and `metadata` go into `noise.parquet` too.
    """
    targets = {shard: out / f"{shard.stem}.tar" for shard in shards}
    for shard, target in targets.items():
        if shard.is_local and target.resolve() == Path(shard.url).resolve():
            raise ConfigError.of("out", out, "is where the shards are; use another folder, so that the originals stay")
    refuse_other_shards(out, {target.name for target in targets.values()})
    row = 0
    truth: dict[str, list[Any]] = {"shard": [], "index": [], "key": [], "noisy": []}
    with writing_to(out):
        for shard, target in targets.items():
            with write_shard(target) as written:
                for raw in ShardReader(shard, all_parts=True):
                    written.add(raw.key, change(row, raw))
                    for name, value in zip(truth, (shard.stem, raw.index, raw.key, bool(noisy[row])), strict=True):
                        truth[name].append(value)
                    row += 1
        table = pa.table({**truth, **(columns or {})})
        table = table.replace_schema_metadata({"noisegate.noise_protocol": protocol, **(metadata or {})})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        write_atomically(out / TRUTH_FILE, sink.getvalue())
    return [str(target) for target in targets.values()]


def _read_captions(shards: Sequence[Shard], field: str | None) -> tuple[list[str | None], NDArray[np.int64]]:
    """Read captions (None where there is none) and picture ids (N,); samples with the same picture share an id."""
    captions: list[str | None] = []
    problem = ""
    ids: dict[bytes, int] = {}
    images: list[int] = []
    for shard in shards:
        for raw in ShardReader(shard):
            refuse_noisy(raw, shard)
            try:
                captions.append(decode_text(raw.parts, field, Limits()))
            except BadSample as error:
                captions.append(None)
                problem = problem or str(error)
            picture = hashlib.sha256(raw.image if raw.image is not None else f"none {len(images)}".encode()).digest()
            images.append(ids.setdefault(picture, len(ids)))
    if not captions:
        raise ConfigError(f"the {len(shards)} shards hold no samples", "shards", None)
    if all(caption is None for caption in captions):
        raise ConfigError(
            f"no sample has a caption: {problem}; give its json field as --text-field", "text_field", field
        )
    return captions, np.array(images, np.int64)


def refuse_noisy(raw: RawSample, shard: Shard) -> None:
    """Refuse a sample that is noisy already: the record of the first noise would be lost."""
    if b'"noise_protocol"' in raw.parts.get("json", b""):
        problem = (
            f"sample {raw.key} of {shard.url} has noise already, whose record would be lost; give the clean shards"
        )
        raise ConfigError(problem, "shards", shard.url)


def refuse_own_field(setting: str, field: str | None, what: str, example: str) -> None:
    """Refuse a caption or label in a field where the noise is recorded: one of the two would be lost."""
    if field in OWN_FIELDS:
        problem = f"is a field that the noise writes itself, and the right {what} would be lost"
        raise ConfigError.of(setting, field, f"{problem}; have it in another field too, such as {example}")


def json_record(raw: RawSample) -> dict[str, Any]:
    """Parse the sample's json as an object; empty if there is none or it is broken."""
    try:
        record = json.loads(raw.parts.get("json", b"{}"))
    except (ValueError, RecursionError):
        record = {}  # a broken json is replaced by one with the record of the noise
    return record if isinstance(record, dict) else {}
