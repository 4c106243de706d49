"""`python -m pipeline.cli`, the same as `noisegate`."""

from . import main

main()
