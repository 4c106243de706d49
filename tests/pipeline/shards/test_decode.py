import io
import json
import random
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards.decode import BadSample, decode_image, decode_label, decode_text
from tests.errors import refused
from tests.pipeline.shards.tars import encoded, picture

LIMITS = Limits()
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:RuntimeWarning")  # as outside of pytest


def pixels(data: bytes, limits: Limits = LIMITS) -> list[Any]:
    image = decode_image(data, limits)
    assert image.mode == "RGB"
    return np.asarray(image).tolist()  # type: ignore[no-any-return]


def refusal(data: bytes, limits: Limits = LIMITS) -> tuple[str, str]:
    with pytest.raises(BadSample) as error:
        decode_image(data, limits)
    return error.value.status, str(error.value)


def png(width: int, height: int, raw: bytes) -> bytes:
    """A PNG that claims to be width x height, with any pixel data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")


class TestModes:
    def test_one_pixel(self) -> None:
        for kind in ("PNG", "WEBP", "GIF"):
            options = {"lossless": True} if kind == "WEBP" else {}
            assert pixels(encoded(Image.new("RGB", (1, 1), (10, 20, 30)), kind, **options)) == [[[10, 20, 30]]]

    def test_grey_and_black_and_white(self) -> None:
        assert pixels(encoded(Image.new("L", (1, 1), 77))) == [[[77, 77, 77]]]
        assert pixels(encoded(Image.new("1", (1, 1), 1))) == [[[255, 255, 255]]]

    def test_sixteen_bit_grey_is_scaled_not_clipped(self) -> None:
        grey = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
        assert pixels(encoded(Image.fromarray(grey))) == [[[v, v, v] for v in (0, 0, 1, 128, 255)]]

    def test_transparency_is_dropped_as_convert_does(self) -> None:
        for image in (Image.new("RGBA", (2, 1), (9, 8, 7, 0)), Image.new("LA", (2, 1), (9, 128))):
            assert pixels(encoded(image)) == np.asarray(image.convert("RGB")).tolist()

    def test_palette_with_transparency(self) -> None:
        image = Image.new("P", (2, 1))
        image.putpalette([1, 2, 3, 40, 50, 60])
        image.putdata([0, 1])
        assert pixels(encoded(image, transparency=0)) == [[[1, 2, 3], [40, 50, 60]]]
        assert pixels(encoded(image, "GIF", transparency=0)) == [[[1, 2, 3], [40, 50, 60]]]

    def test_cmyk_jpeg(self) -> None:
        data = encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=95)
        red, green, blue = np.asarray(decode_image(data, LIMITS)).reshape(-1, 3).mean(axis=0)
        assert red > 240 and green < 15 and blue < 15

    @pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF"])
    def test_first_frame_of_an_animation(self, kind: str) -> None:
        frames = [Image.new("RGB", (4, 4), colour) for colour in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
        options: dict[str, Any] = {"save_all": True, "append_images": frames[1:], "duration": 50}
        data = encoded(frames[0], kind, **options, **({"lossless": True} if kind == "WEBP" else {}))
        assert pixels(data) == [[[250, 0, 0]] * 4] * 4

    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
    def test_exif_orientation(self, orientation: int, kind: str) -> None:
        stored = Image.fromarray(np.arange(18 * 9 * 3, dtype=np.uint32).reshape(18, 9, 3).astype(np.uint8))
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encoded(stored, kind, exif=exif)
        expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        assert expected.size == ((18, 9) if orientation > 4 else (9, 18))
        assert pixels(data) == np.asarray(expected).tolist()

    def test_unreadable_exif_leaves_the_picture(self) -> None:
        image = Image.new("RGB", (8, 8), (10, 20, 30))
        for exif in (
            b"Exif\0\0garbage",
            b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\xff" * 40,
            b"Exif\0\0II*\0\xff\xff\xff\x7f",
        ):
            assert len(pixels(encoded(image, "JPEG", exif=exif))) == 8


class TestRefused:
    def test_truncated(self) -> None:
        noise = Image.effect_noise((64, 64), 90).convert("RGB")
        for kind in ("JPEG", "PNG", "WEBP"):
            data = encoded(noise, kind)
            for share in (0.1, 0.5, 0.9):
                status, reason = refusal(data[: int(len(data) * share)])
                assert status == "bad_image" and reason

    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (b"", "0 bytes"),
            (b"a caption", "not a readable JPEG, PNG, WebP or GIF"),
            (b"\xff\xd8\xff", "not a readable JPEG"),
            (b"<html></html>" * 99, "not a readable"),
            (encoded(Image.new("RGB", (4, 4)), "BMP"), "not a readable"),
            (encoded(Image.new("RGB", (4, 4)), "TIFF"), "not a readable"),
            (encoded(Image.new("RGB", (4, 4)), "EPS"), "not a readable"),
            (encoded(Image.new("RGB", (4, 4)), "PPM"), "not a readable"),
            (encoded(Image.new("RGB", (4, 4)), "ICO"), "not a readable"),
        ],
    )
    def test_not_a_picture_of_these_kinds(self, data: bytes, reason: str) -> None:
        status, text = refusal(data)
        assert status == "bad_image" and reason in text

    def test_reasons_are_the_same_in_every_run(self) -> None:
        """They go to the tables, which must not differ between two runs."""
        noise = random.Random(4)
        for data in (
            b"text",
            b"",
            picture()[:50],
            noise.randbytes(400),
            encoded(Image.new("RGB", (9, 9)), "WEBP")[:40],
        ):
            assert refusal(data) == refusal(data)
            assert "0x" not in refusal(data)[1]

    def test_decompression_bomb_is_refused_by_its_header(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            Image, "MAX_IMAGE_PIXELS", 89_478_485
        )  # Pillow's own; larger limits of other tests raise it
        assert refusal(png(60_000, 60_000, b"")) == ("too_large", "image over the limit of 90,000,000 pixels")
        assert refusal(png(10_000, 10_000, b"")) == (
            "too_large",
            "image of 10,000 x 10,000 pixels; the limit is 90,000,000",
        )

    def test_real_bomb_is_refused_without_its_pixels(self) -> None:
        bomb = png(4_000, 4_000, bytes(4_000 * (3 * 4_000 + 1)))
        assert len(bomb) < 60_000
        limits = Limits(max_pixels=15_999_999)
        assert refusal(bomb, limits) == ("too_large", "image of 4,000 x 4,000 pixels; the limit is 15,999,999")
        assert refusal(bomb[:60], limits) == refusal(bomb, limits)  # the header alone decides

    def test_a_png_or_gif_that_is_larger_than_its_first_bytes_say_is_refused(self) -> None:
        """The service counts pixels by the first bytes, before anything is decoded."""
        whole = png(300, 200, bytes(200 * (3 * 300 + 1)))
        assert decode_image(whole, LIMITS).size == (300, 200)
        header, signature = png(1, 1, b"")[8:33], whole[:8]
        assert header[4:8] == b"IHDR"
        text = b"\0\0\0\x0dtEXt" + bytes(13)
        text += zlib.crc32(text[4:]).to_bytes(4, "big")
        for before, stated in ((header, (1, 1)), (text, (0, 0))):
            data = signature + before + whole[8:]
            assert Image.open(io.BytesIO(data)).size == (300, 200)
            assert refusal(data) == ("bad_image", f"image of (300, 200), but its first bytes say {stated}")
        gif = encoded(Image.new("L", (300, 200)), "GIF")
        assert decode_image(gif, LIMITS).size == (300, 200)
        data = gif[:6] + b"\1\0\1\0" + gif[10:]
        assert Image.open(io.BytesIO(data)).size == (300, 200)
        assert refusal(data) == ("bad_image", "image of (300, 200), but its first bytes say (1, 1)")

    @pytest.mark.parametrize("progressive", [True, False])
    def test_a_jpeg_of_endless_scans_is_refusal(self, progressive: bool) -> None:
        data = encoded(Image.new("RGB", (40, 40), "red"), "JPEG", progressive=progressive)
        end = len(data) - 2
        empty = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"  # one component, no data: decoders take it with a warning
        assert refusal(data[:end] + empty * 100 + data[end:]) == ("too_large", "JPEG of more than 100 scans")
        assert decode_image(data + empty * 1000, LIMITS).size == (40, 40)  # a film or a thumbnail behind the picture

    def test_a_jpeg_of_endless_segments_is_refused_before_pillow_reads_them(self) -> None:
        data, empty = encoded(Image.new("RGB", (40, 40), "red"), "JPEG"), b"\xff\xe1\x00\x02"
        assert decode_image(data[:2] + empty * 4000 + data[2:], LIMITS).size == (40, 40)
        refused = ("too_large", "JPEG of more than 5,000 segments")
        assert refusal(data[:2] + empty * 1_000_000 + data[2:]) == refused  # Pillow takes seconds

    def test_lines_are_refused_before_they_are_made_wide(self) -> None:
        assert refusal(encoded(Image.new("RGB", (1, 201)))) == (
            "too_large",
            "image of 1 x 201 pixels; one side is over 200 times the other",
        )
        assert decode_image(encoded(Image.new("RGB", (200, 1))), LIMITS).size == (200, 1)

    def test_limits_can_be_set_on_both_sides_of_pillows_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        data = encoded(Image.new("RGB", (30, 20)))
        assert refusal(data, Limits(max_pixels=150)) == ("too_large", "image over the limit of 150 pixels")
        assert Image.MAX_IMAGE_PIXELS == 100  # others who use Pillow here keep their limit
        assert decode_image(data, Limits(max_pixels=600)).size == (30, 20)

    def test_too_many_bytes(self) -> None:
        data = picture()
        assert refusal(data, Limits(max_image_bytes=len(data) - 1))[0] == "too_large"
        assert decode_image(data, Limits(max_image_bytes=len(data))).size == (8, 6)

    @pytest.mark.parametrize("name", ["max_pixels", "max_image_bytes", "max_text_chars", "max_aspect"])
    def test_limits_must_be_positive(self, name: str) -> None:
        with refused(name, 0):
            Limits(**{name: 0})

    def test_random_and_damaged_bytes_raise_nothing_else(self) -> None:
        noise = random.Random(3)
        kinds = [picture(kind=kind, size=(40, 30)) for kind in ("PNG", "JPEG", "WEBP", "GIF")]
        decoded = 0
        for round in range(400):
            data = bytearray(kinds[round % 4])
            for _ in range(noise.choice((1, 4, 30))):
                data[noise.randrange(len(data))] = noise.randrange(256)
            if round % 10 == 0:
                data = bytearray(data[: 4 + round % 16] + noise.randbytes(noise.randrange(200)))
            try:
                decode_image(bytes(data), LIMITS)
                decoded += 1
            except BadSample as error:
                assert error.status in ("bad_image", "too_large") and str(error)
        assert 20 < decoded < 380


def text(parts: dict[str, bytes], field: str | None = None, limits: Limits = LIMITS) -> str:
    try:
        return decode_text(parts, field, limits)
    except BadSample as error:
        return f"{error.status}: {error}"


class TestText:
    @pytest.mark.parametrize(
        ("parts", "expected"),
        [
            ({"txt": b"a cat"}, "a cat"),
            ({"txt": b" a cat\n"}, " a cat\n"),
            ({"txt": b"\xef\xbb\xbfa cat"}, "a cat"),
            ({"txt": "ein Kätzchen 🐈".encode()}, "ein Kätzchen 🐈"),
            ({"txt": b"a\0cat"}, "a\0cat"),
            ({"txt": b""}, "no_text: the caption is empty"),
            ({"txt": b" \t\r\n "}, "no_text: the caption is empty"),
            ({"txt": b"\0\0 \0"}, "no_text: the caption is empty"),
            ({"txt": b"\xef\xbb\xbf"}, "no_text: the caption is empty"),
            ({"txt": b"caf\xe9"}, "bad_text: caption is not UTF-8: unexpected end of data at byte 3"),
            ({"txt": b"\xff\xfea\0"}, "bad_text: caption is not UTF-8: invalid start byte at byte 0"),
            ({"txt": b"a", "json": b'{"caption": "b"}'}, "a"),
            ({"json": b'{"caption": "b", "text": "c"}'}, "b"),
            ({"json": b'{"caption": null, "text": "c"}'}, "c"),
            ({"json": b'\xef\xbb\xbf{"text": "c"}'}, "c"),
            ({"json": b'{"title": "c"}'}, "no_text: no part txt and no caption or text in json"),
            ({"json": b'{"caption": ""}'}, "no_text: the caption is empty"),
            ({"json": b'{"caption": 7}'}, "bad_text: the caption in json is a int, not a string"),
            ({"json": b'{"caption": ["a"]}'}, "bad_text: the caption in json is a list, not a string"),
            ({"json": b'{"caption": "a\\ud800b"}'}, "bad_text: caption has an invalid character at 1"),
            ({"json": b'["a"]'}, "bad_text: json holds a list, not an object"),
            ({"json": b"null"}, "bad_text: json holds a NoneType, not an object"),
            ({"json": b""}, "bad_text: json cannot be read: Expecting value: line 1 column 1 (char 0)"),
            ({"jpg": b""}, "no_text: no part txt and no caption or text in json"),
        ],
    )
    def test_txt_then_json(self, parts: dict[str, bytes], expected: str) -> None:
        assert text(parts) == expected

    @pytest.mark.parametrize(
        "data", [b'{"caption": "caf\xe9"}', b"[" * 200_000, b'{"a": ' + b"9" * 5000 + b"}", b"{'a'"]
    )
    def test_json_that_cannot_be_read(self, data: bytes) -> None:
        assert text({"json": data}).startswith("bad_text: json cannot be read: ")
        assert len(text({"json": data})) < 330

    def test_a_named_field_goes_before_txt(self) -> None:
        parts = {"txt": b"a", "json": json.dumps({"title": "t", "caption": "c"}).encode()}
        assert text(parts, "title") == "t"
        assert text(parts, "alt") == "no_text: no json field 'alt'"
        assert text({"txt": b"a"}, "title") == "no_text: no json field 'title'"

    def test_long_captions(self) -> None:
        assert text({"txt": b"x" * 100_000}) == "too_large: caption of 100,000 characters; the limit is 20,000"
        assert text({"txt": b"x" * 100_000}, limits=Limits(max_text_chars=100_000)) == "x" * 100_000
        assert text({"txt": "ä".encode() * 20_000}) == "ä" * 20_000  # characters count, not bytes


def label(parts: dict[str, bytes], field: str | None = None) -> int | str:
    try:
        return decode_label(parts, field)
    except BadSample as error:
        assert len(str(error)) < 330
        return error.status


class TestLabel:
    @pytest.mark.parametrize(
        ("cls", "expected"),
        [
            (b"7", 7),
            (b" 7\n", 7),
            (b"\xef\xbb\xbf7", 7),
            (b"0", 0),
            (b"2147483647", 2**31 - 1),
            (b"2147483648", "bad_label"),
            (b"9" * 5000, "bad_label"),
            (b"-1", "bad_label"),
            (b"3.0", "bad_label"),
            (b"cat", "bad_label"),
            (b"\xff", "bad_label"),
            (b"", "no_label"),
            (b" ", "no_label"),
        ],
    )
    def test_cls(self, cls: bytes, expected: int | str) -> None:
        assert label({"cls": cls}) == expected

    @pytest.mark.parametrize(
        ("record", "expected"),
        [
            ('{"label": 3, "cls": 4}', 3),
            ('{"cls": 4}', 4),
            ('{"label": "5"}', 5),
            ('{"label": 6.0}', 6),
            ('{"label": 6.5}', "bad_label"),
            ('{"label": NaN}', "bad_label"),
            ('{"label": Infinity}', "bad_label"),
            ('{"label": 1e400}', "bad_label"),
            ('{"label": -2}', "bad_label"),
            ('{"label": true}', "bad_label"),
            ('{"label": [1]}', "bad_label"),
            ('{"label": {"a": 1}}', "bad_label"),
            ('{"label": ' + "8" * 4000 + "}", "bad_label"),
            ('{"label": null}', "no_label"),
            ("{}", "no_label"),
            ("[]", "bad_label"),
            ("{", "bad_label"),
        ],
    )
    def test_json(self, record: str, expected: int | str) -> None:
        assert label({"json": record.encode()}) == expected

    def test_a_named_field_goes_before_cls(self) -> None:
        parts = {"cls": b"1", "json": b'{"fine": 2}'}
        assert label(parts) == 1
        assert label(parts, "fine") == 2
        assert label(parts, "coarse") == "no_label"
        assert label({}) == "no_label"
