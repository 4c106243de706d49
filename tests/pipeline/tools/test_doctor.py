"""noisegate doctor: each common mistake is found by its facts alone, and the command says what is here."""

import json
import sys
import tomllib
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from noisegate.pipeline.system.extras import EXTRAS, Extra, require_extra
from noisegate.pipeline.tools.doctor import Defaults, Facts, Faiss, Gpu, Torch, examine
from tests.commands import called
from tests.errors import refused

WELL = Facts(
    noisegate="0.1.0",
    python="CPython 3.11.7 (python)",
    system="Linux",
    packages={"torch": "2.13.0"},
    unmet=(),
    torch=Torch(cuda="13.0"),
    faiss=Faiss(("faiss-cpu 1.15.1",)),
    nvidia_driver=False,
    cores=8,
    memory_gb=64.0,
    free_memory_gb=48.0,
    shm_gb=32.0,
    open_files=65536,
    caches={"β of models": "cache"},
    free_disk_gb={"here": 400.0},
    absent_extras={},
    defaults=Defaults("cpu", "float32", 64, 8, "CPU"),
)
A100 = Gpu("NVIDIA A100", 80.0)


def test_nothing_to_say_where_all_is_well() -> None:
    assert examine(WELL) == []
    gpu = replace(WELL, nvidia_driver=True, torch=Torch("13.0", (A100,)), faiss=Faiss(("faiss-gpu 1.15.1",), True, 1))
    assert examine(gpu) == []
    unknown = replace(WELL, memory_gb=None, free_memory_gb=None, shm_gb=None, open_files=None)
    assert examine(unknown) == [], "a system that does not tell is no mistake"


@pytest.mark.parametrize(
    ("change", "level", "words", "remedy"),
    [
        ({"unmet": ("pyarrow>=17 (absent)",)}, "error", "needs pyarrow>=17 (absent)", "--upgrade noisegate"),
        ({"faiss": Faiss((), error="ImportError: no")}, "error", "faiss does not import: ImportError: no", "faiss-cpu"),
        (
            {"faiss": Faiss(("faiss-cpu 1.15.1", "faiss-gpu 1.15.1"), True)},
            "warning",
            "faiss-cpu 1.15.1 and faiss-gpu 1.15.1 are both installed and write the same folder faiss; "
            "what imports now is the GPU build",
            "pip uninstall -y faiss-cpu faiss-gpu && pip install faiss-gpu",
        ),
        ({"torch": Torch("13.0", (A100,))}, "note", "neighbours are searched on the CPU", "install faiss-gpu"),
        ({"torch": Torch(error="OSError: libc10.so")}, "error", "torch does not import: OSError: libc10.so", "torch"),
        ({"torch": Torch(torchvision="absent")}, "error", "torchvision is not installed", "one release"),
        (
            {"torch": Torch(torchvision="RuntimeError: x")},
            "error",
            "torchvision does not import: RuntimeError",
            "index",
        ),
        ({"torch": Torch(torchvision="declared")}, "note", "a CUDA build beside a CPU torch", ""),
        ({"nvidia_driver": True, "torch": Torch()}, "warning", "torch is a CPU build", "--force-reinstall torch"),
        ({"nvidia_driver": True}, "warning", "built for CUDA 13.0, sees no GPU", "CUDA_VISIBLE_DEVICES"),
        ({"free_disk_gb": {"here": 400.0, "cache": 0.5}}, "warning", "cache has 0.5 GB free", "HF_HOME"),
        ({"free_memory_gb": 1.2}, "warning", "1.2 GB of memory are free", "--workers"),
        ({"shm_gb": 0.064}, "warning", "/dev/shm has 64 MB", "--shm-size=2g"),
        ({"open_files": 256}, "warning", "may open 256 files", "ulimit -n 4096"),
        ({"environment": {"HF_HUB_OFFLINE": "1"}}, "note", "HF_HUB_OFFLINE set", "unset HF_HUB_OFFLINE"),
    ],
)
def test_each_mistake_is_found_alone(change: dict[str, Any], level: str, words: str, remedy: str) -> None:
    [found] = examine(replace(WELL, **change))
    assert found.level == level
    assert words in found.text
    assert remedy in found.remedy


def test_offline_set_to_no_is_not_offline() -> None:
    assert examine(replace(WELL, environment={"HF_HUB_OFFLINE": "0"})) == []


def test_errors_come_first() -> None:
    found = examine(replace(WELL, open_files=256, environment={"HF_HUB_OFFLINE": "1"}, unmet=("numpy>=1.26 (1.20)",)))
    assert [finding.level for finding in found] == ["error", "warning", "note"]


def test_the_command_says_what_is_here(tmp_path: Path) -> None:
    done = called("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout)
    import faiss
    import torch

    assert found["ok"] is True
    assert found["packages"]["torch"] == version("torch")
    assert found["faiss"]["gpu_build"] == hasattr(faiss, "StandardGpuResources")
    assert any(name.endswith(faiss.__version__) for name in found["faiss"]["distributions"])
    assert found["defaults"]["device"] == ("cuda" if torch.cuda.is_available() else "cpu")
    assert found["unmet"] == []
    assert found["cores"] >= 1
    for words in ("A run would use", "decoding processes", "Extras", "faiss"):
        assert words in done.stderr


def test_an_extra_names_all_that_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Extra("nothing", ("json", "no_such_module_anywhere")).absent() == ["no_such_module_anywhere"]
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with refused("trainers", ["tensorboard", "timm"]):
        require_extra("trainers", "noisegate train")


def test_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(EXTRAS) == set(project["project"]["optional-dependencies"]) - {"gpu", "dev", "docs"}
