"""`python -m noisegate` is the command `noisegate`."""

from noisegate.pipeline.cli import program

program()
