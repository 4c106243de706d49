"""Make what `noisegate show` prints: a run's summary, histograms of its scores, and its worst samples with captions."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError, MismatchError, ShardError, TableError
from noisegate.pipeline.labels.anchors import Anchors, anchors_file
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.scoring import RunScores, read_scores
from noisegate.pipeline.scoring.summary import Summary, summarise
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.decode import BadSample, decode_text
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.random_access import read_samples

BINS = 20
LABEL_CUT = (0.5, "cut")  # cut of label_quality, and its name
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True)
class Histogram:
    """Counts of a score in [edges[i], edges[i + 1]); `mark` is the cut, which is also a bin edge."""

    score: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    mark: float | None = None
    mark_name: str = ""


@dataclass(frozen=True)
class WorstSample:
    """A sample with one of the lowest scores; for labels with the given class and the class that it looks like."""

    shard: str
    key: str
    index: int
    score: float
    caption: str | None = None
    given: str | None = None
    predicted: str | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class RunOverview:
    """A run's summary, histograms and worst samples by score; `notes` say what is missing."""

    summary: Summary
    finished: bool
    histograms: tuple[Histogram, ...]
    worst: Mapping[str, tuple[WorstSample, ...]]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            **self.summary.to_dict(),
            "finished": self.finished,
            "histograms": [asdict(histogram) for histogram in self.histograms],
            "worst": {score: [asdict(sample) for sample in samples] for score, samples in self.worst.items()},
            "notes": list(self.notes),
        }


def read_overview(folder: str | Path, top: int = 10) -> RunOverview:
    """Read a run's tables, finished or not. Scores are not recomputed; one table is in memory at a time.

    Raises TableError where there is no run or a table is damaged.
    """
    if top < 0:
        raise ConfigError.of("top", top, "is not a number of samples; use 0 or more, such as 10")
    run = RunFolder.to_read(folder)
    stems = sorted(run.stems())
    recorded = run.read_run() or {}
    finished, notes = recorded.get("finished") is not False, []
    if not finished:
        notes.append(
            f"the run is not finished: {len(stems)} of {len(recorded['shards'])} shards have a table, and scores come last; "
            "run the same annotate command again"
        )
    facts = read_metadata(run.table(stems[0])) if stems else {}
    try:
        scores = read_scores(run, stems, recorded.get("scoring", {}).get("seed", 0))
    except MismatchError:
        scores = RunScores()
        notes.append("the tables are not all scored with the same β; noisegate verify tells which")
    summary = summarise(run, stems, scores, failed_shards=recorded.get("unreadable"), seconds=0.0)
    histograms, worst = [], {}
    for score, (mark, name) in _choose_scores(facts, summary).items():
        histogram = _histogram(run, stems, score, mark, name)
        if histogram is not None:
            histograms.append(histogram)
            worst[score] = tuple(_find_worst(run, stems, score, top))
    if any(sample.caption is None and sample.given is None for samples in worst.values() for sample in samples):
        notes.append("captions are shown where the shards are on this machine and as they were")
    return RunOverview(summary, finished, tuple(histograms), worst, tuple(notes))


def _choose_scores(facts: Mapping[str, Any], summary: Summary) -> dict[str, tuple[float | None, str]]:
    """Choose the scores to show, each with its cut and the cut's name: cosines, labels, or neighbourhoods if these decide."""
    near = facts.get("neighbourhood")
    if summary.labels and not summary.beta:
        return {"label_quality": LABEL_CUT}
    scores: dict[str, tuple[float | None, str]] = {"similarity": (summary.beta.value if summary.beta else None, "β")}
    if near and near["alone"]:
        scores = {"neighbourhood": (near["cut"], "cut")}
    return scores | ({"label_quality": LABEL_CUT} if summary.labels else {})


def _histogram(run: RunFolder, stems: Sequence[str], score: str, mark: float | None, name: str) -> Histogram | None:
    """Count one column in two passes: its range, then the bins. None if no sample has the score."""
    low, high = np.inf, -np.inf
    for stem in stems:
        values = _read_scores(run, stem, score)
        low, high = min(low, float(values.min(initial=np.inf))), max(high, float(values.max(initial=-np.inf)))
    if low > high:
        return None
    width, anchor = bin_width(high - low), mark if mark is not None else 0.0
    first, last = bin_range((low - anchor) / width, (high - anchor) / width)
    counts = np.zeros(last - first + 1, np.int64)
    for stem in stems:
        places = np.floor((_read_scores(run, stem, score) - anchor) / width).astype(np.int64)
        counts += np.bincount(np.minimum(places, last) - first, minlength=len(counts))
    edges = tuple(float(anchor + width * i) for i in range(first, last + 2))
    return Histogram(score, edges, tuple(counts.tolist()), mark, name)


def bin_range(low: float, high: float) -> tuple[int, int]:
    """Return the first and last bin of values from `low` to `high`, in bin widths; the last bin includes its upper edge.

    >>> bin_range(-10.0, 10.0), bin_range(0.5, 2.5), bin_range(3.0, 3.0)
    ((-10, 9), (0, 2), (3, 3))
    """
    first = int(np.floor(low))
    return first, max(first, int(np.ceil(high)) - 1)


def bin_width(spread: float) -> float:
    """Choose a round bin width (1, 2 or 5 times a power of ten) so that at most twenty bins cover the spread.

    >>> bin_width(0.55), bin_width(0.0)
    (0.05, 0.001)
    """
    least = max(spread / BINS, 0.0006)
    power = 10.0 ** np.floor(np.log10(least))
    return float(f"{next(step * power for step in (1, 2, 5, 10) if step * power >= least):.6g}")


def draw_histogram(histogram: Histogram, width: int = 80) -> list[str]:
    """Draw lines of at most `width` columns: lower edge of each bin, bar, count; the cut has a separate line.

    >>> print("\\n".join(draw_histogram(Histogram("similarity", (0.1, 0.2, 0.3), (10, 5), 0.2, "β"), 40)))
      0.100 █████████████████████████████ 10
      0.200 ┄┄ β 0.2000 ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
      0.200 ██████████████▌                5
    """
    figures = [f"{count:,}" for count in histogram.counts]
    longest, most = max(map(len, figures)), max(histogram.counts)
    room = max(1, width - 9 - longest)
    lines = [
        f"{low:7.3f} {_bar(count / most, room):<{room}} {figure:>{longest}}"
        for low, count, figure in zip(histogram.edges, histogram.counts, figures, strict=False)
    ]
    if histogram.mark is not None:
        cut = f"┄┄ {histogram.mark_name} {histogram.mark:.4f} "
        below = sum(low < histogram.mark - 1e-9 for low in histogram.edges[:-1])
        lines.insert(below, f"{histogram.mark:7.3f} {cut:┄<{room}}")
    return lines


def _bar(share: float, room: int) -> str:
    """Draw a bar of whole and eighth blocks; a share above 0 is always visible."""
    eighths = max(round(share * room * 8), 1 if share > 0 else 0)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _find_worst(run: RunFolder, stems: Sequence[str], score: str, top: int) -> list[WorstSample]:
    """Find the samples with the lowest scores; ties go to the earlier sample."""
    lowest: list[tuple[float, str, int]] = []
    for stem in stems:
        values = run.read(stem, [score])[score].to_numpy(zero_copy_only=False)
        known = np.flatnonzero(~np.isnan(values.astype(np.float64)))
        rows = known[np.argsort(values[known], kind="stable")[:top]]
        entries = [*lowest, *((float(values[row]), stem, int(row)) for row in rows)]
        lowest = sorted(entries, key=lambda entry: entry[0])[:top]
    tables = {
        stem: run.read(stem, ["key", "label", "predicted_label", "predicted_confidence"])
        for stem in dict.fromkeys(s for _, s, _ in lowest)
    }
    keys = {(stem, row): tables[stem]["key"][row].as_py() for _, stem, row in lowest}
    captions = read_captions(run, [(*place, key) for place, key in keys.items()])
    names = read_class_names(run) if score == "label_quality" else ()
    samples = []
    for value, stem, row in lowest:
        given = predicted = confidence = None
        if score == "label_quality":
            given, predicted = (
                _class_name(names, tables[stem][name][row].as_py()) for name in ("label", "predicted_label")
            )
            confidence = tables[stem]["predicted_confidence"][row].as_py()
        text = captions.get((stem, row))
        caption = None if text is None else one_line(text)
        samples.append(WorstSample(stem, keys[stem, row], row, value, caption, given, predicted, confidence))
    return samples


def _read_scores(run: RunFolder, stem: str, score: str) -> NDArray[np.float64]:
    column = run.read(stem, ["status", score])
    values: NDArray[np.float64] = (
        column.filter(pc.equal(column["status"], "ok"))[score].drop_null().to_numpy().astype(np.float64)
    )
    return values


def read_class_names(run: RunFolder) -> tuple[str, ...]:
    """Read the class names from the run's record or its anchors; empty if neither has them."""
    try:
        recorded = (run.read_run() or {}).get("class_names")
        if recorded:
            return tuple(map(str, recorded))
        return Anchors.load(anchors_file(run)).names if anchors_file(run).exists() else ()
    except TableError:
        return ()


def _class_name(names: Sequence[str], number: int | None) -> str:
    if number is None:
        return "–"
    return one_line(names[number], 40) if 0 <= number < len(names) else str(number)


Place = tuple[str, int]  # a table's stem and a row


def read_captions(run: RunFolder, wanted: Iterable[tuple[str, int, str]]) -> dict[Place, str]:
    """Read captions by (stem, row) of the wanted rows (stem, row, key); captions that cannot be read are left out.

    Only shards on this machine are read: ten captions are not worth ten downloads. A shard is read only as far as needed.
    """
    rows: dict[str, dict[int, str]] = {}
    for stem, row, key in wanted:
        rows.setdefault(stem, {})[row] = key
    urls = {entry["table"]: str(entry["url"]) for entry in (run.read_run() or {"shards": []})["shards"]}
    captions: dict[Place, str] = {}
    for stem, keys in rows.items():
        shard, reading = Shard(urls[stem]), read_metadata(run.table(stem))["reading"]
        if "limits" not in reading or shard.is_remote:  # no shards, or not on this machine
            continue
        for row, text in _captions(shard, keys, reading).items():
            captions[stem, row] = text
    return captions


def _captions(shard: Shard, keys: Mapping[int, str], reading: Mapping[str, Any]) -> dict[int, str]:
    options, captions = DecodeOptions.from_dict(reading), {}
    with suppress(ShardError):
        for raw in read_samples(shard, keys):
            if keys[raw.index] == raw.key:  # else the shard has changed since it was scored
                with suppress(BadSample):
                    captions[raw.index] = decode_text(raw.parts, options.text_field, options.limits)
    return captions


def one_line(text: str, limit: int = 500) -> str:
    """Remove line breaks, control and formatting characters (which could repaint a terminal), and cut at `limit` characters.

    >>> one_line("a\\x1b[31m red\\n\\tball\\u202e")
    'a [31m red ball'
    """
    kinds = ((c, unicodedata.category(c)) for c in text[: 4 * limit])
    plain = "".join("" if kind == "Cf" else " " if kind[0] in "CZ" else c for c, kind in kinds)
    short = " ".join(plain.split())
    return short if len(short) <= limit else f"{short[: limit - 1]}…"
