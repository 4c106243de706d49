"""GSL's label correction (GALC) by two anchors in the frequency domain (FoA2): METHODS 5.2 and 5.4.

    z(x) = [|F(x)|; arg F(x)], centred; F is the discrete Fourier transform over the embedding's axis          Eq. 7
    a1, a2: the clean pairs whose images (texts) are nearest to a noisy pair's
    R_I = S_I(n, a1) / S_I(n, a2), R_T = S_T(n, a1) / S_T(n, a2), cosines of z                                 Eq. 8-9
    r = R_I / R_T; S_I2T = min(r, 1/r) by image anchors, S_T2I = min(r, 1/r) by text anchors                   Eq. 10
    y* = (S_I2T + S_T2I) / 2                                                                                   Eq. 11

Reconstructed: only the paper's supplement and reading notes are public. The notes print (r + 1/r) / 2, which is never below
1 and so no label; min(r, 1/r) is what the method's predecessor BiCro computes.
"""

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.rows import top_by_value, unit_rows
from noisegate.pipeline.system.array_types import Float32, Floats, Index, Mask

__all__ = ["RECONSTRUCTION", "anchor_labels", "centred", "polar_spectrum", "ratio_agreement"]

RECONSTRUCTION = (
    "GSL is a reconstruction from the paper's supplement and from reading notes; its main text was not at hand, and its "
    "figures are not those of the authors' code"
)
NEARLY_NOTHING = 1e-8
LEAST_COSINE = 1e-6


def polar_spectrum(rows: Floats) -> Floats:
    """(N, 2D) amplitudes, then phases, of the unnormalised Fourier transform of (N, D) rows.

    A phase is 0 where the amplitude is nothing, below 1e-8 of the row's largest. Rows of one number have no spectrum
    worth the name and come back as they are.

    >>> polar_spectrum(np.array([[1.0, 0.0]])).tolist()
    [[1.0, 1.0, 0.0, 0.0]]
    """
    if rows.shape[1] < 2:
        return rows
    spectrum = np.fft.fft(rows, axis=1)
    amplitude = np.abs(spectrum)
    nothing = amplitude < NEARLY_NOTHING * amplitude.max(axis=1, keepdims=True, initial=0)
    return np.concatenate([amplitude, np.where(nothing, 0.0, np.angle(spectrum))], axis=1)


def centred(rows: Floats, how: str) -> Floats:
    """Minus the mean row ("bank"), each row minus its own mean ("per_vector"), or as they are ("none")."""
    if how not in ("bank", "per_vector", "none"):
        raise ConfigError(f"centring={how!r} is unknown; use bank, per_vector or none")
    if how == "none":
        return rows
    result: Floats = rows - rows.mean(axis=0 if how == "bank" else 1, keepdims=True)
    return result


def ratio_agreement(ratio: Floats) -> Floats:
    """min(r, 1/r) of positive ratios: 1 where both modalities see a pair at the same place between its two anchors.

    >>> ratio_agreement(np.array([1.25, 2.0, 0.5, 1.0])).tolist()
    [0.8, 0.5, 0.5, 1.0]
    """
    result: Floats = np.minimum(ratio, 1 / ratio)
    return result


def anchor_labels(
    images: Floats,
    texts: Floats,
    clean: Mask,
    same: Mask | None = None,
    *,
    domain: str = "fourier",
    centring: str = "bank",
    negative: str = "floor",
) -> Float32:
    """y* (B,) in [0, 1] of the noisy pairs of a batch; NaN for clean ones, and where fewer than two anchors are left.

    images, texts: (B, d) of the pairs; widths may differ. clean: (B,) bool, the pairs that may be anchors. same: (B, B)
    bool, pairs that show the same picture or caption and are no anchors for one another; identical rows are none either.
    domain: "spatial" leaves the Fourier transform out. centring: over the batch, see `centred`. negative: cosines must be
    positive to be divided; "floor" takes max(s, 1e-6), "shift" (1 + s) / 2, which makes all labels large.
    """
    if domain not in ("fourier", "spatial"):
        raise ConfigError(f"domain={domain!r} is unknown; use fourier or spatial")
    if negative not in ("floor", "shift"):
        raise ConfigError(f"negative={negative!r} is unknown; use floor or shift")
    labels = np.full(len(images), np.nan, np.float32)
    noisy = np.flatnonzero(~clean)
    if not len(noisy):
        return labels
    sides = [unit_rows(images)[0].astype(np.float64), unit_rows(texts)[0].astype(np.float64)]
    nearness = [side[noisy] @ side.T for side in sides]
    no_anchor = ~np.broadcast_to(clean, (len(noisy), len(clean)))
    if same is not None:
        no_anchor = no_anchor | same[noisy]
    no_anchor = no_anchor | (nearness[0] > 1 - 1e-6) | (nearness[1] > 1 - 1e-6)
    enough = (~no_anchor).sum(axis=1) >= 2
    if not enough.any():
        return labels
    noisy, no_anchor = noisy[enough], no_anchor[enough]
    cosines = [_positive(_cosines(side, noisy, domain, centring), negative) for side in sides]
    agreements = []
    for by in nearness:  # anchors chosen by images, then by texts
        two = top_by_value(np.where(no_anchor, -np.inf, by[enough]).astype(np.float32), 2)
        first, second = (
            np.stack([np.take_along_axis(c, two[:, i : i + 1], axis=1)[:, 0] for c in cosines]) for i in (0, 1)
        )
        ratios = first / second  # R_I, R_T
        agreements.append(ratio_agreement(ratios[0] / ratios[1]))
    labels[noisy] = np.clip(np.mean(agreements, axis=0), 0, 1)
    return labels


def _cosines(rows: Floats, noisy: Index, domain: str, centring: str) -> Floats:
    """(n, B) of the noisy rows with all, in the domain asked for."""
    z = unit_rows(centred(polar_spectrum(rows) if domain == "fourier" else rows, centring))[0]
    result: Floats = z[noisy].astype(np.float64) @ z.T.astype(np.float64)
    return result


def _positive(cosines: Floats, how: str) -> Floats:
    result: Floats = (
        np.maximum(cosines, LEAST_COSINE) if how == "floor" else np.maximum((1 + cosines) / 2, LEAST_COSINE)
    )
    return result
