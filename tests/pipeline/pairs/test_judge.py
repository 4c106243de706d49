"""Which score P(clean) comes from, and what a cut of the other one costs."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from noisegate.pipeline.estimators.base import normalise
from noisegate.pipeline.inspect.report import write_report
from noisegate.pipeline.inspect.show import read_overview
from noisegate.pipeline.inspect.verify import verify
from noisegate.pipeline.pairs.beta import PairSample
from noisegate.pipeline.pairs.calibration import QUALITY, SIMILARITY, PairCalibration
from noisegate.pipeline.pairs.judge import add_cosines, choose_calibration
from noisegate.pipeline.pairs.scorer import read_scoring
from noisegate.pipeline.rescore import rescore, score_embeddings
from noisegate.pipeline.runs.table import RunFolder, read_metadata, replace_columns
from noisegate.pipeline.settings import ScoreSettings
from tests.errors import refused

NOISE = 0.4


def draw(gap: float, rng: np.random.Generator, pairs: int = 600) -> PairSample:
    """Scores of pairs of which 40 % are wrong, `gap` standard deviations below the right ones; the wrong come first."""
    wrong = round(NOISE * pairs)
    given = rng.standard_normal(pairs) + np.where(np.arange(pairs) < wrong, 0, gap)
    return PairSample(given.astype(np.float32), rng.standard_normal(2 * pairs).astype(np.float32))


@pytest.mark.parametrize(("cosine", "quality", "score"), [(2, 5, QUALITY), (5, 2, SIMILARITY)])
def test_the_score_that_separates_better_is_taken(cosine: float, quality: float, score: str) -> None:
    rng = np.random.default_rng(0)
    chosen = choose_calibration(draw(cosine, rng), draw(quality, rng))
    assert chosen is not None
    assert chosen.score == score
    assert abs(chosen.noise_rate - NOISE) < 0.05
    assert choose_calibration(draw(cosine, rng, 10), draw(quality, rng, 10)) is None
    assert PairCalibration.from_dict(chosen.to_dict()) == chosen


def test_cuts_of_the_cosine_are_counted_with_the_probabilities_of_the_quality() -> None:
    rng = np.random.default_rng(1)
    cosine, quality = draw(2, rng, 6000), draw(5, rng, 6000)
    assert quality.calibration is not None
    both = add_cosines(quality.calibration, quality.given, cosine.given)
    chance = both.clean_probability(quality.given).astype(float)
    for cut in (-9.0, 0.5, 1.5, 9.0):
        kept = cosine.given > cut
        expected = both.expected(cut)
        assert expected.kept == pytest.approx(kept.mean(), abs=0.01)
        assert expected.clean_recall == pytest.approx(chance[kept].sum() / chance.sum(), abs=0.01)
        if kept.any():
            assert expected.clean_precision == pytest.approx(chance[kept].mean(), abs=0.02)
    at = both.clean_at(np.linspace(-3, 5, 50))
    assert (np.diff(at) >= 0).all()
    near = np.abs(cosine.given - 1) < 0.1
    assert both.clean_at([1.0])[0] == pytest.approx(chance[near].mean(), abs=0.05)


def test_what_the_cut_by_probability_is_expected_to_keep() -> None:
    sample = draw(4, np.random.default_rng(2))
    calibration = sample.calibration
    assert calibration is not None
    likely = calibration.clean_probability(sample.given) > 0.5
    expected = calibration.expected_of("probability", 99.0)
    assert expected.kept == pytest.approx(likely.mean(), abs=0.01)
    right = np.arange(600) >= 240
    assert expected.clean_precision == pytest.approx(right[likely].mean(), abs=0.03)
    assert calibration.expected_of("osa", 1.0) == calibration.expected(1.0)


# --- in a run -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 pairs, 30 % of them wrong, in a space where some pictures and captions are close to everything."""
    folder, rng = tmp_path_factory.mktemp("run"), np.random.default_rng(0)
    own, hub = rng.standard_normal((300, 64)), 8 * normalise(rng.standard_normal((1, 64)))
    hubs = [hub * rng.exponential(1, (300, 1)) for _ in range(2)]
    images, texts = (normalise(own + 0.7 * rng.standard_normal(own.shape) + hub) for hub in hubs)
    texts[:90] = np.roll(texts[:90], 1, axis=0)
    np.save(folder / "i.npy", images.astype(np.float32))
    np.save(folder / "t.npy", texts.astype(np.float32))
    score_embeddings(folder / "out", folder / "i.npy", texts=folder / "t.npy")
    return folder / "out"


def read(run: Path) -> pa.Table:
    return RunFolder(run).read(next(RunFolder(run).stems()))


def test_a_run_with_hubs_is_judged_by_pair_quality_and_can_be_cut_by_it(run: Path) -> None:
    before = read(run)
    calibration = read_scoring(RunFolder(run), "i")[1]
    assert calibration is not None
    assert calibration.score == QUALITY
    quality, chance = before["pair_quality"].to_numpy(), before["clean_probability"].to_numpy()
    np.testing.assert_allclose(chance, calibration.clean_probability(quality), atol=1e-6)
    assert before["clean"].to_pylist() == (before["osa_weight"].to_numpy() > 0).tolist()
    summary = rescore(run, cut="probability")
    after = read(run)
    assert after["clean"].to_pylist() == (chance > 0.5).tolist() != before["clean"].to_pylist()
    for name in ("similarity", "osa_weight", "clean_probability", "pair_quality"):
        assert after[name].equals(before[name]), name
    assert (summary.cut, summary.kept) == ("probability", int((chance > 0.5).sum()))
    assert summary.expected is not None
    assert summary.expected.kept == pytest.approx((chance > 0.5).mean(), abs=0.02)
    assert RunFolder(run).recorded()["judged_by"] == QUALITY
    assert verify(run, rescore=False).ok
    assert rescore(run).cut == "probability"  # what is not given stays
    rescore(run, cut="osa")
    assert read(run).equals(before)


def test_verify_computes_the_quality_again(run: Path, tmp_path: Path) -> None:
    copy = RunFolder(Path(shutil.copytree(run, tmp_path / "copy")))
    table, facts = copy.read("i"), read_metadata(copy.table("i"))
    facts["calibration"] = None  # or P(clean) would tell first
    changed = table["pair_quality"].to_numpy().copy()
    changed[0] += 0.001
    columns = {"pair_quality": changed, "clean_probability": pa.nulls(len(table), pa.float32())}
    copy.write_table("i", replace_columns(table, columns, facts))
    [problem] = verify(copy.path, rescore=False).problems
    assert (problem.key, "pool" in problem.what) == (table["key"][0].as_py(), True)


def test_a_run_of_an_earlier_release_is_read(run: Path, tmp_path: Path) -> None:
    """Tables without a cut, whose calibration takes the cosine and does not name it."""
    copy = RunFolder(Path(shutil.copytree(run, tmp_path / "copy")))
    table, facts = copy.read("i"), read_metadata(copy.table("i"))
    calibration = PairSample(table["similarity"].to_numpy(), np.linspace(-0.2, 0.3, 500, dtype=np.float32)).calibration
    assert calibration is not None
    added = ("loss", "score", "cosines", "cosine_kept", "cosine_clean")
    facts["calibration"] = {name: value for name, value in calibration.to_dict().items() if name not in added}
    del facts["cut"], facts["pair_quality"]["temperature_source"]
    columns = {"clean_probability": calibration.clean_probability(table["similarity"].to_numpy())}
    copy.write_table("i", replace_columns(table, columns, facts))
    recorded = copy.recorded()
    del recorded["judged_by"], recorded["scoring"]["cut"]
    copy.write_run(recorded)
    assert verify(copy.path, rescore=False).ok
    assert "clean follows" in Path(write_report(copy.path).path).read_text()
    assert read_overview(copy.path).summary.cut == "osa"
    assert rescore(copy.path).calibration.score == QUALITY  # type: ignore[union-attr]


def test_a_cut_needs_a_known_name_and_pairs() -> None:
    with refused("cut", "half"):
        ScoreSettings(cut="half")
    with refused("cut", "probability"):
        ScoreSettings(cut="probability", tasks=("labels",)).refuse_unused("cut")
