"""Runs in a real S3 server: the commands, killed jobs, a second writer, a bucket that is not there."""

import json
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
from fastapi.testclient import TestClient

import noisegate as ng
from noisegate.pipeline.runs.table import RunFolder
from noisegate.service.app import create_app
from noisegate.service.settings import load_settings
from noisegate.trainers.data import WeightedShards
from tests.commands import FAKE, ROOT, called
from tests.fakes import pairs, write_tar
from tests.jobs import files_of
from tests.service.fakes import FakeEngine


def stored(url: str) -> dict[str, bytes]:
    """Every file below a URL by name."""
    files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    return {path.removeprefix(f"{root}/"): files.cat_file(path) for path in files.find(root)}


def test_the_commands_write_to_s3_and_read_from_it(bucket: str, tmp_path: Path) -> None:
    for i in range(3):
        write_tar(tmp_path / "s" / f"x-{i}.tar", pairs(4, 10 * i))
    url = f"{bucket}/commands/run"

    def command(*words: object) -> str:
        done = called(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for out in ("local", url):
        command("annotate", "s", "--out", out, *FAKE, "--workers", 0, "--beta", "fixed:0.4")
        command("rescore", out, "--neighbourhood", "--k", 2)
    assert stored(url) == files_of(tmp_path / "local")
    told = {out: json.loads(command("show", out, "--json")) for out in ("local", url)}
    assert told[url].pop("out") == url
    assert told["local"].pop("out") == "local"
    assert told[url] == told["local"]
    assert url in command("report", url)
    command("report", "local", "--out", f"{bucket}/commands/report.html")
    command("export", url, "--as", "csv", "--out", f"{bucket}/commands/rows.csv")
    command("export", url, "--as", "shards", "--where", "clean", "--out", f"{bucket}/commands/kept")
    command("verify", url, "--samples", 5, "--trust-run", "--quiet")
    assert "12 rows are the same samples" in command("compare", url, "local")
    assert WeightedShards(str(tmp_path / "s" / "*.tar"), url, batch_size=4).selected_rows == 12
    service = create_app(load_settings(model=FAKE[1], runs=[f"mine={url}"]), FakeEngine())
    assert TestClient(service, base_url="http://localhost").get("/v1/runs/mine/summary").json()["samples"] == 12
    refused = called("annotate", "s", "--out", "memory://x/run", *FAKE, cwd=tmp_path)
    assert (refused.returncode, "is gone when the command ends" in refused.stderr) == (2, True)
    made = set(stored(f"{bucket}/commands"))
    assert {"run/report.html", "report.html", "rows.csv", "kept/x-0.tar", "kept/_export.json"} <= made


def test_a_second_writer_is_told_who_writes(
    bucket: str, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket}/held"
    words = ("annotate", shards, "--out", url, *FAKE, "--workers", 0, "--beta", "fixed:0.4")
    with RunFolder.to_write(url).lock():
        assert "process" in json.loads(stored(url)["_lock"])["holder"]
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("XDG_CACHE_HOME", str(tmp_path / "cache of another machine"))
            done = called(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert f"error: out '{url}' is being written by process " in done.stderr
    assert called(*words, cwd=tmp_path).returncode == 0
    assert "_lock" not in stored(url)


def test_a_bucket_that_is_not_there_is_told_before_a_model_is_loaded(bucket: str, shards: Path) -> None:
    done = called("annotate", shards, "--out", "s3://nosuch/run", "--model", "python:nosuch:Model", cwd=shards)
    assert done.returncode == 2
    assert done.stderr.startswith("error: out 's3://nosuch/run' cannot be written: ")
    assert len(done.stderr.splitlines()) == 1
    with pytest.raises(ng.NoisegateError, match="holds no run"):
        ng.read_table("s3://nosuch/run")


def test_killed_jobs_go_on_and_leave_the_bytes_of_a_local_run(bucket: str) -> None:
    """Three of the kills; `python -m benchmarks.store_kills` does all, also as if each were on another machine."""
    words = [sys.executable, "-m", "benchmarks.store_kills", "--few", "--samples", "60"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("exit code -9") == 3
    assert "identical to the local run's: True" in done.stdout
