"""Draw the badges of README from pyproject.toml: python -m docs.programs.badges"""

import tomllib
from html import escape
from pathlib import Path

__all__ = ["draw_badges"]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"
LETTER = 6.6  # pixels of a letter at 11 pixels


def draw_badges() -> dict[str, str]:
    """An SVG by file name for each fact of the package: version, Python, licence."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python = project["requires-python"].removeprefix(">=")
    facts = {"version": project["version"], "python": f"{python} or later", "license": project["license"]}
    return {f"badge-{name}.svg": _badge(name, value) for name, value in facts.items()}


def _badge(name: str, value: str) -> str:
    left, right = (round(LETTER * len(text)) + 14 for text in (name, value))
    text = 'y="14" fill="#fff" font-family="sans-serif" font-size="11" text-anchor="middle"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{escape(f"{name}: {value}")}">'
        f'<clipPath id="round"><rect width="{left + right}" height="20" rx="4"/></clipPath><g clip-path="url(#round)">'
        f'<rect width="{left}" height="20" fill="#455a64"/><rect x="{left}" width="{right}" height="20" fill="#2e7d5b"/></g>'
        f'<text x="{left / 2}" {text}>{escape(name)}</text><text x="{left + right / 2}" {text}>{escape(value)}</text></svg>\n'
    )


if __name__ == "__main__":
    for file, svg in draw_badges().items():
        (FOLDER / file).write_text(svg, encoding="utf-8")
