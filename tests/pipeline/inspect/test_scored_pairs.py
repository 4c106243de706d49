"""One call from Python scores as a run does, takes pictures in any form, and shows them in a notebook."""

import io
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import noisegate as ng
from noisegate.pipeline.datasets.scenes import write_scenes
from noisegate.pipeline.errors import TableError
from noisegate.pipeline.estimators import as_estimator
from noisegate.pipeline.inspect.notebook import SHOWN
from noisegate.pipeline.pairs.scorer import Scorer
from noisegate.pipeline.shards.locate import find_shards
from noisegate.pipeline.shards.read import ShardReader
from tests.errors import refused
from tests.fakes import ColourModel, picture
from tests.jobs import BETA


@pytest.fixture
def scorer() -> Scorer:
    return Scorer(as_estimator(ColourModel()), ng.estimate_beta(mode=BETA))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scored") / "scenes"
    write_scenes(folder, 80, 1, seed=3, size=64)
    return folder


def read_pairs(folder: Path) -> Iterator[tuple[bytes, str]]:
    for shard in find_shards(folder):
        for raw in ShardReader(shard):
            assert raw.image is not None
            yield raw.image, raw.parts["txt"].decode()


class TestPictures:
    def test_every_form_gives_the_same_score(self, scorer: Scorer, tmp_path: Path) -> None:
        data = picture("red", (20, 16))
        (tmp_path / "red.png").write_bytes(data)
        image = Image.open(io.BytesIO(data))
        forms: list[Any] = [data, tmp_path / "red.png", str(tmp_path / "red.png"), image, np.asarray(image)]
        found = ng.score([(form, "it is red") for form in forms], scorer=scorer)
        assert len(found) == 5 and found["status"] == ["ok"] * 5
        assert len(set(found["similarity"])) == 1 and found["clean"] == [True] * 5

    def test_an_opened_photo_is_turned_upright_like_its_file(self) -> None:
        side = Image.new("RGB", (32, 16), "red")
        side.paste("blue", (0, 0, 16, 16))
        exif = Image.Exif()
        exif[274] = 6  # turned by 90 degrees
        file = io.BytesIO()
        side.save(file, "PNG", exif=exif)
        seen: list[Image.Image] = []

        class Watching(ColourModel):
            def encode_images(self, images: list[Image.Image]) -> Any:
                seen.extend(images)
                return super().encode_images(images)

        watching = Scorer(as_estimator(Watching()), ng.estimate_beta(mode=BETA))
        seen.clear()
        ng.score([(file.getvalue(), "a"), (Image.open(io.BytesIO(file.getvalue())), "a")], scorer=watching)
        assert [image.size for image in seen] == [(16, 32), (16, 32)]
        assert seen[0].tobytes() == seen[1].tobytes()

    def test_a_bad_pair_is_a_row_with_a_status(self, scorer: Scorer, tmp_path: Path) -> None:
        red = picture("red")
        bad: list[tuple[Any, str]] = [
            ((b"junk", "a"), "bad_image"),
            ((tmp_path / "none.png", "b"), "no_image"),
            ((tmp_path, "b"), "no_image"),
            ((None, "c"), "no_image"),
            (("a\0b", "c"), "no_image"),
            (([1, 2], "c"), "bad_image"),
            ((np.zeros((4, 4, 3), np.float32), "c"), "bad_image"),
            ((np.zeros((0, 4, 3), np.uint8), "c"), "bad_image"),
            ((Image.open(io.BytesIO(red[:-40])), "c"), "bad_image"),
            ((red, None), "no_text"),
            ((red, "  "), "no_text"),
            ((red, float("nan")), "bad_text"),
            ((red, "\ud800"), "bad_text"),
            ("xy", "broken"),
            (red, "broken"),
            ((red, "a", "b"), "broken"),
            (None, "broken"),
        ]
        found = ng.score([*(pair for pair, _ in bad), (red, "it is red")], scorer=scorer)
        assert found["status"] == [*(status for _, status in bad), "ok"]
        assert all(found["error"][:-1]) and found["similarity"][:-1] == [None] * len(bad)
        assert found["clean"][-1] is True and f"{len(bad)} failed" in repr(found)
        frame = found.to_pandas()
        assert frame.columns.tolist() == [
            "caption",
            "status",
            "error",
            "similarity",
            "pair_quality",
            "osa_weight",
            "clean_probability",
            "clean",
        ]
        assert frame["caption"].tolist()[:2] == ["a", "b"] and found["caption"][-1] == "it is red"
        assert "none.png" in found["error"][1]

    def test_a_generator_is_read_batch_by_batch(self, scorer: Scorer) -> None:
        alive = most = 0

        def gone() -> None:
            nonlocal alive
            alive -= 1

        def pairs() -> Iterator[tuple[Image.Image, str]]:
            nonlocal alive, most
            for _ in range(400):
                image = Image.new("RGB", (8, 8), "red")
                weakref.finalize(image, gone)
                alive += 1
                most = max(most, alive)
                yield image, "it is red"

        assert len(ng.score(pairs(), scorer=scorer)) == 400
        assert most <= 2 * scorer.estimator.batch_size + SHOWN


class TestArguments:
    @pytest.mark.parametrize("pairs", ["photo.jpg", {"photo.jpg": "a"}, 7, ("photo.jpg", "a caption")])
    def test_what_holds_no_pairs(self, pairs: Any) -> None:
        with refused("pairs"):
            ng.score(pairs)

    def test_others(self, scorer: Scorer, tmp_path: Path) -> None:
        with refused("beta", "half"):
            ng.score([], beta="half")
        with refused("estimator"):
            ng.score([], model=7)  # type: ignore[arg-type]
        with refused("run", error=TableError):
            ng.score([], run=tmp_path)
        with refused("column", "weight"):
            ng.score([], scorer=scorer)["weight"]

    def test_no_pairs_at_all(self) -> None:
        empty = ng.score([], beta="fixed:0.4")
        assert len(empty) == 0 and not empty.calibrated and empty.noise_rate is None
        assert empty._repr_html_()


class TestCalibration:
    def test_enough_pairs_are_scored_as_annotate_scores_them(self, scenes: Path, tmp_path: Path) -> None:
        """The embeddings of two batches differ in the last bit, and those on an edge of float16 are rounded apart."""
        summary = ng.annotate(scenes, tmp_path / "tables", workers=0)
        table = ng.read_table(tmp_path / "tables")
        found = ng.score(read_pairs(scenes))
        assert found.calibration and summary.calibration and summary.beta
        assert found.calibration.score == summary.calibration.score == "pair_quality"
        assert found.noise_rate == pytest.approx(summary.calibration.noise_rate, abs=1e-3)
        assert found.noise_interval == pytest.approx(summary.calibration.noise_interval, abs=1e-3)
        assert found.beta == pytest.approx(summary.beta.value, abs=1e-3)
        for name, within in (("similarity", 1e-5), ("pair_quality", 1e-4), ("clean_probability", 2e-3)):
            np.testing.assert_allclose(found[name], table[name].to_numpy(), atol=within, err_msg=name)
        assert found["clean"] == table["clean"].to_pylist()
        again = ng.score(list(read_pairs(scenes))[:3], run=tmp_path / "tables")
        assert again.calibration == summary.calibration and again.beta == summary.beta.value
        np.testing.assert_allclose(again["clean_probability"], table["clean_probability"].to_numpy()[:3], atol=1e-3)

    def test_noise_is_estimated_from_the_pairs(self, scenes: Path) -> None:
        pairs = list(read_pairs(scenes)) * 4
        captions = [caption for _, caption in pairs]
        wrong = [(pairs[i][0], captions[(i + 1) % len(captions)]) for i in range(160)]
        found = ng.score(wrong + pairs[160:])
        assert found.noise_interval and found.noise_interval[0] <= 0.5 <= found.noise_interval[1]
        assert "estimated noise" in repr(found)

    def test_few_pairs_have_no_probability(self, scenes: Path) -> None:
        found = ng.score([(b"junk", "none"), *list(read_pairs(scenes))[:19]], beta="fixed:0.4")
        assert not found.calibrated and found["clean_probability"] == [None] * 20
        assert [value is None for value in found["pair_quality"]] == [True] + [False] * 19
        assert "not calibrated" in repr(found) and "20 pairs" in repr(found)
        assert "drawn scenes only" in found.notes[0] and "see .notes" in repr(found)

    def test_a_model_that_cannot_tell_says_so(self) -> None:
        rng = np.random.default_rng(0)
        pairs = [(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8), f"photo {i} of {i * 7}") for i in range(60)]
        found = ng.score(pairs)
        assert found.calibrated and found.notes and "too few to tell" in found.notes[0]
        assert "too few to tell" in found._repr_html_() and "estimated noise 0%" not in repr(found)


def test_a_notebook_shows_pictures_and_verdicts(scorer: Scorer) -> None:
    pairs = [(picture("red"), "it is <b>red</b>"), (picture("blue"), "it is red"), (b"junk", "none")]
    page = ng.score(pairs, scorer=scorer)._repr_html_()
    assert page.count("data:image/jpeg") == 2
    assert "it is &lt;b&gt;red" in page and "kept" in page and "bad_image" in page
    many = ng.score([(picture("red"), "it is red")] * (SHOWN + 3), scorer=scorer)._repr_html_()
    assert many.count("<img") == SHOWN and "3 more" in many
