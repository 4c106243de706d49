"""The demo's report in a real browser: pictures that show something, a histogram, no errors, no requests, any width."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import noisegate as ng
from noisegate import ScoredPairs
from tests.commands import called
from tests.e2e.browsing import CHROMIUM, CONTRAST, QUIET

pytestmark = pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="no Chromium here")

# of every picture: its width, the variance of its pixels over all colours, and the length of its alternative text
PICTURES = """async () => {
  const found = [];
  for (const image of document.querySelectorAll('.gallery img')) {
    await image.decode();
    const canvas = document.createElement('canvas');
    canvas.width = canvas.height = 32;
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0, 32, 32);
    const pixels = context.getImageData(0, 0, 32, 32).data;
    let variance = 0;
    for (const channel of [0, 1, 2]) {
      const values = pixels.filter((_, i) => i % 4 === channel);
      const mean = values.reduce((a, b) => a + b) / values.length;
      variance += values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length;
    }
    found.push([image.naturalWidth, variance, image.alt.length]);
  }
  return found;
}"""


@dataclass
class Visit:
    """A page that is open, and what it did."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a demo of 200 scenes."""
    folder = tmp_path_factory.mktemp("demo")
    done = called("demo", "--out", "demo", "--count", "200", cwd=folder)
    assert done.returncode == 0, done.stderr
    path = folder / "demo" / "tables-200-40" / "report.html"
    assert str(path.relative_to(folder)) in done.stdout
    return path


@pytest.fixture(scope="module")  # while it is open no other test of this process can run an event loop
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


def opened(browser: Browser, path: Path, width: int = 1280, **settings: Any) -> Visit:
    page = browser.new_page(viewport={"width": width, "height": 900}, **settings)
    visit = Visit(page)
    page.on("request", lambda request: visit.requests.append(request.url))
    page.on("console", lambda message: visit.complaints.append(message.text))
    page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_load_state("load")
    return visit


def test_pictures_are_there_and_not_blank(browser: Browser, report: Path) -> None:
    visit = opened(browser, report, bypass_csp=True)  # the page itself may run nothing, not even this look at it
    found = visit.page.evaluate(PICTURES)
    assert len(found) == 36
    assert all(width > 0 and variance > 20 and alternative > 0 for width, variance, alternative in found)


def test_histogram_is_drawn(browser: Browser, report: Path) -> None:
    page = opened(browser, report).page
    histogram = page.locator("#histogram-1080-title").locator("..")
    assert histogram.is_visible()
    heights = histogram.locator(".bar").evaluate_all("bars => bars.map(bar => bar.getBoundingClientRect().height)")
    assert len(heights) >= 10 and max(heights) > 100
    assert histogram.locator(".cut").count() == 1
    assert "β" in (histogram.locator(".cut-text").text_content() or "")


def test_nothing_complains_and_nothing_is_asked_for(browser: Browser, report: Path) -> None:
    visit = opened(browser, report)
    assert visit.complaints == []
    assert [url for url in visit.requests if not url.startswith("data:")] == [report.as_uri()]


@pytest.mark.parametrize("width", [320, 390, 800])
def test_nothing_is_wider_than_the_screen(browser: Browser, report: Path, width: int) -> None:
    page = opened(browser, report, width).page
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_schemes(browser: Browser, report: Path, scheme: Any) -> None:
    page = opened(browser, report, color_scheme=scheme).page
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(251, 250, 248)", "dark": "rgb(20, 23, 26)"}[scheme]
    assert page.evaluate(CONTRAST) == []


def test_the_keyboard_reaches_the_content_first(browser: Browser, report: Path) -> None:
    page = opened(browser, report).page
    page.keyboard.press("Tab")
    skip = page.get_by_text("Skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()


@pytest.mark.parametrize(("ground", "ink"), [("#ffffff", "#111111"), ("#111111", "#e0e0e0")])
def test_what_a_notebook_shows_stands_out_on_light_and_dark_pages(
    browser: Browser, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ground: str, ink: str
) -> None:
    monkeypatch.chdir(report.parents[2])  # where the demo was started: its paths are relative
    parts = [ng.gallery(report.parent, limit=4), ng.histogram(report.parent)]
    scored = ScoredPairs(
        pa.table({**SCORED, "caption": ["a red star", "two"]}), 0.3, None, ("a note",), ["none.png", None]
    )
    body = "".join(part._repr_html_() for part in (*parts, scored))
    path = tmp_path / "notebook.html"
    path.write_text(f'<!doctype html><meta charset="utf-8"><body style="background: {ground}; color: {ink}">{body}')
    visit = opened(browser, path, 900)
    assert visit.complaints == [] and visit.page.evaluate(CONTRAST) == []
    frames = visit.page.locator(".noisegate .frame").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().height)"
    )
    assert frames == [176] * 6
    pictures = visit.page.locator(".noisegate img").evaluate_all("all => all.map(one => one.naturalWidth)")
    assert len(pictures) == 4 and min(pictures) > 0
    assert visit.page.locator(".noisegate svg .bar").count() >= 5
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 900


SCORED = {
    "status": ["ok", "no_image"],
    "error": [None, "none.png: No such file or directory"],
    "similarity": [0.4, None],
    "osa_weight": [0.1, None],
    "clean_probability": [0.9, None],
    "clean": [True, None],
}
