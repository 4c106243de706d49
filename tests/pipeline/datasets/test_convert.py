"""Converting as a job: whole shards, the same bytes, going on, bad samples as rows, and messages that name the file."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from noisegate.pipeline.datasets.convert.job import convert
from noisegate.pipeline.datasets.convert.kinds import KINDS, LAYOUTS
from noisegate.pipeline.datasets.convert.source import array_part, picture_file
from noisegate.pipeline.errors import MismatchError
from noisegate.pipeline.shards.decode import BadSample
from tests.commands import FAKE, called, run_noisegate
from tests.errors import refused
from tests.fakes import picture
from tests.pipeline.datasets.converting import COLOURS, converted, features, jpeg, read_all, records, write_files


@pytest.fixture
def food(tmp_path: Path) -> Path:
    """Food-101N's folder with 7 pictures, of which one is cut to nothing and one is missing."""
    names = [f"{dish}/{i}.jpg" for dish in ("apple_pie", "baklava") for i in range(4)]
    files: dict[str, bytes | str] = {f"images/{name}": jpeg("red") + bytes(i) for i, name in enumerate(names[:-1])}
    files["images/apple_pie/2.jpg"] = b""
    files["meta/imagelist.tsv"] = "class_name/key\n" + "\n".join(names) + "\n"
    files["meta/classes.txt"] = "class_name\napple_pie\nbaklava\n"
    return write_files(tmp_path / "food", files)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "_lock"}


# --- the job ---------------------------------------------------------------------------------------------------------


def test_bad_pictures_cost_a_row_each_and_no_other_key(food: Path, tmp_path: Path) -> None:
    found, samples = converted("food101n", food, tmp_path / "out")
    assert (found.read, found.samples, found.bad) == (8, 6, {"bad_image": 1, "no_image": 1})
    assert [raw.key for raw in samples] == [f"train-{i:07d}" for i in (0, 1, 3, 4, 5, 6)]
    listed = [json.loads(line) for line in (tmp_path / "out" / "_bad_samples.jsonl").read_text().splitlines()]
    assert [(row["number"], row["key"], row["from"], row["status"], row["error"]) for row in listed] == [
        (2, "train-0000002", "apple_pie/2.jpg", "bad_image", "0 bytes"),
        (7, "train-0000007", "baklava/3.jpg", "no_image", "3.jpg is not there"),
    ]


def test_picture_files_keep_their_bytes(food: Path, tmp_path: Path) -> None:
    _, samples = converted("food101n", food, tmp_path / "out")
    assert samples[3].parts["jpg"] == (food / "images/baklava/0.jpg").read_bytes()
    assert samples[3].parts["cls"] == b"1"
    assert samples[3].names == ["jpg", "cls", "json"]


def test_shards_end_at_samples_or_bytes(food: Path, tmp_path: Path) -> None:
    by_samples = convert("food101n", food, tmp_path / "a", shard_samples=4)
    assert [Path(path).name for path in by_samples.shards] == ["food101n-train-000000.tar", "food101n-train-000001.tar"]
    record = json.loads((tmp_path / "a" / "_convert.json").read_text())
    assert [shard["samples"] for shard in record["shards"]] == [4, 2]
    for shard in record["shards"]:
        data = (tmp_path / "a" / shard["name"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (shard["bytes"], shard["sha256"])
    by_size = convert("food101n", food, tmp_path / "b", shard_bytes=1)
    assert len(by_size.shards) == 6, "a sample larger than a shard has one of its own"
    assert [raw.key for raw in read_all(by_size)] == [raw.key for raw in read_all(by_samples)]


def test_the_same_source_gives_the_same_bytes(food: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        convert("food101n", food, tmp_path / name, shard_samples=4)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


class _Stopped(Exception):
    pass


@pytest.mark.parametrize("when", range(1, 10))
def test_a_stopped_job_goes_on_to_the_same_bytes(food: Path, tmp_path: Path, when: int) -> None:
    convert("food101n", food, tmp_path / "whole", shard_samples=2)
    calls = 0

    def stop(done: int, count: int, shard: str | None) -> None:
        nonlocal calls
        calls += 1
        if calls == when:
            raise _Stopped

    with pytest.raises(_Stopped):
        convert("food101n", food, tmp_path / "out", shard_samples=2, progress=stop)
    assert not list((tmp_path / "out").glob(".*.tmp"))
    found = convert("food101n", food, tmp_path / "out", shard_samples=2)
    assert not found.already
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


def test_a_whole_folder_stays_as_it_is(food: Path, tmp_path: Path) -> None:
    first = convert("food101n", food, tmp_path / "out")
    before = bytes_of(tmp_path / "out")
    (food / "images/baklava/1.jpg").unlink()
    again = convert("food101n", food, tmp_path / "out")
    assert again.already
    assert (again.samples, again.bad, again.shards) == (first.samples, first.bad, first.shards)
    assert bytes_of(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("shard_samples", 3, "shard_samples 3 is not the 1000 with which"),
        ("check", "full", "check 'full' is not the 'header' with which"),
    ],
)
def test_other_settings_are_refused(food: Path, tmp_path: Path, setting: str, value: Any, words: str) -> None:
    convert("food101n", food, tmp_path / "out")
    with refused(setting, value, MismatchError) as caught:
        convert("food101n", food, tmp_path / "out", **{setting: value})
    assert words in str(caught.value)


def test_another_list_is_refused(food: Path, tmp_path: Path) -> None:
    convert("food101n", food, tmp_path / "out")
    path = food / "meta/imagelist.tsv"
    path.write_text(path.read_text().replace("apple_pie/0", "apple_pie/3"))
    with refused("files", error=MismatchError):
        convert("food101n", food, tmp_path / "out")


def test_a_damaged_folder_is_refused(food: Path, tmp_path: Path) -> None:
    found = convert("food101n", food, tmp_path / "out")
    Path(found.shards[0]).write_bytes(b"cut")
    with refused("out", tmp_path / "out", MismatchError):
        convert("food101n", food, tmp_path / "out")
    (tmp_path / "out" / "_convert.json").write_text("{")
    with refused("out", tmp_path / "out"):
        convert("food101n", food, tmp_path / "out")


def test_shards_of_others_are_not_mixed_with(food: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "out", {"other.tar": b""})
    with refused("out", tmp_path / "out"):
        convert("food101n", food, tmp_path / "out")
    with refused("out", food):
        convert("food101n", food, food)


def test_a_wrong_folder_of_images_is_found_early(tmp_path: Path) -> None:
    names = [f"apple_pie/{i}.jpg" for i in range(2_000)]
    files = {"meta/imagelist.tsv": "\n".join(names), "meta/classes.txt": "apple_pie\n", "images/readme.txt": ""}
    write_files(tmp_path / "food", files)
    with refused("source") as caught:
        convert("food101n", tmp_path / "food", tmp_path / "out")
    assert str(caught.value).startswith("the first 50 of 2,000 samples cannot be read, such as apple_pie/0.jpg")
    (tmp_path / "food/meta/imagelist.tsv").write_text("apple_pie/0.jpg\n")
    with refused("source"):
        convert("food101n", tmp_path / "food", tmp_path / "out2")
    assert not list(tmp_path.glob("out*/*.tar"))


def test_full_checking_finds_a_cut_picture(food: Path, tmp_path: Path) -> None:
    whole = picture((7, 8, 9), size=(64, 64), kind="JPEG")
    (food / "images/apple_pie/1.jpg").write_bytes(whole[:-40])
    assert convert("food101n", food, tmp_path / "header").samples == 6
    assert convert("food101n", food, tmp_path / "full", check="full").bad == {"bad_image": 2, "no_image": 1}


# --- parts -----------------------------------------------------------------------------------------------------------


def test_a_picture_is_named_by_its_suffix_or_its_content(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.JPEG": jpeg(), "b.img": picture(kind="PNG"), "c": picture(kind="WEBP"), "d.gif": b""})
    assert [list(picture_file(tmp_path / name)) for name in ("a.JPEG", "b.img", "c")] == [["jpeg"], ["png"], ["webp"]]
    (tmp_path / "d.gif").write_bytes(picture(kind="GIF"))
    with pytest.raises(BadSample, match="a GIF file"):
        picture_file(tmp_path / "d.gif")
    with pytest.raises(BadSample, match="cannot be read"):
        picture_file(tmp_path)


def test_arrays_are_written_without_pickle(tmp_path: Path) -> None:
    rows = np.arange(6, dtype=np.float64).reshape(2, 3)
    for half, kind in ((False, np.float32), (True, np.float16)):
        (tmp_path / "x.npy").write_bytes(array_part(rows, half))
        back = np.load(tmp_path / "x.npy", allow_pickle=False)
        assert back.dtype == kind
        np.testing.assert_array_equal(back, rows)
    with pytest.raises(BadSample, match="not finite"):
        array_part(np.array([np.nan]))
    with pytest.raises(BadSample, match="too large for float16"):
        array_part(np.array([1e6]), float16=True)


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        ("food101n", "split", "middle"),
        ("food101n", "check", "half"),
        ("food101n", "classes", 5),
        ("food101n", "colour", 5),
        ("food101n", "shard_samples", 0),
        ("food101n", "shard_bytes", 0),
        ("coco", "rows", "pixels"),
        ("coco", "layout", "table"),
        ("coco", "noise_file", Path("nowhere.npy")),
    ],
)
def test_mistakes_name_the_setting(food: Path, tmp_path: Path, kind: str, setting: str, value: Any) -> None:
    with refused(setting, value):
        convert(kind, food, tmp_path / "out", **{setting: value})


def test_an_unknown_kind_is_answered_with_the_known_ones(food: Path, tmp_path: Path) -> None:
    with refused("kind", "imagenet") as caught:
        convert("imagenet", food, tmp_path / "out")
    assert ", ".join(KINDS) in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_download_is_named(kind: str, tmp_path: Path) -> None:
    for split in KINDS[kind].splits:
        with refused("source", tmp_path / "nowhere") as wrong:
            convert(kind, tmp_path / "nowhere", tmp_path / "out", split=split)
        assert "nowhere" in str(wrong.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_folder_is_answered_with_what_is_expected(kind: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with refused("source", tmp_path / "empty") as wrong:
        convert(kind, tmp_path / "empty", tmp_path / "out")
    assert KINDS[kind].expected in str(wrong.value)
    own = KINDS[kind].reader.startswith("own_data:")  # it is the user's: nobody need be told where it comes from
    assert own or KINDS[kind].source in str(wrong.value)


def test_a_kind_is_found_however_it_is_written(food: Path, tmp_path: Path) -> None:
    assert convert("Food-101N", food, tmp_path / "out").kind == "food101n"


def test_every_layout_belongs_to_a_kind() -> None:
    assert {layout for kind in KINDS.values() for layout in kind.layouts} == set(LAYOUTS)


# --- the command, and what follows -----------------------------------------------------------------------------------


def test_the_command_prints_what_it_made(food: Path, tmp_path: Path) -> None:
    done = called("convert", "food101n", "food", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("food101n, train", "6 of 8", "bad_image 1, no_image 1", "out/*.tar"):
        assert words in done.stdout
    assert "[8/8] food101n-train-000000.tar" in done.stderr
    again = called("convert", "food101n", "food", "--out", "out", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["already"] is True
    wrong = called("convert", "food101n", "nowhere", "--out", "out2", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "source nowhere: no such folder" in wrong.stderr


def test_the_help_lists_every_kind(tmp_path: Path) -> None:
    shown = run_noisegate("convert", "--help", cwd=tmp_path).stdout
    assert all(f" {kind} (" in shown for kind in KINDS)
    assert "info/train_filelist_google.txt" in shown


def test_captions_go_through_annotate_and_evaluate(tmp_path: Path) -> None:
    """Pictures with captions and a published noise file: the weights tell the moved captions from the others."""
    names = list(COLOURS)
    ids = [f"{i}" for i in range(8)]
    captions = [f"number {j} of a {names[i % 4]} thing" for i in range(8) for j in range(5)]
    files: dict[str, bytes | str] = {f"images/{name}.jpg": jpeg(names[i % 4]) for i, name in enumerate(ids)}
    files |= {"train_ids.txt": "\n".join(ids), "train_caps.txt": "\n".join(captions)}
    write_files(tmp_path / "CC", files)
    index = np.arange(40) // 5
    index[[3, 11, 20, 38]] = index[[11, 20, 38, 3]]
    np.save(tmp_path / "noise.npy", index)
    found = convert("cc120k", tmp_path / "CC", tmp_path / "out", noise_file=tmp_path / "noise.npy", shard_samples=16)
    assert [i for i, row in enumerate(records(found)) if row["noisy"]] == [3, 11, 20, 38]
    for arguments in (
        ("annotate", "out/*.tar", "--out", "tables", *FAKE, "--beta", "fixed:0.4", "--workers", "0"),
        ("evaluate", "tables", "--json"),
    ):
        done = called(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    judged = json.loads(done.stdout)
    assert (judged["samples"], judged["noisy"]) == (40, 4)
    assert judged["clean_auroc"] == 1.0


def test_features_are_delivered_to_trainers_as_they_were(tmp_path: Path) -> None:
    from noisegate.trainers.data import WeightedShards

    regions = features(tmp_path / "f30k_precomp", 4, [f"caption {i}" for i in range(20)])
    found = convert("flickr30k", tmp_path / "f30k_precomp", tmp_path / "out", shard_samples=7)
    data = WeightedShards(
        found.shards,
        None,
        batch_size=20,
        seed=0,
        image="npy",
        text=lambda texts: texts,
        columns=(),
        sampler="sequential",
        fields=("image_id",),
    )
    (batch,) = list(data)
    data.close()
    np.testing.assert_array_equal(batch.images.numpy(), regions[np.arange(20) // 5])
    assert batch.captions == [f"caption {i}" for i in range(20)]
