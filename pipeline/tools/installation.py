"""What is installed here and what the machine has: facts for `noisegate doctor`, which judges them."""

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distributions, requires, version
from pathlib import Path

from noisegate.pipeline.system.extras import EXTRAS
from noisegate.pipeline.system.processors import processors

__all__ = ["Defaults", "Facts", "Faiss", "Gpu", "Torch", "look_around"]

SHOWN = (
    *("torch", "torchvision", "open_clip_torch", "webdataset", "pyarrow", "numpy", "pillow", "scipy", "scikit-learn"),
    *("safetensors", "fsspec", "transformers", "fastapi", "lightning-fabric", "timm", "ray"),
)
SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Gpu:
    """One GPU that torch sees."""

    name: str
    memory_gb: float


@dataclass(frozen=True)
class Torch:
    """torch as it imports here; `cuda` is the version it was built for, None for a CPU build."""

    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    mps: bool = False
    torchvision: str = "fits"
    """fits, declared (a CUDA build beside a CPU torch: transforms work), absent, or what its import says."""
    error: str | None = None


@dataclass(frozen=True)
class Faiss:
    """faiss as it imports here, and the distributions that claim to have brought it."""

    distributions: tuple[str, ...] = ()
    gpu_build: bool = False
    gpus: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Defaults:
    """What a run takes where nothing is said."""

    device: str
    dtype: str
    batch_size: int
    workers: int
    neighbours: str


@dataclass(frozen=True)
class Facts:
    """All that is looked at; sizes in GB, None where the system does not tell."""

    noisegate: str
    python: str
    system: str
    packages: Mapping[str, str]
    unmet: tuple[str, ...]
    """Requirements of noisegate that are not met, such as `pyarrow>=17 (16.1.0)`."""
    torch: Torch
    faiss: Faiss
    nvidia_driver: bool
    cores: int
    memory_gb: float | None
    free_memory_gb: float | None
    shm_gb: float | None
    open_files: int | None
    caches: Mapping[str, str]
    free_disk_gb: Mapping[str, float]
    absent_extras: Mapping[str, tuple[str, ...]]
    defaults: Defaults | None
    environment: Mapping[str, str] = field(default_factory=dict)


def look_around() -> Facts:
    """Import what a run imports, and ask the system; nothing is changed and nothing is downloaded."""
    installed = {d.name: d.version for d in distributions() if d.name}
    torch, faiss = _torch(), _faiss(installed)
    caches = _caches()
    memory, free = _memory()
    return Facts(
        noisegate=_version("noisegate") or "not installed",
        python=f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        system=platform.platform(),
        packages={name: found for name in SHOWN if (found := _version(name))},
        unmet=_unmet(installed),
        torch=torch,
        faiss=faiss,
        nvidia_driver=Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None,
        cores=processors(),
        memory_gb=memory,
        free_memory_gb=free,
        shm_gb=shutil.disk_usage(SHM).total / 1e9 if SHM.is_dir() else None,
        open_files=_open_files(),
        caches={name: str(path) for name, path in caches.items()},
        free_disk_gb={str(path): _free_disk(path) for path in (Path.cwd(), *caches.values())},
        absent_extras={name: tuple(absent) for name, extra in EXTRAS.items() if (absent := extra.absent())},
        defaults=None if torch.error or faiss.error else _defaults(faiss),
        environment={
            name: os.environ[name] for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if name in os.environ
        },
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _unmet(installed: Mapping[str, str]) -> tuple[str, ...]:
    """Base requirements that are absent or too old; faiss-gpu stands in for faiss-cpu."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    known = {canonicalize_name(name): found for name, found in installed.items()}
    found = []
    for text in (requires("noisegate") or ()) if _version("noisegate") else ():
        wanted = Requirement(text)
        name = canonicalize_name(wanted.name)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        if name == "faiss-cpu" and "faiss-gpu" in known:
            continue
        if name not in known or not wanted.specifier.contains(known[name], prereleases=True):
            found.append(f"{wanted.name}{wanted.specifier} ({known.get(name, 'absent')})")
    return tuple(found)


def _torch() -> Torch:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Torch(error=_first_line(error))
    gpus = []
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(i)
            gpus.append(Gpu(str(about.name), about.total_memory / 1e9))
    return Torch(torch.version.cuda, tuple(gpus), bool(torch.backends.mps.is_available()), _torchvision())


def _torchvision() -> str:
    from noisegate.pipeline.estimators import loading

    try:
        loading.allow_torchvision()
    except ModuleNotFoundError:
        return "absent"
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return _first_line(error)
    return "declared" if loading.torchvision_is_patched() else "fits"


def _faiss(installed: Mapping[str, str]) -> Faiss:
    brought = tuple(
        sorted(f"{n} {v}" for n, v in installed.items() if n.lower().replace("_", "-").startswith("faiss-"))
    )
    try:
        import faiss
    except (ImportError, OSError) as error:
        return Faiss(brought, error=_first_line(error))
    gpu_build = hasattr(faiss, "StandardGpuResources")
    return Faiss(brought, gpu_build, int(faiss.get_num_gpus()) if gpu_build else 0)


def _defaults(faiss: Faiss) -> Defaults:
    from noisegate.pipeline.estimators.device import Device
    from noisegate.pipeline.shards.workers import default_workers

    device = Device.choose()
    near = f"{faiss.gpus} GPUs" if faiss.gpus else "CPU"
    return Defaults(device.name, device.dtype_name, device.batch_size, default_workers(), near)


def _memory() -> tuple[float | None, float | None]:
    """Total and available memory; where /proc does not tell the second, the first alone."""
    with suppress(OSError, ValueError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        found = {line[0]: int(line[1]) * 1024 / 1e9 for line in lines if len(line) > 1}
        return found["MemTotal:"], found.get("MemAvailable:")
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, None
    return None, None


def _open_files() -> int | None:
    """How many files a process may hold open; Windows has no such limit."""
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _caches() -> dict[str, Path]:
    from platformdirs import user_cache_path

    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    home = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"))
    return {
        "β of models": user_cache_path("noisegate"),
        "weights from the hub": Path(hub or str(Path(home, "hub"))).expanduser(),
    }


def _free_disk(path: Path) -> float:
    """Free space where `path` is or would be made."""
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    return shutil.disk_usage(there).free / 1e9


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300]
