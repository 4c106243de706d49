#!/usr/bin/env python3
"""Carries out a Dockerfile without a container engine, so that its lines are known to work before anyone builds it.

    sudo docker/without_engine.py docker/Dockerfile.cpu --work /var/tmp/noisegate-build

Every stage gets a root of its own (overlayfs over a fresh Debian that mmdebstrap makes from the same packages as Debian's slim
images), every RUN line runs there in a chroot with the stage's environment, user and mounts, and COPY sees only what
.dockerignore lets through. At the end the image's own command is started as its user, its HEALTHCHECK has to pass, the demo
has to run, and a SIGTERM has to end the service with code 0.

What it is not: no image, layer or registry comes of it; there are no cgroups and no seccomp, the network is the machine's, and
every base image is played by Debian. Needs Linux, root, mmdebstrap and unshare; standard library only.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITE = "bookworm"
PATIENCE = 180.0  # seconds until the service has to be healthy
KNOWN = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "USER", "VOLUME", "WORKDIR"}


@dataclass
class Line:
    """One instruction: its word, its flags (--mount=…) and the rest."""

    word: str
    flags: list[str]
    rest: str


@dataclass
class Stage:
    """A root to work in and what the instructions so far have set."""

    name: str
    lower: list[Path]
    upper: Path
    root: Path
    env: dict[str, str] = field(default_factory=dict)
    args: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0"
    health: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def parse(text: str) -> list[Line]:
    """The instructions of a Dockerfile, comments gone and continued lines joined.

    >>> parse("FROM a AS b\\n# note\\nRUN --mount=type=cache,target=/c x \\\\\\n && y\\n")[1]
    Line(word='RUN', flags=['--mount=type=cache,target=/c'], rest='x  && y')
    """
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found = []
    for line in filter(str.strip, re.sub(r"\\\n", "", kept).splitlines()):
        word, _, rest = line.strip().partition(" ")
        if word not in KNOWN:
            raise SystemExit(f"{word} is not known here; known are {', '.join(sorted(KNOWN))}")
        flags = []
        rest = rest.strip()
        while rest.startswith("--"):
            flag, _, rest = rest.partition(" ")
            flags.append(flag)
            rest = rest.strip()
        found.append(Line(word, flags, rest))
    return found


def filled(text: str, values: dict[str, str]) -> str:
    """`${NAME}` and `$NAME` by their values; unknown ones are empty, as Docker has it."""
    return re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda m: values.get(m[1] or m[2], ""), text)


def words(rest: str) -> list[str]:
    """An exec form or plain words."""
    if rest.startswith("["):
        import json

        return [str(word) for word in json.loads(rest)]
    return shlex.split(rest)


def context(place: Path) -> Path:
    """What .dockerignore lets through, copied to `place`; takes the forms that this repository uses."""
    rules = [r for r in (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n") if r and r[0] != "#"]
    if rules[0] != "*" or not all(r == "*" or r.startswith(("!", "**/")) for r in rules):
        raise SystemExit(".dockerignore: only *, !PATH and **/NAME are understood here")
    hidden = shutil.ignore_patterns(*(r[3:] for r in rules if r.startswith("**/")))
    for name in (r[1:] for r in rules if r.startswith("!")):
        source, target = ROOT / name, place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=hidden)
        else:
            shutil.copy2(source, target)
    return place


class Build:
    """The stages of one Dockerfile, one after the other."""

    def __init__(self, work: Path, base: Path, args: dict[str, str], binds: list[Path], passed: list[str]) -> None:
        self.work, self.base, self.given = work, base, args
        self.binds = binds
        self.passed = {name: os.environ[name] for name in passed if name in os.environ}
        self.context = context(work / "context")
        self.stages: dict[str, Stage] = {}
        self.global_args: dict[str, str] = {}
        self.runs = 0

    def carry_out(self, lines: list[Line]) -> Stage:
        """Everything, in order; the last stage is the image."""
        stage: Stage | None = None
        for line in lines:
            if line.word == "FROM":
                stage = self.begin(line.rest)
            elif stage is None:
                name, _, value = line.rest.partition("=")
                self.global_args[name] = self.given.get(name, value)
            else:
                getattr(self, f"do_{line.word.lower()}")(stage, line)
        if stage is None:
            raise SystemExit("no FROM in this file")
        return stage

    def begin(self, rest: str) -> Stage:
        source, _, name = (part.strip() for part in re.split(r"\s(AS)\s", filled(rest, self.global_args)))
        parent = self.stages.get(source)
        upper, scratch, root = (self.work / "stages" / name / part for part in ("upper", "scratch", "root"))
        for folder in (upper, scratch, root):
            folder.mkdir(parents=True)
        lower = [parent.upper, *parent.lower] if parent else [self.base]
        say(f"FROM {source} AS {name}" + ("" if parent else f"   (played by Debian {SUITE})"))
        layers = ":".join(map(str, lower))
        run(
            "mount",
            "-t",
            "overlay",
            "overlay",
            "-o",
            f"lowerdir={layers},upperdir={upper},workdir={scratch}",
            str(root),
        )
        run("mount", "-t", "proc", "proc", str(root / "proc"))
        run("mount", "--rbind", "/dev", str(root / "dev"))
        for path in (Path("/etc/resolv.conf"), Path("/etc/hosts"), *self.binds):
            bind(path, root / path.relative_to("/"), read_only=True)
        stage = Stage(name, lower, upper, root)
        if parent:
            stage.env, stage.workdir, stage.user = dict(parent.env), parent.workdir, parent.user
        self.stages[name] = stage
        return stage

    def values(self, stage: Stage) -> dict[str, str]:
        return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **stage.args, **stage.env}

    def do_arg(self, stage: Stage, line: Line) -> None:
        name, _, value = line.rest.partition("=")
        stage.args[name] = self.given.get(name, filled(value, self.values(stage)) or self.global_args.get(name, ""))

    def do_env(self, stage: Stage, line: Line) -> None:
        before = self.values(stage)
        for pair in shlex.split(line.rest):
            name, _, value = pair.partition("=")
            stage.env[name] = filled(value, before)

    def do_workdir(self, stage: Stage, line: Line) -> None:
        stage.workdir = filled(line.rest, self.values(stage))
        (stage.root / stage.workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def do_copy(self, stage: Stage, line: Line) -> None:
        say(f"COPY {' '.join([*line.flags, line.rest])}")
        origin = self.context
        for flag in line.flags:
            if not flag.startswith("--from="):
                raise SystemExit(f"COPY {flag} is not known here")
            origin = self.stages[flag.removeprefix("--from=")].root
        *sources, target = words(filled(line.rest, self.values(stage)))
        place = stage.root / str(Path(stage.workdir, target)).lstrip("/")
        for name in sources:
            source = origin / name.lstrip("/")
            if source.is_dir():
                shutil.copytree(source, place, symlinks=True, dirs_exist_ok=True)
            else:
                into = place / source.name if target.endswith("/") or place.is_dir() else place
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, into)

    def do_run(self, stage: Stage, line: Line) -> None:
        say(f"RUN {' '.join([*line.flags, line.rest])}")
        mounted = [self.mount(stage, flag) for flag in line.flags]
        started = time.monotonic()
        done = subprocess.run(self.inside(stage, ["/bin/sh", "-c", line.rest]), check=False)
        for place in mounted:
            run("umount", str(place))
        if done.returncode:
            raise SystemExit(f"the line above ended with code {done.returncode}")
        self.runs += 1
        say(f"    {time.monotonic() - started:.0f} s")

    def mount(self, stage: Stage, flag: str) -> Path:
        """A mount of a RUN line: a cache, or a folder of another stage."""
        given = dict(part.split("=", 1) for part in flag.removeprefix("--mount=").split(","))
        place = stage.root / given["target"].lstrip("/")
        if given["type"] == "cache":
            source = self.work / "cache" / given["target"].strip("/").replace("/", "_")
            source.mkdir(parents=True, exist_ok=True)
        elif given["type"] == "bind":
            source = self.stages[given["from"]].root / given["source"].lstrip("/")
        else:
            raise SystemExit(f"{flag} is not known here")
        bind(source, place)
        return place

    def inside(self, stage: Stage, command: list[str], **more: str) -> list[str]:
        """A command line that runs `command` in the stage as Docker would."""
        home = "/root" if stage.user == "0" else "/home/noisegate"
        env = {**self.values(stage), "HOME": home, **self.passed, **more}
        change = ["sh", "-c", 'cd "$0" && exec "$@"', stage.workdir]
        as_user = ["chroot", f"--userspec={stage.user}:{stage.user}", str(stage.root)]
        return [*as_user, "/usr/bin/env", "-i", *(f"{k}={v}" for k, v in env.items()), *change, *command]

    def do_user(self, stage: Stage, line: Line) -> None:
        stage.user = line.rest

    def do_healthcheck(self, stage: Stage, line: Line) -> None:
        stage.health = words(line.rest.removeprefix("CMD").strip())

    def do_entrypoint(self, stage: Stage, line: Line) -> None:
        stage.entrypoint = words(line.rest)

    def do_cmd(self, stage: Stage, line: Line) -> None:
        stage.command = words(line.rest)

    def do_expose(self, stage: Stage, line: Line) -> None: ...

    def do_volume(self, stage: Stage, line: Line) -> None: ...


def try_out(build: Build, image: Stage) -> None:
    """The image as a user meets it: not root, the demo runs, the service becomes healthy and ends when told to."""
    if image.user == "0":
        raise SystemExit("the image runs as root")
    say(f"as user {image.user}: noisegate --version, doctor, demo")
    for arguments in (["--version"], ["doctor"], ["demo", "--count", "200", "--out", "/tmp/demo"]):
        done = subprocess.run(build.inside(image, [*image.entrypoint, *arguments]), check=False)
        if done.returncode:
            raise SystemExit(f"noisegate {arguments[0]} ended with code {done.returncode}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = {"NOISEGATE_PORT": port, "NOISEGATE_ALLOW_OPEN": "true"}
    say(f"{shlex.join([*image.entrypoint, *image.command])}, and its HEALTHCHECK until it passes")
    service = subprocess.Popen(build.inside(image, [*image.entrypoint, *image.command], **env))
    until = time.monotonic() + PATIENCE
    while subprocess.run(build.inside(image, image.health, **env), stderr=subprocess.DEVNULL, check=False).returncode:
        if service.poll() is not None or time.monotonic() > until:
            raise SystemExit("the service did not become healthy")
        time.sleep(1)
    say("healthy; SIGTERM")
    service.send_signal(signal.SIGTERM)
    if code := service.wait(60):
        raise SystemExit(f"the service ended with code {code}")


def bind(source: Path, place: Path, read_only: bool = False) -> None:
    """A bind mount, with the place made where it is not there."""
    if source.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    run("mount", "--bind", str(source), str(place))
    if read_only:
        run("mount", "-o", "remount,bind,ro", str(place))


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def say(text: str) -> None:
    print(f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("dockerfile", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="Folder for roots; base.tar in it is used again.")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--bind", action="append", type=Path, default=[], help="Path to show inside, such as /etc/pip.conf."
    )
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME", help="Variable to pass on, such as PIP_CERT."
    )
    given = parser.parse_args()
    work = given.work.resolve()
    if os.environ.get("IN_NAMESPACE") != "1":  # mounts and processes of its own: they end with it, whatever happens
        own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        work.mkdir(parents=True, exist_ok=True)
        for left in ("stages", "context"):
            shutil.rmtree(work / left, ignore_errors=True)
        os.execvpe(own[0], [*own, sys.executable, *sys.argv], {**os.environ, "IN_NAMESPACE": "1"})
    archive, base = work / "base.tar", work / "base"
    if not archive.exists():
        run("mmdebstrap", "--variant=minbase", SUITE, str(archive))
    if not base.exists():
        base.mkdir()
        run("tar", "-C", str(base), "-xf", str(archive))
    build = Build(work, base, dict(a.split("=", 1) for a in given.build_arg), given.bind, given.env)
    image = build.carry_out(parse(given.dockerfile.read_text(encoding="utf-8")))
    try_out(build, image)
    size = subprocess.run(
        ["du", "-sm", *(str(s.upper) for s in build.stages.values())], capture_output=True, text=True, check=True
    )
    say(f"{given.dockerfile.name}: {build.runs} RUN lines ran; MB written by stage:\n{size.stdout.strip()}")


if __name__ == "__main__":
    main()
