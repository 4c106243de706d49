"""This machine and known GPUs, for `noisegate plan`: the paper measured one GPU, the others are scaled from it."""

import sys
from dataclasses import dataclass

from noisegate.pipeline.system.machine import count_processors

PAPER_PAIRS, PAPER_SECONDS = 566_435, 153  # OSA, cost in pre-training: MS-COCO on one RTX 3090, CLIP, batches of 4096
CPU_PRICE = 0.05  # per processor and hour: an assumption
LEAST_GFLOPS = 1.0  # per pair; smaller models do not fill a GPU, so no GPU is predicted for them
PAPER_GFLOPS = 14.78  # of a pair through ViT-B-32: 8.82 for 224 x 224 pixels, 5.96 for 77 tokens


@dataclass(frozen=True)
class KnownDevice:
    """A device with its maker's peak of dense 16-bit matrix products (32-bit sums), in 10^12 operations per second.

    `price` per hour is an assumption: the order of magnitude of a rent.
    """

    name: str
    teraflops: float
    price: float


PAPER = KnownDevice("RTX 3090", 71, 0.30)
DEVICES = (
    KnownDevice("T4", 65, 0.35),
    PAPER,
    KnownDevice("L4", 121, 0.70),
    KnownDevice("V100", 125, 0.80),
    KnownDevice("RTX 4090", 165, 0.50),
    KnownDevice("A100", 312, 1.80),
    KnownDevice("L40S", 362, 1.20),
    KnownDevice("H100", 989, 2.80),
)


def paper_rate(device: KnownDevice, gflops: float | None = None) -> float:
    """Estimate pairs per second on a device that uses the same share of its peak as the paper's; gflops: of one pair.

    >>> round(paper_rate(PAPER)), round(1e9 / paper_rate(PAPER) / 3600)
    (3702, 75)
    >>> round(paper_rate(KnownDevice("twice", 142, 1.0), gflops=2 * PAPER_GFLOPS))
    3702
    """
    return (
        PAPER_PAIRS / PAPER_SECONDS * (device.teraflops / PAPER.teraflops) * (PAPER_GFLOPS / (gflops or PAPER_GFLOPS))
    )


@dataclass(frozen=True)
class Machine:
    """The machine of the job: `threads` are the processors that the encoder itself keeps busy."""

    device: str
    workers: int
    processors: int
    threads: int
    price: float
    price_given: bool = False


def this_machine(device: str | None, workers: int, price: float | None) -> Machine:
    """Describe what this process may use."""
    available = count_processors()
    torch = sys.modules.get("torch")
    name = device or "auto"
    if name == "auto":
        name = "cuda" if torch is not None and torch.cuda.is_available() else "cpu"
    on_cpu = name == "cpu"
    threads = min(available, torch.get_num_threads()) if on_cpu and torch is not None else 1
    if price is not None:
        return Machine(name, workers, available, threads, price, True)
    named = _known_device(torch.cuda.get_device_name(name)) if name.startswith("cuda") and torch is not None else None
    return Machine(name, workers, available, threads, named.price if named else CPU_PRICE * available)


def _known_device(name: str) -> KnownDevice | None:
    """Find the known device for a driver's name.

    >>> _known_device("NVIDIA A100-SXM4-80GB").name, _known_device("some other")
    ('A100', None)
    """
    words = name.replace("-", " ").upper().split()
    return next((device for device in DEVICES if all(word in words for word in device.name.upper().split())), None)
