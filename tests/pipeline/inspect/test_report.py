"""The report of a run, read back as a browser would: what it counts, shows, escapes, and says when something is missing."""

import itertools
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from noisegate import read_table
from noisegate.pipeline.errors import TableError
from noisegate.pipeline.inspect.report import Report, write_report
from noisegate.pipeline.inspect.report.charts import merge_bins
from noisegate.pipeline.inspect.report.collect import Lowest, LowestPerClass, ShardFacts
from noisegate.pipeline.inspect.report.pictures import printable
from noisegate.pipeline.inspect.report.sections import find_drift, ks_distance
from noisegate.pipeline.runs.table import RunFolder, read_metadata, replace_columns
from tests.commands import called
from tests.embeddings import clusters, scored
from tests.errors import refused
from tests.fakes import pairs, picture, write_tar
from tests.jobs import score

VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """A page's elements with their attributes, its text, and whether every element is closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(self.source)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [a for name, a in self.elements if name == tag and all(a.get(k) == v for k, v in wanted.items())]


def report(folder: Path, **settings: Any) -> tuple[Report, Page]:
    made = write_report(folder, **settings)
    return made, Page(made.path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 pairs in three shards, some with captions of another colour, three that failed."""
    folder = tmp_path_factory.mktemp("report")
    for i in range(3):
        members = pairs(20, 20 * i)
        if i == 2:
            members += [("bad.png", b"nothing"), ("bad.txt", b"a red thing"), ("lost.txt", b"blue <b>bold</b>")]
            members += [("mute.png", picture())]
        write_tar(folder / "shards" / f"x-{i}.tar", members)
    score(folder / "shards", folder / "tables", beta="auto")
    return folder / "tables"


@pytest.fixture
def own_run(run: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may change."""
    return Path(shutil.copytree(run, tmp_path / "tables", ignore=shutil.ignore_patterns("report.html")))


# --- what it says ----------------------------------------------------------------------------------------------------


def test_figures_are_those_of_the_tables(run: Path) -> None:
    made, page = report(run)
    table = read_table(run, ["status", "clean"])
    kept = sum(bool(v) for v in table["clean"].to_pylist())
    assert made.samples == len(table) == 63
    assert f"keeps {kept:,} of 60 scored pairs" in page.text
    beta = read_metadata(run / "x-0.parquet")["beta"]["value"]
    assert f"β {beta:.3f}" in page.text
    for status in ("bad_image", "no_image", "no_text"):
        assert status in page.text
    assert "not a readable JPEG, PNG, WebP or GIF" in page.text


def test_galleries_hold_the_lowest_the_highest_and_the_nearest(run: Path) -> None:
    page = report(run, gallery=3)[1]
    rows = [row for row in read_table(run).to_pylist() if row["similarity"] is not None]
    beta = read_metadata(run / "x-0.parquet")["beta"]["value"]
    similarity = {row["key"]: row["similarity"] for row in rows}
    for name, order in (
        ("worst", similarity),
        ("best", {key: -value for key, value in similarity.items()}),
        ("borderline", {key: abs(value - beta) for key, value in similarity.items()}),
    ):
        part = page.source.split(f'<section id="{name}"')[1].split("</section>")[0]
        shown = re.findall(r'class="key">(\w+)<br>', part)
        assert [order[key] for key in shown] == pytest.approx(sorted(order.values())[:3])


def test_every_picture_is_embedded_and_has_its_caption_as_alternative(run: Path) -> None:
    made, page = report(run)
    images = page.all("img")
    assert 0 < made.pictures <= len(images)  # a sample may be in two galleries
    assert all((image["src"] or "").startswith("data:image/jpeg;base64,") for image in images)
    assert all(re.fullmatch(r"number \d+ is \w+", image["alt"] or "") for image in images)


def test_histogram_counts_every_scored_pair(run: Path) -> None:
    page = report(run)[1]
    bars = re.findall(r'<rect class="bar"[^>]*><title>[^<]*: ([\d,]+) \(', page.source)
    assert sum(int(bar.replace(",", "")) for bar in bars) == 2 * 60  # once wide, once narrow
    assert page.all("path", **{"class": "mismatched"}) and page.all("line", **{"class": "cut"})
    assert len(page.all("rect", **{"class": "band"})) >= 2


# --- what it may not do ----------------------------------------------------------------------------------------------


def test_nothing_can_load_or_run(run: Path) -> None:
    page = report(run)[1]
    policy = page.all("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"] or ""
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy
    assert not page.all("script") and not any("style" in a or "onload" in a for _, a in page.elements)
    addresses = [a[name] or "" for _, a in page.elements for name in ("src", "href") if name in a]
    assert addresses and all(address.startswith(("data:", "#")) for address in addresses)


HOSTILE = {
    "script": '<script>alert("1")</script><img src=x onerror=alert(1)>',
    "quote": "\" onmouseover='alert(1)' x=\"",
    "brace": "{{ 7 * 7 }} {% raw %}",
    "rtl": "كلب أحمر على خلفية بيضاء \u202e",
    "emoji": "a red dog 🐕‍🦺 👩🏽‍🚀",
    "long": "red " * 5000,
    "nul": "a red\x00 dog\x1b[31m",
}


def test_captions_and_names_are_text_whatever_they_hold(tmp_path: Path) -> None:
    members = [
        member
        for i, text in enumerate(HOSTILE.values())
        for member in ((f"k<i>{i}.png", picture("red")), (f"k<i>{i}.txt", text.encode()))
    ]
    write_tar(tmp_path / "shards" / "a<b>&.tar", members)
    score(tmp_path / "shards", tmp_path / "<u>tables", beta="fixed:0.1")
    made, page = report(tmp_path / "<u>tables")
    assert made.pictures == len(HOSTILE)
    assert not page.all("script") and not page.all("i", onerror="alert(1)") and not page.all("u")
    assert {tag for tag, _ in page.elements} <= {*VOID, *_known_tags()}
    assert not any(name.startswith("on") for _, a in page.elements for name in a)
    assert HOSTILE["script"] in page.text and HOSTILE["brace"] in page.text and HOSTILE["emoji"] in page.text
    assert all(p.get("dir") == "auto" for p in page.all("p", **{"class": "said"}))
    assert "\x00" not in page.source and "\x1b" not in page.source
    longest = max((a.get("alt") or "" for a in page.all("img")), key=len)
    assert longest.endswith("…") and len(longest) == 150
    assert re.search(r"(red ){20,}[red ]*…", page.text) and len(page.text) < 40_000


def _known_tags() -> set[str]:
    templates = (Path(__file__).resolve().parents[3] / "pipeline" / "inspect" / "report").glob("*.html")
    drawn = {"svg", "title", "desc", "rect", "line", "path", "polyline", "text"}
    return set(re.findall(r"<([a-z0-9]+)", "".join(page.read_text(encoding="utf-8") for page in templates))) | drawn


@given(st.text(max_size=300), st.integers(1, 50))
def test_printable_text_is_short_and_has_no_control_characters(text: str, most: int) -> None:
    shown = printable(text, most)
    assert len(shown) <= most
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", shown)
    shown.encode()


def test_secrets_in_addresses_stay_out(own_run: Path) -> None:
    folder = RunFolder(own_run)
    recorded = folder.read_run() or {}
    url = "https://user:password@host.invalid/data/x-9.tar?token=abc"
    recorded["unreadable"] = {url: f"shard {url} cannot be opened"}
    folder.write_run(recorded)
    page = report(own_run, pictures=False)[1]
    assert "https://host.invalid/data/x-9.tar" in page.text
    assert "token" not in page.source and "password" not in page.source


def test_secrets_of_shards_that_are_gone_stay_out(own_run: Path) -> None:
    folder = RunFolder(own_run)
    recorded = folder.read_run() or {}
    for entry in recorded["shards"]:
        entry["url"] = f"memory://user:password@gone/{entry['table']}.tar?token=abc"
    folder.write_run(recorded)
    page = report(own_run)[1]
    assert "could not be read again" in page.text
    assert "token" not in page.source and "password" not in page.source


# --- structure -------------------------------------------------------------------------------------------------------


def test_headings_are_in_order_and_names_are_unique(run: Path) -> None:
    page = report(run)[1]
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    targets = {(a["href"] or "").removeprefix("#") for a in page.all("a")}
    assert targets <= set(ids)
    for drawing in page.all("svg"):
        assert set((drawing["aria-labelledby"] or "").split()) <= set(ids)
    assert page.all("html")[0]["lang"] == "en"


# --- what may be missing ---------------------------------------------------------------------------------------------


def test_without_its_shards_the_report_says_why_there_are_no_pictures(own_run: Path) -> None:
    folder = RunFolder(own_run)
    recorded = folder.read_run() or {}
    for entry in recorded["shards"]:
        entry["url"] = f"/gone/{entry['table']}.tar"
    folder.write_run(recorded)
    made, page = report(own_run)
    assert made.pictures == 0 and not page.all("img")
    assert "No pictures: 3 of the shards could not be read again" in page.text
    assert page.all("rect", **{"class": "bar"})


def test_a_changed_picture_is_not_shown(own_run: Path, tmp_path: Path) -> None:
    folder = RunFolder(own_run)
    recorded = folder.read_run() or {}
    members = [(name, picture("pink") if name.endswith("png") else data) for name, data in pairs(20)]
    recorded["shards"][0]["url"] = str(write_tar(tmp_path / "other.tar", members))
    folder.write_run(recorded)
    page = report(own_run, gallery=60)[1]
    assert page.text.count("changed since it was scored") >= 20


def test_a_run_of_embeddings_has_a_report_without_pictures(array_runs: Path) -> None:
    assert "scored from embeddings, without shards" in report(array_runs / "joint")[1].text
    page = report(array_runs / "apart")[1]
    assert "neighbourhood agreement" in page.text and page.all("rect", **{"class": "bar"})


def test_a_run_in_which_everything_failed_has_a_report(tmp_path: Path) -> None:
    write_tar(tmp_path / "shards" / "x.tar", [("a.txt", b"no picture"), ("b.txt", b"none either")])
    score(tmp_path / "shards", tmp_path / "tables")
    page = report(tmp_path / "tables")[1]
    assert "No sample could be scored" in page.text and "no_image" in page.text
    assert "There is one shard" in page.text


def test_dropped_embeddings_cost_the_mismatched_pairs_only(own_run: Path) -> None:
    shutil.rmtree(own_run / "embeddings")
    page = report(own_run)[1]
    assert "The embeddings were not kept" in page.text
    assert page.all("rect", **{"class": "bar"}) and not page.all("path", **{"class": "mismatched"})


def test_wrong_settings_and_folders_are_one_message(own_run: Path, tmp_path: Path) -> None:
    with refused("gallery", 0):
        write_report(own_run, gallery=0)
    with refused("run", tmp_path / "nowhere", TableError):
        write_report(tmp_path / "nowhere")
    with refused("out", own_run / "_run.json" / "report.html"):
        write_report(own_run, own_run / "_run.json" / "report.html")
    folder = RunFolder(own_run)
    folder.write_run({**(folder.read_run() or {}), "finished": False})
    with refused("run", own_run, TableError):
        write_report(own_run)


def test_pairs_of_which_nothing_is_known_are_not_to_be_dropped(own_run: Path) -> None:
    folder = RunFolder(own_run)
    assert "noisegate export" in report(own_run)[1].text
    for stem in list(folder.stems()):
        metadata = read_metadata(folder.table(stem))
        unknown = metadata["calibration"] | {"noise_interval": [0.1, 1.0], "pairs": 1000}
        folder.write_table(stem, replace_columns(folder.read(stem), {}, metadata | {"calibration": unknown}))
    page = report(own_run)[1]
    assert "the model hardly tells your pairs from shuffled ones" in page.text
    assert "noisegate serve --run" in page.text
    assert "noisegate export" not in page.text and "noisegate train" not in page.text


# --- labels and duplicates -------------------------------------------------------------------------------------------


@pytest.fixture
def labelled(own_run: Path) -> Path:
    """The run with label columns put in by hand: in every shard one of class 0 should be 1, and one repeats another."""
    folder = RunFolder(own_run)
    for stem in list(folder.stems()):
        table, metadata = folder.read(stem), read_metadata(folder.table(stem))
        count = len(table)
        given = np.arange(count) % 3
        predicted = np.where(np.arange(count) == 3, 1, given)
        refined = np.where(np.arange(count) == 3, 2 if stem == "x-1" else 1, given)
        flags = [["duplicate_of:x-0/00000"] if stem == "x-1" and i == 7 else [] for i in range(count)]
        columns = {
            "label": pa.array(given, pa.int32()),
            "predicted_label": pa.array(predicted, pa.int32()),
            "predicted_confidence": np.full(count, 0.9, np.float32),
            "refined_label": pa.array(refined, pa.int32()),
            "label_quality": np.where(given == refined, 0.95, 0.05).astype(np.float32),
            "flags": flags,
        }
        facts = {
            **{"k": 5, "classes": 3, "noise_rate": 0.05, "noise_interval": [0.01, 0.1], "ece": 0.02},
            "source_weights": {"probe": 1.5, "neighbours": 0.25},
            "changed_wrong": 0.4,
            "expected": dict.fromkeys(("kept", "clean_precision", "clean_recall", "noise_precision"), 0.9)
            | {"noise_recall": None},
        }
        folder.write_table(stem, replace_columns(table, columns, metadata | {"labels": facts}))
    return own_run


def test_labels_show_what_turns_into_what_and_the_worst_of_each_class(labelled: Path) -> None:
    page = report(labelled)[1]
    part = page.source.split('<section id="labels"')[1].split("</section>")[0]
    assert re.search(r"class 0</td><td[^>]*>class 1</td><td class=\"num\">3</td>", part)
    assert len(re.findall(r'<rect class="moved"', part)) == 1
    first = part.split("<details")[1]
    assert "class 0" in first.split("</summary>")[0] and "3 of 21 labels are more likely wrong than right" in first
    assert 'given <b dir="auto">class 0</b>, looks like <b dir="auto">class 1</b>, 90 % (changed)' in first.replace(
        "\N{NO-BREAK SPACE}", " "
    )
    assert 'looks like <b dir="auto">class 1</b>, 90\xa0% (changed to <b dir="auto">class 2</b>)' in first
    assert re.findall(r'class="key">(\w+)<br>', first)[:3] == ["00003", "00023", "00043"]
    assert re.search(r"neighbours</th><td>0.25<", part)


def test_where_pairs_and_labels_were_scored_the_first_lines_tell_them_apart(labelled: Path) -> None:
    text = " ".join(report(labelled)[1].text.split())
    assert "Of the labels, about 5.0 % do (95 %: 1.0 % to 10.0 %)." in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "estimated noise of captions" in text
    assert re.search(r"The cut keeps \d+ of \d+ scored pairs, by caption and label\.", text)
    assert "of those kept by their captions, expected to be right" in text


def test_a_report_on_labels_of_arrays_says_what_was_changed_and_what_to_do(tmp_path: Path) -> None:
    images, true = clusters(count=400)
    given = np.where(np.arange(400) % 5 == 1, (true + 1 + np.arange(400) // 5 % 3) % 4, true)
    made = scored(tmp_path, images, labels=given)
    text = " ".join(report(tmp_path / "out")[1].text.split())
    assert made.labels is not None
    assert f"Labels changed: {made.repaired}, about {made.labels['changed_wrong']:.0f} of the new ones wrong." in text
    assert f"noisegate serve --run {tmp_path / 'out'} --model embedded" in text
    assert "--as csv --columns shard,key,label,refined_label --out refined.csv" in text
    scored(tmp_path, images, labels=true, overwrite=True)
    text = " ".join(report(tmp_path / "out")[1].text.split())
    assert "Labels changed" not in text and "none: noise is not shown" in text


def test_how_many_labels_are_wrong_is_not_said_where_nothing_is_known(labelled: Path) -> None:
    folder = RunFolder(labelled)
    for stem in list(folder.stems()):
        metadata = read_metadata(folder.table(stem))
        unknown = metadata["labels"] | {"repairs": False, "noise_interval": [0.0, 0.7]}
        folder.write_table(stem, replace_columns(folder.read(stem), {}, metadata | {"labels": unknown}))
    text = " ".join(report(labelled)[1].text.split()).replace("\N{NO-BREAK SPACE}", " ")
    assert "Of the labels, how many do cannot be told (95 %: 0.0 % to 70.0 %)." in text
    assert "5.0 %" not in text.split("Label noise")[1].split("more likely")[0]


def test_duplicates_stand_beside_what_they_repeat(labelled: Path) -> None:
    page = report(labelled)[1]
    part = page.source.split('<section id="duplicates"')[1].split("</section>")[0]
    assert "1 sample has nearly the same picture" in part
    assert re.findall(r'class="key">(\w+)<br>([\w-]+)', part) == [("00000", "x-0"), ("00027", "x-1")]
    assert part.count("<img ") == 2


def test_the_report_ends_with_commands_and_says_whether_duplicates_were_looked_for(run: Path, labelled: Path) -> None:
    _, page = report(run)
    assert f"noisegate serve --run {run}" in page.text
    assert "Near duplicates were not looked for" in page.text
    assert "To cut by the chance instead" in page.text
    assert "Near duplicates were not looked for" not in report(labelled)[1].text


# --- the parts -------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.floats(-1, 1) | st.just(float("nan")), max_size=8), max_size=6), st.integers(1, 5))
def test_lowest_is_what_sorting_everything_gives(parts: list[list[float]], count: int) -> None:
    lowest = Lowest(count)
    everything = []
    for number, scores in enumerate(parts):
        table = pa.table({"key": [f"{number}/{i}" for i in range(len(scores))], "index": list(range(len(scores)))})
        lowest.add(str(number), table, np.array(scores, np.float64))
        everything += [(s, f"{number}/{i}") for i, s in enumerate(scores) if s == s]
    expected = [key for _, key in sorted(everything, key=lambda entry: entry[0])[:count]]
    assert [row.key for row in lowest.rows] == expected


def test_lowest_per_class_is_lowest_of_each() -> None:
    rng = np.random.default_rng(0)
    per_class, alone = LowestPerClass(3), {label: Lowest(3) for label in range(4)}
    for part in range(5):
        labels, scores = rng.integers(-1, 4, 50), rng.random(50)
        scores[rng.random(50) < 0.2] = np.nan
        table = pa.table({"key": [f"{part}/{i}" for i in range(50)], "index": list(range(50))})
        per_class.add(str(part), table, labels, scores)
        for label, lowest in alone.items():
            lowest.add(str(part), table, np.where(labels == label, scores, np.nan))
    assert {label: lowest.rows for label, lowest in per_class.classes.items()} == {
        label: lowest.rows for label, lowest in alone.items()
    }


@given(st.lists(st.integers(0, 3999), min_size=1, max_size=40), st.floats(-1, 1))
def test_merged_bins_lose_nothing_and_hold_the_cut(places: list[int], cut: float) -> None:
    edges = np.linspace(-1, 1, 4001)
    counts = np.bincount(places, minlength=4000)
    bins = merge_bins(edges, counts, counts, [cut])
    assert bins.given.sum() == len(places) == (bins.mismatched.sum() if bins.mismatched is not None else 0)
    assert len(bins.given) <= 65 and len(bins.edges) == len(bins.given) + 1
    assert bins.edges[0] <= cut <= bins.edges[-1]


def shard(name: str, values: NDArray[np.float64], failed: int = 0) -> ShardFacts:
    histogram = np.histogram(values, np.linspace(-1, 1, 401))[0]
    quantiles = tuple(np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95)).tolist())
    return ShardFacts(name, len(values) + failed, failed, histogram, quantiles, None)


def test_only_the_shard_that_differs_stands_out() -> None:
    rng = np.random.default_rng(0)
    alike = [shard(f"s{i}", rng.normal(0.3, 0.1, 400)) for i in range(20)]
    assert not any(drift.reasons for drift in find_drift(alike))
    found = find_drift([*alike, shard("odd", rng.normal(0.2, 0.1, 400)), shard("torn", rng.normal(0.3, 0.1, 400), 60)])
    assert [(d.shard.stem, d.reasons) for d in found if d.reasons] == [
        ("odd", ("its scores are lower",)),
        ("torn", ("more of its samples failed",)),
    ]


def test_one_odd_shard_does_not_make_the_others_odd() -> None:
    rng = np.random.default_rng(0)
    few = [shard(f"s{i}", rng.normal(0.7, 0.1, 60)) for i in range(4)]
    found = find_drift([*few, shard("odd", rng.normal(0.0, 0.1, 60))])
    assert [drift.shard.stem for drift in found if drift.reasons] == ["odd"]
    assert found[0].reasons == ("its scores are lower",) and found[0].z < -3


def test_distance_is_scipys() -> None:
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(1)
    one, other = rng.integers(0, 30, 200), rng.integers(3, 33, 300)
    shares = np.cumsum(np.bincount(other, minlength=40)) / len(other)
    counts = np.bincount(one, minlength=40)
    assert ks_distance(counts, shares.astype(np.float32)) == pytest.approx(ks_2samp(one, other).statistic, abs=1e-6)


# --- the command -----------------------------------------------------------------------------------------------------


def test_command_says_where_the_report_is(own_run: Path, tmp_path: Path) -> None:
    done = called("report", own_run, "--out", "page.html", "--gallery", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Report: page.html" in done.stdout and (tmp_path / "page.html").exists()
    assert not (own_run / "report.html").exists()
