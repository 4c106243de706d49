"""Whether a given label agrees with the sample's neighbours and with the class texts, and what it should be (TANGO)."""

from .refinement import Refinement, refine
from .semantic import anchor_consistency, inject_truth, text_anchor_logits
from .visual import NeighbourLists, propagate_labels, visual_consistency

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
