"""What people and logs see while a job runs."""

import pytest

from noisegate.pipeline.system.progress import Bar, Lines, Progress, progress_for


def a_run(progress: Progress) -> None:
    progress.note("x.tar has changed [b]; it is scored again")
    progress.start(2, 3_000_000, 5)
    progress.advance(16, 1_000_000)
    progress.advance(0, 500_000)
    progress.shard("x-000", 1016, 3)
    progress.advance(16, 1_500_000)
    progress.shard("x-001", 1000, 0)
    progress.stop()


def test_lines_say_one_thing_per_shard(capsys: pytest.CaptureFixture[str]) -> None:
    a_run(Lines())
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[:2] == [
        "x.tar has changed [b]; it is scored again",
        "2 shards to score, 5 done already, 3.0 MB to read",
    ]
    assert lines[2].startswith("[1/2] x-000: 1,016 samples, 3 failed, ")
    assert lines[3].startswith("[2/2] x-001: 1,000 samples, 0 failed, ")
    assert len(lines) == 4


def test_a_bar_ends_full_and_keeps_notes_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    a_run(Bar())
    out, err = capsys.readouterr()
    assert out == ""
    assert "x.tar has changed [b]; it is scored again" in err
    assert "shard 2/2" in err
    assert "100%  32 samples" in err


@pytest.mark.parametrize("kind", [Bar, Lines, Progress])
def test_a_job_with_nothing_to_do_or_that_never_started_can_stop(kind: type[Progress]) -> None:
    progress = kind()
    progress.stop()
    progress = kind()
    progress.start(0, 0, 4)
    progress.note("nothing to do")
    progress.stop()


def test_who_looks_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def __init__(self, there: bool) -> None:
            self.there = there

        def isatty(self) -> bool:
            return self.there

    assert type(progress_for(quiet=True)) is Progress
    monkeypatch.setattr("sys.stderr", Terminal(False))
    assert isinstance(progress_for(), Lines)
    monkeypatch.setattr("sys.stderr", Terminal(True))
    assert isinstance(progress_for(), Bar)


def test_lines_of_a_training_are_about_ten_in_an_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    lines.epoch(1, 2, 100, 0)
    for i in range(100):
        lines.batch(None if i == 99 else 0.25, 1000.0)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 10
    assert said[0] == "epoch 1/2 batch 10/100: loss 0.2500, 1,000 samples/s"
    assert said[-1] == "epoch 1/2 batch 100/100: skipped, 1,000 samples/s"


def test_a_bar_per_epoch_counts_batches_from_where_the_epoch_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar()
    bar.epoch(1, 2, 3, 2)
    bar.batch(0.25, 1000.0)
    bar.epoch(2, 2, 3, 0)
    bar.batch(None, 900.0)
    bar.stop()
    err = capsys.readouterr().err
    assert "epoch 2/2" in err
    assert "1/3  skipped  900/s" in err


def test_a_conversion_counts_samples(capsys: pytest.CaptureFixture[str]) -> None:
    lines, bar = Lines(), Bar()
    for progress in (lines, bar):
        progress.samples(1, 2_000)
        progress.samples(2_000, 2_000, "x-000.tar")
        progress.stop()
    err = capsys.readouterr().err
    assert err.startswith("[2,000/2,000] x-000.tar\n")
    assert "2,000/2,000 " in err
