"""Layout of the help: commands in groups by purpose, flags without a type, arguments in capitals."""

import inspect
import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

GROUPS = {
    "Begin": ("demo", "doctor"),
    "Score shards": ("calibrate", "plan", "annotate", "rescore", "score-embeddings", "adapt"),
    "Look at a run": ("show", "report", "review", "verify", "compare", "export"),
    "Train with it": ("train", "evaluate-model", "bench"),
    "Ask for single scores": ("score", "serve"),
    "Data whose truth is known": ("scenes", "noise", "evaluate", "convert"),
}
EXAMPLE = "[cyan]"
DATA_FILE = re.compile(r"\.(tar|tar\.gz|tgz|parquet|jpg|png|csv)\b")


class _Plain:
    """Hide the type of flags: `--draft <bool>` would look as if the flag took a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if parameter.metavar is None:
                if parameter.param_type_name == "argument":
                    parameter.metavar = parameter.name.upper()
                elif parameter.is_flag:
                    parameter.metavar = ""
        return parameters


class Command(_Plain, TyperCommand):
    """A command of `noisegate`."""


class Group(_Plain, TyperGroup):
    """`noisegate` itself."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; if the shell has expanded an unquoted pattern such as data/*.tar, say so in the error."""
        try:
            return super().invoke(ctx)
        except Exception as error:  # click's UsageError, or typer's own class in newer versions
            message = getattr(error, "message", "")
            if message.startswith("Got unexpected extra argument") and DATA_FILE.search(message):
                error.message = f"{message}\nThe shell has expanded a pattern; quote it: 'data/*.tar'"  # type: ignore[attr-defined]
            raise


def arrange(app: typer.Typer) -> None:
    """Put every registered command into its group, in the order of `GROUPS`; unknown ones come last."""
    group_of = {name: group for group, names in GROUPS.items() for name in names}
    order = list(group_of)
    app.registered_commands.sort(key=lambda c: order.index(c.name) if c.name in group_of else len(order))
    for command in app.registered_commands:
        command.cls = command.cls if command.cls and issubclass(command.cls, Command) else Command
        command.help = flowing((command.callback.__doc__ if command.callback else None) or "")
        if command.name in group_of:
            command.rich_help_panel = group_of[command.name]


def flowing(text: str) -> str:
    """Make help from a docstring: paragraphs fill the terminal's width, examples are listed after a $."""
    help_text = ""
    for part in inspect.cleandoc(text).split("\n\n"):
        example = part.startswith(EXAMPLE)
        after_example = help_text.rpartition("\n")[2].startswith("$")
        help_text += (
            ("\n" if example and after_example else "\n\n") + ("$ " if example else "") + " ".join(part.split())
        )
    return help_text.strip()
