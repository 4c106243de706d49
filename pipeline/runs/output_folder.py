"""The folder that a command writes into: what it may be, and what the disk refuses as a message that says what to do."""

import errno
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from noisegate.pipeline.errors import ConfigError, NoisegateError

__all__ = ["refuse_other_shards", "remove_half_written", "writing_to"]

_HALF_WRITTEN = re.compile(r"\..+\.(tar|parquet|txt)\.[0-9a-f]{8}\.tmp")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.ENOENT)


@contextmanager
def writing_to(out: str | Path) -> Iterator[Path]:
    """Make the folder and yield it; raises ConfigError for a URL, a file, or a place that may not be written."""
    if re.match(r"[a-z][a-z0-9+.-]+:/", str(out), re.IGNORECASE):  # one slash: Path has swallowed the other
        raise ConfigError(f"out {out} is a URL; files are written to a local folder, such as --out results")
    folder = Path(out)
    whole = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except OSError as error:
        if error.errno in _FULL:
            raise NoisegateError(
                f"no space left for {out}; free some and run the same command again (annotate goes on, without --overwrite)"
            ) from error
        place = Path(error.filename) if error.errno in _REFUSED and isinstance(error.filename, str) else None
        if place is None or not (place.absolute().is_relative_to(whole) or whole.is_relative_to(place.absolute())):
            raise
        raise ConfigError(
            f"out {out} cannot be written: {error.strerror} ({place}); use a folder of yours, such as --out results"
        ) from error


def refuse_other_shards(out: Path, names: Collection[str]) -> None:
    """Raises ConfigError where `out` holds tars that are not about to be written: `out/*.tar` would mix the two."""
    other = sorted(path.name for path in out.glob("*.tar") if path.name not in names)
    if other:
        raise ConfigError(f"out {out} holds other shards, such as {other[0]}; use an empty folder")


def remove_half_written(out: Path) -> None:
    """Remove what a writer of shards that was killed left hidden in `out`; for commands that have the folder to themselves."""
    for path in out.glob(".*.tmp"):
        if _HALF_WRITTEN.fullmatch(path.name):
            path.unlink(missing_ok=True)
