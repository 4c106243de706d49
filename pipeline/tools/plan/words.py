"""What a plan says in words: what would help, and what it takes for granted."""

from typing import TYPE_CHECKING

from .devices import LEAST_GFLOPS, PAPER, PAPER_GFLOPS
from .measure import Measured

if TYPE_CHECKING:
    from .predict import Machine

__all__ = ["advice", "assumptions"]


def advice(limit: str, busiest: str, needed: int, machine: "Machine") -> list[str]:
    """What would make it faster, by the stage that is the limit and the one that takes most of the processors."""
    if limit == "read":
        return ["the store is the limit: bring the shards nearer, or read from several hosts (--nodes N --node-rank R)"]
    if limit == "decode" and machine.workers < min(needed, machine.processors):
        return [f"--workers {min(needed, machine.processors)}: decoding is the limit, and processors are free"]
    if limit == "decode" or (limit == "processors" and busiest == "decode"):
        return [
            f"{needed:,} decode workers would keep up with the device; here are {machine.processors:,} processors",
            "--draft decodes large JPEGs at a part of their size",
            "more hosts: --engine ray, or --nodes N --node-rank R",
        ]
    if machine.device == "cpu":
        return ["the model is the limit: a GPU (--device cuda) does the same much faster"]
    return [
        "the model is the limit, as it should be: more devices share the shards, with --devices all, or --engine ray"
    ]


def assumptions(measured: Measured, shards: int, machine: "Machine", neighbours: int, own: float) -> list[str]:
    """`own` are the seconds per sample that a process reads, makes tokens and writes."""
    looked, whole = len(measured.looked), all(one.whole for one in measured.looked)
    found = []
    if not (looked == shards and whole):
        found.append(
            f"the other shards are like the {looked:,} looked into"
            + ("" if len(measured.sizes) >= shards else f"; sizes were asked of {len(measured.sizes):,}")
        )
    found.append("this machine stays as busy as it was just now; intervals are 95 % over batches, not over other days")
    found.append(
        "reading, decoding and encoding overlap; decode workers do not slow one another while processors are free"
    )
    found.append(
        "tables and embeddings were packed in memory: the disk's own time is not in it, nor is loading the model"
    )
    given = "given" if machine.price_given else "assumed; give yours with --price 1.20"
    found.append(f"this machine costs {machine.price:.2f} an hour ({given})")
    if measured.gflops and measured.gflops < LEAST_GFLOPS:
        found.append(
            f"this model takes {measured.gflops:.2g} GFLOP per sample, too little to fill a GPU: known devices are left out"
        )
        return found
    found.append(
        f"known devices: OSA's own figure, a billion pairs in 75 hours on an {PAPER.name}, times the makers' dense 16-bit "
        "matrix throughput over its 71 TFLOPS: an estimate, nothing was run there"
    )
    if measured.gflops:
        found.append(
            f"this model takes {measured.gflops:.1f} GFLOP per sample (counted by torch; attention's own products may be "
            f"missing), the paper's {PAPER_GFLOPS}"
        )
    else:
        found.append("torch cannot count this model's operations: known devices are for ViT-B-32, the paper's")
    found.append(
        "their prices per hour are assumptions too (--price A100=1.80), and they need the decode workers and the encoder "
        f"processes in the table: one process reads, tokenises and writes about {1 / max(own, 1e-9):,.0f} samples/s; "
        "--devices cuda:0,cuda:0 are two on one GPU"
    )
    if neighbours:
        found.append(
            f"labels: {neighbours} neighbours per row are stored; the neighbour search itself is not in the time, it grows "
            "faster than the data (docs/scale.md)"
        )
    return found
