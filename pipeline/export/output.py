"""Check where an export goes: never over something else."""

from pathlib import Path

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.output_files import old_folder

from .source import Source

__all__ = ["RECORD", "check_place"]

RECORD = "_export.json"  # says what an exported folder is; only a folder that has it is ever replaced


def check_place(source: Source, out: Path, folder: bool, overwrite: bool) -> None:
    """Raises ConfigError when `out` exists or holds, or lies in, what it is made from."""
    if folder and old_folder(out).exists() and not out.exists():  # killed between the two renames of `whole_folder`
        old_folder(out).rename(out)
    target, run = out.resolve(), source.run.path.resolve()
    if target.is_relative_to(run) or run.is_relative_to(target):
        raise ConfigError(f"out {out} and the run {source.run.path} lie in one another; use a place beside it")
    for url in source.shards.values():
        if "://" not in url and Path(url).resolve().is_relative_to(target):
            raise ConfigError(f"out {out} is, or holds, the shard {url}; use another place, so that the data stays")
    if not out.exists() or (folder and out.is_dir() and not any(out.iterdir())):
        return
    if out.is_dir() != folder:
        raise ConfigError(f"out {out} is a {'file' if folder else 'folder'}; name a {'folder' if folder else 'file'}")
    if not overwrite:
        raise ConfigError(f"out {out} is there already; choose another, or use --overwrite")
    if folder and not (out / RECORD).exists():
        raise ConfigError(f"out {out} is not an export (it has no {RECORD}), so it is not replaced; choose another")
