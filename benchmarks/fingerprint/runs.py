"""Scoring: drawn scenes, wrong captions, wrong labels, embeddings from files, and how runs are looked at."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from . import inputs
from .recorder import Recorder

__all__ = ["record_arrays", "record_exports", "record_labels", "record_looks", "record_pairs"]

QUIET = ("--workers", 0, "--quiet", "--json")


def record_pairs(recorder: Recorder) -> None:
    """Scenes, shuffled captions, and their scores by every way."""
    recorder.command("pairs/scenes", "scenes", "hard", "--count", 12, "--shards", 2, "--hard-negatives", "--json")
    recorder.folder("pairs/scenes", Path("hard"))
    recorder.folder("pairs/clean", inputs.clean())
    recorder.folder("pairs/noisy", inputs.noisy())
    noises: dict[str, tuple[object, ...]] = {
        "deranged": ("--protocol", "shuffle-captions", "--rate", 0.5, "--derange"),
        "images": ("--protocol", "shuffle-images", "--rate", 0.3),
    }
    for name, words in noises.items():
        recorder.command(f"pairs/noise-{name}", "noise", f"{inputs.clean()}/*.tar", *words, "--out", name, "--json")
        recorder.folder(f"pairs/noise-{name}", Path(name))
    shards = f"{inputs.noisy()}/*.tar"
    recorder.command("pairs/calibrate", "calibrate", "--json")
    recorder.command("pairs/calibrate-data", "calibrate", shards, "--samples", 100, "--workers", 0, "--json")
    recorder.command("pairs/annotate", "annotate", shards, "--out", "pairs-a", *QUIET)
    recorder.run("pairs/annotate", Path("pairs-a"))
    recorder.command("pairs/again", "annotate", shards, "--out", "pairs-a", *QUIET)
    variants: dict[str, tuple[object, ...]] = {
        "neighbourhood": ("--neighbourhood", "--beta", "random_inputs", "--seed", 1),
        "drop": ("--drop-embeddings", "--beta", "fixed:0.5", "--text-field", "caption", "--batch-size", 7),
        "draft": ("--draft", "--beta", "shuffled_mean"),
        "other-settings": ("--model", "embedded", "--beta", "intersection", "--max-text-chars", 60),
    }
    for name, words in variants.items():
        recorder.command(f"pairs/{name}", "annotate", shards, "--out", f"pairs-{name}", *words, *QUIET)
        recorder.run(f"pairs/{name}", Path(f"pairs-{name}"))
    rescored: dict[str, tuple[object, ...]] = {
        "rescore-beta": ("--beta", "fixed:0.6"),
        "rescore-methods": ("--with", "lnc,crcl,gsl", "--temperature", 0.05),
        "rescore-neighbours": ("--neighbourhood", "--k", 7, "--seed", 5),
        "rescore-ivf": ("--task", "pairs,labels", "--neighbour-index", "ivf"),
    }
    for name, words in rescored.items():
        shutil.copytree("pairs-a", name)
        recorder.command(f"pairs/{name}", "rescore", name, *words, "--json")
        recorder.run(f"pairs/{name}", Path(name))
    recorder.command("pairs/adapt", "adapt", shards, "--out", "adapted", "--pairs", 60, "--steps", 2, "--batch-size", 16,
                     *QUIET)  # fmt: skip
    recorder.folder("pairs/adapt", Path("adapted"))
    picture = Path("one.png")
    picture.write_bytes(inputs.picture())
    score = ("score", picture, "a red circle", "a blue square")
    recorder.command("pairs/score", *score, "--json")
    recorder.command("pairs/score-run", *score, "--run", "pairs-a")
    Path("list.csv").write_text("image,text\none.png,a red circle\nmissing.png,a cat\n", encoding="utf-8")
    recorder.command("pairs/score-list", "score", "--pairs", "list.csv", "--run", "pairs-a", "--json")


def record_labels(recorder: Recorder) -> None:
    """Wrong labels by every protocol, and their scores."""
    shards, names = f"{inputs.clean()}/*.tar", inputs.classes()
    count = len(names.read_text().splitlines())
    rng = np.random.default_rng(5)
    np.save("posteriors.npy", rng.dirichlet(np.ones(count), inputs.SCENES))
    Path("map.json").write_text(json.dumps({"0": 1, "1": 0, "2": 3}), encoding="utf-8")
    instance = ("--protocol", "instance-dependent")
    protocols: dict[str, tuple[object, ...]] = {
        "symmetric": ("--rate", 0.4, "--inclusive", "--classes", names),
        "asymmetric": ("--rate", 0.4, "--class-map", "next", "--classes", count),
        "asymmetric-map": ("--protocol", "asymmetric", "--rate", 0.5, "--class-map", "map.json", "--classes", count),
        "instance-dependent": ("--rate", 0.3, "--classes", count),
        "instance-features": (*instance, "--rate", 0.3, "--features", inputs.clean_run(), "--classes", count),
        "pmd": ("--kind", "II", "--posteriors", "posteriors.npy", "--rate", 0.35),
    }
    for name, words in protocols.items():
        protocol = () if "--protocol" in words else ("--protocol", name)
        out = f"noise-{name}"
        recorder.command(f"labels/{out}", "noise", shards, *protocol, *words, "--seed", 2, "--out", out, "--json")
        recorder.folder(f"labels/{out}", Path(out))
    wrong = f"{inputs.wrong_labels()}/*.tar"
    Path("sentences.json").write_text(
        json.dumps({name: [f"a picture of a {name}", f"one {name}"] for name in names.read_text().splitlines()}),
        encoding="utf-8",
    )
    variants: dict[str, tuple[object, ...]] = {
        "anchors": ("--task", "labels", "--classes", names),
        "sentences": ("--task", "labels", "--classes", "sentences.json", "--k", 9),
        "no-classes": ("--task", "labels"),
        "both": ("--task", "pairs,labels", "--classes", names, "--neighbourhood"),
    }
    for name, words in variants.items():
        recorder.command(f"labels/{name}", "annotate", wrong, "--out", f"labels-{name}", *words, *QUIET)
        recorder.run(f"labels/{name}", Path(f"labels-{name}"))


def record_arrays(recorder: Recorder) -> None:
    """`score-embeddings` on seeded arrays: pairs, labels that are repaired, and two spaces."""
    rng = np.random.default_rng(17)
    images = rng.standard_normal((600, 24)).astype(np.float32)
    texts = images + 0.6 * rng.standard_normal((600, 24)).astype(np.float32)
    texts[:180] = texts[rng.permutation(180)]
    truth = rng.integers(0, 3, 1_200)
    centres = 2.0 * rng.standard_normal((3, 24))
    pictures = (centres[truth] + rng.standard_normal((1_200, 24))).astype(np.float32)
    given = np.where(rng.random(1_200) < 0.3, (truth + rng.integers(1, 3, 1_200)) % 3, truth)
    for name, values in {
        "images": images, "texts": texts, "narrow": texts @ rng.standard_normal((24, 10)).astype(np.float32),
        "pictures": pictures, "given": given, "anchors": centres.astype(np.float32), "anchor-labels": np.arange(3),
        "broken": np.where(np.arange(600)[:, None] % 100 == 0, np.nan, images),
    }.items():  # fmt: skip
        np.save(f"{name}.npy", values)
    anchors = ("--anchors", "anchors.npy", "--anchor-labels", "anchor-labels.npy")
    for name, words in {
        "pairs": ("--images", "images.npy", "--texts", "texts.npy"),
        "neighbourhood": ("--images", "images.npy", "--texts", "texts.npy", "--neighbourhood", "--k", 8),
        "widths": ("--images", "images.npy", "--texts", "narrow.npy"),
        "separate": ("--images", "images.npy", "--texts", "texts.npy", "--separate-spaces"),
        "labels": ("--images", "pictures.npy", "--labels", "given.npy"),
        "anchors": ("--images", "pictures.npy", "--labels", "given.npy", *anchors),
        "blocks": ("--images", "pictures.npy", "--labels", "given.npy", "--neighbour-memory", "1MB"),
        "processes": ("--images", "pictures.npy", "--labels", "given.npy", "--neighbour-workers", 2),
        "ivf-pq": ("--images", "pictures.npy", "--labels", "given.npy", "--neighbour-index", "ivf-pq"),
        "broken": ("--images", "broken.npy", "--texts", "texts.npy", "--beta", "fixed:0.4"),
    }.items():
        out = Path(f"arrays-{name}")
        recorder.command(f"arrays/{name}", "score-embeddings", *words, "--out", out, "--json")
        recorder.run(f"arrays/{name}", out)
    recorder.command("arrays/verify", "verify", "arrays-pairs", "--json")
    recorder.command("arrays/show", "show", "arrays-anchors")


def record_looks(recorder: Recorder) -> None:
    """Commands that read a finished run: show, report, verify, compare, evaluate; plan and doctor by their keys alone."""
    pairs, labels = inputs.pairs_run(), inputs.labels_run()
    shutil.copytree(pairs, "other-beta")
    inputs.make("rescore", "other-beta", "--beta", "fixed:0.2")
    truth = pq.read_table(inputs.noisy() / "noise.parquet", columns=["key", "noisy"])
    pq.write_table(truth, "truth.parquet")
    for name, run in (("pairs", pairs), ("labels", labels)):
        recorder.command(f"looks/{name}/show", "show", run, "--top", 7)
        recorder.command(f"looks/{name}/show-json", "show", run, "--json")
        recorder.command(f"looks/{name}/evaluate", "evaluate", run, "--json")
        recorder.command(f"looks/{name}/verify", "verify", run, "--samples", 20, "--quiet", "--json")
        recorder.command(f"looks/{name}/report", "report", run, "--out", f"{name}.html", "--gallery", 6)
        record_page(recorder, f"looks/{name}/report", Path(f"{name}.html"))
    recorder.command("looks/evaluate-truth", "evaluate", pairs, "--truth", "truth.parquet")
    recorder.command("looks/evaluate-pairs", "evaluate", labels, "--what", "pairs", "--json")
    recorder.command("looks/compare", "compare", pairs, "other-beta", "--top", 4, "--json")
    recorder.command("looks/compare-others", "compare", pairs, labels, "--top", 4)
    shutil.copytree(pairs, "spoilt")
    first = min(Path("spoilt").glob("*.parquet"))
    table = pq.read_table(first)
    weights = table["osa_weight"].to_numpy().copy()
    weights[:5] += 0.01
    place = table.column_names.index("osa_weight")
    pq.write_table(table.set_column(place, table.schema.field(place), [weights]), first)
    recorder.command("looks/verify-spoilt", "verify", "spoilt", "--no-rescore", "--quiet", "--json")
    for name, words in {
        "plan": ("plan", f"{inputs.noisy()}/*.tar", "--seconds", 0.5, "--workers", 0, "--json"),
        "doctor": ("doctor", "--json"),
    }.items():
        recorder.keys(f"looks/{name}", *words)


def record_page(recorder: Recorder, name: str, page: Path) -> None:
    """An HTML page by its sections."""
    sections = page.read_text(encoding="utf-8").split("<section")
    for number, section in enumerate(sections):
        recorder.text(f"{name}/section {number:02d}", section)


def record_exports(recorder: Recorder) -> None:
    """Every format of `export`."""
    pairs, labels = inputs.pairs_run(), inputs.labels_run()
    wanted: Iterable[tuple[str, Path, str, tuple[object, ...]]] = [
        ("keys", pairs, "keys.txt", ()),
        ("keys", pairs, "keys-shard.txt", ("--with-shard", "--where", "osa_weight > 0 and key like '%1%'")),
        ("parquet", labels, "flat.parquet", ()),
        ("csv", pairs, "flat.csv", ("--columns", "shard,key,caption,osa_weight", "--where", "status = 'ok'")),
        ("jsonl", labels, "flat.jsonl", ("--where", "0.1 < label_quality < 0.99 or label in (1, 2)")),
        ("shards", pairs, "shards", ("--where", "clean_probability > 0.9", "--add-columns", "w=osa_weight,similarity")),
        ("datasets", labels, "datasets", ("--where", "clean", "--columns", "caption,label,osa_weight")),
        ("cleanlab", labels, "cleanlab.csv", ()),
        ("datacomp", inputs.toy_run(), "datacomp.npy", ("--where", "similarity > 0.4")),
    ]
    for kind, run, out, words in wanted:
        name = f"exports/{out}"
        recorder.command(name, "export", run, "--as", kind, "--out", f"export-{out}", *words, "--json")
        path = Path(f"export-{out}")
        if path.is_dir():
            recorder.folder(f"{name}/files", path)
        elif path.exists():
            recorder.file(f"{name}/file", path)
    recorder.command("exports/bad-rule", "export", pairs, "--as", "keys", "--out", "x.txt", "--where", "osa_weigth > 0")
