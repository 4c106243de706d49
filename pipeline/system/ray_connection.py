"""Connect to a Ray cluster, or start a small one on this host. `ray` is imported on first use, not before."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from noisegate.pipeline.errors import ConfigError

from .extras import install_line

# Ray's own switch, which it reads as it is imported: 0 binds all of its ports to the loopback address. Set it to 1 to let a Ray
# that is started here listen on the network; an existing cluster (an address) is left as it is.
BEYOND_THIS_HOST = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
STORE_BYTES = 80_000_000  # object store of a Ray started here: nothing large is kept in it
STARTS, SLOW_START = 2, "timed out during startup"  # Ray gives up after 30 s, which a busy host may need


def import_ray(address: str | None = None) -> Any:
    """Import ray with its usage statistics off; raise ConfigError if it is not installed.

    Without an `address` (or RAY_ADDRESS) a Ray will be started here, with its ports bound to this host.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not address and not os.environ.get("RAY_ADDRESS"):
        os.environ.setdefault(BEYOND_THIS_HOST, "0")
    try:
        import ray
        import ray.cloudpickle
    except ImportError as error:
        raise ConfigError(f"engine ray needs the package ray; {install_line('ray')}", "engine", "ray") from error
    return ray


@contextmanager
def connect_to_ray(ray: Any, address: str | None = None, cpus: int = 1) -> Iterator[None]:
    """Connect `ray` to the cluster at `address` (None: RAY_ADDRESS, else a Ray of this host with at least `cpus` CPUs).

    A Ray that this process has already started is used as it is. Ray's output goes to standard error.
    """
    with redirect_stdout(sys.stderr):
        if ray.is_initialized():
            yield
            return
        _connect(ray, address or os.environ.get("RAY_ADDRESS"), cpus)
        try:
            yield
        finally:
            ray.shutdown()


def _connect(ray: Any, address: str | None, cpus: int) -> None:
    how: dict[str, Any] = {"address": address, "logging_level": "ERROR", "log_to_driver": False}
    if not address:
        how |= {"address": "local", "num_cpus": max(os.cpu_count() or 1, cpus)}
        how |= {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    for left in reversed(range(STARTS)):
        try:
            ray.init(**how)
            return
        except Exception as error:  # Ray also raises plain Exceptions
            if left and SLOW_START in str(error):
                ray.shutdown()
                continue
            reason = " ".join(str(error).split())[:300]
            raise ConfigError.of(
                "address", how["address"], f"has no Ray ({reason}); start one with: ray start --head"
            ) from error


def first_line(error: Exception) -> str:
    """Return the first line of Ray's error message, which has many lines."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]
