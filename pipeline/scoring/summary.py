"""Summary of a run in numbers: what `annotate` returns and `--json` prints."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.pairs.calibration import Expected, PairCalibration
from noisegate.pipeline.pairs.calibration_fit import MIN_PAIRS
from noisegate.pipeline.runs.arrays import MODEL as ARRAYS
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.settings import ScoreSettings
from noisegate.pipeline.system.numbers import percent

from .run_scores import RunScores

ALL_NOISE = 0.99  # upper end of the noise interval above which no pair stands out (chosen; see the test)
WIDEST = 0.5  # width of the noise interval above which its figures mean nothing (chosen; see the test)
FEW_PAIRS = 200  # with fewer pairs, their number is the likeliest reason for an unknown noise rate (chosen)
CLEAN_DATA = 0.05  # upper end below which data counts as clean
MOST_LABELS = 0.5  # upper end above which `clean` is meaningless for labels if noise is not shown
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
UNKNOWN_BY_NEIGHBOURS = (
    "neighbourhoods hardly tell your pairs from shuffled ones, so clean and clean_probability mean little; "
    "give more pairs, or embeddings that know such data"
)
"""the warning if `tells_nothing` of pairs that are judged by their neighbourhoods alone"""


@dataclass(frozen=True)
class Summary:
    """Counts over all tables of a run; similarity quantiles come from a sample of at most 10,000 pairs.

    `errors` has the first reason for each status but `ok`. If another node will score, `waits_for` says what is left to do, and
    the counts cover this node's part only. `notes` are from the encoders. `repaired` counts labels that were changed, `judged`
    samples that are `clean` or not, `kept` those that are. `cut_shards` are the damaged shards whose end is missing.
    """

    out: str
    model: str
    samples: int
    statuses: Mapping[str, int]
    errors: Mapping[str, str]
    flags: Mapping[str, int]
    shards: int
    damaged_shards: Mapping[str, str]
    failed_shards: Mapping[str, str]
    beta: Beta | None
    calibration: PairCalibration | None
    labels: Mapping[str, Any] | None
    neighbourhood: Mapping[str, Any] | None
    kept: int
    judged: int
    scored: int
    zero_weight: int
    mean_weight: float | None
    similarity_quantiles: Mapping[str, float]
    encoded: int
    pairs_per_second: float | None
    seconds: float
    waits_for: str | None = None
    notes: Sequence[str] = ()
    repaired: int = 0
    cut: str = ScoreSettings.cut  # rule of `clean` for pairs
    cut_shards: Sequence[str] = ()

    def __repr__(self) -> str:
        from .summary_rows import summary_text  # which reads this class

        return summary_text(self)

    def _repr_html_(self) -> str:
        from .summary_rows import summary_html

        return summary_html(self)

    @property
    def warnings(self) -> list[str]:
        """List what a user should know before using the weights."""
        if self.samples and not self.statuses.get("ok"):
            hint = "; name the caption's json field with --text-field, or score class labels with --task labels"
            reason = next(iter(self.errors.values()), "no reason is on record")
            return [f"no sample could be scored: {reason}{hint if 'no_text' in self.errors else ''}"]
        warnings: list[str] = []
        if 2 * self.flags.get("duplicate", 0) > self.samples:
            warnings.append(
                f"{self.flags['duplicate']:,} of {self.samples:,} samples are flagged as near duplicates; if they are not, "
                "all embeddings point nearly the same way: subtract their mean, or do not drop by that flag"
            )
        if self.labels and labels_unknown(self.labels):
            warnings.append(unknown_labels(self.labels))
        near = self.neighbourhood if self.neighbourhood and self.neighbourhood["alone"] else None
        if near and not near["calibration"]:
            warnings.append(f"fewer than {MIN_PAIRS} pairs: too few to tell by neighbourhoods which are clean")
        elif near and tells_nothing(PairCalibration.from_dict(near["calibration"])):
            warnings.append(UNKNOWN_BY_NEIGHBOURS)
        if self.beta is None or not self.scored:
            return warnings
        beta = self.beta.value if self.cut == "osa" else None
        warning = calibration_warning(self.model, self.calibration, beta) if self.calibration else None
        if warning is None and self.expected:
            warning = poor_cut(self.model, self.expected)
        if warning:
            warnings.append(warning)
        if self.cut == "probability" and self.calibration is None:
            warnings.append(
                f"fewer than {MIN_PAIRS} pairs: too few for clean_probability, so --cut probability decides nothing and "
                "clean is empty; use --cut osa"
            )
        if self.zero_weight == self.scored:
            warnings.append(
                f"β {self.beta.value:.4f} lies above every pair, so all weights are 0; try another --beta or model"
            )
        if self.zero_weight == 0:
            told = self.calibration
            clean = told is not None and told.noise_interval[1] < CLEAN_DATA and not told.apart_share
            looks = "the captions look clean" if self.labels else "the data looks clean"
            warnings.append(
                f"β {self.beta.value:.4f} lies below every pair, so {'no caption' if self.labels else 'nothing'} is rejected; "
                + (looks if clean else "try another --beta")
            )
        return warnings

    @property
    def judges_pairs(self) -> bool:
        """Whether captions also decide which samples are clean."""
        return self.beta is not None or bool(self.neighbourhood and self.neighbourhood["alone"])

    @property
    def zero_share(self) -> float | None:
        """Share of the scored pairs whose weight is 0."""
        return self.zero_weight / self.scored if self.scored else None

    @property
    def expected(self) -> Expected | None:
        """Expected precision and recall of the cut of pairs; None without a calibration."""
        return self.calibration.expected_of(self.cut, self.beta.value) if self.calibration and self.beta else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        expected = self.expected
        plain = {**asdict(self), "zero_share": self.zero_share, "warnings": self.warnings}
        plain["calibration"] = None
        if self.calibration and expected and not tells_nothing(self.calibration):
            plain["calibration"] = {
                "score": self.calibration.score,
                "noise_rate": self.calibration.noise_rate,
                "noise_interval": list(self.calibration.noise_interval),
                "method": self.calibration.method,
                "ece": self.calibration.ece,
                "apart_below": self.calibration.apart_below if self.calibration.apart_share else None,
                "apart_share": self.calibration.apart_share,
                "expected": {k: v if np.isfinite(v) else None for k, v in expected._asdict().items()},
            }
        if self.labels:
            plain["labels"] |= {"noise_rate": label_rate(self.labels), "expected": label_promise(self.labels)}
        return plain


def label_promise(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the precision and recall that label scoring expects of its cut; None if it found no noise or cannot tell."""
    nothing_found = not facts.get("noise_rate") and not facts.get("repairs", True)
    return None if nothing_found or labels_unknown(facts) else facts.get("expected") or None


def label_rate(facts: Mapping[str, Any]) -> float | None:
    """Share of wrong labels that label scoring estimates; None where nothing is known of it."""
    return None if labels_unknown(facts) else facts["noise_rate"]


def labels_unknown(facts: Mapping[str, Any]) -> bool:
    """Return whether no noise is shown, although more than half of the labels may be wrong.

    >>> labels_unknown({"repairs": False, "noise_interval": [0.0, 0.7]})
    True
    """
    low, high = facts.get("noise_interval", (0.0, 0.0))
    return not facts.get("repairs", True) and low == 0 and high > MOST_LABELS


def unknown_labels(facts: Mapping[str, Any]) -> str:
    """Return the warning for `labels_unknown`."""
    return (
        f"between none and {percent(facts['noise_interval'][1])} of the labels are wrong: the embeddings hardly tell the "
        "classes apart, or there are too few labels or classes; do not drop samples by clean"
    )


def changed_labels(facts: Mapping[str, Any], count: int) -> str:
    """Format how many labels were changed, how many of the new ones are expected to be wrong, and why none was.

    Earlier releases did not record how many are expected to be wrong.

    >>> changed_labels({"changed_wrong": 2.2}, 1319), changed_labels({}, 12), changed_labels({"repairs": False}, 0)
    ('1,319, about 2 of the new ones wrong', '12', 'none: noise is not shown')
    """
    wrong = f", about {facts['changed_wrong']:,.0f} of the new ones wrong" if "changed_wrong" in facts else ""
    changed = f"{count:,}{wrong}" if count else "none"
    if facts.get("repair") == "never":
        return f"{changed}: --repair never"
    if facts.get("repairs", True):
        return changed
    return f"{changed}: {'--repair likely, though ' if count else ''}noise is not shown"


def tells_nothing(calibration: PairCalibration) -> bool:
    """Return whether the calibration is void: the noise rate is unknown, so no figure that depends on it is shown."""
    low, high = calibration.noise_interval
    return high > ALL_NOISE or high - low > WIDEST


def unknown_noise(calibration: PairCalibration) -> str:
    """Return the text that replaces the figures if `tells_nothing`."""
    return f"cannot be told {'from these few pairs' if calibration.pairs < FEW_PAIRS else 'by this model'}"


def unknown_data(model: str, calibration: PairCalibration) -> str:
    """Return the warning for `tells_nothing`."""
    if calibration.pairs < FEW_PAIRS:
        return (
            f"{calibration.pairs:,} pairs are too few to tell how many are wrong and what P(clean) means; "
            "score 1,000 or more"
        )
    if model == ARRAYS:
        return (
            "the cosines hardly tell your pairs from shuffled ones, so the weights mean little; "
            "if images and texts come from two encoders, use --separate-spaces"
        )
    return (
        "the model hardly tells your pairs from shuffled ones, so the weights mean little; "
        f"try a --model that knows such data{_only_scenes(model)}"
    )


def poor_cut(model: str, expected: Expected) -> str | None:
    """The warning if the cut is expected to lose more right pairs than it keeps, or to keep more wrong ones than right ones."""
    if not (expected.clean_recall < 0.5 or expected.clean_precision < 0.5):  # nan where nothing is kept
        return None
    loses = expected.clean_recall < 0.5
    problem = "lose more right pairs than it keeps" if loses else "keep more wrong pairs than right ones"
    other = "other embeddings" if model == ARRAYS else f"a --model that knows such data{_only_scenes(model)}"
    return (
        f"the cut is expected to {problem}. Right pairs that the model does not know count as wrong here: look at some "
        f"that are dropped, and try another --beta or {other}"
    )


def _only_scenes(model: str) -> str:
    return "; embedded understands drawn scenes only" if model == "embedded" else ""


def calibration_warning(model: str, calibration: PairCalibration, beta: float | None = None) -> str | None:
    """Return the warning about P(clean) and the estimated noise; None if there is none."""
    return unknown_data(model, calibration) if tells_nothing(calibration) else describe_group(calibration, beta)


def describe_group(calibration: PairCalibration, beta: float | None = None) -> str | None:
    """Return the warning about a separate group of likely right pairs; None if there is none, or the cut at β drops it."""
    if not calibration.apart_share or (beta is not None and beta >= round(calibration.apart_below, 3)):
        return None
    share, below = percent(calibration.apart_share), f"{calibration.apart_below:.3f}"
    return (
        f"{share} of the pairs that do not look mismatched have similarities below {below}, apart from the others. "
        "Captions that are nearly right look like this, and the estimated noise does not count them: look at "
        f"some, and if they are wrong, drop them with --beta fixed:{below}"
    )


def hours_for(pairs: float, per_second: float) -> float:
    """Compute the hours that `pairs` take at a rate.

    >>> round(hours_for(1e9, 566_435 / 153), 2)  # OSA's own figure for a billion pairs on one GPU
    75.03
    """
    return pairs / per_second / 3600


def summarise(
    run: RunFolder,
    stems: Sequence[str],
    scores: RunScores,
    *,
    seconds: float,
    failed_shards: Mapping[str, str] | None = None,
    encoded: int = 0,
    encode_seconds: float = 0.0,
    waits_for: str | None = None,
    notes: Sequence[str] = (),
) -> Summary:
    """Read the tables one shard at a time and sum them up."""
    statuses: Counter[str] = Counter()
    flags: Counter[str] = Counter()
    damaged: dict[str, str] = {}
    cut_off: list[str] = []
    errors: dict[str, str] = {}
    scored = zero = judged = kept = repaired = 0
    total = 0.0
    for stem in stems:
        table = run.read(stem, ["status", "error", "osa_weight", "clean", "label", "refined_label", "flags"])
        failed = table.select(["status", "error"]).filter(pc.is_valid(table["error"]))
        for row in failed.group_by("status", use_threads=False).aggregate([("error", "first")]).to_pylist():
            errors.setdefault(row["status"], row["error_first"])
        statuses.update({e["values"]: e["counts"] for e in pc.value_counts(table["status"].cast("string")).to_pylist()})
        words = pc.replace_substring_regex(
            pc.list_flatten(table["flags"]).cast("string"), "(?s)^duplicate_of:.*", "duplicate"
        )
        flags.update({e["values"]: e["counts"] for e in pc.value_counts(words).to_pylist()})
        weight = table["osa_weight"].drop_null().to_numpy()
        scored, zero, total = scored + len(weight), zero + int((weight == 0).sum()), total + float(weight.sum())
        judged += pc.count(table["clean"]).as_py()
        kept += pc.sum(table["clean"]).as_py() or 0
        repaired += pc.sum(pc.not_equal(table["label"], table["refined_label"])).as_py() or 0
        shard = read_metadata(run.table(stem))["shard"]
        if shard["damage"]:
            damaged[stem] = shard["damage"]
        if shard.get("cut"):
            cut_off.append(stem)
    given = scores.pairs.sample.given if scores.pairs else np.zeros(0)
    facts = read_metadata(run.table(stems[0])) if stems else {}
    quantiles: list[float] = np.quantile(given, QUANTILES).tolist() if len(given) else []
    return Summary(
        out=str(run.name),
        model=(facts.get("scorer") or {}).get("model", ""),
        samples=sum(statuses.values()),
        statuses=dict(sorted(statuses.items(), key=lambda item: (item[0] != "ok", -item[1], item[0]))),
        errors=errors,
        flags=dict(flags.most_common()),
        shards=len(stems),
        damaged_shards=damaged,
        cut_shards=cut_off,
        failed_shards=dict(failed_shards or {}),
        beta=scores.pairs.beta if scores.pairs else None,
        calibration=scores.pairs.calibration if scores.pairs else None,
        labels=facts.get("labels"),
        neighbourhood=facts.get("neighbourhood"),
        kept=kept,
        judged=judged,
        scored=scored,
        zero_weight=zero,
        mean_weight=total / scored if scored else None,
        similarity_quantiles={f"{q:g}": v for q, v in zip(QUANTILES, quantiles, strict=False)},
        encoded=encoded,
        pairs_per_second=encoded / encode_seconds if encoded and encode_seconds > 0 else None,
        seconds=seconds,
        waits_for=waits_for,
        notes=tuple(notes),
        repaired=repaired,
        cut=scores.pairs.cut if scores.pairs else ScoreSettings.cut,
    )
