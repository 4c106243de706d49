"""`noisegate serve`: its flags are made from the fields of `Settings`, only when this command runs or shows its help."""

import inspect
import sys
from functools import cache
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer

from noisegate.pipeline.cli.help_layout import Command
from noisegate.pipeline.system import require_extra

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def register(app: typer.Typer) -> None:
    """Add the command; pydantic, which makes its flags, is not imported for `noisegate --help`."""
    app.command("serve", cls=ServeCommand)(serve)


class ServeCommand(Command):
    """A command that makes its flags from `Settings` when they are needed: for a call, its help, a shell's completion."""

    def get_params(self, ctx: Any) -> list[Any]:
        require_extra("service", "noisegate serve")
        self.params, self.callback = _flags()
        return super().get_params(ctx)


def serve() -> None:
    """Score image-text pairs over HTTP, with the scorer that annotated the corpus, and look at them in a browser.

    [cyan]noisegate serve --run tables[/]

    [cyan]noisegate serve --model ViT-B-32 --pretrained laion2b_s34b_b79k --port 8765[/]

    then

    [cyan]curl -F image=@picture.jpg -F 'text=a red square' http://127.0.0.1:8765/v1/score[/]

    Every flag is also an environment variable (NOISEGATE_PORT) and a line of --config FILE.yaml (port: 8765; lists are
    runs, classes, roots, api_keys, url_hosts). Without keys it listens on this machine only. Ctrl-C or SIGTERM answers
    what was begun, then ends.
    """


@cache
def _flags() -> tuple[list[Any], Any]:
    """Make the command's parameters and the function that takes them."""
    from noisegate.service.settings import LISTEN, Settings

    parameters = {name: _flag(name, field) for name, field in Settings.model_fields.items()}
    key_help = "Read a key from standard input, print what --api-key takes, and end."
    parameters["hash_key"] = _parameter("hash_key", bool, ["--hash-key"], key_help, LISTEN)
    file_help = "YAML file with settings, by the names of these flags with _."
    parameters["config"] = _parameter("config", Path, ["--config"], file_help, LISTEN)

    def start(**values: Any) -> None:
        _serve(**values)

    start.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(start)
    command = typer.main.get_command(app)
    return command.params, command.callback


def _flag(name: str, field: "FieldInfo") -> inspect.Parameter:
    """Make a parameter of one field; its default is only shown, because a missing flag is read from environment or file."""
    kinds = [kind for kind in get_args(field.annotation) or [field.annotation] if kind is not NoneType]
    kind: Any = kinds[0]
    if get_origin(field.annotation) is list:
        kind = list[kinds[0]]  # type: ignore[valid-type]
    elif get_origin(field.annotation) is dict:
        kind = list[str]  # NAME=VALUE
    elif not isinstance(kind, type):
        kind = str  # a Literal, which Settings checks
    extra: Any = field.json_schema_extra
    shown = _show_default(field.default)
    text = f"{field.description}{f' (default: {shown})' if shown else ''}."
    return _parameter(name, kind, extra["flags"] or [f"--{name.replace('_', '-')}"], text, extra["panel"])


def _parameter(name: str, kind: Any, flags: list[str], text: str, panel: str) -> inspect.Parameter:
    option = typer.Option(*flags, help=text, rich_help_panel=panel, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _show_default(value: Any) -> str:
    """Format a default for the help; empty for flags, lists and None.

    >>> [_show_default(value) for value in (False, None, [], "auto", 30.0, 8765, 20_000, 64 << 20)]
    ['', '', '', 'auto', '30', '8765', '20,000', '64 MiB']
    """
    if isinstance(value, bool) or not value:
        return ""
    if isinstance(value, int) and value % (1 << 20) == 0:
        return f"{value >> 20} MiB"
    if isinstance(value, int) and value >= 10_000:
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _serve(hash_key: bool | None, config: Path | None, **flags: Any) -> None:
    from noisegate.service.guards import middleware
    from noisegate.service.serve import run
    from noisegate.service.settings import load_settings

    if hash_key:
        print(middleware.hash_key(middleware.read_key(sys.stdin)))
        return
    run(load_settings(config, **flags))
