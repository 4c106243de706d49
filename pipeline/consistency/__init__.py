"""Whether a given label agrees with the sample's neighbours and with the class texts, and what it should be (TANGO)."""

from pipeline.consistency.anchors import anchor_consistency, inject_truth, text_anchor_logits
from pipeline.consistency.refinement import Refinement, refine
from pipeline.consistency.visual import NeighbourLists, propagate_labels, visual_consistency

__all__ = [
    "NeighbourLists",
    "Refinement",
    "anchor_consistency",
    "inject_truth",
    "propagate_labels",
    "refine",
    "text_anchor_logits",
    "visual_consistency",
]
