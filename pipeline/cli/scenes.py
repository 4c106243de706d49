"""`noisegate scenes`: drawn pictures with captions that are true."""

from pathlib import Path
from typing import Annotated

import typer

from .options import Seed
from .output import JsonOption, Output, escape


def register(app: typer.Typer) -> None:
    app.command("scenes", no_args_is_help=True)(scenes)


def scenes(
    out: Annotated[Path, typer.Argument(help="Folder for the shards.", show_default=False)],
    count: Annotated[int, typer.Option("--count", "-n", help="Number of scenes.")] = 2_000,
    shards: Annotated[int, typer.Option("--shards", help="Number of shards.")] = 4,
    size: Annotated[int, typer.Option("--size", help="Width and height in pixels.")] = 64,
    hard_negatives: Annotated[
        bool, typer.Option("--hard-negatives", help="Add to each json a caption that is wrong in one attribute.")
    ] = False,
    seed: Seed = 0,
    as_json: JsonOption = False,
) -> None:
    """Draw scenes (shapes, colours, sizes, positions, counts, backgrounds) with captions and class labels, as shards.

    [cyan]noisegate scenes clean --count 2000 --shards 4[/]

    The embedded model understands such scenes, so a trial needs no download.
    """
    from noisegate.pipeline.datasets.noise.shards import TRUTH_FILE
    from noisegate.pipeline.datasets.scenes import write_scenes
    from noisegate.pipeline.errors import ConfigError
    from noisegate.pipeline.system.output_files import refuse_other_shards, remove_half_written, writing_to

    with writing_to(out):
        refuse_other_shards(out, {f"scenes-{part:06d}.tar" for part in range(shards)})
        if (out / TRUTH_FILE).exists():
            raise ConfigError.of("out", out, f"holds shards with noise in them ({TRUTH_FILE}); use an empty folder")
        remove_half_written(out)
        paths = write_scenes(out, count, shards, seed, size=size, hard_negatives=hard_negatives)
    output = Output(as_json)
    output.say(f"{count:,} scenes in {len(paths)} shards: [cyan]{escape(str(out))}[/]/*.tar")
    output.result({"out": str(out), "count": count, "shards": [str(path) for path in paths]})
