"""OSA's domain adaptation: fine-tune the estimator for a few steps on pairs that a mixture model finds clean.

Read some pairs, take each pair's loss, split the losses into clean and noisy, tune both towers on the clean ones, save
the model as an open_clip folder, and measure β again, because the cone of embeddings moves (OSA, appendix A). For class labels
a pair is a picture and a prompt of its given class, and pictures of one class are no negatives of each other. For image
retrieval a pair is two pictures of one given class.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from noisegate.pipeline.errors import ConfigError, NoisegateError
from noisegate.pipeline.estimators import load_estimator
from noisegate.pipeline.estimators.base import Identity
from noisegate.pipeline.estimators.openclip import OpenClipEstimator, save_local_dir
from noisegate.pipeline.labels.classes import ClassSet
from noisegate.pipeline.methods.losses import pair_losses
from noisegate.pipeline.methods.mixtures import Split, gmm_split
from noisegate.pipeline.pairs.beta import Beta, beta_of_random_inputs, estimate_beta
from noisegate.pipeline.pairs.pair_fit import embed_pairs, read_pairs
from noisegate.pipeline.pairs.scorer import Encoded
from noisegate.pipeline.shards.locate import Shard, find_shards
from noisegate.pipeline.shards.workers import Decoded
from noisegate.pipeline.system.array_types import Float32, Float64, Index
from noisegate.pipeline.system.output_files import whole_folder, write_atomically
from noisegate.pipeline.system.progress import counted

from .tuning import NO_TEXT, Tuning, tune

ADAPT_FILE = "adapt.json"
KEEP = {"pairs": 0.8, "labels": 0.95}
"""smallest clean probability of a pair to train on (OSA, appendix A)"""
FEWEST = 32  # minimum kept pairs to train and measure on
HELD_OUT_SHARE, HELD_OUT_LIMIT = 0.1, 1_000  # of the kept pairs, to measure the loss on
RISE = 0.01  # a smaller relative rise of the held-out loss counts as chance


@dataclass(frozen=True)
class Adaptation:
    """Result of `adapt`. Losses are means over `held_out` kept pairs that were not trained on."""

    out: str
    source: Identity
    weights: str
    """SHA-256 of the adapted parameters, as in the identity of the model that `local-dir:` loads"""
    settings: dict[str, Any]
    pairs: int
    """pairs read whose embeddings are finite"""
    kept: int
    held_out: int
    split: dict[str, Any]
    """the mixture behind `kept`: kind, means, deviations and weights of (clean, noisy), and why it fell back"""
    loss_before: float
    loss_after: float
    beta_before: Beta
    """of random inputs, as `beta_after`"""
    beta_after: Beta
    auto_before: Beta
    """by mode `auto` on the pairs read, as `annotate` would take it for such data"""
    auto_after: Beta

    @property
    def loss_rose(self) -> bool:
        """Whether the loss rose by more than chance and by an amount that four digits show."""
        return self.loss_after - self.loss_before > max(1e-4, RISE * self.loss_before)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "source": self.source.to_dict()}


def adapt(
    shards: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    model: str = "embedded",
    pretrained: str | None = None,
    device: str = "auto",
    classes: ClassSet | None = None,
    image_pairs: bool = False,
    pairs: int = 10_000,
    keep: float | None = None,
    tuning: Tuning | None = None,
    workers: int | None = None,
    seed: int = 0,
    note: Callable[[str], None] | None = None,
) -> Adaptation:
    """Adapt an open_clip model to the first `pairs` of `shards` and save it in `out`, to be loaded as `local-dir:OUT`.

    A pair is used for training if it belongs to the clean component with a probability above `keep`; the defaults are OSA's, .8
    for retrieval and .95 for classification. With `classes` a sample's text is one of the prompts of its label, drawn by the
    seed; with `image_pairs`, for image retrieval, another picture of its label replaces the text. All is computed in
    float32, and on a CPU the same seed gives the same bytes. The folder appears when complete, with `adapt.json`, after the
    saved model was loaded again and gives the same embeddings.
    """
    tuning, note, out = tuning or Tuning(), note or (lambda _: None), Path(out)
    keep = KEEP["pairs" if classes is None else "labels"] if keep is None else keep
    named: dict[str, Any] = {} if classes is None else {"classes": list(classes.names)}
    if image_pairs:
        named = {"image_pairs": True}
    if image_pairs and classes is not None:
        raise ConfigError.of("image_pairs", True, "compares pictures with pictures; leave out classes, or image_pairs")
    _check_settings(pairs, keep, seed)
    _check_empty(out)
    located = find_shards(shards)
    estimator = _load(model, pretrained, device, tuning.batch_size)
    with whole_folder(out.absolute()) as folder:
        data, before, split = _read_and_split(estimator, located, classes, image_pairs, pairs, workers, seed, note)
        kept = np.flatnonzero(split.clean_probability > keep)
        if len(kept) < FEWEST:
            problem = f"leaves {len(kept):,} of {len(data.samples):,} pairs, and {FEWEST} are needed"
            raise ConfigError.of("keep", keep, f"{problem}; read more pairs, or keep more, such as 0.5")
        note(f"{counted(len(data.samples), 'pair')} read, {len(kept):,} kept")
        rows, held_out = hold_out(kept, data.pictures, seed)
        if image_pairs:  # the only picture left of a label has no partner to train with
            labels = data.captions[rows]
            rows = rows[np.bincount(labels)[labels] > 1]
        training = data.at(rows)
        partners = draw_partners(training.captions, np.random.default_rng([seed, 4])) if image_pairs else None
        loss_before = _mean_loss(estimator, data, before, held_out, seed)
        beta_before = beta_of_random_inputs(estimator, seed=seed)
        rng = np.random.default_rng([seed, 2])
        tune(estimator, training.samples, training.pictures, training.captions, tuning, rng, note, partners)
        save_local_dir(estimator, folder)
        adapted = _load(f"local-dir:{folder}", None, device, tuning.batch_size)
        _require_equal(estimator, adapted, data.at(held_out), model)
        after, beta_after = _embed(adapted, data), beta_of_random_inputs(adapted, seed=seed)
        done = Adaptation(
            out=str(out),
            source=estimator.identity,
            weights=adapted.identity.weights,
            settings={"keep": keep, "pairs": pairs, "seed": seed, **named, **asdict(tuning)},
            pairs=len(data.samples),
            kept=len(kept),
            held_out=len(held_out),
            split=_split_facts(split),
            loss_before=loss_before,
            loss_after=_mean_loss(adapted, data, after, held_out, seed),
            beta_before=beta_before,
            beta_after=beta_after,
            auto_before=_auto_beta(before, beta_before, image_pairs, seed),
            auto_after=_auto_beta(after, beta_after, image_pairs, seed),
        )
        record = {name: value for name, value in done.to_dict().items() if name != "out"}
        record["shards"] = [shard.url for shard in located]
        write_atomically(folder / ADAPT_FILE, (json.dumps(record, indent=1, sort_keys=True) + "\n").encode())
        _check_empty(out)  # another command may have written to it meanwhile
    return done


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Decoded pairs, and ids (N,) that are equal for equal pictures, and for equal captions or labels.

    partners: (N,) rows, of all pairs read, whose pictures replace the texts; None for texts.
    """

    samples: list[Decoded]
    pictures: Index
    captions: Index
    partners: Index | None = None

    @classmethod
    def of(cls, samples: list[Decoded], by_label: bool, partners: Index | None = None) -> "_Pairs":
        texts = [s.label if by_label else s.text for s in samples]
        return cls(samples, _number([s.image_sha256 for s in samples]), _number(texts), partners)

    def at(self, rows: Index) -> "_Pairs":
        """Select some rows, without partners."""
        return _Pairs([self.samples[i] for i in rows], self.pictures[rows], self.captions[rows])


def _number(values: Sequence[object]) -> Index:
    """Return ids 0, 1, … of values (N,) in the order of their first appearance."""
    seen: dict[object, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.int64)


def _check_empty(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError.of("out", out, f"is there already; give a new folder, such as {out}-2")


def _check_settings(pairs: int, keep: float, seed: int) -> None:
    if pairs < FEWEST:
        raise ConfigError.of("pairs", pairs, f"is fewer than {FEWEST}; use 10000")
    if not 0 < keep < 1:
        raise ConfigError.of("keep", keep, "is no probability between 0 and 1; use 0.8")
    if seed < 0:
        raise ConfigError.of("seed", seed, "is negative; use 7")


def _load(model: str, pretrained: str | None, device: str, batch_size: int) -> OpenClipEstimator:
    if not model.startswith(("hf:", "python:")):
        estimator = load_estimator(model, pretrained, device=device, dtype="float32", batch_size=batch_size)
        if isinstance(estimator, OpenClipEstimator):
            return estimator
    known = "embedded, a name such as ViT-B-32 with pretrained, hf-hub:ORG/NAME or local-dir:FOLDER"
    raise ConfigError.of("model", model, f"is no open_clip model, which alone can be adapted; use {known}")


def _read_and_split(
    estimator: OpenClipEstimator,
    shards: Sequence[Shard],
    classes: ClassSet | None,
    image_pairs: bool,
    pairs: int,
    workers: int | None,
    seed: int,
    note: Callable[[str], None],
) -> tuple[_Pairs, Encoded, Split]:
    """Read pairs with finite embeddings; return them, their embeddings, and the split of their losses into clean and noisy."""
    by_label = classes is not None or image_pairs
    samples = read_pairs(shards, estimator, pairs, workers, note, labels=by_label)
    if classes is not None:
        samples = with_prompts(samples, classes, np.random.default_rng([seed, 3]))
    elif image_pairs:
        samples = [replace(sample, text=NO_TEXT) for sample in samples]
    encoded = embed_pairs(estimator, samples)
    valid = np.flatnonzero([sample.status == "ok" for sample in samples])
    data = _Pairs.of([samples[i] for i in valid], by_label)
    encoded = Encoded(encoded.images[valid], encoded.texts[valid], encoded.similarity[valid])
    if image_pairs:
        rows = np.flatnonzero(np.bincount(data.captions)[data.captions] > 1)
        data = data.at(rows)
        if not len(rows):
            raise ConfigError.of("image_pairs", True, "finds no label with two pictures; read more --pairs")
        data = replace(data, partners=draw_partners(data.captions, np.random.default_rng([seed, 3])))
        encoded = _pair_pictures(encoded.images[rows], data.partners)
    split = gmm_split(_losses(estimator, data, encoded.images, encoded.texts, seed))
    for reason in split.fallbacks:
        note(f"the losses could not be split: {reason}")
    return data, encoded, split


def draw_partners(labels: Index, rng: np.random.Generator) -> Index:
    """Draw another row of the same label for each row, (N,); -1 for the only row of its label.

    >>> draw_partners(np.array([3, 5, 3, 7, 7]), np.random.default_rng(0)).tolist()
    [2, -1, 0, 4, 3]
    """
    partners = np.full(len(labels), -1)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        if len(rows) > 1:
            partners[rows] = np.roll(rows, 1)
    return partners


def _pair_pictures(images: Float32, partners: Index | None) -> Encoded:
    assert partners is not None
    others = images[partners]
    return Encoded(images, others, np.einsum("nd,nd->n", images, others))


def _embed(estimator: OpenClipEstimator, data: _Pairs) -> Encoded:
    encoded = embed_pairs(estimator, data.samples)
    return encoded if data.partners is None else _pair_pictures(encoded.images, data.partners)


def with_prompts(samples: Sequence[Decoded], classes: ClassSet, rng: np.random.Generator) -> list[Decoded]:
    """Replace each text by a random prompt of the label, drawn by `rng`; raise ConfigError for a label without a name."""
    prompted = []
    for sample in samples:
        if sample.label is None or not 0 <= sample.label < len(classes):
            problem = f"names {len(classes)} classes, and sample {sample.key} has the label {sample.label}"
            raise ConfigError.of("classes", len(classes), f"{problem}; give a name for every label")
        sentences = classes.prompts[sample.label]
        prompted.append(replace(sample, text=sentences[int(rng.integers(len(sentences)))]))
    return prompted


def _split_facts(split: Split) -> dict[str, Any]:
    """Return the mixture as JSON values; None for values that a fall-back does not have."""

    def known(pair: tuple[float, float]) -> list[float | None]:
        return [value if math.isfinite(value) else None for value in pair]

    return {
        "kind": split.kind,
        "means": known(split.means),
        "deviations": known(split.deviations),
        "weights": known(split.weights),
        "fallbacks": list(split.fallbacks),
    }


def _losses(
    estimator: OpenClipEstimator,
    data: _Pairs,
    images: Float32,
    texts: Float32,
    seed: int,
) -> Float64:
    scale = float(estimator.module.logit_scale.detach().exp())
    return pair_losses(images, texts, scale, [seed, 0], data.pictures, data.captions)


def _mean_loss(estimator: OpenClipEstimator, data: _Pairs, encoded: Encoded, rows: Index, seed: int) -> float:
    """Compute the mean loss of some rows, in the same batches for every estimator."""
    images, texts = encoded.images[rows], encoded.texts[rows]
    return float(_losses(estimator, data.at(rows), images, texts, seed).mean())


def _auto_beta(encoded: Encoded, random_inputs: Beta, image_pairs: bool, seed: int) -> Beta:
    """Measure β by mode auto; for pairs of pictures by the crossing, because random inputs are pictures with texts."""
    mode = "intersection" if image_pairs else "auto"
    return estimate_beta(
        images=encoded.images, texts=encoded.texts, mode=mode, random_inputs=lambda: random_inputs, seed=seed
    )


def hold_out(kept: Index, pictures: Index, seed: int) -> tuple[Index, Index]:
    """Split rows into those to train on and those to measure on; all captions of a picture are on one side."""
    shown, counts = np.unique(pictures[kept], return_counts=True)
    order = np.random.default_rng([seed, 1]).permutation(len(shown))
    wanted = min(HELD_OUT_LIMIT, round(HELD_OUT_SHARE * len(kept)))
    taken = int(np.searchsorted(np.cumsum(counts[order]), wanted)) + 1
    out = np.isin(pictures[kept], shown[order[:taken]])
    if len(kept) - out.sum() < 2:
        raise ConfigError.of(
            "pairs", len(kept), f"are kept and show {len(shown)} pictures; give shards with more of them"
        )
    return kept[~out], kept[out]


def _require_equal(tuned: OpenClipEstimator, loaded: OpenClipEstimator, data: _Pairs, model: str) -> None:
    """Raise unless the loaded model embeds as the tuned one: saving could lose parts of its configuration."""
    few = data.samples[:16]
    ours, theirs = embed_pairs(tuned, few), embed_pairs(loaded, few)
    apart = max(np.abs(ours.images - theirs.images).max(), np.abs(ours.texts - theirs.texts).max())
    if not apart <= 1e-4:
        problem = f"cannot be saved: once loaded again it embeds differently (by up to {apart:.2g})"
        raise NoisegateError.of("model", model, problem)
