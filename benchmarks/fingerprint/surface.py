"""The command line's surface: help of every command, and how wrong input ends."""

from pathlib import Path

from . import inputs
from .product import commands
from .recorder import Recorder

__all__ = ["record_surface"]


def record_surface(recorder: Recorder) -> None:
    """Help texts, and exit codes and messages of bad input."""
    recorder.command("surface/help/noisegate", "--help")
    recorder.command("surface/nothing")
    for name in commands():
        recorder.command(f"surface/help/{name}", name, "--help")
    Path("empty").mkdir()
    shards, run = f"{inputs.clean()}/*.tar", "no-run"
    wrong: dict[str, tuple[object, ...]] = {
        "command": ("annotat",),
        "option": ("annotate", shards, "--out", "x", "--beat", "auto"),
        "no-out": ("annotate", shards),
        "no-shards": ("annotate", "nowhere/*.tar", "--out", "x"),
        "beta": ("annotate", shards, "--out", "x", "--beta", "fixd:1"),
        "beta-range": ("annotate", shards, "--out", "x", "--beta", "fixed:7"),
        "beta-unused": ("annotate", shards, "--out", "x", "--task", "labels", "--beta", "fixed:0.2"),
        "task": ("annotate", shards, "--out", "x", "--task", "pair"),
        "model": ("annotate", shards, "--out", "x", "--model", "ViT-B-33"),
        "python-model": ("annotate", shards, "--out", "x", "--model", "python:nothing:here"),
        "classes": ("annotate", shards, "--out", "x", "--classes", "cifar10"),
        "device": ("annotate", shards, "--out", "x", "--device", "tpu"),
        "engine": ("annotate", shards, "--out", "x", "--engine", "spark"),
        "nodes": ("annotate", shards, "--out", "x", "--nodes", "2"),
        "show": ("show", run),
        "show-empty": ("show", "empty"),
        "report": ("report", run),
        "verify": ("verify", run),
        "rescore": ("rescore", run, "--beta", "fixed:0.2"),
        "compare": ("compare", run, "empty"),
        "evaluate": ("evaluate", run, "--what", "captions"),
        "export": ("export", run, "--as", "xlsx", "--out", "x"),
        "noise-rate": ("noise", shards, "--out", "x"),
        "noise-range": ("noise", shards, "--rate", 1.5, "--out", "x"),
        "noise-protocol": ("noise", shards, "--protocol", "symetric", "--rate", 0.1, "--out", "x"),
        "noise-option": ("noise", shards, "--rate", 0.1, "--inclusive", "--out", "x"),
        "scenes": ("scenes", "x", "--count", 0),
        "convert": ("convert", "flickr", "empty", "--out", "x"),
        "convert-files": ("convert", "cifar10", "empty", "--out", "x"),
        "arrays": ("score-embeddings", "--images", "nowhere.npy", "--out", "x"),
        "train-nothing": ("train", "--method", "osa"),
        "train-method": ("train", "--method", "oas", "--shards", shards, "--target", "embedded"),
        "train-setting": ("train", "--shards", shards, "--target", "embedded", "--set", "optimiser.lr=1"),
        "train-value": ("train", "--shards", shards, "--target", "embedded", "--set", "optimizer.lr=-1"),
        "evaluate-model": ("evaluate-model", "empty"),
        "bench": ("bench", "--preset", "scene"),
        "score": ("score", "nowhere.png", "a caption"),
        "plan-price": ("plan", shards, "--price", "A100=x"),
        "serve": ("serve", "--port", "99999"),
    }
    for name, words in wrong.items():
        recorder.command(f"surface/wrong/{name}", *words)
