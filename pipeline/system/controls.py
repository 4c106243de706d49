"""Show control characters as escapes: text from outside must not move the cursor or set the terminal's title."""

import re

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed


def show_controls(text: str) -> str:
    r"""Replace control characters but tabs and line feeds by their escapes.

    >>> show_controls("a\x1b[2J")
    'a\\x1b[2J'
    """
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


def show_line(text: str) -> str:
    r"""The same for text that must stay one line, such as a key: its line feeds become escapes too.

    >>> show_line("a\nb\x9b")
    'a\\nb\\x9b'
    """
    return show_controls(text).replace("\n", r"\n")
