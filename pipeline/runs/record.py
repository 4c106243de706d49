"""`_run.json`: settings, scorer and shards of a run. Written when a run begins and when it ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from noisegate.pipeline.estimators.base import Identity
from noisegate.pipeline.settings import AnnotateSettings
from noisegate.pipeline.shards.locate import Shard

from .table import VERSION, RunFolder, read_metadata


@dataclass
class RunRecord:
    """What is known of a run so far; JSON values where they come from other packages."""

    run: RunFolder
    shards: Sequence[Shard]
    settings: AnnotateSettings
    classes_digest: str | None = None
    model: Mapping[str, Any] | None = None
    random_inputs: Mapping[str, Any] | None = None  # the model's own β, if it was measured
    failed: dict[str, str] = field(default_factory=dict)  # reason by url of shards that could not be read
    times: dict[str, float | None] = field(default_factory=dict)  # last change of each shard before it was read
    notes: list[str] = field(default_factory=list)  # what the encoders reported about themselves

    def fixed_settings(self, identity: Identity) -> dict[str, Any]:
        """The settings that must stay the same when the run is resumed."""
        return {
            "scorer": identity.to_dict(),
            "scoring": self.settings.scoring.to_dict() | {"classes": self.classes_digest},
            "reading": self.settings.reading.to_dict(),
        }

    def write(self, identity: Identity, beta: Mapping[str, Any] | None, finished: bool) -> None:
        """Write the file: `finished` if all readable shards are scored, `complete` if all shards are."""
        before = self.run.read_run()
        known = {entry["table"]: entry for entry in before["shards"]} if before else {}
        here = {shard.stem for shard in self.shards}
        entries = [entry for entry in known.values() if entry["table"] not in here]
        for shard in self.shards:
            new = {"url": shard.url, "table": shard.stem, "modified": self.times.get(shard.url)}
            entries.append(new if shard.url in self.times else known.get(shard.stem, new))
        looked_at = {shard.stem for shard in self.shards if finished or shard.url in self.times}
        shards = [
            entry if entry["table"] in here - looked_at else {**entry, **_read_facts(self.run, entry["table"])}
            for entry in entries
        ]
        self.run.write_run(
            {
                **self.fixed_settings(identity),
                "table_version": VERSION,
                "noisegate": version("noisegate"),
                "model": self.model,
                "beta": beta,
                "random_inputs": self.random_inputs or (before or {}).get("random_inputs"),
                "notes": self.notes or (before or {}).get("notes", []),
                "shards": shards,
                "unreadable": self.failed,
                "finished": finished,
                "complete": finished and not self.failed and all("rows" in shard for shard in shards),
            }
        )


def _read_facts(run: RunFolder, stem: str) -> dict[str, Any]:
    if not run.table(stem).exists():
        return {}
    shard = read_metadata(run.table(stem))["shard"]
    return {"rows": shard["rows"], "sha256": shard["sha256"]}
