"""The captions of a few rows, read from their shards where these are at hand, and made fit to print."""

import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from noisegate.pipeline.errors import ShardError
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.decode import BadSample, decode_text
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.random_access import read_samples

Place = tuple[str, int]  # a table's stem and a row


def read_captions(run: RunFolder, wanted: Iterable[tuple[str, int, str]]) -> dict[Place, str]:
    """Captions by (stem, row) of the rows wanted, (stem, row, key) each; one that cannot be had is left out.

    Shards on this machine only: a look at ten captions is not worth ten downloads. A shard is read as far as needed.
    """
    rows: dict[str, dict[int, str]] = {}
    for stem, row, key in wanted:
        rows.setdefault(stem, {})[row] = key
    urls = {entry["table"]: str(entry["url"]) for entry in (run.read_run() or {"shards": []})["shards"]}
    found: dict[Place, str] = {}
    for stem, keys in rows.items():
        shard, reading = Shard(urls[stem]), read_metadata(run.table(stem))["reading"]
        if "limits" not in reading or not shard.is_local:  # made from arrays, or far away
            continue
        for row, text in _captions(shard, keys, reading).items():
            found[stem, row] = text
    return found


def _captions(shard: Shard, keys: Mapping[int, str], reading: Mapping[str, Any]) -> dict[int, str]:
    options, captions = DecodeOptions.from_dict(reading), {}
    with suppress(ShardError):
        for raw in read_samples(shard, keys):
            if keys[raw.index] == raw.key:  # another key: the shard has changed since it was scored
                with suppress(BadSample):
                    captions[raw.index] = decode_text(raw.parts, options.text_field, options.limits)
    return captions


def one_line(text: str, limit: int = 500) -> str:
    """The text without line breaks, control and formatting characters (which could repaint a terminal), cut at `limit`.

    >>> one_line("a\\x1b[31m red\\n\\tball\\u202e")
    'a [31m red ball'
    """
    kinds = ((c, unicodedata.category(c)) for c in text[: 4 * limit])
    plain = "".join("" if kind == "Cf" else " " if kind[0] in "CZ" else c for c, kind in kinds)
    short = " ".join(plain.split())
    return short if len(short) <= limit else f"{short[: limit - 1]}…"
