"""Columns that a method adds to weight tables: from frozen embeddings (`rescore --with`), or as learnt by a training.

They are optional: a table has those that were made for it, after the columns of the contract, and all others are as if null.
A name is the method's, then what it is. `_sd` is the spread over the permutations where the value is their mean.
"""

import pyarrow as pa

__all__ = ["METHOD_COLUMNS"]

_NUMBER = pa.float32()
_SPREAD = "its standard deviation over the permutations"

METHOD_COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "lnc_confidence": (_NUMBER, "w, the pair's posterior of the small-loss component (LNC Eq. 3)"),
    "lnc_confidence_sd": (_NUMBER, _SPREAD),
    "lnc_prediction": (_NUMBER, "P, how far the pair stands above its negatives, 0 to 1 (LNC Eq. 9)"),
    "lnc_prediction_sd": (_NUMBER, _SPREAD),
    "lnc_label": (_NUMBER, "ŷ, the rectified correspondence (LNC Eq. 8)"),
    "ncr_confidence": (_NUMBER, "as lnc_confidence, by NCR"),
    "ncr_prediction": (_NUMBER, "as lnc_prediction, from hinges as NCR's published code has it"),
    "ncr_label": (_NUMBER, "as lnc_label, by NCR"),
    "crcl_label": (_NUMBER, "y, the soft label: matching probability, its momentum in training (CRCL Eq. 10-11)"),
    "crcl_label_sd": (_NUMBER, _SPREAD),
    "gsl_probability": (_NUMBER, "p, the Beta mixture's clean posterior of L_SCT (GSL, reconstructed)"),
    "gsl_probability_sd": (_NUMBER, _SPREAD),
    "gsl_label": (_NUMBER, "y*, the label by two anchors; no noise score by itself (GSL, reconstructed)"),
    "gsl_label_sd": (_NUMBER, _SPREAD),
}
"""Type and meaning by name."""
