"""One call from Python scores as the run does, takes pictures in any form, and shows them in a notebook."""

import io
from pathlib import Path

import pytest
from PIL import Image

import noisegate as ng
from noisegate.pipeline.estimators import as_estimator
from noisegate.pipeline.inspect.scored_pairs import SHOWN, score
from noisegate.pipeline.pairs.scorer import Scorer
from tests.fakes import ColourModel, picture
from tests.jobs import BETA


@pytest.fixture
def scorer() -> Scorer:
    return Scorer(as_estimator(ColourModel()), ng.estimate_beta(mode=BETA))


def test_pictures_may_be_paths_bytes_or_images(scorer: Scorer, tmp_path: Path) -> None:
    data = picture("red", (20, 16))
    (tmp_path / "red.png").write_bytes(data)
    forms = [data, tmp_path / "red.png", str(tmp_path / "red.png"), Image.open(io.BytesIO(data))]
    found = score([(form, "it is red") for form in forms], scorer=scorer)
    assert len(found) == 4 and found["status"] == ["ok"] * 4
    assert len(set(found["similarity"])) == 1 and found["clean"] == [True] * 4
    assert found["clean_probability"] == [None] * 4 and "not calibrated" in repr(found)


def test_a_bad_pair_is_a_row_with_a_status(scorer: Scorer, tmp_path: Path) -> None:
    found = score([(b"junk", "a"), (tmp_path / "none.png", "b"), (picture("red"), "it is red")], scorer=scorer)
    assert [status == "ok" for status in found["status"]] == [False, False, True]
    assert found["similarity"][:2] == [None, None] and "2 failed" in repr(found)
    frame = found.to_pandas()
    assert frame.columns.tolist() == [
        "caption",
        "status",
        "error",
        "similarity",
        "osa_weight",
        "clean_probability",
        "clean",
    ]
    assert frame["caption"].tolist() == ["a", "b", "it is red"]
    assert len(score([], scorer=scorer)) == 0


def test_a_notebook_shows_pictures_and_verdicts(scorer: Scorer) -> None:
    pairs = [(picture("red"), "it is <b>red</b>"), (picture("blue"), "it is red"), (b"junk", "none")]
    page = score(pairs, scorer=scorer)._repr_html_()
    assert page.count("data:image/jpeg") == 2
    assert "it is &lt;b&gt;red" in page and "kept" in page and "bad_image" in page
    many = score([(picture("red"), "it is red")] * (SHOWN + 3), scorer=scorer)._repr_html_()
    assert many.count("<img") == SHOWN and "3 more" in many


def test_the_public_name_loads_a_model_of_its_own() -> None:
    found = ng.score([(picture("red", (64, 64)), "a red square")])
    assert found["status"] == ["ok"] and found["clean"] == [True] and found["similarity"][0] > found.beta
