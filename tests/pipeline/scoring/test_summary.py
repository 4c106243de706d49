"""What a summary warns of before somebody trusts the weights."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noisegate import read_table
from noisegate.pipeline.cli.annotate import print_summary
from noisegate.pipeline.cli.output import Output
from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.pairs.calibration_fit import calibrate_pairs
from noisegate.pipeline.scoring.summary import Summary, label_promise
from noisegate.pipeline.scoring.summary_rows import summary_rows
from tests.embeddings import clusters, scored

RNG = np.random.default_rng(5)
SHUFFLED = RNG.normal(0.15, 0.03, 4000)  # drawn once each, so that the order of the tests does not matter
CLEAN, BLIND = RNG.normal(0.3, 0.03, 1000), RNG.normal(0.15, 0.03, 1000)
HALF = np.concatenate([CLEAN[:600], BLIND[:400]])
PLAIN = Summary(
    out="tables",
    model="ViT-B-32",
    samples=1000,
    statuses={"ok": 1000},
    errors={},
    flags={},
    shards=1,
    damaged_shards={},
    failed_shards={},
    beta=Beta(0.215, "random_inputs"),
    calibration=None,
    labels=None,
    neighbourhood=None,
    kept=600,
    judged=900,
    scored=1000,
    zero_weight=400,
    mean_weight=0.01,
    similarity_quantiles={},
    encoded=0,
    pairs_per_second=None,
    seconds=1.0,
)


def calibrated(given: np.ndarray) -> Summary:
    return replace(PLAIN, calibration=calibrate_pairs(given, SHUFFLED))


def test_a_model_that_tells_pairs_from_shuffled_ones_needs_no_warning() -> None:
    assert PLAIN.warnings == []
    assert calibrated(HALF).warnings == []


def test_a_model_that_does_not_is_named() -> None:
    blind = calibrated(BLIND)
    assert "hardly tells your pairs from shuffled ones" in blind.warnings[0]
    assert "drawn scenes" not in blind.warnings[0]
    assert "embedded understands drawn scenes only" in replace(blind, model="embedded").warnings[0]


def test_a_cut_that_loses_most_right_pairs_is_not_trusted() -> None:
    rng = np.random.default_rng(6)
    faint = np.concatenate([rng.normal(0.2, 0.02, 500), BLIND[:500]])  # most right pairs lie below β
    weak = calibrated(faint)
    assert weak.expected is not None and weak.expected.clean_recall < 0.5
    assert "the cut is expected to lose more right pairs than it keeps" in weak.warnings[0]
    assert "drawn scenes" not in weak.warnings[0]
    assert "embedded understands drawn scenes only" in replace(weak, model="embedded").warnings[0]


def test_a_void_calibration_gives_no_figures(capsys: pytest.CaptureFixture[str]) -> None:
    few = replace(PLAIN, calibration=calibrate_pairs(BLIND[:26], SHUFFLED[:26]))
    for summary, words in ((calibrated(BLIND), "cannot be told by this model"), (few, "from these few pairs")):
        assert summary.to_dict()["calibration"] is None
        print_summary(summary, Output(as_json=False))
        printed = capsys.readouterr().out
        assert words in printed
        assert "expected of w > 0" not in printed
    assert "26 pairs are too few" in few.warnings[0]
    assert calibrated(HALF).to_dict()["calibration"]["noise_rate"] == pytest.approx(0.4, abs=0.05)


@pytest.mark.parametrize(("model_is_sure", "words"), [(True, "the data looks clean"), (False, "try another --beta")])
def test_nothing_rejected_is_right_for_clean_data(model_is_sure: bool, words: str) -> None:
    summary = calibrated(CLEAN) if model_is_sure else PLAIN
    assert words in replace(summary, zero_weight=0).warnings[0]


def test_everything_rejected_and_nothing_scored() -> None:
    assert "all weights are 0" in replace(PLAIN, zero_weight=1000).warnings[0]
    failed = replace(PLAIN, statuses={"no_text": 1000}, errors={"no_text": "no json field 'title'"}, scored=0)
    (note,) = failed.warnings
    assert note.startswith("no sample could be scored: no json field 'title'; name the caption's json field")
    broken = replace(PLAIN, statuses={"bad_image": 1000}, errors={"bad_image": "OSError: cut"}, scored=0)
    assert broken.warnings == ["no sample could be scored: OSError: cut"]


def by_neighbourhoods(given: np.ndarray | None) -> Summary:
    """A run of two encoders, whose pairs have no cosine."""
    calibration = None if given is None else calibrate_pairs(given, SHUFFLED).to_dict()
    return replace(
        PLAIN, model="arrays", beta=None, scored=0, neighbourhood={"alone": True, "calibration": calibration}
    )


def test_neighbourhoods_that_tell_nothing_are_named_too() -> None:
    assert by_neighbourhoods(HALF).warnings == []
    assert "neighbourhoods hardly tell" in by_neighbourhoods(BLIND).warnings[0]
    assert by_neighbourhoods(None).warnings == [
        "fewer than 20 pairs: too few to tell by neighbourhoods which are clean"
    ]


def test_cosines_of_arrays_that_tell_nothing_may_be_of_two_encoders() -> None:
    blind = replace(calibrated(BLIND), model="arrays")
    assert "use --separate-spaces" in blind.warnings[0]
    assert "--model" not in blind.warnings[0]


def test_near_duplicates_everywhere_are_doubted() -> None:
    assert replace(PLAIN, flags={"duplicate": 500}).warnings == []
    (note,) = replace(PLAIN, flags={"duplicate": 501}).warnings
    assert note.startswith("501 of 1,000 samples are flagged as near duplicates")


FUSED = {
    "k": 50,
    "classes": 10,
    "noise_rate": 0.376,
    "noise_interval": [0.206, 0.526],
    "noise_model": "detailed",
    "changed_wrong": 56.4,
    "source_weights": {"probe": 0.5},
    "expected": {"clean_precision": 0.98, "clean_recall": 0.99},
    "ece": 0.01,
}


@pytest.mark.parametrize(
    ("labels", "pairs", "shown", "hidden"),
    [
        (
            {"repairs": True},
            False,
            [
                "expected of clean precision 98.0 %",
                "labels changed 1,234, about 56 of the new ones wrong",
                "kept as clean 600 of 900; 100 have no label",
            ],
            ["none"],
        ),
        ({"repairs": False, "repair": "never"}, False, ["labels changed none: --repair never"], ["surely"]),
        (  # believed in part: labels are doubted, but not changed
            {"repairs": False},
            False,
            [
                "37.6 % (95 %: 20.6 % to 52.6 %), detailed model",
                "precision 98.0 %",
                "none: noise is not shown",
            ],
            ["not known"],
        ),
        (
            {"repairs": False, "noise_rate": 0.0},
            False,
            ["expected of clean not known: no noise is shown, up to 52.6 % is possible"],
            ["precision"],
        ),
        (
            {"repairs": True},
            True,
            ["expected of labels precision", "kept as clean 600 of 900, by caption and label"],
            [],
        ),
    ],
)
def test_what_is_said_of_labels_does_not_contradict_itself(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    labels: dict[str, Any],
    pairs: bool,
    shown: list[str],
    hidden: list[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_summary(
        replace(PLAIN, beta=PLAIN.beta if pairs else None, labels=FUSED | labels, repaired=1234 * labels["repairs"]),
        Output(as_json=False),
    )
    said = " ".join(capsys.readouterr().out.split())
    assert all(words in said for words in shown), said
    assert not any(words in said for words in hidden), said


def test_labels_that_nothing_is_known_of_are_not_to_be_dropped(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((400, 12)).astype(np.float32)
    (note,) = scored(tmp_path, noise, labels=rng.integers(0, 4, 400)).warnings
    assert re.fullmatch(r"between none and \d+\.\d % of the labels are wrong: .*; do not drop samples by clean", note)
    images, true = clusters(count=400)
    assert scored(tmp_path / "good", images, labels=true).warnings == []
    unknown = FUSED | {"repairs": False, "noise_interval": [0.0, 0.7]}
    assert label_promise(unknown) is None
    shown = replace(PLAIN, beta=None, labels=unknown)
    assert ("label noise rate", "cannot be told (95 %: 0.0 % to 70.0 %), detailed model") in summary_rows(shown)
    assert (shown.to_dict()["labels"]["noise_rate"], shown.to_dict()["labels"]["expected"]) == (None, None)
    assert replace(shown, labels=FUSED).to_dict()["labels"] == FUSED
    assert label_promise(unknown | {"noise_interval": [0.0, 0.4]}) == FUSED["expected"]


def test_captions_that_all_pass_say_nothing_of_the_labels() -> None:
    assert "so no caption is rejected" in replace(PLAIN, labels=FUSED, zero_weight=0).warnings[0]
    assert "so nothing is rejected" in replace(PLAIN, zero_weight=0).warnings[0]


def test_duplicates_of_keys_with_line_breaks_are_one_flag(tmp_path: Path) -> None:
    images, _ = clusters(count=60)
    images[30:] = images[:30]
    pq.write_table(pa.table({"key": [f"k{i}\n" for i in range(60)]}), tmp_path / "keys.parquet")
    summary = scored(tmp_path, images, labels=np.arange(60) % 4, metadata=tmp_path / "keys.parquet")
    assert summary.flags["duplicate"] == 30
    assert not [flag for flag in summary.flags if "k" in flag]


def test_repaired_labels_are_counted(tmp_path: Path) -> None:
    images, true = clusters(count=400)
    given = np.where(np.arange(400) % 5 == 1, (true + 1 + np.arange(400) // 5 % 3) % 4, true)
    given[7] = -1  # has a likeliest label, but none to repair
    summary = scored(tmp_path, images, labels=given)
    refined = np.array(read_table(tmp_path / "out", ["refined_label"])["refined_label"].to_pylist())
    assert summary.repaired == ((refined != given) & (given >= 0)).sum() > 60
    assert summary.to_dict()["repaired"] == summary.repaired
    assert (summary.samples, summary.judged) == (400, 399)
