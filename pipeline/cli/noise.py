"""`noisegate noise`: shards with mistakes that are known."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noisegate.pipeline.errors import ConfigError

from .options import ImageColumn, LabelColumn, Seed, Shards, TextColumn, option, panel, with_columns
from .output import JsonOption, Output, escape, percent

if TYPE_CHECKING:
    from noisegate.pipeline.datasets.noise.label_shards import LabelNoiseReport
    from noisegate.pipeline.datasets.noise.shards import NoiseReport

CAPTIONS, LABELS = "Wrong captions", "Wrong labels"
caption_option, label_option = panel(CAPTIONS), panel(LABELS)


def noise(
    shards: Shards,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the noisy shards.")],
    protocol: Annotated[
        str,
        typer.Option(
            help="Captions: shuffle-captions (NCR, NPC), shuffle-images (all captions of a picture move together, DECL). "
            "Labels: symmetric, asymmetric, instance-dependent (Xia et al. 2020), pmd (PLC)."
        ),
    ] = "shuffle-captions",
    rate: Annotated[
        float | None, typer.Option("--rate", "-r", help="Share to make wrong, 0 to 1. Required except for pmd.")
    ] = None,
    derange: Annotated[
        bool, caption_option("--derange", help="Let no caption keep its place by chance, so that the rate is exact.")
    ] = False,
    image_column: ImageColumn = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    text_field: Annotated[str | None, option("text_field", rich_help_panel=CAPTIONS)] = None,
    classes: Annotated[
        str | None,
        label_option(
            help="How many classes, a file of their names, or cifar10, cifar100, animal10n (default: largest label + 1)."
        ),
    ] = None,
    inclusive: Annotated[
        bool,
        label_option(
            "--inclusive",
            help="symmetric: draw from all classes, the true one too (DivideMix); the real rate is rate (C - 1) / C.",
        ),
    ] = False,
    class_map: Annotated[
        str | None,
        label_option(
            help="asymmetric: cifar100 (inside its super-classes), cifar10, next (c to c + 1), or a JSON file such as "
            '{"cat": "dog"}, by id or, with --classes, by name.'
        ),
    ] = None,
    features: Annotated[
        str | None,
        label_option(
            help="instance-dependent: an .npy of one row per sample, or a folder that `noisegate annotate` wrote from "
            "these shards (default: thumbnails of 8 x 8 pixels)."
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        label_option(
            help="instance-dependent: a lower value makes one target more likely (default: the features' mean length)."
        ),
    ] = None,
    posteriors: Annotated[
        str | None, label_option(help="pmd: an .npy (samples, classes) of probabilities from a model you trained.")
    ] = None,
    kind: Annotated[str | None, label_option(help="pmd: I, II or III.")] = None,
    factor: Annotated[
        float | None,
        label_option(
            help="pmd: above 1 more noise, below 1 less (default 1); or give --rate, and the factor is found."
        ),
    ] = None,
    label_field: Annotated[str | None, option("label_field", rich_help_panel=LABELS)] = None,
    seed: Seed = 0,
    as_json: JsonOption = False,
) -> None:
    """Copy shards with some captions, or some class labels, wrong on purpose, and record which.

    [cyan]noisegate noise 'clean/*.tar' --protocol shuffle-captions --rate 0.4 --seed 7 --out noisy[/]

    [cyan]noisegate noise 'clean/*.tar' --protocol symmetric --rate 0.4 --classes clean/classes.txt --out noisy[/]

    [cyan]noisegate noise 'cifar/*.tar' --protocol asymmetric --class-map cifar100 --rate 0.3 --out noisy[/]

    [cyan]noisegate noise 'clean/*.tar' --protocol instance-dependent --features tables --rate 0.4 --out noisy[/]

    [cyan]noisegate noise 'clean/*.tar' --protocol pmd --kind II --posteriors p.npy --rate 0.35 --out noisy[/]

    The mask is in each sample's json (field noisy; for labels also clean_label) and in noise.parquet;
    `noisegate evaluate` reads either. Every protocol has an id with all its settings: the same id on the same shards gives
    the same noise, so results can be compared.
    """
    from noisegate.pipeline.datasets.noise.label_shards import noise_labels
    from noisegate.pipeline.datasets.noise.protocols import check_options, find_protocol
    from noisegate.pipeline.datasets.noise.shards import noise_captions
    from noisegate.pipeline.shards.workers import default_workers
    from noisegate.pipeline.system.output_files import remove_half_written

    changes = find_protocol(protocol).noises
    options: dict[str, Any] = {"classes": classes, "inclusive": inclusive, "class_map": class_map, "features": features}
    options |= {"temperature": temperature, "posteriors": posteriors, "kind": kind, "factor": factor}
    check_options(protocol, {**options, "derange": derange})
    unread, field = ("label_field", label_field) if changes == "captions" else ("text_field", text_field)
    if field is not None:
        raise ConfigError.of(unread, field, f"is not read by {protocol}, which changes {changes}; leave it out")
    output = Output(as_json)
    located = with_columns(shards, image_column, text_column, label_column)
    remove_half_written(out)
    if changes == "captions":
        if rate is None:
            raise ConfigError(f"rate is needed by {protocol}; give for example --rate 0.4", "rate")
        report = noise_captions(
            located, out, protocol=protocol, rate=rate, seed=seed, derange=derange, text_field=text_field
        )
        _print_captions(report, output)
        return output.result({**vars(report), "rate": report.rate})
    made = noise_labels(
        located,
        out,
        protocol=protocol,
        rate=rate,
        seed=seed,
        label_field=label_field,
        workers=default_workers() if protocol == "instance-dependent" and features is None else 0,
        **options,
    )
    _print_labels(made, output)
    return output.result({**vars(made), "rate": made.rate})


def _print_captions(report: "NoiseReport", output: Output) -> None:
    output.table(
        "Noise",
        [
            ("protocol", report.protocol),
            ("samples", f"{report.samples:,}"),
            ("noisy", f"{report.noisy:,} ({percent(report.rate)})"),
            *([("without caption", f"{report.untouched:,}")] if report.untouched else []),
        ],
    )
    _print_places(report.out, output)


def _print_labels(report: "LabelNoiseReport", output: Output) -> None:
    moves = sorted((move for move in report.transitions if move[0] != move[1]), key=lambda move: -move[2])
    shown = ", ".join(f"{true} to {given}: {count:,}" for true, given, count in moves[:6])
    output.table(
        "Noise",
        [
            ("protocol", report.protocol),
            ("samples", f"{report.samples:,}"),
            ("classes", f"{report.classes:,}"),
            ("noisy", f"{report.noisy:,} ({percent(report.rate)} of those with a label)"),
            ("most frequent", f"{shown}{', …' if len(moves) > 6 else ''}" or "–"),
            *([("left alone", f"{report.untouched:,} (no label, or no features)")] if report.untouched else []),
        ],
    )
    _print_places(report.out, output)


def _print_places(out: str, output: Output) -> None:
    output.say(f"Shards: [cyan]{escape(str(out))}[/]/*.tar  Truth: [cyan]{escape(str(out))}[/]/noise.parquet")
