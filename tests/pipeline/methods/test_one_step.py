"""Columns before any training: LNC and GSL from frozen embeddings against plain loops, and `rescore --with` on a run."""

import math
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.methods import galc
from noisegate.pipeline.methods.batches import permuted_batches
from noisegate.pipeline.methods.columns import OneStep, usual_temperature
from noisegate.pipeline.methods.gsl import gsl_columns
from noisegate.pipeline.methods.lnc import lnc_columns
from noisegate.pipeline.methods.mixtures import bmm_split, gmm_split
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import COLUMNS, RunFolder, read_metadata, read_table
from tests.commands import called
from tests.jobs import files_of, stamps

RNG = np.random.default_rng(3)
CENTRES = RNG.standard_normal((60, 16))


def pairs(count: int = 60, wrong: int = 15, noise: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Images, and texts near them but for the first `wrong`, which are near another's."""
    rng = np.random.default_rng(1)
    place = np.arange(count)
    place[:wrong] = np.roll(place[:wrong], 1)
    images = CENTRES[:count] + noise * rng.standard_normal((count, 16))
    return images, CENTRES[place] + noise * rng.standard_normal((count, 16))


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


# --- LNC ------------------------------------------------------------------------------------------------------------------


def loops_lnc(s: np.ndarray, margin: float) -> tuple[list[float], list[float]]:
    """Losses and predictions of one batch, sample by sample."""
    size = len(s)
    losses, stands = [], []
    for i in range(size):
        others = [j for j in range(size) if j != i]
        losses.append(
            sum(max(0, margin + s[i, j] - s[i, i]) for j in others) / size
            + sum(max(0, margin + s[j, i] - s[i, i]) for j in others) / size
        )
        stands.append(s[i, i] - (sum(s[i, j] for j in others) / size + sum(s[j, i] for j in others) / size) / 2)
    clipped = [min(max(x, 0), margin) for x in stands]
    best = sorted(clipped)[-(size // 10 + 1) :]
    tau = sum(best) / len(best)
    return losses, [min(1.0, x / tau) if tau > 1e-12 else 0.0 for x in clipped]


def test_lnc_is_the_mean_over_permutations_of_plain_loops() -> None:
    images, texts = pairs()
    left, right = unit(images), unit(texts)
    losses, predictions = np.zeros((3, 60)), np.zeros((3, 60))
    for number, rows in permuted_batches(60, 24, 3, seed=5):
        losses[number, rows], predictions[number, rows] = loops_lnc(left[rows] @ right[rows].T, 0.2)
    found = lnc_columns(images, texts, batch=24, permutations=3, seed=5)
    np.testing.assert_allclose(found["lnc_prediction"], predictions.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(found["lnc_prediction_sd"], predictions.std(axis=0), atol=1e-5)
    confidence = np.stack([gmm_split(each).clean_probability for each in losses])
    np.testing.assert_allclose(found["lnc_confidence"], confidence.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(found["lnc_confidence_sd"], confidence.std(axis=0), atol=1e-4)
    assert np.median(found["lnc_confidence"][15:]) > 0.9 > 0.1 > np.median(found["lnc_confidence"][:15])


def test_lnc_without_a_pair_that_beats_its_negatives_predicts_nothing() -> None:
    rows = np.eye(4)
    found = lnc_columns(rows, -rows)
    assert found["lnc_prediction"].tolist() == [0.0] * 4
    assert found["lnc_confidence"].tolist() == [1.0] * 4, "losses that do not differ are not split"


def test_rows_without_direction_are_left_out_of_everything() -> None:
    images, texts = pairs()
    images[[2, 40]], texts[50] = 0, np.nan
    left_out = np.array([2, 40, 50])
    kept = np.setdiff1d(np.arange(60), left_out)
    for columns in (lnc_columns, gsl_columns):
        found, without = columns(images, texts, batch=20), columns(images[kept], texts[kept], batch=20)
        for name, values in found.items():
            assert np.isnan(values[left_out]).all(), name
            np.testing.assert_array_equal(values[kept], without[name])
        assert all(np.isnan(values).all() for values in columns(images[:1], texts[:1]).values())
        assert all(len(values) == 0 for values in columns(images[:0], texts[:0]).values())


def test_a_picture_with_several_captions_is_no_negative_for_itself() -> None:
    """Two captions of each picture, at right angles to all other pictures: each pair is as good as can be."""
    images = np.repeat(np.eye(5, 10), 2, axis=0)
    found = lnc_columns(images, images + np.eye(10)[[5, 6] * 5] * 0.1)
    assert found["lnc_prediction"].tolist() == [1.0] * 10
    assert found["lnc_confidence"].tolist() == [1.0] * 10


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**16), st.integers(2, 40), st.integers(2, 20))
def test_columns_stay_in_their_range_whatever_the_embeddings(seed: int, count: int, batch: int) -> None:
    rng = np.random.default_rng(seed)
    images, texts = rng.standard_normal((2, count, 5))
    for columns in (lnc_columns, gsl_columns):
        for name, values in columns(images, texts, batch=batch, permutations=2, seed=seed).items():
            known = values[~np.isnan(values)]
            assert (known >= 0).all() and (known <= 1).all(), name


# --- GSL ------------------------------------------------------------------------------------------------------------------


def test_g12_parseval_and_phases() -> None:
    rows = unit(RNG.standard_normal((6, 9)))
    z = galc.polar_spectrum(rows)
    np.testing.assert_allclose((z[:, :9] ** 2).mean(axis=1), 1.0, rtol=1e-12)
    assert z.shape == (6, 18)
    assert (np.abs(z[:, 9:]) <= math.pi).all()
    d, m = np.arange(9), 2  # one coefficient, by its definition
    by_hand = (rows[0] * np.exp(-2j * math.pi * d * m / 9)).sum()
    assert z[0, m] == pytest.approx(abs(by_hand))
    assert z[0, 9 + m] == pytest.approx(np.angle(by_hand))


def test_spectrum_of_odd_cases() -> None:
    constant = galc.polar_spectrum(np.ones((1, 4)))
    assert constant.tolist() == [[4, 0, 0, 0, 0, 0, 0, 0]], "no phase where there is no amplitude"
    assert galc.polar_spectrum(np.array([[0.5], [-1.0]])).tolist() == [[0.5], [-1.0]]
    assert galc.polar_spectrum(np.zeros((2, 3))).tolist() == [[0.0] * 6] * 2


def test_g11_min_form_and_the_printed_one() -> None:
    ratio = np.array([1.25, 2.0])
    np.testing.assert_allclose(galc.ratio_agreement(ratio), [0.8, 0.5])
    np.testing.assert_allclose((ratio + 1 / ratio) / 2, [1.025, 1.25])  # what the notes print: no label
    spread = np.exp(RNG.standard_normal(100))
    assert ((spread + 1 / spread) / 2 >= 1).all()
    assert (galc.ratio_agreement(spread) <= 1).all()


def loops_galc(images: np.ndarray, texts: np.ndarray, clean: np.ndarray, n: int) -> float:
    """y* of one noisy pair in the spatial domain, without centring."""

    def cos(a: np.ndarray, b: np.ndarray) -> float:
        return max(1e-6, float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))

    found = []
    for side in (images, texts):
        order = sorted((i for i in range(len(clean)) if clean[i]), key=lambda i: -cos(side[n], side[i]))
        a1, a2 = order[:2]
        r = (cos(images[n], images[a1]) / cos(images[n], images[a2])) / (
            cos(texts[n], texts[a1]) / cos(texts[n], texts[a2])
        )
        found.append(min(r, 1 / r))
    return sum(found) / 2


def test_labels_by_two_anchors_are_those_of_a_loop() -> None:
    images, texts = np.abs(RNG.standard_normal((2, 12, 7)))
    clean = np.arange(12) % 3 > 0
    found = galc.anchor_labels(images, texts, clean, domain="spatial", centring="none")
    assert np.isnan(found[clean]).all()
    for n in np.flatnonzero(~clean):
        assert found[n] == pytest.approx(loops_galc(images, texts, clean, int(n)), rel=1e-4)


def test_fourier_labels_compare_centred_spectra() -> None:
    """The anchors are chosen in the spatial domain and compared in the frequency domain."""
    images, texts = RNG.standard_normal((2, 8, 6))
    clean = np.array([False, *[True] * 7])
    z = [galc.polar_spectrum(unit(side)) for side in (images, texts)]
    z = [unit(side - side.mean(axis=0)) for side in z]
    expected = []
    for side in (unit(images), unit(texts)):
        a1, a2 = np.argsort(-(side[1:] @ side[0]))[:2] + 1
        ratio = [max(rows[0] @ rows[a1], 1e-6) / max(rows[0] @ rows[a2], 1e-6) for rows in z]
        r = ratio[0] / ratio[1]
        expected.append(min(r, 1 / r))
    found = galc.anchor_labels(images, texts, clean)
    assert found[0] == pytest.approx(np.mean(expected), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("negative", ["floor", "shift"])
def test_the_same_place_in_both_modalities_is_a_whole_label(negative: str) -> None:
    images = RNG.standard_normal((6, 5))
    clean = np.array([False, *[True] * 5])
    found = galc.anchor_labels(images, images.copy(), clean, negative=negative)
    assert found[0] == pytest.approx(1.0)


def test_without_two_anchors_there_is_no_label() -> None:
    images, texts = RNG.standard_normal((2, 5, 4))
    for clean in ([False] * 5, [True, False, False, False, False], [True] * 5):
        assert np.isnan(galc.anchor_labels(images, texts, np.array(clean))).all()
    clean = np.array([True, True, True, False, False])
    same = np.zeros((5, 5), bool)
    same[3, [0, 1]] = same[[0, 1], 3] = True  # two of the three anchors show the picture of row 3
    found = galc.anchor_labels(images, texts, clean, same)
    assert np.isnan(found[3]) and not np.isnan(found[4])
    images[3] = images[0]  # identical rows are no anchors either
    same[:] = False
    same[3, 1] = True
    assert np.isnan(galc.anchor_labels(images, texts, clean, same)[3])


def test_gsl_probability_is_the_beta_mixture_of_sct_losses() -> None:
    images, texts = pairs()
    left, right = unit(images), unit(texts)
    losses = np.zeros((2, 60))
    for number, rows in permuted_batches(60, 30, 2, seed=1):
        v, t = left[rows], right[rows]
        s = v @ t.T
        for i, row in enumerate(rows):
            others = [j for j in range(len(rows)) if j != i]
            hardest = max(max(0, 0.2 + s[i, j] - s[i, i]) for j in others) + max(
                max(0, 0.2 + s[j, i] - s[i, i]) for j in others
            )
            intra = np.mean([(v[i] @ v[j] - t[i] @ t[j]) ** 2 for j in range(len(rows))])
            inter = np.mean([(s[i, j] - s[j, i]) ** 2 for j in range(len(rows))])
            losses[number, row] = hardest + intra - 0.1 * inter
    found = gsl_columns(images, texts, batch=30, permutations=2, seed=1)
    expected = np.stack([bmm_split(each).clean_probability for each in losses])
    np.testing.assert_allclose(found["gsl_probability"], expected.mean(axis=0), atol=1e-3)
    always = (expected > 0.5).all(axis=0)
    assert (found["gsl_label"][always] == 1).all()
    assert (found["gsl_label"][(expected <= 0.5).all(axis=0)] < 1).any()
    assert np.median(found["gsl_probability"][15:]) > 0.9 > 0.3 > np.median(found["gsl_probability"][:15])


@pytest.mark.parametrize("how", [{"domain": "time"}, {"centring": "all"}, {"negative": "abs"}])
def test_unknown_switches_are_named(how: dict[str, str]) -> None:
    images, texts = RNG.standard_normal((2, 5, 4))
    (name, value), *_ = how.items()
    with pytest.raises(ConfigError, match=f"{name}='{value}' is unknown; use "):
        galc.anchor_labels(images, texts, np.array([True, True, True, False, False]), **how)


# --- a run ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over embeddings of two files, with a row that has no direction."""
    folder = tmp_path_factory.mktemp("one_step")
    images, texts = pairs()
    images[7] = 0
    for part, rows in enumerate((slice(0, 35), slice(35, 60))):
        for name, side in (("images", images), ("texts", texts)):
            (folder / name).mkdir(exist_ok=True)
            np.save(folder / name / f"x-{part}.npy", side[rows].astype(np.float32))
    done = called("score-embeddings", "--images", "images", "--texts", "texts", "--out", "tables", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_rescore_with_adds_columns_and_changes_nothing_else(run: Path) -> None:
    folder = RunFolder(run / "tables")
    before = read_table(run / "tables")
    assert before.column_names == ["shard", *COLUMNS]
    done = called("rescore", "tables", "--with", "lnc,gsl", cwd=run)
    assert done.returncode == 0, done.stderr
    assert "gsl: gsl_probability above 0.5 for" in done.stderr
    assert "reconstruction from the paper's supplement" in done.stderr
    after = read_table(run / "tables")
    assert after.select(before.column_names).equals(before)
    kept = [
        np.concatenate([read_embeddings(folder.embeddings(stem), side) for stem in ("x-0", "x-1")])
        for side in ("image", "text")
    ]
    for name, values in (lnc_columns(*kept) | gsl_columns(*kept)).items():
        np.testing.assert_array_equal(after[name].to_numpy(), values)
    assert after["lnc_confidence"][7].as_py() is None
    record = read_metadata(folder.table("x-0"))["one_step"]
    assert {name: record[name]["batch"] for name in record} == {"lnc": 128, "gsl": 128}
    assert "reconstruction" in record["gsl"]["note"]
    assert record == read_metadata(folder.table("x-1"))["one_step"]

    whole, written = files_of(run / "tables"), stamps(run / "tables")
    assert called("rescore", "tables", "--with", "gsl,lnc,lnc", cwd=run).returncode == 0
    assert files_of(run / "tables") == whole
    assert called("rescore", "tables", "--beta", "fixed:0.1", cwd=run).returncode == 0
    assert read_table(run / "tables")["lnc_confidence"].equals(after["lnc_confidence"])
    assert stamps(run / "tables") != written
    checked = called("verify", "tables", "--no-rescore", cwd=run)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    rule = called("export", "tables", "--as", "keys", "--where", "lnc_confidence > 0.5", "--out", "keys.txt", cwd=run)
    assert rule.returncode == 0, rule.stderr
    expected = pc.sum(pc.greater(after["lnc_confidence"], 0.5)).as_py()
    assert len((run / "keys.txt").read_text().split()) == expected > 0


def test_crcl_takes_its_temperature(run: Path) -> None:
    done = called("rescore", "tables", "--with", "crcl", "--temperature", "0.2", cwd=run)
    assert done.returncode == 0, done.stderr
    assert "τ = 0.2" in done.stderr
    record = read_metadata(RunFolder(run / "tables").table("x-0"))["one_step"]
    assert record["crcl"]["temperature"] == 0.2
    assert pc.count(read_table(run / "tables", ["crcl_label"])["crcl_label"]).as_py() == 59


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--with", "lnc,tango"), "with 'tango' is unknown; use some of lnc,crcl,gsl"),
        (("--temperature", "0.1"), "--temperature is that of crcl; add --with crcl"),
        (("--with", "crcl", "--temperature", "0"), "temperature 0.0 cannot divide cosines; use 0.05"),
    ],
)
def test_what_cannot_work_is_said_first(run: Path, words: tuple[str, ...], said: str) -> None:
    before = files_of(run / "tables")
    done = called("rescore", "tables", *words, cwd=run)
    assert done.returncode != 0
    assert said in done.stderr
    assert files_of(run / "tables") == before


def test_images_and_texts_of_two_encoders_have_no_such_columns(tmp_path: Path) -> None:
    np.save(tmp_path / "i.npy", CENTRES.astype(np.float32))
    np.save(tmp_path / "t.npy", CENTRES[:, :9].astype(np.float32))
    words = ("score-embeddings", "--images", "i.npy", "--texts", "t.npy", "--out", "tables")
    assert called(*words, cwd=tmp_path).returncode == 0
    done = called("rescore", "tables", "--with", "lnc", cwd=tmp_path)
    assert done.returncode != 0
    assert "these have 16 and 9 numbers; use a run of pairs by one model" in done.stderr


def test_the_usual_temperature_is_that_of_the_kind_of_model() -> None:
    clip = {"model": {"model": "ViT-B-32", "pretrained": "openai"}}
    assert usual_temperature(clip) == 0.01
    for model in (None, {"model": "embedded", "pretrained": None}, {"model": "python:x:Y", "pretrained": "z"}):
        assert usual_temperature({"model": model}) == 0.05


@pytest.mark.parametrize("how", [{"methods": ("osa",)}, {"batch": 1}, {"permutations": 0}, {"temperature": -1.0}])
def test_settings_check_themselves(how: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="use "):
        OneStep(**how)  # type: ignore[arg-type]


def test_arrays_that_do_not_fit_are_refused() -> None:
    for columns in (lnc_columns, gsl_columns):
        with pytest.raises(ConfigError, match=r"do not fit; give \(N, d\) for both"):
            columns(np.zeros((3, 2)), np.zeros((2, 2)))
