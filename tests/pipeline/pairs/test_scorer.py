"""Batches to embeddings and cosines, cosines to weights, and the scorer of a finished run."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import noisegate as ng
from noisegate import read_table
from noisegate.pipeline.errors import MismatchError, TableError
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.estimators.by_name import CustomEstimator
from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.pairs.scorer import encode_samples, load_scorer, model_of_run, read_scorer, score_pairs
from noisegate.pipeline.shards.workers import Decoded
from noisegate.pipeline.system.array_types import Float32
from tests.errors import refused
from tests.fakes import BLANK, LONG, NOT_FINITE, ZERO, ColourModel, estimator, pairs, picture, write_tar
from tests.jobs import score

RED: NDArray[np.uint8] = np.full((8, 8, 3), (222, 36, 36), np.uint8)
BLUE: NDArray[np.uint8] = np.full((8, 8, 3), (40, 92, 228), np.uint8)
NOTHING: NDArray[np.uint8] = np.full((8, 8, 3), BLANK, np.uint8)
COLOURS, OTHER = "python:tests.fakes:ColourModel", "python:tests.fakes:OtherModel"


def sample(index: int, pixels: NDArray[np.uint8] | None, text: str | None, status: str = "ok") -> Decoded:
    return Decoded(f"k{index}", index, status, pixels=pixels, text=text)


def test_rows_stay_in_their_places() -> None:
    samples = [
        sample(0, None, "red", "no_image"),
        sample(1, RED, "a red thing"),
        sample(2, RED, None, "no_text"),
        sample(3, None, None, "broken"),
        sample(4, BLUE, "a red thing"),
    ]
    found = encode_samples(estimator(), samples, {})
    assert found.images.any(axis=1).tolist() == [False, True, True, False, True]
    assert found.texts.any(axis=1).tolist() == [True, True, False, False, True]
    assert np.isnan(found.similarity).tolist() == [True, False, True, True, False]
    assert found.similarity[1] > 0.7 > 0.4 > found.similarity[4]
    for i in (1, 4):
        assert found.similarity[i] == pytest.approx(float(found.images[i] @ found.texts[i]), abs=1e-6)
    assert [s.status for s in samples] == ["no_image", "ok", "no_text", "broken", "ok"]


def test_an_embedding_that_is_none_is_invalid() -> None:
    samples = [sample(0, RED, NOT_FINITE), sample(1, NOTHING, "red"), sample(2, RED, ZERO), sample(3, RED, "red")]
    found = encode_samples(estimator(), samples, {})
    assert [s.status for s in samples] == ["invalid", "invalid", "invalid", "ok"]
    assert [s.error for s in samples] == [
        "the text embedding is zero or not finite",
        "the image embedding is zero or not finite",
        "the text embedding is zero or not finite",
        None,
    ]
    assert np.isfinite(found.similarity).tolist() == [False, False, False, True]
    assert np.isfinite(found.texts).all()


def test_a_text_that_the_model_cuts_is_flagged_in_every_batch() -> None:
    known: dict[str, NDArray[np.float32]] = {}
    for _ in range(2):
        samples = [sample(0, RED, f"red {LONG}"), sample(1, RED, "red"), sample(2, RED, None)]
        encode_samples(estimator(), samples, known)
        assert [one.flags for one in samples] == [("text_truncated",), (), ()]


def test_a_text_is_encoded_once() -> None:
    model = ColourModel()
    wrapped = estimator()
    wrapped._inner = model
    known: dict[str, NDArray[np.float32]] = {}
    for _ in range(2):
        encode_samples(wrapped, [sample(0, RED, "red"), sample(1, RED, "red"), sample(2, RED, "blue")], known)
    assert model.batches == [("texts", 2), ("images", 3), ("images", 3)]


@pytest.mark.parametrize("samples", [[], [sample(0, None, None, "broken")]])
def test_a_batch_with_nothing_to_encode(samples: list[Decoded]) -> None:
    found = encode_samples(estimator(), samples, {})
    assert found.images.shape == found.texts.shape == (len(samples), 0)
    assert np.isnan(found.similarity).all()


def test_a_model_without_a_common_space_is_refused() -> None:
    class TwoSpaces(CustomEstimator):
        def encode_texts(self, texts: Sequence[str]) -> Float32:
            return super().encode_texts(texts)[:, :7]

    with refused("model", "two"):
        encode_samples(TwoSpaces(ColourModel(), "two"), [sample(0, RED, "red")], {})


def test_weights_and_the_cut() -> None:
    scores = score_pairs(np.array([0.5, 0.25, 0.1, np.nan], np.float32), Beta(0.25, "fixed"))
    assert scores.osa_weight[:3].tolist() == [0.25**2 * 0.75, 0, 0]
    assert np.isnan(scores.osa_weight[3])
    assert scores.clean.tolist() == [True, False, False, False]
    assert np.isnan(scores.clean_probability).all()


# --- the scorer of a finished run ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_tar(folder / "shards" / "x.tar", pairs(40))
    score(folder / "shards", folder / "out", estimator=ModelSpec(COLOURS), beta="auto")
    for name, data in pairs(40):
        (folder / name).write_bytes(data)
    return folder / "out"


def change(run: Path, folder: Path, **changes: object) -> Path:
    """A copy of the run's record alone, with other values."""
    folder.mkdir(exist_ok=True)
    (folder / "_run.json").write_text(json.dumps(json.loads((run / "_run.json").read_text()) | changes))
    return folder


def test_the_scorer_of_a_run_gives_its_rows_again(run: Path) -> None:
    table = read_table(run).to_pylist()
    pictures = [run.parent / f"{row['key']}.png" for row in table]
    captions = [(run.parent / f"{row['key']}.txt").read_text() for row in table]
    rows = list(load_scorer(run, trust=True).score(pictures, captions))
    assert rows == [{name: row[name] for name in rows[0]} for row in table]


def test_a_bad_pair_is_a_row_with_a_status(tmp_path: Path) -> None:
    scorer = load_scorer(model=COLOURS, beta="fixed:0.4")
    rows = list(scorer.score([picture((222, 36, 36)), b"broken", tmp_path / "absent.png"], ["red", "red", "red"]))
    assert [row["status"] for row in rows] == ["ok", "bad_image", "no_image"]
    assert rows[2]["error"] == f"{tmp_path / 'absent.png'}: No such file or directory"
    assert rows[1]["similarity"] is rows[1]["clean"] is rows[0]["clean_probability"] is None
    assert (rows[0]["clean"], scorer.beta.value) == (True, 0.4)


def test_what_is_given_wins_over_the_run(run: Path) -> None:
    assert load_scorer(run, beta="fixed:0.1", trust=True).beta.value == 0.1
    assert load_scorer(run, model=COLOURS, beta="random_inputs").beta.mode == "random_inputs"
    with refused("model", OTHER, MismatchError):
        load_scorer(run, model=OTHER)
    with refused("beta", "intersection"):
        load_scorer(run, beta="intersection")


def test_another_model_is_refused_and_other_libraries_are_listed(run: Path) -> None:
    recorded, identity = read_scorer(run), estimator().identity
    assert recorded.compare(identity) == []
    assert "version of torch: None there, 99 now" in recorded.compare(replace(identity, versions=(("torch", "99"),)))
    with refused("model", identity.model, MismatchError) as caught:
        recorded.compare(replace(identity, weights="colours-2"))
    assert "colours-1 there, colours-2 now" in str(caught.value)


def test_runs_that_have_no_scorer(run: Path, tmp_path: Path) -> None:
    with pytest.raises(TableError):
        read_scorer(tmp_path / "absent")
    with refused("run", str(tmp_path), TableError):
        read_scorer(change(run, tmp_path, finished=False))
    with refused("run", str(tmp_path), TableError):  # no tables, and so no β
        load_scorer(change(run, tmp_path))


FOREIGN_FACTORY = "from pathlib import Path\nPath('was-here').touch()\nfrom tests.fakes import ColourModel as make\n"


@pytest.mark.parametrize("ask", [load_scorer, lambda run: ng.score([], run=run), ng.verify])
def test_a_run_from_elsewhere_runs_no_code(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Path], object]
) -> None:
    recorded = "python:foreign.helper:make"
    folder = tmp_path / "foreign"
    shutil.copytree(run, folder)
    change(run, folder, model={"model": recorded, "pretrained": None, "dtype": "auto"})
    (folder / "helper.py").write_text(FOREIGN_FACTORY)
    monkeypatch.chdir(tmp_path)
    with refused("model", recorded) as caught:
        ask(folder)
    assert not (tmp_path / "was-here").exists()
    assert "runs code of the module foreign.helper" in str(caught.value)


@pytest.mark.parametrize(
    ("model", "pretrained", "asks"),
    [
        ("embedded", None, False),
        ("ViT-B-32", "openai", False),
        ("ViT-B-32", "random:0", False),
        ("ViT-B-32", __file__, True),
        ("local-dir:models/a", None, True),
        ("hf:org/name", None, True),
        ("hf-hub:org/name", None, True),
        (COLOURS, None, True),
    ],
)
def test_recorded_models_that_need_trust(model: str, pretrained: str | None, asks: bool) -> None:
    run = {"model": {"model": model, "pretrained": pretrained}, "scorer": {"dtype": "float32"}}
    if asks:
        with refused("model", model):
            model_of_run(run)
    else:
        assert model_of_run(run).model == model
    assert model_of_run(run, model, pretrained).model == model_of_run(run, trust=True).model == model


def test_the_model_of_a_run_has_its_precision_and_decoding() -> None:
    run = {"model": {"model": "ViT-B-32", "pretrained": "openai", "draft": True}, "scorer": {"dtype": "bfloat16"}}
    assert model_of_run(run, device="cpu") == ModelSpec(
        "ViT-B-32", "openai", "cpu", "bfloat16", draft=True, decoder="pillow"
    )
    assert model_of_run(run, "RN50", dtype="float32") == ModelSpec(
        "RN50", dtype="float32", draft=True, decoder="pillow"
    )
    own = {"model": {"model": COLOURS, "pretrained": None}, "scorer": {"dtype": "its own"}}
    assert model_of_run(own, device="cpu", batch_size=4, trust=True) == ModelSpec(COLOURS, batch_size=4)
    with refused("model", None):
        model_of_run({"model": None, "scorer": {"dtype": "float32"}})
