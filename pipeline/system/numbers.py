"""Numbers and reasons in words, as commands and summaries print them."""

import math


def percent(share: float | None) -> str:
    return "–" if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def number(value: float | None, digits: int = 4) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def why(reason: str) -> str:
    """Return the reason for a β in words; tables record `crossing` for the normal case of `intersection`."""
    if reason in ("", "crossing"):
        return "where right and shuffled pairs are equally dense" if reason else "–"
    return reason.removesuffix("; crossing")
