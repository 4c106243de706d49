"""`noisegate plan`: predict time, disk and money for a set of shards."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.settings import DecodeOptions, read_tasks
from noisegate.pipeline.system import format_duration
from noisegate.pipeline.system.progress import counted

from .options import (
    BatchSize,
    Decoder,
    Device,
    Draft,
    Dtype,
    ImageColumn,
    LabelColumn,
    Model,
    Pretrained,
    Shards,
    Task,
    TextColumn,
    TextField,
    Workers,
    with_columns,
)
from .output import JsonOption, Output, escape, percent

if TYPE_CHECKING:
    from noisegate.pipeline.tools.plan.predict import Estimate, RunForecast


def plan(
    shards: Shards,
    model: Model = "embedded",
    pretrained: Pretrained = None,
    seconds: Annotated[float, typer.Option(help="Seconds to measure, after loading the model.")] = 10.0,
    task: Task = "pairs",
    k: Annotated[int | None, typer.Option(min=1, help="Neighbours per row, for labels (default: 200).")] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(
            help="Price per hour: 1.20 for this machine, A100=1.80 for a device of the table; may be repeated."
        ),
    ] = None,
    drop_embeddings: Annotated[
        bool, typer.Option("--drop-embeddings", help="Calculate the disk without embeddings.")
    ] = False,
    image_column: ImageColumn = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    text_field: TextField = None,
    workers: Workers = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    batch_size: BatchSize = None,
    draft: Draft = False,
    decoder: Decoder = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure for a few seconds and predict time, disk and money for all SHARDS, here and on known devices.

    [cyan]noisegate plan 'data/{000000..009999}.tar' --model ViT-B-32 --pretrained laion2b_s34b_b79k --price 1.20[/]

    Reads some samples of at most eight shards and writes nothing. Prints which stage is the limit, which flag would help,
    and all assumptions.
    """
    from noisegate.pipeline.estimators import ModelSpec
    from noisegate.pipeline.tools.plan import plan as make

    output = Output(as_json)
    options = DecodeOptions(tasks=read_tasks(task), text_field=text_field)
    prices = _prices(price or [])
    located = with_columns(shards, image_column, text_column, label_column)
    with output.working(f"loading {model}, then measuring for {seconds:g} seconds"):
        forecast = make(
            located,
            estimator=ModelSpec(model, pretrained, device, dtype, batch_size, draft, decoder=decoder),
            options=options,
            seconds=seconds,
            workers=workers,
            device=device,
            prices=prices,
            k=k,
            keep_embeddings=not drop_embeddings,
        )
    _print(forecast, output)
    output.result(forecast.to_dict())


def _prices(given: list[str]) -> dict[str, float]:
    """Parse prices: `1.20` is the price of this machine (`here`), `NAME=1.80` that of another.

    >>> _prices(["1.20", "A100=1.80"])
    {'here': 1.2, 'A100': 1.8}
    """
    prices = {}
    for text in given:
        name, _, value = text.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise ConfigError.of("price", text, "is no price per hour; use 1.20, or A100=1.80")
        prices[name or "here"] = number
    return prices


def _print(forecast: "RunForecast", output: Output) -> None:
    looked, machine = forecast.looked_at, forecast.machine
    seen = f"{counted(int(looked['samples']), 'sample')} of {counted(int(looked['shards']), 'shard')}"
    rate = forecast.samples.value / forecast.seconds.value if forecast.seconds.value else math.inf
    output.table(
        f"Plan for {forecast.model}",
        [
            ("shards", f"{forecast.shards:,}, {amount(forecast.bytes.value)}"),
            ("samples", _between(forecast.samples, "{:,.0f}".format)),
            ("looked at", f"{seen} in {looked['seconds']:.1f} s"),
            *([("  cannot be used", percent(forecast.failed_share))] if forecast.failed_share else []),
            ("time here", f"{_between(forecast.seconds, format_duration)}, {rate:,.0f} samples/s on {machine.device}"),
            ("money here", f"{_between(forecast.money, '{:,.2f}'.format)} at {machine.price:.2f} an hour"),
            ("disk", _disk(forecast)),
            ("limit", _limit(forecast)),
            ("decode workers", f"{machine.workers} here; the device needs {forecast.workers_needed:,}"),
        ],
    )
    output.table(
        "Stage by stage, one sample",
        [(stage.name, _between(stage.seconds, milliseconds), stage.by) for stage in forecast.stages],
        ("stage", "ms", "by"),
    )
    if forecast.devices:
        output.table(
            "On known devices (estimates, see below)",
            [
                (
                    device.name + ("  OSA's own figure" if device.measured_by_paper else ""),
                    format_duration(3600 * device.hours),
                    f"{device.samples_per_second:,.0f}",
                    f"{device.workers_needed:,}",
                    f"{device.processes_needed:,}",
                    f"{device.price:.2f}",
                    f"{device.money:,.2f}",
                )
                for device in forecast.devices
            ],
            ("device", "time", "samples/s", "decode workers", "processes", "per hour", "money"),
        )
    for text in forecast.advice:
        output.tell(f"[green]faster[/]: {escape(text)}")
    for text in forecast.notes:
        output.tell(f"[yellow]note[/]: {escape(text)}")
    for text in forecast.assumptions:
        output.tell(f"assumed: {escape(text)}")


def _disk(forecast: "RunForecast") -> str:
    parts = {
        "tables": forecast.disk.tables,
        "embeddings": forecast.disk.embeddings,
        "neighbours": forecast.disk.neighbours,
    }
    return f"{amount(forecast.disk.total)}: " + ", ".join(
        f"{name} {amount(size)}" for name, size in parts.items() if size
    )


def _limit(forecast: "RunForecast") -> str:
    if forecast.limit != "processors":
        return forecast.limit
    seconds = {stage.name: stage.seconds.value for stage in forecast.stages}
    dearest = "decode" if seconds["decode"] > seconds["encode"] * forecast.machine.threads else "encode"
    return f"the processors are all busy, most of all with {dearest}"


def _between(value: "Estimate", show: Callable[[float], str]) -> str:
    """Format the value with its interval, or say that a single measurement gives none."""
    if not math.isfinite(value.half):
        return f"{show(value.value)} (one look: no interval)"
    if value.half <= 0:
        return show(value.value)
    return f"{show(value.value)} ({show(max(0.0, value.value - value.half))} to {show(value.value + value.half)})"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.3f}"


def amount(size: float) -> str:
    """Format a number of bytes with a decimal unit.

    >>> amount(999), amount(1_500_000), amount(2.04e12)
    ('999 B', '1.5 MB', '2.0 TB')
    """
    if size < 1000:
        return f"{size:.0f} B"
    step = min(5, int(math.log10(size) / 3))
    return f"{size / 1000**step:,.1f} {'kMGTP'[step - 1]}B"
