"""What commands leave in, and clear away from, the folder that they write into."""

from pathlib import Path

import pytest

from noisegate.pipeline.system.output_files import remove_half_written, temporary_name, write_atomically
from tests.commands import called


def test_only_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    left = [temporary_name(tmp_path / name) for name in ("scenes-000000.tar", "noise.parquet", "classes.txt")]
    others = [tmp_path / name for name in (".mine.tmp", "x.tar", ".x.tar.swp", ".x.tar.12345678.tmp.bak")]
    for path in (*left, *others):
        path.touch()
    remove_half_written(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(others)
    remove_half_written(tmp_path / "absent")


def test_scenes_and_noise_clear_up_after_a_run_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "clean").mkdir()
    (tmp_path / "noisy").mkdir()
    (tmp_path / "clean" / ".scenes-000000.tar.0badcafe.tmp").write_bytes(b"half")
    (tmp_path / "noisy" / ".noise.parquet.0badcafe.tmp").write_bytes(b"half")
    assert called("scenes", "clean", "--count", "8", "--shards", "1", "--size", "16", cwd=tmp_path).returncode == 0
    assert called("noise", "clean/*.tar", "--rate", "0.5", "--out", "noisy", cwd=tmp_path).returncode == 0
    assert {path.name for path in (tmp_path / "clean").iterdir()} == {"classes.txt", "scenes-000000.tar"}
    assert {path.name for path in (tmp_path / "noisy").iterdir()} == {"noise.parquet", "scenes-000000.tar"}


def test_an_error_while_writing_leaves_nothing_whatever_it_is(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "x.tar", object())
    assert list(tmp_path.iterdir()) == []
