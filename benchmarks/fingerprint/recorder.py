"""Collects named items, each a digest of content from which times, paths of this machine and versions are removed."""

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import safe_open

from .product import Done, noisegate

__all__ = ["ROOT", "Recorder"]

ROOT = Path(__file__).resolve().parents[2]
DIGITS = 12  # of a digest: enough for a few thousand items
HINT = 100  # characters

# Values that differ from run to run, or with the release.
VOLATILE = {"seconds", "pairs_per_second", "samples_per_second", "modified", "request_id", "noisegate"}
VOLATILE |= {"created", "started", "ended", "id"}  # of jobs
VOLATILE |= {"memory_mb", "train_seconds"}  # of benches
TEXTS = (
    (re.compile(r"[\d,.]+ samples/s.*"), "N samples/s"),
    (re.compile(r"\b[\d,]+(\.\d+)? s\b"), "N s"),
    (re.compile(r"[\d,.]+( MB)?/s\b"), "N/s"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)? UTC"), "TIME"),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),  # tables are padded to their widest cell, which may be a time
)


class Recorder:
    """Items by name. Names are paths such as `pairs/annotate/column/similarity`; `only` leaves out all other parts."""

    def __init__(self, space: Path, keep: Path | None = None) -> None:
        self.items: dict[str, str] = {}
        self._places = [(str(space), "SPACE"), (str(space.parent), "TEMP"), (sys.prefix, "VENV"), (str(ROOT), "ROOT")]
        self._keep = keep

    # --- one item --------------------------------------------------------------------------------------------------

    def add(self, name: str, content: bytes, hint: str = "") -> None:
        """Record a digest and a few words that tell a reader what was there."""
        if name in self.items:
            raise ValueError(f"two items are called {name}")
        short = hint if len(hint) <= HINT else hint[: HINT - 1] + "…"
        self.items[name] = f"{hashlib.sha256(content).hexdigest()[:DIGITS]} {short}".rstrip()
        if self._keep is not None:
            path = self._keep / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name(path.name + ".txt").write_bytes(content)

    def text(self, name: str, text: str) -> None:
        """Record text that people read."""
        cleaned = self.clean_text(text)
        lines = cleaned.splitlines()
        self.add(name, cleaned.encode(errors="backslashreplace"), f"{len(lines)} lines: {lines[0]}" if lines else "")

    def json(self, name: str, value: Any) -> None:
        """Record JSON: an object by its keys, everything else whole."""
        value = self.clean(value)
        if isinstance(value, dict) and len(value) > 1:
            for key, part in value.items():
                self._json(f"{name}.{key}", part)
        else:
            self._json(name, value)

    def _json(self, name: str, value: Any) -> None:
        content = json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1)
        hint = json.dumps(value, sort_keys=True, ensure_ascii=False)
        self.add(name, content.encode(errors="backslashreplace"), hint)

    def bytes(self, name: str, content: bytes) -> None:
        """Record bytes as they are."""
        self.add(name, content, f"{len(content)} bytes")

    # --- files -----------------------------------------------------------------------------------------------------

    def folder(self, name: str, folder: Path) -> None:
        """Record every file below a folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not is_passing(path):
                self.file(f"{name}/{path.relative_to(folder)}", path)

    def file(self, name: str, path: Path) -> None:
        """Record a file by its content where that is known to hold times or versions, else by its bytes."""
        if path.suffix == ".parquet":
            self.parquet(name, [path])
        elif path.suffix == ".safetensors":
            self.tensors(name, path)
        elif path.suffix == ".json":
            self.json(name, json.loads(path.read_text(encoding="utf-8")))
        elif path.suffix == ".jsonl":
            self._json(name, [self.clean(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()])
        elif path.suffix in (".csv", ".txt", ".yaml"):
            self.text(name, path.read_text(encoding="utf-8"))
        else:
            self.bytes(name, path.read_bytes())

    def parquet(self, name: str, paths: Iterable[Path]) -> None:
        """Record each column over all files, and their metadata. Columns without values count as one item."""
        tables = [pq.read_table(path) for path in paths]
        empty = []
        for column in tables[0].column_names:
            values = [value for table in tables for value in plain(table[column])]
            if all(value in (None, []) for value in values):
                empty.append(column)
                continue
            kind = tables[0].schema.field(column).type
            self.add(f"{name}/column/{column}", "\n".join([str(kind), *map(repr, values)]).encode(), describe(values))
        self._json(f"{name}/empty columns", empty)
        found: dict[str, list[Any]] = {}
        for table in tables:
            for key, value in (table.schema.metadata or {}).items():
                found.setdefault(key.decode(), []).append(self.clean(read_json(value.decode())))
        for key, values in found.items():
            same = all(value == values[0] for value in values)
            self._json(f"{name}/metadata/{key}", values[0] if same else values)

    def tensors(self, name: str, path: Path) -> None:
        """Record a safetensors file: names, types, shapes, values, metadata."""
        digest, total = hashlib.sha256(), 0.0
        with safe_open(path, framework="np") as file:
            names = sorted(file.keys())
            facts = {key: self.clean(read_json(value)) for key, value in (file.metadata() or {}).items()}
            digest.update(json.dumps(facts, sort_keys=True).encode())
            for tensor in names:
                values = file.get_tensor(tensor)
                digest.update(
                    f"{tensor} {values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes()
                )
                total += float(values.astype(np.float64).sum())
        self.add(name, digest.digest(), f"{len(names)} tensors, sum {total!r}")

    # --- commands --------------------------------------------------------------------------------------------------

    def command(self, name: str, *words: object, stdin: str = "") -> Done:
        """Run a command, and record its exit code, the JSON or text it printed, and what it said on standard error."""
        done = noisegate(*words, stdin=stdin)
        self._json(f"{name}/exit code", done.code)
        if "--json" in words and done.out.startswith("{"):
            self.json(f"{name}/json", json.loads(done.out))
        else:
            self.text(f"{name}/stdout", done.out)
        self.text(f"{name}/stderr", done.err)
        return done

    def quiet(self, name: str, *words: object) -> None:
        """The same without standard error, for commands that work with processes and report them as they come."""
        done = noisegate(*words)
        self._json(f"{name}/exit code", done.code)
        self.json(f"{name}/json", json.loads(done.out) if done.out.startswith("{") else done.err)

    def keys(self, name: str, *words: object) -> None:
        """Run a command that measures this machine, and record its exit code and the structure of its JSON."""
        done = noisegate(*words)
        self._json(f"{name}/exit code", done.code)
        self.json(f"{name}/keys", keys_of(self.clean(json.loads(done.out))) if done.out else done.err)

    def run(self, name: str, folder: Path) -> None:
        """Record a run of `annotate`: its tables, embeddings and record."""
        tables = sorted(folder.glob("*.parquet"))
        if tables:
            self.parquet(name, tables)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not is_passing(path) and path not in tables and path.suffix != ".html":
                self.file(f"{name}/{path.relative_to(folder)}", path)

    # --- normalising -----------------------------------------------------------------------------------------------

    def clean_text(self, text: str) -> str:
        """Without times and paths of this machine."""
        for place, word in self._places:
            text = text.replace(place, word)
        for pattern, word in TEXTS:
            text = pattern.sub(word, text)
        return text

    def clean(self, value: Any) -> Any:
        """The same for JSON values; volatile ones become null, so that their keys still count."""
        if isinstance(value, Mapping):
            return {self.clean_text(str(k)): None if k in VOLATILE else self.clean(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean(v) for v in value]
        return self.clean_text(value) if isinstance(value, str) else value


def is_passing(path: Path) -> bool:
    """Whether a file belongs to the process that wrote it, such as a lock."""
    return path.name == "_lock" or path.suffix == ".tmp"


def plain(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column; bytes as hex."""
    return [value.hex() if isinstance(value, bytes) else value for value in column.to_pylist()]


def read_json(text: str) -> Any:
    """JSON where it is JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def describe(values: list[Any]) -> str:
    """How many, and where numbers lie."""
    numbers = [float(v) for v in values if isinstance(v, int | float)]
    if not numbers:
        return f"{len(values)} values: {values[0]}"
    return f"{len(values)} values, {len(numbers)} not null, {min(numbers):.6g} to {max(numbers):.6g}, sum {sum(numbers):.9g}"


def keys_of(value: Any) -> Any:
    """The structure of JSON values without what was measured: numbers and texts become their type, a list its first."""
    if isinstance(value, Mapping):
        return {str(k): keys_of(v) for k, v in value.items()}
    if isinstance(value, list):
        return [keys_of(v) for v in value[:1]]
    return type(value).__name__
