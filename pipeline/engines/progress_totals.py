"""What encoders report, wherever they are, as one progress and one result."""

from collections.abc import Mapping

from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.system.progress import Progress

from .shard_task import Advanced, Event, Said, Unreadable, Written

__all__ = ["Tally"]


class Tally:
    """Adds up events. `sizes` are the shards' bytes, None where unknown; `failed` is url: reason.

    `notes` are what encoders said of themselves, each once.
    """

    def __init__(self, progress: Progress, sizes: Mapping[str, int | None]) -> None:
        self._progress, self._sizes = progress, sizes
        self._open: dict[str, tuple[int, int]] = {}  # samples and bytes of shards that are under way
        self.failed: dict[str, str] = {}
        self.encoded = 0
        self.notes: list[str] = []

    def take(self, event: Event) -> None:
        """Tell the progress."""
        match event:
            case Said(text, kept):
                self._progress.note(text)
                if kept and text not in self.notes:
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

    def lost(self, shard: Shard) -> None:
        """Whoever had this shard is gone, and what was done of it with it."""
        samples, reached = self._open.pop(shard.url, (0, 0))
        if samples or reached:
            self._progress.advance(-samples, -reached)

    def _end(self, shard: Shard) -> None:
        _, reached = self._open.pop(shard.url, (0, 0))
        self._progress.advance(0, (self._sizes.get(shard.url) or 0) - reached)
