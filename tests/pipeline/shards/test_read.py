import gzip
import hashlib
import io
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from noisegate.pipeline.errors import ShardError
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.read import RawSample, ShardReader
from noisegate.pipeline.shards.tar import TarMembers
from tests.errors import refused
from tests.pipeline.shards.tars import pairs, picture, tar_bytes, write_tar

AWKWARD = [
    ("b/c.d/0001.jpg", b"1"),
    ("b/c.d/0001.seg.png", b"2"),
    ("b/c.d/0001.TXT", b"3"),
    ("./0002.JPG", b"4"),
    ("./0002.json", b"{}"),
    ("__meta__", b"skipped"),
    ("__meta__/0003.jpg", b"skipped"),
    ("__0004__.jpg", b"5"),
    ("b/__0005__/x.jpg", b"6"),
    ("no extension", b"skipped"),
    (".hidden.jpg", b"skipped"),
    ("b/.hidden/0006.jpg", b"7"),
    ("0007.", b"8"),
    ("0007.tar.gz", b"9"),
    ("ünï çödé.txt", "ä".encode()),
    ("a" * 120 + "/" + "k" * 90 + ".txt", b"long"),
]


def read(path: Path, **options: Any) -> tuple[list[RawSample], ShardReader]:
    reader = ShardReader(Shard(str(path)), **options)
    return list(reader), reader


def by_webdataset(path: Path) -> list[tuple[str, dict[str, bytes]]]:
    """The same tar through webdataset's own reader."""
    with path.open("rb") as file:
        found = webdataset.tariterators.tar_file_expander([{"url": str(path), "stream": file}])
        samples = list(webdataset.tariterators.group_by_keys(found))
    return [(s["__key__"], {k: v for k, v in s.items() if k not in ("__key__", "__url__")}) for s in samples]


class TestGrouping:
    @pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    @pytest.mark.parametrize("mode", ["w", "w:gz"])
    def test_equals_webdataset(self, tmp_path: Path, format: int, mode: str) -> None:
        path = write_tar(tmp_path / "x.tar", AWKWARD, mode, format)
        samples, reader = read(path, all_parts=True)
        assert [(s.key, s.parts) for s in samples] == by_webdataset(path)
        assert [s.index for s in samples] == list(range(len(samples)))
        assert reader.damage is None and not any(s.broken or s.duplicate for s in samples)
        assert reader.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert reader.size == reader.position == path.stat().st_size

    def test_folders_and_links_are_no_parts(self, tmp_path: Path) -> None:
        path = tmp_path / "x.tar"
        with tarfile.open(path, "w") as tar:
            for kind, name in ((tarfile.DIRTYPE, "d.jpg"), (tarfile.SYMTYPE, "d/0.jpg"), (tarfile.LNKTYPE, "d/0.png")):
                member = tarfile.TarInfo(name)
                member.type, member.linkname = kind, "d/0.txt"
                tar.addfile(member)
            member = tarfile.TarInfo("d/0.txt")
            member.size = 2
            tar.addfile(member, io.BytesIO(b"hi"))
        samples, reader = read(path)
        assert [(s.key, s.parts) for s in samples] == by_webdataset(path) == [("d/0", {"txt": b"hi"})]
        assert reader.damage is None

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.text("ab./_ABX", min_size=1, max_size=12), max_size=12))
    def test_any_names_equal_webdataset(self, tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
        path = tmp_path_factory.mktemp("names") / "x.tar"
        kept: list[tuple[str, bytes]] = []
        for name in names:
            if name.rstrip("/").lower() not in (known.lower() for known, _ in kept) and not name.endswith("/"):
                kept.append((name, name.encode()))
        write_tar(path, kept)
        try:
            expected = by_webdataset(path)
        except ValueError:  # webdataset stops at a repeated part; here it begins another sample
            assert any(s.duplicate for s in read(path, all_parts=True)[0])
        else:
            assert [(s.key, s.parts) for s in read(path, all_parts=True)[0]] == expected

    def test_repeated_keys_and_parts_become_samples_of_their_own(self, tmp_path: Path) -> None:
        files = [("a.jpg", b"1"), ("a.txt", b"2"), ("a.jpg", b"3"), ("b.txt", b"4"), ("a.txt", b"5"), ("a.TXT", b"6")]
        samples, _ = read(write_tar(tmp_path / "x.tar", files))
        assert [(s.key, s.parts, s.duplicate) for s in samples] == [
            ("a", {"jpg": b"1", "txt": b"2"}, False),
            ("a", {"jpg": b"3"}, True),
            ("b", {"txt": b"4"}, False),
            ("a", {"txt": b"5"}, True),
            ("a", {"txt": b"6"}, True),
        ]

    def test_parts_that_scoring_never_needs_are_named_but_not_kept(self, tmp_path: Path) -> None:
        path = write_tar(tmp_path / "x.tar", [("0.npy", b"1"), ("0.Png", b"2"), ("0.wav", b"3"), ("0.jpg", b"4")])
        [sample] = read(path)[0]
        assert sample.names == ["npy", "png", "wav", "jpg"] and sample.parts == {"png": b"2", "jpg": b"4"}
        assert sample.image == b"4"  # jpg goes before png

    def test_names_that_are_not_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / "x.tar"
        with tarfile.open(path, "w", encoding="latin-1", format=tarfile.GNU_FORMAT) as tar:
            for name in ("café.jpg", "café.txt", "cafè.txt"):
                tar.addfile(tarfile.TarInfo(name))
        assert [(s.key, sorted(s.parts)) for s in read(path)[0]] == [
            (r"caf\xe9", ["jpg", "txt"]),
            (r"caf\xe8", ["txt"]),
        ]


class TestDamage:
    def test_cut_at_any_byte_gives_every_whole_sample_before_it(self, tmp_path: Path) -> None:
        files = [(f"{i}.{part}", bytes([i + 1]) * size) for i in range(3) for part, size in (("jpg", 700), ("txt", 40))]
        whole = tar_bytes(files)
        starts = [2560 * i for i in range(4)]  # a sample is 512 + 1024 + 512 + 512 bytes
        path = tmp_path / "x.tar"
        for cut in range(0, len(whole), 37):
            path.write_bytes(whole[:cut])
            try:
                samples, reader = read(path)
            except ShardError as error:
                assert cut < 512 and "is not a tar" in str(error)
                continue
            complete = [s for s in samples if set(s.parts) == {"jpg", "txt"}]
            assert all(s.parts["jpg"] == bytes([s.index + 1]) * 700 for s in complete)
            # the last caption is whole without its padding
            assert len(complete) == sum(cut >= end - 472 for end in starts[1:]), cut
            assert all(s.broken for s in samples if s not in complete)
            assert (reader.damage is None) == (cut >= starts[-1] + 512), cut
            assert reader.size == cut and reader.sha256 == hashlib.sha256(whole[:cut]).hexdigest()

    def test_cut_gzip(self, tmp_path: Path) -> None:
        noise = random.Random(0)
        files = [(f"{i}.{part}", noise.randbytes(900)) for i in range(40) for part in ("jpg", "txt")]
        whole = tar_bytes(files, "w:gz")
        path = tmp_path / "x.tar.gz"
        counts = []
        for cut in range(20, len(whole), 1499):
            path.write_bytes(whole[:cut])
            try:
                samples, reader = read(path)
            except ShardError as error:
                assert cut < 1000 and "is not a tar" in str(error)
                continue
            for s in samples:
                assert all(s.parts[part] == dict(files)[f"{s.key}.{part}"] for part in s.parts)
            assert all(len(s.parts) == 2 for s in samples[:-1])
            assert "breaks off" in str(reader.damage) and "gzip" in str(reader.damage)
            counts.append(len(samples))
        assert counts == sorted(counts) and counts[-1] >= 38

    @pytest.mark.parametrize("packed", [False, True])
    def test_flipped_bytes_raise_nothing_but_shard_errors(self, tmp_path: Path, packed: bool) -> None:
        noise = random.Random(1)
        whole = tar_bytes(pairs(6), "w:gz" if packed else "w", tarfile.PAX_FORMAT)
        for _ in range(150):
            data = bytearray(whole)
            for _ in range(noise.choice((1, 3, 40))):
                data[noise.randrange(len(data))] = noise.randrange(256)
            (tmp_path / "x.tar").write_bytes(data)
            try:
                samples, reader = read(tmp_path / "x.tar")
            except ShardError:
                continue
            assert [s.index for s in samples] == list(range(len(samples)))
            assert reader.sha256 == hashlib.sha256(data).hexdigest()

    def test_damaged_header_costs_its_own_file_only(self, tmp_path: Path) -> None:
        files = [(f"{i}.{part}", bytes([i + 1]) * 700) for i in range(4) for part in ("jpg", "txt")]
        data = bytearray(tar_bytes(files))
        start = 2 * (512 + 1024)  # of 1.jpg
        data[start : start + 512] = b"x" * 512
        (tmp_path / "x.tar").write_bytes(data)
        samples, reader = read(tmp_path / "x.tar")
        assert [(s.key, sorted(s.parts)) for s in samples] == [
            ("0", ["jpg", "txt"]),
            ("1", ["txt"]),
            ("2", ["jpg", "txt"]),
            ("3", ["jpg", "txt"]),
        ]
        assert reader.damage == f"unreadable bytes from {start:,} to {start + 1536:,}"
        assert [bool(s.broken) for s in samples] == [True, True, False, False]  # the one before may lack a part, too

    def test_damaged_beginning(self, tmp_path: Path) -> None:
        (tmp_path / "x.tar").write_bytes(b"\x01" * 700 + bytes(324) + tar_bytes(pairs(2)))
        samples, reader = read(tmp_path / "x.tar")
        assert len(samples) == 2 and reader.damage == "unreadable bytes from 0 to 1,024"

    def test_tars_one_behind_the_other(self, tmp_path: Path) -> None:
        first, second = tar_bytes([("0.txt", b"a")]), tar_bytes([("1.txt", b"b")])
        (tmp_path / "x.tar").write_bytes(first + second)
        samples, reader = read(tmp_path / "x.tar")
        assert [s.key for s in samples] == ["0", "1"]
        assert reader.damage == "an end marker at 1,024, with more behind it; other readers stop there"
        (tmp_path / "x.tar.gz").write_bytes(gzip.compress(first[:1024]) + gzip.compress(second) + bytes(300_000))
        samples, reader = read(tmp_path / "x.tar.gz")
        assert [s.key for s in samples] == ["0", "1"] and reader.damage is None

    def test_nothing_to_read(self, tmp_path: Path) -> None:
        path = tmp_path / "x.tar"
        for content, damage in (
            (b"", "the file is empty (0 bytes)"),
            (tar_bytes([]), None),
            (tar_bytes([], "w:gz"), None),
            (tar_bytes([("README", b"x"), ("d/", b"")]), None),
        ):
            path.write_bytes(content)
            samples, reader = read(path)
            assert samples == [] and reader.damage == damage
        path.write_bytes(bytes(50_000))  # room that was set aside and never filled
        with refused("shards", str(path), ShardError):
            read(path)

    @pytest.mark.parametrize(
        "content",
        [b"<!DOCTYPE html><html>" * 99, b"PK\x03\x04" + bytes(900), b"x", picture(), gzip.compress(b"text" * 999)],
        ids=["html", "zip", "one byte", "png", "gzipped text"],  # the bytes of gzip hold the time of day
    )
    def test_not_a_tar(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.tar").write_bytes(content)
        with refused("shards", str(tmp_path / "x.tar"), ShardError):
            read(tmp_path / "x.tar")

    def test_reading_that_fails_is_no_damage(self) -> None:
        reader = ShardReader(_Failing(tar_bytes(pairs(5)), 3000))
        seen: list[str] = []
        with refused("shards", "fake.tar", ShardError):
            seen.extend(raw.key for raw in reader)
        assert not reader.sha256 and reader.damage is None


class _Failing(Shard):
    """A shard on a disk that fails after some bytes, read in small pieces."""

    def __init__(self, data: bytes, good: int) -> None:
        super().__init__("fake.tar")
        object.__setattr__(self, "_data", data)
        object.__setattr__(self, "_good", good)

    def open(self) -> Any:
        stream, good = io.BytesIO(self._data), self._good  # type: ignore[attr-defined]

        class Stream(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                if stream.tell() + 1024 > good:
                    raise OSError("unplugged")
                return stream.read(1024)

        return Stream()


class TestOddMembers:
    def test_part_too_large_to_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("noisegate.pipeline.shards.read.MAX_PART_BYTES", 1000)
        path = write_tar(tmp_path / "x.tar", [("0.jpg", bytes(1001)), ("0.txt", b"hi"), ("1.jpg", bytes(1000))])
        samples, reader = read(path)
        assert [(s.key, s.parts, s.oversized) for s in samples] == [
            ("0", {"txt": b"hi"}, {"jpg": 1001}),
            ("1", {"jpg": bytes(1000)}, {}),
        ]
        assert reader.damage is None

    def test_size_that_goes_beyond_the_end(self, tmp_path: Path) -> None:
        header = tarfile.TarInfo("1.jpg")
        header.size = 8 << 30
        data = tar_bytes([("0.jpg", b"a")])[:1024] + header.tobuf(tarfile.GNU_FORMAT) + b"rest"
        (tmp_path / "x.tar").write_bytes(data)
        samples, reader = read(tmp_path / "x.tar")
        assert [(s.key, list(s.parts), bool(s.broken)) for s in samples] == [("0", ["jpg"], False), ("1", [], True)]
        assert reader.damage == f"the tar breaks off after {len(data):,} bytes"

    def test_sparse_files_are_refused_by_name(self, tmp_path: Path) -> None:
        header = bytearray(tarfile.TarInfo("0.jpg").tobuf(tarfile.GNU_FORMAT))
        header[156:157], header[124:136] = b"S", b"00000000005\0"
        header[148:156] = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 256)
        (tmp_path / "x.tar").write_bytes(bytes(header) + b"abcde".ljust(512, b"\0") + tar_bytes([("1.txt", b"x")]))
        samples, reader = read(tmp_path / "x.tar")
        assert [(s.key, s.parts) for s in samples] == [("0", {}), ("1", {"txt": b"x"})]
        assert "--sparse" in str(samples[0].broken) and samples[1].broken is None and reader.damage is None

    def test_signed_checksums_and_global_headers_of_other_writers(self, tmp_path: Path) -> None:
        header = bytearray(tarfile.TarInfo("caf\xe9.txt").tobuf(tarfile.USTAR_FORMAT, "latin-1"))
        header[148:156] = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 256 - 256)  # \xe9 counts as -23
        git = tarfile.TarInfo.create_pax_global_header({"comment": "0123abcd"})
        (tmp_path / "x.tar").write_bytes(git + bytes(header) + tar_bytes([("1.txt", b"x")], format=tarfile.PAX_FORMAT))
        samples, reader = read(tmp_path / "x.tar")
        assert [s.key for s in samples] == [r"caf\xe9", "1"] and reader.damage is None

    @pytest.mark.parametrize(
        "records",
        [
            b"9" * 5000 + b" path=x\n",
            b"12 size=-5\n",
            b"5011 size=" + b"9" * 5000 + b"\n",
            b"7 path\n",
            b"garbage",
            b"",
            b"3 \n",
        ],
    )
    def test_nonsense_in_a_pax_header(self, tmp_path: Path, records: bytes) -> None:
        header = tarfile.TarInfo("pax")
        header.type, header.size = tarfile.XHDTYPE, len(records)
        padded = records.ljust(-(-len(records) // 512) * 512, b"\0")
        (tmp_path / "x.tar").write_bytes(header.tobuf() + padded + tar_bytes([("0.txt", b"a"), ("1.txt", b"b")]))
        samples, reader = read(tmp_path / "x.tar")
        assert [(s.key, s.parts) for s in samples] == [("0", {"txt": b"a"}), ("1", {"txt": b"b"})]
        assert reader.damage is None

    def test_members_equal_tarfile_whatever_the_pieces(self) -> None:
        noise = random.Random(2)
        names = ["d/" * 30 + f"{'n' * 150}{i}.jpg" for i in range(3)] + ["a.txt", "ö" * 200 + ".json"]
        files = [(name, noise.randbytes(noise.choice((0, 1, 511, 512, 513, 70_000)))) for name in names]
        for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            data = tar_bytes(files, format=format)
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                expected = [(m.name, tar.extractfile(m).read()) for m in tar]  # type: ignore[union-attr]
            for piece in (1000, 1 << 20):
                stream = _pieces(data, piece)
                found = TarMembers(lambda _, stream=stream: next(stream, b""), lambda name, size: True)
                assert [(m.name, m.data) for m in found] == expected == files
                assert found.damage is None


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


class TestIndex:
    @pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    def test_places_hold_the_same_bytes(self, tmp_path: Path, format: int) -> None:
        files = [*AWKWARD, ("big.jpg", random.Random(0).randbytes(100_000)), ("big.txt", b"after it")]
        path = write_tar(tmp_path / "x.tar", files, "w", format)
        data, samples = path.read_bytes(), read(path, all_parts=True)[0]
        reader = ShardReader(Shard(str(path)))
        indexed = list(reader.index())
        found = [{part: data[at : at + size] for part, (at, size) in s.places.items()} for s in indexed]
        assert found == [sample.parts for sample in samples]
        assert [(s.key, s.index) for s in indexed] == [(s.key, s.index) for s in samples]
        assert reader.damage is None and reader.size == len(data)

    @settings(max_examples=40, deadline=None)
    @given(cut=st.integers(1, 50_000), noise=st.integers(0, 40_000))
    def test_damage_is_found_as_in_reading(
        self, tmp_path_factory: pytest.TempPathFactory, cut: int, noise: int
    ) -> None:
        files = [(f"{i}.{part}", random.Random(i).randbytes(9_000)) for i in range(3) for part in ("jpg", "txt")]
        data = bytearray(tar_bytes(files))[:cut]
        data[noise : noise + 600] = b"\xff" * len(data[noise : noise + 600])
        path = tmp_path_factory.mktemp("damaged") / "x.tar"
        path.write_bytes(data)
        whole, headers = ShardReader(Shard(str(path))), ShardReader(Shard(str(path)))
        try:
            expected = [(s.key, s.broken, set(s.parts)) for s in whole]
        except ShardError as error:
            with refused("shards", str(path), ShardError) as raised:
                list(headers.index())
            assert str(raised.value) == str(error)
            return
        assert [(s.key, s.broken, set(s.places)) for s in headers.index()] == expected
        assert headers.damage == whole.damage


class TestEndedEarly:
    """A connection may end before the shard does, without an error; the store's own size tells the two apart."""

    @pytest.mark.parametrize("kept", [700, 1024, 3000, -1500, -1])
    def test_a_shard_that_came_in_part_is_not_read(self, kept: int) -> None:
        whole = tar_bytes(pairs(3))
        with refused("shards", "memory://x.tar", ShardError) as caught:
            list(ShardReader(Served("memory://x.tar", whole[:kept], len(whole))))
        assert f"ended after {len(whole[:kept]):,} of its {len(whole):,} bytes" in str(caught.value)

    @pytest.mark.parametrize("told", [None, 0])
    def test_a_store_that_does_not_know_is_believed(self, told: int | None) -> None:
        whole = tar_bytes(pairs(3))
        reader = ShardReader(Served("memory://x.tar", whole[:3000], told))
        assert [sample.key for sample in reader] == ["0000", "0001"]
        assert "without its end marker" in str(reader.damage)

    def test_a_damaged_file_that_came_whole_is_read_as_far_as_it_goes(self) -> None:
        whole = tar_bytes(pairs(3))
        reader = ShardReader(Served("memory://x.tar", whole[:3000], 3000))
        assert [sample.key for sample in reader] == ["0000", "0001"]
        assert "without its end marker" in str(reader.damage)


class Served(Shard):
    """A shard of which some bytes come, from a store that tells a size of its own."""

    def __init__(self, url: str, data: bytes, told: int | None) -> None:
        super().__init__(url)
        object.__setattr__(self, "served", (data, told))

    def open(self) -> Any:
        return io.BytesIO(self.served[0])  # type: ignore[attr-defined]

    def size_and_time(self) -> tuple[int | None, float | None]:
        return self.served[1], None  # type: ignore[attr-defined]
