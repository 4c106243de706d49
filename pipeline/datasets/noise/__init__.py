"""Add known noise: mismatched captions or wrong labels, with a mask of the samples that are really wrong.

`captions` and `labels` are pure functions on arrays; `shards` (captions) and `label_shards` rewrite shards with them.
`protocols` names each kind of noise; `label_inputs` loads the class maps and features that some of them need.
"""

from .label_shards import noise_labels
from .protocols import PROTOCOLS, find_protocol
from .shards import TRUTH_FILE, noise_captions

__all__ = ["PROTOCOLS", "TRUTH_FILE", "find_protocol", "noise_captions", "noise_labels"]
