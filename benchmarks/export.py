"""Peak memory and time of every kind of export over a synthetic run; each kind runs in a process of its own.

    python -m benchmarks.export [--rows 200000] [--shards 20] [--json]

The figure is the growth over a process that has only imported what it needs, beside the whole. Small pictures are the
hard case: memory that grows with the number of rows would show.
"""

import argparse
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from benchmarks.memory import peak_mb
from benchmarks.synthetic_run import write_synthetic_run
from noisegate.pipeline.export import FORMATS, export
from noisegate.pipeline.runs.table import RunFolder, read_metadata, replace_columns
from noisegate.pipeline.system.output_files import write_atomically

RULE = "clean_probability > 0.5 and status = 'ok' and not flags like 'duplicate_of:%'"
LIMIT_MB = 1_000
SUFFIX = {"cleanlab": "parquet", "keys": "txt", "datacomp": "npy"}
CAPTIONED = "jsonl with captions"


def name_by_uid(folder: Path) -> None:
    """Rename all samples to 32 hex digits, in the tars and in the tables, so that they can be a DataComp subset."""
    run = RunFolder(folder)
    for stem in run.stems():
        shard = folder / "shards" / f"{stem}.tar"
        packed = io.BytesIO()
        with tarfile.open(shard) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as new:
            for member in old:
                key, _, part = member.name.partition(".")
                data = old.extractfile(member)
                member.name = f"{int(key):032x}.{part}"
                new.addfile(member, data)
        write_atomically(shard, packed.getbuffer())
        table, metadata = run.read(stem), read_metadata(run.table(stem))
        metadata["shard"] |= {"sha256": hashlib.sha256(packed.getbuffer()).hexdigest(), "size": packed.tell()}
        keys = [f"{int(key):032x}" for key in table["key"].to_pylist()]
        run.write_table(stem, replace_columns(table, {"key": keys}, metadata))


def one(folder: Path, kind: str) -> None:
    """Export as `kind` in this process and print what it took."""
    before, began = peak_mb(), time.perf_counter()
    plain = kind.split()[0]
    columns = ["shard", "key", "caption", "osa_weight"] if kind == CAPTIONED else None
    name = plain if plain in ("shards", "datasets") else f"{kind.replace(' ', '-')}.{SUFFIX.get(plain, plain)}"
    done = export(folder / "run", folder / "out" / name, plain, where=RULE, columns=columns)
    figures = {"rows": done.rows, "written": done.written, "files": len(done.files), "output_mb": done.bytes / 1e6}
    figures |= {"seconds": time.perf_counter() - began, "peak_mb": peak_mb(), "growth_mb": peak_mb() - before}
    print(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("FOLDER", "KIND"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        return one(Path(given.one[0]), given.one[1])
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_synthetic_run(folder / "run", given.rows, given.shards, labels=True, with_shards=True)
        name_by_uid(folder / "run")
        for kind in (*FORMATS, CAPTIONED):
            command = [sys.executable, "-m", "benchmarks.export", "--one", str(folder), kind]
            ran = subprocess.run(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=True)
            found[kind] = json.loads(ran.stdout)
    if given.json:
        print(json.dumps(found))
    else:
        print(f"{'as':20} {'rows':>9} {'written':>9} {'MB out':>8} {'seconds':>8} {'peak MB':>8} {'growth MB':>9}")
        for kind, f in found.items():
            print(
                f"{kind:20} {f['rows']:9,} {f['written']:9,} {f['output_mb']:8.1f} {f['seconds']:8.1f} "
                f"{f['peak_mb']:8.0f} {f['growth_mb']:9.0f}"
            )
    worst = max(f["peak_mb"] for f in found.values())
    if worst > LIMIT_MB:
        sys.exit(f"peak memory of {worst:,.0f} MB; the limit is {LIMIT_MB:,} MB")
    return None


if __name__ == "__main__":
    main()
