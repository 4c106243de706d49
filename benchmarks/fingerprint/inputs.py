"""The fixed inputs, below the current folder; each is made when it is first asked for."""

import io
import json
import tarfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .product import noisegate

SCENES, SHARDS, SIDE = 240, 3, 64
Member = tuple[str, bytes]


def make(*words: object) -> None:
    """Run a command that must work."""
    done = noisegate(*words)
    if done.code:
        raise RuntimeError(f"noisegate {' '.join(map(str, words))} ended with {done.code}: {done.err[-2000:]}")


@cache
def clean() -> Path:
    """Drawn scenes with true captions and labels."""
    make("scenes", "clean", "--count", SCENES, "--shards", SHARDS, "--size", SIDE, "--seed", 3)
    return Path("clean")


def classes() -> Path:
    """The names of the scenes' classes."""
    return clean() / "classes.txt"


@cache
def held_out() -> Path:
    """Other scenes, to measure trained networks on."""
    make("scenes", "held", "--count", 40, "--shards", 1, "--size", SIDE, "--seed", 4)
    return Path("held")


@cache
def noisy() -> Path:
    """The scenes with 40 % of the captions shuffled."""
    make("noise", f"{clean()}/*.tar", "--rate", 0.4, "--seed", 7, "--out", "noisy")
    return Path("noisy")


@cache
def wrong_labels() -> Path:
    """The scenes with 30 % of the labels replaced by other classes."""
    make("noise", f"{clean()}/*.tar", "--protocol", "symmetric", "--rate", 0.3, "--classes", classes(),
         "--out", "wrong-labels")  # fmt: skip
    return Path("wrong-labels")


@cache
def pairs_run() -> Path:
    """Tables of the shuffled captions."""
    make("annotate", f"{noisy()}/*.tar", "--out", "pairs-run", "--workers", 0, "--quiet")
    return Path("pairs-run")


@cache
def labels_run() -> Path:
    """Tables of captions and wrong labels, with class anchors and neighbourhoods."""
    make("annotate", f"{wrong_labels()}/*.tar", "--out", "labels-run", "--task", "pairs,labels", "--classes", classes(),
         "--neighbourhood", "--workers", 0, "--quiet")  # fmt: skip
    return Path("labels-run")


@cache
def clean_run() -> Path:
    """Tables of the scenes as drawn."""
    make("annotate", f"{clean()}/*.tar", "--out", "clean-run", "--workers", 0, "--quiet", "--beta", "fixed:0.5")
    return Path("clean-run")


TOY = '''
import numpy as np

WORDS = ("red", "green", "blue")


class Toy:
    """Pictures by their mean colour, texts by their colour words; some texts on purpose without a usable embedding."""

    identity = "toy-1"

    def encode_images(self, images):
        return np.stack([np.asarray(i.resize((4, 4)), np.float32).mean((0, 1)) + 1 for i in images])

    def encode_texts(self, texts):
        return np.stack([self.encode_text(text) for text in texts])

    def encode_text(self, text):
        if "nan" in text or "zero" in text:
            return np.full(3, np.nan if "nan" in text else 0, np.float32)
        return np.array([50 + 200 * (word in text) + len(text) % 7 for word in WORDS], np.float32)


class Wide(Toy):
    """Texts in another space than pictures."""

    identity = "toy-2"

    def encode_text(self, text):
        return np.concatenate([super().encode_text(text), np.float32([1, len(text)])])
'''


@cache
def toy() -> str:
    """A model of the user's own, as `--model` takes it."""
    Path("toy_model.py").write_text(TOY, encoding="utf-8")
    return "python:toy_model:Toy"


@cache
def uids() -> Path:
    """A shard whose samples have DataComp's uids, some of them in their keys."""
    members: list[Member] = []
    colours = {"red": (200, 10, 10), "green": (10, 200, 10), "blue": (10, 10, 200)}
    for i in range(45):
        word, colour = list(colours.items())[i % 3]
        shown = "blue" if i % 5 == 0 else word
        key = f"{i:032x}" if i % 2 else f"{i:05d}"
        members += [(f"{key}.png", picture(colour)), (f"{key}.txt", f"number {i} is {shown}".encode())]
        members += [(f"{key}.json", json.dumps({"uid": f"{7 * i:032x}"}).encode())]
    return write_tar(Path("uids.tar"), members)


@cache
def toy_run() -> Path:
    """Tables by a model of the user's own."""
    make("annotate", uids(), "--model", toy(), "--out", "toy-run", "--workers", 0, "--quiet", "--beta", "fixed:0.5")
    return Path("toy-run")


def picture(
    colour: object = (222, 36, 36), size: tuple[int, int] = (24, 20), kind: str = "PNG", mode: str = "RGB"
) -> bytes:
    """An image file of one colour."""
    data = io.BytesIO()
    Image.new(mode, size, colour).save(data, kind)  # type: ignore[arg-type]
    return data.getvalue()


def array(values: NDArray[np.generic]) -> bytes:
    """A .npy file."""
    data = io.BytesIO()
    np.save(data, values)
    return data.getvalue()


def write_tar(path: Path, members: Iterable[Member]) -> Path:
    """A tar of these members, without times or owners."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


@cache
def features() -> Path:
    """Region features as part npy with captions and labels, for targets that read no pictures."""
    rng = np.random.default_rng(11)
    for stem, count in (("train", 64), ("held", 24)):
        members: list[Member] = []
        for i in range(count):
            kind = i % 4
            regions = rng.standard_normal((5, 6)).astype(np.float32) + kind
            members += [
                (f"{i:04d}.npy", array(regions)),
                (f"{i:04d}.txt", f"a {'big ' * (i % 3)}thing number {kind}".encode()),
            ]
            members += [
                (f"{i:04d}.cls", str(kind).encode()),
                (f"{i:04d}.json", json.dumps({"image_id": str(i)}).encode()),
            ]
        write_tar(Path("features") / f"{stem}.tar", members)
    return Path("features")
