"""The threads of numpy's BLAS."""

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


@cache
def _find_libraries() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all libraries of the process, which takes milliseconds


def one_blas_thread() -> AbstractContextManager[Any]:
    """Let BLAS use one thread, for products so small that its threads would wait for each other, or beside own threads."""
    limit: AbstractContextManager[Any] = _find_libraries().limit(limits=1, user_api="blas")
    return limit
