"""Judges an installation: what would stop a run, what would slow it down, and what to do about each."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .installation import Facts

__all__ = ["Finding", "examine"]

LEAST_DISK_GB = 2.0
LEAST_MEMORY_GB = 2.0
LEAST_SHM_GB = 0.5  # Docker's own default is 64 MB; two dozen batches of pictures in flight need more
LEAST_FILES = 1024  # macOS starts with 256, which a few dozen worker processes use up
TWO_FAISS = "pip uninstall -y faiss-cpu faiss-gpu && pip install faiss-gpu"


@dataclass(frozen=True)
class Finding:
    """An `error` stops runs, a `warning` slows or surprises, a `note` is good to know."""

    level: Literal["error", "warning", "note"]
    text: str
    remedy: str = ""


def examine(facts: Facts) -> list[Finding]:
    """Everything worth saying, errors first."""
    found = [*_packages(facts), *_faiss(facts), *_torch(facts), *_machine(facts), *_hub(facts)]
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(found, key=lambda finding: order[finding.level])


def _packages(facts: Facts) -> Iterator[Finding]:
    for unmet in facts.unmet:
        yield Finding("error", f"noisegate needs {unmet}", "pip install --upgrade noisegate")


def _faiss(facts: Facts) -> Iterator[Finding]:
    faiss = facts.faiss
    kinds = {name.split()[0].lower().replace("_", "-") for name in faiss.distributions}
    if faiss.error:
        yield Finding("error", f"faiss does not import: {faiss.error}", "pip install --force-reinstall faiss-cpu")
    if len(kinds) > 1:
        yield Finding(
            "warning",
            f"{' and '.join(sorted(faiss.distributions))} are both installed and write the same folder faiss; "
            f"what imports now is the {'GPU' if faiss.gpu_build else 'CPU'} build",
            TWO_FAISS,
        )
    elif facts.torch.gpus and not faiss.gpu_build and not faiss.error:
        yield Finding("note", "torch has a GPU, but neighbours are searched on the CPU: this is faiss-cpu", TWO_FAISS)


def _torch(facts: Facts) -> Iterator[Finding]:
    torch = facts.torch
    if torch.error:
        yield Finding("error", f"torch does not import: {torch.error}", "pip install --force-reinstall torch")
        return
    if torch.torchvision not in ("fits", "declared"):
        text = "is not installed" if torch.torchvision == "absent" else f"does not import: {torch.torchvision}"
        yield Finding("error", f"torchvision {text}", "install torch and torchvision of one release from one index")
    if torch.torchvision == "declared":
        yield Finding(
            "note",
            "torchvision is a CUDA build beside a CPU torch: its transforms work, its compiled operators do not, "
            "and noisegate uses only the first",
        )
    if facts.nvidia_driver and torch.cuda is None:
        yield Finding(
            "warning",
            "this machine has an NVIDIA driver, but torch is a CPU build, so everything runs on the CPU",
            "pip install --force-reinstall torch torchvision, without an index for CPUs",
        )
    elif facts.nvidia_driver and not torch.gpus:
        yield Finding(
            "warning",
            f"this machine has an NVIDIA driver, but torch, built for CUDA {torch.cuda}, sees no GPU",
            "compare nvidia-smi's CUDA version with torch's, and look at CUDA_VISIBLE_DEVICES",
        )


def _machine(facts: Facts) -> Iterator[Finding]:
    for place, free in facts.free_disk_gb.items():
        if free < LEAST_DISK_GB:
            yield Finding("warning", f"{place} has {free:.1f} GB free", "make room, or set HF_HOME and --out elsewhere")
    if facts.free_memory_gb is not None and facts.free_memory_gb < LEAST_MEMORY_GB:
        yield Finding("warning", f"{facts.free_memory_gb:.1f} GB of memory are free", "use fewer --workers")
    if facts.shm_gb is not None and facts.shm_gb < LEAST_SHM_GB:
        yield Finding(
            "warning",
            f"/dev/shm has {facts.shm_gb * 1000:.0f} MB, through which worker processes of noisegate train hand over batches",
            "docker run --shm-size=2g, or an emptyDir with medium: Memory at /dev/shm",
        )
    if facts.open_files is not None and facts.open_files < LEAST_FILES:
        yield Finding("warning", f"a process may open {facts.open_files} files here", f"ulimit -n {4 * LEAST_FILES}")


def _hub(facts: Facts) -> Iterator[Finding]:
    offline = [name for name, value in facts.environment.items() if value.lower() in ("1", "true", "yes", "on")]
    if offline:
        yield Finding(
            "note",
            f"{' and '.join(offline)} set: models from the hub load only if they are in the cache already",
            f"unset {' '.join(offline)} to let them be downloaded",
        )
