"""Start worker processes that do not run the caller's script again.

Python's `spawn` and `forkserver` import the caller's `__main__` in every new process, so that a script without `if __name__ ==
'__main__':` starts itself over and over, and a script read from standard input cannot start any. Workers of noisegate need only
its own modules, unless an object sent to them is defined in the script.
"""

import multiprocessing
import pickle
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import context, resource_tracker, spawn
from tempfile import gettempdir
from typing import Any

UNGUARDED = (
    "what workers need is defined in your script or notebook: move it to a module of its own, or in a script call this under "
    "`if __name__ == '__main__':`"
)
LONGEST_TEMPDIR = 70  # characters: the server adds 32, and paths of sockets end at 104 (macOS) or 108 (Linux)
_MAIN_KEYS = ("init_main_from_name", "init_main_from_path")  # entries of spawn's preparation data
_this_thread = threading.local()
_spawn_preparation = spawn.get_preparation_data


def _prepare(name: str) -> dict[str, Any]:
    data = _spawn_preparation(name)
    if getattr(_this_thread, "leaves_out_main", False):
        for key in _MAIN_KEYS:
            data.pop(key, None)
    return data


spawn.get_preparation_data = _prepare  # differs from Python's own only within `_without_main`


@contextmanager
def _without_main() -> Iterator[None]:
    _this_thread.leaves_out_main = True
    try:
        yield
    finally:
        _this_thread.leaves_out_main = False


class _SpawnProcess(context.SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        with _without_main():
            return context.SpawnProcess._Popen(process_obj)


class _ForkServerProcess(context.ForkServerProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        with _without_main():
            return context.ForkServerProcess._Popen(process_obj)


class _SpawnContext(context.SpawnContext):
    Process = _SpawnProcess


class _ForkServerContext(context.ForkServerContext):
    Process = _ForkServerProcess


def spawn_context(sent: object = None) -> context.SpawnContext:
    """Return a spawn context whose processes import `__main__` only if `sent`, an object sent to them, is defined there.

    >>> spawn_context().get_start_method()
    'spawn'
    """
    return context.SpawnContext() if _needs_main(sent) else _SpawnContext()


def forkserver_context(
    sent: object = None, preload: Sequence[str] = ()
) -> context.SpawnContext | context.ForkServerContext:
    """Like `spawn_context`, for processes forked by a server that has imported the modules `preload` once for all.

    Without such a server they are spawned: on Windows, and if the path of its socket would be too long.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods() or len(gettempdir()) > LONGEST_TEMPDIR:
        return spawn_context(sent)
    chosen = context.ForkServerContext() if _needs_main(sent) else _ForkServerContext()
    chosen.set_forkserver_preload(list(preload))
    return chosen


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Block Ctrl-C for processes started here, so that it does not interrupt their imports with a traceback."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # started with the first process, and its start would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _needs_main(sent: object) -> bool:
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # this is a worker that runs the script again
        raise SystemExit(UNGUARDED)
    return is_of_main(sent)


def is_of_main(value: object) -> bool:
    """Return whether pickling `value` refers to a class or function of the running script or notebook."""
    return b"__main__" in pickle.dumps(value)
