"""Export into a store: write to a temporary folder of this machine, then upload; the record of a folder is uploaded last."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.stores import Store, store_url


@contextmanager
def exporting_to_store(url: str, run: str | Path, record: str | None, overwrite: bool) -> Iterator[Path]:
    """Yield a local path of the same name, and upload the file or folder that is made there.

    `record` is the file that marks a folder as an export, None for a single file. While a folder is replaced, it has no record.
    Raises ConfigError if `url` exists, or contains the run, or lies in it.
    """
    store, name = Store.of_file(url)
    old = store.find(name)
    _check(url, store_url(run), [file.removeprefix(f"{name}/") for file in old], record, overwrite)
    with TemporaryDirectory(prefix="noisegate-") as temporary:
        folder = Path(temporary)
        yield folder / name
        new = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        last = {f"{name}/{record}"} & {*new}
        store.each(store.delete, last & {*old})
        store.each(lambda file: store.put(file, folder / file), {*new} - last)
        store.each(store.delete, {*old} - {*new})
        store.each(lambda file: store.put(file, folder / file), last)


def _check(url: str, run: str | None, old: list[str], record: str | None, overwrite: bool) -> None:
    name = url.rpartition("/")[2]
    if run is not None and (f"{run}/".startswith(f"{url}/") or f"{url}/".startswith(f"{run}/")):
        raise ConfigError.of("out", url, f"and the run {run} lie in one another; use a place beside it")
    if not old:
        return
    if (old == [name]) != (record is None):
        problem = "is a folder; name a file" if record is None else "is a file; name a folder"
        raise ConfigError.of("out", url, problem)
    if not overwrite:
        raise ConfigError.of("out", url, "is there already; choose another, or use --overwrite")
    if record is not None and record not in old:
        raise ConfigError.of(
            "out", url, f"is not an export (it has no {record}), so it is not replaced; choose another"
        )
