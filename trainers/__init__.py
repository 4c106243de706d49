"""Robust fine-tuning from weight tables.

`train` runs a configuration (`config`, checked by `checks`) in the `loop`: a `method` trains a `target` on `data` and a `task`
measures it. `evaluate` measures a finished run, `write_table` writes what a run learnt about its samples, `bench` compares
methods.
"""
