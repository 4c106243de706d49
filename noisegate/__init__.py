"""Score image-text pairs and labels once with a pretrained CLIP, and train on what is right.

>>> import noisegate as ng
>>> round(ng.osa_weight(0.30, beta=0.215), 6)
0.006611

The public names are listed in `__init__.pyi`. They load on first use, so that `noisegate --help` and worker processes start
at once.
"""

from pathlib import Path

import lazy_loader

if (
    not Path(__file__).with_name("pipeline").is_dir()
):  # in the repository's folder, where the three packages lie beside this one
    __path__.append(str(Path(__file__).resolve().parents[1]))

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
