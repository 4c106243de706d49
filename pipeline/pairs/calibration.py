"""P(clean | score) as a map that a run records, and the expected result of a cut. `calibration_fit` learns the map."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts are imported at their first use
from numpy.typing import ArrayLike

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.array_types import Float32, Float64

SIMILARITY, QUALITY = "similarity", "pair_quality"  # columns that P(clean) may come from
LIKELY = 0.5  # P(clean) above which a pair is clean by --cut probability
FIELD_CUTS = {0.1: "", 0.15: "", 0.215: "OSA's β of ViT-B/32", 0.28: "LAION-5B", 0.3: "LAION-400M"}
"""common fixed thresholds on the cosine, and who uses them"""
CLEAN_BELOW = 0.01  # below this noise rate all pairs count as clean, above 1 - this all as noise


class Expected(NamedTuple):
    """Expected precision and recall of a cut, and the share it keeps; nan if nothing is kept or dropped."""

    kept: float
    clean_precision: float
    clean_recall: float
    noise_precision: float
    noise_recall: float


@dataclass(frozen=True)
class PairCalibration:
    """A monotone, piecewise linear map from a score to P(clean), with the estimated noise rate and its interval.

    `score` is the column that the map takes. A map of `pair_quality` also has the shares kept above some `cosines`, because β
    and other thresholds cut the cosine (`pipeline/pairs/judge.py`).
    """

    noise_rate: float
    noise_interval: tuple[float, float]  # 95 %: bootstrap, widened to include the estimates of all plausible models
    method: str
    ece: float  # expected calibration error on folds that the map was not fitted on
    crossing: float  # similarity at which given and mismatched pairs are equally dense; nan if there is none
    crossing_sd: float  # standard deviation of `crossing` over the bootstrap; nan if there is none
    pairs: int
    mismatched: int
    knots: tuple[float, ...]
    clean: tuple[float, ...]  # P(clean) at the knots
    kept: tuple[float, ...]  # share of the given pairs above each knot
    kept_clean: tuple[float, ...]  # share of the given pairs that are above each knot and clean
    loss: float = math.nan  # held-out log-loss (nats) of given against mismatched pairs; chooses between scores
    score: str = SIMILARITY
    cosines: tuple[float, ...] = ()  # empty if the knots are cosines
    cosine_kept: tuple[float, ...] = ()  # share of the given pairs above each of `cosines`
    cosine_clean: tuple[float, ...] = ()  # share of the given pairs that are above it and clean, by their own P(clean)
    apart_below: float = -1.0  # cosine below which likely right pairs lie apart (`group_apart`); -1 if none do
    apart_share: float = 0.0  # share of these among the likely right pairs

    def clean_probability(self, score: ArrayLike) -> Float32:
        """Compute P(clean | score), (N,) float32; nan stays nan."""
        return np.interp(np.asarray(score, dtype=np.float64), self.knots, self.clean).astype(np.float32)

    @property
    def by_cosine(self) -> tuple[Float64, Float64, Float64]:
        """Return cosines, the share of the given pairs above each, and the share that is above it and clean."""
        curves = (self.cosines, self.cosine_kept, self.cosine_clean) if self.cosines else self._curves
        return np.asarray(curves[0]), np.asarray(curves[1]), np.asarray(curves[2])

    @property
    def _curves(self) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        return self.knots, self.kept, self.kept_clean

    def clean_at(self, cosine: ArrayLike) -> Float32:
        """Return the mean P(clean) of the given pairs at these cosines (N,); P(clean | cosine) if the map takes the cosine."""
        if not self.cosines:
            return self.clean_probability(cosine)
        places, kept, clean = self.by_cosine
        share = -np.diff(kept)
        mean = scipy.optimize.isotonic_regression(-np.diff(clean) / np.maximum(share, 1e-12), weights=share + 1e-12).x
        middles = (places[1:] + places[:-1]) / 2
        return np.asarray(np.interp(np.asarray(cosine, np.float64), middles, np.clip(mean, 0, 1)), np.float32)

    def expected(self, cut: float) -> Expected:
        """Compute expected precision and recall if the pairs with a cosine above `cut` are kept."""
        return _expect(cut, *self.by_cosine)

    def expected_of(self, rule: str, beta: float) -> Expected:
        """Like `expected`, for the rule of `clean`: `osa` keeps cosines above β, `probability` keeps likely clean pairs."""
        if rule == "osa":
            return self.expected(beta)
        even = float(np.interp(LIKELY, self.clean, self.knots))
        return _expect(even, *(np.asarray(curve) for curve in self._curves))

    def field_cuts(self, beta: float | None = None) -> list[tuple[float, str, Expected]]:
        """List what common fixed thresholds and β are expected to keep and lose here: (cosine, source, Expected)."""
        names = FIELD_CUTS | ({} if beta is None else {beta: "β of this data"})
        return [(cut, names[cut], self.expected(cut)) for cut in sorted(names)]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON; a nan becomes None."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {
            name: None if isinstance(value, float) and not np.isfinite(value) else value
            for name, value in plain.items()
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> PairCalibration:
        """The inverse of `to_dict`; raises ConfigError for what that never wrote, since tables may be damaged."""
        missing = [field.name for field in fields(cls) if field.name not in plain and field.default is MISSING]
        if missing:
            raise ConfigError.of("calibration", missing, "are missing; give what PairCalibration.to_dict() wrote")
        values = {field.name: plain[field.name] for field in fields(cls) if field.name in plain}
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        values = {name: np.nan if value is None else value for name, value in values.items()}
        if wrong := _find_wrong(values):
            raise ConfigError.of("calibration", wrong, "is damaged; run the command that made it again")
        return cls(**values)


def _find_wrong(values: Mapping[str, Any]) -> str | None:
    """The name of a field that is no text, number or curve as it should be; None if all are."""
    sizes = {name: len(value) for name, value in values.items() if isinstance(value, tuple)}
    lengths = {"noise_interval": 2, **dict.fromkeys(("knots", "clean", "kept", "kept_clean"), sizes.get("knots", 0))}
    lengths |= dict.fromkeys(("cosines", "cosine_kept", "cosine_clean"), sizes.get("cosines", 0))
    for name, value in values.items():
        kind = str if name in ("method", "score") else tuple if name in lengths else (int, float)
        if not isinstance(value, kind) or (isinstance(value, tuple) and len(value) != lengths[name]):
            return name
        if isinstance(value, tuple) and not all(isinstance(number, int | float) for number in value):
            return name
    return None if values["knots"] else "knots"


def _expect(cut: float, places: Float64, kept: Float64, kept_clean: Float64) -> Expected:
    """Compute the expected figures of keeping everything above `cut`, from curves over `places`."""
    above = float(np.interp(cut, places, kept, left=1.0, right=0.0))
    above_clean = float(np.interp(cut, places, kept_clean, left=kept_clean[0], right=0.0))
    total_clean = float(kept_clean[0])
    below_noise = max(0.0, 1 - total_clean - (above - above_clean))
    return Expected(
        kept=above,
        clean_precision=_share(above_clean, above),
        clean_recall=_share(above_clean, total_clean),
        noise_precision=_share(below_noise, 1 - above),
        noise_recall=_share(below_noise, 1 - total_clean),
    )


def _share(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole > 1e-9 else float("nan")
