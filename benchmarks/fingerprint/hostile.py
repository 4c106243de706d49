"""Shards that are damaged in every way that is known: their statuses, errors and flags."""

import gzip
import io
import json
import shutil
import tarfile
from pathlib import Path

from PIL import Image

from . import inputs
from .inputs import Member, picture, write_tar
from .recorder import Recorder

__all__ = ["record_hostile"]

LIMITS = ("--max-pixels", 40_000, "--max-image-bytes", 30_000, "--max-text-chars", 200, "--max-aspect", 20)
QUIET = ("--workers", 0, "--quiet", "--json")


def record_hostile(recorder: Recorder) -> None:
    """Bad samples and bad shards through reading, scoring, noise, verification, report and export."""
    folder = Path("hostile")
    write_tar(folder / "pictures.tar", pictures())
    write_tar(folder / "texts.tar", texts())
    write_tar(folder / "labels.tar", labels())
    write_names(folder / "names.tar")
    write_damaged(folder)
    shards, model = f"{folder}/*.tar*", ("--model", inputs.toy(), "--beta", "fixed:0.5", *LIMITS)
    runs: dict[str, tuple[object, ...]] = {
        "pairs": (*model,),
        "both": (*model, "--task", "pairs,labels", "--neighbourhood"),
        "labels": ("--model", inputs.toy(), "--task", "labels", "--label-field", "label"),
        "spaces": ("--model", f"{inputs.toy()[:-3]}Wide", "--neighbourhood"),
        "embedded": ("--text-field", "caption", "--draft", "--beta", "fixed:0.5"),
    }
    for name, words in runs.items():
        out = Path(f"hostile-{name}")
        recorder.command(f"hostile/{name}", "annotate", shards, "--out", out, *words, *QUIET)
        recorder.run(f"hostile/{name}", out)
    recorder.command("hostile/retry", "annotate", shards, "--out", "hostile-pairs", *model, "--retry-failed", *QUIET)
    recorder.command("hostile/verify", "verify", "hostile-pairs", "--trust-run", "--quiet", "--json")
    recorder.command("hostile/show", "show", "hostile-both")
    recorder.command("hostile/report", "report", "hostile-both", "--out", "hostile.html")
    recorder.text("hostile/report/page", Path("hostile.html").read_text(encoding="utf-8"))
    for kind in ("shards", "jsonl"):
        recorder.command(
            f"hostile/export-{kind}", "export", "hostile-pairs", "--as", kind, "--out", f"out-{kind}", "--json"
        )
        record = recorder.folder if Path(f"out-{kind}").is_dir() else recorder.file
        record(f"hostile/export-{kind}/files", Path(f"out-{kind}"))
    good = f"{folder}/texts.tar::{folder}/labels.tar::{folder}/names.tar"
    recorder.command("hostile/noise", "noise", good, "--rate", 0.5, "--out", "hostile-noise", "--json")
    recorder.folder("hostile/noise", Path("hostile-noise"))
    bad = Path("unreadable")
    bad.mkdir()
    (bad / "garbage.tar").write_bytes(b"this is no tar at all " * 100)
    shutil.copy(folder / "texts.tar", bad)
    recorder.command("hostile/unreadable", "annotate", f"{bad}/*.tar", "--out", "hostile-unreadable", *model, *QUIET)
    recorder.run("hostile/unreadable", Path("hostile-unreadable"))
    recorder.command("hostile/missing", "annotate", f"{bad}/missing.tar", "--out", "hostile-missing", *model, *QUIET)


def pictures() -> list[Member]:
    """Every kind of picture, good and bad, each with a caption."""
    red = picture()
    big = io.BytesIO()
    Image.effect_noise((190, 200), 90).save(big, "PNG")
    rotated, animated = io.BytesIO(), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation
    Image.new("RGB", (20, 10), (200, 10, 10)).save(rotated, "JPEG", exif=exif)
    frames = [Image.new("RGB", (16, 16), colour) for colour in ((200, 0, 0), (0, 200, 0))]
    frames[0].save(animated, "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    kinds = {
        "ok.png": red,
        "jpeg.jpg": picture(kind="JPEG"),
        "jpeg2.jpeg": picture((10, 200, 10), kind="JPEG"),
        "webp.webp": picture((10, 10, 200), kind="WEBP"),
        "gray.png": picture(90, mode="L"),
        "bits.png": picture(1, mode="1"),
        "deep.png": picture(40_000, mode="I;16"),
        "alpha.png": picture((9, 200, 9, 90), mode="RGBA"),
        "palette.png": picture(3, mode="P"),
        "cmyk.jpg": picture((9, 200, 9, 90), kind="JPEG", mode="CMYK"),
        "rotated.jpg": rotated.getvalue(),
        "animated.webp": animated.getvalue(),
        "gif.jpg": picture(kind="GIF"),
        "gif.gif": picture(kind="GIF"),
        "upper.PNG": red,
        "cut.png": red[:60],
        "cut-jpeg.jpg": picture(size=(64, 64), kind="JPEG")[:-40],
        "empty.png": b"",
        "noise.jpg": bytes(range(256)),
        "html.jpg": b"<html><body>404 not found</body></html>",
        "long.png": picture(size=(420, 20)),
        "wide.png": picture(size=(300, 200)),
        "heavy.png": big.getvalue(),
        "dot.png": picture(size=(1, 1)),
    }
    members: list[Member] = []
    for name, data in kinds.items():
        key, _, part = name.rpartition(".")
        members += [(f"{key}-{part}.{part}", data), (f"{key}-{part}.txt", f"a red thing {key}".encode())]
    return [
        *members,
        ("only-text.txt", b"a red thing"),
        ("two.png", red),
        ("two.jpg", picture(kind="JPEG")),
        ("two.txt", b"red"),
    ]


def texts() -> list[Member]:
    """Every kind of caption, good and bad, each with a picture."""
    kinds: dict[str, bytes | None] = {
        "a.txt": b"a red square", "blank.txt": b"  \n ", "empty.txt": b"", "latin.txt": "rot und gr\u00fcn".encode("latin-1"),
        "utf16.txt": "red".encode("utf-16"), "nul.txt": b"red\x00green", "long.txt": b"red " * 60,
        "lines.txt": b" red\r\nthing\t",
        "emoji.txt": "red \U0001f600 e\u0301".encode(), "bom.txt": b"\xef\xbb\xbfred", "nan.txt": b"nan", "zero.txt": b"zero",
        "none": None, "caption.json": b'{"caption": "a green thing"}', "text.json": b'{"text": "a blue thing"}',
        "number.json": b'{"caption": 7}', "null.json": b'{"caption": null}', "list.json": b'["red"]',
        "bad.json": b'{"caption": ',
        "twice.json": b'{"caption": "red", "caption": "green"}', "huge.json": json.dumps({"caption": "red " * 80}).encode(),
        "nested.json": b"[" * 5_000, "surrogate.json": b'{"caption": "\\ud800 red"}', "NaN.json": b'{"caption": NaN}',
    }  # fmt: skip
    members: list[Member] = []
    for number, (name, data) in enumerate(kinds.items()):
        key = f"{number:03d}-{name.partition('.')[0]}"
        members.append((f"{key}.png", picture((200 if number % 2 else 20, 90, 30))))
        if data is not None:
            members.append((f"{key}.{name.rpartition('.')[2]}", data))
    both = [("both.png", picture()), ("both.txt", b"a red thing"), ("both.json", b'{"caption": "a blue thing"}')]
    return [*members, *both]


def labels() -> list[Member]:
    """Every kind of label, good and bad."""
    given = [b"0", b"1", b"2", b" 1\n", b"", b"-1", b"1.0", b"abc", b"99999999999", b"\xff", b"+1", b"01", b"1e0"]
    records = ["0", "1", "true", "1.0", "1.5", "null", '"1"', '"x"', "[1]", "-3", "4294967296"]
    members: list[Member] = []
    for number, cls in enumerate(given):
        colour = [(200, 10, 10), (10, 200, 10), (10, 10, 200)][number % 3]
        members += [
            (f"c{number:02d}.png", picture(colour)),
            (f"c{number:02d}.txt", b"a red thing"),
            (f"c{number:02d}.cls", cls),
        ]
    for number, value in enumerate(records):
        body = f'{{"label": {value}, "caption": "blue"}}'.encode()
        members += [(f"j{number:02d}.png", picture((10, 10, 200 - number))), (f"j{number:02d}.json", body)]
    for number in range(60):  # enough for neighbours
        turn, mix = number % 3, tuple(200 if number % 3 == i else 10 + number for i in range(3))
        members += [
            (f"g{number:02d}.png", picture(mix)),
            (f"g{number:02d}.txt", b"red green blue"[: 4 + turn * 5]),
        ]
        members.append((f"g{number:02d}.cls", str((turn + (number % 7 == 0)) % 3).encode()))
    return members


def write_names(path: Path) -> None:
    """Names, links, folders and repeated keys."""
    red, text = picture(), b"a red thing"
    plain = [
        "a.png", "a.txt", "a.png", "a.txt", "b.png", "c.png", "c.txt", "b.txt", "dir/a.png", "dir/a.txt", "dots.x.y.png",
        "dots.x.y.txt", ".hidden.png", ".hidden.txt", "__MACOSX/._a.png", "noext", "x.unknown", "x.png", "x.txt", "sp ace.png",
        "sp ace.txt", "\u00fcml\u00e4ut.png", "\u00fcml\u00e4ut.txt", "../up.png", "../up.txt", "/abs.png", "/abs.txt",
        f"{'l' * 180}.png", f"{'l' * 180}.txt", "many.png", "many.txt", "many.cls", "many.mp3", "many.json",
    ]  # fmt: skip
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape") as tar:
        for name in [*plain, "bad\udcff.png", "bad\udcff.txt"]:
            data = (
                red
                if name.endswith(".png")
                else text
                if name.endswith(".txt")
                else b"{}"
                if name.endswith("json")
                else b"1"
            )
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for name, kind in (("folder", tarfile.DIRTYPE), ("link.png", tarfile.SYMTYPE), ("hard.png", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "a.png"
            tar.addfile(member)


def write_damaged(folder: Path) -> None:
    """Shards that are cut, empty, packed, or have a damaged header."""
    whole = (folder / "texts.tar").read_bytes()
    (folder / "cut.tar").write_bytes(whole[: len(whole) // 2 + 77])
    (folder / "cut-header.tar").write_bytes(whole[: 512 * 6 + 100])
    (folder / "empty.tar").write_bytes(b"")
    write_tar(folder / "nothing.tar", [])
    (folder / "header.tar").write_bytes(whole[:3072] + b"\xff" * 512 + whole[3584:])
    (folder / "packed.tar.gz").write_bytes(gzip.compress(whole, mtime=0))
    (folder / "packed-cut.tar.gz").write_bytes(gzip.compress(whole, mtime=0)[:900])
    (folder / "twice.tar").write_bytes(whole + (folder / "labels.tar").read_bytes())
