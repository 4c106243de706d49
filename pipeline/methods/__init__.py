"""Pure functions that training methods compute on a batch, shared by `rescore --with` and the trainers.

lnc.py, crcl.py, gsl.py   equations of each paper that need no training, and the columns made of them
losses.py                 per-sample InfoNCE, hinge matrices and triplet loss (torch)
mixtures.py               two-component mixtures that split losses into clean and noisy
pair_batches.py           seeded batches of image-text pairs, with their cosines
columns.py                the columns of a whole run: compute, then write into its tables

`losses`, `lnc`, `crcl` and `gsl` import torch; the others do not, so that `rescore` without --with starts fast.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
