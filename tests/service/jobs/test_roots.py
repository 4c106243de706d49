"""No name leads out of the roots, however it is written; what is inside is found as `find_shards` finds it."""

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.shards.locate import expand_braces, find_shards
from noisegate.service.errors import ApiError
from noisegate.service.jobs.roots import Roots, count_names
from tests.errors import failed, refused
from tests.fakes import pairs, tar_bytes

TAR = tar_bytes(pairs(1))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """`data` is the root; `secret` lies beside it, `data-2` shares the root's beginning, and links lead out."""
    for name in ("data/a-0.tar", "data/a-1.tar", "data/sub/b.tar.gz", "secret/s.tar", "data-2/t.tar"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(TAR)
    (tmp_path / "data" / "link.tar").symlink_to(tmp_path / "secret" / "s.tar")
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "secret")
    (tmp_path / "data" / "near.tar").symlink_to(tmp_path / "data" / "a-0.tar")
    (tmp_path / "secret" / "list.txt").write_text("root:x:0:0\n")
    return tmp_path


@pytest.fixture
def roots(place: Path) -> Roots:
    return Roots.of([place / "data"])


def names(place: Path, found: list[str]) -> list[str]:
    return [str(Path(path).relative_to(place.resolve())) for path in found]


def test_what_is_inside_is_found(roots: Roots, place: Path) -> None:
    data = place / "data"
    ways = [
        ["a-0.tar", "a-1.tar"],
        ["a-{0..1}.tar"],
        ["a-*.tar"],
        [f"{data}/a-0.tar::{data}/a-1.tar"],
        [f"{data}/a-{{0,1}}.tar"],
        [f"{data}/a-?.tar"],
        ["a-0.tar", "a-1.tar", "a-0.tar"],
    ]
    for way in ways:
        assert names(place, roots.find(way)) == ["data/a-0.tar", "data/a-1.tar"], way
    assert names(place, roots.find(["sub"])) == ["data/sub/b.tar.gz"]
    assert names(place, roots.find(["**/b*"])) == ["data/sub/b.tar.gz"]
    assert names(place, roots.find(["near.tar"])) == ["data/a-0.tar"]  # a link that stays inside
    assert roots.find(["a-{0..1}.tar"]) == [s.url for s in find_shards(f"{data.resolve()}/a-{{0..1}}.tar")]


def test_folders_with_shards_are_offered_as_patterns_that_find_them(roots: Roots, place: Path) -> None:
    size = len(TAR)
    assert roots.offer() == [
        {"pattern": "*.tar", "shards": 2, "bytes": 2 * size},
        {"pattern": "sub", "shards": 1, "bytes": size},
    ]
    both = Roots.of([place / "data-2", place / "secret"])
    (place / "data" / "link.tar").unlink()
    assert [names(place, roots.find([offer["pattern"]])) for offer in roots.offer()] == [
        ["data/a-0.tar", "data/a-1.tar"],
        ["data/sub/b.tar.gz"],
    ]
    assert [names(place, both.find([offer["pattern"]])) for offer in both.offer()] == [
        ["data-2/t.tar"],
        ["secret/s.tar"],
    ]


def test_lists_and_lists_in_lists(roots: Roots, place: Path) -> None:
    (place / "data" / "all.txt").write_text("# comment\na-{0..1}.tar\n\n@more.list\n")
    (place / "data" / "more.list").write_text("sub/b.tar.gz\n")
    for pattern in ("@all.txt", "all.txt", f"@{place}/data/all.txt"):
        assert names(place, roots.find([pattern])) == ["data/a-0.tar", "data/a-1.tar", "data/sub/b.tar.gz"]


ESCAPES = [
    "../secret/s.tar", "sub/../../secret/s.tar", "{place}/secret/s.tar", "{place}/data/../secret/s.tar", "/etc/passwd",
    "link.tar", "linked/s.tar", "linked", "linked/*.tar", "*.tar", "l*/s.tar", "**/link.tar",
    "{place}/data-2/t.tar", "../data-2/t.tar", "{{a-0,../secret/s}}.tar", "{{..,sub}}/secret/s.tar",
    "{place}/{{secret,data}}/s.tar", "@../secret/list.txt", "@{place}/secret/list.txt", "linked/list.txt",
    "@linked/list.txt", "a-0.tar::../secret/s.tar", "a-0.tar::{place}/secret/s.tar", "~/s.tar", "~root/s.tar",
    "file://{place}/secret/s.tar", "file://{place}/data/a-0.tar", "file:///etc/passwd", "FILE:///etc/passwd",
    "local://{place}/secret/s.tar", "http://127.0.0.1/s.tar", "https://host/s.tar", "s3://bucket/s.tar",
    "memory://s.tar", "@http://127.0.0.1/list.txt", "a-0.tar::http://169.254.169.254/x", "{place}/secret/*.tar",
    "{place}/*/s.tar", "/*/passwd", "{place}/data/*/../../secret/s.tar", "file://{place}/secret/s.tar::simplecache",
    "zip://s.tar::file://{place}/secret/a.zip", "{place}/sec*/s.tar",
]  # fmt: skip


@pytest.mark.parametrize("pattern", ESCAPES)
def test_nothing_leads_out(pattern: str, roots: Roots, place: Path) -> None:
    with pytest.raises(ApiError) as refused:
        roots.find(["a-0.tar", pattern.format(place=place)])
    assert (refused.value.status, refused.value.code) == (403, "outside_roots"), refused.value.message


@pytest.mark.parametrize(
    "pattern",
    ["pipe:cat /etc/passwd", "pipe:curl http://x|", "a-0.tar | cat", "cat|", "a-0.tar\0", "a-0\n.tar"],
)
def test_pipes_and_control_characters(pattern: str, roots: Roots) -> None:
    with pytest.raises(ApiError) as refused:
        roots.find([pattern])
    assert (refused.value.status, refused.value.code) == (422, "bad_shards")


@pytest.mark.parametrize(
    "line",
    ["../secret/s.tar", "{place}/secret/s.tar", "link.tar", "@../secret/list.txt", "file://{place}/secret/s.tar"],
)
def test_nothing_leads_out_of_a_list(line: str, roots: Roots, place: Path) -> None:
    (place / "data" / "all.txt").write_text("a-0.tar\n" + line.format(place=place))
    with pytest.raises(ApiError) as refused:
        roots.find(["@all.txt"])
    assert refused.value.code == "outside_roots"
    assert "root:x" not in refused.value.message


@pytest.mark.parametrize(
    "pattern",
    ["{0..999999999999}.tar", "{0..999}{0..999}.tar", "**/**/*.tar", "x" * 5000, "{1,2}" * 17, "{" * 60],
)
def test_patterns_that_cannot_be(pattern: str, roots: Roots) -> None:
    with pytest.raises(ApiError) as refused:
        roots.find([pattern])
    assert (refused.value.status, refused.value.code) == (422, "bad_shards")


@pytest.mark.parametrize(
    "pattern",
    ["nothing.tar", "q*.tar", "@nothing.txt", "nothing.list", "{a,b", "", "  ", "::", "0" * 3000, "a**.tar"],
)
def test_patterns_that_match_nothing(pattern: str, roots: Roots) -> None:
    with pytest.raises(ApiError) as refused:
        roots.find([pattern])
    assert (refused.value.status, refused.value.code) == (404, "unknown_shards")


def test_a_list_that_leads_to_itself_and_things_that_are_no_files(roots: Roots, place: Path) -> None:
    (place / "data" / "me.txt").write_text("@me.txt\n")
    with failed("bad_shards", ApiError):
        roots.find(["@me.txt"])
    os.mkfifo(place / "data" / "pipe.tar")
    with pytest.raises(ApiError) as refused:
        roots.find(["pipe.tar"])  # opening it would wait for ever
    assert refused.value.code == "unknown_shards"
    (place / "data" / "round.tar").symlink_to(place / "data" / "round.tar")
    with pytest.raises(ApiError):
        roots.find(["round.tar"])


def test_two_shards_that_would_share_a_table(roots: Roots, place: Path) -> None:
    (place / "data" / "sub" / "a-0.tar").write_bytes(TAR)
    with pytest.raises(ApiError) as refused:
        roots.find(["a-0.tar", "sub/a-0.tar"])
    assert refused.value.code == "bad_shards"


def test_urls_only_below_a_configured_prefix() -> None:
    roots = Roots.of([Path("https://host/data"), "http://other:81/x"])
    assert roots.find(["https://host/data/a-{0..1}.tar"]) == [f"https://host/data/a-{i}.tar" for i in range(2)]
    assert roots.find(["http://other:81/x/y.tar"]) == ["http://other:81/x/y.tar"]
    for url in (
        "https://host/data-2/a.tar", "https://host/other.tar", "https://host.evil/data/a.tar", "http://host/data/a.tar",
        "https://host/data/../a.tar", "https://host/data/%2e%2e/a.tar", "https://host/data/%252e%252e/a.tar",
        "https://host/data/..%5ca.tar", "https://user@host/data/a.tar", "http://other:81/y.tar", "s3://bucket/y.tar", "file:///data/a.tar",
        "/data/a.tar", "a.tar", "https://host/data/{a,../b}.tar",
    ):  # fmt: skip
        with pytest.raises(ApiError) as refused:
            roots.find([url])
        assert refused.value.code == "outside_roots", url


def test_without_roots_nothing_is_read(place: Path) -> None:
    with failed("outside_roots", ApiError):
        Roots.of([]).find([str(place / "data" / "a-0.tar")])
    with refused("roots", str(place / "nowhere")):
        Roots.of([place / "nowhere"])


def test_a_shard_that_became_a_link_in_the_meantime(roots: Roots, place: Path) -> None:
    found = roots.find(["a-0.tar"])
    roots.check_again(found)
    (place / "data" / "a-0.tar").unlink()
    (place / "data" / "a-0.tar").symlink_to(place / "secret" / "s.tar")
    with pytest.raises(ApiError) as refused:
        roots.check_again(found)
    assert refused.value.code == "outside_roots"
    with pytest.raises(ApiError) as gone:
        roots.check_again([str((place / "data").resolve() / "x{1,2}.tar")])
    assert gone.value.code == "bad_shards"


@given(
    st.lists(st.sampled_from([*"/.~@:{},*?[]|\\% ", "..", "../", "::", "data", "secret", "s.tar", "a-0.tar", "linked"]))
)
def test_whatever_is_asked_only_what_is_inside_comes_out(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    base = tmp_path_factory.getbasetemp() / "confined"
    if not base.exists():
        for name in ("data/a-0.tar", "secret/s.tar"):
            (base / name).parent.mkdir(parents=True, exist_ok=True)
            (base / name).write_bytes(TAR)
        (base / "data" / "linked").symlink_to(base / "secret")
    roots = Roots.of([base / "data"])
    try:
        found = roots.find(["".join(parts)])
    except ApiError as error:
        assert error.code in ("outside_roots", "bad_shards", "unknown_shards")
    else:
        assert all(Path(path).resolve().is_relative_to((base / "data").resolve()) for path in found)


@pytest.mark.parametrize(
    "pattern",
    [
        "{a..z}" * 10 + ".tar",
        "{0..99999999999999999999}.tar",
        "{1..100000}{1..100000}.tar",
        ("{" + "a," * 600 + "{b,c}}") * 3,
        ("{" + "\\}," + "a," * 600 + "b}") * 3,
        "{" + "0" * 4000 + "..99999}",
    ],
)
def test_a_short_pattern_cannot_fill_the_memory(roots: Roots, pattern: str) -> None:
    assert len(pattern) < 4096
    with failed("bad_shards", ApiError):
        roots.find([pattern])


@given(
    st.lists(st.sampled_from(["{", "}", ",", "a", "\\", "{a..f}", "{1..12}", "{x,y}", "{,"]), max_size=12).map("".join)
)
def test_no_pattern_has_more_names_than_are_counted(pattern: str) -> None:
    if (count := count_names(pattern)) <= 10_000:
        with contextlib.suppress(ConfigError):  # braces that do not match
            assert len(expand_braces(pattern)) <= count
