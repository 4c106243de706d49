"""What commands leave in, and clear away from, the folder that they write into."""

import os
import re
from pathlib import Path

import pytest

from noisegate.pipeline.system.output_files import remove_half_written, temporary_name, whole_path, write_atomically
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


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.json"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [file.name for file in path.parent.iterdir()] == ["x.json"]
    folder = tmp_path / "taken"
    folder.mkdir()
    with pytest.raises(OSError, match="taken"):
        write_atomically(folder, b"three")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["new", "taken"]


def test_two_processes_write_the_same_file_under_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = temporary_name(tmp_path / "x.json")
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: 1)
        other = temporary_name(tmp_path / "x.json")
    assert mine != other
    for path in (mine, other):
        assert re.fullmatch(r"\.x\.json\.[0-9a-f]{8}\.tmp", path.name)
    other.write_bytes(b"of another")
    write_atomically(tmp_path / "x.json", b"mine")
    assert other.read_bytes() == b"of another"


def test_a_fixed_temporary_name_is_overwritten_and_removed_after_an_error(tmp_path: Path) -> None:
    target, temporary = tmp_path / "x", tmp_path / "x.part"
    temporary.write_bytes(b"of a writer that was killed")
    with whole_path(target, temporary) as path:
        path.write_bytes(b"one")
    with pytest.raises(ZeroDivisionError), whole_path(target, temporary) as path:
        path.write_bytes(b"half")
        raise ZeroDivisionError
    assert (target.read_bytes(), [file.name for file in tmp_path.iterdir()]) == (b"one", ["x"])
