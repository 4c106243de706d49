"""The run folder: tables, embeddings and what is known about them.

`columns` and `table` are the weight tables and `_run.json`; `embeddings` the files beside them (`tensor_files`: safetensors as
memory maps), read as one matrix by `mapped_rows`, or from arrays in memory by `rows`. `resume` decides what is left to do,
`lock` keeps a folder to one job, `arrays` makes a run from embeddings made elsewhere, and `where` selects rows by a rule.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
