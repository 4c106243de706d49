"""`_run.json`: what was asked for, with which scorer, and which shards. Written when a run begins and when it ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from .engines.shard_task import reading_of
from .estimators.base import Identity
from .labels.classes import ClassSet
from .pairs.beta import Beta
from .runs.table import VERSION, RunFolder, read_metadata
from .score_run import ScoreSettings
from .shards.locate import Shard
from .shards.workers import DecodeOptions

__all__ = ["RunRecord"]


@dataclass
class RunRecord:
    """What is known of a run while it goes on; `times` are of the shards' last change as they were when they were read."""

    run: RunFolder
    shards: Sequence[Shard]
    scoring: ScoreSettings
    options: DecodeOptions
    classes: ClassSet | None
    model_spec: Mapping[str, Any] | None = None
    random_inputs: Beta | None = None
    failed: dict[str, str] = field(default_factory=dict)
    times: dict[str, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # of the encoders

    @property
    def reading(self) -> dict[str, Any]:
        return reading_of(self.options)

    def settings(self, identity: Identity) -> dict[str, Any]:
        """All that must stay the same when the run goes on."""
        return {
            "scorer": identity.to_dict(),
            "scoring": self.scoring.to_dict() | {"classes": self.classes.digest if self.classes else None},
            "reading": self.reading,
        }

    def write(self, identity: Identity, beta: Beta | None, finished: bool) -> None:
        """`finished` with all that could be read, `complete` with all."""
        before = self.run.read_run()
        known = {entry["table"]: entry for entry in before["shards"]} if before else {}
        here = {shard.stem for shard in self.shards}
        entries = [entry for entry in known.values() if entry["table"] not in here]
        for shard in self.shards:
            new = {"url": shard.url, "table": shard.stem, "modified": self.times.get(shard.url)}
            entries.append(new if shard.url in self.times else known.get(shard.stem, new))
        looked_at = {shard.stem for shard in self.shards if finished or shard.url in self.times}
        shards = [
            entry if entry["table"] in here - looked_at else {**entry, **_facts(self.run, entry["table"])}
            for entry in entries
        ]
        self.run.write_run(
            {
                **self.settings(identity),
                "table_version": VERSION,
                "noisegate": version("noisegate"),
                "model": self.model_spec,
                "beta": beta.to_dict() if beta else None,
                "random_inputs": self.random_inputs.to_dict()
                if self.random_inputs
                else (before or {}).get("random_inputs"),
                "notes": self.notes or (before or {}).get("notes", []),
                "shards": shards,
                "unreadable": self.failed,
                "finished": finished,
                "complete": finished and not self.failed and all("rows" in shard for shard in shards),
            }
        )


def _facts(run: RunFolder, stem: str) -> dict[str, Any]:
    if not run.table(stem).exists():
        return {}
    shard = read_metadata(run.table(stem))["shard"]
    return {"rows": shard["rows"], "sha256": shard["sha256"]}
