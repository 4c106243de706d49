"""The command `noisegate`."""

import os
import sys

import typer

from ..errors import NoisegateError
from . import adapt, annotate, calibrate, compare, demo, evaluate, export, noise, report, rescore, scenes, show, verify

__all__ = ["app", "main"]

STOPPED = "run the same command again, without --overwrite, and it goes on"

app = typer.Typer(
    name="noisegate",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Scores every image-text pair of your shards once, so that training can trust the right ones.

A first look, with drawn scenes and the small embedded model (no download, no GPU):

[cyan]noisegate scenes clean --count 2000[/]

[cyan]noisegate noise 'clean/*.tar' --protocol shuffle-captions --rate 0.4 --out noisy[/]

[cyan]noisegate annotate 'noisy/*.tar' --out tables[/]

[cyan]noisegate evaluate tables[/]

Your own data, with a real CLIP:

[cyan]noisegate annotate 'data/{000000..000099}.tar' --model ViT-B-32 --pretrained laion2b_s34b_b79k --out tables[/]
""",
)
for module in (
    annotate,
    rescore,
    calibrate,
    adapt,
    noise,
    evaluate,
    report,
    verify,
    compare,
    show,
    export,
    scenes,
    demo,
):
    module.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"noisegate {version('noisegate')}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
) -> None: ...


def main() -> None:
    """Run the command; what goes wrong on purpose becomes one message, not a traceback."""
    os.environ.setdefault("WDS_SECURE", "1")
    try:
        app()
    except NoisegateError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _fail(STOPPED, 130)
    except SystemExit as end:
        if end.code != 130:
            raise
        _fail(STOPPED, 130)  # typer's own code for Ctrl-C, which it leaves without a word
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)


def _fail(message: str, code: int) -> None:
    from rich.console import Console
    from rich.text import Text

    word, style = ("stopped", "yellow") if code == 130 else ("error", "bold red")
    Console(stderr=True, soft_wrap=True).print(Text(f"{word}: ", style=style) + Text(message))
    sys.exit(code)
