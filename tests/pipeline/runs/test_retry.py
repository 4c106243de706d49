"""Second looks at a finished run: failed samples read again, embeddings dropped and wanted back."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from noisegate import read_table
from noisegate.pipeline.errors import AllFailedError, MismatchError
from noisegate.pipeline.runs.table import COLUMNS
from noisegate.pipeline.settings import DecodeOptions, Limits
from tests.errors import refused
from tests.fakes import pairs, picture, write_tar
from tests.jobs import Notes, files_of, score, stamps


# --- failed samples -----------------------------------------------------------------------------------------------------
def test_failed_samples_alone_are_read_again_when_asked_for(tmp_path: Path) -> None:
    sizes = [(20, 16), (300, 300), (20, 16), (400, 300)]
    members = pairs(3)
    for i, size in enumerate(sizes):
        members += [(f"s{i}.png", picture("blue", size)), (f"s{i}.txt", f"blue number {i}".encode())]
    write_tar(tmp_path / "s" / "x.tar", members)
    write_tar(tmp_path / "s" / "y.tar", pairs(3))
    write_tar(tmp_path / "s" / "z.tar", [("only.png", picture("red", (500, 500))), ("only.txt", b"red")])
    small = DecodeOptions(limits=Limits(max_pixels=1000))
    first = score(tmp_path / "s", tmp_path / "out", options=small)
    assert dict(first.statuses) == {"ok": 8, "too_large": 3}
    before = stamps(tmp_path / "out")
    again = score(tmp_path / "s", tmp_path / "out", options=small, retry_failed=True)
    assert (dict(again.statuses), again.encoded) == (dict(first.statuses), 3)
    summary = score(tmp_path / "s", tmp_path / "out", retry_failed=True)
    assert (dict(summary.statuses), summary.encoded) == ({"ok": 11}, 3)
    assert {name for name, stamp in stamps(tmp_path / "out").items() if stamp == before[name]} == {"y.safetensors"}
    score(tmp_path / "s", tmp_path / "full")
    mended, full = read_table(tmp_path / "out"), read_table(tmp_path / "full")
    for name in full.column_names:
        if full[name].type == pa.float32():
            left, right = (t[name].to_numpy(zero_copy_only=False) for t in (mended, full))
            np.testing.assert_allclose(left, right, atol=1e-5)
        else:
            assert mended[name].to_pylist() == full[name].to_pylist()
    assert score(tmp_path / "s", tmp_path / "out", retry_failed=True).encoded == 0


def test_a_retry_that_is_stopped_goes_on(tmp_path: Path) -> None:
    for name in ("x", "y"):
        members = [*pairs(3), (f"{name}.png", picture("red", (300, 300))), (f"{name}.txt", b"red")]
        write_tar(tmp_path / "s" / f"{name}.tar", members)
    score(tmp_path / "s", tmp_path / "out", options=DecodeOptions(limits=Limits(max_pixels=1000)))
    with pytest.raises(KeyboardInterrupt):
        score(tmp_path / "s", tmp_path / "out", retry_failed=True, progress=Notes(stop_after=3))
    summary = score(tmp_path / "s", tmp_path / "out", retry_failed=True)
    assert (dict(summary.statuses), summary.encoded) == ({"ok": 8}, 1)


def test_a_retry_reads_a_changed_shard_whole(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "x.tar", [*pairs(3), ("a.png", b"bad"), ("a.txt", b"red")])
    score([shard], tmp_path / "out")
    write_tar(shard, [*pairs(4), ("a.png", picture("red")), ("a.txt", b"red")])
    summary = score([shard], tmp_path / "out", retry_failed=True)
    assert (dict(summary.statuses), summary.encoded) == ({"ok": 5}, 5)


# --- embeddings ---------------------------------------------------------------------------------------------------------
def test_embeddings_can_be_dropped_and_the_run_still_goes_on(scenes: Path, tmp_path: Path) -> None:
    paths = sorted(scenes.glob("*.tar"))
    out = tmp_path / "out"
    score(paths, tmp_path / "kept", beta="auto")
    first = score(paths, out, beta="auto", keep_embeddings=False)
    assert not list(out.glob("embeddings/*"))
    columns = [
        name for name in COLUMNS if name != "clean_probability"
    ]  # new pairs would have no pool, so the cosine judges
    assert read_table(out, columns).equals(read_table(tmp_path / "kept", columns))
    before, whole = stamps(out), files_of(out)
    again = score(paths, out, beta="auto", keep_embeddings=False)
    assert stamps(out) == before
    assert (again.beta, again.similarity_quantiles) == (first.beta, first.similarity_quantiles)
    # as if it had been killed while it dropped them
    (out / "embeddings").mkdir(exist_ok=True)
    kept = tmp_path / "kept" / "embeddings" / f"{paths[0].stem}.safetensors"
    (out / "embeddings" / kept.name).write_bytes(kept.read_bytes())
    assert score(paths, out, beta="auto", keep_embeddings=False).encoded == 0
    assert files_of(out) == whole


@pytest.mark.parametrize("keep", [True, False])
def test_shards_cannot_join_a_run_whose_embeddings_were_dropped(shards: Path, tmp_path: Path, keep: bool) -> None:
    score(shards, tmp_path / "out", keep_embeddings=False)
    before = files_of(tmp_path / "out")
    more = write_tar(tmp_path / "more.tar", pairs(3))
    with refused("out", str(tmp_path / "out"), MismatchError):
        score([more], tmp_path / "out", keep_embeddings=keep)
    assert files_of(tmp_path / "out") == before


def test_asking_for_dropped_embeddings_scores_the_shards_again(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out", keep_embeddings=False)
    assert score(shards, tmp_path / "out").encoded == 18
    score(shards, tmp_path / "fresh")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "fresh")


# --- first samples that all fail alike ----------------------------------------------------------------------------------
@pytest.fixture
def without_captions(tmp_path: Path) -> Path:
    for number in range(5):
        write_tar(tmp_path / "s" / f"{number}.tar", [(f"{i}.png", picture("red", (8, 8))) for i in range(60)])
    return tmp_path / "s"


def test_a_job_stops_when_its_first_samples_all_fail_alike(without_captions: Path, tmp_path: Path) -> None:
    with refused("text_field", "no_text", AllFailedError):
        score(without_captions, tmp_path / "out")
    for number in range(5):  # the same folder takes other settings: nothing of the failed try binds it
        write_tar(without_captions / f"{number}.tar", pairs(3))
    assert dict(score(without_captions, tmp_path / "out").statuses) == {"ok": 15}


def test_a_job_that_is_told_to_keep_going_does(without_captions: Path, tmp_path: Path) -> None:
    summary = score(without_captions, tmp_path / "out", keep_going=True)
    assert dict(summary.statuses) == {"no_text": 300}


def test_few_failures_two_kinds_of_them_or_one_good_sample_stop_nothing(tmp_path: Path) -> None:
    write_tar(tmp_path / "few" / "x.tar", [(f"{i}.png", picture("red", (8, 8))) for i in range(150)])
    assert dict(score(tmp_path / "few", tmp_path / "1").statuses) == {"no_text": 150}
    write_tar(
        tmp_path / "two" / "x.tar", [("a.txt", b"red"), *((f"b{i}.png", picture("red", (8, 8))) for i in range(250))]
    )
    assert dict(score(tmp_path / "two", tmp_path / "2").statuses) == {"no_text": 250, "no_image": 1}
    write_tar(tmp_path / "one" / "x.tar", [*((f"b{i}.png", picture("red", (8, 8))) for i in range(150))])
    write_tar(tmp_path / "one" / "y.tar", [*pairs(1), *((f"b{i}.png", picture("red", (8, 8))) for i in range(150))])
    assert dict(score(tmp_path / "one", tmp_path / "3").statuses) == {"ok": 1, "no_text": 300}
