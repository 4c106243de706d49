"""The hub that weights come from, without the minute of retries that it takes where there is no network."""

import contextlib
from collections.abc import Iterator

__all__ = ["hub_or_cache"]

_SECONDS = 5.0


@contextlib.contextmanager
def hub_or_cache() -> Iterator[str | None]:
    """Within, files come from the hub where it answers, else at once from its cache; then it yields what is wrong."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    problem = f"{constants.ENDPOINT} may not be asked (HF_HUB_OFFLINE)" if before else _problem(constants.ENDPOINT)
    constants.HF_HUB_OFFLINE = problem is not None
    try:
        yield problem
    finally:
        constants.HF_HUB_OFFLINE = before


def _problem(endpoint: str) -> str | None:
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    try:
        status = int(get_session().head(endpoint, timeout=_SECONDS).status_code)
    except Exception as error:  # the hub's client changed its HTTP library, and with it its errors, more than once
        return f"{endpoint} does not answer ({type(error).__name__})"
    return f"{endpoint} answers with status {status}" if status >= 500 else None
