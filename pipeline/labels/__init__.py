"""Find wrong class labels and say what they should be.

`classes` names the classes and their prompts, `anchors` embeds these; `tango/` has the paper's votes of neighbours and texts
(Eq. 9-12), `probe` an out-of-fold linear classifier; `pool` and `fusion` weigh all of them into one opinion, `noise` says how
labels go wrong and how often, `repair` which of them change, and `scoring` does all of it for a run.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
