"""`noisegate calibrate`: β of a model, by every mode, as a table."""

import math
from typing import Annotated, Any

import typer

from .options import (
    BatchSize,
    Device,
    Dtype,
    ImageColumn,
    Model,
    Pretrained,
    Seed,
    TextColumn,
    TextField,
    Workers,
    with_columns,
)
from .output import JsonOption, Output, number, percent, why


def calibrate(
    shards: Annotated[
        list[str] | None,
        typer.Argument(
            help="Shards, a folder or a table of pictures; without them only the model's own β (random_inputs)."
        ),
    ] = None,
    model: Model = "embedded",
    pretrained: Pretrained = None,
    samples: Annotated[
        int, typer.Option(min=20, help="Number of pairs to read, from the start of the shards.")
    ] = 2_000,
    image_column: ImageColumn = None,
    text_column: TextColumn = None,
    text_field: TextField = None,
    workers: Workers = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    batch_size: BatchSize = None,
    seed: Seed = 0,
    as_json: JsonOption = False,
) -> None:
    """Print β with its deviation, sample size and 95 % interval for each mode, and the one that `auto` chooses.

    With shards also what the field's fixed thresholds would keep and lose on them, as far as the similarity tells.

    [cyan]noisegate calibrate --model ViT-B-32 --pretrained openai[/]

    [cyan]noisegate calibrate 'data/{000000..000009}.tar' --model ViT-B-32 --pretrained openai[/]
    """
    from noisegate.pipeline.estimators import load_estimator
    from noisegate.pipeline.pairs.beta import (
        beta_cache_file,
        beta_of_intersection,
        beta_of_shuffled,
        chance_within,
        estimate_beta,
        measure_beta,
    )
    from noisegate.pipeline.pairs.judge import choose_calibration
    from noisegate.pipeline.pairs.pair_fit import sample_first_pairs
    from noisegate.pipeline.scoring.summary import calibration_warning, tells_nothing
    from noisegate.pipeline.shards.locate import find_shards

    output = Output(as_json)
    located = find_shards(with_columns(shards, image_column, text_column, None)) if shards else []
    with output.working(f"loading {model}"):
        estimator = load_estimator(model, pretrained, device=device, dtype=dtype, batch_size=batch_size)
    known = beta_cache_file(estimator.identity, seed).exists()
    with output.working("recalling β of random inputs" if known else "measuring β of random inputs"):
        random = measure_beta(estimator, seed)
    betas, pairs = [random], None
    if located:
        with output.working(f"encoding up to {samples:,} pairs"):
            pairs = sample_first_pairs(located, estimator, samples, workers, seed, text_field)
            if len(pairs.mismatched) > 1:
                betas += [beta_of_intersection(pairs, seed), beta_of_shuffled(pairs, seed)]
    chosen = estimate_beta(pairs=pairs, random_inputs=lambda: random, seed=seed)
    rows = [
        (
            b.mode + (" *" if b.mode == chosen.mode else ""),
            number(b.value),
            number(b.std),
            f"{b.count:,}",
            f"{b.interval[0]:.4f} to {b.interval[1]:.4f}" if b.interval else "–",
        )
        for b in betas
    ]
    output.table(f"β of {estimator.identity.model}", rows, ("mode", "β", "deviation", "samples", "95 % interval"))
    width = estimator.encode_texts(["a"]).shape[1]
    output.tell(
        f"In {width} dimensions unrelated directions stay within ±0.1 {percent(chance_within(0.1, width))} of the time; "
        "a β well beyond that shows a cone."
    )
    if located:
        output.tell(f"* auto takes {chosen.mode}: {why(chosen.reason)}")
    else:
        output.tell(
            "* without data auto takes random_inputs; give shards to see the other modes, and what auto takes there"
        )
    cuts: list[dict[str, Any]] = []
    calibration = None if pairs is None else choose_calibration(pairs, None)
    if calibration and (warning := calibration_warning(model, calibration)):
        output.tell(f"[yellow]note[/]: {warning}")
    if calibration and not tells_nothing(calibration):
        expected = calibration.field_cuts(chosen.value)
        names = ("kept", "clean_precision", "clean_recall", "noise_recall")
        output.table(
            "What fixed thresholds would keep here",
            [(f"{cut:.3f} {name}", *(percent(getattr(e, n)) for n in names)) for cut, name, e in expected],
            ("similarity above", "keeps", "of these right", "right kept", "wrong dropped"),
        )
        cuts = [
            {"cut": cut, "name": name, **{n: v if math.isfinite(v) else None for n, v in e._asdict().items()}}
            for cut, name, e in expected
        ]
    if known:
        output.tell("random_inputs was remembered from an earlier run.")
    output.result(
        {
            "scorer": estimator.identity.to_dict(),
            "auto": chosen.to_dict(),
            "modes": [b.to_dict() for b in betas],
            "thresholds": cuts,
        }
    )
