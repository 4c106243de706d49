"""GSL on a frozen model: losses, anchor labels, and the columns made of them. A RECONSTRUCTION.

    z(x) = [|F(x)|; arg F(x)], centred; F: the Fourier transform over the embedding's axis     Eq. 7      `polar_spectrum`
    a1, a2: the clean pairs whose images (texts) are nearest to a noisy pair n
    R_I = S_I(n, a1) / S_I(n, a2), R_T = S_T(n, a1) / S_T(n, a2), cosines of z                 Eq. 8-9    `anchor_labels`
    r = R_I / R_T; S_I2T = min(r, 1/r) by image anchors, S_T2I = the same by text anchors      Eq. 10     `ratio_agreement`
    y* = (S_I2T + S_T2I) / 2                                                                   Eq. 11     `anchor_labels`
    L_intra,i = mean_j (S(I_i, I_j) - S(T_i, T_j))²                                            Eq. 13     `intra_loss`
    L_inter,i = ± mean_j (S(I_i, T_j) - S(I_j, T_i))²                                          Eq. 15     `inter_loss`
    L_SCT = L_w + ζ L_intra + η L_inter, L_w the triplet loss with the hardest negatives       Eq. 16-17  `gsl_columns`

Only the paper's supplement and reading notes are public. The notes print (r + 1/r) / 2 for Eq. 10-11, which is never below 1
and so no label; min(r, 1/r) is what the method's predecessor BiCro computes. The training is in trainers/methods/gsl.py.
Anchor labels are numpy: no gradient passes through them, and a phase of ±π would depend on the library's FFT.
"""

import numpy as np
import torch
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.rows import Embeddings, top_by_value, unit_rows
from noisegate.pipeline.system.array_types import Float32, Floats, Index, Mask

from .losses import one_thread, triplet
from .mixtures import bmm_split
from .pair_batches import EmbeddedPairs, PairBatch, mean_and_spread

RECONSTRUCTION = (
    "GSL is a reconstruction from the paper's supplement and from reading notes; its main text was not at hand, and its "
    "figures are not those of the authors' code"
)
THRESHOLD, ZETA, ETA = 0.5, 1.0, 0.1
"""of the clean posterior; weights of L_intra and L_inter"""
NO_AMPLITUDE = 1e-8
"""of a row's largest amplitude, below which a phase is rounding"""
LEAST_COSINE = 1e-6
"""for cosines that are divided"""
IDENTICAL = 1 - 1e-6
"""cosine of rows that are the same picture or text, up to rounding"""


@one_thread()
def gsl_columns(
    images: Embeddings,
    texts: Embeddings,
    *,
    batch: int = 128,
    permutations: int = 5,
    seed: int = 0,
) -> dict[str, Float32]:
    """`gsl_probability` and `gsl_label` (N,) with their `_sd`: mean and spread over seeded permutations into batches.

    images, texts: (N, d), pair by pair. NaN where either row has no direction, and where there is no second pair.
    probability: posterior of the clean component of a Beta mixture over all L_SCT of a permutation. label: 1 for pairs
    whose posterior is above THRESHOLD, else y* of `anchor_labels`; NaN where no permutation had two anchors. The label is no
    noise score: two right pairs may be at quite different places between their anchors.
    """
    pairs = EmbeddedPairs(images, texts)
    losses = np.full((permutations, len(pairs.valid)), np.nan)
    for number, pair_batch in pairs.batches(batch, permutations, seed):
        losses[number, pair_batch.rows] = _sct_loss(pair_batch).numpy()
    probability = np.stack([bmm_split(each).clean_probability for each in losses])
    labels = np.where(probability > THRESHOLD, 1.0, np.nan)
    for number, pair_batch in pairs.batches(batch, permutations, seed):
        clean = probability[number, pair_batch.rows] > THRESHOLD
        stars = anchor_labels(pair_batch.images, pair_batch.texts, clean, pair_batch.same)
        labels[number, pair_batch.rows] = np.where(clean, 1.0, stars)
    return {**mean_and_spread("gsl_probability", probability, pairs), **mean_and_spread("gsl_label", labels, pairs)}


def _sct_loss(batch: PairBatch) -> Tensor:
    similarity, same = torch.from_numpy(batch.similarity), torch.from_numpy(batch.same)
    images, texts = (torch.from_numpy(side).double() for side in (batch.images, batch.texts))
    return (
        triplet(similarity, hardest=True, same=same)
        + ZETA * intra_loss(images @ images.T, texts @ texts.T)
        + ETA * inter_loss(similarity)
    )


def intra_loss(images: Tensor, texts: Tensor) -> Tensor:
    """GSL Eq. 13: L_intra (B,) = mean_j (S(I_i, I_j) - S(T_i, T_j))² of similarities (B, B) within each modality."""
    return (images - texts).square().mean(dim=1)


def inter_loss(similarity: Tensor, sign: int = -1) -> Tensor:
    """GSL Eq. 15: L_inter (B,) = ± mean_j (S(I_i, T_j) - S(I_j, T_i))² of similarities (B, B)."""
    return sign * (similarity - similarity.T).square().mean(dim=1)


def polar_spectrum(rows: Floats) -> Floats:
    """GSL Eq. 7: (N, 2D) amplitudes, then phases, of the unnormalised Fourier transform of (N, D) rows.

    A phase is 0 where the amplitude is below 1e-8 of the row's largest. The first coefficient, and for an even D the middle
    one, are real: their phase is 0 or π, and a rounding error in the imaginary part is ignored. Rows of one number are returned
    unchanged.

    >>> polar_spectrum(np.array([[1.0, 0.0]])).tolist()
    [[1.0, 1.0, 0.0, 0.0]]
    """
    if rows.shape[1] < 2:
        return rows
    spectrum = np.fft.fft(rows, axis=1)
    real = [0, rows.shape[1] // 2] if rows.shape[1] % 2 == 0 else [0]
    spectrum.imag[:, real] = 0  # +0: the phase of a negative number would be π or -π by chance
    amplitude = np.abs(spectrum)
    nothing = amplitude < NO_AMPLITUDE * amplitude.max(axis=1, keepdims=True, initial=0)
    return np.concatenate([amplitude, np.where(nothing, 0.0, np.angle(spectrum))], axis=1)


def ratio_agreement(ratio: Floats) -> Floats:
    """GSL Eq. 10: min(r, 1/r) of positive ratios; 1 if both modalities place a pair alike between its anchors.

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
    """GSL Eq. 8-11: y* (B,) in [0, 1] of the noisy pairs of a batch; NaN for clean pairs and pairs without two anchors.

    images, texts: (B, d) of the pairs; widths may differ. clean: (B,) bool, the pairs that may be anchors. same: (B, B)
    bool, pairs with the same picture or caption, which are no anchors of each other; neither are identical rows.
    domain: "spatial" leaves the Fourier transform out. centring: minus the batch's mean row ("bank"), each row minus its own
    mean ("per_vector"), or "none". negative: cosines must be positive to be divided; "floor" takes max(s, 1e-6), "shift"
    (1 + s) / 2, which makes all labels large.
    """
    _check_choice("domain", domain, ("fourier", "spatial"))
    _check_choice("centring", centring, ("bank", "per_vector", "none"))
    _check_choice("negative", negative, ("floor", "shift"))
    labels = np.full(len(images), np.nan, np.float32)
    noisy = np.flatnonzero(~clean)
    if not len(noisy):
        return labels
    sides = [unit_rows(images)[0].astype(np.float64), unit_rows(texts)[0].astype(np.float64)]
    nearness = [side[noisy] @ side.T for side in sides]
    no_anchor = ~np.broadcast_to(clean, (len(noisy), len(clean)))
    if same is not None:
        no_anchor = no_anchor | same[noisy]
    no_anchor = no_anchor | (nearness[0] > IDENTICAL) | (nearness[1] > IDENTICAL)
    enough = (~no_anchor).sum(axis=1) >= 2
    if not enough.any():
        return labels
    noisy, no_anchor = noisy[enough], no_anchor[enough]
    cosines = [_cosines(side, noisy, domain, centring) for side in sides]
    cosines = [np.maximum(c if negative == "floor" else (1 + c) / 2, LEAST_COSINE) for c in cosines]
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
    """Compute cosines (n, B) of the noisy rows with all rows, in the given domain."""
    z = polar_spectrum(rows) if domain == "fourier" else rows
    if centring != "none":
        z = z - z.mean(axis=0 if centring == "bank" else 1, keepdims=True)
    z = unit_rows(z)[0]
    result: Floats = z[noisy].astype(np.float64) @ z.T.astype(np.float64)
    return result


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError.of(name, value, f"is unknown; use one of {', '.join(choices)}")
