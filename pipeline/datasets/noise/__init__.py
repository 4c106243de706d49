"""Known noise, put in on purpose: mismatched captions and wrong labels, with the mask of what really changed."""

from .captions import PairNoise, shuffle_captions, shuffle_images
from .class_maps import CIFAR10_MAP, CIFAR100_MAP, CIFAR100_SUPERCLASSES, CLASS_MAPS, ClassMap, load_class_map
from .labels import LabelNoise, asymmetric, instance_dependent, symmetric
from .pmd import pmd, pmd_factor, pmd_flip_probability
from .protocols import PROTOCOLS, Protocol, count_chosen, protocol_id

__all__ = [
    "CIFAR10_MAP",
    "CIFAR100_MAP",
    "CIFAR100_SUPERCLASSES",
    "CLASS_MAPS",
    "PROTOCOLS",
    "ClassMap",
    "LabelNoise",
    "PairNoise",
    "Protocol",
    "asymmetric",
    "count_chosen",
    "instance_dependent",
    "load_class_map",
    "pmd",
    "pmd_factor",
    "pmd_flip_probability",
    "protocol_id",
    "shuffle_captions",
    "shuffle_images",
    "symmetric",
]
