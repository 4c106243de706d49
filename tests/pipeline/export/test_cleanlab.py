"""cleanlab's own frame on the same data has the columns of ours, and cleanlab takes ours for its own."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from cleanlab import Datalab
from cleanlab.classification import CleanLearning
from cleanlab.rank import get_label_quality_scores
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.export import export
from noisegate.pipeline.runs.table import RunFolder, table_from
from tests.errors import refused
from tests.jobs import run_record, score, table_facts

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")  # in cleanlab, of pandas

OURS = ["is_label_issue", "label_score", "label_quality", "given_label", "predicted_label", "shard", "key"]
ROWS, LOST = 180, [7, 100]
RIGHT = np.repeat(np.arange(3), 60)
RNG = np.random.default_rng(1)
VECTORS = np.eye(3, 8)[RIGHT] * 4 + RNG.standard_normal((ROWS, 8)) * 0.4
KNOWN = ~np.isin(np.arange(ROWS), LOST)


@pytest.fixture(scope="module")
def given() -> NDArray[np.int64]:
    labels = RIGHT.copy()
    wrong = RNG.choice(ROWS, 10, replace=False)
    labels[wrong] = (labels[wrong] + 1) % 3
    return labels


@pytest.fixture(scope="module")
def theirs(given: NDArray[np.int64]) -> tuple[pd.DataFrame, NDArray[np.float64]]:
    """What cleanlab finds among the known labels, and the probabilities it was given."""
    probabilities = cross_val_predict(
        LogisticRegression(), VECTORS[KNOWN], given[KNOWN], cv=3, method="predict_proba"
    )  # fmt: skip
    lab = Datalab({"y": given[KNOWN]}, label_name="y", verbosity=0)
    lab.find_issues(pred_probs=probabilities, issue_types={"label": {}})
    return lab.get_issues("label"), probabilities


def write_run(
    folder: Path,
    given: NDArray[np.int64],
    theirs: tuple[pd.DataFrame, NDArray[np.float64]],
    rejected: NDArray[np.bool_] | None = None,
    prefix: str = "",
) -> Path:
    """A run in two shards whose label scores are those that cleanlab's inputs give; `rejected` pairs have weight 0."""
    frame, probabilities = theirs
    quality, refined = np.full(ROWS, np.nan), np.zeros(ROWS, np.int64)
    quality[KNOWN] = get_label_quality_scores(given[KNOWN], probabilities)
    refined[KNOWN] = probabilities.argmax(1)
    clean = np.zeros(ROWS, bool)
    clean[KNOWN] = ~frame["is_label_issue"].to_numpy()
    run = RunFolder(folder)
    for part in range(2):
        rows = slice(90 * part, 90 * part + 90)
        lost = ~KNOWN[rows]
        columns = {
            "key": [f"{prefix}{i:04d}" for i in range(ROWS)[rows]],
            "index": np.arange(90),
            "status": np.where(lost, "no_label", "ok").tolist(),
            "label": pa.array(given[rows], mask=lost),
            "label_quality": quality[rows],
            "predicted_label": pa.array(refined[rows], mask=lost),
            "clean": pa.array((clean & ~rejected if rejected is not None else clean)[rows], mask=lost),
            "osa_weight": None if rejected is None else np.where(rejected[rows], 0, 0.1).astype(np.float32),
        }
        shard = {"name": f"y-{part}.tar", "sha256": "", "size": 0, "rows": 90, "damage": None}
        given_columns = {name: values for name, values in columns.items() if values is not None}
        run.write_table(f"y-{part}", table_from(given_columns, table_facts(90, shard=shard)))
    run.write_run(
        run_record(
            [{"url": f"y-{part}.tar", "table": f"y-{part}", "rows": 90} for part in range(2)],
            scoring={"tasks": ["labels"] if rejected is None else ["pairs", "labels"], "classes": None},
            reading={"tasks": ["labels"], "limits": {}},
            finished=True,
        )
    )
    return folder


def read(path: Path) -> pd.DataFrame:
    return (
        pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, index_col="row", dtype={"key": str})
    )


@pytest.mark.parametrize("name", ["issues.csv", "issues.parquet"])
def test_the_frame_is_the_one_that_cleanlab_gives(
    given: NDArray[np.int64], theirs: tuple[pd.DataFrame, NDArray[np.float64]], tmp_path: Path, name: str
) -> None:
    run = write_run(tmp_path / "run", given, theirs)
    done = export(run, tmp_path / name, "cleanlab")
    ours, frame = read(tmp_path / name), theirs[0]
    assert ours.columns.tolist() == OURS
    assert ours.index.name == "row" and ours.index.tolist() == np.flatnonzero(KNOWN).tolist()
    assert (done.rows, done.kept, done.written, done.left_out) == (ROWS, ROWS, ROWS - 2, {"no label score": 2})
    assert set(frame.columns) <= set(OURS)
    for column in frame.columns:
        assert ours[column].dtype == frame[column].dtype, column
        np.testing.assert_allclose(ours[column], frame[column], rtol=1e-6, err_msg=column)
    assert ours["is_label_issue"].sum() == 10
    assert ours["key"].tolist() == [f"{i:04d}" for i in ours.index]
    assert ours["shard"].tolist() == [f"y-{i // 90}" for i in ours.index]


def test_cleanlab_trains_from_the_frame(
    given: NDArray[np.int64], theirs: tuple[pd.DataFrame, NDArray[np.float64]], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", given, theirs)
    export(run, tmp_path / "i.csv", "cleanlab", where="label is not null and shard like 'y-%'")
    frame = read(tmp_path / "i.csv")
    rows = frame.index.to_numpy()
    learner = CleanLearning(LogisticRegression(), verbose=False)
    learner.fit(VECTORS[rows], given[rows], label_issues=frame)
    assert learner.get_label_issues()["is_label_issue"].sum() == 10
    assert (learner.predict(VECTORS) == RIGHT).all()


def test_a_rule_keeps_the_numbers_of_the_rows(
    given: NDArray[np.int64], theirs: tuple[pd.DataFrame, NDArray[np.float64]], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", given, theirs)
    export(run, tmp_path / "i.parquet", "cleanlab", where="not clean")
    frame = read(tmp_path / "i.parquet")
    assert frame["is_label_issue"].all()
    assert frame.index.tolist() == np.flatnonzero(KNOWN & (given != RIGHT)).tolist()


def test_keys_like_formulas_are_exact_unless_it_is_for_a_spreadsheet(
    given: NDArray[np.int64], theirs: tuple[pd.DataFrame, NDArray[np.float64]], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", given, theirs, prefix="=")
    export(run, tmp_path / "exact.csv", "cleanlab")
    export(run, tmp_path / "safe.csv", "cleanlab", spreadsheet_safe=True)
    exact, safe = read(tmp_path / "exact.csv"), read(tmp_path / "safe.csv")
    assert exact["key"].tolist() == [f"={i:04d}" for i in exact.index]
    assert safe["key"].tolist() == [f"'={i:04d}" for i in exact.index]
    pd.testing.assert_frame_equal(safe.drop(columns="key"), exact.drop(columns="key"))
    with refused("spreadsheet_safe", True):
        export(run, tmp_path / "safe.parquet", "cleanlab", spreadsheet_safe=True)


def test_a_rejected_pair_is_not_a_wrong_label(
    given: NDArray[np.int64], theirs: tuple[pd.DataFrame, NDArray[np.float64]], tmp_path: Path
) -> None:
    """In a run of both tasks `clean` is false for either reason; the frame is about labels alone."""
    rejected = np.arange(ROWS) % 4 == 0
    both = write_run(tmp_path / "both", given, theirs, rejected)
    export(both, tmp_path / "both.parquet", "cleanlab")
    found = read(tmp_path / "both.parquet")["is_label_issue"]
    assert found.to_numpy().tolist() == theirs[0]["is_label_issue"].tolist()


def test_runs_and_files_that_do_not_fit(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "run")
    with refused("out", tmp_path / "issues.txt"):
        export(tmp_path / "run", tmp_path / "issues.txt", "cleanlab")
    with refused("folder", tmp_path / "run", TableError):
        export(tmp_path / "run", tmp_path / "issues.csv", "cleanlab")
