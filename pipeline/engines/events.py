"""What encoders report while they work, and its totals for the progress display and the run's record."""

from collections.abc import Mapping
from dataclasses import dataclass

from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.system.progress import Progress


@dataclass(frozen=True)
class Advanced:
    """`samples` more of a shard are read; `position` is the number of its bytes read so far."""

    shard: Shard
    samples: int
    position: int


@dataclass(frozen=True)
class Written:
    """A shard's files are written: `rows` in its table, `failed` of them; `encoded` were read this time."""

    shard: Shard
    rows: int
    failed: int
    encoded: int


@dataclass(frozen=True)
class Unreadable:
    """A shard could not be read at all."""

    shard: Shard
    error: str


@dataclass(frozen=True)
class Note:
    """A line for the user, `recorded` in `_run.json` too if it is about the encoder."""

    text: str
    recorded: bool = False


Event = Advanced | Written | Unreadable | Note


class ProgressTotals:
    """Sums of all events. `sizes` are the shards' bytes, None if unknown; `failed` is the reason by url.

    `notes` are the recorded ones, each once.
    """

    def __init__(self, progress: Progress, sizes: Mapping[str, int | None]) -> None:
        self._progress, self._sizes = progress, sizes
        self._open: dict[str, tuple[int, int]] = {}  # samples and bytes read of unfinished shards
        self.failed: dict[str, str] = {}
        self.encoded = 0
        self.notes: list[str] = []

    def add(self, event: Event) -> None:
        """Add an event and show it."""
        match event:
            case Note(text, recorded):
                self._progress.note(text)
                if recorded and text not in self.notes:
                    self.notes.append(text)
            case Advanced(shard, samples, position):
                before, reached = self._open.get(shard.url, (0, 0))
                self._open[shard.url] = before + samples, position
                self._progress.advance(samples, position - reached)
            case Unreadable(shard, error):
                self._end(shard)
                self.failed[shard.url] = error
                self._progress.note(error)
            case Written(shard, rows, failed, encoded):
                self._end(shard)
                self.encoded += encoded
                self._progress.shard(shard.stem, rows, failed)

    def discard(self, shard: Shard) -> None:
        """The worker died; discard its partial progress on this shard."""
        samples, reached = self._open.pop(shard.url, (0, 0))
        if samples or reached:
            self._progress.advance(-samples, -reached)

    def _end(self, shard: Shard) -> None:
        _, reached = self._open.pop(shard.url, (0, 0))
        self._progress.advance(0, (self._sizes.get(shard.url) or 0) - reached)
