"""The command `noisegate`: one module per command, put together in `commands.py`.

`options.py`, `output.py` and `help_layout.py` are shared with the commands of `service` and `trainers`.
"""

__all__ = ["main"]


def main() -> None:
    """Run the command line. Commands of other packages import this package, so that they are loaded only here."""
    from .commands import main as run

    run()
