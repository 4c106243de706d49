"""An answer over HTTP is the row of the table: same status, same numbers, for good samples and for bad ones.

Two batches of one model differ in the last bit of float32, and `pair_quality` rounds embeddings to float16, as a run keeps
them. A coordinate that lies on an edge between two numbers of float16 may go to either: then the answer is the quality of that
other embedding, and moves by what the coordinate does to the cosines with the pool. Everything else is equal to 1e-5.
"""

import asyncio
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from noisegate import annotate, read_table
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.pairs import read_pool, read_scorer
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import TRUNCATED, RunFolder
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.read import ShardReader
from noisegate.service.app import create_app
from noisegate.service.engine.items import Embedded
from noisegate.service.runs.scoring import ServiceScorer
from noisegate.service.settings import load_settings
from tests.embeddings import captions, clusters, scored
from tests.fakes import BLANK, LONG, NOT_FINITE, ZERO, Member, pairs, picture, write_tar
from tests.service.serving import COLOURS, base64_of, serving

FIELDS = ("similarity", "osa_weight", "clean_probability", "pair_quality")


def odd_samples() -> list[Member]:
    """Everything that can be wrong with a sample that one can post, and some that is merely unusual."""
    big = io.BytesIO()
    Image.fromarray(np.arange(30000, dtype=np.uint8).reshape(100, 100, 3)).save(big, "JPEG", quality=90)
    images = {
        "jpeg": big.getvalue(),
        "grey": picture(200, mode="L"),
        "palette": picture(3, mode="P"),
        "clear": picture((255, 0, 0, 0), mode="RGBA"),
        "gif": picture(2, mode="P", kind="GIF"),
        "webp": picture("green", kind="WEBP"),
        "deep": picture(40_000, mode="I;16"),
        "cut": big.getvalue()[:-200],
        "noise": b"no picture at all",
        "none": b"",
        "tiff": picture("red", kind="TIFF"),
        "line": picture("red", (900, 3)),
        "blank": picture(BLANK),
    }
    texts = {
        "bom": "\ufeffa red thing".encode(),
        "nul": b"red\0thing",
        "only_nul": b"\0 \0",
        "space": b"  \n ",
        "latin": "ein gr\xfcner Kreis".encode("latin-1"),
        "long": b"red " * 6000,
        "nan": NOT_FINITE.encode(),
        "zero": ZERO.encode(),
        "cut": f"a red thing {LONG}".encode(),
        "emoji": "a red 🎈".encode(),
    }
    members: list[Member] = []
    for name, data in images.items():
        members += [(f"image-{name}.png", data), (f"image-{name}.txt", b"a red thing")]
    for name, data in texts.items():
        members += [(f"text-{name}.png", picture("red")), (f"text-{name}.txt", data)]
    members += [("both.png", b"nothing"), ("both.txt", b"\xff")]
    return members


def annotated(shards: Path, out: Path, model: str, beta: str = "auto") -> list[dict[str, Any]]:
    annotate(
        [str(path) for path in sorted(shards.glob("*.tar"))], out, estimator=ModelSpec(model), beta=beta, workers=0
    )
    return read_table(out).to_pylist()


def samples(shards: Path) -> list[tuple[bytes, bytes]]:
    raw = [sample for path in sorted(shards.glob("*.tar")) for sample in ShardReader(Shard(str(path)))]
    return [(sample.parts["png"], sample.parts["txt"]) for sample in raw]


@dataclass
class WatchedScorer(ServiceScorer):
    """Remembers the embeddings that it scored."""

    seen: list[Embedded] = field(default_factory=list)

    def score(self, embedded: Sequence[Embedded]) -> list[dict[str, float | bool | None]]:
        self.seen += embedded
        return super().score(embedded)


def posted(run: Path, posts: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Embedded]]:
    """All results of some posts to a service that takes its scorer from the run, and the embeddings behind them."""

    async def work() -> tuple[list[dict[str, Any]], list[Embedded]]:
        app = create_app(load_settings(runs={"run": run}, trust_run=True, decode_workers=1, max_items=64))
        async with serving(app) as client:
            watched = app.state.service.scorer = WatchedScorer(**vars(app.state.service.scorer))
            answers = await asyncio.gather(*(client.post("/v1/score", **post) for post in posts))
        assert [a.status_code for a in answers] == [200] * len(posts), [a.text[:300] for a in answers]
        return [result for answer in answers for result in answer.json()["results"]], watched.seen

    return asyncio.run(work())


def as_json(batch: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {"json": {"pairs": [{"image": base64_of(image), "text": text.decode()} for image, text in batch]}}


def as_form(batch: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    files: list[tuple[str, Any]] = []
    for image, text in batch:
        files += [("image", ("x", image)), ("text", (None, text))]
    return {"files": files}


def as_named_parts(batch: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    wanted = [{"image": f"part:p{i}", "text": text.decode()} for i, (_, text) in enumerate(batch)]
    files: list[tuple[str, Any]] = [("request", (None, json.dumps({"pairs": wanted})))]
    return {"files": files + [(f"p{i}", ("x", image)) for i, (image, _) in enumerate(batch)]}


def in_batches(pairs: list[tuple[bytes, bytes]], size: int) -> list[list[tuple[bytes, bytes]]]:
    return [pairs[start : start + size] for start in range(0, len(pairs), size)]


def quality_shifts(run: RunFolder, rows: list[dict[str, Any]], seen: list[Embedded]) -> list[float]:
    """How far the quality of each row may be off: by what the embeddings seen over HTTP, where they differ from the kept
    ones, change in the cosines with the pool. A soft maximum moves by no more than its largest argument.
    """
    kept = [
        np.concatenate([read_embeddings(run.embeddings(s), part) for s in sorted(run.stems())])
        for part in ("image", "text")
    ]
    shifts = np.zeros(len(rows))
    for embedded in seen:
        digests = (embedded.image_sha256, embedded.text_sha256)
        for i, row in enumerate(rows):
            if row["status"] != "ok" or (row["image_sha256"], row["text_sha256"]) != digests:
                continue
            here = [np.asarray(part, np.float16) for part in (embedded.image, embedded.text)]
            steps = [mine - side[i] for mine, side in zip(here, kept, strict=True)]
            for mine, step in zip(here, steps, strict=True):
                assert (np.abs(step) <= np.spacing(np.abs(mine))).all(), row[
                    "key"
                ]  # the neighbouring number of float16
            shift = sum(np.abs(other @ step).max() for step, other in zip(steps, reversed(kept), strict=True)) / 2
            shifts[i] = max(shifts[i], shift)
    return shifts.tolist()


def assert_equal(
    folder: Path, rows: list[dict[str, Any]], answered: tuple[list[dict[str, Any]], list[Embedded]]
) -> None:
    results, seen = answered
    run = RunFolder(folder)
    calibration = read_scorer(folder).calibration
    assert calibration is not None and len(rows) == len(results)
    slope = max(np.diff(calibration.clean) / np.diff(calibration.knots))
    for row, result, shift in zip(rows, results, quality_shifts(run, rows, seen), strict=True):
        assert (result["status"], result["clean"]) == (row["status"], row["clean"]), row["key"]
        assert (TRUNCATED in result["flags"]) == (TRUNCATED in row["flags"]), row["key"]
        if row["status"] != "bad_image":  # a decoder may put the sample's name into its words
            assert result["error"] == row["error"], row["key"]
        for name in FIELDS:
            here, there = result[name], row[name]
            assert (here is None) == (there is None), (row["key"], name)
            within = 1e-5 + {"pair_quality": shift, "clean_probability": slope * shift}.get(name, 0)
            assert here is None or math.isclose(here, there, rel_tol=0, abs_tol=within), (row["key"], name)


def test_an_embedding_on_an_edge_moves_the_quality_by_its_step(tmp_path: Path) -> None:
    """Rows as kept give the table's quality; one coordinate moved to the next float16 moves it within the bound."""
    images, _ = clusters(count=60)
    scored(tmp_path, images, captions(images, wrong=20))
    run = RunFolder(tmp_path / "out")
    rows = read_table(run.path).to_pylist()
    pool = read_pool(run)
    assert pool is not None
    left, right = (
        read_embeddings(run.embeddings(stem), part) for stem in sorted(run.stems()) for part in ("image", "text")
    )
    table = np.array([row["pair_quality"] for row in rows])
    cosines = np.array([row["similarity"] for row in rows], np.float32)
    np.testing.assert_allclose(pool.quality(left, right, cosines), table, atol=1e-6)
    for coordinate in range(left.shape[1]):
        moved = left.copy()
        moved[:, coordinate] = np.nextafter(np.float16(left[:, coordinate]), np.float16(1))
        bound = np.abs((moved - left) @ right.T).max(axis=1) / 2
        shift = np.abs(pool.quality(moved, right, cosines) - table)
        assert (shift <= bound + 1e-6).all()


def test_every_row_with_the_fake_model(tmp_path: Path) -> None:
    write_tar(tmp_path / "shards" / "a.tar", pairs(40))
    write_tar(tmp_path / "shards" / "b.tar", odd_samples())
    rows = annotated(tmp_path / "shards", tmp_path / "run", COLOURS)
    statuses = {row["status"] for row in rows}
    assert statuses == {"ok", "bad_image", "no_text", "bad_text", "too_large", "invalid"}
    assert all(row["clean_probability"] is not None for row in rows if row["status"] == "ok")
    assert [row["key"] for row in rows if TRUNCATED in row["flags"]] == ["text-cut"]
    posts = [as_form(batch) for batch in in_batches(samples(tmp_path / "shards"), 20)]
    assert_equal(tmp_path / "run", rows, posted(tmp_path / "run", posts))


def test_every_row_with_the_embedded_model(tmp_path: Path, scenes: Path) -> None:
    rows = annotated(scenes, tmp_path / "run", "embedded", beta="fixed:-0.075")  # measuring it takes seconds
    batches = in_batches(samples(scenes), 30)
    posts = [(as_json, as_named_parts)[i % 2](batch) for i, batch in enumerate(batches)]
    assert len(rows) == 120
    assert all(row["clean_probability"] is not None for row in rows)
    assert_equal(tmp_path / "run", rows, posted(tmp_path / "run", posts))
