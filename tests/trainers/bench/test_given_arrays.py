"""A bench on arrays: shards, noise and weight tables from a folder in the papers' precomputed format."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from noisegate.pipeline.cli.commands import app
from noisegate.pipeline.runs import read_table
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.read import ShardReader
from noisegate.trainers.bench.paper_bench import PaperBench, load_paper_preset, run_paper_bench
from noisegate.trainers.bench.paper_tables import paper_markdown
from tests.errors import refused
from tests.pipeline.datasets.converting import features

IMAGES, CAPTIONS = 24, 5
SMALL = {
    "target": {"features": 4, "regions": 3, "width": 8, "word_width": 8},
    "data": {"batch_size": 32},
    "loop": {"epochs": 1, "max_steps": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images with 5 captions each, 40 % of the captions moved to other images, embeddings that tell all images apart."""
    source = tmp_path_factory.mktemp("arrays") / "regions"
    right = np.arange(IMAGES * CAPTIONS) // CAPTIONS
    for split in ("train", "test"):
        features(source, IMAGES, [f"thing {image} seen {i}" for i, image in enumerate(right)], split)
    noise = right.copy()
    noise[:48] = (right[:48] + 7) % IMAGES
    np.save(source / "flickr8k_precomp_0.4.npy", noise)
    (source / "estimator").mkdir()
    vectors = np.random.default_rng(3).standard_normal((IMAGES, 64)).astype(np.float32)
    jitter = 0.05 * np.random.default_rng(4).standard_normal((len(right), 64)).astype(np.float32)
    np.save(source / "estimator/train_images.npy", vectors[right])
    np.save(source / "estimator/train_texts.npy", vectors[right] + jitter)
    keys = [f"train-{row:07}" for row in range(len(right))]
    pq.write_table(pa.table({"key": keys}), source / "estimator/train_keys.parquet")
    return source


@pytest.fixture(scope="module")
def bench(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[PaperBench, Path]:
    out = tmp_path_factory.mktemp("out")
    return _run(folder, out), out


def _run(folder: Path, out: Path, setup: str = "vse", **options: object) -> PaperBench:
    given = {"methods": ["baseline", "osa"], "rates": [0.0, 0.4], "seeds": [0, 1], "settings": SMALL, **options}
    return run_paper_bench(load_paper_preset("flickr8k"), setup, folder, out, **given)  # type: ignore[arg-type]


def test_captions_are_paired_with_the_images_of_the_noise_file(bench: tuple[PaperBench, Path], folder: Path) -> None:
    _, out = bench
    noise = np.load(folder / "flickr8k_precomp_0.4.npy")
    (shard,) = (out / "flickr8k/data/train-40").glob("*.tar")
    samples = [json.loads(raw.parts["json"]) for raw in ShardReader(Shard(str(shard)), all_parts=True)]
    assert [int(sample["image_id"]) for sample in samples] == noise.tolist()
    truth = pq.read_table(shard.parent / "noise.parquet")["noisy"].to_pylist()
    assert truth == [sample["noisy"] for sample in samples] == [row < 48 for row in range(120)]


def test_tables_come_from_the_embeddings_of_those_images(bench: tuple[PaperBench, Path], folder: Path) -> None:
    found, out = bench
    noise = np.load(folder / "flickr8k_precomp_0.4.npy")
    images, texts = (np.load(folder / f"estimator/train_{name}.npy") for name in ("images", "texts"))
    paired = images[CAPTIONS * noise]
    cosines = (paired * texts).sum(1) / np.linalg.norm(paired, axis=1) / np.linalg.norm(texts, axis=1)
    table = read_table(out / "flickr8k/data/tables-40", ["similarity", "clean"])
    np.testing.assert_allclose(table["similarity"].to_numpy(), cosines, atol=2e-3)
    assert found.tables["shuffle-captions-40"]["noise_recall"] == 100.0


def test_every_cell_is_trained_and_kept(bench: tuple[PaperBench, Path], folder: Path) -> None:
    found, out = bench
    assert {name: len(cells) for name, cells in found.cells.items()} == {
        (method, f"shuffle-captions-{rate}"): 2 for rate in (0, 40) for method in ("baseline", "osa")
    }
    cells = [cell for cells in found.cells.values() for cell in cells]
    assert [cell.error for cell in cells] == [None] * 8
    assert [cell.seed for cell in found.cells["osa", "shuffle-captions-40"]] == [0, 1]
    again: list[str] = []
    assert _run(folder, out, note=again.append, progress=lambda *told: again.append("trained")).cells == found.cells
    assert again == []
    text = paper_markdown(found)
    assert "of 2 seeds." in text and "in brackets" not in text


def test_the_other_target_reads_the_same_data(bench: tuple[PaperBench, Path], folder: Path) -> None:
    _, out = bench
    found = _run(folder, out, setup="sgr", rates=[0.4], seeds=[0], note=lambda text: pytest.fail(text))
    assert [cell.error for cells in found.cells.values() for cell in cells] == [None, None]
    assert (out / "flickr8k/sgr/cells/osa-shuffle-captions-40-0.json").exists()


def test_tables_of_what_is_finished(bench: tuple[PaperBench, Path], folder: Path) -> None:
    found, out = bench
    more = _run(folder, out, methods=["baseline", "osa", "decl"], seeds=[0, 1, 2], finished=True)
    assert more.cells == {**found.cells, **{("decl", f"shuffle-captions-{rate}"): [] for rate in (0, 40)}}
    assert "| decl |" not in paper_markdown(more).partition("what it took")[0]
    with refused("finished", True):
        words = ["bench", "--preset", "flickr8k", "--data", str(folder), "--out", str(out), "--finished"]
        CliRunner().invoke(app, [*words, "--seeds", "7", "--rates", "0.4"], catch_exceptions=False)


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    with refused("rates", 0.3) as caught:
        _run(folder, tmp_path / "out", rates=[0.3])
    assert "there is flickr8k_precomp_0.4.npy" in str(caught.value)
    shutil.copytree(folder, tmp_path / "less", ignore=shutil.ignore_patterns("train_keys.parquet"))
    with refused("data", str(tmp_path / "less")) as caught:
        _run(tmp_path / "less", tmp_path / "out")
    assert "has no estimator/train_keys.parquet" in str(caught.value)


def test_variants_on_top_of_a_table_are_trained_by_default() -> None:
    setup = load_paper_preset("flickr8k").setups["vse"]
    assert {"ncr@osa", "npc@osa", "decl"} <= set(setup.default_methods())
    assert "crcl@code" not in load_paper_preset("flickr30k").setups["regions"].default_methods()
