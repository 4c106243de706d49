"""Scores of image-text pairs.

`scorer` embeds and scores pairs; `osa` computes the weight of a cosine, `beta` the shift that the weight needs, `calibration`
P(clean) of a score on some data (fitted with the models of `density_ratio`); `judge` chooses that score. `pair_fit` learns β
and calibration of a whole run, or of a few pairs before a long job. `neighbourhood` judges a pair by the partners of its
neighbours, `pair_quality` by the cosines of its picture and caption with other pairs (`pair_pool` draws these from a run).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
