"""Score pictures and captions from Python in one call (`noisegate.score`), and look at the result in a notebook."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators import Estimator, ModelSpec, as_estimator
from noisegate.pipeline.estimators.base import own_temperature
from noisegate.pipeline.pairs.beta import estimate_beta, measure_beta
from noisegate.pipeline.pairs.calibration import PairCalibration
from noisegate.pipeline.pairs.calibration_fit import MIN_PAIRS
from noisegate.pipeline.pairs.pair_fit import fit_embeddings
from noisegate.pipeline.pairs.scorer import Encoded, Scorer, encode_pairs, load_scorer, pair_columns
from noisegate.pipeline.runs.frame import to_frame
from noisegate.pipeline.runs.table import COLUMNS
from noisegate.pipeline.scoring.summary import calibration_warning, tells_nothing, unknown_noise
from noisegate.pipeline.settings import ScoreSettings, check_beta_mode
from noisegate.pipeline.shards.decode import BadSample
from noisegate.pipeline.shards.given_pairs import Picture, open_picture
from noisegate.pipeline.system.array_types import Float32, Floats, Mask
from noisegate.pipeline.system.progress import counted

from .notebook import SHOWN, draw_cards, paragraph, wrap
from .report.collect import COLUMNS as CARD_COLUMNS
from .report.collect import TableRow
from .report.page import card
from .report.pictures import CAPTION, Album, Shown, data_uri, printable, thumbnail

if TYPE_CHECKING:
    import pandas

ONLY_SCENES = "embedded understands drawn scenes only; name another model for photos"
_NAMES = ("status", "error", "similarity", "pair_quality", "osa_weight", "clean_probability", "clean")


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """The scores of some pairs, as columns of the weight table with the caption in front; cards with pictures in a notebook.

    `calibration` comes from the run, or is learned from the pairs themselves; None if there were too few pairs. `notes` are
    remarks for the user.
    """

    table: pa.Table
    beta: float
    calibration: PairCalibration | None
    notes: tuple[str, ...] = ()
    pictures: Sequence[Any] = field(default=(), repr=False)  # the first few, for a notebook

    @property
    def calibrated(self) -> bool:
        """Whether the column `clean_probability` exists."""
        return self.calibration is not None

    @property
    def noise_rate(self) -> float | None:
        """Estimated share of wrong pairs in the data that the calibration was learned from."""
        return self.calibration.noise_rate if self.calibration else None

    @property
    def noise_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of `noise_rate`."""
        return self.calibration.noise_interval if self.calibration else None

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, column: str) -> list[Any]:
        """Return the values of a column, None for a pair that could not be scored."""
        if column not in self.table.column_names:
            raise ConfigError.of("column", column, f"is unknown; use {', '.join(self.table.column_names)}")
        values: list[Any] = self.table[column].to_pylist()
        return values

    def __repr__(self) -> str:
        ok = pc.sum(pc.equal(self.table["status"], "ok")).as_py() or 0
        kept = pc.sum(self.table["clean"]).as_py() or 0
        if self.calibration is None:
            chance = f"not calibrated: that takes {MIN_PAIRS} pairs or more, or run=FOLDER"
        elif tells_nothing(self.calibration):
            chance = f"estimated noise {unknown_noise(self.calibration)}"
        else:
            low, high = self.calibration.noise_interval
            pairs = counted(self.calibration.pairs, "pair")
            chance = f"estimated noise {self.calibration.noise_rate:.0%} ({low:.0%} to {high:.0%}) of {pairs}"
            if self.calibration.apart_share:
                chance += f", not counting {self.calibration.apart_share:.0%} that lie apart"
        counts = f"{counted(len(self), 'pair')}: {kept:,} kept, {ok - kept:,} dropped, {len(self) - ok:,} failed"
        return f"<{counts}; β {self.beta:.4f}; {chance}{'; see .notes' if self.notes else ''}>"

    def to_pandas(self) -> "pandas.DataFrame":
        """As a pandas DataFrame."""
        return to_frame(self.table)

    def _repr_html_(self) -> str:
        rows = [
            TableRow(f"pair {i}", {**dict.fromkeys(CARD_COLUMNS), "index": i, "key": _failure(row), **row})
            for i, row in enumerate(self.table.slice(0, SHOWN).to_pylist())
        ]
        album = Album({row.place: _show(row, self.pictures[row.place[1]]) for row in rows})
        more = len(self) - len(rows)
        return wrap(
            paragraph(repr(self).strip("<>")),
            *(paragraph(note, "notice") for note in self.notes),
            draw_cards(card(row, album, ()) for row in rows),
            paragraph(f"… and {more:,} more, in .to_pandas()", "quiet") if more else "",
        )


def score(
    pairs: Iterable[tuple[Picture, str]],
    *,
    run: str | Path | None = None,
    model: str | Estimator | None = None,
    pretrained: str | None = None,
    device: str = "auto",
    beta: str = "auto",
    trust: bool = False,
    scorer: Scorer | None = None,
) -> ScoredPairs:
    """Score (picture, caption) pairs; a picture is a path, bytes of a file, a Pillow image or a uint8 array (H, W, 3).

    `run` is a folder of `annotate`, whose model, β and calibration are used (a model that is code,
    a folder or on the hub only if `model` names it, or with `trust`). Else `model` scores (default `embedded`, which
    understands drawn scenes only), and the pairs are judged among themselves, with the same result as `annotate` on them: β,
    `pair_quality` and, from 20 pairs on (better 1,000), `clean_probability`. A given `scorer` is used instead of loading one.
    `pairs` may be a generator: pictures are decoded batch by batch and not kept. A bad pair has a status and no scores.
    """
    _check_pairs(pairs)
    if scorer is None and run is not None:
        if model is not None and not isinstance(model, str):
            raise ConfigError.of("model", type(model).__name__, "is the run's own if run is given; leave it out")
        scorer = load_scorer(run, model=model, pretrained=pretrained, device=device, beta=beta, trust=trust)
    if scorer is not None:
        estimator = scorer.estimator
    else:
        check_beta_mode(beta)
        is_name = model is None or isinstance(model, str)
        estimator = as_estimator(ModelSpec(str(model or "embedded"), pretrained, device) if is_name else model)
    given = _Given(pairs)
    statuses: list[str] = []
    errors: list[str | None] = []
    cosines, qualities = [np.zeros(0, np.float32)], [np.zeros(0, np.float32)]
    kept = _KeptEmbeddings()
    for samples, encoded in encode_pairs(estimator, given):
        statuses += [one.status for one in samples]
        errors += [one.error for one in samples]
        cosines.append(encoded.similarity)
        if scorer is not None:
            qualities.append(scorer.quality(encoded))
        else:
            kept.add(encoded, np.array([one.status == "ok" for one in samples]))
    if scorer is None:
        scorer, quality = kept.fit(estimator, beta)
    else:
        quality = np.concatenate(qualities)
    ok = np.array([status == "ok" for status in statuses], bool)
    similarity = pa.array(np.concatenate(cosines), mask=~ok)
    columns = {"status": statuses, "error": errors, "similarity": similarity}
    table = pa.table({name: pa.array(columns[name], _plain(name)) for name in columns})
    scores = pair_columns(table, scorer.beta, scorer.calibration, quality, scorer.cut)
    scores["pair_quality"] = quality
    for name in ("osa_weight", "clean_probability", "pair_quality"):
        scores[name] = pa.array(scores[name].astype(np.float32), from_pandas=True)  # NaN is null
    everything = {"caption": pa.array(given.captions, pa.string()), **{name: table[name] for name in columns}, **scores}
    return ScoredPairs(
        pa.table({name: everything[name] for name in ("caption", *_NAMES)}),
        scorer.beta.value,
        scorer.calibration,
        scorer.notes,
        given.pictures,
    )


def _check_pairs(pairs: Any) -> None:
    """Raise ConfigError if `pairs` is a single pair, or something that contains no pairs."""
    if isinstance(pairs, tuple) and len(pairs) == 2 and isinstance(pairs[1], str):
        raise ConfigError.of(
            "pairs", f"({type(pairs[0]).__name__}, str)", "is one pair; give a list: [(picture, caption)]"
        )
    if isinstance(pairs, str | bytes | Path | dict) or not isinstance(pairs, Iterable):
        raise ConfigError.of("pairs", type(pairs).__name__, "has no pairs; give a list: [(picture, caption), …]")


class _Given:
    """Iterate over the given pairs once, and remember the captions, and the first pictures for a notebook."""

    def __init__(self, pairs: Iterable[Any]) -> None:
        self._pairs = pairs
        self.captions: list[str | None] = []
        self.pictures: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        for pair in self._pairs:
            picture, caption = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (None, None)
            self.captions.append(printable_text(caption) if isinstance(caption, str) else None)
            if len(self.pictures) < SHOWN:
                in_file = isinstance(picture, bytes | str | Path)
                self.pictures.append(picture if in_file else _small(picture))
            yield pair


class _KeptEmbeddings:
    """Embeddings of all pairs in float16, as a run keeps them: 2 kB for a pair of 512 numbers. Failed pairs have none."""

    def __init__(self) -> None:
        self._batches: list[tuple[Mask, Float32, Floats, Floats]] = []

    def add(self, encoded: Encoded, ok: Mask) -> None:
        images, texts = encoded.images[ok].astype(np.float16), encoded.texts[ok].astype(np.float16)
        self._batches.append((ok, encoded.similarity[ok], images, texts))

    def fit(self, estimator: Estimator, mode: str) -> tuple[Scorer, Float32]:
        """Learn a scorer (β, pool, calibration) from all pairs; return it and their `pair_quality`, NaN for failed pairs."""
        scored = [batch for batch in self._batches if batch[0].any()]  # batches of failed pairs only may have width 0
        if not scored:
            beta = estimate_beta(mode=mode, random_inputs=lambda: measure_beta(estimator))
            return Scorer(estimator, beta), np.full(sum(len(ok) for ok, *_ in self._batches), np.nan, np.float32)
        cosines, images, texts = (np.concatenate([batch[i] for batch in scored]) for i in (1, 2, 3))
        fit = fit_embeddings(
            cosines,
            images,
            texts,
            ScoreSettings(beta=mode),
            lambda: measure_beta(estimator),
            own_temperature(estimator),
        )
        ok = np.concatenate([mask for mask, *_ in self._batches])
        quality = np.full(len(ok), np.nan, np.float32)
        if fit.pool is not None:
            quality[ok] = fit.pool.quality(images, texts, cosines)
        told = fit.calibration
        if told:
            warning = calibration_warning(estimator.identity.model, told)
        else:
            warning = ONLY_SCENES if estimator.identity.model == "embedded" else None
        return Scorer(estimator, fit.beta, told, (warning,) if warning else (), fit.pool), quality


def printable_text(caption: str) -> str:
    """Make a caption storable in Arrow: lone surrogates, which are no valid text, become escapes."""
    return caption.encode("utf-8", "backslashreplace").decode()


def _failure(row: dict[str, Any]) -> str:
    return "" if row["status"] == "ok" else row["status"]


def _plain(column: str) -> pa.DataType:
    kind = COLUMNS[column][0]
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _small(picture: Any) -> Image.Image | None:
    """Shrink the picture to the size that a notebook shows; None if it is not a picture."""
    try:
        return thumbnail(open_picture(picture))
    except BadSample:
        return None


def _show(row: TableRow, picture: Any) -> Shown:
    caption = printable(row.values["caption"], CAPTION) if row.values["caption"] is not None else None
    small = picture if isinstance(picture, Image.Image) else _small(picture)
    if small is None:
        return Shown(caption=caption, problem=row.values["error"])
    return Shown(data_uri(small), small.width, small.height, caption)
