"""The run folder: tables, embeddings, the run's record and people's marks.

`table` has the columns of the weight tables and reads `_run.json`; `embeddings` are files beside the tables, which `rows` reads
as one matrix. `resume` decides what is left to do and writes the run's record; `lock` allows one job per folder, `lease` one
job per run in a store; `stored_folder` copies such a run to this machine; `arrays` makes a run from embeddings made elsewhere;
`reviews` keeps people's marks, and `where` (with `where_terms`) selects rows by a rule.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
