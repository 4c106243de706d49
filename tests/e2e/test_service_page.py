"""The inspector page in a real browser, on a real server with the embedded model: score, browse, follow a job, keys."""

import io
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from noisegate import read_table
from noisegate.pipeline.runs import Reviews
from noisegate.service.guards.middleware import hash_key
from tests.commands import FAKE, called
from tests.e2e.browsing import CHROMIUM, CONTRAST, QUIET
from tests.embeddings import clusters, scored
from tests.service.process import serve

pytestmark = pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="no Chromium here")
expect.set_options(timeout=30_000)
KEY = "a key of many letters"
FITS = "width => document.documentElement.scrollWidth <= width"
PICTURES = """async images => {
  await Promise.all(images.map(image => { image.loading = 'eager'; return image.decode(); }));
  return images.map(image => image.naturalWidth);
}"""


@dataclass
class Visit:
    """A page that is open, and what its browser complained about."""

    page: Page
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 scenes, 40 % of the captions on the wrong picture, scored into `tables`; the last sample is no picture."""
    folder = tmp_path_factory.mktemp("page")
    commands: list[tuple[object, ...]] = [
        ("scenes", "clean", "--count", 200, "--shards", 2, "--seed", 4),
        ("noise", "clean/*.tar", "--protocol", "shuffle-captions", "--rate", 0.4, "--out", "noisy"),
    ]
    for words in commands:
        assert called(*words, cwd=folder).returncode == 0
    with tarfile.open(folder / "noisy" / "scenes-000001.tar", "a") as tar:
        for name, content in (("zz_bad.png", b"no picture"), ("zz_bad.txt", b"a red circle")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    done = called("annotate", "noisy/*.tar", "--out", "tables", "--workers", 0, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[str]:
    """One open server with jobs for all tests."""
    with serve(folder, "--run", "demo=tables", "--jobs-folder", "jobs", "--root", ".") as server:
        yield server.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Browser, site: str) -> Iterator[Visit]:
    """A fresh page; whatever the browser complains about fails the test."""
    found = opened(browser, site)
    yield found
    found.page.close()
    assert found.complaints == []


def opened(browser: Browser, url: str, width: int = 1280, **settings: Any) -> Visit:
    page = browser.new_page(viewport={"width": width, "height": 900}, base_url=url, **settings)
    visit = Visit(page)
    page.on("console", lambda message: visit.complaints.append(message.text))
    page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    page.on("requestfailed", lambda request: _note(visit, request))
    return visit


def _note(visit: Visit, request: Any) -> None:
    if request.failure != "net::ERR_ABORTED":  # leaving a page ends its streams
        visit.complaints.append(f"{request.url}: {request.failure}")


def clean_sample(folder: Path, place: int) -> tuple[bytes, str]:
    """A picture with its own caption."""
    with tarfile.open(folder / "clean" / "scenes-000000.tar") as tar:
        name = sorted(n for n in tar.getnames() if n.endswith((".png", ".jpg")))[place]
        picture, text = (tar.extractfile(n) for n in (name, f"{name.rpartition('.')[0]}.txt"))
        assert picture is not None and text is not None
        return picture.read(), text.read().decode()


def test_the_right_caption_ranks_first(visit: Visit, folder: Path) -> None:
    page = visit.page
    picture, right = clean_sample(folder, 0)
    wrong = [clean_sample(folder, place)[1] for place in (3, 5, 8)]
    page.goto("/")
    expect(page.locator(".lead").first).to_contain_text("The model here, embedded, knows drawn scenes only.")
    page.get_by_label("Captions, one per line").fill("\n".join([*wrong, right]))
    page.set_input_files("#picture-file", {"name": "scene.png", "mimeType": "image/png", "buffer": picture})
    ranks = page.locator(".ranks li")  # captions were there, so the picture was enough
    expect(ranks).to_have_count(4)
    assert ranks.nth(0).locator(".said").inner_text() == right
    assert ranks.nth(0).locator(".fate").inner_text() == "keep"
    assert {ranks.nth(i).locator(".fate").inner_text() for i in (1, 2, 3)} == {"drop"}
    scores = [float(ranks.nth(i).locator("dd").first.inner_text().replace("−", "-")) for i in range(4)]
    assert scores == sorted(scores, reverse=True)
    expect(page.locator(".scale .beta")).to_contain_text("β 0.")
    expect(page.locator(".band-name")).to_have_text(["mismatched pairs", "right pairs"])


def test_the_api_can_be_tried_without_another_host(visit: Visit, site: str) -> None:
    page, hosts = visit.page, set[str]()
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    page.goto("/")
    page.get_by_role("link", name="API").click()
    page.locator("#operations-scores-v1-scorer-get, [id^=operations-scores]").first.wait_for()
    page.locator(".opblock").nth(9).wait_for()
    assert hosts == {site.removeprefix("http://").rstrip("/")}


def test_one_caption_gets_its_figures_and_neighbours(visit: Visit, folder: Path) -> None:
    page = visit.page
    picture, right = clean_sample(folder, 1)
    page.goto("/")
    page.get_by_label("Compare with a run").select_option("demo")
    page.set_input_files("#picture-file", {"name": "scene.png", "mimeType": "image/png", "buffer": picture})
    page.get_by_label("Captions, one per line").fill(right)
    page.keyboard.press("Control+Enter")
    expect(page.locator(".tile")).to_have_count(3)
    expect(page.locator(".tile").first).to_contain_text("above β")
    expect(page.locator(".strip li")).to_have_count(10)
    assert min(page.locator(".strip img").evaluate_all(PICTURES)) > 0
    page.locator(".strip a").first.click()
    expect(page.locator("dialog.sample .rows")).to_be_visible()


def test_mistakes_are_answered_kindly(visit: Visit, folder: Path) -> None:
    page = visit.page
    page.goto("/")
    page.get_by_role("button", name="Score", exact=True).click()
    expect(page.locator(".results")).to_contain_text("Choose a picture first")
    page.set_input_files("#picture-file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"words"})
    expect(page.get_by_role("alert")).to_contain_text("use JPEG, PNG, WebP or GIF")
    page.set_input_files("#picture-file", {"name": "a.png", "mimeType": "image/png", "buffer": b"no picture"})
    page.get_by_label("Captions, one per line").fill("a red circle")
    page.get_by_role("button", name="Score", exact=True).click()
    expect(page.locator(".results .problem")).to_contain_text("The picture cannot be read.")


def test_browsing_shows_the_table(visit: Visit, folder: Path) -> None:
    page, rows = visit.page, read_table(folder / "tables").to_pylist()
    scored = sorted((row for row in rows if row["similarity"] is not None), key=lambda row: row["similarity"])
    page.goto("/#/browse")
    cards = page.locator(".card")
    expect(cards).to_have_count(24)
    expect(page.locator(".card .key")).to_have_text([row["key"] for row in scored[:24]])
    assert min(page.locator(".card img").evaluate_all(PICTURES)) > 0
    expect(page.locator(".shown")).to_have_text(f"1 to 24 of {len(scored)} samples")
    kept = sum(row["clean"] is True for row in rows)
    expect(page.locator(".tiles")).to_contain_text(f"{kept} of {len(scored)}")
    expect(page.locator(".tiles")).to_contain_text("1 sample could not be scored")
    expect(page.locator(".chart svg .cut-text")).to_contain_text("β")
    heights = page.locator(".chart rect").evaluate_all("bars => bars.map(bar => bar.getBoundingClientRect().height)")
    assert len(heights) > 5 and max(heights) > 100
    page.get_by_role("link", name="Next →").click()
    expect(page.locator(".card .key")).to_have_text([row["key"] for row in scored[24:48]])
    page.get_by_role("link", name="Best", exact=True).click()
    expect(page.locator(".card .key").first).to_have_text(scored[-1]["key"])


def test_filters_narrow_the_gallery(visit: Visit, folder: Path) -> None:
    page, rows = visit.page, read_table(folder / "tables").to_pylist()
    likely = [row for row in rows if row["clean_probability"] is not None and row["clean_probability"] >= 0.9]
    dropped = [row for row in rows if row["clean"] is False]
    page.goto("/#/browse/demo")
    page.get_by_label("At least").fill("0.9")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator(".shown")).to_have_text(f"1 to 24 of {len(likely)} samples")
    page.get_by_role("link", name="Reset").click()
    page.get_by_label("Verdict").select_option("dropped")
    expect(page.locator(".shown")).to_have_text(f"1 to 24 of {len(dropped)} samples")
    page.go_back()  # filters are part of the address
    expect(page.locator(".shown")).to_have_text(f"1 to 24 of {len(rows) - 1} samples")
    page.get_by_label("Status").select_option("bad_image")
    expect(page.locator(".card")).to_have_count(1)
    expect(page.locator(".card .failed")).to_contain_text("not a readable JPEG")
    page.goto("/#/browse/demo?key=nothing-has-this")
    expect(page.locator(".empty")).to_contain_text("No sample passes these filters.")


def test_the_keyboard_is_enough(visit: Visit) -> None:
    page = visit.page
    page.goto("/#/browse/demo?view=best")
    expect(page.locator(".card")).to_have_count(24)
    page.locator(".card").first.focus()
    for key, number in (("ArrowRight", 1), ("ArrowDown", 6), ("ArrowLeft", 5), ("End", 23), ("Home", 0)):
        page.keyboard.press(key)
        expect(page.locator(".card").nth(number)).to_be_focused()
    page.keyboard.press("Enter")
    title = page.locator("#sample-title")
    expect(title).to_have_text(page.locator(".card .key").nth(0).inner_text())
    expect(page.locator("dialog.sample .rows")).to_contain_text("similarity")
    page.keyboard.press("ArrowRight")
    expect(title).to_have_text(page.locator(".card .key").nth(1).inner_text())
    page.get_by_role("button", name="Show its neighbours").press("Enter")
    expect(page.locator("dialog.sample .strip li")).to_have_count(10)
    page.keyboard.press("Escape")
    expect(page.locator("dialog.sample")).to_be_hidden()
    expect(page.locator(".card").nth(1)).to_be_focused()
    expect(page).not_to_have_url(re.compile("sample="))


def test_tab_reaches_the_content_first(visit: Visit) -> None:
    page = visit.page
    page.goto("/#/jobs")
    expect(page.get_by_label("Shards")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Shards")).to_be_focused()


def test_a_job_is_followed_to_its_end_and_its_result_browsed(visit: Visit, folder: Path) -> None:
    page = visit.page
    page.goto("/#/jobs")
    page.get_by_role("button", name="noisy/*.tar").click()
    expect(page.get_by_label("Shards")).to_have_value("noisy/*.tar")
    page.get_by_label("Name of the result").fill("again")
    page.get_by_role("button", name="Start").click()
    job = page.locator("[data-job=again]")
    expect(job.locator(".state")).to_have_text("running", timeout=20_000)
    expect(job.locator(".state")).to_have_text("done", timeout=60_000)
    expect(job).to_contain_text("201 samples")
    expect(job).to_contain_text("1 failed")
    job.get_by_role("link", name="Browse the result").click()
    expect(page.locator(".card")).to_have_count(24)
    worst = sorted(
        (row for row in read_table(folder / "jobs" / "again").to_pylist() if row["similarity"] is not None),
        key=lambda row: row["similarity"],
    )
    expect(page.locator(".card .key")).to_have_text([row["key"] for row in worst[:24]])


def test_a_refused_job_says_why(visit: Visit) -> None:
    page = visit.page
    page.goto("/#/jobs")
    page.get_by_label("Shards").fill("/etc/*.tar")
    page.get_by_label("Name of the result").fill("outside")
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".job-form .problem")).to_contain_text("is not below the folders")
    visit.complaints[:] = [text for text in visit.complaints if "403" not in text]  # the refusal itself


def test_a_key_is_asked_for_once(browser: Browser, folder: Path) -> None:
    with serve(folder, "--run", "demo=tables", *FAKE, "--beta", "fixed:0.4", "--api-key", hash_key(KEY)) as server:
        visit = opened(browser, server.url)
        page = visit.page
        page.goto("/#/browse/demo")
        asked = page.get_by_label("API key")
        asked.fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("not accepted")
        asked.fill(KEY)
        page.keyboard.press("Enter")
        expect(page.locator(".card")).to_have_count(24)
        expect(asked).to_be_hidden()
        page.locator(".card").last.scroll_into_view_if_needed()
        expect(page.locator(".card img").last).to_have_attribute("src", re.compile("^blob:"))
        assert min(page.locator(".card img").evaluate_all(PICTURES)) > 0
        refused = [text for text in visit.complaints if "401" in text]
        assert refused and visit.complaints == refused
        page.reload()
        expect(page.locator(".card")).to_have_count(24)  # kept in this tab
        page.get_by_role("button", name="Forget key").click()
        expect(page.get_by_label("API key")).to_be_visible()
        page.wait_for_function("sessionStorage.length == 0")
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_and_nothing_is_too_wide(browser: Browser, site: str, scheme: Any) -> None:
    visit = opened(browser, site, 390, color_scheme=scheme)
    page = visit.page
    views = {
        "score": ".options select",
        "browse/demo": ".card .said:not(:text('…'))",
        "browse/demo?sample=scenes-000000%2F3": "dialog.sample .rows",
        "jobs": ".job-form",
    }
    for view, shown in views.items():
        page.goto(f"/#/{view}")
        page.locator(shown).first.wait_for()
        assert page.evaluate(CONTRAST) == [], view
        for width in (320, 390, 800, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_function(FITS, arg=width)  # a page that was just made narrower takes a moment
    page.close()
    assert visit.complaints == []


# --- review ---------------------------------------------------------------------------------------------------------------
def marks(folder: Path) -> list[tuple[str, str | None]]:
    return [(mark.key, mark.mark) for mark in Reviews(folder / "tables").history()]


@pytest.fixture
def fresh(folder: Path) -> Iterator[Path]:
    """The run without marks, before and after."""
    path = Reviews(folder / "tables").path
    path.unlink(missing_ok=True)
    yield folder
    path.unlink(missing_ok=True)


def test_samples_are_reviewed_with_the_keyboard(visit: Visit, fresh: Path) -> None:
    page, rows = visit.page, read_table(fresh / "tables").to_pylist()
    worst = sorted((row for row in rows if row["similarity"] is not None), key=lambda row: row["similarity"])
    keys = [row["key"] for row in worst]
    page.goto("/#/browse/demo")
    page.wait_for_load_state("networkidle")
    page.get_by_label("Your name (optional)").fill("Ada")
    page.get_by_role("link", name="Lowest first").press("Enter")
    title = page.locator("#sample-title")
    for number, key in enumerate("kdk"):
        expect(title).to_have_text(keys[number])
        expect(page.locator("dialog .do-keep")).to_be_enabled()
        page.keyboard.press(key)
    expect(title).to_have_text(keys[3])
    expect(page.locator("dialog .do-undo")).to_be_enabled()
    page.keyboard.press("u")
    expect(title).to_have_text(keys[2])  # back where the mark was
    expect(page.locator("dialog .do-keep")).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("j")
    expect(title).to_have_text(keys[3])
    page.keyboard.press("Escape")
    expect(page.locator(".card .mark")).to_have_text(["keep", "drop"])
    agreed = sum(row["clean"] is (what == "keep") for row, what in zip(worst, ("keep", "drop"), strict=False))
    expect(page.locator(".agreement").first).to_contain_text(f"{agreed} of 2 (")
    assert marks(fresh) == [(keys[0], "keep"), (keys[1], "drop"), (keys[2], "keep"), (keys[2], None)]
    assert {mark.reviewer for mark in Reviews(fresh / "tables").history()} == {"Ada"}
    page.get_by_label("Your marks").select_option("any")
    expect(page.locator(".card .key")).to_have_text(keys[:2])
    page.get_by_label("Your marks").select_option("disagree")
    expect(page.locator(".shown")).to_have_text(f"1 to {2 - agreed} of {2 - agreed} sample{'s' * (agreed != 1)}")


def test_the_queue_goes_on_with_the_next_page(visit: Visit, fresh: Path) -> None:
    page = visit.page
    page.goto("/#/browse/demo?view=random&review=none&sample=first")
    title = page.locator("#sample-title")
    seen = []
    expect(page.locator("dialog .do-keep")).to_be_enabled()
    for number in range(25):
        seen.append(title.inner_text())
        if number:
            page.keyboard.press("k")
        else:
            page.locator("dialog .do-keep").click()  # keys work after the mouse, too
        expect(title).not_to_have_text(seen[-1])
        expect(page.locator("dialog .do-keep")).to_be_enabled()
    assert len(set(seen)) == 25
    page.get_by_role("button", name="Close").click()
    expect(page.locator(".agreement").nth(1)).to_contain_text("of 25 (")  # nothing of the random order was skipped
    assert marks(fresh) == [(key, "keep") for key in seen]


def test_a_mark_that_is_not_stored_is_taken_off_again(visit: Visit, fresh: Path) -> None:
    page = visit.page
    page.goto("/#/browse/demo")
    page.wait_for_load_state("networkidle")  # the gallery is drawn again with the marks
    card = page.locator(".card").first
    card.focus()
    page.route("**/review", lambda route: route.abort("connectionrefused"))
    page.keyboard.press("d")
    expect(page.locator(".review-panel .review-note")).to_contain_text("is not marked. Is it still running?")
    expect(page.locator(".card .mark")).to_have_count(0)
    page.unroute("**/review")
    card.focus()
    page.keyboard.press("d")
    expect(card.locator(".mark")).to_have_text("drop")
    expect(page.locator(".card").nth(1)).to_be_focused()
    expect(page.locator(".agreement").first).to_contain_text("of 1 (")
    assert len(marks(fresh)) == 1
    visit.complaints[:] = [text for text in visit.complaints if "CONNECTION_REFUSED" not in text]


def test_labels_are_changed_by_typing_their_class(browser: Browser, tmp_path: Path) -> None:
    for words in (
        ("scenes", "clean", "--count", 60, "--shards", 1, "--seed", 4, "--size", 32),
        ("annotate", "clean/*.tar", "--task", "labels", "--classes", "clean/classes.txt", "--out", "tables", *FAKE),
    ):  # fmt: skip
        done = called(*words, *(("--workers", 0) if words[0] == "annotate" else ()), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    names = (tmp_path / "clean" / "classes.txt").read_text().split("\n")
    rows = read_table(tmp_path / "tables").to_pylist()
    first_key = rows[0]["key"]
    with serve(tmp_path, "--run", "demo=tables", *FAKE) as server:
        visit = opened(browser, server.url, 390, has_touch=True)
        page = visit.page
        page.goto("/#/browse/demo?view=all&sample=first")
        title = page.locator("#sample-title")
        expect(title).to_have_text(first_key)
        page.locator("dialog .do-relabel").tap()
        typed = next(name for name in names if name != names[rows[0]["label"]])
        page.get_by_role("combobox", name="The right class").fill(typed)
        expect(page.locator(".picker [role=option]")).to_have_text([typed])
        page.keyboard.press("Enter")
        expect(title).not_to_have_text(first_key)
        page.locator("dialog .do-keep").tap()
        expect(page.locator(".agreement").first).to_contain_text("of 2 (")
        page.get_by_role("button", name="Close").tap()
        expect(page.locator(".card .mark")).to_have_text([f"→ {typed}", "keep"])
        assert page.evaluate(CONTRAST) == []
        page.close()
        assert visit.complaints == []
    first, second = Reviews(tmp_path / "tables").history()
    assert (first.mark, first.label, second.mark) == ("relabel", names.index(typed), "keep")


def test_cards_of_labels_say_what_they_look_like_and_what_was_changed(browser: Browser, tmp_path: Path) -> None:
    images, true = clusters(count=400)
    given = np.where(np.arange(400) % 5 == 1, (true + 1 + np.arange(400) // 5 % 3) % 4, true)
    given[7:20] = -1
    made = scored(tmp_path, images, labels=given, class_names=["ant", "bee", "cat", "dog"])
    with serve(tmp_path, "--run", "demo=out", *FAKE) as server:
        visit = opened(browser, server.url, 800)
        page = visit.page
        page.goto("/#/browse/demo")
        card = page.locator(".card").first
        expect(card.locator(".turn")).to_have_text(re.compile(r"^given (\w+), looks like (?!\1)\w+, .*% \(changed\)$"))
        expect(card.locator(".figures dt")).to_have_text(["label quality"])
        expect(page.locator(".tile").nth(1)).to_contain_text(f"{made.kept} of 387")
        page.close()
