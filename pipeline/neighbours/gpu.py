"""faiss on GPUs: which ones, and copies of an index on them."""

from collections.abc import Sequence
from typing import Any

from noisegate.pipeline.errors import ConfigError

GPU_LIMIT = 2048  # longest list, and most probes, that faiss handles on a GPU
SPARE = 9  # entries of a list beyond k: the row itself, and those that show whether the list is cut inside a tie


def gpu_numbers(device: str) -> list[int]:
    """Return the GPUs to search on; none for the CPU."""
    import faiss

    kind, _, number = device.partition(":")
    if kind not in {"cpu", "cuda", "auto"} or (number and not (kind == "cuda" and number.isdigit())):
        raise ConfigError.of("device", device, "is unknown; use cpu, auto, cuda or cuda:0")
    if kind == "cpu":
        return []
    present = int(faiss.get_num_gpus()) if hasattr(faiss, "get_num_gpus") else 0
    wanted = [int(number)] if number else list(range(present))
    if kind == "cuda" and (not wanted or max(wanted) >= present):
        raise ConfigError(
            f"device {device!r}, but faiss sees {present} GPUs; install faiss-gpu or use auto", "device", device
        )
    return wanted


def check_gpu_lists(gpus: Sequence[int], k: int) -> None:
    """Raise ConfigError where lists of k others are too long for the GPUs."""
    if gpus and k + SPARE > GPU_LIMIT:
        raise ConfigError.of("k", k, f"is too long a list for faiss on a GPU; use {GPU_LIMIT - SPARE}, or no GPU")


def copy_to_gpus(faiss: Any, index: Any, gpus: Sequence[int]) -> Any:
    """Copy the index to a GPU, or spread its rows over several; searched in full precision."""
    if len(gpus) == 1:
        resources, options = faiss.StandardGpuResources(), faiss.GpuClonerOptions()
        options.useFloat16 = False
        copy = faiss.index_cpu_to_gpu(resources, gpus[0], index, options)
        copy.resources = resources  # faiss keeps a bare pointer to it
        return copy
    options = faiss.GpuMultipleClonerOptions()
    options.shard = True
    options.useFloat16 = False
    return faiss.index_cpu_to_gpus_list(index, co=options, gpus=list(gpus))
