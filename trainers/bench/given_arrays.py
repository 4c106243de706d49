"""Data sets given as arrays: features of pictures, captions, index files of noise, and embeddings of an estimator.

From these a bench makes the shards of a noise rate and their weight table, without a model.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from noisegate.pipeline.datasets.convert import convert
from noisegate.pipeline.datasets.noise import TRUTH_FILE
from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.rescore import score_embeddings
from noisegate.pipeline.runs import RunFolder
from noisegate.pipeline.system import Index, write_atomically

from .preset_files import PresetPart, rate_name


class GivenArrays(PresetPart):
    """Files of a folder in the papers' precomputed format, with captions_per_image captions for each picture."""

    get: str
    """how to get the folder"""
    kind: str
    """for `noisegate convert`"""
    options: dict[str, Any] = Field(default_factory=dict)
    """of `noisegate convert`, for both splits"""
    test: str = "test"
    """the split to measure on"""
    captions_per_image: int = Field(default=5, ge=1)
    noise_file: str
    """with {rate}: the number of the image that each caption is paired with"""
    images: str
    """embeddings of the right image of each caption"""
    texts: str
    keys: str
    """Parquet with the column key"""

    def check(self, data: Path) -> None:
        """If a file of the estimator is missing, raise ConfigError that says how to get the folder."""
        missing = [name for name in (self.images, self.texts, self.keys) if not (data / name).exists()]
        if missing:
            raise ConfigError.of("data", str(data), f"has no {' and no '.join(missing)}; {self.get}")

    def read_noise(self, data: Path, rate: float) -> Index:
        """Read the image of each caption, (N,)."""
        return np.asarray(np.load(self.noise_path(data, rate)), np.int64)

    def noise_path(self, data: Path, rate: float) -> Path:
        """Return the index file of a rate; raise ConfigError if there is none."""
        path = data / self.noise_file.format(rate=f"{rate:g}")
        if not path.exists():
            there = sorted(found.name for found in data.glob(self.noise_file.format(rate="*")))
            problem = f"needs {path}; there is {', '.join(there) or 'no such file'}"
            raise ConfigError.of("rates", rate, problem)
        return path

    def make_train_shards(self, data: Path, rate: float, place: Path, note: Callable[[str], None]) -> list[str]:
        """Make, once, training shards with the noise of a rate, and the truth beside them."""
        folder = place / f"train-{rate_name(rate)}"
        if not (folder / TRUTH_FILE).exists():  # written last
            note(f"converting: {data.name} with {100 * rate:g} % noise")
            convert(self.kind, data, folder, noise_file=self.noise_path(data, rate) if rate else None, **self.options)
            count = pq.read_metadata(data / self.keys).num_rows
            right = np.arange(count) // self.captions_per_image
            wrong = self.read_noise(data, rate) != right if rate else np.zeros(count, bool)
            sink = io.BytesIO()
            pq.write_table(pa.table({"noisy": wrong}), sink)
            write_atomically(folder / TRUTH_FILE, sink.getvalue())
        return [str(path) for path in sorted(folder.glob("*.tar"))]

    def make_test_shards(self, data: Path, place: Path) -> list[str]:
        """Make shards to measure on; `convert` keeps finished ones."""
        folder = place / self.test
        convert(self.kind, data, folder, split=self.test, **self.options)
        return [str(path) for path in sorted(folder.glob("*.tar"))]

    def make_table(self, data: Path, rate: float, shards: list[str], place: Path, note: Callable[[str], None]) -> Path:
        """Make the weight table of these shards, from the embeddings of the images that the captions are paired with."""
        table = place / f"tables-{rate_name(rate)}"
        if not (RunFolder(table).read_run() or {}).get("finished"):
            note(f"scoring: {100 * rate:g} % noise, from {self.images} and {self.texts}")
            images = data / self.images
            if rate:
                images = place / f"images-{rate_name(rate)}.npy"
                right = np.load(data / self.images, mmap_mode="r")
                np.save(images, right[self.captions_per_image * self.read_noise(data, rate)])
            score_embeddings(
                table, images, texts=data / self.texts, metadata=data / self.keys, shards=shards, overwrite=True
            )
        return table
