"""Write scenes as shards."""

import io
import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.shards.tar import write_shard
from noisegate.pipeline.system.output_files import write_atomically

from .draw import draw
from .scene import caption, changed_attributes, class_names, hard_negative, random_scene, scene_class

_WRITTEN = 1  # a third seed number: training of the embedded model uses (seed, index) alone


def scene_rng(seed: int, index: int) -> np.random.Generator:
    """Make the random generator of scene `index`, so that any part of a set can be drawn alone.

    No seed gives scenes that the embedded estimator was trained on.
    """
    return np.random.default_rng([seed, index, _WRITTEN])


def write_scenes(
    out: Path,
    count: int,
    shards: int,
    seed: int,
    size: int = 64,
    hard_negatives: bool = False,
    labels: bool = True,
) -> list[Path]:
    """Write `count` scenes as `scenes-000000.tar`, ... into `out`, byte for byte the same for the same arguments.

    Each sample is `<key>.png`, `<key>.txt` (caption), `<key>.cls` (class id) and `<key>.json` (caption, label, class
    name, attributes). With `hard_negatives` the JSON also has a caption that is false in one attribute, and that
    attribute's name. Without `labels` there is no `.cls`, no label in the JSON and no `classes.txt` beside the shards.
    """
    if count < 1:
        raise ConfigError.of("count", count, "gives no scenes: use 1000")
    if not 1 <= shards <= count:
        raise ConfigError.of("shards", shards, f"does not split {count} scenes: use {min(4, count)}")
    if seed < 0:
        raise ConfigError.of("seed", seed, "is negative: use 0")
    bounds = [count * part // shards for part in range(shards + 1)]
    paths = []
    for part, (start, stop) in enumerate(itertools.pairwise(bounds)):
        paths.append(out / f"scenes-{part:06d}.tar")
        with write_shard(paths[-1]) as shard:
            for index in range(start, stop):
                shard.add(f"{index:08d}", _sample(seed, index, size, hard_negatives, labels))
    if labels:
        write_atomically(out / "classes.txt", "".join(f"{name}\n" for name in class_names()).encode())
    return paths


def _sample(seed: int, index: int, size: int, hard_negatives: bool, labels: bool) -> dict[str, bytes]:
    rng = scene_rng(seed, index)
    scene = random_scene(rng)
    picture = io.BytesIO()
    draw(scene, size).save(picture, "PNG")
    text = caption(scene, rng)
    facts: dict[str, Any] = {"caption": text}
    if labels:
        facts |= {"label": scene_class(scene), "class_name": class_names()[scene_class(scene)]}
    facts |= {**asdict(scene.main), "background": scene.background}
    facts["companion"] = None if scene.companion is None else asdict(scene.companion)
    if hard_negatives:
        other = hard_negative(scene, rng)
        facts |= {"hard_negative": caption(other, rng), "changed_attribute": changed_attributes(scene, other)[0]}
    sample = {"png": picture.getvalue(), "txt": text.encode()}
    if labels:
        sample["cls"] = str(facts["label"]).encode()
    return sample | {"json": json.dumps(facts).encode()}
