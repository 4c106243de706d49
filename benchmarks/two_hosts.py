"""Two hosts on one machine: a network namespace with its own Ray node, lost in the middle of a job.

`sudo python -m benchmarks.two_hosts` links a namespace to this machine by a virtual cable, starts a Ray node on either side,
runs `noisegate annotate --engine ray` over both, kills everything on the second host when some shards are done, and compares
the files with those of a plain run. Needs the right to make namespaces (root) and ray. It prints what happened, not speed.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.tiny_shards import MODEL, tiny_shard

SPACE, HERE, THERE = "noisegate-b", "10.77.0.1", "10.77.0.2"
PORT = 6399
BIN = Path(sys.executable).parent
SURROUNDINGS = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "disabled",  # nobody else is on this cable
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}
SETTINGS = ("--model", MODEL, "--workers", "0", "--beta", "fixed:0.4")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


@contextmanager
def second_host() -> Iterator[None]:
    """The namespace and the cable; both are gone afterwards, with all that runs there."""
    ip = "ip"
    inside = [ip, "netns", "exec", SPACE, ip]
    steps = [
        [ip, "netns", "add", SPACE],
        [ip, "link", "add", "ngate0", "type", "veth", "peer", "name", "ngate1"],
        [ip, "link", "set", "ngate1", "netns", SPACE],
        [ip, "addr", "add", f"{HERE}/24", "dev", "ngate0"],
        [ip, "link", "set", "ngate0", "up"],
        [*inside, "addr", "add", f"{THERE}/24", "dev", "ngate1"],
        [*inside, "link", "set", "ngate1", "up"],
        [*inside, "link", "set", "lo", "up"],
    ]
    try:
        for step in steps:
            subprocess.run(step, check=True)
        yield
    finally:
        end_second_host()
        subprocess.run([ip, "link", "del", "ngate0"], check=False)
        subprocess.run([ip, "netns", "del", SPACE], check=False)


def processes_there() -> list[int]:
    listed = subprocess.run(["ip", "netns", "pids", SPACE], capture_output=True, text=True, check=False).stdout
    return [int(pid) for pid in listed.split()]


def workers_there() -> int:
    """Encoders on the second host, by the name that Ray gives to its actors' processes."""
    found = 0
    for pid in processes_there():
        try:
            found += b"ray::_Actor" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue  # it has ended meanwhile
    return found


def end_second_host() -> int:
    ended = processes_there()
    for pid in ended:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(ended)


@contextmanager
def ray_node(words: list[str], nodes: int, temporary: Path, log: Path) -> Iterator[None]:
    """`ray start` with these words until the block ends; the cluster then has so many nodes.

    A node that does not start within Ray's own thirty seconds, as on a busy machine, is started again.
    """
    start = ["start", "--block", "--num-cpus", "1", "--object-store-memory", "80000000", "--disable-usage-stats"]
    prefix = ["ip", "netns", "exec", SPACE] if THERE in words else []
    command = [*prefix, str(BIN / "ray"), *start, *words]
    environment = {**SURROUNDINGS, "RAY_TMPDIR": str(temporary)}
    with log.open("wb") as file:
        for _ in range(10):
            node = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
            try:
                if has_nodes(nodes, node):
                    yield
                    return
            finally:
                node.terminate()
                try:
                    node.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(node.pid, signal.SIGKILL)
    raise SystemExit(f"the cluster never had {nodes} nodes; see {log}")


def has_nodes(count: int, node: "subprocess.Popen[bytes]") -> bool:
    """Wait until the cluster has so many nodes, as a process of its own sees it; False where `node` ends before."""
    code = (
        "import ray, time\n"
        f"ray.init(address='{HERE}:{PORT}', logging_level='ERROR', log_to_driver=False)\n"
        f"while sum(node['Alive'] for node in ray.nodes()) < {count}: time.sleep(1)\n"
    )
    while node.poll() is None:
        look = subprocess.Popen(
            [sys.executable, "-c", code], env=SURROUNDINGS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while look.poll() is None and node.poll() is None:
            time.sleep(0.5)
        look.kill()
        if look.wait() == 0:
            return True
    return False


def files_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "_lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=60)
    parser.add_argument("--samples", type=int, default=1000, help="per shard")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ng") as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "shards").mkdir()
        for i in range(options.shards):
            tiny_shard(folder / "shards" / f"x-{i:03d}.tar", options.samples, seed=i, corrupt=True)
        annotate = [str(BIN / "noisegate"), "annotate", str(folder / "shards"), *SETTINGS]
        quiet: dict[str, Any] = {"env": SURROUNDINGS, "stdout": subprocess.DEVNULL}
        subprocess.run([*annotate, "--out", str(folder / "plain"), "--quiet"], check=True, **quiet)
        say(f"plain run: {options.shards} shards of {options.samples} samples")
        stack.enter_context(second_host())
        head = ["--head", "--node-ip-address", HERE, "--port", str(PORT), "--include-dashboard", "false"]
        stack.enter_context(ray_node(head, 1, folder / "a", folder / "head.log"))
        other = ["--address", f"{HERE}:{PORT}", "--node-ip-address", THERE]
        stack.enter_context(ray_node(other, 2, folder / "b", folder / "other.log"))
        say(f"two Ray nodes, {HERE} here and {THERE} in the namespace {SPACE}")
        ray = ["--engine", "ray", "--address", f"{HERE}:{PORT}", "--ray-workers", "2", "--cpus-per-worker", "1"]
        job = subprocess.Popen(
            [*annotate, "--out", str(folder / "out"), *ray], stderr=subprocess.PIPE, text=True, **quiet
        )
        assert job.stderr
        lost = False
        for line in job.stderr:
            if line.startswith(("[", "lost", "2 Ray", "error")):
                say(f"  {line.rstrip()[:150]}")
            if line.startswith("[") and not lost and workers_there():
                say(f"the second host has {workers_there()} encoder at work; ended {end_second_host()} processes there")
                lost = True
        code = job.wait()
        same = files_of(folder / "out") == files_of(folder / "plain")
        say(f"exit code {code}; the second host was lost: {lost}; files identical to the plain run's: {same}")
        if not (lost and same and code == 0):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
