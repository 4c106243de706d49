"""Captions that are nearly right make a second peak of the cosines; it is reported, and other shapes are not."""

from pathlib import Path

import numpy as np
import pytest

from noisegate.pipeline.estimators.base import normalise
from noisegate.pipeline.inspect.report import write_report
from noisegate.pipeline.pairs.group_apart import find_group_apart
from noisegate.pipeline.rescore import rescore, score_embeddings

PAIRS = 600
REAL_CLIP = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "real-clip"


@pytest.mark.parametrize("share", [0.1, 0.4, 0.9])
def test_the_share_of_the_lower_group(share: float) -> None:
    rng = np.random.default_rng(0)
    lower = np.arange(PAIRS) < share * PAIRS
    cosines = np.where(lower, rng.normal(0.69, 0.08, PAIRS), rng.normal(0.93, 0.02, PAIRS))
    group = find_group_apart(cosines, np.ones(PAIRS))
    assert group is not None and group.share == pytest.approx(share, abs=0.02)
    assert np.mean((cosines < group.below) == lower) > 0.98
    assert find_group_apart(cosines, np.where(lower, 0.0, 1.0)) is None  # wrong pairs are the calibration's affair


@pytest.mark.parametrize("seed", range(3))
def test_one_group_of_any_shape(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = {
        "normal": rng.standard_normal(PAIRS),
        "skewed": rng.gamma(2, 1, PAIRS),
        "heavy tails": rng.standard_t(3, PAIRS),
        "flat": rng.random(PAIRS),
        "a shoulder": np.concatenate([rng.normal(0, 1, PAIRS // 2), rng.normal(2, 1, PAIRS // 2)]),
        "one value": np.zeros(PAIRS),
        "few": np.array([0.1] * 19 + [0.9] * 400),
        "none": np.array([np.nan]),
    }
    for name, values in shapes.items():
        assert find_group_apart(values, np.ones(len(values))) is None, name


@pytest.mark.skipif(not REAL_CLIP.exists(), reason="no embeddings of real pairs")
def test_real_pairs_are_one_group() -> None:
    for file in REAL_CLIP.glob("pairs_*.npz"):
        with np.load(file) as arrays:
            cosines = np.einsum("nd,nd->n", *(normalise(arrays[name]) for name in ("images", "texts")))
        assert find_group_apart(cosines, np.ones(len(cosines))) is None, file.name


def test_summary_and_report_do_not_call_such_data_clean(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, other = (normalise(rng.standard_normal((PAIRS, 24)).astype(np.float32)) for _ in range(2))
    nearly = np.arange(PAIRS)[:, None] < 0.4 * PAIRS
    texts = images + np.where(nearly, 1.0, 0.3) * other
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "texts.npy", texts.astype(np.float32))
    summary = score_embeddings(tmp_path / "out", tmp_path / "images.npy", texts=tmp_path / "texts.npy")
    assert summary.calibration and summary.calibration.noise_rate < 0.05
    assert summary.calibration.apart_share == pytest.approx(0.4, abs=0.05)
    assert any("nearly right" in warning for warning in summary.warnings)
    assert "that lie apart" in repr(summary)
    assert not any("looks clean" in warning for warning in summary.warnings)
    assert summary.to_dict()["calibration"]["apart_share"] == summary.calibration.apart_share
    write_report(tmp_path / "out", tmp_path / "report.html")
    assert "Captions that are nearly right" in (tmp_path / "report.html").read_text()
    advised = next(warning for warning in summary.warnings if "nearly right" in warning).rpartition("--beta ")[2]
    followed = rescore(tmp_path / "out", beta=advised)
    assert not followed.warnings and followed.zero_share == pytest.approx(0.4, abs=0.05)
