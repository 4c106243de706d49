"""Processors and threads to use, and processes that end with the one that started them."""

import os
import threading
import time

LOOK_SECONDS = 0.5  # between two looks at the parent


def count_processors() -> int:
    """Return how many processors this process may use, or how many there are where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_threads() -> int:
    """Return OMP_NUM_THREADS where it is set, else one thread for each processor."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(given) if given.isdigit() and int(given) else count_processors()


def exit_with_parent(parent: int) -> None:
    """End this process, whatever it is doing, soon after its parent has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
