"""Shards made to swell or to take for ever: what they cost is bounded, and every sample still has its row."""

import gzip
import hashlib
import io
import struct
import tarfile
import tracemalloc
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.shards import gunzip, stream
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.pipeline.shards.read import MAX_PARTS, RawSample, ShardReader
from noisegate.pipeline.shards.tar import TarMembers
from noisegate.pipeline.shards.workers import Decoded, DecodePool, decode_sample
from tests.pipeline.shards.tars import pairs, picture, tar_bytes, write_tar

MEGABYTE = 1_000_000


def read(path: Path, limits: Limits | None = None) -> tuple[list[RawSample], ShardReader]:
    reader = ShardReader(Shard(str(path)), limits=limits)
    return list(reader), reader


def decode_all(path: Path, limits: Limits | None = None) -> list[Decoded]:
    limits = limits or Limits()
    return [decode_sample(raw, Preprocess(4), DecodeOptions(limits=limits)) for raw in read(path, limits)[0]]


def pax_header(records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    header = tarfile.TarInfo("pax")
    header.type, header.size = kind, len(records)
    return header.tobuf() + records.ljust(-(-len(records) // 512) * 512, b"\0")


class TestMemory:
    @pytest.mark.parametrize(
        ("parts", "error"),
        [
            ({"jpg": 65 * MEGABYTE, "txt": 1}, "image of 65,000,000 bytes; the limit is 64,000,000"),
            ({"txt": MEGABYTE}, "part txt of 1,000,000 bytes; the limit is 80,003"),
            ({"json": 60 * MEGABYTE}, "part json of 60,000,000 bytes; the limit is 4,000,000"),
        ],
        ids=["picture", "caption", "json"],
    )
    def test_parts_beyond_a_limit_are_not_read(self, tmp_path: Path, parts: dict[str, int], error: str) -> None:
        files = [("0.png", picture())] if "jpg" not in parts else []
        files += [(f"0.{part}", b"[" * size) for part, size in parts.items()]
        path = write_tar(tmp_path / "x.tar.gz", files, "w:gz")
        digests = {part: hashlib.sha256(b"[" * size).digest() for part, size in parts.items()}
        tracemalloc.start()
        [sample] = decode_all(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (sample.status, sample.error) == ("too_large", error)
        assert peak < 10 * MEGABYTE  # it was 66, 6 and 1,620
        if "jpg" in parts:  # tables keep the digest, which verify and training compare
            assert sample.image_sha256 == digests["jpg"]
        if "json" not in parts:
            assert sample.text_sha256 == digests["txt"]

    @pytest.mark.parametrize("part", ["missing", "txt.missing"])
    def test_reasons_for_missing_parts_are_short(self, tmp_path: Path, part: str) -> None:
        path = write_tar(tmp_path / "x.tar.gz", [(f"0.{part}", bytes(MEGABYTE)), ("0.txt", b"a dog")], "w:gz")
        [raw], _ = read(path, Limits())
        assert raw.parts == {"txt": b"a dog"}

    def test_all_parts_of_a_sample_together_are_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("noisegate.pipeline.shards.read.MAX_PART_BYTES", 1000)
        files = [(f"{key}.{part}", bytes(400)) for key in "ab" for part in ("jpg", "jpeg", "png", "txt")]
        for raw in ShardReader(Shard(str(write_tar(tmp_path / "x.tar", files))), all_parts=True):
            assert (list(raw.parts), raw.oversized) == (["jpg", "jpeg"], {"png": 400, "txt": 400})

    def test_what_waits_to_be_decoded_is_bounded_in_bytes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stream, "CHUNK_BYTES", 10_000)
        monkeypatch.setattr(stream, "AHEAD_BYTES", 30_000)
        path = write_tar(tmp_path / "x.tar", [(f"{i}.jpg", bytes(20_000)) for i in range(12)])
        most: list[int] = []

        class Counting(DecodePool):
            waiting = 0

            def submit(self, chunk: list[RawSample], *rest: object) -> "object":  # type: ignore[override]
                self.waiting += sum(len(raw.parts["jpg"]) for raw in chunk)
                most.append(self.waiting)
                return super().submit(chunk)

            def collect(self, chunk: list[RawSample], future: object) -> list[Decoded]:  # type: ignore[override]
                self.waiting -= sum(len(raw.parts["jpg"]) for raw in chunk)
                return super().collect(chunk, future)  # type: ignore[arg-type]

        pool = Counting(0, Preprocess(4), DecodeOptions())
        with closing(stream.stream([Shard(str(path))], pool, 100)) as items:
            assert len(list(items)) == 13
        assert len(most) == 12 and max(most) == 20_000

    def test_gzip_is_uncompressed_a_piece_at_a_time_and_not_without_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        packed = io.BytesIO(gzip.compress(bytes(20 * MEGABYTE)))
        assert max(len(piece) for piece in gunzip.plain_bytes(packed.read)) <= gunzip.PIECE  # it was 20 MB
        monkeypatch.setattr(gunzip, "FREE_BYTES", 5 * MEGABYTE)
        packed.seek(0)
        pieces: list[int] = []
        with pytest.raises(zlib.error, match="expands more than 100 times"):
            pieces.extend(len(piece) for piece in gunzip.plain_bytes(packed.read))
        assert sum(pieces) <= 5 * MEGABYTE
        packed.seek(0)
        members = TarMembers(packed.read, lambda name, size: True)
        assert list(members) == [] and members.cut and "expands" in str(members.damage)


class TestTime:
    """Work that grew with the square of the input: counted where possible, else made so large that it would not end."""

    def test_a_pax_header_of_a_megabyte(self, tmp_path: Path) -> None:
        records = b"6 a=b\n" * 170_000 + b"14 path=b.txt\n"
        path = tmp_path / "x.tar"
        path.write_bytes(pax_header(records) * 3 + tar_bytes([("a.txt", b"x")]))  # 16 s with a copy for each record
        assert [raw.key for raw in read(path)[0]] == ["b"]

    def test_global_headers_are_not_copied_for_every_file(self, tmp_path: Path) -> None:
        records = b"".join(b"%d k%06d=%s\n" % (18 + 11, i, b"v" * 17) for i in range(30_000))
        path = tmp_path / "x.tar"
        path.write_bytes(pax_header(records, tarfile.XGLTYPE) + tar_bytes(pairs(2_000)))  # 20 s
        samples, reader = read(path)
        assert len(samples) == 2_000 and reader.damage is None

    def test_parts_of_a_key(self, tmp_path: Path) -> None:
        parts = [("a.jpg", picture()), *((f"a.{i}", b"") for i in range(30_000)), ("a.txt", b"too late")]
        samples, _ = read(write_tar(tmp_path / "x.tar", [*parts, ("b.txt", b"b")]))  # 15 s
        assert [(raw.key, len(raw.names)) for raw in samples] == [("a", MAX_PARTS), ("b", 1)]
        assert decode_sample(samples[0], Preprocess(4), DecodeOptions()).error == (
            "more than 1,000 parts; the others are not read"
        )

    def test_names_full_of_slashes(self, tmp_path: Path) -> None:
        name = "a/" * 2_000  # without a dot: the old pattern tried every slash with every end
        files = [(f"{name}{i}", b"") for i in range(3_000)] + [("b.txt", b"b")]
        path = write_tar(tmp_path / "x.tar", files, format=tarfile.PAX_FORMAT)
        assert [raw.key for raw in read(path)[0]] == ["b"]

    @pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    def test_a_name_that_no_disk_takes_is_damage(self, tmp_path: Path, format: int) -> None:
        files = [("a.txt", b"a"), ("b" * 5_000 + ".txt", b"b"), ("c.txt", b"c")]
        samples, reader = read(write_tar(tmp_path / "x.tar", files, format=format))
        assert [raw.key for raw in samples if not raw.broken] == ["c"]  # the one before may lack a part
        assert "unreadable bytes" in str(reader.damage)


class TestNewlines:
    def test_a_name_with_newlines_is_a_sample_like_any_other(self, tmp_path: Path) -> None:
        files = [(f"a.b\nc/d\n{i}.{part}", b"x") for i in range(2) for part in ("jpg", "txt")]
        samples, _ = read(write_tar(tmp_path / "x.tar", files))  # webdataset's pattern drops them
        assert [(raw.key, list(raw.parts)) for raw in samples] == [(f"a.b\nc/d\n{i}", ["jpg", "txt"]) for i in range(2)]


class TestChecksum:
    def test_a_wrong_checksum_keeps_all_samples_and_is_told(self, tmp_path: Path) -> None:
        whole = gzip.compress(tar_bytes(pairs(5)))
        wrong = whole[:-8] + struct.pack("<I", zlib.crc32(b"other")) + whole[-4:]
        path = tmp_path / "x.tar.gz"
        for data in (wrong, whole[:-4] + bytes(4), wrong + gzip.compress(b"")):
            path.write_bytes(data)
            samples, reader = read(path)  # none of them, before
            assert [raw.key for raw in samples] == [f"{i:04d}" for i in range(5)]
            assert "checksum of its gzip is wrong" in str(reader.damage) and not reader.cut
            assert not any(raw.broken for raw in samples)
            assert reader.sha256 == hashlib.sha256(data).hexdigest()

    @pytest.mark.parametrize("flags", [0, 2, 4, 8, 16, 31])
    def test_headers_with_names_and_comments(self, flags: int) -> None:
        plain = zlib.compressobj(wbits=-15)
        data = tar_bytes(pairs(1))
        head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(6)
        head += b"\x03\0abc" if flags & 4 else b""
        head += b"".join(text + b"\0" for flag, text in ((8, b"name"), (16, b"comment")) if flags & flag)
        head += b"\0\0" if flags & 2 else b""
        packed = head + plain.compress(data) + plain.flush() + struct.pack("<II", zlib.crc32(data), len(data))
        for step in (1, 7, 1 << 20):
            pieces = iter([packed[:2], *(packed[at : at + step] for at in range(2, len(packed), step))])
            notes: list[str] = []
            plain_bytes = gunzip.plain_bytes(lambda size, pieces=pieces: next(pieces, b""), note=notes.append)
            assert b"".join(plain_bytes) == data and not notes
