"""Files in a store that fsspec reaches (s3://, gs://, hf://, memory://): list, get, put and delete, with retries."""

import errno
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from noisegate.pipeline.errors import ConfigError, NoisegateError

from .extras import install_line
from .output_files import whole_path

PAUSES = (0.5, 2.0, 8.0)  # seconds before each new try of a request (chosen)
REQUESTS = 16  # parallel requests
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
_PACKAGES = {"abfs": "adlfs", "az": "adlfs", "hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp"}
_NO_USE_TO_RETRY = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    TypeError,
)
_TAGS = ("ETag", "etag", "md5Hash", "blob_id", "LastModified", "mtime", "created")


def store_url(place: str | Path) -> str | None:
    """Return the URL of a place in a store, even if `Path` has removed one of its slashes; None for a local path.

    >>> store_url(Path("s3://bucket/run")), store_url("tables")
    ('s3://bucket/run', None)
    """
    found = re.fullmatch(r"([a-zA-Z][a-zA-Z0-9+.-]+):(?:/+(.*))?", str(place))
    return f"{found[1].lower()}://{(found[2] or '').rstrip('/')}" if found and found[1].lower() != "file" else None


def check_protocol(setting: str, url: str) -> None:
    """Raise ConfigError if no driver is installed for a URL; a local path passes."""
    if "://" not in url:
        return
    protocol = url.split("://")[0]
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        known = _EXTRAS.get(protocol)
        line = install_line(known) if known else f"pip install {_PACKAGES.get(protocol, 'its driver')}"
        raise ConfigError.of(setting, url, f"needs {line}") from error
    except ValueError as error:
        usable = "s3, gs or hf" if setting == "out" else "s3, gs, hf or https"  # https cannot be written to
        raise ConfigError.of(setting, url, f"has an unknown protocol; use a path, {usable}") from error


def describe(error: Exception) -> str:
    """Describe an error of any store in one line, without names of local files."""
    if isinstance(error, OSError) and error.filename is not None:
        return str(error.strerror)
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class Listed:
    """A file as a store lists it; `tag` changes with its content."""

    size: int
    tag: str


class Store:
    """The files below one URL. `setting` is the setting that gave the URL, for messages.

    A request that fails is tried again after each of `PAUSES`. Then NoisegateError is raised, or at once ConfigError if the
    store denies access. Names are relative to the URL.
    """

    def __init__(self, url: str, setting: str = "out") -> None:
        check_protocol(setting, url)
        self.url, self.setting = url, setting
        self.protocol = url.split("://")[0]
        if self.protocol in ("http", "https"):
            raise ConfigError.of(setting, url, "is a web address, which takes no files; use a path, s3, gs or hf")
        uncached = {} if self.protocol == "hf" else {"use_listings_cache": False}  # hf needs its cache within a request
        try:
            self._files, self._root = fsspec.core.url_to_fs(url, **uncached)
        except Exception as error:  # every fsspec back end has its own types of errors
            raise ConfigError.of(setting, url, f"cannot be opened: {describe(error)}") from error
        if not self._root.strip("/"):
            raise ConfigError.of(setting, url, f"names no place; use {self.protocol}://bucket/run")

    @classmethod
    def of_file(cls, url: str, setting: str = "out") -> tuple["Store", str]:
        """Return the store of a URL's parent folder, and the last part of the URL; raise ConfigError if there is no parent."""
        folder, _, name = url.rpartition("/")
        if folder.endswith(":/") or not name:
            raise ConfigError.of(setting, url, f"names no file; use {url.rstrip('/')}/NAME")
        store = cls(folder, setting)
        store.check()
        return store, name

    def check(self) -> None:
        """Raise ConfigError unless the store answers, without new tries: a wrong name must be reported at once."""
        try:
            self._files.ls(self._root, detail=True)
        except FileNotFoundError:
            return  # writing the first file makes the folder
        except Exception as error:
            problem = f"cannot be reached: {describe(error)}; check its name, your credentials and the endpoint"
            raise ConfigError.of(self.setting, self.url, problem) from error

    def list_files(self, folder: str = "") -> dict[str, Listed]:
        """List the files of one folder by name, without sub-folders; empty if there is no folder."""
        place = f"{self._root}/{folder}" if folder else self._root
        try:
            entries = self._ask("listing", self._files.ls, place, detail=True)
        except FileNotFoundError:
            return {}
        prefix = f"{folder}/" if folder else ""
        files = [entry for entry in entries if entry["type"] == "file" and entry["name"].strip("/") != place.strip("/")]
        return {f"{prefix}{PurePosixPath(entry['name']).name}": _listed(entry) for entry in files}

    def find(self, folder: str) -> list[str]:
        """List the names of all files below a folder."""
        found = self._ask("listing", self._files.find, self._path(folder))
        return [f"{folder}{path.removeprefix(self._path(folder))}" for path in found]

    def read(self, name: str) -> bytes | None:
        """Read a small file, None if there is none."""
        try:
            content: bytes = self._ask(f"reading {name}", self._files.cat_file, self._path(name))
        except FileNotFoundError:
            return None
        return content

    def write(self, name: str, content: bytes, create: bool = False) -> bool:
        """Write a small file; with `create` only if there is none; return whether it was written.

        S3, Google's store and memory do this in one step; for other stores it is checked first.
        """
        put = self._create if create else self._files.pipe_file
        try:
            self._ask(f"writing {name}", put, self._path(name), content)
        except FileExistsError:
            return False
        except FileNotFoundError as error:
            raise self._nowhere(error) from error
        return True

    def get(self, name: str, path: Path, listed: Listed | None = None) -> None:
        """Download a file to `path`, completely or not at all; raise FileNotFoundError."""
        path.parent.mkdir(parents=True, exist_ok=True)

        def copy() -> None:
            with whole_path(path) as temporary:
                self._files.get_file(self._path(name), str(temporary))
                size = temporary.stat().st_size
                if listed is not None and size != listed.size:
                    raise OSError(f"{name} has {size:,} bytes, not {listed.size:,}")

        self._ask(f"reading {name}", copy)

    def put(self, name: str, path: Path) -> Listed:
        """Upload a local file to the store, where it appears only when complete."""
        try:
            self._ask(f"writing {name}", self._files.put_file, str(path), self._path(name))
        except FileNotFoundError as error:
            raise self._nowhere(error) from error
        return _listed(self._ask(f"looking at {name}", self._files.info, self._path(name)))

    def delete(self, name: str) -> None:
        """Delete a file if it is there."""
        try:
            self._ask(f"deleting {name}", self._files.rm_file, self._path(name))
        except FileNotFoundError:
            return

    def each(self, call: Callable[[str], object], names: Iterable[str]) -> None:
        """Call a function for every name, several at a time; the first error stops the rest."""
        at_once = 1 if self.protocol == "hf" else REQUESTS  # on hf, every upload is a commit
        with ThreadPoolExecutor(at_once) as pool:
            calls = [pool.submit(call, name) for name in names]
            try:
                for one in calls:
                    one.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _create(self, path: str, content: bytes) -> None:
        try:
            self._files.pipe_file(path, content, mode="create")
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EINVAL):
                raise
            if self._files.exists(path):  # a self-hosted store may not support conditional writes
                raise FileExistsError(path) from error
            self._files.pipe_file(path, content)

    def _nowhere(self, error: Exception) -> ConfigError:
        return ConfigError.of(self.setting, self.url, f"cannot be written: {describe(error)}; make the bucket first")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _ask(self, what: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        for pause in PAUSES:
            try:
                return self._once(what, call, *arguments, **options)
            except NoisegateError as error:
                if isinstance(error, ConfigError):
                    raise
                time.sleep(pause)
        return self._once(what, call, *arguments, **options)

    def _once(self, what: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self._files.invalidate_cache()  # other processes write there too
        try:
            return call(*arguments, **options)
        except PermissionError as error:
            problem = f"is not open to you: {what}: {describe(error)}; check your credentials"
            raise ConfigError.of(self.setting, self.url, problem) from error
        except _NO_USE_TO_RETRY:
            raise
        except Exception as error:  # every fsspec back end has its own types of errors
            problem = f"failed again and again: {what}: {describe(error)}; run the same command again, and it goes on"
            raise NoisegateError.of(self.setting, self.url, problem) from error


def _listed(entry: dict[str, Any]) -> Listed:
    tag = next((entry[name] for name in _TAGS if entry.get(name) is not None), "")
    return Listed(int(entry["size"]), str(tag.timestamp()) if hasattr(tag, "timestamp") else str(tag))
