"""Check the installation and the machine: what would stop or slow a run, with a remedy for each (`noisegate doctor`)."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distributions, requires, version
from pathlib import Path
from typing import Literal

from noisegate.pipeline.system.extras import EXTRAS
from noisegate.pipeline.system.machine import count_processors

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
    """The installed torch; `cuda` is the version it was built for, None for a CPU build."""

    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    mps: bool = False
    torchvision: str = "fits"
    """fits, declared (a CUDA build beside a CPU torch: transforms work), absent, or the error of its import."""
    error: str | None = None


@dataclass(frozen=True)
class Faiss:
    """The installed faiss, and the distributions that claim to have installed it."""

    distributions: tuple[str, ...] = ()
    gpu_build: bool = False
    gpus: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Defaults:
    """Settings that a run uses by default on this machine."""

    device: str
    dtype: str
    batch_size: int
    workers: int
    neighbours: str


@dataclass(frozen=True)
class Facts:
    """Facts about the installation and the machine; sizes in GB, None if the system does not say."""

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


def collect_facts() -> Facts:
    """Import the libraries of a run and query the system; nothing is changed or downloaded."""
    installed = {d.name: d.version for d in distributions() if d.name}
    torch, faiss = _torch(), _faiss(installed)
    caches = _caches()
    memory, free = _memory()
    return Facts(
        noisegate=_version("noisegate") or "not installed",
        python=f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        system=platform.platform(),
        packages={name: installed_version for name in SHOWN if (installed_version := _version(name))},
        unmet=_unmet(installed),
        torch=torch,
        faiss=faiss,
        nvidia_driver=Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None,
        cores=count_processors(),
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
    """List base requirements that are absent or too old; faiss-gpu may replace faiss-cpu."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    known = {canonicalize_name(name): version_ for name, version_ in installed.items()}
    unmet = []
    for text in (requires("noisegate") or ()) if _version("noisegate") else ():
        wanted = Requirement(text)
        name = canonicalize_name(wanted.name)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        if name == "faiss-cpu" and "faiss-gpu" in known:
            continue
        if name not in known or not wanted.specifier.contains(known[name], prereleases=True):
            unmet.append(f"{wanted.name}{wanted.specifier} ({known.get(name, 'absent')})")
    return tuple(unmet)


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
    """Return total and available memory in GB; without /proc only the total."""
    with suppress(OSError, ValueError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        sizes = {line[0]: int(line[1]) * 1024 / 1e9 for line in lines if len(line) > 1}
        return sizes["MemTotal:"], sizes.get("MemAvailable:")
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, None
    return None, None


def _open_files() -> int | None:
    """Return how many files a process may have open; Windows has no such limit."""
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
    """Return the free disk space at `path`, which need not exist."""
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    return shutil.disk_usage(there).free / 1e9


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300]


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
    """List what would stop or slow a run, errors first."""
    findings = [
        *(Finding("error", f"noisegate needs {unmet}", "pip install --upgrade noisegate") for unmet in facts.unmet),
        *_check_faiss(facts),
        *_check_torch(facts),
        *_check_machine(facts),
        *_check_hub(facts),
    ]
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(findings, key=lambda finding: order[finding.level])


def _check_faiss(facts: Facts) -> Iterator[Finding]:
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


def _check_torch(facts: Facts) -> Iterator[Finding]:
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


def _check_machine(facts: Facts) -> Iterator[Finding]:
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


def _check_hub(facts: Facts) -> Iterator[Finding]:
    offline = [name for name, value in facts.environment.items() if value.lower() in ("1", "true", "yes", "on")]
    if offline:
        yield Finding(
            "note",
            f"{' and '.join(offline)} set: models from the hub load only if they are in the cache already",
            f"unset {' '.join(offline)} to let them be downloaded",
        )
