"""Limit the threads of numpy's BLAS."""

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


@cache
def _find_libraries() -> ThreadpoolController:
    return ThreadpoolController()  # searches all libraries of the process, which takes milliseconds


def one_blas_thread() -> AbstractContextManager[Any]:
    """Limit BLAS to one thread, for products so small that its threads would wait for each other, or inside own threads."""
    limit: AbstractContextManager[Any] = _find_libraries().limit(limits=1, user_api="blas")
    return limit
