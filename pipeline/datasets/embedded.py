"""Train the embedded estimator on drawn scenes; `--check` only measures it.

    python -m noisegate.pipeline.datasets.embedded

The loss per batch of B pairs is the sum of
- InfoNCE (CLIP), images against all captions and all changed captions of the batch, captions against all images;
- a logistic loss on the cosine of each pair and of its changed captions, with one scale and one bias for all, so
  that one threshold separates true from false captions across images;
- cross-entropy over the class names in short prompts, so that class names can be used as anchors.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import save_file
from sklearn.metrics import roc_auc_score, roc_curve

from noisegate.pipeline.datasets.scenes import caption, draw, random_scene, scene_rng
from noisegate.pipeline.datasets.scenes.scene import ATTRIBUTES, class_names, hard_negative, scene_class
from noisegate.pipeline.estimators.loading import allow_torchvision
from noisegate.pipeline.system.output_files import whole_path

UNSEEN_SEED = 2**31
_BATCH = 250


def measure(folder: Path, count: int, seed: int = UNSEEN_SEED) -> dict[str, float]:
    """Measure the model in `folder` on `count` scenes of `seed`.

    `auroc_mismatched`: own caption against another scene's; `auroc_changed`: own caption against one that is false in one
    random attribute; `auroc_<attribute>`: false in that attribute. `cut` is the cosine that best separates own from mismatched
    captions; `kept` and `rejected` are the shares of own captions above it and of mismatched ones below it. `class_accuracy`:
    the nearest of the class names in "a photo of a ..." is right.
    """
    allow_torchvision()
    import open_clip

    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    model.eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    rngs = [scene_rng(seed, index) for index in range(count)]
    scenes = [random_scene(rng) for rng in rngs]
    images = _encode(model.encode_image, [preprocess(draw(scene)) for scene in scenes], torch.stack)

    def texts(captions: list[str]) -> NDArray[np.float32]:
        return _encode(model.encode_text, captions, tokenizer)

    captions = texts([caption(scene, rng) for scene, rng in zip(scenes, rngs, strict=True)])
    own = (images * captions).sum(1)
    mismatched = (images * np.roll(captions, 1, axis=0)).sum(1)
    changed = {
        attribute: (
            images * texts([caption(hard_negative(s, r, attribute), r) for s, r in zip(scenes, rngs, strict=True)])
        ).sum(1)
        for attribute in ATTRIBUTES
    }
    chosen = np.array([rng.integers(len(ATTRIBUTES)) for rng in rngs])
    one_changed = np.stack(list(changed.values()))[chosen, np.arange(count)]
    cut, kept, rejected = best_cut(own, mismatched)
    nearest = (images @ texts([f"a photo of a {name}" for name in class_names()]).T).argmax(1)
    figures = {
        "auroc_mismatched": auroc(own, mismatched),
        "auroc_changed": auroc(own, one_changed),
        **{f"auroc_{attribute}": auroc(own, cosines) for attribute, cosines in changed.items()},
        "cut": cut,
        "kept": kept,
        "rejected": rejected,
        "cosine_own": float(own.mean()),
        "cosine_mismatched": float(mismatched.mean()),
        "class_accuracy": float((nearest == [scene_class(scene) for scene in scenes]).mean()),
    }
    return {name: round(figure, 5) for name, figure in figures.items()}


def auroc(true: NDArray[np.float32], false: NDArray[np.float32]) -> float:
    """Return the probability that a true pair's cosine is above a false pair's; both (N,)."""
    return float(roc_auc_score(np.repeat([1, 0], [len(true), len(false)]), np.concatenate([true, false])))


def best_cut(true: NDArray[np.float32], false: NDArray[np.float32]) -> tuple[float, float, float]:
    """Return the threshold with the highest sum of kept true and rejected false pairs, then those two shares.

    >>> best_cut(np.array([0.9, 0.8, 0.7]), np.array([0.1, 0.2]))
    (0.7, 1.0, 1.0)
    """
    false_rate, true_rate, cuts = roc_curve(
        np.repeat([1, 0], [len(true), len(false)]), np.concatenate([true, false]), drop_intermediate=False
    )
    best = int(np.argmax(true_rate - false_rate))
    return float(cuts[best]), float(true_rate[best]), float(1 - false_rate[best])


@torch.inference_mode()
def _encode(encoder: Any, items: list[Any], collate: Any) -> NDArray[np.float32]:
    parts = [encoder(collate(items[i : i + _BATCH])) for i in range(0, len(items), _BATCH)]
    return torch.nn.functional.normalize(torch.cat(parts), dim=-1).numpy()


FOLDER = Path(__file__).resolve().parents[1] / "estimators" / "embedded"
TEXT_LENGTH = 18  # tokens of the longest caption, start and end included
WORDINGS = 3
_CHUNK = 500
CONTEXT = 32
MEAN, STD = (0.4, 0.38, 0.36), (0.32, 0.31, 0.32)
PROMPTS = ("{}", "a {}", "a photo of a {}", "a picture of a {}", "a drawing of a {}", "an image of a {}")
EMBEDDING = 96
VISION = {"image_size": 64, "layers": [1, 2, 2, 1], "width": 16, "head_width": 64}  # a list of layers means a ResNet
TEXT = {"context_length": CONTEXT, "vocab_size": 49408, "width": 48, "heads": 4, "layers": 2}
PREPROCESS = {"size": 64, "mean": MEAN, "std": STD, "interpolation": "bicubic", "resize_mode": "shortest"}


EncodeWord = Callable[[str], list[int]]


@dataclass(frozen=True)
class Pool:
    """`images` (N, 64, 64, 3) uint8, `captions` (N, 3, 18) and `changed` (N, 6, 18) token ids, `labels` (N,) int64.

    `changed` holds one caption per attribute of `ATTRIBUTES`, false in that attribute alone.
    """

    images: NDArray[np.uint8]
    captions: NDArray[np.int32]
    changed: NDArray[np.int32]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.images)


def draw_pool(seed: int, count: int, encode: EncodeWord, processes: int = 2) -> Pool:
    """Draw scenes 0..count-1 of `seed` in several processes; `encode` gives a word's token ids and can be pickled."""
    starts = range(0, count, _CHUNK)
    work = partial(draw_part, seed=seed, count=count, encode=encode)
    with ProcessPoolExecutor(processes, get_context("spawn")) as executor:
        parts = list(executor.map(work, starts))
    return Pool(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(Pool)))


def draw_part(start: int, seed: int, count: int, encode: EncodeWord) -> Pool:
    """Draw up to 500 scenes of `seed` from `start` on, none beyond `count`."""
    words: dict[str, list[int]] = {}
    images, captions, changed, labels = [], [], [], []
    for index in range(start, min(start + _CHUNK, count)):
        rng = np.random.default_rng([seed, index])  # not `scene_rng`: scenes that people write stay unseen
        scene = random_scene(rng)
        images.append(np.asarray(draw(scene)))
        captions.append([caption(scene, rng) for _ in range(WORDINGS)])
        changed.append([caption(hard_negative(scene, rng, attribute), rng) for attribute in ATTRIBUTES])
        labels.append(scene_class(scene))
    return Pool(
        np.stack(images),
        np.stack([token_ids(texts, encode, words) for texts in captions]),
        np.stack([token_ids(texts, encode, words) for texts in changed]),
        np.array(labels, np.int64),
    )


def token_ids(texts: Sequence[str], encode: EncodeWord, words: dict[str, list[int]]) -> NDArray[np.int32]:
    """Return token ids (N, 18) of texts, padded with 0; `words` caches the ids of each word."""
    rows = np.zeros((len(texts), TEXT_LENGTH), np.int32)
    start, end = 49406, 49407  # CLIP's marks of the start and the end of a text
    for row, text in zip(rows, texts, strict=True):
        ids = [start]
        for word in text.split():
            if word not in words:
                words[word] = encode(word)
            ids += words[word]
        ids = [*ids[: TEXT_LENGTH - 1], end]
        row[: len(ids)] = ids
    return rows


def build_model(tokens: int) -> Any:
    """Build the model with positions for short captions and embeddings for the `tokens` in use only, 1/1000 of CLIP's."""
    allow_torchvision()
    import open_clip

    text = TEXT | {"context_length": TEXT_LENGTH, "vocab_size": tokens}
    return open_clip.CLIP(EMBEDDING, open_clip.CLIPVisionCfg(**VISION), open_clip.CLIPTextCfg(**text))


class Encode:
    """Return CLIP's tokens of a word; each process makes its own tokenizer, because a tokenizer cannot be pickled."""

    def __init__(self) -> None:
        self._tokenizer: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_tokenizer": None}

    def __call__(self, word: str) -> list[int]:
        if self._tokenizer is None:
            allow_torchvision()
            from open_clip.tokenizer import SimpleTokenizer

            self._tokenizer = SimpleTokenizer()
        return list(self._tokenizer.encode(word))


def batches(pool: Pool, size: int, negatives: int, rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    """Yield images (B, 3, 64, 64), captions (B, L), changed captions (B, negatives, L) and labels (B,), for ever."""
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    while True:
        order = rng.permutation(len(pool))
        for start in range(0, len(order) - size + 1, size):
            rows = order[start : start + size]
            images = torch.from_numpy(pool.images[rows]).permute(0, 3, 1, 2).float().div_(255)
            images += torch.randn(1, 3, 64, 64) * float(rng.uniform(0, 0.03))
            captions = pool.captions[rows, rng.integers(pool.captions.shape[1], size=size)]
            attributes = np.argsort(rng.random((size, len(ATTRIBUTES))), axis=1)[:, :negatives]
            changed = pool.changed[rows[:, None], attributes]
            images = images.sub_(mean).div_(std).contiguous(memory_format=torch.channels_last)
            yield images, _tokens(captions), _tokens(changed), torch.from_numpy(pool.labels[rows])


def _tokens(ids: NDArray[np.int32]) -> torch.Tensor:
    return torch.from_numpy(ids.astype(np.int64))


def _rank(used: NDArray[np.int32], ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """Number the tokens in use from 0 in the order of their ids, so that the end mark stays the largest."""
    return np.searchsorted(used, ids).astype(np.int32)


def loss_of(
    model: Any, cut: torch.nn.Parameter, batch: tuple[Any, ...], prompts: torch.Tensor, hard_weight: float
) -> torch.Tensor:
    """Sum the three losses; `cut` (2,) is log-scale and bias of the logistic one, `prompts` (C, L) name the classes."""
    images, captions, changed, labels = batch
    size, negatives = changed.shape[:2]
    v = F.normalize(model.encode_image(images), dim=-1)
    t = F.normalize(model.encode_text(torch.cat([captions, changed.flatten(0, 1), prompts])), dim=-1)
    true, false, names = t[:size], t[size : size * (1 + negatives)], t[size * (1 + negatives) :]
    scale = model.logit_scale.exp()
    own = torch.arange(size)
    contrast = F.cross_entropy(scale * v @ torch.cat([true, false]).T, own) + F.cross_entropy(scale * true @ v.T, own)
    positive = (v * true).sum(-1)
    negative = (v[:, None] * false.view(size, negatives, -1)).sum(-1)
    sharp, bias = cut[0].exp(), cut[1]
    hard = F.softplus(-sharp * (positive - bias)).mean() + F.softplus(sharp * (negative - bias)).mean()
    return contrast + hard_weight * hard + 0.3 * F.cross_entropy(scale * v @ names.T, labels)


def train(arguments: argparse.Namespace) -> None:
    """Draw the scenes, train, and leave a measured checkpoint in `arguments.out` every `save_every` steps."""
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    rng = np.random.default_rng(arguments.seed)
    began = time.monotonic()
    encode = Encode()
    pool = draw_pool(arguments.seed, arguments.scenes, encode)
    print(f"{len(pool)} scenes drawn in {time.monotonic() - began:.0f} s", flush=True)
    names = [token_ids([prompt.format(name) for name in class_names()], encode, {}) for prompt in PROMPTS]
    used = np.unique(np.concatenate([array.ravel() for array in (pool.captions, pool.changed, *names)]))
    pool = replace(pool, captions=_rank(used, pool.captions), changed=_rank(used, pool.changed))
    prompts = [_tokens(_rank(used, array)) for array in names]

    model = build_model(len(used)).train().to(memory_format=torch.channels_last)
    cut = torch.nn.Parameter(torch.tensor([math.log(10.0), 0.5]))
    matrices = [p for n, p in model.named_parameters() if p.ndim > 1 and "embedding" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim <= 1 or "embedding" in n]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": [*others, cut], "weight_decay": 0.0}],
        lr=arguments.rate,
        betas=(0.9, 0.98),
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, arguments.rate, total_steps=arguments.steps, pct_start=0.06, cycle_momentum=False
    )
    stream = batches(pool, arguments.batch, arguments.negatives, rng)
    last = min(arguments.steps, arguments.stop_after)
    for step in range(1, last + 1):
        named = prompts[int(rng.integers(len(prompts)))]
        loss = loss_of(model, cut, next(stream), named, arguments.hard_weight)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=math.log(50))
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f} {time.monotonic() - began:.0f} s", flush=True)
        if step % arguments.save_every == 0 or step == last:
            save(model, used, arguments.out)
            print(json.dumps({"step": step, **measure(arguments.out, 1000)}), flush=True)


def save(model: Any, used: NDArray[np.int32], out: Path) -> None:
    """Write configuration and float16 weights, in open_clip's layout; tokens that no caption uses become zero rows."""
    state = {
        name: (tensor.half() if tensor.is_floating_point() else tensor).contiguous()
        for name, tensor in model.state_dict().items()
    }
    table = torch.zeros(TEXT["vocab_size"], TEXT["width"], dtype=torch.float16)
    table[torch.from_numpy(used).long()] = state["token_embedding.weight"]
    state["token_embedding.weight"] = table
    state["positional_embedding"] = F.pad(state["positional_embedding"], (0, 0, 0, CONTEXT - TEXT_LENGTH))
    out.mkdir(parents=True, exist_ok=True)
    model_config = {"embed_dim": EMBEDDING, "vision_cfg": VISION, "text_cfg": TEXT}
    config = json.dumps({"model_cfg": model_config, "preprocess_cfg": PREPROCESS}, indent=2) + "\n"
    (out / "open_clip_config.json").write_text(config, encoding="utf-8")
    with whole_path(out / "open_clip_model.safetensors") as temporary:
        save_file(state, temporary, metadata={"format": "pt"})
        temporary.chmod(0o644)  # safetensors makes its files readable by their owner only


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="measure the model in --out on unseen scenes, print JSON")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of configuration and weights")
    parser.add_argument("--scenes", type=int, default=48_000)
    parser.add_argument("--steps", type=int, default=2800, help="length of the learning-rate schedule")
    parser.add_argument("--stop-after", type=int, default=1000, help="steps to run of it")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--negatives", type=int, default=2, help="changed captions per pair, at most 6")
    parser.add_argument("--hard-weight", type=float, default=2.0, help="weight of the logistic loss")
    parser.add_argument("--rate", type=float, default=1.5e-3, help="highest learning rate")
    parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints")
    parser.add_argument("--threads", type=int, default=1, help="more only helps on idle cores")
    parser.add_argument("--seed", type=int, default=0, help="of scenes, batches and weights")
    arguments = parser.parse_args()
    if arguments.check:
        print(json.dumps(measure(arguments.out, 4000), indent=2))
    else:
        train(arguments)


if __name__ == "__main__":
    main()
