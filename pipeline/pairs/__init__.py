"""Scores of image-text pairs.

`scorer` embeds and scores pairs, for all who need it; `osa` is the weight of a cosine, `beta` the shift it needs,
`calibration` what a score means on some data (with the models of `density_ratio`), `judge` which score that is. `pair_fit`
learns β and calibration of a whole run, or of a few pairs before a long job. `neighbourhood` judges a pair by the partners of
its neighbours, `pair_quality` by what its picture and caption give to other pairs (`pair_pool`: those of a run).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
