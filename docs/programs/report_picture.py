"""Photograph the top of a report for README.md: noisegate demo && python -m docs.programs.report_picture demo

Needs Chromium (the path in CHROMIUM, default /usr/bin/chromium) and playwright, of the extra dev.
"""

import os
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

FILE = Path(__file__).resolve().parents[1] / "pictures" / "report.png"
WIDTH, HEIGHT = 1200, 1950  # pixels: headline, histogram and the worst pairs
COLOURS = 255  # enough for flat drawings, and a third of the bytes
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def photograph(report: Path, picture: Path) -> None:
    """Write the top of an HTML report as a small PNG."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=QUIET
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(report.resolve().as_uri())
        page.screenshot(path=picture)
        browser.close()
    Image.open(picture).convert("RGB").quantize(COLOURS).save(picture, optimize=True)


if __name__ == "__main__":
    [report] = Path(sys.argv[1]).glob("tables-*/report.html")
    photograph(report, FILE)
