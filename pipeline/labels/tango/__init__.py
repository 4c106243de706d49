"""TANGO: votes of a sample's neighbours (`visual`) and of the class texts (`semantic`) on its label, and the corrected
label (`refinement`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
