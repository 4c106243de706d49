"""`noisegate convert`: your own pictures, or the usual downloads of the papers' data sets, as shards."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noisegate.pipeline.datasets.convert.kinds import KINDS, LAYOUTS
from noisegate.pipeline.system.machine import format_size
from noisegate.pipeline.system.progress import progress_for

from .options import Quiet, option, panel
from .output import JsonOption, Output, escape

if TYPE_CHECKING:
    from noisegate.pipeline.datasets.convert.job import Converted

TABLES = "Your own tables"
caption_option = panel("Captioned data")
label_option = panel("Labelled data")
shard_option = panel("Shards")


def convert(
    kind: Annotated[str, typer.Argument(help=f"{', '.join(KINDS)}.")],
    source: Annotated[Path, typer.Argument(help="Your folder or table, or the folder of the download, unpacked.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the shards of this split.")],
    split: Annotated[str, typer.Option("--split", "-s", help="One of the kind's splits, above.")] = "train",
    image_column: Annotated[str | None, option("image_column", rich_help_panel=TABLES)] = None,
    text_column: Annotated[str | None, option("text_column", rich_help_panel=TABLES)] = None,
    label_column: Annotated[str | None, option("label_column", rich_help_panel=TABLES)] = None,
    layout: Annotated[
        str | None,
        caption_option(help="features, annotations, karpathy or table, if a source has several (default: the first)."),
    ] = None,
    rows: Annotated[
        str | None,
        caption_option(
            help="captions: a sample for each, as weights and noise need; images: a sample for each with all its "
            "captions in its json, a fifth of the bytes (default: captions for train, else images)."
        ),
    ] = None,
    noise_file: Annotated[
        Path | None,
        caption_option(
            help="Published noise, applied as it is: an index such as f30k_precomp_0.4.npy (NCR, BiCro, CRCL, DECL), or "
            "captions such as 0.4_noise_train_caps.txt (NPC, OSA)."
        ),
    ] = None,
    images: Annotated[Path | None, caption_option(help="Folder of the pictures, if it is not in the source.")] = None,
    float16: Annotated[bool, caption_option("--float16", help="Store features as float16, in half the bytes.")] = False,
    labels: Annotated[str | None, label_option(help="cifar10n: worse, aggre, random1, random2 or random3.")] = None,
    label_file: Annotated[
        Path | None, label_option(help="cifar10n, cifar100n: CIFAR-N's file, if it is not in the source.")
    ] = None,
    classes: Annotated[
        int | None,
        label_option(help="webvision: number of classes to keep, from the first (default: 50, mini-WebVision)."),
    ] = None,
    check: Annotated[str, shard_option(help="Check pictures by their header (quick), or by full decoding.")] = "header",
    samples: Annotated[int, shard_option("--shard-samples", help="Largest number of samples in a shard.")] = 1_000,
    megabytes: Annotated[int, shard_option("--shard-mb", help="Largest size of a shard in MB.")] = 500,
    quiet: Quiet = False,
    as_json: JsonOption = False,
) -> None:
    """Make shards from your own folder or table of pictures, or from the usual download of one of the papers' data sets.

    [cyan]noisegate convert folder photos --out shards[/]

    [cyan]noisegate convert table pairs.csv --image-column file --text-column alt --out shards[/]

    [cyan]noisegate convert flickr30k f30k_precomp --noise-file f30k_precomp_0.4.npy --out flickr30k/train[/]

    [cyan]noisegate convert coco coco_precomp --split test --out coco/test[/]

    [cyan]noisegate convert cifar100n cifar-100-binary --label-file CIFAR-100_human.pt --out cifar100n/train[/]

    [cyan]noisegate convert food101n food-101 --split test --out food101n/test[/]

    Picture files are copied unchanged. Each sample's json has the image's id and the known truth (noisy, clean_label),
    which `noisegate evaluate` reads; classes.txt beside the shards is for --classes of `noisegate annotate`. A sample that
    cannot be read is left out and listed in _bad_samples.jsonl. If stopped, run the same command again to go on.
    """
    from noisegate.pipeline.datasets.convert.job import convert as run

    progress = progress_for(quiet)
    try:
        converted = run(
            kind,
            source,
            out,
            split=split,
            shard_samples=samples,
            shard_bytes=megabytes * 1_000_000,
            check=check,
            progress=progress.samples,
            **{"layout": layout, "rows": rows, "noise_file": noise_file, "images": images, "float16": float16},
            **{"labels": labels, "label_file": label_file, "classes": classes},
            **{"image_column": image_column, "text_column": text_column, "label_column": label_column},
        )
    finally:
        progress.stop()
    output = Output(as_json)
    _print(converted, output)
    output.result(converted.to_dict())


def _kinds() -> str:
    """Describe each kind with its splits and files in a paragraph, and the layouts that several share."""
    kinds = [
        f"[bold]{kind.name}[/] ({', '.join(kind.splits)}): "
        + (f"layout {', '.join(kind.layouts)}, below." if kind.layouts else f"{escape(kind.expected)}.")
        for kind in KINDS.values()
    ]
    return "\n\n".join([*kinds, *(f"[bold]{name}[/]: {escape(files)}." for name, files in LAYOUTS.items())])


def _print(converted: "Converted", output: Output) -> None:
    facts = converted.facts
    bad = ", ".join(f"{status} {count:,}" for status, count in converted.bad.items())
    output.table(
        "Converted" if not converted.already else "Converted already",
        [
            ("data set", f"{converted.kind}, {converted.split}"),
            ("samples", f"{converted.samples:,}" + (f" of {converted.read:,}" if converted.bad else "")),
            *([("left out", f"{bad}; see _bad_samples.jsonl")] if bad else []),
            *([("classes", f"{converted.classes:,}")] if converted.classes else []),
            *([("layout", str(facts["layout"]))] if "layout" in facts else []),
            *([("a sample for each of the", str(facts["rows"]))] if "rows" in facts else []),
            *([("noise", f"{facts['noisy']:,} noisy, {facts['noise_protocol']}")] if "noisy" in facts else []),
            ("shards", f"{len(converted.shards):,}, {format_size(converted.bytes)}"),
        ],
    )
    output.say(f"Shards: [cyan]{escape(converted.out)}[/]/*.tar")


convert.__doc__ = f"{inspect.cleandoc(convert.__doc__ or '')}\n\n{_kinds()}"
