"""The run folder: tables, embeddings and what is known about them.

`table` has the columns of the weight tables and `_run.json`; `embeddings` the files beside them, which `rows` reads as one
matrix. `resume` decides what is left to do and writes the run's record, `lock` keeps a folder to one job and `lease` a run in
a store, which `stored_folder` copies here, `arrays` makes a run from embeddings made elsewhere, `reviews` keeps people's
marks, and `where` (with `where_terms`) selects rows by a rule.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
