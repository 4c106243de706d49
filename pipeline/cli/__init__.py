"""The command `noisegate`: one module per command, put together in `commands.py`.

`options.py`, `output.py` and `help_layout.py` are shared with the commands of `service` and `trainers`.
"""

import os
import signal
import sys

from noisegate.pipeline.estimators.light_import import EMBED_ONLY

__all__ = ["main", "program"]

EMBEDDING = ("annotate", "calibrate", "plan", "score", "serve", "verify")
"""commands whose process uses a model for nothing but embedding"""


def program() -> None:
    """Run the command line as a process: import only what the command needs, and let SIGTERM stop it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # train and serve set handlers of their own
    if sys.argv[1:2] and sys.argv[1] in EMBEDDING:
        os.environ.setdefault(EMBED_ONLY, "1")
    try:
        main()
    except KeyboardInterrupt:  # while commands are still being imported; afterwards `main` explains it
        sys.exit(130)


def main() -> None:
    """Run the command line. The commands are loaded here, because those of other packages import this package."""
    from .commands import main as run

    run()
