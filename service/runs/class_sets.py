"""Registered class sets: embed their prompts once, then judge new samples by the nearest prompts."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.labels import BUILT_IN, Anchors, ClassSet, load_classes
from noisegate.pipeline.labels.tango import text_anchor_logits
from noisegate.pipeline.system import Float32
from noisegate.service.errors import ApiError, Unavailable

from .judging import Judged, Predicted, anchor_shares, class_numbers, judge_labels

EncodeTexts = Callable[[Sequence[str]], Awaitable[Float32]]

PREDICTED = 5  # classes listed per image
TEXTS = 256  # prompts embedded at a time


@dataclass(frozen=True)
class RegisteredClasses:
    """A class set with the embeddings of its prompts."""

    name: str
    anchors: Anchors

    def judge(self, images: Float32, labels: Sequence[int | str | None]) -> list[Judged]:
        """Judge each image (N, d); a row of zeros means no image.

        `anchor_consistency` is p_sem[y]; without neighbours q is p_sem, which decides `clean_tango`, `consistency` and
        `refined_label`. `predicted` are the likeliest classes by the text-anchored classifier, which uses every prompt
        and not only the nearest, so that the two can differ for similar classes.
        """
        anchors, classes = self.anchors, len(self.anchors.names)
        judged = [Judged() for _ in labels]
        numbers = class_numbers(labels, anchors.names, classes, judged)
        judge_labels(None, anchor_shares(images, anchors, classes), numbers, anchors.names, judged)
        for result, found in zip(judged, predictions(images, anchors), strict=True):
            result.predicted = found
        return judged


def predictions(images: Float32, anchors: Anchors, most: int = PREDICTED) -> list[tuple[Predicted, ...]]:
    """Predict the likeliest classes of each image (N, d) by softmax of TAC's logits (TANGO); empty without an image."""
    logits = text_anchor_logits(images, anchors.embeddings, anchors.labels, len(anchors.names)).astype(np.float64)
    predicted: list[tuple[Predicted, ...]] = []
    for row in logits:
        if not np.isfinite(row).all():
            predicted.append(())
            continue
        chance = np.exp(row - row.max())
        chance /= chance.sum()
        best = np.argsort(-chance, kind="stable")[:most].tolist()
        predicted.append(tuple(Predicted(label=c, name=anchors.names[c], probability=float(chance[c])) for c in best))
    return predicted


class ClassSets:
    """Class sets by name: read at the start, so that a mistake stops the service; embedded when the model is loaded."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sets: dict[str, ClassSet] = {}
        for name, source in sources.items():
            try:
                self._sets[name] = load_classes(source)
            except ConfigError as error:
                raise ConfigError(f"classes {name}: {error}", "classes", source) from error
        self._embedded: dict[str, RegisteredClasses] = {}

    def names(self) -> list[str]:
        return list(self._sets)

    def source(self, name: str) -> ClassSet:
        """Return names and prompts of a set; raise ApiError 404 `unknown_classes`."""
        if name not in self._sets:
            known = ", ".join(self._sets) or "none; start the server with --classes"
            raise ApiError(404, "unknown_classes", f"there is no class set {name[:100]!r}; known are: {known}")
        return self._sets[name]

    def find_for_job(self, name: str) -> ClassSet:
        """Find a registered set, else a built-in list; never read a file that the client names."""
        return load_classes(name) if name in BUILT_IN and name not in self._sets else self.source(name)

    async def warm_up(self, encode: EncodeTexts) -> None:
        """Embed every prompt of every set. Raises ConfigError for a prompt without an embedding."""
        for name, classes in self._sets.items():
            texts = classes.anchors
            rows = [np.asarray(await encode(texts[i : i + TEXTS])) for i in range(0, len(texts), TEXTS)]
            embeddings = np.concatenate(rows).astype(np.float32)
            empty = np.flatnonzero(~embeddings.any(axis=1))
            if len(empty):
                prompt = texts[int(empty[0])]
                problem = f"classes {name}: the model gives no embedding for the prompt {prompt!r}"
                raise ConfigError(problem, "classes", prompt)
            anchors = Anchors(classes.names, embeddings, np.array(classes.anchor_labels))
            self._embedded[name] = RegisteredClasses(name, anchors)

    def ready(self) -> bool:
        """Whether all sets are embedded."""
        return len(self._embedded) == len(self._sets)

    def get(self, name: str) -> RegisteredClasses:
        """Return a set; raise ApiError 404 `unknown_classes`, or 503 before warm-up."""
        self.source(name)
        if name not in self._embedded:
            raise Unavailable("not_ready", f"the class set {name} is not embedded yet; try again")
        return self._embedded[name]
