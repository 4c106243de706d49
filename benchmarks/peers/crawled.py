"""Shards as img2dataset itself writes them, read as they are: its json fields inside, its Parquet and statistics beside.

    python -m benchmarks.peers.environments ENVIRONMENTS img2dataset
    python -m benchmarks.peers.crawled ENVIRONMENTS [--pictures 48] [--json]

img2dataset crawls pictures from a web server on this machine, one address of which is missing and one no picture. Then
`annotate` scores its folder, and each row is held against img2dataset's own Parquet files.
"""

import argparse
import csv
import functools
import hashlib
import http.server
import json
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.peers.environments import python_of
from noisegate.pipeline.annotate import annotate
from noisegate.pipeline.datasets.scenes import caption, draw, random_scene, scene_rng
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.runs.table import read_table

HERE = Path(__file__).resolve().parent


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""


def crawl(environments: Path, folder: Path, pictures: int) -> Path:
    """What img2dataset makes of a small web."""
    web, out = folder / "web", folder / "crawled"
    web.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(web)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root = f"http://127.0.0.1:{server.server_port}"
    with (folder / "list.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["url", "caption"])
        for index in range(pictures):
            rng = scene_rng(1, index)
            scene = random_scene(rng)
            draw(scene, 320).save(web / f"{index}.jpg", quality=90)
            rows.writerow([f"{root}/{index}.jpg", caption(scene, rng)])
        (web / "page.jpg").write_text("<html>no picture</html>")
        rows.writerow([f"{root}/page.jpg", "a page"])
        rows.writerow([f"{root}/missing.jpg", "nothing"])
    command = [python_of(environments, "img2dataset"), HERE / "with_img2dataset.py", folder / "list.csv", out, "20"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    server.shutdown()
    if done.returncode:
        raise SystemExit(f"img2dataset failed:\n{done.stderr[-2000:]}")
    return out


def compare(crawled: Path, tables: Path) -> dict[str, Any]:
    """Rows of the tables against those of img2dataset, by key."""
    beside = sorted(path.name for path in crawled.iterdir())
    before = {name: hashlib.sha256((crawled / name).read_bytes()).digest() for name in beside}
    summary = annotate(str(crawled), tables, estimator=ModelSpec(device="cpu"), beta="fixed:0.3", workers=0)
    theirs: dict[str, dict[str, Any]] = {}
    for path in sorted(crawled.glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            theirs[row["key"]] = row
    good = {key: row for key, row in theirs.items() if row["status"] == "success"}
    ours = {row["key"]: row for row in read_table(tables).to_pylist()}
    captions = all(
        ours[key]["text_sha256"] == hashlib.sha256(row["caption"].encode()).digest() for key, row in good.items()
    )
    after = {name: hashlib.sha256((crawled / name).read_bytes()).digest() for name in beside}
    return {
        "files": [*beside[:3], f"… {len(beside)} in all"],
        "addresses": len(theirs),
        "crawled": len(good),
        "rows": len(ours),
        "ok": summary.statuses.get("ok", 0),
        "same_keys": set(ours) == set(good),
        "same_captions": captions,
        "left_alone": before == after,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("environments", type=Path)
    parser.add_argument("--pictures", type=int, default=48)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = compare(crawl(given.environments, Path(name), given.pictures), Path(name) / "tables")
    if given.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:16} {', '.join(value) if isinstance(value, list) else value}")
    if not (found["same_keys"] and found["same_captions"] and found["left_alone"] and found["ok"] == found["crawled"]):
        raise SystemExit("annotate does not read these shards as they are")


if __name__ == "__main__":
    main()
