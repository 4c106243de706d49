import functools
import http.server
import importlib.util
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from noisegate.pipeline.errors import ShardError
from noisegate.pipeline.shards.locate import Shard, find_shards
from noisegate.pipeline.shards.read import ShardReader
from tests.errors import refused
from tests.pipeline.shards.tars import pairs, tar_bytes, write_tar


def urls(source: str | Path | list[str]) -> list[str]:
    return [shard.url for shard in find_shards(source)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three tars, one of them zipped, beside what img2dataset leaves there; it is the current folder."""
    (tmp_path / "data").mkdir()
    for name in ("00000.tar", "00001.tar", "00002.TAR.GZ", "00000.parquet", "00000_stats.json", "x-[1].tar"):
        (tmp_path / "data" / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestPatterns:
    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("a/x-{000..002}.tar", ["a/x-000.tar", "a/x-001.tar", "a/x-002.tar"]),
            ("x-{8..10}.tar", ["x-8.tar", "x-9.tar", "x-10.tar"]),
            ("x-{08..10}.tar", ["x-08.tar", "x-09.tar", "x-10.tar"]),
            ("{a,b}-{0..1}.tar", ["a-0.tar", "a-1.tar", "b-0.tar", "b-1.tar"]),
            ("x-{0,{5..6}}.tar", ["x-0.tar", "x-5.tar", "x-6.tar"]),
            ("x.tar::y.tar", ["x.tar", "y.tar"]),
            (" x.tar :: :: y.tar ", ["x.tar", "y.tar"]),
            ("x.tar::x.tar", ["x.tar"]),
            ("s3-like/x.tar", ["s3-like/x.tar"]),
            ("file:///data/x.tar", ["/data/x.tar"]),
            ("memory://b/x-{0..1}.tar", ["memory://b/x-0.tar", "memory://b/x-1.tar"]),
            ("http://h/x-{0..1}.tar?sig=a*b", ["http://h/x-0.tar?sig=a*b", "http://h/x-1.tar?sig=a*b"]),
        ],
    )
    def test_names_are_expanded_in_order(self, pattern: str, expected: list[str]) -> None:
        assert urls(pattern) == expected

    def test_several_sources_keep_their_order_and_lose_repeats(self) -> None:
        assert urls(["b.tar", "a.tar", "b.tar"]) == ["b.tar", "a.tar"]

    def test_glob_is_sorted_stays_relative_and_leaves_other_files(self, folder: Path) -> None:
        assert urls("data/0*") == ["data/00000.tar", "data/00001.tar", "data/00002.TAR.GZ"]
        assert urls("./data/0000?.tar") == ["data/00000.tar", "data/00001.tar"]
        assert urls(str(folder / "data" / "00000.t*")) == [str(folder / "data" / "00000.tar")]
        assert urls(f"../{folder.name}/*/00001.tar") == [f"../{folder.name}/data/00001.tar"]
        assert urls("**/00001.tar") == ["data/00001.tar"]

    def test_folder_gives_its_tars(self, folder: Path) -> None:
        expected = [f"data/{name}" for name in ("00000.tar", "00001.tar", "00002.TAR.GZ", "x-[1].tar")]
        assert urls("data") == urls("data/") == urls(Path("data")) == expected

    def test_a_file_that_exists_is_taken_by_its_name(self, folder: Path) -> None:
        assert urls("data/x-[1].tar") == ["data/x-[1].tar"]
        (folder / "{a,b}|c.tar").write_bytes(b"")
        assert urls("{a,b}|c.tar") == ["{a,b}|c.tar"]

    def test_one_file_written_in_two_ways_is_one_shard(self, folder: Path) -> None:
        assert urls("data/00000.tar::./data/00000.tar::data//0000[0].tar") == ["data/00000.tar"]

    def test_tilde_is_the_home_folder(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(folder))
        assert urls("~/data/{00000..00001}.tar") == [f"{folder}/data/00000.tar", f"{folder}/data/00001.tar"]
        assert urls("~/data/00000.t?r") == [f"{folder}/data/00000.tar"]


class TestLists:
    def test_list_holds_patterns_comments_and_other_lists(self, folder: Path) -> None:
        (folder / "more.list").write_text("data/0000?.tar\n")
        (folder / "train").write_bytes("\ufeff# first\r\n\r\nz-{0..1}.tar\r\n more.list \r\n".encode())
        expected = ["z-0.tar", "z-1.tar", "data/00000.tar", "data/00001.tar"]
        assert urls("@train") == expected
        assert urls("@train::last.tar") == [*expected, "last.tar"]
        assert urls("more.list") == expected[2:]

    def test_remote_list(self) -> None:
        with fsspec.open("memory://lists/a.txt", "wb") as file:
            file.write(b"memory://lists/x.tar\n")
        assert urls("memory://lists/a.txt") == urls("@memory://lists/a.txt") == ["memory://lists/x.tar"]

    @pytest.mark.parametrize(
        ("content", "value"), [(b"", ["@shards.txt"]), (b"# none\n", ["@shards.txt"]), (b"\xff\xfe\x00", "shards.txt")]
    )
    def test_useless_list(self, folder: Path, content: bytes, value: str | list[str]) -> None:
        (folder / "shards.txt").write_bytes(content)
        with refused("shards", value):
            find_shards("@shards.txt")

    def test_list_that_names_itself(self, folder: Path) -> None:
        (folder / "a.txt").write_text("b.txt\n")
        (folder / "b.txt").write_text("@a.txt\n")
        with refused("shards", "a.txt"):
            find_shards("a.txt")


class TestRefused:
    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ([], "[] name no tar; try 'data/*.tar'"),
            ("", "[''] name no tar"),
            ("pipe:cat x.tar", "is a pipe, which is not run"),
            ("x.tar::pipe:curl http://h/x.tar", "'pipe:curl http://h/x.tar' is a pipe"),
            ("cat x.tar |", "is a pipe, which is not run"),
            ("x-{0..3.tar", "has braces that do not match; use x-{000000..000012}.tar"),
            ("nothing-*.tar", "'nothing-*.tar' matches no .tar or .tar.gz"),
            ("data/*.json", "'data/*.json' matches no .tar or .tar.gz"),
            ("empty", "'empty' holds no .tar"),
            ("missing.txt", "list of shards missing.txt cannot be read: No such file"),
            ("nope://x.tar", "'nope://x.tar' has an unknown protocol; use a path, s3, gs"),
            ("@nope://x", "'nope://x' has an unknown protocol"),
            ("memory://nothing/*.tar", "'memory://nothing/*.tar' matches no .tar"),
            ("memory://nothing/", "'memory://nothing/' holds no .tar"),
            ("a/x.tar::b/x.tar", "'b/x.tar' and a/x.tar would share a table; score them into two folders"),
            ("x.tar::x.tar.gz", "would share a table"),
        ],
    )
    def test_message_says_what_is_wrong(self, folder: Path, source: str | list[str], message: str) -> None:
        (folder / "empty").mkdir()
        with refused("shards") as caught:
            find_shards(source)
        assert message in str(caught.value)

    def test_protocol_whose_package_is_missing(self) -> None:
        fsspec.register_implementation("nopackage", "no_such_module.FileSystem", clobber=True, errtxt="install it")
        with refused("shards", "nopackage://b/x.tar"):
            find_shards("nopackage://b/x.tar")

    @pytest.mark.skipif(importlib.util.find_spec("s3fs") is not None, reason="s3fs is installed")
    def test_package_for_s3_is_named(self) -> None:
        with refused("shards", "s3://bucket/x-0.tar"):
            find_shards("s3://bucket/x-{0..3}.tar")


class TestShard:
    @pytest.mark.parametrize(
        ("url", "stem"),
        [
            ("data/x-000012.tar", "x-000012"),
            ("x.TAR", "x"),
            ("x.tar.gz", "x"),
            ("x.tgz", "x"),
            ("s3://b/a.b/x.v2.tar", "x.v2"),
            ("https://h/d/x.tar?token=a/b.tar", "x"),
            ("x?.tar", "x?"),
            ("noext", "noext"),
        ],
    )
    def test_stem(self, url: str, stem: str) -> None:
        assert Shard(url).stem == stem

    def test_missing_files_are_named(self, tmp_path: Path) -> None:
        for url in (str(tmp_path / "no.tar"), "memory://no/x.tar"):
            with refused("shards", url, ShardError):
                Shard(url).open()
            with refused("shards", url, ShardError):
                Shard(url).size_and_time()

    def test_chains_of_urls_are_not_opened(self, tmp_path: Path) -> None:
        """fsspec reads `reference://` by the rules of another file, which may come with somebody's run."""
        (tmp_path / "x.tar").write_bytes(tar_bytes(pairs(1)))
        (tmp_path / "rules.json").write_text(json.dumps({"x.tar": [str(tmp_path / "x.tar")]}))
        chain = f"reference://x.tar::{tmp_path}/rules.json"
        with fsspec.open(chain, "rb") as file:
            assert file.read(1)
        with refused("shards", chain, ShardError):
            Shard(chain).open()
        with refused("shards", chain, ShardError):
            Shard(chain).size_and_time()

    def test_size_and_time(self, tmp_path: Path) -> None:
        path = write_tar(tmp_path / "x.tar", pairs(1))
        assert Shard(str(path)).size_and_time() == (path.stat().st_size, path.stat().st_mtime)
        with fsspec.open("memory://size/x.tar", "wb") as file:
            file.write(path.read_bytes())
        size, changed = Shard("memory://size/x.tar").size_and_time()
        assert size == path.stat().st_size and changed is not None and changed > 1.7e9

    def test_memory_shards_are_read_and_listed(self) -> None:
        for name in ("a.tar", "b.tar", "c.json"):
            with fsspec.open(f"memory://listed/{name}", "wb") as file:
                file.write(tar_bytes(pairs(3)))
        assert urls("memory://listed/*.tar") == urls("memory://listed/") == urls("memory://listed/?.tar")
        assert [shard.stem for shard in find_shards("memory://listed/")] == ["a", "b"]
        assert [raw.key for raw in ShardReader(find_shards("memory://listed/*")[1])] == ["0000", "0001", "0002"]


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves whole files only: no ranges, as many a server."""

    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        if self.path.startswith("/cut.tar"):  # promises more than it sends
            data = (Path(self.directory) / "x-0.tar").read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
        else:
            super().do_GET()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    files = [(f"{i:03d}.jpg", bytes([i]) * 60_000) for i in range(200)]
    write_tar(tmp_path / "x-0.tar", files)
    write_tar(tmp_path / "x-1.tar.gz", files[:3], "w:gz")
    (tmp_path / "cut.tar").write_bytes((tmp_path / "x-0.tar").read_bytes())
    (tmp_path / "page.tar").write_text("<!DOCTYPE html><title>404</title>" * 40)
    handler = functools.partial(_Handler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


class TestHttp:
    def test_shard_of_several_megabytes_from_a_server_without_ranges(self, server: str, tmp_path: Path) -> None:
        shard = Shard(f"{server}/x-0.tar?token=1")
        local = ShardReader(Shard(str(tmp_path / "x-0.tar")))
        remote = ShardReader(shard)
        assert [raw.parts for raw in remote] == [raw.parts for raw in local]
        assert remote.sha256 == local.sha256 and remote.damage is None
        assert shard.size_and_time()[0] == local.size
        assert len(list(ShardReader(Shard(f"{server}/x-1.tar.gz")))) == 3

    def test_index_page_is_listed(self, server: str) -> None:
        assert urls(f"{server}/x-*") == [f"{server}/x-0.tar", f"{server}/x-1.tar.gz"]

    def test_missing_and_wrong_files_are_named(self, server: str) -> None:
        with refused("shards", f"{server}/no.tar", ShardError):
            Shard(f"{server}/no.tar").open()
        with refused("shards", f"{server}/page.tar", ShardError) as caught:
            list(ShardReader(Shard(f"{server}/page.tar")))
        assert "is not a tar" in str(caught.value) and "<!DOCTYPE" in str(caught.value)

    def test_connection_that_breaks_is_a_failed_shard_not_a_damaged_one(self, server: str) -> None:
        reader = ShardReader(Shard(f"{server}/cut.tar"))
        with refused("shards", f"{server}/cut.tar", ShardError) as caught:
            list(reader)
        assert "bytes: ClientPayloadError" in str(caught.value)
        assert reader.damage is None and not reader.sha256

    def test_no_server(self) -> None:
        with refused("shards", "http://127.0.0.1:9/x.tar", ShardError):
            Shard("http://127.0.0.1:9/x.tar").open()
