"""pair_quality: against a plain loop, whatever the block size; the pool of a run; the column of its tables."""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.pairs import pair_pool, pair_quality
from noisegate.pipeline.pairs.pair_pool import draw_pairs, fit_pool, read_pool
from noisegate.pipeline.pairs.pair_quality import Pool
from noisegate.pipeline.rescore import rescore, score_embeddings
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import RunFolder, read_metadata, read_table
from noisegate.pipeline.settings import ScoreSettings
from noisegate.pipeline.system.array_types import Float32
from tests.errors import refused


def draw(count: int, seed: int = 0, width: int = 32) -> tuple[Float32, Float32]:
    """Unit rows of pairs with a cosine of about .6, in float16; pair 3 has the caption of 2, pair 5 the picture of 4."""
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(count, width))
    texts = 0.6 * images + 0.8 * rng.normal(size=(count, width))
    texts[3], images[5] = texts[2], images[4]
    sides = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (images, texts))
    left, right = (rows.astype(np.float16).astype(np.float32) for rows in sides)
    return left, right


def plain_quality(images: Float32, texts: Float32, pool: tuple[Float32, Float32], tau: float) -> list[float]:
    qualities = []
    for image, text in zip(images.astype(float), texts.astype(float), strict=True):
        others = [(v, t) for v, t in zip(*pool, strict=True) if (v != image).any() and (t != text).any()]
        by_image = np.log(np.mean([np.exp(image @ t / tau) for _, t in others]))
        by_text = np.log(np.mean([np.exp(v @ text / tau) for v, _ in others]))
        qualities.append(image @ text - tau / 2 * (by_image + by_text))
    return qualities


@pytest.mark.parametrize("tau", [0.01, 0.05])
def test_quality_equals_a_plain_loop_for_pairs_in_the_pool_and_outside(tau: float) -> None:
    images, texts = draw(40)
    got = pair_quality.pair_quality(images, texts, images[:30], texts[:30], tau)
    assert got == pytest.approx(plain_quality(images, texts, (images[:30], texts[:30]), tau), abs=1e-6)


def test_block_size_and_torch_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    images, texts = draw(50)
    want = Pool(images, texts).quality(images, texts, (0.01, 0.02))
    assert Pool(images, texts, "cpu:0").quality(images, texts, (0.01, 0.02)) == pytest.approx(want, abs=1e-6)
    monkeypatch.setattr(pair_quality, "ROWS", 7)
    monkeypatch.setattr(pair_quality, "COLUMNS", 11)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    blocks = Pool(images, texts).quality(images, texts, (0.01, 0.02))
    assert blocks == pytest.approx(want, abs=1e-6)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert (Pool(images, texts).quality(images, texts, (0.01, 0.02)) == blocks).all()


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
@pytest.mark.parametrize("tau", [0.01, 0.05])
def test_pairs_that_share_rows_have_the_quality_of_each_alone(
    tau: float, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_quality, "ROWS", 7)
    monkeypatch.setattr(pair_quality, "COLUMNS", 11)
    images, texts = draw(40)
    images[7] = 0
    first, second = np.divmod(np.random.default_rng(1).permutation(40 * 40)[:300], 40)  # in any order, given pairs too
    first, second = np.append(first, np.arange(40)), np.append(second, np.arange(40))
    pool = images[:30], texts[:30]
    got = Pool(*pool, device).quality_of(images, texts, first, second, (tau, 0.02))
    fine = first != 7
    want = plain_quality(images[first[fine]], texts[second[fine]], tuple(np.delete(rows, 7, 0) for rows in pool), tau)
    assert got[0, fine] == pytest.approx(want, abs=1e-6)
    assert np.isnan(got[:, ~fine]).all() and not fine.all()


def test_where_a_partner_outweighs_the_rest_the_pair_is_compared_by_itself() -> None:
    images = np.eye(4, 8, dtype=np.float32)
    texts = np.eye(4, 8, dtype=np.float32)
    texts[2] = texts[1]  # twice in the pool: taken off picture 1, nothing of weight is left
    first, second = np.array([1, 0]), np.array([1, 1])
    got = Pool(images, texts).quality_of(images, texts, first, second, (0.01,))[0]
    want = plain_quality(images[first], texts[second], (images, texts), 0.01)
    assert got == pytest.approx(want, abs=1e-6)


def test_rows_without_a_pair_and_pools_without_another_pair_give_nan() -> None:
    images, texts = draw(10)
    texts[0] = 0
    got = pair_quality.pair_quality(images, texts, images, texts)
    assert np.isnan(got[0]) and np.isfinite(got[1:]).all()
    assert np.isnan(pair_quality.pair_quality(images[1:2], texts[1:2], images[1:2], texts[1:2])).all()
    assert np.isnan(pair_quality.pair_quality(images, texts, images[:0], texts[:0])).all()


def test_what_cannot_be_compared_is_refused() -> None:
    images, texts = draw(10)
    with refused("texts", (10, 31)):
        pair_quality.pair_quality(images, texts[:, :31], images, texts)
    with refused("temperature", 0):
        pair_quality.pair_quality(images, texts, images, texts, 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Three tables of 60 pairs in all, of arrays."""
    folder = tmp_path_factory.mktemp("quality")
    images, texts = draw(60)
    texts[40:] = np.roll(texts[40:], 1, axis=0)
    for name, rows in (("images", images), ("texts", texts)):
        (folder / name).mkdir()
        for part in range(3):
            np.save(folder / name / f"{name[:-1]}_{part}.npy", rows[20 * part : 20 * part + 20])
    score_embeddings(folder / "run", folder / "images", texts=folder / "texts")
    return RunFolder(folder / "run")


def test_tables_have_the_column_and_record_the_pool(run: RunFolder) -> None:
    files = [run.embeddings(stem) for stem in sorted(run.stems())]
    images, texts = (np.concatenate([read_embeddings(file, part) for file in files]) for part in ("image", "text"))
    facts = read_metadata(run.table(next(run.stems())))["pair_quality"]
    assert facts["pairs"] == 60 and facts["temperature"] in pair_pool.TEMPERATURES
    table = read_table(run.path, ["pair_quality", "similarity"])
    got, rounding = table["pair_quality"].to_numpy(), table["similarity"].to_numpy() - np.sum(images * texts, axis=1)
    assert np.abs(rounding).max() < 1e-3
    want = plain_quality(images, texts, (images, texts), facts["temperature"])
    assert got - rounding == pytest.approx(want, abs=1e-6)
    assert got[:40].mean() > got[40:].mean() + 0.3


def test_the_pool_does_not_depend_on_the_order_of_the_shards(run: RunFolder) -> None:
    stems = sorted(run.stems())
    drawn = [{(order[place], row) for place, row in zip(*draw_pairs(run, order, 25, 0), strict=True)}
             for order in (stems, stems[::-1])]  # fmt: skip
    assert len(drawn[0]) == 25 and drawn[0] == drawn[1]


def test_a_pool_that_was_drawn_is_read_again(run: RunFolder) -> None:
    stems = sorted(run.stems())
    fitted, again = fit_pool(run, stems, 0), read_pool(run)
    assert fitted and again and fitted.facts == again.facts
    images, texts = draw(60)
    cosines = np.einsum("nd,nd->n", images, texts)
    assert (fitted.quality(images, texts, cosines) == again.quality(images, texts, cosines)).all()


def test_scoring_again_keeps_the_column_and_other_embeddings_are_noticed(run: RunFolder) -> None:
    before = read_table(run.path, ["pair_quality"])["pair_quality"]
    rescore(run.path, lambda recorded: ScoreSettings(beta="fixed:0.3"))
    assert pc.all(pc.equal(read_table(run.path, ["pair_quality"])["pair_quality"], before)).as_py()
    stems = sorted(run.stems())
    file, other = run.embeddings(stems[0]), run.embeddings(stems[1])
    kept = file.read_bytes()
    file.write_bytes(other.read_bytes())
    with pytest.raises(TableError, match="pair_quality"):
        read_pool(run)
    file.write_bytes(kept)
    moved = file.rename(file.with_suffix(".away"))
    assert read_pool(run) is None
    moved.rename(file)


def test_temperatures_are_compared_without_the_truth() -> None:
    images, texts = draw(200)
    shares = pair_pool.try_temperatures(Pool(images, texts), images, texts, 0)
    assert set(shares) == {"cosine", "0.01", "0.005", "0.02", "0.05"} and 0.5 < min(shares.values()) <= 1
    nothing = np.repeat(images[:1], 9, axis=0)
    assert pair_pool.try_temperatures(Pool(nothing, nothing), nothing, nothing, 0) == {}


def test_a_shape_error_names_the_pool() -> None:
    images, texts = draw(10)
    with pytest.raises(ConfigError):
        Pool(images, texts[:5])


def test_a_run_of_one_pair_has_no_quality(tmp_path: Path) -> None:
    images, texts = draw(10)
    np.save(tmp_path / "i.npy", images[:1])
    np.save(tmp_path / "t.npy", texts[:1])
    score_embeddings(
        tmp_path / "run", tmp_path / "i.npy", texts=tmp_path / "t.npy", settings=ScoreSettings(beta="fixed:0.2")
    )
    assert read_table(tmp_path / "run", ["pair_quality"])["pair_quality"].null_count == 1
