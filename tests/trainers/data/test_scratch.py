"""Scratch folders of processes that are gone, however they went, are cleared; those in use are not."""

import signal
import subprocess
import sys
from pathlib import Path

from noisegate.trainers.data.shard_cache import ScratchFolder, clear_abandoned

HOLD = """
import sys
from pathlib import Path
from noisegate.trainers.data.shard_cache import ScratchFolder
folder = ScratchFolder("data", Path(sys.argv[1]))
(folder.path / "shard.tar").write_bytes(b"copy")
print(folder.path, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_goes_with_the_next_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        assert left.parent == tmp_path and left.name.startswith("noisegate-data-")
        clear_abandoned(tmp_path)
        assert (left / "shard.tar").exists(), "its process lives"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert left.exists()
    own = ScratchFolder("data", tmp_path)
    assert sorted(tmp_path.iterdir()) == [own.path]


def test_a_folder_goes_with_its_object(tmp_path: Path) -> None:
    one, other = ScratchFolder("bench", tmp_path), ScratchFolder("data", tmp_path)
    one.remove()
    assert sorted(tmp_path.iterdir()) == [other.path]
    del other
    assert not list(tmp_path.iterdir())


def test_what_is_not_known_to_be_abandoned_stays(tmp_path: Path) -> None:
    places = tmp_path / "temporary", tmp_path / "home"
    for place in places:
        place.mkdir()
    (places[1] / "_lock").write_text("process 1 on here\n")
    (places[0] / "noisegate-link").symlink_to(places[1])
    (places[0] / "noisegate-without-lock").mkdir()
    (places[0] / "noisegate-just-made").mkdir()
    (places[0] / "noisegate-just-made" / "_lock").touch()
    (places[0] / "noisegate-file").touch()
    before = sorted(places[0].iterdir())
    clear_abandoned(places[0])
    assert sorted(places[0].iterdir()) == before
    assert (places[1] / "_lock").exists()
