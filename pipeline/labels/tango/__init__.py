"""TANGO: votes of a sample's neighbours (`visual`) and of the class texts (`semantic`) on its label, and the corrected
label (`refinement`).
"""

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
