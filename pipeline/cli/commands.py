"""All commands of `noisegate`; errors become one message and an exit code."""

import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points, version

import typer
from rich.console import Console
from rich.text import Text

from noisegate.pipeline.errors import NoisegateError, StoppedError
from noisegate.pipeline.system.controls import show_controls

from .adapt import adapt
from .annotate import annotate
from .calibrate import calibrate
from .convert import convert
from .demo import demo, scenes
from .doctor import doctor
from .evaluate import evaluate
from .export import export
from .help_layout import Group, arrange, flowing
from .noise import noise
from .plan import plan
from .rescore import rescore, score_embeddings
from .review import review
from .show import compare, report, show
from .verify import verify

# how to resume a command that was stopped; all others start over
STOPPED = {
    "annotate": "run the same command again, without --overwrite, and it goes on",
    "score-embeddings": "run the same command again, without --overwrite: a neighbour search goes on, the rest starts over",
    "rescore": "run the same command again: a neighbour search goes on, the rest starts over",
    "demo": "run the same command again, and it goes on",
    "convert": "run the same command again, and it goes on",
    "bench": "run the same command again; what is finished is kept",
}
STARTS_OVER = "run the same command again, and it starts over"

HELP = """Scores every image-text pair of your shards once, so that training can trust the right ones.

A first look, with drawn scenes and the small embedded model (no download, no GPU):

[cyan]noisegate demo[/]

The same step by step:

[cyan]noisegate scenes clean --count 2000[/]

[cyan]noisegate noise 'clean/*.tar' --rate 0.4 --out noisy[/]

[cyan]noisegate annotate 'noisy/*.tar' --out tables[/]

[cyan]noisegate evaluate tables[/]

[cyan]noisegate show tables[/]

Your own data, with a real CLIP:

[cyan]noisegate annotate 'data/{000000..000099}.tar' --model ViT-B-32 --pretrained laion2b_s34b_b79k --out tables[/]
"""


app = typer.Typer(
    name="noisegate",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=flowing(HELP),
)
RUNS_WITHOUT_ARGUMENTS: tuple[Callable[..., None], ...] = (calibrate, demo, doctor)
NEEDS_ARGUMENTS: tuple[Callable[..., None], ...] = (
    *(adapt, annotate, compare, convert, evaluate, export, noise, plan),
    *(report, rescore, review, scenes, score_embeddings, show, verify),
)
for command in (*RUNS_WITHOUT_ARGUMENTS, *NEEDS_ARGUMENTS):
    name = command.__name__.replace("_", "-")
    app.command(name, no_args_is_help=command in NEEDS_ARGUMENTS)(command)
for package in entry_points(group="noisegate.commands"):  # service and trainers, which pipeline must not import
    package.load().register(app)
arrange(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"noisegate {version('noisegate')}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
) -> None: ...


def main() -> None:
    """Run the command; print a NoisegateError as one message, without a traceback."""
    os.environ.setdefault("WDS_SECURE", "1")
    try:
        app()
    except NoisegateError as error:
        _fail(str(error), 130 if isinstance(error, StoppedError) else 2)
    except KeyboardInterrupt:
        _fail(_resume_hint(), 130)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer and rich turn it into exit code 1
            _exit_on_closed_pipe()
        if end.code != 130:
            raise
        _fail(_resume_hint(), 130)  # typer exits with 130 after Ctrl-C and prints no reason
    except BrokenPipeError:
        _exit_on_closed_pipe()


def _resume_hint() -> str:
    return STOPPED.get(next((word for word in sys.argv[1:] if not word.startswith("-")), ""), STARTS_OVER)


def _exit_on_closed_pipe() -> None:
    """Exit with the code of SIGPIPE: the reader of the output has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # buffered output must not raise again
    sys.exit(141)


def _fail(message: str, code: int) -> None:
    word, style = ("stopped", "yellow") if code == 130 else ("error", "bold red")
    Console(stderr=True, soft_wrap=True).print(Text(f"{word}: ", style=style) + Text(show_controls(message)))
    sys.exit(code)
