"""The programs in examples/ run as they stand, on drawn scenes and tiny models, and train with the tables' weights."""

import inspect
import runpy
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset  # before a test runs a command, which turns local files off in it (WDS_SECURE)

from noisegate import export, read_table
from noisegate.pipeline.estimators.loading import allow_torchvision
from noisegate.trainers.targets import build_target, resolve_target
from tests.trainers.runs import TARGET, write_data

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 noisy scenes in four shards below `noisy`, their `tables`, and an untrained model of open_clip in `tiny`."""
    folder = write_data(tmp_path_factory.mktemp("examples"))
    allow_torchvision()  # open_clip and lightning beside a torch for CPUs only
    with torch.random.fork_rng():
        torch.manual_seed(0)
        target: Any = build_target(resolve_target({**TARGET, "vocabulary": {"kind": "full"}}))
        target.export(folder / "tiny")
    return folder


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a program of examples/ with some words, in this process; returns its names."""
    monkeypatch.chdir(place)

    def start(program: str, *words: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", [program, *words])
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return runpy.run_path(str(EXAMPLES / program), run_name="__main__")

    return start


def start_of(place: Path) -> list[torch.Tensor]:
    import open_clip

    return [p.detach().clone() for p in open_clip.create_model("local-dir:tiny").parameters()]


def moved(before: list[torch.Tensor], model: torch.nn.Module) -> bool:
    return any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_webdataset(run: Any, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = sorted(path.name for path in (place / "noisy").glob("*.tar"))
    pattern = f"noisy/{names[0].removesuffix('0.tar')}{{0..3}}.tar"
    assert len(names) == 4
    left = run("train_webdataset.py", pattern, "tables", "local-dir:tiny")
    assert moved(start_of(place), left["model"])
    printed = capsys.readouterr().out.splitlines()
    clean = sum(read_table("tables", ["clean"])["clean"].to_pylist())
    assert sum(int(line.split()[-2]) for line in printed) == clean


def test_open_clip(run: Any, place: Path) -> None:
    left = run("train_open_clip.py", "noisy/*.tar", "tables", "local-dir:tiny")
    assert moved(start_of(place), left["model"])
    assert len(left["data"]) == 5


def test_open_clips_own_command(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m open_clip_train.main` on the exports of the guide."""
    monkeypatch.chdir(place)
    sure = export("tables", "sure", "shards", where="clean_probability > 0.8")
    doubtful = export("tables", "doubtful", "shards", where="not clean_probability > 0.8")
    sources = ("::".join(name for name in done.files if name.endswith(".tar")) for done in (sure, doubtful))
    factors = "::".join(
        factor for factor, done in (("3", sure), ("1", doubtful)) for name in done.files if name.endswith(".tar")
    )
    program = """
import functools, sys
from noisegate.pipeline.estimators.loading import allow_torchvision
allow_torchvision()
from open_clip_train import data, main
# open_clip[training] takes webdataset up to 0.2.86, which does not mark the end of a shard; newer ones can be told not to
data.tar_file_expander = functools.partial(data.tar_file_expander, **MARKS)
main.main(sys.argv[1:])
"""
    newer = "eof_value" in inspect.signature(webdataset.tariterators.tar_file_expander).parameters
    program = program.replace("MARKS", repr({"eof_value": None} if newer else {}))
    words = f"""--train-data {"::".join(sources)} --train-data-upsampling-factors {factors} --dataset-resampled
        --train-num-samples 32 --model local-dir:tiny --batch-size 16 --epochs 1 --workers 1 --precision fp32 --device cpu
        --logs logs --name run --log-every-n-steps 1 --warmup 1 --lr 1e-4""".split()
    monkeypatch.delenv("WDS_SECURE", raising=False)
    command = [sys.executable, "-c", program, *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr[-2000:]
    said = (place / "logs" / "run" / "out.log").read_text()
    assert "Train Epoch: 0 [32/32 (100%)]" in said
    assert "webdataset error" not in said
    assert (place / "logs" / "run" / "checkpoints" / "epoch_1.pt").exists()


def write_clip(folder: Path) -> None:
    """A tiny CLIP of transformers with random weights, whose tokenizer knows letters only."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    letters = [*string.ascii_lowercase, *(f"{letter}</w>" for letter in string.ascii_lowercase)]
    words = {word: number for number, word in enumerate([*letters, "<|startoftext|>", "<|endoftext|>"])}
    tokenizer = CLIPTokenizer(vocab=words, merges=[], model_max_length=16)
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"bos_token_id": len(words) - 2, "eos_token_id": len(words) - 1, "pad_token_id": len(words) - 1}
    config = CLIPConfig(
        text_config={**size, **ends, "vocab_size": len(words), "max_position_embeddings": 16, "projection_dim": 16},
        vision_config={**size, "image_size": 16, "patch_size": 8, "projection_dim": 16},
        projection_dim=16,
    )
    CLIPModel(config).save_pretrained(folder)
    images = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    CLIPProcessor(images, tokenizer).save_pretrained(folder)


def test_hf_trainer(run: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(place / "cache"))
    export("tables", "dataset", "datasets", where="clean")
    write_clip(Path("clip"))
    left = run("train_hf_trainer.py", "dataset", "clip")
    from transformers import CLIPModel

    assert moved(list(CLIPModel.from_pretrained("clip").parameters()), left["model"])
    assert left["mean"] > 0


def test_lightning(run: Any, place: Path) -> None:
    left = run("train_lightning.py", "noisy/*.tar", "tables", "local-dir:tiny")
    assert moved(start_of(place), left["model"])
    assert left["trainer"].global_step == 2
