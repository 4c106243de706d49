"""β of a model alone, remembered per scorer identity in the user's cache folder."""

import json
from collections.abc import Callable
from pathlib import Path

from platformdirs import user_cache_path

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators.base import Identity
from noisegate.pipeline.system.output_files import write_atomically

from .beta import NOISE_INPUTS, Beta

__all__ = ["cache_file", "cached_beta"]


def cache_file(identity: Identity, seed: int) -> Path:
    """Where the value for this scorer and seed is, or would be."""
    return user_cache_path("noisegate") / "beta" / f"{identity.digest}-{NOISE_INPUTS}-{seed}.json"


def cached_beta(identity: Identity, seed: int, compute: Callable[[], Beta]) -> Beta:
    """The remembered β, or a fresh one, which is then remembered; a damaged entry is computed and written again."""
    path = cache_file(identity, seed)
    try:
        return Beta.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError, ConfigError):
        pass  # nothing remembered, or nothing that can be read
    beta = compute()
    try:
        write_atomically(path, json.dumps(beta.to_dict()).encode())
    except OSError:
        return beta  # a read-only home costs a few seconds next time, nothing else
    return beta
