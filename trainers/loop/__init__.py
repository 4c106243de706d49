"""The training loop, the same for every method.

`loop` runs epochs, updates and evaluations; `run_context` is a method's view of the run and its batches, `optimizer` has the
learning rate and the weight average. `run_folder`, `log` and `checkpoint` write to disk; `run_folder` handles stops too.
"""
