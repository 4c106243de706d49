"""A few steps of every training method on the processor: logged losses, final weights, and what is measured."""

import json
from pathlib import Path
from typing import Any

from . import inputs
from .recorder import Recorder

__all__ = ["record_training"]

CLIP: dict[str, Any] = {
    "name": "clip",
    "architecture": {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 16, "layers": 1, "width": 16, "head_width": 8, "patch_size": 8},
        "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    },
    "vocabulary": {"kind": "captions"},
}
FEATURES = {"features": 6, "width": 8, "word_width": 4, "vocabulary": {"min_count": 1}}
TARGETS: dict[str, dict[str, Any]] = {
    "dual": {"name": "dual", "regions": 5, **FEATURES},
    "dual-transformer": {
        "name": "dual",
        "regions": 5,
        "image_mlp": True,
        "text": "transformer",
        "drop_parts": 0.2,
        **FEATURES,
    },
    "sgraf": {"name": "sgraf", "regions": 5, "similarity_width": 4, "steps": 2, **FEATURES},
    "video": {"name": "video", "frames": 5, "sentence_width": 5, **FEATURES},
}
PAIRS: dict[str, dict[str, Any]] = {
    "baseline": {"name": "baseline"},
    "baseline-triplet": {"name": "baseline", "loss": "triplet"},
    "select": {"name": "select", "rule": "clean_probability > 0.5"},
    "osa": {"name": "osa"},
    "ncr": {"name": "ncr", "warmup": 1},
    "ncr-paper": {"name": "ncr", "warmup": 1, "procedure": "paper", "loss": "triplet"},
    "lnc": {"name": "lnc", "warmup": 1},
    "crcl": {"name": "crcl", "pieces": [1, 1], "freeze": 0},
    "gsl": {"name": "gsl", "warmup": 1},
}
LABELS: dict[str, dict[str, Any]] = {
    "baseline-classes": {"name": "baseline"},
    "select-classes": {"name": "select"},
    "osa-classes": {"name": "osa"},
    "tango": {"name": "tango", "k": 5},
    "tango-own": {"name": "tango", "anchors": "target", "table_epochs": 0, "k": 5},
    "ssr": {"name": "ssr", "k": 5, "relabel": 0.02},
    "dividemix": {"name": "dividemix", "warmup": 1},
}
WRITES = ("ncr", "lnc", "crcl", "gsl", "tango", "ssr", "dividemix")  # tables of what they learnt


def record_training(recorder: Recorder) -> None:
    """Two epochs of every method, on pairs or on labels, and of every target."""
    pairs = {"table": str(inputs.pairs_run()), "eval_shards": [f"{inputs.held_out()}/*.tar"], "batch_size": 48}
    labels = {**pairs, "table": str(inputs.labels_run())}
    for name, method in PAIRS.items():
        train(recorder, name, {"data": pairs, "target": CLIP, "method": method})
    named = {**CLIP, "classes": str(inputs.classes()), "prompts": ["a {}"]}
    for name, method in LABELS.items():
        train(recorder, name, {"data": labels, "target": named, "method": method, "task": {"name": "classification"}})
    task = {"name": "image_retrieval"}
    train(recorder, "images", {"data": labels, "target": CLIP, "method": {"name": "osa"}, "task": task})
    folder = inputs.features()
    data = {
        "shards": [f"{folder}/train.tar"],
        "eval_shards": [f"{folder}/held.tar"],
        "batch_size": 16,
        "image_part": "npy",
    }
    for name, target in TARGETS.items():
        train(recorder, name, {"data": data, "target": target, "method": {"name": "baseline"}})
    embedded = {"name": "clip", "model": "embedded", "train": "heads"}
    train(recorder, "embedded", {"data": pairs, "target": embedded, "method": {"name": "osa"}}, max_steps=2)
    recorder.command("training/evaluate-model", "evaluate-model", "runs-osa/001-osa", "--shards", f"{inputs.noisy()}/*.tar",
                     "--which", "last", "--json")  # fmt: skip
    recorder.command("training/over", "train", "--resume", "runs-osa/001-osa", "--quiet")
    train(recorder, "halved", {"data": pairs, "target": CLIP, "method": {"name": "lnc", "warmup": 1}}, max_steps=3)
    more = ("--set", "loop.max_steps=8", "--json", "--quiet")
    recorder.command("training/resumed", "train", "--resume", "runs-halved/001-lnc", *more)
    recorder.folder("training/resumed", Path("runs-halved/001-lnc"))


def train(recorder: Recorder, name: str, settings: dict[str, Any], **loop: Any) -> None:
    """Run `train`, and record its log, weights, result and the table it writes."""
    settings = {
        **settings,
        "optimizer": {"lr": 1e-3},
        "loop": {"epochs": 2, "device": "cpu", **loop},
        "logging": {"every": 1, "tensorboard": False},
        "out": f"runs-{name}",
    }
    file = Path(f"{name}.yaml")
    file.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    table = ("--write-table", f"learnt-{name}") if settings["method"]["name"] in WRITES else ()
    recorder.command(f"training/{name}", "train", "--config", file, "--quiet", "--json", *table)
    for folder in sorted(Path(f"runs-{name}").glob("*")):
        recorder.folder(f"training/{name}", folder)
    if table and Path(table[1]).exists():
        recorder.run(f"training/{name}/table", Path(table[1]))
