"""Options that several commands share; those of `annotate` are made from the fields of `AnnotateSettings`."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.settings import AnnotateSettings, check_engine
from noisegate.pipeline.system.machine import read_size

if TYPE_CHECKING:
    from noisegate.pipeline.labels.anchors import Anchors
    from noisegate.pipeline.neighbours import NeighbourSearch

_FIELDS = {setting.name: setting for setting in fields(AnnotateSettings)}


def option(name: str, **changes: Any) -> Any:
    """Make the typer option of a setting of `annotate`; `changes` replace arguments of `typer.Option`."""
    setting = _FIELDS[name]
    flags = setting.metadata["flags"] or (f"--{name.replace('_', '-')}",)
    values = {
        "help": setting.metadata["help"],
        "rich_help_panel": setting.metadata["panel"],
        "min": setting.metadata["least"],
    }
    return typer.Option(*flags, **{**values, **changes})


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each setting of `annotate`; it gets a checked `settings` in their place."""
    own = [parameter for name, parameter in inspect.signature(command).parameters.items() if name != "settings"]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        given = {name: _read(setting, values.pop(name)) for name, setting in _FIELDS.items()}
        command(settings=AnnotateSettings(**given), **values)

    required = [parameter for parameter in own if parameter.default is parameter.empty]
    kinds = get_type_hints(AnnotateSettings)
    options = [_parameter(setting, kinds[name]) for name, setting in _FIELDS.items()]
    rest = [parameter for parameter in own if parameter not in required]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*required, *options, *rest)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _parameter(setting: "Field[Any]", kind: Any) -> inspect.Parameter:
    """Make a parameter of a setting: settings with a parser are read from text; default-on booleans get an off flag."""
    default: Any = setting.default
    if setting.metadata["read"]:
        kind = str if default else str | None
        default = ",".join(default) if default else None
    elif default is True:
        default = False
    annotation = Annotated[kind, option(setting.name)]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _read(setting: "Field[Any]", value: Any) -> Any:
    if setting.metadata["read"] and value is not None:
        return setting.metadata["read"](value)
    return not value if setting.default is True else value


def panel(title: str) -> Any:
    """`typer.Option` for the options below one heading of the help."""
    return functools.partial(typer.Option, rich_help_panel=title)


def with_columns(shards: list[str], image: str | None, text: str | None, label: str | None) -> list[str]:
    """Apply the column names to shards that are tables; raise ConfigError for a wrong name before a model is loaded."""
    from noisegate.pipeline.shards.locate import find_shards
    from noisegate.pipeline.shards.sources import TableColumns

    columns = TableColumns(image, text, label)
    located = find_shards(shards, columns)
    return shards if columns == TableColumns() else [shard.url for shard in located]


_search_option = panel("Neighbour search")
Shards = Annotated[
    list[str],
    typer.Argument(
        help="Tars by path or URL, quoted: 'x-{000000..000099}.tar', 'data/*.tar', 'a.tar::b.tar', @list.txt; a folder of "
        "tars or of pictures; or a table: .csv, .tsv, .jsonl, .parquet, COCO's .json."
    ),
]
Folder = Annotated[Path, typer.Argument(help="A folder that `noisegate annotate` wrote.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]

Model = Annotated[str, option("model")]
Pretrained = Annotated[str | None, option("pretrained")]
TrustRun = Annotated[
    bool, typer.Option("--trust-run", help="Load the recorded model also if it is code, a folder or on the hub.")
]
Device = Annotated[str, option("device")]
Dtype = Annotated[str, option("dtype")]
BatchSize = Annotated[int | None, option("batch_size")]
Draft = Annotated[bool, option("draft")]
Decoder = Annotated[str, option("decoder")]
TextField = Annotated[str | None, option("text_field")]
ImageColumn = Annotated[str | None, option("image_column")]
TextColumn = Annotated[str | None, option("text_column")]
LabelColumn = Annotated[str | None, option("label_column")]
Workers = Annotated[int | None, option("workers")]
Task = Annotated[str, option("tasks")]
Seed = Annotated[int, option("seed")]

AnchorVectors = Annotated[Path | None, typer.Option("--anchors", help="Text anchors, .npy (A, d).")]
AnchorLabels = Annotated[Path | None, typer.Option("--anchor-labels", help="Classes of the anchors, .npy (A,).")]
K = Annotated[int | None, option("k", rich_help_panel=None)]
Neighbourhood = Annotated[
    bool | None,
    typer.Option(
        "--neighbourhood/--no-neighbourhood", help="Compare pairs with their neighbours' partners, or do not."
    ),
]
NeighbourEngine = Annotated[str, _search_option("--engine", help="Search on this machine (local) or on ray.")]
NeighbourAddress = Annotated[
    str | None,
    _search_option(
        "--address",
        help="Address of a Ray cluster, such as auto; all its machines need the run's folder under the same path.",
    ),
]
NeighbourMemory = Annotated[str | None, option("neighbour_memory")]
NeighbourIndex = Annotated[
    str,
    _search_option(
        "--neighbour-index",
        help="flat (exact), ivf, ivf-pq (compressed), or auto: flat up to a million rows, ivf beyond.",
    ),
]
NeighbourWorkers = Annotated[
    int, _search_option("--neighbour-workers", help="Search in this many processes, which share memory and processors.")
]


@contextmanager
def neighbour_search(
    engine: str, address: str | None, memory: str | None, index: Any, workers: int
) -> "Iterator[NeighbourSearch]":
    """Build the neighbour search that these options describe; the processes it starts end with the block."""
    from noisegate.pipeline.neighbours import NeighbourSearch, process_executor, ray_executor

    check_engine(engine, {"address": address})
    if workers != 1 and engine == "ray":
        raise ConfigError.of("neighbour-workers", workers, "are for this machine; leave them out with --engine ray")
    size = read_size(memory) if memory else None
    with ExitStack() as started:
        if engine == "ray":
            yield NeighbourSearch(size, index, started.enter_context(ray_executor(address)), remote=True)
        elif workers != 1:
            yield NeighbourSearch(size, index, started.enter_context(process_executor(workers)), at_once=workers)
        else:
            yield NeighbourSearch(size, index)


def refuse_memory(out: Path | None) -> None:
    """Raise ConfigError for a place in this process's memory, which is gone when the command ends."""
    if str(out).lower().startswith("memory:/"):
        from noisegate.pipeline.system.stores import store_url

        raise ConfigError.of(
            "out", store_url(str(out)), "is gone when the command ends; use a folder, or a store such as s3://"
        )


def load_anchors(vectors: Path | None, labels: Path | None, names: tuple[str, ...] = ()) -> "Anchors | None":
    """Read the anchors that the two options name; None if neither is given."""
    from noisegate.pipeline.labels.anchors import read_anchors

    if vectors is None and labels is None:
        return None
    if vectors is None or labels is None:
        missing = "anchors" if vectors is None else "anchor-labels"
        raise ConfigError("--anchors and --anchor-labels belong together; give both", missing)
    return read_anchors(vectors, labels, names)
