"""What each stage from tar to table costs for one pair, in milliseconds of processor time, and what each option changes.

    python -m benchmarks.stages [--pictures 128] [--pairs 32] [--compiled] [--no-model] [--json]

VGA JPEGs (and one of 12 megapixels), captions of about 12 tokens, a ViT-B-32 of random numbers on one thread. Ways of doing
the same thing take turns in the same run; the least of the rounds counts. `--compiled` adds torch.compile (which compiles
for a minute or two) and, where it is installed, ONNX Runtime (pip install onnx onnxruntime).
"""

import argparse
import hashlib
import importlib.util
import io
import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.annotate import WORDS, used, write_shards
from noisegate.pipeline.datasets.scenes import caption, draw, random_scene, scene_rng
from noisegate.pipeline.engines.shard_task import EncodedShard
from noisegate.pipeline.estimators import load_estimator, normalise
from noisegate.pipeline.runs.embeddings import write_embeddings
from noisegate.pipeline.runs.table import RunFolder, table_from
from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.shards.decode import decode_image
from noisegate.pipeline.shards.locate import find_shards
from noisegate.pipeline.shards.pixels import decode_array, decode_pixels
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.pipeline.shards.read import ShardReader
from noisegate.pipeline.shards.stream import Chunk
from noisegate.pipeline.shards.workers import decode_sample

ROUNDS = 3
Figures = dict[str, float]


def by_turns(ways: dict[str, Callable[[], object]], items: int) -> Figures:
    """Milliseconds of processor time for one item: the least of the rounds, each way once before."""
    least = dict.fromkeys(ways, float("inf"))
    for turn in range(ROUNDS + 1):
        for name, work in ways.items():
            before = used()
            work()
            least[name] = min(least[name], used() - before) if turn else least[name]
    return {name: 1000 * value / items for name, value in least.items()}


def jpeg(image: Image.Image) -> bytes:
    data = io.BytesIO()
    image.save(data, "JPEG", quality=90)
    return data.getvalue()


def reading_and_decoding(pictures: int, folder: Path) -> Figures:
    shard = find_shards(write_shards(folder / "vga", 1, pictures, 640, 480))[0]
    raws = list(ShardReader(shard))
    whole, draft, fast = Preprocess(), Preprocess(draft=True), Preprocess(decoder="fast")
    limits = Limits()
    images = [decode_image(raw.image or b"", limits) for raw in raws]
    small = [decode_image(raw.image or b"", limits, draft.least_side) for raw in raws]
    arrays = [decode_array(raw.image or b"", limits) for raw in raws]
    times = pictures // 16
    found = by_turns(
        {
            "read the tar, hash the shard": lambda: list(ShardReader(shard)),
            "hash picture and caption": lambda: [hashlib.sha256(raw.image or b"").digest() for raw in raws],
            "decode VGA, fast": lambda: [decode_array(raw.image or b"", limits) for raw in raws],
            "resize and crop VGA, fast": lambda: [fast(array) for array in arrays],
            "decode, resize VGA, fast with --draft": lambda: [
                decode_pixels(raw.image or b"", replace(fast, draft=True), limits) for raw in raws
            ],
            "decode VGA": lambda: [decode_image(raw.image or b"", limits) for raw in raws],
            "resize and crop VGA": lambda: [whole(image) for image in images],
            "decode VGA with --draft": lambda: [decode_image(raw.image or b"", limits, 224) for raw in raws],
            "resize and crop VGA with --draft": lambda: [whole(image) for image in small],
            "hand to a worker": lambda: [pickle.loads(pickle.dumps(raws[:16], 4)) for _ in range(times)],
        },
        pictures,
    )
    for name, kept in (("hand back pixels", True), ("… memory given back to the system", False)):
        command = [sys.executable, "-m", "benchmarks.packing", shard.url, *(["--keep"] if kept else [])]
        found[name] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def large_jpeg() -> Figures:
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    data = jpeg(coarse.resize((4000, 3000), Image.Resampling.BICUBIC))
    ways = {
        f"decode, resize 12 MP, {decoder}{' with --draft' if draft else ''}": partial(
            decode_pixels, data, Preprocess(draft=draft, decoder=decoder), Limits()
        )
        for decoder in ("fast", "pillow")
        for draft in (False, True)
    }
    return by_turns(ways, 1)


def writing(folder: Path) -> Figures:
    rng = np.random.default_rng(0)
    count, width = 1000, 512

    class Known:
        batch_size = count

        def encode_pixels(self, pixels: Any) -> Any:
            return rng.standard_normal((len(pixels), width), np.float32)

        def encode_texts(self, texts: Any) -> Any:
            return rng.standard_normal((len(texts), width), np.float32)

    shard = find_shards(write_shards(folder / "tiny", 1, count, 32, 32))[0]
    samples = [decode_sample(raw, Preprocess(8), DecodeOptions()) for raw in ShardReader(shard)]
    part = EncodedShard(Known())  # type: ignore[arg-type]
    part.add(Chunk(shard, samples, 0))
    run = RunFolder(folder / "run")

    def write() -> None:
        write_embeddings(run.embeddings("x"), part.images, part.texts, {})
        run.write_table("x", table_from(part.columns(), {"table_version": 1}))

    return by_turns({"write table and embeddings": write}, count)


def encoding(pairs: int, compiled: bool) -> tuple[Figures, Figures]:
    """Milliseconds for a picture or a text, and the largest change of a cosine that each way makes."""
    torch.set_num_threads(1)
    model: Any = load_estimator("ViT-B-32", "random:0", device="cpu")
    rng = np.random.default_rng(0)
    pixels = [rng.integers(0, 256, (224, 224, 3), dtype=np.uint8) for _ in range(pairs)]
    short = [" ".join(rng.choice(WORDS, 10)) for _ in range(pairs)]
    mixed = [" ".join(rng.choice(WORDS, n)) for n in rng.choice([5, 8, 10, 12, 15, 20, 40], pairs)]
    found: dict[str, Any] = {}

    def run(name: str, what: str, items: Any, **settings: Any) -> Callable[[], None]:
        def work() -> None:
            before = {key: getattr(model, key) for key in settings}
            vars(model).update(settings)
            found[name] = normalise(getattr(model, what)(items))
            vars(model).update(before)

        return work

    bf16 = load_estimator("ViT-B-32", "random:0", device="cpu", dtype="bfloat16")
    pictures: dict[str, Callable[[], object]] = {
        "encode a picture": run("encode a picture", "encode_pixels", pixels),
        "… whole last layer": run("… whole last layer", "encode_pixels", pixels, class_token_only=False),
        "… --dtype bfloat16": lambda: found.update({"… --dtype bfloat16": normalise(bf16.encode_pixels(pixels))}),
    }
    if compiled:
        pictures |= compiled_ways(model, pixels, found)
    texts = {
        "encode a text of 12 tokens": run("encode a text of 12 tokens", "encode_texts", short),
        "… padded to 77": run("… padded to 77", "encode_texts", short, trims_texts=False),
        "encode texts of 7 to 42 tokens, by length": run("by length", "encode_texts", mixed),
        "… in one batch": lambda: found.update({"in one batch": normalise(one_batch(model, mixed))}),
        "tokenise": lambda: model.tokenizer(short),
    }
    costs = by_turns(pictures, pairs) | by_turns(texts, pairs)
    beside = found["encode a text of 12 tokens"]
    changes = {
        name: float(np.abs(np.einsum("nd,nd->n", found["encode a picture"] - found[name], beside)).max())
        for name in pictures
        if name != "encode a picture"
    }
    picture = found["encode a picture"]
    for name, (one, other) in {
        "… padded to 77": ("encode a text of 12 tokens", "… padded to 77"),
        "… in one batch": ("by length", "in one batch"),
    }.items():
        changes[name] = float(np.abs(np.einsum("nd,nd->n", found[one] - found[other], picture)).max())
    return costs, changes


def one_batch(model: Any, texts: list[str]) -> Any:
    with torch.inference_mode():
        return model._encode_tokens(model.tokenize(texts)).numpy()


def compiled_ways(model: Any, pixels: Any, found: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """The vision tower by torch.compile and by ONNX Runtime, on the same normalised pictures."""
    with torch.no_grad():  # not inference mode: the export would record gradients
        batch = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float().div(255)
        batch = batch.sub(model._mean).div(model._std).contiguous()
    tower = torch.compile(model.module.visual)

    def compile_() -> None:
        with torch.inference_mode():
            found["… torch.compile"] = normalise(tower(batch).numpy())

    ways: dict[str, Callable[[], object]] = {"… torch.compile": compile_}
    if importlib.util.find_spec("onnxruntime") is None:
        return ways
    import onnxruntime

    file = io.BytesIO()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused operator has no counterpart there
    with torch.no_grad():
        torch.onnx.export(model.module.visual, (batch,), file, dynamo=False, opset_version=17)
    torch.backends.mha.set_fastpath_enabled(True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    ways["… ONNX Runtime"] = lambda: found.update(
        {"… ONNX Runtime": normalise(session.run(None, {name: batch.numpy()})[0])}
    )
    return ways


def draft_scores(count: int) -> Figures:
    """What --draft does to cosines: drawn scenes of 512 px under the embedded model (64 px, so decoded at 1/8)."""
    model = load_estimator("embedded", device="cpu")
    whole, small, texts = [], [], []
    for index in range(count):
        rng = scene_rng(5, index)
        scene = random_scene(rng)
        data = jpeg(draw(scene, 512))
        texts.append(caption(scene, rng))
        whole.append(model.preprocess(decode_image(data, Limits())))
        small.append(model.preprocess(decode_image(data, Limits(), 64)))
    text = normalise(model.encode_texts(texts))
    both = [np.einsum("nd,nd->n", normalise(model.encode_pixels(pixels)), text) for pixels in (whole, small)]
    change = np.abs(both[0] - both[1])
    return {
        "mean change of a pixel, of 255": float(np.abs(np.subtract(whole, small, dtype=np.int16)).mean()),
        "mean change of a cosine": float(change.mean()),
        "largest change of a cosine": float(change.max()),
        "spread of the cosines": float(both[0].std()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--no-model", action="store_true", help="only what comes before and after the model")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found: dict[str, Figures] = {
            "draft": {} if given.no_model else draft_scores(200),
            "encoding": {},
            "changes": {},
        }
        found["stages"] = reading_and_decoding(given.pictures, folder) | large_jpeg() | writing(folder)
        if not given.no_model:
            found["encoding"], found["changes"] = encoding(given.pairs, given.compiled)
    if given.json:
        print(json.dumps(found))
        return
    for name, value in (found["stages"] | found["encoding"]).items():
        change = found["changes"].get(name)
        print(f"{name:52} {value:9.3f} ms{'' if change is None else f'   cosines change by up to {change:.1e}'}")
    for name, value in found["draft"].items():
        print(f"--draft: {name:43} {value:9.5f}")


if __name__ == "__main__":
    main()
