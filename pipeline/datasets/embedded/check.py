"""What the embedded model can tell apart, measured on scenes it never saw, through open_clip's own loader."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve

from noisegate.pipeline.datasets.scenes import (
    ATTRIBUTES,
    caption,
    class_names,
    draw,
    hard_negative,
    random_scene,
    scene_class,
    scene_rng,
)
from noisegate.pipeline.estimators.loading import allow_torchvision

UNSEEN_SEED = 2**31
_BATCH = 250


def measure(folder: Path, count: int, seed: int = UNSEEN_SEED) -> dict[str, float]:
    """Measure the model in `folder` on `count` scenes of `seed`.

    `auroc_mismatched`: a scene with its caption against one with another scene's; `auroc_changed`: against a caption
    false in one random attribute; `auroc_<attribute>`: in that attribute. `cut` is the cosine that separates own from
    mismatched captions best, `kept` and `rejected` are the shares of both on their right side of it. `class_accuracy`:
    nearest of the class names in "a photo of a ...".
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
    """Chance that a true pair's cosine is above a false pair's; both (N,)."""
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
