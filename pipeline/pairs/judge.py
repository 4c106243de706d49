"""Choose the score that P(clean) comes from: the cosine, or `pair_quality` if it separates right from wrong pairs better."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from noisegate.pipeline.system.array_types import Floats

from .beta import PairSample
from .calibration import QUALITY, PairCalibration
from .group_apart import find_group_apart

CURVE = 129  # cosines at which the shares kept are recorded


def choose_calibration(cosine: PairSample, quality: PairSample | None) -> PairCalibration | None:
    """Return the calibration of the better score of the same pairs, chosen without the truth; None for too few pairs.

    The better score has the smaller held-out log-loss of given against mismatched pairs. The noise in the given pairs is the
    same for both scores, so a gain of one score comes from right pairs. Of four rules tried on real and drawn pairs this one
    was right most often (`benchmarks/pairs.py`, on other draws than it reports).
    """
    if cosine.models is None:
        return None
    better = cosine
    if quality is not None and quality.models is not None and quality.models.loss < cosine.models.loss:
        better = quality
    calibration = better.calibration  # only of the better score: the bootstrap takes longer than the models
    assert calibration is not None, "models have a calibration"
    if better is quality:
        calibration = add_cosines(calibration, better.given, cosine.given)
    return add_group(calibration, better.given, cosine.given)


def add_group(calibration: PairCalibration, scores: Floats, cosines: Floats) -> PairCalibration:
    """Add the group of likely right pairs whose cosines are separate from the others', if there is one."""
    group = find_group_apart(cosines, calibration.clean_probability(scores))
    return calibration if group is None else replace(calibration, apart_below=group.below, apart_share=group.share)


def add_cosines(calibration: PairCalibration, quality: Floats, cosines: Floats) -> PairCalibration:
    """Add to a calibration of `pair_quality` what cuts of the cosine keep; both scores (N,) are of the same pairs."""
    known = np.isfinite(quality) & np.isfinite(cosines)
    order = np.argsort(cosines[known], kind="stable")
    values, chance = cosines[known][order].astype(np.float64), calibration.clean_probability(quality[known])[order]
    places = np.unique(np.quantile(values, np.linspace(0, 1, CURVE)).round(6))
    places[0] = values[0] - 1e-6  # below the lowest cosine: all pairs are kept
    below = np.searchsorted(values, places, side="right")
    clean = np.concatenate([[0.0], np.cumsum(chance, dtype=np.float64)]) / len(values)
    return replace(
        calibration,
        score=QUALITY,
        cosines=tuple(places.round(6).tolist()),
        cosine_kept=tuple((1 - below / len(values)).round(6).tolist()),
        cosine_clean=tuple((clean[-1] - clean[below]).round(6).tolist()),
    )
