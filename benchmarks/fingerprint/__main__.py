"""Record digests of everything observable over fixed inputs, or compare with those recorded.

    python -m benchmarks.fingerprint record [FILE] [--only PREFIX] [--keep FOLDER]
    python -m benchmarks.fingerprint compare [FILE] [--only PREFIX] [--keep FOLDER]

`compare` prints every item that differs and ends with 1 if there is one. Digests of floats depend on the processor and on
the libraries: the file names those it was made with. `--keep` writes the content behind every digest below a folder; two
such folders, one of each commit, are compared by `diff -r`.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# One thread, a fixed hash seed and terminal width, no caches of the user: the same bits every time. Read when Python and
# the libraries start, so `main` starts Python anew where they are not set.
FIXED = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "COLUMNS": "120",
    "TERM": "dumb",
    "TZ": "UTC",
    "HF_HUB_OFFLINE": "1",
}
FILE = Path(__file__).resolve().parents[1] / "fingerprint.json"


def parts() -> Mapping[str, Callable[[Any], None]]:
    """What is recorded, by the first word of its items' names; imported late, after the environment is fixed."""
    from . import api, downloads, engines, hostile, http, runs, surface, training

    return {
        "surface": surface.record_surface,
        "pairs": runs.record_pairs,
        "labels": runs.record_labels,
        "arrays": runs.record_arrays,
        "hostile": hostile.record_hostile,
        "looks": runs.record_looks,
        "exports": runs.record_exports,
        "downloads": downloads.record_downloads,
        "engines": engines.record_engines,
        "api": api.record_api,
        "http": http.record_http,
        "training": training.record_training,
    }


def collect(only: str, keep: Path | None) -> dict[str, str]:
    """All items whose names begin with `only`."""
    from .recorder import Recorder

    with tempfile.TemporaryDirectory(prefix="fingerprint-", ignore_cleanup_errors=True) as folder:
        space = Path(folder).resolve() / "space"
        space.mkdir()
        os.environ["XDG_CACHE_HOME"] = str(space.parent / "cache")
        recorder, before = Recorder(space, keep), Path.cwd()
        os.chdir(space)
        try:
            for name, record in parts().items():
                if name.startswith(only.partition("/")[0]):
                    began = time.process_time()
                    try:
                        record(recorder)
                    except Exception:  # the other parts are still worth comparing
                        traceback.print_exc()
                        recorder.text(f"{name}/crash", traceback.format_exc(limit=0))
                    print(f"{name}: {time.process_time() - began:.1f} s of processor time", file=sys.stderr)
        finally:
            os.chdir(before)
    return {name: item for name, item in recorder.items.items() if name.startswith(only)}


def machine() -> dict[str, str]:
    """What digests of floats depend on."""
    import faiss
    import numpy
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {package.__name__: str(package.__version__) for package in (torch, numpy, faiss)}
    return {"processor": models[0] if models else "unknown", "python": sys.version.split()[0], **versions}


def report(old: Mapping[str, str], new: Mapping[str, str]) -> int:
    """Print what differs and a count; the exit code."""
    names = list(dict.fromkeys([*old, *new]))
    differ = [name for name in names if old.get(name) != new.get(name)]
    for name in differ:
        print(f"{name}\n  old {old.get(name, 'missing')}\n  new {new.get(name, 'missing')}")
    print(f"{len(names) - len(differ)} equal, {len(differ)} different or missing")
    return 1 if differ else 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser("benchmarks.fingerprint", description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("file", nargs="?", type=Path, default=FILE)
    parser.add_argument(
        "--only", default="", metavar="PREFIX", help="items whose names begin so, such as pairs/annotate"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="also write the content behind every digest")
    arguments = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in FIXED.items()):
        os.execve(
            sys.executable, [sys.executable, "-m", "benchmarks.fingerprint", *sys.argv[1:]], {**os.environ, **FIXED}
        )
    old = (
        json.loads(arguments.file.read_text(encoding="utf-8"))
        if arguments.file.exists()
        else {"machine": {}, "items": {}}
    )
    if arguments.action == "compare" and not old["items"]:
        parser.error(f"{arguments.file} is not there; record first")
    here, items = machine(), collect(arguments.only, arguments.keep and arguments.keep.resolve())
    if arguments.action == "record":
        kept = {name: item for name, item in old["items"].items() if not name.startswith(arguments.only)}
        content = {"machine": here, "items": dict(sorted((kept | items).items()))}
        arguments.file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{len(items)} items recorded in {arguments.file}")
        return 1 if any(name.endswith("/crash") for name in items) else 0
    for name in {**old["machine"], **here}:
        if old["machine"].get(name) != here.get(name):
            print(f"recorded with another {name}: {old['machine'].get(name)}, here {here.get(name)}; floats may differ")
    return report({name: item for name, item in old["items"].items() if name.startswith(arguments.only)}, items)


if __name__ == "__main__":
    sys.exit(main())
