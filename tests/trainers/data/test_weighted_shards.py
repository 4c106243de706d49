"""Batches of shards joined with their tables: contents, order, ranks, workers, resuming."""

import hashlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from noisegate.pipeline.errors import ConfigError, ShardError, TableError
from noisegate.pipeline.runs.table import read_table
from noisegate.trainers.data import Batch, WeightedShards
from tests.errors import refused
from tests.fakes import pairs, write_tar
from tests.trainers import scored_shards as made
from tests.trainers.scored_shards import BAD, flat, open_tars, write_scored

ALL: dict[str, Any] = {
    "columns": ("osa_weight", "clean", "refined_label", "knn_consistency"),
    "image": made.with_noise,
    "text": made.lengths,
    "label": True,
    "fields": ("image_id",),
}


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards of eight samples, the third of each undecodable."""
    return write_scored(tmp_path_factory.mktemp("scored"))


def load(scored: Path, **settings: Any) -> WeightedShards:
    return WeightedShards(scored / "shards", **{"table": scored / "run", "batch_size": 4, "seed": 1, **settings})


def rows_of(batches: list[Batch]) -> list[int]:
    return [row for batch in batches for row in batch.rows.tolist()]


class TestContents:
    def test_a_mean_is_over_the_rows_that_are_seen(self, scored: Path) -> None:
        table = read_table(scored / "run").to_pylist()
        good = [row["osa_weight"] for row in table if row["status"] == "ok"]
        assert load(scored).mean("osa_weight") == pytest.approx(np.mean(good))
        heavy = [weight for weight in good if weight > 0.05]
        assert 0 < len(heavy) < len(good)
        assert load(scored, where="osa_weight > 0.05").mean("osa_weight") == pytest.approx(np.mean(heavy))

    def test_a_digest_is_of_the_rows_and_columns_that_are_seen(self, scored: Path) -> None:
        digests = [
            load(scored, **how).digest()
            for how in ({}, {"seed": 7, "batch_size": 2}, {"where": "osa_weight > 0.05"}, {"columns": ["osa_weight"]})
        ]
        assert digests[0] == digests[1]
        assert len(set(digests)) == 3

    def test_an_epoch_holds_what_tables_and_shards_say(self, scored: Path) -> None:
        table = read_table(scored / "run").to_pylist()
        batches = list(load(scored, **ALL))
        assert len(batches) == 7
        for batch in batches:
            for at, row in enumerate(batch.rows.tolist()):
                then = table[row]
                colour = made.COLOURS[row % 5]
                assert then["status"] == "ok" and then["key"] == batch.keys[at] == f"{row:04d}"
                assert batch.captions[at] == f"number {row} is {colour}"
                assert batch.texts[at].item() == len(batch.captions[at])
                assert batch.labels is not None and batch.labels[at].item() == row % 5
                assert batch.columns["osa_weight"][at].item() == then["osa_weight"]
                assert batch.columns["clean"][at].item() is then["clean"]
                refined = then["refined_label"]
                assert batch.columns["refined_label"][at].item() == (-1 if refined is None else refined)
                assert torch.isnan(batch.columns["knn_consistency"][at])
                assert batch.fields["image_id"][at] == row // 2
                assert batch.images is not None
                assert batch.images[at].mean((0, 1)) == pytest.approx(made.RGB[colour], abs=2)
        kinds = {name: str(column.dtype) for name, column in batches[0].columns.items()}
        assert kinds == {
            "osa_weight": "torch.float32",
            "clean": "torch.bool",
            "refined_label": "torch.int64",
            "knn_consistency": "torch.float32",
        }

    def test_only_what_is_asked_for_is_read(self, scored: Path) -> None:
        batch = next(iter(load(scored)))
        assert batch.images is None and batch.texts is None and batch.labels is None
        assert batch.captions == [] and batch.columns == {} and len(batch.keys) == 4

    def test_where_selects(self, scored: Path) -> None:
        table = read_table(scored / "run").to_pylist()
        rule = "similarity > 0.5 and shard in ('x-01', 'x-03') and label <> 2"
        expected = [
            row
            for row, then in enumerate(table)
            if then["status"] == "ok" and then["similarity"] > 0.5 and row // 8 in (1, 3) and then["label"] != 2
        ]
        data = load(scored, where=rule, sampler="sequential")
        assert rows_of(list(data)) == expected and data.selected_rows == len(expected) < 14

    def test_labels_from_a_column_leave_out_rows_without_one(self, scored: Path) -> None:
        data = load(scored, label="refined_label", sampler="sequential", image=made.pixels)
        for batch in data:
            assert batch.labels is not None
            assert batch.labels.tolist() == [(row % 8 + 1) % 5 for row in batch.rows.tolist()]
        assert data.selected_rows == 4 * 6

    def test_features(self, scored: Path) -> None:
        plain = next(iter(load(scored, image="npy", sampler="sequential")))
        half = next(iter(load(scored, image=made.halved, image_part="npy", sampler="sequential")))
        assert plain.images is not None and half.images is not None
        assert plain.images.shape == (4, 3, 4) and plain.images[:, 0, 0].tolist() == [0, 1, 3, 4]
        assert torch.equal(half.images * 2, plain.images)

    def test_several_captions(self, scored: Path) -> None:
        every = next(iter(load(scored, captions="json:captions:all", text=made.lengths, sampler="sequential")))
        assert every.caption_of is not None
        assert every.caption_of.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert every.captions[:3] == [f"{word} picture 0 is red" for word in ("one", "two", "three")]
        assert every.texts.shape == (12, 1)
        one = load(scored, captions="json:captions", sampler="sequential")
        epochs = [[text.split()[0] for batch in one for text in batch.captions] for _ in range(3)]
        again = load(scored, captions="json:captions", sampler="sequential")
        assert [text.split()[0] for batch in again for text in batch.captions] == epochs[0]
        assert epochs[0] != epochs[1] and all(set(words) == {"one", "two", "three"} for words in epochs)

    def test_the_pictures_digest_tells_equal_pictures(self, scored: Path) -> None:
        digests = read_table(scored / "run")["image_sha256"].to_pylist()
        for table in (scored / "run", None):
            for batch in load(scored, table=table, fields=("image_sha256", "nothing"), sampler="sequential"):
                assert batch.fields["image_sha256"] == [digests[row].hex() for row in batch.rows.tolist()]
                assert batch.fields["nothing"] == [None] * len(batch)

    def test_the_digest_of_features_is_that_of_their_bytes(self, scored: Path) -> None:
        for table in (scored / "run", None):
            batch = next(iter(load(scored, table=table, image="npy", fields=("image_sha256",), sampler="sequential")))
            parts = [dict(made.sample(int(key)))[f"{key}.npy"] for key in batch.keys]
            assert batch.fields["image_sha256"] == [hashlib.sha256(part).hexdigest() for part in parts]

    def test_m_per_class(self, scored: Path) -> None:
        for table in (scored / "run", None):
            data = load(scored, table=table, label=True, sampler="m_per_class:2", batch_size=6)
            for batch in data:
                assert batch.labels is not None
                assert sorted(np.bincount(batch.labels.numpy(), minlength=5).tolist()) == [0, 0, 2, 2, 2]
        with refused("label", False):
            load(scored, sampler="m_per_class:2")

    def test_whole_columns_by_row(self, scored: Path) -> None:
        data, table = load(scored), read_table(scored / "run")
        similarity = data.column("similarity")
        assert similarity.shape == (data.total_rows,) == (32,)
        np.testing.assert_array_equal(similarity, table["similarity"].to_numpy())
        assert data.ok_rows().tolist() == [row for row in range(32) if row % 8 != BAD]
        assert [(stem, rows[0], len(rows)) for stem, rows in data.row_keys()][1] == ("x-01", 8, 8)


class TestOrder:
    def test_without_a_table_it_is_the_same(self, scored: Path) -> None:
        joined, alone = load(scored, captions="read"), load(scored, table=None, captions="read")
        assert alone.total_rows == joined.total_rows == 32
        assert (alone.selected_rows, joined.selected_rows) == (32, 28)  # headers do not tell that pictures are none
        alone.set_selection(np.isin(np.arange(32), joined.ok_rows()))
        assert [flat(batch) for batch in alone] == [flat(batch) for batch in joined]

    def test_samples_that_cannot_be_decoded_are_dropped_without_a_table(self, scored: Path) -> None:
        data = load(scored, table=None, image=made.pixels, sampler="sequential")
        batches = list(data)
        assert rows_of(batches) == [row for row in range(32) if row % 8 != BAD]
        assert next(str(problem) for batch in batches for problem in batch.dropped) == (
            "x-00.tar: sample 0002: not a readable JPEG, PNG, WebP or GIF"
        )
        assert (data.dropped_samples, data.read_samples) == (4, 32)

    @pytest.mark.parametrize("sampler", ["window", "sequential", "m_per_class:2"])
    def test_ranks_together_see_the_global_batches(self, scored: Path, sampler: str) -> None:
        settings = ALL | {"sampler": sampler, "batch_size": 6}
        alone = list(load(scored, **settings))
        ranks = [list(load(scored, **settings, rank=rank, world=3)) for rank in range(3)]
        assert all(len(batches) == len(alone) for batches in ranks)
        for number, batch in enumerate(alone):
            parts = [batches[number] for batches in ranks]
            assert [row for part in parts for row in part.rows.tolist()] == batch.rows.tolist()
            images = [part.images for part in parts if part.images is not None]
            assert batch.images is not None and torch.equal(torch.cat(images), batch.images)

    def test_a_rank_without_a_row_gets_an_empty_batch_of_the_same_kind(self, scored: Path) -> None:
        last = [list(load(scored, **ALL, sampler="sequential", batch_size=9, rank=r, world=9))[-1] for r in range(9)]
        assert sorted(len(batch) for batch in last) == [0] * 8 + [1]
        for batch in last:
            assert batch.images is not None and batch.images.shape[1:] == (6, 6, 3)
            assert batch.texts.shape == (len(batch), 1) and len(batch.columns["clean"]) == len(batch)

    def test_workers_change_nothing_and_stay_for_the_next_epoch(self, scored: Path) -> None:
        with_workers = load(scored, **ALL, workers=2)
        alone = load(scored, **ALL)
        for _ in range(2):
            assert [flat(batch) for batch in with_workers] == [flat(batch) for batch in alone]
        next(iter(with_workers))  # an iteration that is left
        next(iter(alone))
        assert [flat(batch) for batch in with_workers] == [flat(batch) for batch in alone]
        with_workers.close()

    def test_the_next_epoch_follows(self, scored: Path) -> None:
        data = load(scored)
        first, second = rows_of(list(data)), rows_of(list(data))
        assert first != second and data.state_dict() == {"epoch": 2, "batch": 0}
        data.set_epoch(1)
        assert rows_of(list(data)) == second

    def test_others_transforms_are_seeded_and_the_trainings_generators_untouched(self, scored: Path) -> None:
        data = load(scored, image=made.with_global_noise)
        torch.manual_seed(3), random.seed(3), np.random.seed(3)  # noqa: NPY002
        expected = (torch.rand(2).tolist(), random.random(), np.random.rand())  # noqa: NPY002
        torch.manual_seed(3), random.seed(3), np.random.seed(3)  # noqa: NPY002
        first = list(data)
        assert (torch.rand(2).tolist(), random.random(), np.random.rand()) == expected  # noqa: NPY002
        other_size = {
            row: image
            for batch in load(scored, image=made.with_global_noise, batch_size=7)
            if batch.images is not None
            for row, image in zip(batch.rows.tolist(), batch.images, strict=True)
        }
        for batch in first:
            assert batch.images is not None
            for row, image in zip(batch.rows.tolist(), batch.images, strict=True):
                assert torch.equal(image, other_size[row])
        second = {row: image for batch in data for row, image in zip(batch.rows.tolist(), batch.images, strict=True)}
        assert not torch.equal(second[0], other_size[0])


class TestResume:
    def test_goes_on_with_exactly_the_next_batch_from_everywhere(self, scored: Path) -> None:
        data = load(scored, **ALL)
        batches, states = [], [data.state_dict()]
        for _ in range(2):
            for batch in data:
                batches.append(flat(batch))
                states.append(data.state_dict())
        assert states[7] == {"epoch": 0, "batch": 7} and states[8] == {"epoch": 1, "batch": 1}
        for done, state in enumerate(states[:-1]):
            resumed = data.view()
            resumed.load_state_dict(state)
            resumed.set_epoch(state["epoch"])  # as a loop does, which must not lose the place
            rest = []
            while len(rest) < len(batches) - done:
                rest += [flat(batch) for batch in resumed]
            assert rest == batches[done:]

    def test_with_workers_the_state_is_that_of_the_batch_in_hand(self, scored: Path) -> None:
        data = load(scored, workers=1)
        next(iter(data))
        assert data.state_dict() == {"epoch": 0, "batch": 1}  # though more are loaded ahead
        data.close()

    def test_a_state_of_other_data_is_refused(self, scored: Path) -> None:
        with refused("batch", 9):
            load(scored).load_state_dict({"epoch": 0, "batch": 9})


class TestSelection:
    def test_a_method_selects_by_row(self, scored: Path) -> None:
        data = load(scored, where="label < 4", drop_last=False)
        mask = np.arange(32) % 2 == 0
        data.set_selection(mask)
        expected = [row for row in range(0, 32, 2) if row % 8 != BAD and row % 5 < 4]
        assert sorted(rows_of(list(data))) == expected and data.selected_rows == len(expected)
        data.set_selection(None)
        assert len(rows_of(list(data))) > len(expected)

    def test_one_that_cannot_work_is_said_and_changes_nothing(self, scored: Path) -> None:
        data = load(scored)
        with refused("mask", (5,)):
            data.set_selection(np.ones(5, bool))
        with refused("where"):
            data.set_selection(np.zeros(32, bool))
        assert len(data) == 7 == len(list(data))

    def test_views_share_the_tables(self, scored: Path) -> None:
        data = load(scored)
        data.set_selection(np.arange(32) < 16)
        everything = data.view(sampler="sequential", image=made.pixels)
        assert everything._catalogue is data._catalogue
        assert rows_of(list(everything)) == data.ok_rows().tolist()
        assert data.view(where="label = 1")._catalogue is not data._catalogue


class TestMistakes:
    @pytest.mark.parametrize(
        ("settings", "setting", "value"),
        [
            ({"where": "label = 17"}, "where", "label = 17"),
            ({"batch_size": 64}, "batch_size", 64),
            ({"batch_size": 0}, "batch_size", 0),
            ({"batch_size": 5, "world": 2}, "batch_size", 5),
            ({"rank": 2, "world": 2}, "rank", 2),
            ({"columns": ("key",)}, "columns", "key"),
            ({"columns": ("osa_wieght",)}, "columns", "osa_wieght"),
            ({"label": "flags"}, "columns", "flags"),
            ({"table": None, "columns": ("clean",)}, "table", None),
            ({"table": None, "where": "label = 1"}, "where", "label = 1"),
            ({"sampler": "random"}, "sampler", "random"),
            ({"captions": "list"}, "captions", "list"),
            ({"image_part": "pth"}, "image_part", "pth"),
            ({"workers": -1}, "workers", -1),
            ({"window_shards": 0}, "window_shards", 0),
            ({"max_mismatch": 1.5}, "max_mismatch", 1.5),
        ],
    )
    def test_settings(self, scored: Path, settings: dict[str, Any], setting: str, value: object) -> None:
        with refused(setting, value) as caught:
            load(scored, **settings)
        assert "\n" not in str(caught.value)

    def test_a_rule_over_an_unknown_column(self, scored: Path) -> None:
        with pytest.raises(ConfigError, match="unknown column 'lable'; did you mean label"):
            load(scored, where="lable = 1")

    def test_pictures_of_different_sizes(self, scored: Path) -> None:
        with refused("image"):
            list(load(scored, image=unresized))

    def test_an_unfinished_run_and_no_run(self, scored: Path, tmp_path: Path) -> None:
        (tmp_path / "half").mkdir()
        run = (scored / "run" / "_run.json").read_text().replace('"finished": true', '"finished": false')
        (tmp_path / "half" / "_run.json").write_text(run)
        with refused("table", str(tmp_path / "half"), TableError):
            load(scored, table=tmp_path / "half")
        with refused("run", tmp_path, TableError):
            load(scored, table=tmp_path)

    def test_a_table_of_other_shards(self, scored: Path, tmp_path: Path) -> None:
        write_tar(tmp_path / "y-00.tar", pairs(3))
        with refused("shards", str(tmp_path / "y-00.tar"), TableError):
            WeightedShards(tmp_path / "y-00.tar", scored / "run", batch_size=2)

    def test_a_shard_that_is_gone(self, tmp_path: Path) -> None:
        write_scored(tmp_path, 2, 4)
        (tmp_path / "shards" / "x-01.tar").unlink()
        with refused("shards", str(tmp_path / "shards" / "x-01.tar"), ShardError):
            WeightedShards(None, tmp_path / "run", batch_size=2)
        some = WeightedShards(tmp_path / "shards", tmp_path / "run", batch_size=2)
        assert some.total_rows == 4
        assert some.notes == [f"1 of the 2 shards of run {tmp_path / 'run'} are not used"]

    def test_shards_without_any_caption(self, tmp_path: Path) -> None:
        write_tar(tmp_path / "x.tar", [(name, data) for name, data in pairs(4) if name.endswith("png")])
        with refused("shards", tmp_path / "x.tar"):
            WeightedShards(tmp_path / "x.tar", None, batch_size=2, captions="read")
        write_tar(tmp_path / "x.tar", [*pairs(4)[::2], ("00009.json", b"{}")])
        with refused("shards", tmp_path / "x.tar", ShardError) as caught:
            list(WeightedShards(tmp_path / "x.tar", None, batch_size=1, captions="read"))
        assert "1 of the 1 samples read so far (100.00%) cannot be used: x.tar: sample" in str(caught.value)


def unresized(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image).copy())


def test_open_files_are_bounded_however_many_shards(tmp_path: Path) -> None:
    for i in range(60):
        write_tar(tmp_path / f"x-{i:03d}.tar", pairs(2, i))
    data = WeightedShards(tmp_path, None, batch_size=3, window_shards=2, captions="read", cache=tmp_path / "cache")
    before = open_tars(tmp_path)
    opened = [open_tars(tmp_path) - before for _ in data]
    assert len(opened) == 40 and min(opened) >= 1 and max(opened) <= 4  # two windows of two shards
    list(data.view())  # another of its own, never closed
    data.close()
    assert open_tars(tmp_path) == before


def test_the_temporary_folder_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(tmp_path / "shards" / "x.tar", pairs(4))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    data = WeightedShards(tmp_path / "shards", None, batch_size=2)
    list(data)
    assert len(list((tmp_path / "tmp").glob("noisegate-*/*.index"))) == 1
    view = data.view()
    del data
    assert rows_of(list(view))
    del view
    assert not list((tmp_path / "tmp").glob("noisegate-*"))
