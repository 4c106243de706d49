"""Kill `annotate` into an S3 store at eleven requests, one after another, and compare what it leaves with a local run.

`python -m benchmarks.store_kills` starts moto's S3 server, annotates a few shards into a bucket in a process of its own,
ends that by SIGKILL before or after the next of `DEATHS`, and starts it again until it has died at all of them. With
`--elsewhere` each process has a cache folder of its own, as on another machine: it waits until the lease of the dead one has
ended, and copies what the store has. Prints each death, and whether the store then has the bytes of a run that was never
killed. Needs s3fs and moto.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import s3fs

import noisegate as ng
import noisegate.pipeline.annotate  # loaded before the first fork
from benchmarks.tiny_shards import ByteModel, tiny_shard
from noisegate.pipeline.errors import LockedError
from noisegate.pipeline.estimators.by_name import CustomEstimator
from noisegate.pipeline.runs import lease

BUCKET = "kills"
DEATHS = (  # when, and at which file; a shard's table is put once when it is encoded and once when it is scored
    ("after", "_lock"),
    ("before", "_run.json"),
    ("after", "_run.json"),
    ("after", "embeddings/x-0.safetensors"),
    ("before", "x-1.parquet"),
    ("after", "x-1.parquet"),
    ("before", "embeddings/x-2.safetensors"),
    ("before", "x-0.parquet"),
    ("after", "x-2.parquet"),
    ("after", "_run.json"),
    ("before", "delete _lock"),
)
SHARDS = 3
_SERVER = """
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
input()
"""


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """moto's S3 in a process of its own; yields the environment that makes it the store behind s3://.

    Where the environment names an endpoint already, that one is used.
    """
    if "AWS_ENDPOINT_URL" in os.environ:
        yield {}
        return
    words = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout and server.stdin
        port = int(server.stdout.readline())
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
        yield {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", **keys}
        server.kill()


class DyingS3(s3fs.S3FileSystem):  # type: ignore[misc]
    """S3 for a process that ends itself by SIGKILL before or after a request about one file."""

    death = ("", "")

    async def _put_file(self, lpath: str, rpath: str, *arguments: Any, **options: Any) -> None:
        self._meet("before", rpath)
        await super()._put_file(lpath, rpath, *arguments, **options)
        self._meet("after", rpath)

    async def _pipe_file(self, path: str, *arguments: Any, **options: Any) -> Any:
        done = await super()._pipe_file(path, *arguments, **options)
        self._meet("after", path)
        return done

    async def _rm_file(self, path: str, **options: Any) -> None:
        self._meet("before", f"delete {path}")
        await super()._rm_file(path, **options)

    def _meet(self, when: str, path: str) -> None:
        if (when, path.replace(f"{BUCKET}/run/", "")) == self.death:
            os.kill(os.getpid(), signal.SIGKILL)


def in_a_process(work: Callable[[], object]) -> int:
    """Do it in a fork of this process; the exit code, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def annotate_into(out: str, shards: Path, death: tuple[str, str], cache: Path | None) -> Callable[[], object]:
    """The job; with a `cache` of its own, and leases of a second, it waits for that of a dead process."""

    def work() -> None:
        DyingS3.death = death
        fsspec.register_implementation("s3", DyingS3, clobber=True)
        model = CustomEstimator(ByteModel(), "python:benchmarks.tiny_shards:ByteModel")
        if cache is not None:
            os.environ["XDG_CACHE_HOME"] = str(cache)
            lease.SECONDS = 1.0
        while True:
            try:
                ng.annotate(shards, out, estimator=model, beta="intersection", workers=0)
            except LockedError:
                if cache is None:
                    raise
                time.sleep(0.2)
            else:
                return

    return work


def copy_of_store(folder: Path) -> Callable[[], object]:
    return lambda: fsspec.filesystem("s3").get(f"{BUCKET}/run/", str(folder), recursive=True)


def files_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "_lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def kill_and_compare(
    folder: Path,
    samples: int,
    say: Callable[[str], None],
    deaths: Sequence[tuple[str, str]] = DEATHS,
    elsewhere: bool = False,
) -> bool:
    """Whether all deaths happened and the store ended with the bytes of the local run; `folder` is empty."""
    (folder / "shards").mkdir()
    for i in range(SHARDS):
        tiny_shard(folder / "shards" / f"x-{i}.tar", samples, seed=i)
    nowhere = ("", "")
    assert in_a_process(annotate_into(str(folder / "local"), folder / "shards", nowhere, None)) == 0
    assert in_a_process(lambda: fsspec.filesystem("s3").mkdir(BUCKET)) == 0
    url, died = f"s3://{BUCKET}/run", True
    for i, death in enumerate(deaths):
        cache = folder / f"cache-{i}" if elsewhere else None
        code = in_a_process(annotate_into(url, folder / "shards", death, cache))
        say(f"{' '.join(death)}: exit code {code}")
        died &= code == -signal.SIGKILL
    cache = folder / "cache" if elsewhere else None
    code = in_a_process(annotate_into(url, folder / "shards", nowhere, cache))
    assert in_a_process(copy_of_store(folder / "store")) == 0
    same = files_of(folder / "store") == files_of(folder / "local")
    say(f"then exit code {code}; files: {len(files_of(folder / 'store'))}, identical to the local run's: {same}")
    return died and same and code == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=200, help="per shard")
    parser.add_argument("--few", action="store_true", help="three of the deaths")
    parser.add_argument("--elsewhere", action="store_true", help="each process as on another machine")
    options = parser.parse_args()
    deaths = [DEATHS[5], DEATHS[7], DEATHS[8]] if options.few else DEATHS
    with tempfile.TemporaryDirectory() as folder, s3_server() as environment:
        os.environ.update(environment, XDG_CACHE_HOME=f"{folder}/cache")
        (work := Path(folder, "work")).mkdir()
        if not kill_and_compare(work, options.samples, print, deaths, options.elsewhere):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
