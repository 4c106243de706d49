"""The documentation: the site builds without a warning, its commands and code run, its links lead somewhere."""

import contextlib
import hashlib
import io
import json
import re
import shlex
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config
from typer.main import get_command

import noisegate
from docs.programs.api_reference import api_page
from docs.programs.badges import draw_badges
from docs.programs.command_reference import command_page
from docs.programs.flow_picture import draw_flow
from docs.programs.http_reference import http_page
from docs.programs.pictures import FOLDER, draw_pictures
from docs.programs.table_reference import table_page
from noisegate.pipeline.cli.commands import app
from noisegate.pipeline.runs.table import ALL_COLUMNS, read_table
from noisegate.service.app import create_app
from noisegate.service.settings import load_settings
from tests.commands import FAKE, called
from tests.fakes import picture
from tests.service.fakes import FakeEngine
from tests.service.live import serving
from tests.trainers.runs import TARGET, write_data

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
MARKDOWN = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
MADE = {"reference/commands.md", "reference/table.md", "reference/http.md", "reference/python.md"}
RUN = ["start", "concepts", "methods", "guides/annotate", "guides/filters", "guides/labels", "guides/models",
       "guides/python", "guides/report", "guides/serve", "guides/stores", "guides/train"]  # fmt: skip
COMMANDS = get_command(app).commands  # type: ignore[attr-defined]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what it holds, and why it is not run, where a comment before it says so."""

    language: str
    text: str
    not_run: str | None

    def lines(self) -> list[str]:
        joined = self.text.replace("\\\n", " ")
        return [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def blocks_of(text: str) -> list[Block]:
    found = re.findall(r"(?:<!-- not run: ([^>]*) -->\n)?^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [Block(language, content, why or None) for why, language, content in found]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path)))  # raises where there is one
    assert len(list(tmp_path.rglob("*.html"))) >= len([*DOCS.rglob("*.md")]) + len(MADE)
    assert (tmp_path / "pictures" / "weight.svg").exists()
    assert not list(tmp_path.rglob("*.py"))


def test_lists_come_out_on_the_site_as_they_are_written() -> None:
    """Python's Markdown wants four spaces before an inner item, and counts from 1 again after a block of code."""
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"^ {1,3}[-*] ", text, re.MULTILINE), page.name
        assert not re.search(r"^```\n+[2-9]\. ", text, re.MULTILINE), page.name


def test_the_references_have_all_there_is() -> None:
    commands, table, http = command_page(), table_page(), http_page()
    assert all(f"| `{name}` |" in table for name in ALL_COLUMNS)
    for name, command in COMMANDS.items():
        section = commands.split(f"\n## {name}\n")[1].split("\n## ")[0]
        options = [flag for p in command.params if p.param_type_name == "option" for flag in p.opts if p.name != "help"]
        assert all(f"`{flag}`" in section for flag in options), name
        assert "[cyan]" not in section
    schema = create_app(load_settings(model=FAKE[1], beta="fixed:0.4"), FakeEngine()).openapi()
    for path, methods in schema["paths"].items():
        assert all(f"`{method.upper()} {path}`" in http for method in methods)
    assert all(f"\n### {name}\n" in http for name in schema["components"]["schemas"])


def test_the_reference_of_python_has_every_public_name() -> None:
    page = api_page()
    sections = re.findall(r"^### (\w+) \{", page, re.MULTILINE)
    assert sorted(sections) == sorted(noisegate.__all__)
    annotate = page.split("\n### annotate ")[1].split("\n### ")[0]
    assert all(f"    {name}: " in annotate for name in ("shards", "task", "classes", "model", "progress"))
    assert "Score every sample of `shards`" in annotate
    assert " at 0x" not in page and "noisegate.pipeline" not in page


def test_the_badges_of_the_readme_say_what_the_package_says() -> None:
    """Drawn anew after a change of pyproject.toml: python -m docs.programs.badges"""
    for name, svg in draw_badges().items():
        assert (FOLDER / name).read_text(encoding="utf-8") == svg
        assert f"docs/pictures/{name}" in README


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Inside docs/ mkdocs looks as well, headings included; it knows neither README nor what lies beside docs/."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://|mailto:", target):
            continue
        name, _, heading = target.partition("#")
        place = (page.parent / name).resolve() if name else page
        made = place.is_relative_to(DOCS) and str(place.relative_to(DOCS)) in MADE
        assert made or place.exists(), f"{page.name}: {target}"
        if heading and not made:
            headings = re.findall(r"^#+ (.+)$", place.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}
            assert heading in slugs, f"{page.name}: {target}"


SHOWN = [
    (str(page.relative_to(ROOT)), line.removeprefix("srun "))
    for page in MARKDOWN
    for block in (
        *blocks_of(page.read_text(encoding="utf-8")),
        Block("", "\n".join(re.findall(r"^    (\S.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)), None),
    )
    if block.language in ("", "sh", "bash")
    for line in block.lines()
    if re.match(r"(srun )?noisegate ", line)
]


@pytest.mark.parametrize(("page", "line"), SHOWN)
def test_every_command_shown_is_one_that_the_program_takes(page: str, line: str) -> None:
    name, *words = shlex.split(line, comments=True)[1:]
    words = words[: words.index("<")] if "<" in words else words
    if name.startswith("--"):
        assert name in ("--install-completion", "--show-completion", "--version")
    else:
        COMMANDS[name].make_context(name, words)  # raises where an option or a value does not exist


NOT_RUN = [  # the others are carried out: those in RUN below, those of contributing/ by a test of their own
    page
    for page in MARKDOWN
    if page.parent.name != "contributing" and page not in {DOCS / f"{name}.md" for name in RUN}
]


@pytest.mark.parametrize("page", NOT_RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_that_are_not_run_say_why(page: Path) -> None:
    """Or every line of them is of a kind that is held against the programs."""
    rules = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    known = (
        rf"(srun )?noisegate |python -m benchmarks\.|make ({'|'.join(rules)})\b|ray start |pip install '?(noisegate|\.)"
    )
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if block.language == "" and not block.not_run:
            assert all(re.match(known, line) for line in block.lines()), block.text


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_programs_named_in_sentences_have_their_flags(page: Path) -> None:
    """What is shown in a block is looked at above; of the programs in benchmarks/, blocks count too."""
    text = page.read_text(encoding="utf-8")
    for name, rest in re.findall(r"`noisegate ([a-z][\w-]*)([^`]*)`", text):
        known = {flag for p in COMMANDS[name].params for flag in (*p.opts, *p.secondary_opts)} | {"--help"}
        assert set(re.findall(r"(?<!\S)--[a-z][\w-]*", rest)) <= known, f"noisegate {name}{rest}"
    for name, rest in re.findall(r"python -m benchmarks\.([\w.]+)([^`\n|]*)", text):
        program = ROOT / "benchmarks" / name.rstrip(".").replace(".", "/")
        program = program / "__main__.py" if program.is_dir() else program.with_suffix(".py")
        source = program.read_text(encoding="utf-8")
        for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", rest):
            assert f'"{flag}"' in source, f"benchmarks.{name}{rest}"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages take for granted: `data` and `clean` with their class names, held-out shards, a picture, arrays."""
    folder = write_data(tmp_path_factory.mktemp("docs"))
    (folder / "noisy").rename(folder / "data")
    (folder / "data" / "classes.txt").write_bytes((folder / "clean" / "classes.txt").read_bytes())
    rng = np.random.default_rng(0)
    texts = rng.standard_normal((160, 8)).astype(np.float32)
    np.save(folder / "txt.npy", texts)
    np.save(folder / "img.npy", texts + 0.2 * rng.standard_normal((160, 8)).astype(np.float32))
    pq.write_table(read_table(folder / "tables", ["key"]), folder / "keys.parquet")
    np.save(folder / "y.npy", (texts[:, 0] > 0).astype(np.int64))
    (folder / "photo.jpg").write_bytes(picture("red", kind="JPEG"))
    (folder / "broken.jpg").write_bytes(picture("red", kind="JPEG")[:100])
    return folder


@pytest.fixture
def place(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the page's own with all of that in it, where the test stands."""
    for name in ("data", "clean", "txt.npy", "img.npy", "y.npy", "keys.parquet", "photo.jpg", "broken.jpg"):
        (tmp_path / name).symlink_to(drawn / name)
    for name in ("held-out", "test"):
        (tmp_path / name).symlink_to(drawn / "held")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with serving(create_app(load_settings(model=FAKE[1], beta="fixed:0.4"), FakeEngine())) as url:
        yield url


@pytest.mark.parametrize("name", RUN)
def test_what_a_page_shows_works(name: str, place: Path, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "start":  # begins with nothing, and makes folders of these names
        for there in ("data", "clean"):
            (place / there).unlink()
    if name == "guides/train":
        _small_target(place / "tiny")
    names: dict[str, Any] = {}
    ran = 0
    for block in blocks_of((DOCS / f"{name}.md").read_text(encoding="utf-8")):
        if block.not_run:
            continue
        ran += 1
        text = block.text.replace("http://127.0.0.1:8765", service).replace("2000", "80")
        if block.language == "python":
            if name == "guides/train":
                continue  # tests/trainers/test_training_guide.py runs these on small data
            with contextlib.redirect_stdout(io.StringIO()) as said:
                exec(compile(text, f"{name}.md", "exec"), names)
            assert said.getvalue()
        elif block.language == "sql":
            assert duckdb.sql(text).fetchall()
        elif block.language == "json":
            assert json.loads(text)
        elif block.language == "yaml":
            _write_settings(place, text)
        else:
            for line in Block("", text, None).lines():
                _run_line(line, place, monkeypatch)
    assert ran


def _small_target(folder: Path) -> None:
    import torch

    from noisegate.trainers.targets import build_target, resolve_target

    with torch.random.fork_rng():
        torch.manual_seed(0)
        target = build_target(resolve_target({**TARGET, "vocabulary": {"kind": "full"}}))
        target.export(folder)  # type: ignore[operator]


def _write_settings(place: Path, text: str) -> None:
    """A file of settings, which bears its name in its first line; those of the service are tried here."""
    file = place / text.split("\n")[0].removeprefix("# ")
    values = yaml.safe_load(text)
    if file.name == "serve.yaml":
        assert values.pop("runs") == {"mine": "tables"}
        assert load_settings(None, **values).port == 8765
    else:
        values["target"] = {"name": "clip", "model": "local-dir:tiny"}
        file.write_text(yaml.safe_dump(values), encoding="utf-8")


def _run_line(line: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line, comments=True)
    if words[:2] == ["pip", "install"]:
        found = re.fullmatch(r"\.(\[(\w+)\])?", words[2])
        assert found, line
        assert found[2] is None or found[2] in EXTRAS
    elif words[0] == "curl":
        _curl(words[1:])
    elif words[:2] == ["openssl", "rand"]:
        (place / words[-1]).write_text("0123456789abcdef" * 3 + "\n")
    elif words[1:4] == ["serve", "--hash-key", "<"]:
        monkeypatch.setattr(sys, "stdin", io.StringIO((place / words[4]).read_text()))
        done = called(*words[1:3], cwd=place)
        assert done.stdout.strip() == "sha256:" + hashlib.sha256(b"0123456789abcdef" * 3).hexdigest()
    elif words == ["noisegate", "demo"]:  # tests/e2e/test_demo.py runs it; here are the folders that it leaves
        for step in (
            ("scenes", "demo/clean-80", "--count", "80", "--size", "16"),
            ("noise", "demo/clean-80/*.tar", "--rate", "0.4", "--out", "demo/noisy-80-40"),
            ("annotate", "demo/noisy-80-40/*.tar", "--out", "demo/tables-80-40", *FAKE, "--workers", "0"),
        ):
            assert called(*step, cwd=place).returncode == 0
    elif words[0] == "noisegate":
        if words[1] != "serve":  # which runs until it is stopped; its options were looked at above
            done = called(*_quick(words[1:]), cwd=place)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
    else:
        assert line in ("python3 -m venv .venv", ". .venv/bin/activate"), f"nobody runs this line: {line}"


def _quick(words: list[str]) -> list[str]:
    """The same command with models that take no time."""
    text = "\0".join(words)
    if words[0] == "train":
        text = re.sub("\0--target\0(embedded|[^\0]+\0--pretrained\0[^\0]+)", "\0--target\0local-dir:tiny", text)
        small = (
            () if "--resume" in words else ("--set", "data.batch_size=32", "--set", "loop.epochs=1", "--device", "cpu")
        )
        return [*text.split("\0"), *small, "--quiet"]
    if words[0] == "evaluate-model":
        return [*words, "--device", "cpu"]
    if words[0] == "verify" or (words[0] == "score" and "--run" in words):
        return [*words, "--trust-run"]  # the quick model is Python code, which a run by itself may not load
    if words[0] not in ("annotate", "calibrate", "plan"):
        return words
    other = "python:tests.fakes:OtherModel" if "ViT-L-14" in words else FAKE[1]
    text = re.sub("\0--model\0[^\0]+\0--pretrained\0[^\0]+", "", text)
    return [*text.split("\0"), "--model", other, "--workers", "0"]


def _curl(words: list[str]) -> None:
    """As curl would: -F NAME=@FILE and -F NAME=VALUE make a form that is posted."""
    *options, url = words
    fields = [option.partition("=") for option in options[1::2]]
    assert options[::2] == ["-F"] * len(fields)
    files = [(n, (v[1:], Path(v[1:]).read_bytes())) for n, _, v in fields if v.startswith("@")]
    values = {n: v for n, _, v in fields if not v.startswith("@")}
    answer = httpx.post(url, files=files, data=values) if fields else httpx.get(url)
    assert answer.status_code == 200, answer.text
    assert answer.json().get("results", [{"status": "ok"}])[0]["status"] == "ok"


def test_every_message_of_troubleshooting_is_one_of_the_programs() -> None:
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for name in ("pipeline", "service", "trainers")
        for path in (ROOT / name).rglob("*.py")
    )
    sources = re.sub(r'"\s*\n\s*f?"', "", sources)
    headings = re.findall(r"^### `(.+)`$", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(headings) > 20
    for message in headings:
        setting = re.match(r"([\w.-]+) … ?", message)  # an error made of setting, value and problem
        assert not setting or f'"{setting[1]}"' in sources or f"{setting[1]} " in sources, message
        parts = [part for part in message[setting.end() if setting else 0 :].split("…") if part]
        pattern = r"[^\n]{0,200}?".join(re.escape(part) for part in parts)
        assert re.search(pattern, sources), message


def test_pictures_are_drawn_from_a_run(drawn: Path) -> None:
    made = draw_pictures(drawn / "tables", drawn / "data" / "noise.parquet")
    curves = {
        f"{path.stem}.svg" for path in (FOLDER.parent / "data").glob("*.json")
    }  # of benches, by benchmarks/results.py
    others = {"flow.svg", "report.png", *draw_badges()}  # by flow_picture.py, report_picture.py and badges.py
    names = {path.name for path in FOLDER.iterdir()}
    assert set(made) | others <= names <= set(made) | others | curves  # a bench at one rate has no curve
    assert draw_flow() == (FOLDER / "flow.svg").read_text(encoding="utf-8")
    for name, svg in made.items():
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert "β 0.400" in svg
        kept = ElementTree.parse(FOLDER / name).getroot()
        assert kept.get("viewBox") == "0 0 720 260"
    line = re.search(r'points="([^"]+)"', made["weight.svg"])
    assert line
    heights = [float(point.split(",")[1]) for point in line[1].split()]
    assert heights[0] == max(heights), "no weight at the left end"
    assert min(heights) < heights[0]


def test_the_architecture_names_what_is_there() -> None:
    """Every file in docs/architecture.md exists, and defines what is named after it."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    for name in re.findall(r"`((?:noisegate|pipeline|service|trainers|tests|benchmarks|docs)/[\w/.]*)`", text):
        assert (ROOT / name).exists() or "NAME" in name, name
    named = re.findall(r"`([\w/]+\.py)` `(\w+)`", text)
    assert len(named) > 15
    for file, symbol in named:
        code = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?(def|class) {symbol}\b", code, re.MULTILINE), f"{file}: {symbol}"
