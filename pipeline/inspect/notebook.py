"""HTML for notebooks: cards and charts of the report, in colours that fit a light and a dark page."""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from markupsafe import Markup, escape

from .report.build import templates

SHOWN = 24  # default number of samples that a notebook shows


def wrap(*parts: str) -> str:
    """Wrap the parts with a style sheet that applies to nothing else on the page."""
    return Markup('<div class="noisegate"><style>{}</style>{}</div>').format(_style(), Markup("").join(parts))


def paragraph(text: str, class_: str = "") -> Markup:
    """Make one line of escaped text."""
    return Markup('<p class="{}">{}</p>').format(class_, escape(text))


def draw_cards(cards: Iterable[Mapping[str, Any]]) -> Markup:
    """Draw samples side by side, as the report's `card` describes them."""
    sample = templates().get_template("cards.html").module.sample  # type: ignore[attr-defined]
    items = [Markup("<li>{}</li>").format(sample(card)) for card in cards]
    return Markup('<ul class="cards">{}</ul>').format(Markup("").join(items))


@cache
def _style() -> Markup:
    """Return the report's style nested below our own element, then the rules for notebooks only."""
    report = files("noisegate.pipeline.inspect.report").joinpath("style.css").read_text(encoding="utf-8")
    own = files("noisegate.pipeline.inspect").joinpath("notebook.css").read_text(encoding="utf-8")
    return Markup(f".noisegate {{\n{report}\n}}\n{own}")
