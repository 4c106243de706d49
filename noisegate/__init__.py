"""Score image-text pairs and labels once with a pretrained CLIP, and train on what is right.

>>> import noisegate as ng
>>> round(ng.osa_weight(0.30, beta=0.215), 6)
0.006611

The public names are listed in `__init__.pyi`. They load on first use, so that `noisegate --help` and worker processes start
at once.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
