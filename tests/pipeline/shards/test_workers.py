import hashlib
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.shards import workers
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.pipeline.shards.read import RawSample
from noisegate.pipeline.shards.stream import Chunk, stream
from noisegate.pipeline.shards.workers import Decoded, DecodePool, decode_sample, default_workers
from tests.commands import ROOT
from tests.errors import refused
from tests.pipeline.shards import crashing
from tests.pipeline.shards.tars import encoded, picture, write_tar

SMALL = Preprocess(size=4)


def sample(index: int, **parts: bytes) -> RawSample:
    return RawSample(f"{index:04d}", index, parts, list(parts))


def pair(index: int, red: int | None = None) -> RawSample:
    return sample(index, png=picture(index if red is None else red), txt=f"caption {index}".encode())


def decoded(raw: RawSample, **options: object) -> Decoded:
    return decode_sample(raw, SMALL, DecodeOptions(**options))  # type: ignore[arg-type]


def plain(samples: list[Decoded]) -> list[dict[str, object]]:
    return [{**vars(s), "pixels": None if s.pixels is None else s.pixels.tolist()} for s in samples]


def decode_all(pool: DecodePool, chunks: list[list[RawSample]]) -> list[Decoded]:
    futures = [pool.submit(chunk) for chunk in chunks]
    return [s for chunk, future in zip(chunks, futures, strict=True) for s in pool.collect(chunk, future)]


class TestDecodeSample:
    def test_good_pair(self) -> None:
        raw = sample(3, png=picture(), txt=b"\xef\xbb\xbfa cat", cls=b"5")
        found = decoded(raw)
        assert (found.key, found.index, found.status, found.error) == ("0003", 3, "ok", None)
        assert (found.text, found.label, found.flags) == ("a cat", 5, ())
        assert found.image_sha256 == hashlib.sha256(raw.parts["png"]).digest()
        assert found.text_sha256 == hashlib.sha256(raw.parts["txt"]).digest()  # of the bytes as they are
        assert found.pixels is not None and found.pixels.shape == (4, 4, 3)

    def test_caption_in_json_is_hashed_by_itself(self) -> None:
        found = decoded(sample(0, png=picture(), json='{"caption": "Käse", "width": 1}'.encode()))
        assert found.text == "Käse" and found.text_sha256 == hashlib.sha256("Käse".encode()).digest()

    @pytest.mark.parametrize(
        ("parts", "status", "error"),
        [
            ({"txt": b"a"}, "no_image", "no part jpg, jpeg, png or webp among txt"),
            ({"png": b"", "txt": b"a"}, "bad_image", "0 bytes"),
            ({"png": picture()}, "no_text", "no part txt and no caption or text in json"),
            ({"png": picture(), "txt": b" "}, "no_text", "the caption is empty"),
            ({"png": picture(), "txt": b"\xff"}, "bad_text", "caption is not UTF-8: invalid start byte at byte 0"),
            ({"png": b"x", "txt": b"\xff"}, "bad_image", "not a readable JPEG, PNG, WebP or GIF"),
            ({"txt": b""}, "no_image", "no part jpg, jpeg, png or webp among txt"),
        ],
    )
    def test_what_is_wrong_becomes_the_status(self, parts: dict[str, bytes], status: str, error: str) -> None:
        found = decoded(sample(0, **parts))
        assert (found.status, found.error) == (status, error)

    def test_bad_text_keeps_its_digest(self) -> None:
        assert decoded(sample(0, png=picture(), txt=b"\xff")).text_sha256 == hashlib.sha256(b"\xff").digest()
        assert decoded(sample(0, png=picture())).text_sha256 is None

    def test_parts_lost_with_the_shard(self) -> None:
        raw = sample(0, txt=b"a")
        raw.broken = "the tar breaks off after 512 bytes"
        assert (decoded(raw).status, decoded(raw).error) == ("broken", "the tar breaks off after 512 bytes")
        raw.parts = {"png": picture()}
        assert decoded(raw).status == "broken"
        raw.parts = {"png": picture(), "txt": b""}
        assert decoded(raw).status == "no_text"  # whole, and empty
        raw.parts = {"png": picture(), "txt": b"a"}
        assert decoded(raw).status == "ok"

    def test_parts_too_large_to_read(self) -> None:
        raw = sample(0, txt=b"a")
        raw.names, raw.oversized = ["jpg", "txt"], {"jpg": 300_000_000}
        reason = "image of 300,000,000 bytes; the limit is 64,000,000"
        assert (decoded(raw).status, decoded(raw).error) == ("too_large", reason)
        raw.parts, raw.oversized, raw.digests = {"jpg": picture()}, {"txt": 300_000}, {"txt": b"digest"}
        assert (decoded(raw).status, decoded(raw).text_sha256) == ("too_large", b"digest")
        assert decoded(raw).error == "part txt of 300,000 bytes; the limit is 80,003"
        raw.oversized = {"txt": 9}  # there was no room left
        assert decoded(raw).error == "part txt of 9 bytes; all parts have over 256,000,000"

    def test_labels(self) -> None:
        assert decoded(sample(0, png=picture(), cls=b"3"), tasks=("labels",)).status == "ok"
        assert decoded(sample(0, png=picture(), txt=b"a"), tasks=("labels",)).status == "no_label"
        assert decoded(sample(0, png=picture(), json=b"["), tasks=("labels",)).status == "bad_label"
        assert decoded(sample(0, png=picture(), json=b'{"y": 2}'), tasks=("labels",), label_field="y").label == 2

    def test_with_both_tasks_one_of_the_two_is_enough(self) -> None:
        both = {"tasks": ("pairs", "labels")}
        for parts, status, flags in (
            ({"txt": b"a", "cls": b"1"}, "ok", ()),
            ({"txt": b"a"}, "ok", ("no_label",)),
            ({"cls": b"1", "txt": b"\xff"}, "ok", ("bad_text",)),
            ({}, "no_text", ()),
        ):
            found = decoded(sample(0, png=picture(), **parts), **both)
            assert (found.status, found.flags) == (status, flags)

    def test_duplicate_keys_are_flagged(self) -> None:
        raw = pair(0)
        raw.duplicate = True
        assert decoded(raw).flags == ("duplicate_key",)

    def test_limits_reach_the_decoder(self) -> None:
        assert decoded(pair(0), limits=Limits(max_pixels=47)).status == "too_large"
        assert decoded(pair(0), limits=Limits(max_text_chars=3)).status == "too_large"

    def test_preprocessing_that_fails_is_a_bad_image(self) -> None:
        raw = pair(0, crashing.TOO_LITTLE_MEMORY)
        found = decode_sample(raw, crashing.preprocess, DecodeOptions())
        assert (found.status, found.error) == ("bad_image", "8 x 6 pixels cannot be resized: MemoryError: ")

    @pytest.mark.parametrize("tasks", [(), ("captions",), ("pairs", "x")])
    def test_unknown_task(self, tasks: tuple[str, ...]) -> None:
        with refused("task", ",".join(tasks)):
            DecodeOptions(tasks=tasks)


class TestPool:
    def test_same_result_and_order_whatever_the_number_of_workers(self) -> None:
        raws = [pair(i) for i in range(40)] + [sample(40, txt=b"a"), sample(41, png=b"x", txt=b"b")]
        raws.append(sample(42, png=encoded(Image.new("L", (300, 200))), txt=b"c"))
        chunks = [raws[i : i + 5] for i in range(0, len(raws), 5)]
        results = []
        for count in (0, 1, 2):
            with DecodePool(count, SMALL, DecodeOptions()) as pool:
                results.append(plain(decode_all(pool, chunks)))
        assert results[0] == results[1] == results[2]
        assert [row["index"] for row in results[0]] == list(range(43))

    def test_a_crash_costs_the_one_sample_that_causes_it(self) -> None:
        poison = {5: crashing.EXITS, 18: crashing.KILLED, 19: crashing.EXITS}
        raws = [pair(i, poison.get(i)) for i in range(24)]
        chunks = [raws[i : i + 6] for i in range(0, 24, 6)]
        with DecodePool(2, crashing.preprocess, DecodeOptions()) as pool:
            found = decode_all(pool, chunks)
            again = decode_all(pool, [raws[:3]])  # and the pool goes on
        assert [s.index for s in found] == list(range(24)) and [s.status for s in again] == ["ok"] * 3
        assert {s.index: s.status for s in found if s.status != "ok"} == dict.fromkeys(poison, "bad_image")
        for i in poison:
            word = "killed again and again" if poison[i] == crashing.KILLED else "crashed"
            assert f"the decoder {word} on this image" in str(found[i].error).replace("was killed", "killed")
            assert found[i].image_sha256 == hashlib.sha256(raws[i].parts["png"]).digest()
        for s in found:
            if s.index not in poison:
                assert s.text == f"caption {s.index}" and s.pixels is not None
                assert np.array_equal(s.pixels, np.full((6, 8, 3), (s.index, 90, 200)))

    def test_workers_that_never_start_end_the_job_with_a_reason(self) -> None:
        with refused("workers", 2):
            DecodePool(2, crashing.NeverArrives(), DecodeOptions())

    def test_good_pictures_survive_workers_that_are_killed_from_outside(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As an OOM killer does: with the chunk, then three more times while the sample is alone."""
        kills = tmp_path / "kills"
        kills.write_bytes(bytes(4))
        monkeypatch.setenv(crashing.KILLS, str(kills))
        raws = [pair(i, crashing.KILLED_AT_FIRST if i == 2 else None) for i in range(4)]
        with DecodePool(1, crashing.preprocess, DecodeOptions()) as pool:
            assert [s.status for s in decode_all(pool, [raws])] == ["ok"] * 4  # was bad_image
        assert kills.stat().st_size == 0

    def test_a_decoder_that_hangs_or_is_stopped_does_not_hang_the_job(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(workers, "TASK_SECONDS", 0.5)
        reds = {1: crashing.HANGS, 5: crashing.STOPPED}
        files = [(f"{i}.{part}", data) for i in range(8) for part, data in pair(i, reds.get(i)).parts.items()]
        shard = Shard(str(write_tar(tmp_path / "x.tar", files)))
        with (
            DecodePool(1, crashing.preprocess, DecodeOptions()) as pool,
            closing(stream([shard], pool, 4)) as items,
        ):
            found = [s for item in items if isinstance(item, Chunk) for s in item.samples]
        late = "the decoder did not finish this image in time"
        assert [s.error for s in found] == [late if i in reds else None for i in range(8)]

    def test_workers_import_neither_torch_nor_fsspec(self) -> None:
        code = (
            "import sys, noisegate.pipeline.shards.workers, noisegate.pipeline.shards.preprocess\n"
            "print({'torch', 'fsspec', 'pyarrow'} & set(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
        assert done.stdout.strip() == "set()"

    def test_number_of_workers(self) -> None:
        with refused("workers", -1):
            DecodePool(-1, SMALL, DecodeOptions())
        assert 1 <= default_workers() <= 16


IMPORTS = (
    "import numpy as np\n"
    "from noisegate.pipeline.shards.preprocess import Preprocess\n"
    "from noisegate.pipeline.shards.read import RawSample\n"
    "from noisegate.pipeline.shards.workers import DecodeOptions, DecodePool\n"
)


class TestProcesses:
    @pytest.mark.parametrize("decoder", ["pillow", "fast"])
    def test_workers_do_not_outlive_a_killed_parent(self, decoder: str, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import os, signal\n"
            "from noisegate.pipeline.shards.preprocess import Preprocess\n"
            "from noisegate.pipeline.shards.workers import DecodeOptions, DecodePool\n"
            "if __name__ == '__main__':\n"
            f"    with DecodePool(2, Preprocess(size=4, decoder={decoder!r}), DecodeOptions()) as pool:\n"
            "        print(pool.pids[0], flush=True)\n"
            "        signal.pause()\n"
        )
        process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        os.kill(worker, 0)  # it lives
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)  # the workers hold the other end of this pipe: it ends when the last has gone

    @pytest.mark.parametrize("from_stdin", [False, True])
    def test_a_script_needs_no_main_guard(self, from_stdin: bool, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            f"{IMPORTS}print('once')\nwith DecodePool(1, Preprocess(size=4), DecodeOptions()) as pool:\n    pass\n"
        )
        name, text = ("-", script.read_text()) if from_stdin else (str(script), None)
        done = subprocess.run([sys.executable, name], input=text, capture_output=True, text=True, cwd=ROOT, timeout=120)
        assert (done.returncode, done.stdout, done.stderr) == (0, "once\n", "")

    @pytest.mark.parametrize("guarded", [False, True])
    def test_preprocessing_of_the_script_itself_needs_one(self, guarded: bool, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        guard = "__name__ == '__main__'" if guarded else "True"
        script.write_text(
            f"{IMPORTS}def mine(image):\n    return np.zeros((4, 4, 3), np.uint8)\nif {guard}:\n"
            f"    raw = RawSample('a', 0, {{'png': {picture(0)!r}, 'txt': b'it is red'}}, ['png', 'txt'])\n"
            "    with DecodePool(1, mine, DecodeOptions()) as pool:\n"
            "        print(pool.collect([raw], pool.submit([raw]))[0].status)\n"
        )
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=ROOT, timeout=120)
        assert done.stdout == ("ok\n" if guarded else "")
        assert (done.returncode == 0) == guarded
        if not guarded:
            error = done.stderr.splitlines()[-1]
            assert error.startswith("noisegate.pipeline.errors.ConfigError: workers 1 could not start")
            assert "`if __name__ == '__main__':`" in error

    def test_preprocessing_that_no_process_can_get(self) -> None:
        with refused("preprocess", "function"):
            DecodePool(1, lambda image: np.zeros((4, 4, 3), np.uint8), DecodeOptions())
