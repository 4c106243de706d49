"""Find the files of Hugging Face `datasets`: folders that it saved, and data sets that it loads by name."""

import json
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from noisegate.pipeline.errors import ConfigError

HUB = "hf-dataset:"
_TABLES = (".parquet", ".arrow")


def saved_tables(folder: Path) -> list[Path]:
    """List the files of a folder that `datasets` saved, or of a clone from the hub; none for any other folder.

    If there are several splits, raises ConfigError that names them.
    """
    if (folder / "dataset_dict.json").is_file():
        splits = _read_json(folder / "dataset_dict.json").get("splits", [])
        return saved_tables(_only_split(folder, [folder / str(split) for split in splits]))
    if (folder / "state.json").is_file():  # other Arrow files in the folder are cached results of `map`
        return [folder / entry["filename"] for entry in _read_json(folder / "state.json").get("_data_files", [])]
    tables = _tables_in(folder)
    if not tables and (folder / "data").is_dir():
        tables = _tables_in(folder / "data")
        splits = sorted({table.name.split("-")[0] for table in tables})
        if len(splits) > 1:
            _only_split(folder, [folder / "data" / f"{split}-*{tables[0].suffix}" for split in splits])
    return tables


def hub_tables(source: str, load: Callable[..., Any] | None = None) -> list[Path]:
    """List the Arrow files of `hf-dataset:NAME`, `hf-dataset:NAME:SPLIT` or `hf-dataset:NAME?split=SPLIT&config=CONFIG`.

    `load` is `datasets.load_dataset`. Raises ConfigError if it cannot be imported or cannot load the data set.
    """
    name, _, query = source.removeprefix(HUB).partition("?")
    name, _, named_split = name.partition(":")
    options = dict(parse_qsl(query))
    split, config = options.pop("split", named_split) or None, options.pop("config", None)
    if options or not name:
        raise ConfigError.of(
            "shards", source, "is no name of a data set; use hf-dataset:NAME?split=train&config=CONFIG"
        )
    try:
        data = (load or _loader(source))(name, config, split=split)
    except ConfigError:
        raise
    except Exception as error:  # of datasets, huggingface_hub, requests, pyarrow, …
        reason = " ".join(str(error).split())[:300]
        problem = f"cannot be loaded: {type(error).__name__}: {reason}; download it, and give its folder"
        raise ConfigError.of("shards", source, problem) from error
    if isinstance(data, dict):
        names = [f"{HUB}{name}?split={key}" + (f"&config={config}" if config else "") for key in data]
        _only_split(source, names)
        data = next(iter(data.values()))
    files = [Path(entry["filename"]) for entry in data.cache_files]
    if not files:
        raise ConfigError.of("shards", source, "was loaded without files; call its save_to_disk, and give that folder")
    return files


def _loader(source: str) -> Callable[..., Any]:
    try:
        loader: Callable[..., Any] = import_module("datasets").load_dataset
    except ImportError as error:
        raise ConfigError.of("shards", source, "needs pip install datasets") from error
    return loader


def _tables_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in _TABLES)


def _only_split(source: str | os.PathLike[str], splits: Sequence[Any]) -> Any:
    if len(splits) != 1:
        problem = f"holds several splits; use one of {', '.join(map(str, splits))}" if splits else "holds no split"
        raise ConfigError.of("shards", source, problem)
    return splits[0]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError.of("shards", path, f"cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError.of("shards", path, "is not as datasets writes it")
    return content
