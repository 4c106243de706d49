"""Nearest neighbours by cosine, with ties in the order of the rows.

`memory_search` builds the `graph` of rows in memory and finds the rows nearest to new ones; `disk_search` builds and keeps the
graph of a run on disk. Its `plan` cuts the search into tasks that `task` carries out: in this process, in several, or on Ray.
Both search `distinct` rows, or unit rows, by the `exact` or the `inverted` index.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
