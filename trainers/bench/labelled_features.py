"""Make a bench's weight table and truth from labelled pictures with features of another network and the true classes."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from noisegate.pipeline.datasets.noise import TRUTH_FILE
from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.inspect import read_truth
from noisegate.pipeline.labels import load_classes
from noisegate.pipeline.rescore import score_embeddings
from noisegate.pipeline.runs import RunFolder, read_table
from noisegate.pipeline.system import write_atomically

from .preset_files import PresetPart


class LabelledFeatures(PresetPart):
    """An .npz file whose row i belongs to the sample with the key i, written with `digits` digits."""

    get: str
    """how to get the files"""
    file: str
    features: str = "features"
    labels: str
    """array of the given classes"""
    classes: str
    """names, as `--class-names` takes them"""
    right_class: str
    """field of the shards' json with the right class"""
    digits: int = 6

    def check(self, data: Path) -> None:
        """If the file is missing, raise ConfigError that says how to get it."""
        if not (data / self.file).exists():
            raise ConfigError.of("data", str(data), f"has no {self.file}; {self.get}")

    def make_table(self, data: Path, shards: Sequence[str], place: Path, note: Callable[[str], None]) -> Path:
        """Make the weight table of the given labels from neighbours and a probe only: there are no texts and no anchors."""
        table = place / "tables"
        if not (RunFolder(table).read_run() or {}).get("finished"):
            note(f"scoring: labels by {self.file}")
            place.mkdir(parents=True, exist_ok=True)
            arrays = np.load(data / self.file)
            features, labels = arrays[self.features].astype(np.float32), arrays[self.labels].astype(np.int64)
            np.save(place / "features.npy", features)
            keys = place / "keys.parquet"
            pq.write_table(pa.table({"key": [f"{row:0{self.digits}d}" for row in range(len(features))]}), keys)
            score_embeddings(
                table,
                place / "features.npy",
                labels=labels,
                metadata=keys,
                shards=shards,
                class_names=load_classes(self.classes).names,
                overwrite=True,
            )
        return table

    def write_truth(self, table: Path, place: Path) -> Path:
        """Write, once, which labels are wrong, and the true labels, in the order of the table."""
        path = place / TRUTH_FILE
        if not path.exists():
            rows = read_table(table, ["shard", "key", "index", "status", "label"])
            truth = read_truth(RunFolder(table), rows, None, self.right_class)
            sink = io.BytesIO()
            right = pa.array(truth.clean_label, pa.int64())
            named = {name: rows[name] for name in ("shard", "key", "index")}
            pq.write_table(pa.table({**named, "noisy": truth.noisy, "clean_label": right}), sink)
            write_atomically(path, sink.getvalue())
        return path
