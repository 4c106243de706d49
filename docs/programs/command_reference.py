"""Every command with its options as a page, from the commands themselves."""

import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from typer.main import get_command

from noisegate.pipeline.cli.commands import app
from noisegate.pipeline.cli.help_layout import GROUPS

__all__ = ["command_page"]

INTRODUCTION = """# Commands

Made from the commands themselves; `noisegate COMMAND --help` says the same. Exit codes, completion and colours:
[the command line](../command-line.md).
"""


def command_page() -> str:
    """Markdown."""
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    groups = [(group, [name for name in names if name in commands]) for group, names in GROUPS.items()]
    rows = [f"| {group} | {', '.join(f'[{name}](#{name})' for name in names)} |" for group, names in groups]
    return "\n".join(
        [
            INTRODUCTION,
            "| to | commands |",
            "| --- | --- |",
            *rows,
            *(_section(name, command) for name, command in commands.items()),
        ]
    )


def _section(name: str, command: Any) -> str:
    shown = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
    arguments = [p for p in shown if p.param_type_name == "argument"]
    options = sorted((p for p in shown if p.param_type_name == "option"), key=_panel)
    usage = " ".join(["noisegate", name, *map(_argument, arguments), "[OPTIONS]"])
    parts = [f"\n## {name}\n", f"`{usage}`\n", _told(command.help or "")]
    if arguments:
        parts.append(_table("argument", [(f"`{_argument(p)}`", p.help) for p in arguments]))
    for panel, those in groupby(options, key=_panel):
        parts.append(_table(panel or "option", [(_flags(p), _meaning(p)) for p in those]))
    return "\n".join(parts)


def _panel(parameter: Any) -> str:
    return getattr(parameter, "rich_help_panel", None) or ""


def _argument(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name).strip("{}[].").upper()
    dots = "…" if parameter.nargs == -1 else ""
    return f"{name}{dots}" if parameter.required else f"[{name}{dots}]"


def _flags(parameter: Any) -> str:
    return ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))


def _meaning(parameter: Any) -> str:
    notes = []
    if parameter.required:
        notes.append("Required.")
    value = parameter.default
    if isinstance(value, str | int | float | Path) and not isinstance(value, bool) and value != "":
        notes.append(f"Default: `{value}`.")
    return " ".join([parameter.help or "", *notes]).strip()


def _table(title: str, rows: Iterable[tuple[str, str | None]]) -> str:
    cells = [f"| {name} | {_plain(told or '').replace('|', chr(92) + '|')} |" for name, told in rows]
    return "\n".join([f"| {title} | |", "| --- | --- |", *cells, ""])


def _told(text: str) -> str:
    """A command's help as Markdown: its paragraphs, and its examples as blocks of code."""
    parts = []
    for part in text.split("\n\n"):
        if part.startswith("$ "):
            parts.append(
                "\n".join(
                    ["```", *(_plain(line.removeprefix("$ "), escape=False) for line in part.splitlines()), "```"]
                )
            )
        else:
            parts.append(_plain(" ".join(part.split())))
    return "\n\n".join(parts) + "\n"


def _plain(text: str, escape: bool = True) -> str:
    """Without rich's colours; outside code, what Markdown would take for its own is escaped."""
    found = re.sub(r"\[/?(cyan|bold|dim)?\]", "", text).replace(r"\[", "[")
    return re.sub(r"([*_<>\[\]{}])", r"\\\1", found) if escape else found
