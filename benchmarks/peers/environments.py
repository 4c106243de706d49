"""A virtual environment for each peer, because their pins differ from noisegate's and from one another's.

    python -m benchmarks.peers.environments FOLDER

All take the same torch as noisegate, so that what is compared is the programs around it. What was made before stays.
"""

import argparse
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

# setuptools: clip-anytorch imports pkg_resources.packaging, which 70 removed; torch asks for a later one but runs without
PEERS = {
    "clip-retrieval": [["clip-retrieval==2.45.0", f"torch=={version('torch').split('+')[0]}"], ["setuptools<70"]],
    "img2dataset": [["img2dataset==1.47.0"]],
    "cleanlab": [["cleanlab==2.9.0"]],
}


def python_of(folder: Path, peer: str) -> Path:
    """The interpreter of a peer's environment; raises SystemExit with what to do where there is none."""
    path = folder / peer / "bin" / "python"
    if not path.exists():
        raise SystemExit(
            f"{peer} has no environment in {folder}; make one: python -m benchmarks.peers.environments {folder}"
        )
    return path


def make(folder: Path, peer: str) -> None:
    """Create the environment, unless all of it is there already."""
    done = folder / peer / "done"
    if done.exists():
        return
    venv.create(folder / peer, with_pip=True)
    for packages in PEERS[peer]:
        subprocess.run([str(python_of(folder, peer)), "-m", "pip", "install", "--quiet", *packages], check=True)
    done.touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("peers", nargs="*", default=list(PEERS), help=", ".join(PEERS))
    given = parser.parse_args()
    for peer in given.peers:
        make(given.folder, peer)
        print(f"{peer}: {python_of(given.folder, peer)}", file=sys.stderr)


if __name__ == "__main__":
    main()
