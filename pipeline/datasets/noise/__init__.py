"""Make known noise: mismatched captions and wrong labels, with the mask of what really changed.

`captions` and `labels` are pure functions on arrays; `shards` (captions) and `label_shards` rewrite shards with them.
`protocols` names each kind of noise; `label_inputs` loads the class maps and features that some of them need.
"""

from .captions import PairNoise, shuffle_captions, shuffle_images
from .label_inputs import CIFAR10_MAP, CIFAR100_MAP, CIFAR100_SUPERCLASSES, CLASS_MAPS, ClassMap, load_class_map
from .label_shards import noise_labels
from .labels import LabelNoise, asymmetric, instance_dependent, pmd, pmd_factor, pmd_flip_probability, symmetric
from .protocols import PROTOCOLS, Protocol, count_chosen, find_protocol, protocol_id
from .shards import TRUTH_FILE, noise_captions

__all__ = [
    "CIFAR10_MAP",
    "CIFAR100_MAP",
    "CIFAR100_SUPERCLASSES",
    "CLASS_MAPS",
    "PROTOCOLS",
    "TRUTH_FILE",
    "ClassMap",
    "LabelNoise",
    "PairNoise",
    "Protocol",
    "asymmetric",
    "count_chosen",
    "find_protocol",
    "instance_dependent",
    "load_class_map",
    "noise_captions",
    "noise_labels",
    "pmd",
    "pmd_factor",
    "pmd_flip_probability",
    "protocol_id",
    "shuffle_captions",
    "shuffle_images",
    "symmetric",
]
