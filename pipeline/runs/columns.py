"""The columns of a weight table: those of the contract, and those that a method adds."""

import pyarrow as pa

WORD = pa.dictionary(pa.int32(), pa.string())

COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "key": (pa.string(), "webdataset key"),
    "index": (pa.int32(), "position of the sample in its shard"),
    "status": (
        WORD,
        "ok, or why there is no score: no_image, bad_image, no_text, bad_text, no_label, bad_label, too_large, broken, invalid",
    ),
    "error": (pa.string(), "what exactly was wrong, null for ok"),
    "image_sha256": (pa.binary(32), "of the image's raw bytes"),
    "text_sha256": (pa.binary(32), "of the caption's bytes"),
    "similarity": (pa.float32(), "cosine of image and caption"),
    "osa_weight": (pa.float32(), "x² (1 - x) with x = similarity - β, 0 where x <= 0 (OSA Eq. 5)"),
    "clean_probability": (pa.float32(), "calibrated chance that the pair, or the label, is right"),
    "label": (pa.int32(), "given class, null for caption data"),
    "knn_consistency": (pa.float32(), "p_vis at the given class: the neighbours' balanced vote (TANGO Eq. 9-10)"),
    "anchor_consistency": (pa.float32(), "p_sem at the given class: share of the nearest text anchors"),
    "consistency": (pa.float32(), "q at the given class over the largest q"),
    "probe_consistency": (pa.float32(), "out-of-fold linear probe's probability of the given class"),
    "label_quality": (pa.float32(), "fused posterior of the given class"),
    "neighbourhood": (pa.float32(), "agreement of a pair with its neighbours' partners"),
    "clean": (pa.bool_(), "keep it: osa_weight > 0 for pairs, the noise-rate-aware cut for labels"),
    "clean_tango": (pa.bool_(), "argmax q is the given class, the paper's rule"),
    "refined_label": (pa.int32(), "what the label should be"),
    "refined_confidence": (pa.float32(), "probability of refined_label"),
    "flags": (pa.list_(WORD), "notes such as duplicate_key, no_neighbours, indegree0"),
}
"""Type and meaning by name; every table has all of them, null where nothing was computed."""

# Columns from frozen embeddings (`rescore --with`), or learnt in training. A table has those that were made for it, after
# the columns of the contract. A name is the method's, then what it is; `_sd` is the spread over the permutations where the
# value is their mean.
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

READ_COLUMNS = (
    "key", "index", "status", "error", "image_sha256", "text_sha256", "similarity", "label", "flags"
)  # fmt: skip
SCORE_COLUMNS = {name: kind for name, (kind, _) in COLUMNS.items() if name not in READ_COLUMNS}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
ALL_COLUMNS = COLUMNS | METHOD_COLUMNS
"""Of the contract and of the methods."""
