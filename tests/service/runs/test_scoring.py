"""Where model, β and calibration come from."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from noisegate.pipeline.errors import MismatchError, TableError
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.pairs.scorer import read_scoring
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import RunFolder
from noisegate.service.engine.items import Embedded
from noisegate.service.errors import Unavailable
from noisegate.service.runs.scoring import plan_scorer
from noisegate.service.settings import load_settings
from tests.errors import refused
from tests.fakes import OtherModel, estimator, pairs, write_tar
from tests.jobs import score
from tests.service.serving import COLOURS


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_tar(folder / "shards" / "x.tar", pairs(40))
    score(folder / "shards", folder / "out", estimator=ModelSpec(COLOURS), beta="auto")
    return folder / "out"


def test_a_run_gives_model_beta_and_calibration(run: Path) -> None:
    found = plan_scorer(load_settings(runs={"r": run}, trust_run=True, batch_size=7))
    beta, calibration, cut = read_scoring(RunFolder(run), "x")
    assert (found.spec.model, found.spec.batch_size, found.run) == (COLOURS, 7, "r")
    assert (found.beta, found.calibration, found.cut, found.measure) == (beta, calibration, cut, False)
    found.complete(estimator().identity, None)
    assert found.facts()["scorer"] == estimator().identity.digest
    expected = found.facts()["calibration"]["expected"]
    assert 0 <= expected["clean_precision"] <= 1
    json.dumps(found.facts(), allow_nan=False)


def test_a_run_that_records_code_needs_trust_or_its_model_named(run: Path) -> None:
    with refused("model", COLOURS):
        plan_scorer(load_settings(runs={"r": run}))
    assert plan_scorer(load_settings(runs={"r": run}, model=COLOURS, scorer_run="r")).run == "r"


def test_another_model_than_the_runs_is_refused_with_the_difference(run: Path) -> None:
    found = plan_scorer(load_settings(runs={"r": run}, trust_run=True))
    with refused("model", estimator(kind=OtherModel).identity.model, MismatchError):
        found.complete(estimator(kind=OtherModel).identity, None)


def test_other_libraries_than_the_runs_are_a_line_in_the_log(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = plan_scorer(load_settings(runs={"r": run}, trust_run=True))
    upgraded = replace(estimator().identity, versions=(("torch", "99"),))
    found.complete(upgraded, None)
    assert found.identity == upgraded
    [record] = caplog.records
    assert (record.levelname, record.run) == ("WARNING", "r")  # type: ignore[attr-defined]
    assert "version of torch: None there, 99 now" in record.differences  # type: ignore[attr-defined]


def test_settings_by_hand_win(run: Path) -> None:
    fixed = plan_scorer(load_settings(runs={"r": run}, trust_run=True, beta="fixed:0.1"))
    assert fixed.beta is not None
    assert (fixed.beta.value, fixed.calibration is None) == (0.1, False)
    assert plan_scorer(load_settings(runs={"r": run}, trust_run=True, beta="random_inputs")).measure
    named = plan_scorer(load_settings(runs={"r": run}, model="embedded"))
    assert (named.spec.model, named.run, named.measure) == ("embedded", None, True)
    both = plan_scorer(load_settings(runs={"r": run}, model=COLOURS, scorer_run="r"))
    assert (both.spec.model, both.run, both.measure) == (COLOURS, "r", False)


def test_without_anything_it_is_the_embedded_model_with_a_measured_beta() -> None:
    found = plan_scorer(load_settings())
    assert (found.spec.model, found.measure, found.recorded) == ("embedded", True, None)
    with pytest.raises(Unavailable):
        found.score([Embedded(similarity=0.5)])


def test_scores_are_those_of_the_pipeline(run: Path) -> None:
    found = plan_scorer(load_settings(runs={"r": run}, trust_run=True, beta="fixed:0.2"))
    image, text = (read_embeddings(RunFolder(run).embeddings("x"), part)[0] for part in ("image", "text"))
    pair = Embedded(similarity=0.7, image=image, text=text)
    good, bad, other = found.score([pair, Embedded(status="bad_image"), replace(pair, similarity=0.1)])
    assert good["osa_weight"] == pytest.approx(0.125)
    assert other["osa_weight"] == 0
    assert [row["clean"] for row in (good, bad, other)] == [True, None, False]
    assert set(bad.values()) == {None}
    assert good["clean_probability"] is not None


def test_runs_that_cannot_give_a_scorer(run: Path, tmp_path: Path) -> None:
    with pytest.raises(TableError):
        plan_scorer(load_settings(runs={"r": tmp_path}))
    facts = json.loads((run / "_run.json").read_text())
    (tmp_path / "_run.json").write_text(json.dumps(facts | {"finished": False}))
    with refused("run", str(tmp_path), TableError):
        plan_scorer(load_settings(runs={"r": tmp_path}))
    (tmp_path / "_run.json").write_text(json.dumps(facts | {"model": None}))
    with refused("model"):
        plan_scorer(load_settings(runs={"r": tmp_path}))
