"""From settings to a runner of jobs."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from noisegate.pipeline.errors import ConfigError, LockedError
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.labels.classes import BUILT_IN, ClassSet, load_classes
from noisegate.pipeline.runs.lock import folder_lock
from noisegate.service.runs.class_sets import ClassSets
from noisegate.service.settings import Settings

from .paths import Roots
from .runner import JobRunner
from .store import JobStore

__all__ = ["RECORD", "job_classes", "open_runner"]

RECORD = "_jobs.sqlite"  # no job can have this name


def job_classes(registered: ClassSets) -> Callable[[str], ClassSet]:
    """Class sets that jobs may name: registered ones, then the built-in lists; never a file of the client's choice."""

    def find(name: str) -> ClassSet:
        if name not in registered.names() and name in BUILT_IN:
            return load_classes(name)
        return registered.source(name)

    return find


def open_runner(settings: Settings, spec: ModelSpec, registered: ClassSets) -> JobRunner | None:
    """None without `jobs_folder`. Raises ConfigError for a folder that another server uses, or roots that are none."""
    folder = settings.jobs_folder
    if folder is None:
        return None
    roots = Roots.of(settings.roots)
    with ExitStack() as stack:
        try:
            stack.enter_context(folder_lock(folder))
            store = JobStore(folder / RECORD)
        except LockedError as error:
            raise ConfigError(f"jobs_folder {folder} is used by another server; give each its own") from error
        except OSError as error:
            raise ConfigError(
                f"jobs_folder {folder} cannot be written ({error.strerror}); use another folder"
            ) from error
        stack.callback(store.close)
        return JobRunner(
            store,
            folder,
            replace(spec, device=settings.device),
            roots,
            job_classes(registered),
            parallel=settings.parallel_jobs,
            workers=settings.decode_workers,
            on_stop=stack.pop_all().close,
        )
