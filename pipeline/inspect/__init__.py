"""Look at finished runs.

`show` prints a run's summary, histograms and worst samples; `compare` compares two runs; `evaluate` judges a run by known
noise, which `truth` reads; `metrics/` has the metrics, as pure functions on arrays; `report/` writes a run as an HTML page;
`verify/` checks that tables are complete and as recorded.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
